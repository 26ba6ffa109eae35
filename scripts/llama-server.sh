#!/usr/bin/env bash
# Compiles llama.cpp's own llama-server for the tests, once, and places it beside the
# libraries it uses in the cache of this user, outside the checkout:
#
#   $XDG_CACHE_HOME/kith/llama-server-HASH/llama-server
#
# build/llama-server is a link to that folder. The source is the git bundle in npm's
# node-llama-cpp, of the version that scripts/fetch-llama.sh pins; the libraries are those
# of its platform package. Only tools/server, tools/mtmd and cpp-httplib are compiled;
# the server's web page is left out. Needs g++, git, make and npm.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

version=$(sed -n 's/^version=\([0-9.]*\).*/\1/p' scripts/fetch-llama.sh)
case "$(uname -s)-$(uname -m)" in
  Linux-x86_64) platform=linux-x64 ;;
  Linux-aarch64 | Linux-arm64) platform=linux-arm64 ;;
  *)
    echo "llama-server: cannot compile it for $(uname -s)-$(uname -m); run the tests on Linux" >&2
    exit 1
    ;;
esac

hash=$( (echo "$platform"; g++ -dumpfullversion; cat scripts/fetch-llama.sh scripts/llama-server.sh) | sha256sum | cut -c 1-16)
out=${XDG_CACHE_HOME:-$HOME/.cache}/kith/llama-server-$hash
mkdir -p build
if [ ! -x "$out/llama-server" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  scripts/progress.sh "fetching llama.cpp's source (npm)" sh -c 'cd "$1" && shift && npm pack --silent --prefer-offline --ignore-scripts "$@"' \
    sh "$work" "node-llama-cpp@$version" "@node-llama-cpp/$platform@$version"
  mkdir -p "$work/source" "$work/platform" "$work/out"
  tar -xzf "$work/node-llama-cpp-$version.tgz" -C "$work/source" package/llama/gitRelease.bundle
  tar -xzf "$work/node-llama-cpp-$platform-$version.tgz" -C "$work/platform"
  git clone --quiet "$work/source/package/llama/gitRelease.bundle" "$work/llama.cpp" 2>/dev/null
  cp -P "$work/platform/package/bins/$platform"/*.so* "$work/out"
  cat >"$work/llama.cpp/tools/server/ui.h" <<'UI'
#pragma once
#include <cstddef>
#include <string>
#include <vector>
struct llama_ui_asset { std::string name; const unsigned char * data; size_t size; std::string type; std::string etag; };
inline const std::vector<llama_ui_asset> & llama_ui_get_assets() { static const std::vector<llama_ui_asset> none; return none; }
inline const llama_ui_asset * llama_ui_find_asset(const std::string &) { return nullptr; }
inline bool llama_ui_use_gzip() { return false; }
UI
  cat >"$work/llama.cpp/kith.mk" <<'MK'
SOURCES := $(wildcard tools/server/*.cpp) $(filter-out %-cli.cpp %warning.cpp,$(wildcard tools/mtmd/*.cpp)) $(wildcard tools/mtmd/models/*.cpp) vendor/cpp-httplib/httplib.cpp vendor/hash/hash.cpp
OBJECTS := $(SOURCES:.cpp=.o) $(patsubst %.c,%.o,$(wildcard vendor/hash/*/*.c))
$(OUT)/llama-server: $(OBJECTS)
	$(CXX) -o $@ $^ -L$(OUT) -lllama-common -l:$(notdir $(firstword $(wildcard $(OUT)/libllama.so $(OUT)/libllama.v*.so))) -l:$(notdir $(firstword $(wildcard $(OUT)/libggml.so $(OUT)/libggml.v*.so))) -lggml-base -lpthread -Wl,-rpath,'$$ORIGIN' -Wl,--allow-shlib-undefined -s
%.o: %.cpp
	$(CXX) -std=c++17 -w -fPIC $(if $(findstring tools/mtmd,$<),-O0,-O2) -Iinclude -Iggml/include -Isrc -Icommon -Ivendor -Itools/mtmd -Itools/server -DLLAMA_SUBPROCESS -c -o $@ $<
%.o: %.c
	$(CXX) -x $(if $(findstring sha1,$<),c++,c) -w -fPIC -O2 -Ivendor -Ivendor/hash -c -o $@ $<
MK
  scripts/progress.sh "compiling llama-server for the tests (a few minutes, once)" \
    make --no-print-directory -C "$work/llama.cpp" -f kith.mk -j "$(nproc)" OUT="$work/out"
  mkdir -p "$(dirname "$out")"
  rm -rf "$out" && mv "$work/out" "$out"
fi
ln -sfn "$out" build/llama-server
