package store

import (
	"context"
	"database/sql"
	"time"
)

// SetWithin sets how long a transaction may take.
func (db *DB) SetWithin(d time.Duration) { db.flavor.within = d }

// Begin begins a transaction.
func (db *DB) Begin(ctx context.Context) (*sql.Tx, error) { return db.write.BeginTx(ctx, nil) }
