# Runs a PostgreSQL server with the data in $DATA and its socket in $DIR, with the
# programs of $PROGRAMS, until standard input ends: the kernel closes it with the process
# that started this one, even after kill -9, so no server is ever left behind. At the end
# it removes $DIR, and $DATA if that is inside.
#
# $DATA may be there already. If not, it is a copy of the stopped server's in $COPY, or of
# the running server's at $PRIMARY, which it follows as a standby, or else empty.
trap '' INT TERM HUP PIPE

# PostgreSQL refuses to run as root. The capability lets its own user reach folders that
# are below one of root's.
as_user() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --init-groups --inh-caps=+dac_override --ambient-caps=+dac_override /bin/sh -c "$1"
    else
        /bin/sh -c "$1"
    fi </dev/null
}
cd "$DIR" || exit 1
exec 3>"$DIR/server.log"
[ "$(id -u)" != 0 ] || chown postgres "$DIR" "$DIR/server.log" || exit 1

start() { as_user '"$PROGRAMS/pg_ctl" start --wait --silent -D "$DATA" -l "$DIR/server.log" -o "-k \"$DIR\" $OPTIONS"' >&3 2>&1; }
stop() { as_user '"$PROGRAMS/pg_ctl" stop --wait --silent -D "$DATA" --mode=immediate' >&3 2>&1; }
promote() { as_user '"$PROGRAMS/pg_ctl" promote --wait --silent -D "$DATA"' >&3 2>&1; }

make_data() {
    [ ! -e "$DATA/PG_VERSION" ] || return 0
    mkdir -p "$DATA" && chmod 700 "$DATA" || return 1
    [ "$(id -u)" != 0 ] || chown postgres "$DATA" || return 1
    if [ -n "$COPY" ]; then
        as_user 'cp -a "$COPY/." "$DATA" && touch "$DATA/standby.signal"'
    elif [ -n "$PRIMARY" ]; then
        as_user '"$PROGRAMS/pg_basebackup" --no-sync --checkpoint=fast --write-recovery-conf --dbname="$PRIMARY" -D "$DATA"'
    else
        as_user '"$PROGRAMS/initdb" --no-sync --auth=trust --username=kith --encoding=UTF8 --locale=C -D "$DATA"'
    fi >&3 2>&1
}

# A server of a process that was killed just now may still be ending.
start_soon() {
    for again in 1 2 3 4 5; do
        ! start || return 0
        sleep 1
    done
    return 1
}

if make_data && start_soon && { [ -z "$COPY" ] || promote; }; then
    echo ready
    while read -r command; do
        case $command in
        start | stop | promote) $command ;;
        esac
        echo "done $?"
    done
    stop
else
    cat "$DIR/server.log"
fi
cd /
rm -rf "$DIR"
