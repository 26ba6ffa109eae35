#!/usr/bin/env bash
# Several hub nodes, as processes: the end-to-end stories and the official client
# libraries of one hub, against three nodes behind one address; faults of nodes, ways and
# databases, in the long form, which measures (docs/performance.md). ROUNDS=3 MACHINES=300
# make it longer. The tests print their tables.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

[ -x bin/kith ] || make --no-print-directory build
[ -x bin/kith-slim ] || make --no-print-directory build-slim
mkdir -p build/nodes
go build -ldflags "-X main.kith=$PWD/bin/kith" -o build/nodes/kith ./e2e/nodes
cp bin/kith-slim build/nodes/

# PostgreSQL is backed up with its own tools, nodes.txtar names its nodes itself, and
# memory.txtar reads the figures of one process.
step "the end-to-end stories, against three hub nodes"
KITH_BIN=$PWD/build/nodes/kith go test -tags llama -count=1 -timeout 20m ./e2e -run TestScripts -skip 'TestScripts/(backup|memory|nodes)$'
step "the official client libraries, against three hub nodes"
scripts/npm-ci.sh e2e/clients "the client libraries for JavaScript"
(cd e2e/clients && KITH_BIN="$PWD/../../build/nodes/kith" go test -count=1 -timeout 10m ./...)
step "faults, costs: three nodes, a primary and a standby, a proxy on every way"
KITH_BIN=$PWD/bin/kith go test -count=1 -timeout 3h ./e2e/cluster -v -long -rounds "${ROUNDS:-1}" -machines "${MACHINES:-60}" -failovers 20
step "memory of 100,000 machines at other nodes"
go test ./internal/registry -run xxx -bench Announced -benchtime 3x
