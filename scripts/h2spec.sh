#!/usr/bin/env bash
# h2spec against the tunnel's server end and against net/http alone: what fails
# at the one fails at the other.
set -euo pipefail
cd "$(dirname "$0")/.."
exec go run ./scripts/h2spec
