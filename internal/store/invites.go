package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// CreateInvite adds an invite; ErrNotFound if there is no such owner, ErrTooMany if the
// owner has account.MaxInvites open ones. It deletes the owner's invites that are used
// up, expired or revoked, except the newest account.MaxInvites.
func (db *DB) CreateInvite(ctx context.Context, i account.Invite) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := checkLimits(i.Limits, i.ID, i.LastFour); err != nil {
			return err
		}
		now := millis(i.Created)
		open, err := q.CountOpenInvites(ctx, i.OwnerID, now)
		if err != nil {
			return err
		}
		if open >= account.MaxInvites {
			return account.ErrTooMany
		}
		if err := q.PruneInvites(ctx, i.OwnerID, now, account.MaxInvites); err != nil {
			return err
		}
		return q.InsertInvite(ctx, query.InsertInviteParams{
			ID: i.ID, OwnerID: i.OwnerID, Hash: i.Hash[:], LastFour: i.LastFour, Uses: i.Uses, Used: i.Used,
			Created: millis(i.Created), Expires: millis(i.Expires), Revoked: millis(i.Revoked),
			Models: i.Models, Hours: i.Hours, Concurrent: i.Concurrent, PerDay: i.PerDay,
		})
	}, "create an invite")
}

// Invites returns the owner's invites, oldest first. Used, expired and revoked ones are
// included.
func (db *DB) Invites(ctx context.Context, ownerID string) ([]account.Invite, error) {
	rows, err := db.query.InvitesOf(ctx, ownerID)
	return convert(rows, invite), db.wrap(err, "list the invites of member %q", ownerID)
}

// Invite returns the invite whose code has that SHA-256, live or not, and its owner's
// name; ErrNotFound if the code is wrong or the owner is disabled.
func (db *DB) Invite(ctx context.Context, hash [32]byte) (account.Invite, string, error) {
	row, err := db.query.InviteByHash(ctx, hash[:])
	if err == nil && row.Disabled {
		err = sql.ErrNoRows
	}
	return invite(row.Invite), row.Owner, db.wrap(checkHash(err, row.Invite.Hash, hash), "look up an invite")
}

// RevokeInvite revokes an invite of the owner; ErrNotFound if it is not live.
func (db *DB) RevokeInvite(ctx context.Context, ownerID, id string, now time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		return oneRow(q.RevokeInvite(ctx, id, ownerID, millis(now)))
	}, "revoke invite %q", id)
}

// AcceptInvite creates a share from the owner of an invite to the share's member, within
// the invite's limits. hash is the SHA-256 of the invite's code. One transaction takes
// one use of the invite and creates the share, so that concurrent calls succeed at most
// as often as the invite has uses. A call that fails takes none.
//
// It returns ErrNotFound if the code is wrong, the invite is used up, expired or revoked,
// or the owner is disabled; ErrOwn if the invite is the member's own; ErrExists, with the
// owner, if the owner already shares with the member; ErrUsed if the member got a share
// by this invite before, which has ended.
func (db *DB) AcceptInvite(ctx context.Context, hash [32]byte, s account.Share, now time.Time) (account.Share, account.Member, error) {
	var owner account.Member
	err := db.change(ctx, func(q *query.Queries) (_ []fleet.Change, err error) {
		s, owner, err = useInvite(ctx, q, hash, s, now)
		return changed(fleet.SharesChanged, s.MemberID), err
	}, "accept the invite")
	return s, owner, err
}

// useInvite takes one use of the invite and creates its share.
func useInvite(ctx context.Context, q *query.Queries, hash [32]byte, s account.Share, now time.Time) (account.Share, account.Member, error) {
	used, err := q.UseInvite(ctx, hash[:], millis(now))
	if err = checkHash(err, used.Hash, hash); err != nil {
		return s, account.Member{}, err
	}
	row, err := enabledMember(ctx, q, used.OwnerID)
	if err == nil && row.ID == s.MemberID {
		err = account.ErrOwn
	}
	if err != nil {
		return s, account.Member{}, err
	}
	s.OwnerID, s.Limits = row.ID, invite(used).Limits
	if err := insertShare(ctx, q, s); err != nil {
		return s, member(row), err
	}
	first, err := q.InsertInviteUse(ctx, used.ID, s.MemberID)
	if err == nil && first == 0 {
		err = account.ErrUsed
	}
	return s, member(row), err
}

func invite(row query.Invite) account.Invite {
	return account.Invite{
		ID: row.ID, OwnerID: row.OwnerID, Hash: hashOf(row.Hash), LastFour: row.LastFour, Uses: row.Uses, Used: row.Used,
		Created: timeOf(row.Created), Expires: timeOf(row.Expires), Revoked: timeOf(row.Revoked),
		Limits: account.Limits{Models: row.Models, Hours: row.Hours, Concurrent: row.Concurrent, PerDay: row.PerDay},
	}
}
