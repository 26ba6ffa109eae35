#!/usr/bin/env bash
# Makes the files in secrets/ that are not there yet. Only the folder keeps other users out:
# the users inside the containers, who are others, have to read the files.
set -euo pipefail
umask 022 # a stricter one would keep them out, a looser one let a group change them
cd "$(dirname "$0")"
mkdir -p -m 0700 secrets
random() { head -c 24 /dev/urandom | base64 | tr '+/' '-_'; }
[ -s secrets/database_password ] || random >secrets/database_password
[ -s secrets/replication_password ] || random >secrets/replication_password
[ -s secrets/database_url ] ||
  echo "postgres://kith:$(cat secrets/database_password)@db-1,db-2/kith?sslmode=disable" >secrets/database_url
if [ ! -s secrets/certificate.pem ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj "/CN=${1:-localhost}" \
    -addext "subjectAltName=DNS:${1:-localhost}" -keyout secrets/key.pem -out secrets/cert.pem 2>/dev/null
  cat secrets/cert.pem secrets/key.pem >secrets/certificate.pem
  echo "secrets/certificate.pem is a certificate for trying: replace it with your own (chain, then key)"
fi
echo "ready: set public_url in hub.toml, then docker compose up --detach"
