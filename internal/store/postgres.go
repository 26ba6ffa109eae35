package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/kith/kith/internal/store/internal/query"
)

// The size of the pool for reads and writes. There is one more connection for beats, so
// that they never wait for other statements, and one that listens for changes.
const (
	postgresConns    = 16
	postgresIdle     = 5 * time.Minute
	postgresLifetime = time.Hour
)

const (
	oldestPostgres = 14
	// connectWithin is the timeout for connecting to one of several hosts, so that a
	// poll, which has 4 s, can try a second one. The URL may override it.
	connectWithin = 1500 * time.Millisecond
	// startWithin is the timeout for connecting to the only host. At the start it is also
	// how long slow hosts are retried: they may be starting, too.
	startWithin = 10 * time.Second
	// transactWithin is the timeout of a transaction. A server that is gone without
	// closing its connections never answers.
	transactWithin = 30 * time.Second
)

func openPostgres(ctx context.Context, config Config) (*DB, error) {
	parsed, err := parsePostgres(config.URL)
	if err != nil {
		return nil, fmt.Errorf("cannot use the database's URL: it %w", err)
	}
	p := &primary{several: len(hostsOf(parsed)) > 1, config: parsed}
	p.accept, parsed.ValidateConnect = parsed.ValidateConnect, p.validate
	pool := p.open(parsed, postgresConns)
	p.beats = p.open(parsed, 1)
	closeAll := func() error { return errors.Join(pool.Close(), p.beats.Close()) }
	began := time.Now()
	err = p.readClock(ctx)
	for pgconn.Timeout(err) && time.Since(began) < startWithin {
		err = p.readClock(ctx)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, errors.Join(ctx.Err(), closeAll())
	}
	if err != nil {
		return nil, errors.Join(connectFault(err, parsed), closeAll())
	}
	// Hubs that start at the same time run the migrations one after another.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, errors.Join(err, closeAll())
	}
	return &DB{
		write: pool, read: pool,
		flavor: flavor{
			dialect: goose.DialectPostgres,
			primary: p,
			within:  transactWithin,
			migrations: []goose.ProviderOption{
				goose.WithSessionLocker(locker),
				goose.WithGoMigrations(partitionUsage()),
			},
			recordUsage: (&usagePartitions{pool: pool}).record,
			kind:        postgresKind,
			prepare:     func(on query.DBTX) query.DBTX { return on }, // pgx does
			batch:       func(ctx context.Context) context.Context { return ctx },
			release:     p.beats.Close,
		},
	}, nil
}

// CheckURL returns what is wrong with a PostgreSQL URL, as the end of a sentence that
// begins with the URL's name, or nil if it can be used. The error contains no password.
func CheckURL(url string) error {
	_, err := parsePostgres(url)
	return err
}

// parsePostgres parses a URL, with all parameters that libpq and pgx know. It sets
// target_session_attrs=read-write unless the URL sets it: a standby, or a server that
// became one, cannot be used.
func parsePostgres(url string) (*pgx.ConnConfig, error) {
	const takes = "takes a URL such as postgres://USER:PASSWORD@HOST/NAME"
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return nil, errors.New(takes)
	}
	parsed, err := pgx.ParseConfig(url)
	if err != nil {
		// The text before this contains the URL.
		if _, reason, ok := strings.Cut(err.Error(), "`: "); ok && !strings.Contains(reason, "://") {
			return nil, fmt.Errorf("%s: %s", takes, reason)
		}
		return nil, fmt.Errorf("%s, with special characters percent-encoded", takes)
	}
	if parsed.ValidateConnect == nil {
		parsed.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if parsed.ConnectTimeout == 0 {
		parsed.ConnectTimeout = connectWithin
		if len(hostsOf(parsed)) == 1 {
			parsed.ConnectTimeout = startWithin
		}
		dialer := &net.Dialer{Timeout: parsed.ConnectTimeout, KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3,
		}}
		parsed.DialFunc = dialer.DialContext
	}
	return parsed, nil
}

// hostsOf returns the distinct hosts in the URL, with their ports.
func hostsOf(c *pgx.ConnConfig) []string {
	hosts := []string{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	for _, f := range c.Fallbacks { // one for each host and each TLS mode
		if host := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// server identifies a PostgreSQL server. It is the zero server if the service does not
// report its identity.
type server struct {
	cluster  string
	timeline string // in hexadecimal; increases when a standby is promoted
}

const serverQuery = "SELECT system_identifier, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()"

// primary is the server that confirmed the last beat. Connections to other servers are
// not used: a former primary that was cut off may still answer reads from its old state,
// after this process has switched to its successor.
type primary struct {
	several bool // the URL names several hosts
	config  *pgx.ConnConfig
	accept  pgconn.ValidateConnectFunc
	beats   *sql.DB
	server  atomic.Pointer[server] // nil before the first beat
	clock   clock
	ended   atomic.Int64 // how many times a connection was found closed
}

// idleLimit makes the server end a transaction whose node stopped in the middle of it.
// Its locks would prevent other nodes from revoking a key that the node had just seen in
// use.
const idleLimit = "SET idle_in_transaction_session_timeout = '5s'"

var errTooOld = errors.New("the server is too old")

func (p *primary) open(parsed *pgx.ConnConfig, conns int) *sql.DB {
	pool := stdlib.OpenDB(*parsed, stdlib.OptionResetSession(p.reset),
		stdlib.OptionAfterConnect(p.opened), stdlib.OptionShouldPing(p.shouldPing))
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	pool.SetConnMaxIdleTime(postgresIdle)
	pool.SetConnMaxLifetime(postgresLifetime)
	return pool
}

// validate accepts a new connection, or makes pgx try the next host.
func (p *primary) validate(ctx context.Context, conn *pgconn.PgConn) error {
	major, _, _ := strings.Cut(conn.ParameterStatus("server_version"), ".")
	if n, err := strconv.Atoi(major); err == nil && n < oldestPostgres {
		return fmt.Errorf("%w: it is PostgreSQL %d", errTooOld, n)
	}
	if err := p.accept(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, idleLimit).ReadAll(); err != nil {
		return err
	}
	var is server
	results, err := conn.Exec(ctx, serverQuery).ReadAll()
	var refused *pgconn.PgError
	switch {
	case err == nil:
		row := results[0].Rows[0]
		is = server{string(row[0]), string(row[1])}
	case !errors.As(err, &refused):
		return err
	}
	if now := p.server.Load(); now != nil && is.cluster == now.cluster && is.timeline < now.timeline {
		return errors.New("the server is no longer the primary")
	}
	conn.CustomData()["server"] = is
	return nil
}

// reset runs before a connection is used again.
func (p *primary) reset(_ context.Context, conn *pgx.Conn) error {
	if now := p.server.Load(); now != nil && conn.PgConn().CustomData()["server"] != *now {
		return driver.ErrBadConn
	}
	return nil
}

// confirm runs do in a transaction on the connection for beats. Before the transaction it
// reads the server's clock. After the commit the server is the primary; confirm reports
// whether another one was before.
func (p *primary) confirm(ctx context.Context, do func(*query.Queries) error) (failedOver bool, err error) {
	if err := p.readClock(ctx); err != nil {
		return false, err
	}
	conn, err := p.beats.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if err := do(query.New(tx)); err != nil {
		return false, err
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	err = conn.Raw(func(c any) error {
		is := c.(*stdlib.Conn).Conn().PgConn().CustomData()["server"].(server)
		was := p.server.Swap(&is)
		failedOver = was != nil && *was != is
		return nil
	})
	return failedOver, err
}

// Warning returns a setting of the database server that puts commits at risk, or "" if
// there is none.
func (db *DB) Warning(ctx context.Context) (string, error) {
	p := db.flavor.primary
	if p == nil {
		return "", nil
	}
	var standbys, commit string
	err := db.read.QueryRowContext(ctx, "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')").Scan(&standbys, &commit)
	switch {
	case err != nil:
		return "", db.wrap(err, "read the settings of the database's server")
	case commit == "off" || commit == "local" && p.several:
		return fmt.Sprintf("PostgreSQL's synchronous_commit is %s: what was just committed, a revocation included, can be lost; set it to on", commit), nil
	case standbys == "" && p.several:
		return "the database has several hosts and no synchronous standby: a fail-over can lose what was just committed, and a revoked key " +
			"can work for longer than 5 s; name the standby in PostgreSQL's synchronous_standby_names", nil
	}
	return "", nil
}

// connectFault returns the error of the first connection in one line, with its cause and
// what to do.
func connectFault(err error, config *pgx.ConnConfig) error {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	reason := strings.Join(slices.Compact(lines), " ")
	fix := "check that it runs, and the hosts and ports in the URL"
	var pg *pgconn.PgError
	if errors.As(err, &pg) && len(hostsOf(config)) == 1 { // skip the TLS attempt that came before
		reason = fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	}
	switch {
	case errors.Is(err, errTooOld):
		fix = fmt.Sprintf("kith needs PostgreSQL %d or newer; update the server", oldestPostgres)
	case errors.Is(err, pgconn.ErrReadOnlyConnection):
		fix = "it only reads, as a standby does; name the primary, or all hosts, in the URL"
	case pg == nil:
	case pg.Code == "28P01" || pg.Code == "28000": // invalid_password, invalid_authorization_specification
		fix = "check the user and the password in the URL, and the server's pg_hba.conf"
	case pg.Code == "3D000": // invalid_catalog_name
		fix = fmt.Sprintf("make the database: CREATE DATABASE %s OWNER %s", pgx.Identifier{config.Database}.Sanitize(), pgx.Identifier{config.User}.Sanitize())
	case pg.Code == "53300": // too_many_connections
		fix = fmt.Sprintf("raise its max_connections: each hub takes up to %d", postgresConns+2)
	}
	return fmt.Errorf("cannot use PostgreSQL: %s; %s", reason, fix)
}

func postgresKind(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch pg.Code {
	case "23505": // unique_violation
		return ErrExists
	case "23503": // foreign_key_violation
		return ErrNotFound
	case "23514", "22021": // check_violation, character_not_in_repertoire
		if pg.Code == "23514" && pg.ConstraintName == "" {
			return nil // not a constraint: the row's partition is missing
		}
		return ErrInvalid
	}
	return nil
}
