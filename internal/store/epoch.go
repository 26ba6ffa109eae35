package store

import (
	"context"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// changesKept is how long a change can be read: far longer than any hub is
// allowed to go without a look (decisions 7: 5 s).
const changesKept = 24 * time.Hour

// change runs a write that may change who reaches what, and notes what it
// changed. The epoch's row is taken first, so that such writes run one after
// another on PostgreSQL as they do on SQLite: epochs become visible in their
// order, without a gap, and what do reads cannot change before it commits.
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
		return q.PruneChanges(ctx, millis(now.Add(-changesKept)))
	})
}

// changed is a change of one fact.
func changed(kind fleet.ChangeKind, id string) []fleet.Change {
	return []fleet.Change{{Kind: kind, ID: id}}
}

// Epoch is the number of the newest change; 0 before the first. A reader that
// begins asks for it first, reads everything, and goes on with Changes.
func (db *DB) Epoch(ctx context.Context) (int64, error) {
	epoch, err := db.query.Epoch(ctx)
	return epoch, db.told(err, "read the epoch")
}

// Changes is every change after the epoch that the reader has reached, in order
// and without a gap, and the epoch it has reached with them. Where that cannot
// be told any more (changes are kept for a day; a restored backup may even be
// younger than the reader) the error is ErrBehind and epoch is the present one:
// the reader reads everything again, then goes on from that epoch.
func (db *DB) Changes(ctx context.Context, after int64) (epoch int64, changes []fleet.Change, err error) {
	rows, err := db.query.ChangesAfter(ctx, after)
	if err != nil {
		return 0, nil, db.told(err, "read the changes after %d", after)
	}
	for _, row := range rows {
		epoch = row.N
		if row.Epoch != nil {
			changes = append(changes, fleet.Change{Epoch: int64(*row.Epoch), Kind: fleet.ChangeKind(*row.Kind), ID: *row.Subject})
		}
	}
	if int64(len(changes)) != epoch-after {
		return epoch, nil, db.told(ErrBehind, "read the changes after %d of %d", after, epoch)
	}
	return epoch, changes, nil
}
