package store

import (
	"context"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// KeepTurn keeps a sealed turn, and drops what its member then has beyond most
// turns and mostBytes of them, the oldest first.
func (db *DB) KeepTurn(ctx context.Context, t account.Turn, most int, mostBytes int64) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		row := query.InsertTurnParams{
			Hash: t.Hash[:], MemberID: t.MemberID, Created: millis(t.Created), Expires: millis(t.Expires),
			Size: int64(len(t.Sealed)), Sealed: t.Sealed,
		}
		if err := q.InsertTurn(ctx, row); err != nil {
			return err
		}
		return q.TrimTurns(ctx, t.MemberID, int64(most), mostBytes)
	})
	return db.told(err, "keep a turn of member %q", t.MemberID)
}

// Turn is the member's turn of that hash, if it has not expired by then; else
// ErrNotFound, whosever it is.
func (db *DB) Turn(ctx context.Context, hash [32]byte, memberID string, now time.Time) (account.Turn, error) {
	row, err := db.query.Turn(ctx, hash[:], memberID, millis(now))
	return account.Turn{
		Hash: hash, MemberID: memberID, Created: moment(row.Created), Expires: moment(row.Expires), Sealed: row.Sealed,
	}, db.told(err, "read a turn of member %q", memberID)
}

// ForgetTurn drops the turn that Turn would find; else ErrNotFound.
func (db *DB) ForgetTurn(ctx context.Context, hash [32]byte, memberID string, now time.Time) error {
	err := one(query.New(db.write).DeleteTurn(ctx, hash[:], memberID, millis(now)))
	return db.told(err, "drop a turn of member %q", memberID)
}

// PruneTurns drops every turn that has expired by then.
func (db *DB) PruneTurns(ctx context.Context, now time.Time) error {
	return db.told(query.New(db.write).PruneTurns(ctx, millis(now)), "drop expired turns")
}
