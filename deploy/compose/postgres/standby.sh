#!/usr/bin/env bash
# The standby: copies the primary when its data folder is empty, then follows it.
set -euo pipefail
export PGDATA="${PGDATA:-/var/lib/postgresql/data}"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  password=$(cat /run/secrets/replication_password)
  install -d -m 0700 -o postgres -g postgres "$PGDATA"
  gosu postgres env PGPASSWORD="$password" pg_basebackup --pgdata "$PGDATA" --write-recovery-conf --wal-method stream --slot standby \
    --dbname "host=$PRIMARY user=replicator application_name=standby"
fi
exec gosu postgres postgres
