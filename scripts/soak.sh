#!/usr/bin/env bash
# The long runs: Route against its naive twin on ten million worlds, ten
# thousand seeds of the whole hub under false time, a hub killed a thousand times.
set -euo pipefail
cd "$(dirname "$0")/.."
go test ./internal/fleet -run TestRouteAgreesWithItsTwin -timeout 0 -worlds "${WORLDS:-10000000}"
go test -tags llama ./internal/sim -run TestSeeds -timeout 0 -seeds "${SEEDS:-10000}"
go test ./internal/cli -run TestLedgerOutlivesKills -v -timeout 0 -kills "${KILLS:-1000}"
