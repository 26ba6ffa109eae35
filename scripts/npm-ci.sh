#!/usr/bin/env bash
# Installs exactly what a folder's package-lock.json pins, where it is not
# installed yet.
#
#   scripts/npm-ci.sh FOLDER WHAT
set -euo pipefail
cd "$(dirname "$0")/../$1"
command -v npm >/dev/null || { echo "make: cannot install $2: npm is missing; install Node.js 20 or newer, then run make again" >&2; exit 1; }
if cmp -s package-lock.json node_modules/installed-lock.json; then
  exit 0
fi
echo "installing $2 into $1/node_modules (npm ci)"
if ! npm ci --no-audit --no-fund; then
  echo "make: cannot install $2: npm ci failed in $1; see above" >&2
  exit 1
fi
cp package-lock.json node_modules/installed-lock.json
