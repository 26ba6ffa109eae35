#!/usr/bin/env bash
# The coding agents that npm ships, in print mode: each reads a file by a tool
# call, through a hub and a daemon, from an engine double and from the built-in
# engine (e2e/agents). All of it runs in a network namespace that has no
# outside. Wants bin/kith.
set -euo pipefail
cd "$(dirname "$0")/.."

cannot() {
  echo "make: cannot run the coding agents: $*" >&2
  exit 1
}
command -v unshare >/dev/null || cannot "unshare is missing; install util-linux"
command -v ip >/dev/null || cannot "ip is missing; install iproute2"
unshare -rn ip link set lo up ||
  cannot "no network namespace can be made here (unshare -rn); allow user namespaces, or run as root"
scripts/npm-ci.sh e2e/agents "the coding agents (1 GB)"

mkdir -p build
go test -c -tags llama -o build/e2e.test ./e2e
exec unshare -rn bash -euo pipefail -c '
  ip link set lo up
  if [ -n "$(ip route; ip -6 route | grep -v "^::1 ")" ]; then
    echo "make: the network namespace has a way out:" >&2
    ip route >&2
    exit 1
  fi
  cd e2e
  exec ../build/e2e.test -test.run TestScripts -test.timeout 10m -scripts agents -test.v'
