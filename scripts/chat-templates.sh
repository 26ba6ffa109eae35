#!/usr/bin/env bash
# Makes what the tests of internal/llama/chatform read, once, in build/templates:
#
#   *.jinja        chat templates: those of llama.cpp's tests, those of the template
#                  library's tests (library-*), and Gemma 3's
#   golden.json    conversations, and what Jinja2 renders for each template
#   vectors.json   answers of models, and what they mean, from llama.cpp's tests/test-chat.cpp
#
# The source is the git bundle in npm's node-llama-cpp, of the version that
# scripts/fetch-llama.sh pins, and two Go modules: that of the library, and Ollama's, which
# lists the templates that it knows. Needs git, npm, Go and Debian's python3-jinja2.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

version=$(sed -n 's/^version=\([0-9.]*\).*/\1/p' scripts/fetch-llama.sh)
library=$(sed -n 's/^.*\(github.com\/ardanlabs\/jinja\) \(v[0-9.]*\).*/\1@\2/p' go.mod)
ollama=github.com/ollama/ollama@v0.6.8
hash=$(cat scripts/fetch-llama.sh scripts/chat-templates.{sh,py} - <<<"$library" | sha256sum | cut -c 1-16)
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
module() { (cd "$work" && GOFLAGS=-mod=mod go mod download -json "$1") | sed -n 's/^.*"Dir": "\(.*\)",$/\1/p'; }
rm -rf "$out" && mkdir -p "$out"
cp "$work"/models/templates/*.jinja "$out"
for file in "$(module "$library")"/testdata/templates/*.jinja; do
  install -m 644 "$file" "$out/library-$(basename "$file")"
done
"$python" - "$(module "$ollama")/template/index.json" >"$out/google-gemma-3-it.jinja" <<'END'
import json, sys
known = json.load(open(sys.argv[1]))
sys.stdout.write(next(t["template"] for t in known if t["name"] == "gemma3-instruct"))
END
"$python" scripts/chat-templates.py "$work/tests/test-chat.cpp" "$out"
touch "$out/$hash"
