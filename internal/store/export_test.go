package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

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

// IsEnded is isEnded.
var IsEnded = isEnded
