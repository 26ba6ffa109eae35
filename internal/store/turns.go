package store

import (
	"context"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// KeepTurn stores a sealed turn. It deletes the member's oldest turns if there are more
// than most, or if all together are larger than mostBytes.
func (db *DB) KeepTurn(ctx context.Context, t account.Turn, most int, mostBytes int64) error {
	return db.transact(ctx, func(q *query.Queries) error {
		row := query.InsertTurnParams{
			Hash: t.Hash[:], MemberID: t.MemberID, Created: millis(t.Created), Expires: millis(t.Expires),
			Size: int64(len(t.Sealed)), Sealed: t.Sealed,
		}
		if err := q.InsertTurn(ctx, row); err != nil {
			return err
		}
		return q.TrimTurns(ctx, t.MemberID, int64(most), mostBytes)
	}, "keep a turn of member %q", t.MemberID)
}

// Turn returns the member's turn with that hash; ErrNotFound if it has expired or belongs
// to another member.
func (db *DB) Turn(ctx context.Context, hash [32]byte, memberID string, now time.Time) (account.Turn, error) {
	row, err := db.query.Turn(ctx, hash[:], memberID, millis(now))
	return account.Turn{
		Hash: hash, MemberID: memberID, Created: timeOf(row.Created), Expires: timeOf(row.Expires), Sealed: row.Sealed,
	}, db.wrap(err, "read a turn of member %q", memberID)
}

// TurnSize returns the size of the turn that Turn would return, in bytes; ErrNotFound as
// for Turn.
func (db *DB) TurnSize(ctx context.Context, hash [32]byte, memberID string, now time.Time) (int64, error) {
	size, err := db.query.TurnSize(ctx, hash[:], memberID, millis(now))
	return size, db.wrap(err, "read the size of a turn of member %q", memberID)
}

// ForgetTurn deletes the turn that Turn would return; ErrNotFound as for Turn.
func (db *DB) ForgetTurn(ctx context.Context, hash [32]byte, memberID string, now time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		return oneRow(q.DeleteTurn(ctx, hash[:], memberID, millis(now)))
	}, "drop a turn of member %q", memberID)
}

// PruneTurns deletes every turn that has expired.
func (db *DB) PruneTurns(ctx context.Context, now time.Time) error {
	return db.wrap(query.New(db.write).PruneTurns(ctx, millis(now)), "drop expired turns")
}
