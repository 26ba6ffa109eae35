#!/usr/bin/env bash
# h2spec (github.com/summerwind/h2spec) against net/http alone and against the
# tunnel's server end. No case may fail at the tunnel that does not fail at net/http.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/h2spec
mkdir -p $out
go build -o $out/ends ./scripts/h2spec
coproc ends { exec $out/ends; }
trap 'kill $ends_PID' EXIT
for end in net-http tunnel; do
  read -r port <&"${ends[0]}"
  # Its status says only that a case failed; without a summary grep ends the script.
  go run github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible -p "$port" >$out/$end.log 2>&1 || true
  summary=$(grep ' tests, ' $out/$end.log)
  echo "$end: $summary"
  awk '/^ *[0-9.]+ / { section = $1 } sub(/^ *× /, "") { print section, $0 }' $out/$end.log | sort >$out/$end
done
comm -12 $out/net-http $out/tunnel | sed 's/^/fails at both: /'
comm -23 $out/net-http $out/tunnel | sed 's/^/fails at net\/http and not at the tunnel: /'
comm -13 $out/net-http $out/tunnel | sed 's/^/fails at the tunnel and not at net\/http: /' >&2
[ -z "$(comm -13 $out/net-http $out/tunnel)" ]
