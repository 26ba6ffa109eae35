package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/kith/kith/internal/store/internal/query"
)

// SetWithin sets how long a transaction may take.
func (db *DB) SetWithin(d time.Duration) { db.flavor.within = d }

// Begin begins a transaction.
func (db *DB) Begin(ctx context.Context) (*sql.Tx, error) { return db.write.BeginTx(ctx, nil) }

// FailCopies makes each further copy of the database fail.
func FailCopies(db *DB, why string) {
	db.flavor.copy = func(context.Context, string, func(*query.Queries) error) (string, error) { return "", errors.New(why) }
}
