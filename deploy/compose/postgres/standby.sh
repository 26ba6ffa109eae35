#!/usr/bin/env bash
# The standby: copies the primary when its data folder is empty, then follows it.
set -euo pipefail
export PGDATA="${PGDATA:-/var/lib/postgresql/data}"
as_postgres=()
if [ "$(id -u)" -eq 0 ]; then
  chown postgres:postgres "$PGDATA"
  as_postgres=(gosu postgres)
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  PGPASSWORD=$(cat "${SECRETS:-/run/secrets}/replication_password")
  export PGPASSWORD
  "${as_postgres[@]}" pg_basebackup --pgdata "$PGDATA" --write-recovery-conf --wal-method stream --slot standby \
    --dbname "host=$PRIMARY user=replicator application_name=standby"
fi
exec "${as_postgres[@]}" postgres
