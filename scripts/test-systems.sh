#!/usr/bin/env bash
# kith as it is built for other systems, run: kith.exe under Wine, and Linux's arm64 binary with
# its built-in engine under qemu (e2e/systems). Installs both, and builds into build/systems.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
[ -x /usr/lib/wine/wine64 ] || missing+=(wine64)
command -v x86_64-w64-mingw32-gcc >/dev/null || missing+=(gcc-mingw-w64-x86-64-win32)
command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
for library in libc6 libstdc++6 libgomp1; do
  case $library in libc6) file=libc.so.6 ;; libstdc++6) file=libstdc++.so.6 ;; *) file=libgomp.so.1 ;; esac
  [ -e /usr/aarch64-linux-gnu/lib/$file ] || missing+=($library-arm64-cross)
done
command -v unshare >/dev/null || missing+=(util-linux)
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ] || ! command -v apt-get >/dev/null; then
    echo "make: cannot install ${missing[*]} here: that takes Linux on amd64 with apt-get; install them by hand, then run make test-all again" >&2
    exit 1
  fi
  as_root=(); [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

export CGO_ENABLED=0
scripts/fetch-llama.sh linux-arm64
out=build/systems
mkdir -p "$out"
build() { env GOOS="$1" GOARCH="$2" go build -v -trimpath -tags llama -o "$out/$3" ./cmd/kith; }
export -f build
export out
for target in "windows amd64 kith.exe" "linux arm64 kith-arm64"; do
  read -r os arch name <<<"$target"
  scripts/progress.sh "building $name (the first build takes a few minutes)" bash -euo pipefail -c 'build "$@"' build "$os" "$arch" "$name"
done
x86_64-w64-mingw32-gcc -Wall -Wno-cast-function-type -O1 -shared -s -o "$out/bcryptprimitives.dll" \
  e2e/systems/testdata/bcryptprimitives.c -ladvapi32 -lntdll
for package in daemon outbound; do
  GOOS=windows go test -c -o "$out/$package.test.exe" "./internal/$package"
done
go test -tags llama -count=1 -timeout 30m -v ./e2e/systems
