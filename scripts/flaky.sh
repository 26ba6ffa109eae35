#!/usr/bin/env bash
# Every test RUNS times, shuffled, with the race detector, as `make test` runs them
# with it (-short: fewer random worlds and cases), six programs of tests at a time, beside a
# program that keeps one CPU busy and a hub and a daemon on the default ports. No run
# may fail. PACKAGES names fewer packages, as `go list` takes them.
#
# The random histories of internal/sim are fewer, and other ones in each run: a history
# that is the same each time would say little in its fiftieth run.
#
# The runs and what failed ones printed stay in build/flaky/runs. After an interruption
# or a change, the runs of packages whose tests are still the same count.
set -euo pipefail
cd "$(dirname "$0")/.."
RUNS=${RUNS:-50}
PACKAGES=${PACKAGES:-./cmd/... ./internal/... ./bench/...}
out=$PWD/build/flaky

# one runs the tests of one package once: a line in the file of its runs, and the output
# of a failure beside it. It runs in a process of its own, under xargs. Whenever as many
# runs ended as there are packages, it says how far they are.
one() {
  local name=$1 folder=$2 runs=$3 began seed worlds=() result=ok ended packages spent
  seed=$((RANDOM << 15 | RANDOM)) began=$SECONDS
  [ "$name" != internal-sim ] || worlds=(-first "$seed" -seeds 15 -cluster-seeds 2)
  trap 'rm -f "$runs-$seed.out"; exit 130' INT TERM # an interrupted run has not failed
  (cd "$folder" && exec "$out/bin/$name.test" -test.short -test.shuffle="$seed" -test.timeout=25m "${worlds[@]}") >"$runs-$seed.out" 2>&1 || result=failed
  echo "$name $result $((SECONDS - began)) $seed" >>"$runs"
  if [ $result = ok ]; then rm "$runs-$seed.out"; else echo "failed: $name, -test.shuffle=$seed; see ${runs#"$PWD/"}-$seed.out" >&2; fi
  ended=$(($(all_runs | wc -l) - COUNTED)) packages=$(wc -l <"$out/packages") spent=$((EPOCHSECONDS - FIRST))
  [ $((ended % packages)) = 0 ] || return 0
  echo "$ended of $TODO runs after $((spent / 60)) min, about $((spent * (TODO - ended) / ended / 60)) min to go; $(all_runs | grep -c ' failed ' || true) failed"
}

# all_runs prints the runs that count, a line each.
all_runs() { cut -d' ' -f3 "$out/packages" | xargs cat; }

if [ "${1-}" = one ]; then
  one "$2" "$3" "$4"
  exit
fi

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
for port in 8700 8701 8702; do
  if listens $port; then
    echo "port $port is taken: end what listens there, this starts a hub and a daemon of its own" >&2
    exit 1
  fi
done
rm -rf "$out"/{bin,home,kith,packages}
mkdir -p "$out"/{bin,home,kith,runs}
started=()
finish() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
}
trap finish EXIT
trap 'exit 130' INT TERM

echo "building the tests"
. scripts/race.sh
while read -r import folder tests; do
  [ "$tests" = 0 ] && continue
  name=${import#github.com/kith/kith/}
  name=${name//\//-}
  go test -c "${race[@]}" -tags llama -o "$out/bin/$name.test" "$import"
  # What a run depends on: the program of the tests, and the files beside its sources.
  digest=$({ cat "$out/bin/$name.test"; find "$folder" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat; } | sha256sum | cut -c1-16)
  runs=$out/runs/$name-$digest
  touch "$runs"
  echo "$name $folder $runs $(wc -l <"$runs") $(cd "$folder" && "$out/bin/$name.test" -test.list '^(Test|Fuzz|Example)' | grep -c '^[TFE]')" >>"$out/packages"
done < <(go list -tags llama -f '{{.ImportPath}} {{.Dir}} {{len .TestGoFiles}}{{len .XTestGoFiles}}' $PACKAGES | sed 's/ 00$/ 0/')

# The go command keeps its own folders, and the tests get a home of their own, in
# which nothing may be left.
for setting in GOPATH GOCACHE GOMODCACHE; do export "$setting=$(go env $setting)"; done
KITH_HOME=$out/kith bin/kith hub >"$out/kith/hub.log" 2>&1 &
started+=($!)
KITH_HOME=$out/kith bin/kith serve >"$out/kith/serve.log" 2>&1 &
started+=($!)
self=$$
(while kill -0 $self 2>/dev/null; do for ((i = 0; i < 1000000; i++)); do :; done; done) &
started+=($!)
for port in 8700 8701 8702; do
  for ((i = 0; ; i++)); do
    listens $port && break
    [ $i -lt 300 ] || { echo "nothing answers on port $port; see build/flaky/kith" >&2; exit 1; }
    sleep 0.1
  done
done

# No round waits for the last of the one before: the computer stays busy.
for ((round = 1; round <= RUNS; round++)); do
  awk -v round=$round '$4 < round { print $1, $2, $3 }' "$out/packages" | shuf
done >"$out/todo"
COUNTED=$(all_runs | wc -l)
TODO=$(wc -l <"$out/todo")
[ "$COUNTED" = 0 ] || echo "$COUNTED runs of the same tests are counted, $TODO are left"
export HOME=$out/home COUNTED TODO FIRST=$EPOCHSECONDS
status=0
xargs -r -P 6 -L 1 scripts/flaky.sh one <"$out/todo" || status=1

for pid in "${started[@]}"; do
  kill -0 "$pid" 2>/dev/null || { echo "the hub, the daemon or the busy program ended before the tests did; see build/flaky/kith" >&2; status=1; }
done
if [ -n "$(ls -A "$HOME")" ]; then
  echo "tests left something in the home folder: $(ls -A "$HOME")" >&2
  status=1
fi
printf '\n%-24s %6s %6s %8s %9s\n' PACKAGE TESTS RUNS SECONDS FAILURES
all_runs >"$out/results"
awk 'NR == FNR { tests[$1] = $5; next }
  { runs[$1]++; time[$1] += $3; failures[$1] += $2 == "failed" }
  END { for (name in runs) printf "%-24s %6d %6d %8.0f %9d\n", name, tests[name], runs[name], time[name] / runs[name], failures[name] }' \
  "$out/packages" "$out/results" | sort
if grep -q ' failed ' "$out/results"; then
  status=1
  echo
  cut -d' ' -f3 "$out/packages" | while read -r runs; do cat "$runs"-*.out 2>/dev/null || true; done |
    grep -o '^--- FAIL: [^ ]*\|^WARNING: DATA RACE\|^panic: .*' | sort | uniq -c
fi
exit $status
