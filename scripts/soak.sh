#!/usr/bin/env bash
# The long runs: Route against its naive twin on ten million worlds, ten
# thousand seeds of a complete network in simulated time, ten thousand revocations, a
# hub killed a thousand times.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '\n== %s\n' "$*"; }
# long runs a test that prints what it found, without a line for each part of it.
long() { time go test "$@" -v -count=1 -timeout 0 | grep -v '^=== \|^ *--- PASS: .*/'; }

step "worlds"
long ./internal/fleet -run TestRouteAgreesWithItsTwin -worlds "${WORLDS:-10000000}"
step "seeds"
long -tags llama ./internal/sim -run "Test(Sealed)?Seeds$" -seeds "${SEEDS:-10000}"
step "revocations"
long -tags llama ./internal/sim -run TestRevocations -rounds "${ROUNDS:-420}"
step "kills"
long ./internal/cli -run TestLedgerOutlivesKills -kills "${KILLS:-1000}"
