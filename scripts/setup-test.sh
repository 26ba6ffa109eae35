#!/usr/bin/env bash
# Installs what the tests need and this machine lacks: a C compiler (the race detector
# wants one) and a C++ compiler (scripts/llama-server.sh), Python's Jinja2
# (scripts/chat-templates.sh), PostgreSQL's server, nginx, Caddy
# and HAProxy for deploy/proxies (nginx for the bench, too), Chromium for the
# pages that attack, tmux for what a person sees in a terminal, and for deploy/ promtool,
# systemd-analyze and openssl.
set -euo pipefail

postgres() { command -v initdb || ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null | tail -n 1; }

missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v g++ >/dev/null || missing+=(g++)
command -v git >/dev/null || missing+=(git)
{ python3 -c 'import jinja2' || /usr/bin/python3 -c 'import jinja2'; } 2>/dev/null || missing+=(python3-jinja2)
[ -n "$(postgres)" ] || missing+=(postgresql)
command -v nginx >/dev/null || missing+=(nginx-light)
command -v curl >/dev/null || missing+=(curl)
command -v tmux >/dev/null || missing+=(tmux)
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
command -v haproxy >/dev/null || missing+=(haproxy)
command -v caddy >/dev/null || missing+=(caddy)
command -v systemd-analyze >/dev/null || missing+=(systemd)
command -v openssl >/dev/null || missing+=(openssl)
promtool=; command -v promtool >/dev/null || promtool=promtool
[ ${#missing[@]} -eq 0 ] && [ -z "$promtool" ] && exit 0

echo "installing ${missing[*]} $promtool"
if ! command -v apt-get >/dev/null; then
  echo "make: cannot install ${missing[*]} $promtool here: this machine has no apt-get; install them by hand, then run make test again" >&2
  exit 1
fi
as_root=(); [ "$(id -u)" -eq 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
if [ ${#missing[@]} -gt 0 ]; then
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ -n "$promtool" ]; then # alone: Debian's package prometheus would run a server here
  folder=$(mktemp -d)
  (cd "$folder" && apt-get download -qq prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool)
  "${as_root[@]}" install "$folder/usr/bin/promtool" /usr/local/bin/promtool
  rm -r "$folder"
fi
