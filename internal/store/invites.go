package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// CreateInvite adds an invite; ErrNotFound if there is no such owner.
func (db *DB) CreateInvite(ctx context.Context, i account.Invite) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := limitText(i.Limits, i.ID, i.LastFour); err != nil {
			return err
		}
		return q.InsertInvite(ctx, query.InsertInviteParams{
			ID: i.ID, OwnerID: i.OwnerID, Hash: i.Hash[:], LastFour: i.LastFour, Uses: i.Uses, Used: i.Used,
			Created: millis(i.Created), Expires: millis(i.Expires), Revoked: millis(i.Revoked),
			Models: i.Models, Hours: i.Hours, Concurrent: i.Concurrent, PerDay: i.PerDay,
		})
	})
	return db.told(err, "create an invite")
}

// Invites is every invite of the owner, used up, expired and revoked ones too;
// the first first.
func (db *DB) Invites(ctx context.Context, ownerID string) ([]account.Invite, error) {
	rows, err := db.query.InvitesOf(ctx, ownerID)
	return each(rows, invite), db.told(err, "list the invites of member %q", ownerID)
}

// RevokeInvite ends an invite of the owner's; ErrNotFound if there is no live one.
func (db *DB) RevokeInvite(ctx context.Context, ownerID, id string, now time.Time) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		return one(q.RevokeInvite(ctx, id, ownerID, millis(now)))
	})
	return db.told(err, "revoke invite %q", id)
}

// AcceptInvite shares the machines of whoever made the invite, whose code has
// that SHA-256, with the share's member, within the invite's limits. One use is taken in the transaction
// that makes the share: of any number who accept at once, no more succeed than
// it has uses, and one that fails leaves them as they were. A wrong code and one
// that is used up, expired, revoked or of a disabled member are ErrNotFound
// alike; one's own is ErrOwn; ErrExists says that the inviter, who is returned
// then too, shares with the member already.
func (db *DB) AcceptInvite(ctx context.Context, hash [32]byte, s account.Share, now time.Time) (account.Share, account.Member, error) {
	var owner account.Member
	err := db.change(ctx, func(q *query.Queries) (_ []fleet.Change, err error) {
		s, owner, err = useInvite(ctx, q, hash, s, now)
		return changed(fleet.SharesChanged, s.MemberID), err
	})
	return s, owner, db.told(err, "accept the invite")
}

// useInvite takes one use of the invite and makes the share that it stands for.
func useInvite(ctx context.Context, q *query.Queries, hash [32]byte, s account.Share, now time.Time) (account.Share, account.Member, error) {
	used, err := q.UseInvite(ctx, hash[:], millis(now))
	if err != nil {
		return s, account.Member{}, err
	}
	row, err := q.MemberByID(ctx, used.OwnerID)
	if err != nil {
		return s, account.Member{}, err
	}
	if row.Disabled || !sameHash(used.Hash, hash) {
		return s, account.Member{}, sql.ErrNoRows
	}
	if row.ID == s.MemberID {
		return s, account.Member{}, account.ErrOwn
	}
	s.OwnerID, s.Limits = row.ID, invite(used).Limits
	return s, member(row), q.InsertShare(ctx, query.InsertShareParams{
		ID: s.ID, OwnerID: s.OwnerID, MemberID: s.MemberID, Created: millis(s.Created),
		Models: used.Models, Hours: used.Hours, Concurrent: used.Concurrent, PerDay: used.PerDay,
	})
}

func invite(row query.Invite) account.Invite {
	return account.Invite{
		ID: row.ID, OwnerID: row.OwnerID, Hash: [32]byte(row.Hash), LastFour: row.LastFour, Uses: row.Uses, Used: row.Used,
		Created: moment(row.Created), Expires: moment(row.Expires), Revoked: moment(row.Revoked),
		Limits: account.Limits{Models: row.Models, Hours: row.Hours, Concurrent: row.Concurrent, PerDay: row.PerDay},
	}
}
