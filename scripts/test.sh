#!/usr/bin/env bash
# What CI runs. Two builds: one with the race detector, for what runs in one process, and
# one without cgo, as members get it, for the commands and everything that starts
# processes. The race detector makes computation four to nine times as slow, so random
# worlds, histories and long lists of cases are shorter under it (-short). What takes long
# is left to scripts/test-long.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

# The binaries, and the tests that are built as they are, share what is compiled.
plain() { CGO_ENABLED=0 go test -trimpath -tags llama -count=1 -timeout 20m "$@"; }

# Only root can change to another root folder.
as_root=()
[ "$(id -u)" = 0 ] || [ "$(uname -s)" != Linux ] || as_root=(-exec "sudo --preserve-env=PATH,HOME,KITH_BIN,GOPATH,GOCACHE,GOMODCACHE,GOFLAGS,GOPROXY,GOTOOLCHAIN")

step "gofmt, vet"
scripts/vet.sh
step "the binaries, as members get them"
make --no-print-directory build build-slim
step "packages, store (SQLite and PostgreSQL), engine, simulation: go test -race"
. scripts/race.sh
# The commands start hubs as processes; of what attracts calls there is a simulation of
# 10,000. Both run without the detector.
go test "${race[@]}" -tags llama -short -timeout 25m -p 3 -parallel 6 -skip TestTrapsAttractNoCalls \
  $(go list -tags llama ./cmd/... ./internal/... | grep -v '/internal$\|/internal/cli$')
step "commands, sources and docs, what -short leaves out, the bench: go test"
plain -p 4 -parallel 8 ./internal ./internal/cli ./internal/dialect ./internal/dispatch ./internal/fleet ./internal/gateway ./internal/registry ./bench/...
plain -short -run TestTrapsAttractNoCalls ./internal/sim
# These wait more than they compute, so they run at the same time.
others=$(mktemp)
(
  step "the site in a browser, without scripts and with a passkey"
  (cd e2e/browser && KITH_BIN="$PWD/../../bin/kith" CGO_ENABLED=0 go test -trimpath -count=1 -timeout 10m -run 'TestSite/no_scripts|TestHostForms|TestPasskey' ./...)
  step "deploy: Helm, Compose, HAProxy, systemd, alerts and dashboard, read by their own tools"
  (cd deploy && go vet ./... && KITH_BIN="$PWD/../bin/kith-slim" go test -count=1 -timeout 10m "${as_root[@]}" ./...)
  step "the official client libraries for Go"
  (cd e2e/clients && KITH_BIN="$PWD/../../bin/kith" go test -count=1 -timeout 10m -run 'TestOpenAIGo|TestAnthropicGo|TestResponsesGo|TestEmbeddingCodings|TestAgentGo|TestApps' ./...)
) >"$others" 2>&1 &
trap 'kill $! 2>/dev/null || true; rm -f "$others"' EXIT
step "end to end: processes, llama-server, several hubs"
plain -p 4 -parallel 8 ./e2e ./e2e/cluster ./e2e/realengine
failed=0
wait $! || failed=$?
cat "$others"
exit $failed
