package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// A member is in a group by an act of their own: JoinGroup, AcceptGroup, or
// making the group (decisions 1). No method puts another member into one.

// InviteToGroup keeps an invitation to an org, made by one of its admins or, with
// an empty ByID, by the hub's operator. ErrNotFound if the admin runs no org of
// that id, or there is no such member; ErrExists if the member is in the org or
// invited to it; ErrTooMany if as many invitations of the org or of the member as
// may wait for an answer do.
func (db *DB) InviteToGroup(ctx context.Context, i account.GroupInvitation) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) { return nil, inviteToGroup(ctx, q, i) })
	return db.told(err, "invite member %q to group %q", i.MemberID, i.GroupID)
}

func inviteToGroup(ctx context.Context, q *query.Queries, i account.GroupInvitation) error {
	group, err := q.GroupByID(ctx, i.GroupID)
	if err == nil && i.ByID != "" {
		err = runs(ctx, q, i.ByID, i.GroupID)
	}
	if err != nil {
		return err
	}
	if group.Kind != string(account.GroupOrg) {
		return sql.ErrNoRows
	}
	in, err := q.IsInGroup(ctx, i.GroupID, i.MemberID)
	if err != nil {
		return err
	}
	if in {
		return account.ErrExists
	}
	return keepInvitation(ctx, q, i)
}

// keepInvitation writes an invitation, unless too many wait for an answer.
func keepInvitation(ctx context.Context, q *query.Queries, i account.GroupInvitation) error {
	if err := q.PruneInvitations(ctx, i.GroupID, i.MemberID, millis(i.Created)); err != nil {
		return err
	}
	row := query.InsertInvitationParams{GroupID: i.GroupID, MemberID: i.MemberID, ByID: i.ByID, Created: millis(i.Created), Expires: millis(i.Expires)}
	if err := q.InsertInvitation(ctx, row); err != nil {
		return err
	}
	n, err := q.CountInvitations(ctx, i.GroupID, i.MemberID)
	if err == nil && (n.OfGroup > account.MaxGroupInvitations || n.OfMember > account.MaxMemberInvitations) {
		err = account.ErrTooMany
	}
	return err
}

// AcceptGroup puts a member into a group by the member's invitation, which ends
// with it; ErrNotFound if none waits. The member is its admin if the group is open,
// to which no one is invited but by CreateGroup, or is an org without a member.
func (db *DB) AcceptGroup(ctx context.Context, groupID, memberID string, now time.Time) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := one(q.TakeInvitation(ctx, groupID, memberID, millis(now))); err != nil {
			return nil, err
		}
		group, err := q.GroupByID(ctx, groupID)
		if err != nil {
			return nil, err
		}
		size, err := q.GroupSize(ctx, groupID)
		if err != nil {
			return nil, err
		}
		admin := size == 0 || group.Kind == string(account.GroupOpen)
		in, err := q.IsInGroup(ctx, groupID, memberID)
		if err != nil {
			return nil, err
		}
		if in { // of an open group that the member joined meanwhile
			return changed(fleet.GroupChanged, groupID), one(q.SetGroupAdmin(ctx, groupID, memberID, admin))
		}
		if err := q.InsertGroupMember(ctx, groupID, memberID, admin, millis(now)-1); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), joined(ctx, q, groupID, memberID, now)
	})
	return db.told(err, "accept the invitation to group %q", groupID)
}

// DeclineGroup ends a member's invitation to a group; ErrNotFound if none waits. A
// group without members ends with its last invitation.
func (db *DB) DeclineGroup(ctx context.Context, groupID, memberID string, now time.Time) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := one(q.TakeInvitation(ctx, groupID, memberID, millis(now))); err != nil {
			return nil, err
		}
		return endUnwanted(ctx, q, groupID)
	})
	return db.told(err, "decline the invitation to group %q", groupID)
}

// endUnwanted ends a group that has neither a member nor an invitation.
func endUnwanted(ctx context.Context, q *query.Queries, groupID string) ([]fleet.Change, error) {
	size, err := q.GroupSize(ctx, groupID)
	if err != nil || size > 0 {
		return nil, err
	}
	n, err := q.CountInvitations(ctx, groupID, "")
	if err != nil || n.OfGroup > 0 {
		return nil, err
	}
	return changed(fleet.GroupChanged, groupID), end(ctx, q, groupID)
}

// JoinGroup puts a member into an open group; ErrNotFound if there is none of
// that id that is open, ErrExists if the member is in.
func (db *DB) JoinGroup(ctx context.Context, groupID, memberID string, now time.Time) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := one(q.JoinGroup(ctx, memberID, millis(now)-1, groupID)); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), joined(ctx, q, groupID, memberID, now)
	})
	return db.told(err, "join group %q", groupID)
}

// joined records that a member joined, and forgets joins of long ago.
func joined(ctx context.Context, q *query.Queries, groupID, memberID string, now time.Time) error {
	if err := q.PruneJoins(ctx, millis(now.Add(-account.JoinLife))); err != nil {
		return err
	}
	return q.InsertJoin(ctx, groupID, memberID, millis(now))
}

// depart takes a member out of a group, or withdraws the member's invitation to
// it: whichever there is, in one transaction, so that a removal also holds against
// an invitation that is accepted at the same time.
func depart(ctx context.Context, q *query.Queries, groupID, memberID string) ([]fleet.Change, error) {
	left, err := q.DeleteGroupMember(ctx, groupID, memberID)
	if err != nil {
		return nil, err
	}
	if left > 0 {
		return changed(fleet.GroupChanged, groupID), nil
	}
	if err := one(q.DeleteInvitation(ctx, groupID, memberID)); err != nil {
		return nil, err
	}
	return endUnwanted(ctx, q, groupID)
}

// NewJoins is at most so many of the newest joins of the member's groups, of
// others, that the member has not seen.
func (db *DB) NewJoins(ctx context.Context, memberID string, now time.Time, most int) ([]account.GroupJoin, error) {
	rows, err := db.query.NewJoins(ctx, memberID, millis(now.Add(-account.JoinLife)), int32(most))
	joins := each(rows, func(row query.NewJoinsRow) account.GroupJoin {
		return account.GroupJoin{Group: row.GroupName, Member: row.MemberName, At: moment(row.At)}
	})
	return joins, db.told(err, "list the new members of the groups of member %q", memberID)
}

// SeeJoins records that the member has seen the joins up to that time.
func (db *DB) SeeJoins(ctx context.Context, memberID string, until time.Time) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		return q.SeeJoins(ctx, millis(until), memberID)
	})
	return db.told(err, "record what member %q has seen", memberID)
}

// CountNotices is how many invitations wait for the member, and how many joins the
// member has not seen, together.
func (db *DB) CountNotices(ctx context.Context, memberID string, now time.Time) (int, error) {
	n, err := db.query.CountNotices(ctx, memberID, millis(now), millis(now.Add(-account.JoinLife)))
	return int(n.Invitations + n.Joins), db.told(err, "count the notices of member %q", memberID)
}

// AddressesOfGroup is at most so many confirmed addresses of members of a group
// with a machine that the group may reach, but not of the one who joined.
func (db *DB) AddressesOfGroup(ctx context.Context, groupID, joinedID string, most int) ([]account.Email, error) {
	rows, err := db.query.AddressesOfGroup(ctx, groupID, joinedID, int32(most))
	return each(rows, email), db.told(err, "list the addresses of group %q", groupID)
}
