#!/usr/bin/env bash
# Installs what the tests need and this machine lacks: the official client
# libraries for JavaScript, a C compiler (the race detector wants one),
# PostgreSQL's server, nginx for the bench's smoke run, Chromium for the pages
# that attack, tmux for what a person sees in a terminal.
set -euo pipefail

"$(dirname "$0")/npm-ci.sh" e2e/clients "the client libraries for JavaScript"

postgres() { command -v initdb || ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null | tail -n 1; }

missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
[ -n "$(postgres)" ] || missing+=(postgresql)
command -v nginx >/dev/null || missing+=(nginx-light)
command -v curl >/dev/null || missing+=(curl)
command -v tmux >/dev/null || missing+=(tmux)
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
[ ${#missing[@]} -eq 0 ] && exit 0

echo "installing ${missing[*]}"
if ! command -v apt-get >/dev/null; then
  echo "make: cannot install ${missing[*]} here: this machine has no apt-get; install them by hand, then run make test again" >&2
  exit 1
fi
as_root=(); [ "$(id -u)" -eq 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
