#!/usr/bin/env bash
# Fetches llama.cpp's shared libraries, checks them against the pin below and
# places them, gzipped, where a build with `-tags llama` embeds them:
# internal/llama/lib/PLATFORM/ (not in the repository).
#
#   scripts/fetch-llama.sh            for this machine
#   scripts/fetch-llama.sh linux-arm64   for a cross build
#
# The libraries come from node-llama-cpp's prebuilt packages (MIT) through the
# ordinary npm client. Raising the pin: change version and integrity here,
# libraryVersion and the struct layouts in internal/llama/abi.go.
set -euo pipefail
cd "$(dirname "$0")/.."

version=3.22.1 # llama.cpp v0.5.0

platform=${1:-}
if [ -z "$platform" ]; then
  case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) platform=linux-x64 ;;
    Linux-aarch64 | Linux-arm64) platform=linux-arm64 ;;
    Darwin-arm64) platform=mac-arm64-metal ;;
    Darwin-x86_64) platform=mac-x64 ;;
    MINGW*-x86_64 | MSYS*-x86_64) platform=win-x64 ;;
    *) platform="$(uname -s)-$(uname -m)" ;;
  esac
fi

case "$platform" in
  linux-x64) integrity=5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg== ;;
  linux-arm64) integrity=W+7naKCXX9/eEjjFmRS8vvx91QyLXDbeFxexZc3bh/PtQABZgmRL3C0AtYYXn4YGTj/3Qor4lWZn2tpjZFPLdQ== ;;
  *)
    echo "fetch-llama: no libraries are pinned for $platform yet; build without them (make build-slim), or put llama.cpp's own beside the binary in llama-lib/" >&2
    exit 1
    ;;
esac

out=internal/llama/lib/$platform
stamp="$platform $version $integrity"
if [ "$(cat "$out/STAMP" 2>/dev/null)" = "$stamp" ]; then
  exit 0
fi

work=build/llama
rm -rf "$work" "$out"
mkdir -p "$work" "$out"
(cd "$work" && npm pack --silent --prefer-offline --ignore-scripts "@node-llama-cpp/$platform@$version" >/dev/null)
tarball="$work/node-llama-cpp-$platform-$version.tgz"
got=$(openssl dgst -sha512 -binary "$tarball" | openssl base64 -A)
if [ "$got" != "$integrity" ]; then
  echo "fetch-llama: $tarball is not what the pin says: sha512 $got" >&2
  exit 1
fi
tar -xzf "$tarball" -C "$work"

# Without the addon for Node.js and llama.cpp's argument-parsing helpers.
for lib in "$work/package/bins/$platform"/*; do
  name=$(basename "$lib")
  case "$name" in
    llama-addon.node | _nlcBuildMetadata.json | *llama-common*) continue ;;
  esac
  gzip -9 -n -c "$lib" >"$out/$name.gz"
  (cd "$work/package/bins/$platform" && openssl dgst -sha256 -r "$name") | sed 's/ \*/  /' >>"$out/SHA256SUMS"
done
cp "$work/package/LICENSE" "$out/LICENSE"
echo "$stamp" >"$out/STAMP"
rm -rf "$work"
