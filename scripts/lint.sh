#!/usr/bin/env bash
# scripts/vet.sh, vet for the other systems we build for, and staticcheck.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/vet.sh
for system in darwin windows; do
  CGO_ENABLED=0 GOOS=$system go vet ./cmd/... ./internal/...
done
# staticcheck reads sources only of the Go that it was built with, or older.
export GOTOOLCHAIN=$(go env GOVERSION)
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 -tags llama ./...
(cd scripts/release && go vet ./... && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...)
