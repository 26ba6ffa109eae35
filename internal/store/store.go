// Package store is what outlives a process: members, keys, machines, shares,
// groups and the usage ledger, in SQLite or in PostgreSQL. There is one SQL
// text and one list of migrations; a flavor holds what differs. Nothing above
// this package sees SQL, a driver or a row.
//
// Hubs hold what they read from here in memory. Every write that may change who
// reaches what therefore moves one number, the epoch, and notes what it changed,
// in its own transaction; Changes is what a hub polls to keep up.
//
// Times are kept to the millisecond, in UTC, durations to the microsecond. All
// methods may be called at once.
package store

import (
	"context"
	"crypto/subtle"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate

// What a method's error is, by errors.Is. Anything else is a failure of the
// database, after which a write may be tried again.
var (
	// ErrNotFound, ErrExists and ErrInvalid are the account package's.
	ErrNotFound = account.ErrNotFound
	ErrExists   = account.ErrExists
	ErrInvalid  = account.ErrInvalid
	// ErrBehind: see DB.Changes.
	ErrBehind = fleet.ErrBehind
)

// Config says where the data is: exactly one of its fields is set.
type Config struct {
	// Path of an SQLite file; it and its folder are made, readable by this user
	// only, if they are not there. One process at a time may have it open.
	Path string
	// URL of a PostgreSQL database, postgres://user:password@host/name. Any
	// number of hubs may share it.
	URL string
}

// DB is an open store.
type DB struct {
	flavor flavor
	write  *sql.DB
	read   *sql.DB        // may be the same as write
	query  *query.Queries // on read
}

// Open opens the database, checks that it is whole, and brings its tables up to
// date. Close ends it.
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
	db.query = query.New(db.flavor.prepare(db.read))
	return db, nil
}

// Close waits for what is under way and closes the database.
func (db *DB) Close() error {
	var err error
	if db.read != db.write {
		err = db.read.Close()
	}
	return errors.Join(err, db.write.Close(), db.flavor.release())
}

// transact runs do in one write transaction, and keeps the act that it is part of:
// all of it happens or nothing.
func (db *DB) transact(ctx context.Context, do func(*query.Queries) error) error {
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	q := query.New(db.flavor.prepare(tx))
	if err := do(q); err != nil {
		return err
	}
	if err := keepAct(ctx, q); err != nil {
		return err
	}
	return tx.Commit()
}

// view runs do on one moment of the database.
func (db *DB) view(ctx context.Context, do func(*query.Queries) error) error {
	tx, err := db.read.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // there is nothing to commit
	return do(query.New(tx))
}

// told is err in this package's words: "cannot <what>: <which kind>: <cause>".
func (db *DB) told(err error, what string, args ...any) error {
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

// one is for statements that must touch exactly one row.
func one(n int64, err error) error {
	if err == nil && n == 0 {
		return sql.ErrNoRows
	}
	return err
}

// text checks what a person or a machine wrote: the two databases do not agree
// about text that is not UTF-8 or holds a NUL, so neither is given any.
func text(values ...string) error {
	for _, s := range values {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return fmt.Errorf("%w: text that is not UTF-8 or holds a NUL", ErrInvalid)
		}
	}
	return nil
}

// sameHash compares what was looked up with what was found, in a time that says
// nothing about either.
func sameHash(found []byte, want [32]byte) bool {
	return subtle.ConstantTimeCompare(found, want[:]) == 1
}

// millis is how a time is kept; the zero time is 0.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// moment is the time that millis kept.
func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// beginning is where a page of a list begins, as queries take it.
func beginning(from account.Place) (at int64, id string) {
	if from == (account.Place{}) {
		return math.MaxInt64, ""
	}
	return millis(from.At), from.ID
}

// holding is the LIKE pattern, with ! to escape, of what holds part.
func holding(part string) string {
	return "%" + strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(part) + "%"
}

// each converts rows to the records of package account.
func each[Row, Record any](rows []Row, record func(Row) Record) []Record {
	out := make([]Record, len(rows))
	for i, row := range rows {
		out[i] = record(row)
	}
	return out
}
