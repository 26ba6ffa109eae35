#!/usr/bin/env bash
# Every test. The binary under the end-to-end scripts is built as members get
# it, without cgo; the tests run with the race detector. It makes computation four
# to nine times as slow, so random worlds, histories and long lists of cases are
# shorter under it (-short) and run in full without it.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "gofmt, vet"
scripts/lint.sh
step "unit, store (SQLite and PostgreSQL), engine, simulation: go test -race"
. scripts/race.sh
go test "${race[@]}" -tags llama -short -timeout 25m $(go list -tags llama ./cmd/... ./internal/... ./bench/... | grep -v '/internal$')
step "what -short leaves out, and the tests of sources and docs: go test"
go test -tags llama -timeout 25m ./internal ./internal/dialect ./internal/dispatch ./internal/fleet ./internal/gateway ./internal/registry ./internal/site
go test -tags llama -timeout 25m ./internal/sim -skip TestRevocations
step "how long a right outlives its end, in false time"
go test -tags llama -count=1 ./internal/sim -run TestRevocations -v | grep -v '^=== \|^ *--- PASS'
step "the binaries, as members get them"
make --no-print-directory build build-slim
step "releases: archives, packages, installer, image"
# Only root can change to another root folder.
as_root=()
[ "$(id -u)" = 0 ] || [ "$(uname -s)" != Linux ] || as_root=(-exec "sudo --preserve-env=PATH,HOME,KITH_BIN,GOPATH,GOCACHE,GOMODCACHE,GOFLAGS,GOPROXY")
(cd scripts/release && go test -count=1 -timeout 15m "${as_root[@]}" ./...)
step "end to end, separate processes"
go test -tags llama -count=1 -timeout 20m ./e2e/...
step "the site and the local surface, in Chromium"
(cd e2e/browser && go vet ./... && KITH_BIN="$PWD/../../bin/kith" go test -count=1 -timeout 20m ./...)
step "deploy: Helm, Compose, HAProxy, systemd, alerts and dashboard, read by their own tools"
(cd deploy && go vet ./... && KITH_BIN="$PWD/../bin/kith-slim" go test -count=1 -timeout 10m "${as_root[@]}" ./...)
step "the official client libraries"
(cd e2e/clients && KITH_BIN="$PWD/../../bin/kith" go test -count=1 -timeout 10m ./...)
