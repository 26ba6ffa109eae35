package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// keepChanges is how long a change can be read. Hubs read changes every second.
const keepChanges = 24 * time.Hour

// change runs a write that may change who reaches which machine, and records the changes
// that do returns. Followers are notified of them (Facts.Follow). It first locks the
// epoch's row, so that such writes run one after another on PostgreSQL as they do on
// SQLite. Epochs therefore become visible in order and without gaps, and the data that do
// reads does not change before the commit. It wraps the error.
func (db *DB) change(
	ctx context.Context, do func(*query.Queries) ([]fleet.Change, error), what string, args ...any,
) error {
	moves := false
	defer func() {
		if moves { // even after an error, because the transaction may have been committed
			db.followers.notify()
		}
	}()
	return db.transact(ctx, func(q *query.Queries) error {
		epoch, err := q.MoveEpoch(ctx, 0)
		if err != nil {
			return err
		}
		changes, err := do(q)
		if err != nil {
			return err
		}
		if moves = len(changes) > 0; moves && db.flavor.primary != nil {
			if err := q.Notify(ctx, changesChannel); err != nil {
				return err
			}
		}
		now := db.Now()
		for i, c := range changes {
			err := q.InsertChange(ctx, query.InsertChangeParams{
				Epoch: epoch + int64(i) + 1, Nonce: rand.Text(), Kind: string(c.Kind), Subject: c.ID, At: millis(now),
			})
			if err != nil {
				return err
			}
		}
		if _, err := q.MoveEpoch(ctx, int64(len(changes))); err != nil {
			return err
		}
		return q.PruneChanges(ctx, millis(now.Add(-keepChanges)))
	}, what, args...)
}

func changed(kind fleet.ChangeKind, id string) []fleet.Change {
	return []fleet.Change{{Kind: kind, ID: id}}
}

// Position returns the position of the newest change; the zero Position before the
// first. A new reader gets the position first, then reads everything, then calls
// Changes.
func (db *DB) Position(ctx context.Context) (account.Position, error) {
	row, err := db.query.Position(ctx)
	return account.Position{Epoch: row.N, Nonce: row.Nonce}, db.wrap(err, "read the epoch")
}

// Changes returns all changes after a position, in order and without gaps, and the
// position of the last one. It returns ErrBehind if the changes are too old, as they are
// kept for a day, or if the database lost changes that the reader has seen. The reader
// then reads everything again, like a new one.
func (db *DB) Changes(ctx context.Context, after account.Position) (account.Position, []fleet.Change, error) {
	position, changes, err := changesAfter(ctx, db.query, after)
	return position, changes, db.wrap(err, "read the changes after %d", after.Epoch)
}

func changesAfter(ctx context.Context, q *query.Queries, after account.Position) (account.Position, []fleet.Change, error) {
	rows, err := q.ChangesAfter(ctx, after.Epoch)
	if err != nil {
		return account.Position{}, nil, err
	}
	position, epoch := after, int64(0)
	var changes []fleet.Change
	for _, row := range rows {
		if epoch = row.N; row.Known != after.Nonce {
			return account.Position{}, nil, fmt.Errorf("%w: change %d is not the one known here", ErrBehind, after.Epoch)
		}
		if row.Epoch != nil {
			position = account.Position{Epoch: int64(*row.Epoch), Nonce: *row.Nonce}
			changes = append(changes, fleet.Change{Epoch: position.Epoch, Kind: fleet.ChangeKind(*row.Kind), ID: *row.Subject})
		}
	}
	if position.Epoch != epoch || int64(len(changes)) != epoch-after.Epoch {
		return account.Position{}, nil, fmt.Errorf("%w: the newest change is %d", ErrBehind, epoch)
	}
	return position, changes, nil
}
