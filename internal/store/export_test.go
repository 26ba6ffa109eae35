package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// SetWithin sets the timeout of transactions.
func (db *DB) SetWithin(d time.Duration) { db.flavor.within = d }

// Begin begins a transaction.
func (db *DB) Begin(ctx context.Context) (*sql.Tx, error) { return db.write.BeginTx(ctx, nil) }

// FailCopies makes all further copies of the database fail.
func FailCopies(db *DB, why string) {
	db.flavor.copy = func(context.Context, string, func(*query.Queries) error) (string, error) { return "", errors.New(why) }
}

// SetClock makes Now return times that differ from this computer's clock by this much,
// until the server's clock is read.
func (db *DB) SetClock(offset time.Duration) { db.flavor.primary.clock.offset.Store(int64(offset)) }

// Offset returns the offset after the server's clock was read, given the one before.
func Offset(known time.Duration, before, server, after time.Time) time.Duration {
	var c clock
	c.offset.Store(int64(known))
	c.read(before, server, after)
	return time.Duration(c.offset.Load())
}

// ClockAhead returns how far this computer's clock is ahead of the reference clock.
func ClockAhead(db *DB) time.Duration { return db.clockAhead() }

// Group returns the group with all its members, disabled ones included.
func (db *DB) Group(ctx context.Context, id string) (account.Group, error) {
	return db.group(ctx, id, true)
}

// Shares returns every share from or to the member.
func (db *DB) Shares(ctx context.Context, memberID string) ([]account.Share, error) {
	shares, err := db.NamedShares(ctx, memberID)
	return convert(shares, func(s account.NamedShare) account.Share { return s.Share }), err
}

// PutMeta stores a value in the table meta, if there is none under that name.
func (db *DB) PutMeta(ctx context.Context, name, value string) error {
	return query.New(db.write).InsertMeta(ctx, name, value)
}

// Meta returns a value of the table meta.
func (db *DB) Meta(ctx context.Context, name string) (string, error) { return db.query.Meta(ctx, name) }

// IsEnded is isEnded.
var IsEnded = isEnded
