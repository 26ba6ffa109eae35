#!/usr/bin/env bash
# What make test leaves to make test-all: what takes long, and what comes out the same on
# nearly every day. It is run after make test, whose binaries it uses.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }
plain() { CGO_ENABLED=0 go test -trimpath -tags llama -count=1 -timeout 30m "$@"; }
as_root=()
[ "$(id -u)" = 0 ] || [ "$(uname -s)" != Linux ] || as_root=(-exec "sudo --preserve-env=PATH,HOME,KITH_BIN,GOPATH,GOCACHE,GOMODCACHE,GOFLAGS,GOPROXY,GOTOOLCHAIN")

step "staticcheck, and vet for macOS and Windows"
scripts/lint.sh
step "the commands with the race detector"
. scripts/race.sh
go test "${race[@]}" -tags llama -short -count=1 -timeout 25m ./internal/cli ./bench/...
step "the pages of the site, and the simulation, with everything that -short leaves out"
plain ./internal/site
plain ./internal/sim -skip TestRevocations
step "how long a right outlives its end, in false time"
plain ./internal/sim -run TestRevocations -v | grep -v '^=== \|^ *--- PASS'
step "10,000 calls beside llama-server"
KITH_TEST_LONG=1 plain -run TestStreamsAreComplete -v ./e2e/realengine
step "the site in a browser"
(cd e2e/browser && go vet ./... && KITH_BIN="$PWD/../../bin/kith" go test -count=1 -timeout 20m ./...)
step "the bench runs"
go run ./bench -rounds 1
step "releases: archives, packages, installer, image"
(cd scripts/release && go test -count=1 -timeout 15m "${as_root[@]}" ./...)
step "the official client libraries"
scripts/npm-ci.sh e2e/clients "the client libraries for JavaScript"
(cd e2e/clients && KITH_BIN="$PWD/../../bin/kith" go test -count=1 -timeout 10m ./...)
