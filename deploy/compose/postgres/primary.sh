#!/usr/bin/env bash
# Runs once, when the primary makes its data folder: the replication of db-2, for which
# each commit then waits. The setting counts from the next start, so that the commits here
# wait for no one.
set -euo pipefail
password=$(cat "${SECRETS:-/run/secrets}/replication_password")
psql --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set password="$password" <<'SQL'
CREATE ROLE replicator REPLICATION LOGIN PASSWORD :'password';
SELECT FROM pg_create_physical_replication_slot('standby');
ALTER SYSTEM SET synchronous_standby_names = 'standby';
ALTER SYSTEM SET max_slot_wal_keep_size = '10GB';
SQL
echo "host replication replicator all scram-sha-256" >>"$PGDATA/pg_hba.conf"
