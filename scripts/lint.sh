#!/usr/bin/env bash
# gofmt, no conflict markers, vet on the systems we build for, staticcheck.
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
go vet -tags llama ./...
for system in darwin windows; do
  CGO_ENABLED=0 GOOS=$system go vet ./cmd/... ./internal/...
done
# staticcheck reads sources only of the Go that it was built with, or older.
export GOTOOLCHAIN=$(go env GOVERSION)
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 -tags llama ./...
(cd scripts/release && go vet ./... && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...)
