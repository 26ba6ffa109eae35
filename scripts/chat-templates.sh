#!/usr/bin/env bash
# Makes what the tests of internal/llama/chatform read, once, in build/templates:
#
#   *.jinja        the chat templates of llama.cpp's tests
#   golden.json    conversations, and what Jinja2 renders for each template
#   vectors.json   answers of models, and what they mean, from llama.cpp's tests/test-chat.cpp
#
# The source is the git bundle in npm's node-llama-cpp, of the version that
# scripts/fetch-llama.sh pins. Needs git, npm and Debian's python3-jinja2.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

version=$(sed -n 's/^version=\([0-9.]*\).*/\1/p' scripts/fetch-llama.sh)
hash=$(cat scripts/fetch-llama.sh scripts/chat-templates.{sh,py} | sha256sum | cut -c 1-16)
out=build/templates
[ ! -e "$out/$hash" ] || exit 0

python=python3
"$python" -c 'import jinja2' 2>/dev/null || python=/usr/bin/python3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scripts/progress.sh "fetching llama.cpp's chat templates (npm)" \
  sh -c 'cd "$1" && npm pack --silent --prefer-offline --ignore-scripts "$2"' sh "$work" "node-llama-cpp@$version"
tar -xzf "$work/node-llama-cpp-$version.tgz" -C "$work" package/llama/gitRelease.bundle
git clone --quiet --bare "$work/package/llama/gitRelease.bundle" "$work/llama.git" 2>/dev/null
git --git-dir="$work/llama.git" archive HEAD models/templates tests/test-chat.cpp | tar -x -C "$work"
rm -rf "$out" && mkdir -p "$out"
cp "$work"/models/templates/*.jinja "$out"
"$python" scripts/chat-templates.py "$work/tests/test-chat.cpp" "$out"
touch "$out/$hash"
