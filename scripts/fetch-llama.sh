#!/usr/bin/env bash
# Fetches llama.cpp's shared libraries, checks them against the pin below and
# places them, gzipped, where a build with `-tags llama` embeds them:
# internal/llama/lib/PLATFORM/ (not in the repository).
#
#   scripts/fetch-llama.sh            for this machine
#   scripts/fetch-llama.sh linux-arm64   for a cross build
#
# The libraries come from node-llama-cpp's prebuilt packages (MIT), through npm, or
# curl where npm is missing: the file is the same, and so is its hash. Raising the pin:
# change version and integrity here, libraryVersion and the struct layouts in
# internal/llama/abi.go.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C # one order of files everywhere

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
    if [ -n "${1:-}" ]; then
      echo "fetch-llama: no libraries are pinned for $platform; build for it without them" >&2
      exit 1
    fi
    # The build goes on: a llama-server on the PATH runs the models.
    if ! command -v llama-server >/dev/null; then
      case "$platform" in
        mac-*) hint="brew install llama.cpp" ;;
        win-*) hint="winget install llama.cpp" ;;
        *) hint="install llama.cpp, see https://github.com/ggml-org/llama.cpp" ;;
      esac
      echo "no llama.cpp is pinned for $platform, and there is no llama-server on the PATH; to run models here: $hint"
    fi
    exit 0
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
name=node-llama-cpp-$platform-$version.tgz
tarball="$work/$name"
fetching="fetching llama.cpp's libraries for $platform"
if command -v npm >/dev/null; then
  scripts/progress.sh "$fetching (npm)" \
    sh -c 'cd "$1" && npm pack --silent --prefer-offline --ignore-scripts "$2"' sh "$work" "@node-llama-cpp/$platform@$version"
elif command -v curl >/dev/null; then
  registry=${npm_config_registry:-https://registry.npmjs.org}
  scripts/progress.sh "$fetching (curl)" \
    curl -fsSL --retry 3 -o "$tarball" "${registry%/}/@node-llama-cpp/$platform/-/$platform-$version.tgz"
else
  echo "fetch-llama: cannot fetch llama.cpp's libraries: there is neither npm nor curl; install one, or build without them (make build-slim)" >&2
  exit 1
fi
digest() { # BITS FILE
  if command -v "sha$1sum" >/dev/null; then "sha$1sum" <"$2"; else shasum -a "$1" <"$2"; fi | cut -d ' ' -f 1
}
want=$(echo "$integrity" | base64 -d | od -An -v -tx1 | tr -d ' \n')
got=$(digest 512 "$tarball")
if [ "$got" != "$want" ]; then
  echo "fetch-llama: $tarball is not what the pin says: sha512 $got" >&2
  exit 1
fi
tar -xzf "$tarball" -C "$work"

# Without the addon for Node.js and llama.cpp's argument-parsing helpers.
pack() { # FOLDER OUT
  set -euo pipefail
  for lib in "$1"/*; do
    name=$(basename "$lib")
    case "$name" in
      llama-addon.node | _nlcBuildMetadata.json | *llama-common*) continue ;;
    esac
    gzip -9 -n -c "$lib" >"$2/$name.gz"
    echo "$(digest 256 "$lib")  $name" >>"$2/SHA256SUMS"
    echo "$name"
  done
}
export -f pack digest
scripts/progress.sh "packing the libraries" bash -c 'pack "$@"' pack "$work/package/bins/$platform" "$out"
cp "$work/package/LICENSE" "$out/LICENSE" # node-llama-cpp's; packaging/LICENSE.llama.cpp is llama.cpp's own
echo "$stamp" >"$out/STAMP"
rm -rf "$work"
