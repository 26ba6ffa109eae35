#!/usr/bin/env bash
# The quick form, short enough for a pre-commit hook: lint, the fast tests,
# and generation that leaves no difference.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/lint.sh
. scripts/race.sh
go test "${race[@]}" -short -tags llama $(go list -tags llama ./cmd/... ./internal/... | grep -v '/internal$')
go test -tags llama ./internal
