#!/usr/bin/env bash
# Runs a command, and says every 10 s that it is still at work. The command's output is
# shown if it fails, without the bare names of packages that `go build -v` lists.
#
#   scripts/progress.sh TEXT COMMAND...
set -euo pipefail
what=$1
shift
log=$(mktemp)
echo "$what"
what=${what%% (*} # without a remark in brackets

(
  trap 'kill ${nap:-} 2>/dev/null; exit 0' TERM
  while :; do
    sleep "${KITH_PROGRESS_EVERY:-10}" &
    nap=$!
    wait "$nap"
    count=$(wc -l <"$log" | tr -d ' ')
    last=$(tail -n 1 "$log")
    echo "$what: $SECONDS s so far${last:+, $count done, last $last}"
  done
) &
ticker=$!
trap 'kill "$ticker" 2>/dev/null; rm -f "$log"' EXIT # also after an interrupt
status=0
"$@" >"$log" 2>&1 || status=$?
[ "$status" -eq 0 ] || grep -vx '[[:alnum:]._/~-]*' "$log" >&2 || true
exit "$status"
