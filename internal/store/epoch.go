package store

import (
	"context"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// keepChanges is how long a change can be read. A hub reads them every second.
const keepChanges = 24 * time.Hour

// change runs a write that may change who reaches which machine, and records the
// changes that do returns. It locks the epoch's row first, so that such writes run
// one after another on PostgreSQL as they do on SQLite: epochs become visible in
// order and without a gap, and what do reads does not change before the commit.
func (db *DB) change(ctx context.Context, do func(*query.Queries) ([]fleet.Change, error)) error {
	return db.transact(ctx, func(q *query.Queries) error {
		epoch, err := q.MoveEpoch(ctx, 0)
		if err != nil {
			return err
		}
		changes, err := do(q)
		if err != nil {
			return err
		}
		now := time.Now()
		for i, c := range changes {
			if err := q.InsertChange(ctx, epoch+int64(i)+1, string(c.Kind), c.ID, millis(now)); err != nil {
				return err
			}
		}
		if _, err := q.MoveEpoch(ctx, int64(len(changes))); err != nil {
			return err
		}
		return q.PruneChanges(ctx, millis(now.Add(-keepChanges)))
	})
}

// changed returns a change of one record.
func changed(kind fleet.ChangeKind, id string) []fleet.Change {
	return []fleet.Change{{Kind: kind, ID: id}}
}

// Epoch returns the number of the newest change; 0 before the first. A new reader
// gets the epoch first, then reads everything, then calls Changes.
func (db *DB) Epoch(ctx context.Context) (int64, error) {
	epoch, err := db.query.Epoch(ctx)
	return epoch, db.wrap(err, "read the epoch")
}

// Changes returns every change after an epoch, in order and without a gap, and the
// epoch of the last one. If the changes are not there (they are kept for a day, and
// a restored backup may be older than the reader), it returns ErrBehind and the
// current epoch: the reader reads everything again and continues from that epoch.
func (db *DB) Changes(ctx context.Context, after int64) (epoch int64, changes []fleet.Change, err error) {
	rows, err := db.query.ChangesAfter(ctx, after)
	if err != nil {
		return 0, nil, db.wrap(err, "read the changes after %d", after)
	}
	for _, row := range rows {
		epoch = row.N
		if row.Epoch != nil {
			changes = append(changes, fleet.Change{Epoch: int64(*row.Epoch), Kind: fleet.ChangeKind(*row.Kind), ID: *row.Subject})
		}
	}
	if int64(len(changes)) != epoch-after {
		return epoch, nil, db.wrap(ErrBehind, "read the changes after %d of %d", after, epoch)
	}
	return epoch, changes, nil
}
