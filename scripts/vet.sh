#!/usr/bin/env bash
# gofmt, no conflict markers, vet.
set -euo pipefail
cd "$(dirname "$0")/.."
unformatted=$(git ls-files '*.go' | xargs "$(go env GOROOT)/bin/gofmt" -l)
if [ -n "$unformatted" ]; then
  echo "not gofmt'd (run make fmt):" >&2
  echo "$unformatted" >&2
  exit 1
fi
if git grep -nE '^(<<<<<<<|>>>>>>>) '; then
  echo "conflict markers of a merge:" >&2
  exit 1
fi
CGO_ENABLED=0 go vet -trimpath -tags llama ./...
