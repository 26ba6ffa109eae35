# Runs a throw-away PostgreSQL server in $DIR with the programs of $PROGRAMS until
# standard input ends: the kernel closes it with the test process, even after
# kill -9, so neither server nor folder is ever left behind. With $FROM it is a promoted
# standby of the server there, which is stopped.
trap '' INT TERM HUP PIPE

# PostgreSQL refuses to run as root.
as_user() {
    if [ "$(id -u)" = 0 ]; then su postgres -s /bin/sh -c "$1"; else /bin/sh -c "$1"; fi </dev/null
}
[ "$(id -u)" != 0 ] || chown postgres "$DIR" || exit 1
cd "$DIR" || exit 1

start() {
    as_user '"$PROGRAMS/pg_ctl" start --wait --silent -D "$DIR/data" -l "$DIR/data/server.log" -o "-k \"$DIR\" -c listen_addresses= -c fsync=off -c max_connections=300"' >>"$DIR/init.log" 2>&1
}
stop() {
    as_user '"$PROGRAMS/pg_ctl" stop --mode=immediate --silent -D "$DIR/data"' >/dev/null 2>&1
}

make_data() {
    if [ -n "$FROM" ]; then
        as_user 'cp -a "$FROM/data" "$DIR/data" && touch "$DIR/data/standby.signal"'
    else
        as_user '"$PROGRAMS/initdb" --no-sync --auth=trust --username=kith --encoding=UTF8 --locale=C -D "$DIR/data"'
    fi >"$DIR/init.log" 2>&1
}
promote() {
    [ -z "$FROM" ] || as_user '"$PROGRAMS/pg_ctl" promote --wait --silent -D "$DIR/data"' >>"$DIR/init.log" 2>&1
}

if make_data && start && promote; then
    echo ready
    while read -r command; do
        case $command in
        start | stop) $command ;;
        esac
        echo "done $?"
    done
    stop
else
    cat "$DIR/init.log" "$DIR/data/server.log" 2>&1
fi
cd /
rm -rf "$DIR"
