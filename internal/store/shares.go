package store

import (
	"context"
	"slices"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// AddShare adds a share; ErrExists if its owner already shares with that member,
// ErrNotFound if one of them is not a member, ErrInvalid if they are the same.
func (db *DB) AddShare(ctx context.Context, s account.Share) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := checkLimits(s.Limits, s.ID); err != nil {
			return nil, err
		}
		return changed(fleet.SharesChanged, s.MemberID), insertShare(ctx, q, s)
	}, "share %q's machines with member %q", s.OwnerID, s.MemberID)
}

func insertShare(ctx context.Context, q *query.Queries, s account.Share) error {
	return q.InsertShare(ctx, query.InsertShareParams{
		ID: s.ID, OwnerID: s.OwnerID, MemberID: s.MemberID, Created: millis(s.Created),
		Models: s.Models, Hours: s.Hours, Concurrent: s.Concurrent, PerDay: s.PerDay,
	})
}

// PutShare changes the limits of the share between two members, or creates one with these
// limits, and returns it. ErrNotFound if one of the two is not a member, ErrInvalid if
// they are the same.
func (db *DB) PutShare(ctx context.Context, s account.Share, c account.LimitChange) (account.Share, error) {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		to, err := limitColumns(s.ID, c)
		if err != nil {
			return nil, err
		}
		row, err := q.PutShare(ctx, query.PutShareParams{
			ID: s.ID, OwnerID: s.OwnerID, MemberID: s.MemberID, Created: millis(s.Created),
			Models: to.Models, Hours: to.Hours, Concurrent: to.Concurrent, PerDay: to.PerDay,
		})
		if err == nil {
			s = share(row)
		}
		return changed(fleet.SharesChanged, s.MemberID), err
	}, "share %q's machines with member %q", s.OwnerID, s.MemberID)
	return s, err
}

// RemoveShare deletes the share between two members; ErrNotFound if there is none.
func (db *DB) RemoveShare(ctx context.Context, ownerID, memberID string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SharesChanged, memberID), oneRow(q.DeleteShare(ctx, ownerID, memberID))
	}, "end the share of %q's machines with member %q", ownerID, memberID)
}

// ShareList returns all shares in force, which are those without a disabled member.
func (db *DB) ShareList(ctx context.Context) ([]account.Share, error) {
	rows, err := db.query.LiveShares(ctx)
	return convert(rows, share), db.wrap(err, "list the shares")
}

// SharesTo returns every share in force to the member.
func (db *DB) SharesTo(ctx context.Context, memberID string) ([]account.Share, error) {
	rows, err := db.query.LiveSharesTo(ctx, memberID)
	return convert(rows, share), db.wrap(err, "list the shares to member %q", memberID)
}

// NamedShares returns every share from or to the member, oldest first, including those
// with a disabled member, and both members' names.
func (db *DB) NamedShares(ctx context.Context, memberID string) ([]account.NamedShare, error) {
	rows, err := db.query.NamedShares(ctx, memberID)
	return convert(rows, func(row query.NamedSharesRow) account.NamedShare {
		return account.NamedShare{Share: share(row.Share), Owner: row.Owner, Member: row.Member, Disabled: row.Disabled}
	}), db.wrap(err, "list the shares of member %q", memberID)
}

func share(row query.Share) account.Share {
	return account.Share{
		ID: row.ID, OwnerID: row.OwnerID, MemberID: row.MemberID, Created: timeOf(row.Created),
		Limits: account.Limits{Models: row.Models, Hours: row.Hours, Concurrent: row.Concurrent, PerDay: row.PerDay},
	}
}

// checkLimits checks the texts in limits, and other texts, as checkText does.
func checkLimits(l account.Limits, others ...string) error {
	return checkText(slices.Concat(others, []string{l.Hours}, l.Models)...)
}
