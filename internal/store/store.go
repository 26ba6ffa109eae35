// Package store keeps members, keys, machines, shares, groups and usage in SQLite or
// PostgreSQL. Both use the same queries and migrations; a flavor holds the differences.
//
// Hubs cache what they read. A write that may change who reaches which machine therefore
// increments the epoch and records what it changed, in its own transaction. Hubs poll
// Changes.
//
// Times are stored to the millisecond, in UTC, and durations to the microsecond. All
// methods are safe for concurrent use.
package store

import (
	"context"
	"crypto/subtle"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/pressly/goose/v3"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate

// Errors of methods, for errors.Is. Any other error is a failure of the database, and the
// caller may retry the write.
var (
	// ErrNotFound, ErrExists and ErrInvalid are the account package's.
	ErrNotFound = account.ErrNotFound
	ErrExists   = account.ErrExists
	ErrInvalid  = account.ErrInvalid
	// ErrBehind: see DB.Changes.
	ErrBehind = account.ErrBehind
)

// Config names the database. Exactly one field is set.
type Config struct {
	// Path is an SQLite file. Open creates it and its folder, readable by this user only.
	// Only one process at a time may open it.
	Path string
	// URL is a PostgreSQL database, postgres://user:password@host/name, with several
	// hosts separated by commas if there are standbys. Any number of hubs may share it.
	URL string
}

// DB is an open store.
type DB struct {
	flavor    flavor
	write     *sql.DB
	read      *sql.DB        // may be the same as write
	query     *query.Queries // runs on read
	node      account.Node   // this process, after StartNode on PostgreSQL
	followers followers
	pruned    atomic.Int64 // the hour of the newest record when old hourly sums were last deleted
}

// Open opens the database, checks that it is not damaged, and runs missing migrations.
// The caller must Close it.
func Open(ctx context.Context, config Config) (*DB, error) {
	if (config.Path == "") == (config.URL == "") {
		return nil, errors.New("cannot open the store: give either the path of an SQLite file or a postgres:// URL")
	}
	open := openSQLite
	if config.URL != "" {
		open = openPostgres
	}
	db, err := open(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := db.migrate(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	db.query = query.New(db.flavor.prepare(db.reads()))
	return db, nil
}

// Close waits for running statements and closes the database.
func (db *DB) Close() error {
	var err error
	if db.read != db.write {
		err = db.read.Close()
	}
	return errors.Join(err, db.write.Close(), db.flavor.release())
}

// transact runs do in one write transaction, as inTransaction does, and wraps the error.
func (db *DB) transact(ctx context.Context, do func(*query.Queries) error, what string, args ...any) error {
	return db.wrap(db.inTransaction(ctx, do), what, args...)
}

// inTransaction runs do in one write transaction and, if the context has an act, records
// it in the audit log.
func (db *DB) inTransaction(ctx context.Context, do func(*query.Queries) error) error {
	ctx, cancel := db.bound(ctx)
	defer cancel()
	tx, err := db.begin(ctx, db.write, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	q := query.New(db.flavor.prepare(tx))
	if err := do(q); err != nil {
		return err
	}
	if err := recordAct(ctx, q); err != nil {
		return err
	}
	return tx.Commit()
}

// bound returns ctx with the timeout of a transaction.
func (db *DB) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if db.flavor.within == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, db.flavor.within)
}

// view runs do in one read transaction, so that all its queries see the same data. It
// wraps the error.
func (db *DB) view(ctx context.Context, do func(*query.Queries) error, what string, args ...any) error {
	tx, err := db.begin(ctx, db.read, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return db.wrap(err, what, args...)
	}
	defer func() { _ = tx.Rollback() }() // there is nothing to commit
	return db.wrap(do(query.New(tx)), what, args...)
}

// wrap returns "cannot <what>: <kind>: <err>", where <kind> is this package's error for
// err, if it has one. It returns nil if err is nil.
func (db *DB) wrap(err error, what string, args ...any) error {
	if err == nil {
		return nil
	}
	what = fmt.Sprintf(what, args...)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("cannot %s: %w", what, ErrNotFound)
	}
	if kind := db.flavor.kind(err); kind != nil {
		return fmt.Errorf("cannot %s: %w: %w", what, kind, err)
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

// oneRow returns sql.ErrNoRows if a statement changed no row.
func oneRow(n int64, err error) error {
	if err == nil && n == 0 {
		return sql.ErrNoRows
	}
	return err
}

// checkText returns ErrInvalid for text that is not UTF-8 or has a NUL. The two databases
// treat such text differently.
func checkText(values ...string) error {
	for _, s := range values {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return fmt.Errorf("%w: text that is not UTF-8 or holds a NUL", ErrInvalid)
		}
	}
	return nil
}

// checkHash returns the error of reading a row or, if the row has another hash than it
// should have, sql.ErrNoRows. It compares in constant time.
func checkHash(err error, found []byte, want [32]byte) error {
	if err == nil && subtle.ConstantTimeCompare(found, want[:]) != 1 {
		err = sql.ErrNoRows
	}
	return err
}

// hashOf returns the hash of a row, which is zero if there is none.
func hashOf(found []byte) (hash [32]byte) {
	copy(hash[:], found)
	return hash
}

// millis returns a time as stored in the database; the zero time is 0.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// pageStart returns the arguments of a query for the page that begins at a place.
func pageStart(from account.Place) (at int64, id string) {
	if from == (account.Place{}) {
		return math.MaxInt64, ""
	}
	return millis(from.At), from.ID
}

// likePattern returns the LIKE pattern, escaped with !, that matches text
// with part in it.
func likePattern(part string) string {
	return "%" + strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(part) + "%"
}

// scan scans each row of a query into columns, and calls take after each.
func scan(rows *sql.Rows, err error, take func(), columns ...any) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		take()
	}
	return rows.Err()
}

// convert converts rows to records of package account.
func convert[Row, Record any](rows []Row, record func(Row) Record) []Record {
	out := make([]Record, len(rows))
	for i, row := range rows {
		out[i] = record(row)
	}
	return out
}

// Pool is the state of the connections to the database. For SQLite they are open files.
type Pool struct {
	Open, InUse, Max int
	// Waits is how often a statement has waited for a free connection, and Waited for how
	// long in total.
	Waits  int64
	Waited time.Duration
}

// Pool returns the current state of all connections.
func (db *DB) Pool() Pool {
	pools := []*sql.DB{db.write}
	if db.read != db.write {
		pools = append(pools, db.read)
	}
	if db.flavor.primary != nil {
		pools = append(pools, db.flavor.primary.beats)
	}
	var p Pool
	for _, pool := range pools {
		s := pool.Stats()
		p.Open, p.InUse, p.Max = p.Open+s.OpenConnections, p.InUse+s.InUse, p.Max+s.MaxOpenConnections
		p.Waits, p.Waited = p.Waits+s.WaitCount, p.Waited+s.WaitDuration
	}
	return p
}

// flavor holds the differences between the two databases.
type flavor struct {
	dialect goose.Dialect
	// primary confirms beats. It is nil on SQLite, which only one process uses.
	primary *primary
	// within limits the duration of a transaction; 0 means no limit.
	within time.Duration
	// migrations are options that add migrations for this database only.
	migrations []goose.ProviderOption
	// kind maps an error of the driver to an error of this package, or nil.
	kind func(error) error
	// copy writes the database into an empty file, calls add to add records to it, and
	// returns the fault found in the copy. It is nil for a database that has its own
	// tools.
	copy func(ctx context.Context, to string, add func(*query.Queries) error) (fault string, err error)
	// batch returns the context for a transaction of many short statements.
	batch func(context.Context) context.Context
	// recordUsage writes usage records that are valid, all or none.
	recordUsage func(context.Context, []account.Usage) error
	// prepare returns a pool or transaction that prepares each statement once.
	prepare func(query.DBTX) query.DBTX
	// release releases resources of Open other than the connections.
	release func() error
}
