package store

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// A member joins a group only by the member's own action: JoinGroup, AcceptGroup, or
// creating the group (spec/routing.md#consent).

// InviteToGroup stores an invitation to an org by one of its admins or, with an empty
// ByID, by the hub's operator. ErrNotFound if there is no such member, or no such org
// with that admin; ErrExists if the member is in the org or is invited; ErrTooMany if
// there are too many pending invitations. The error is ErrGroupInvitations if the org has
// too many; otherwise it names the limit of the member: in all, by this admin, or by
// people that the member does not know.
func (db *DB) InviteToGroup(ctx context.Context, i account.GroupInvitation) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) { return nil, inviteToGroup(ctx, q, i) },
		"invite member %q to group %q", i.MemberID, i.GroupID)
}

func inviteToGroup(ctx context.Context, q *query.Queries, i account.GroupInvitation) error {
	group, err := q.GroupByID(ctx, i.GroupID)
	if err == nil && i.ByID != "" {
		err = checkAdmin(ctx, q, i.ByID, i.GroupID)
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
	return addInvitation(ctx, q, i)
}

// addInvitation inserts an invitation, unless there are too many pending ones.
func addInvitation(ctx context.Context, q *query.Queries, i account.GroupInvitation) error {
	if err := q.PruneInvitations(ctx, i.GroupID, i.MemberID, millis(i.Created)); err != nil {
		return err
	}
	row := query.InsertInvitationParams{GroupID: i.GroupID, MemberID: i.MemberID, ByID: i.ByID, Created: millis(i.Created), Expires: millis(i.Expires)}
	if err := q.InsertInvitation(ctx, row); err != nil {
		return err
	}
	n, err := q.CountInvitations(ctx, i.GroupID, i.MemberID, i.ByID)
	if err != nil {
		return err
	}
	unknown, err := q.UnknownInviters(ctx, i.MemberID)
	if err != nil {
		return err
	}
	// Invitations by people the member does not know are limited separately, so that
	// there is always room for others.
	isUnknown, byOne := slices.Contains(unknown, i.ByID), int64(account.MaxInvitationsByOne)
	if isUnknown {
		byOne = account.MaxByOneUnknown
	}
	switch {
	case n.OfGroup > account.MaxGroupInvitations:
		return account.ErrGroupInvitations
	case n.OfBoth > byOne && i.ByID != "":
		return account.ErrInvitationsByOne
	case n.OfMember > account.MaxMemberInvitations:
		return account.ErrMemberInvitations
	case isUnknown && len(unknown) > account.MaxUnknown:
		return account.ErrUnknownInviters
	}
	return nil
}

// AcceptGroup adds a member to a group and deletes the member's invitation; ErrNotFound
// if there is none, ErrTooMany if the member is in too many groups. The member becomes an
// admin if the group is open, because only CreateGroup invites to those, or if it is an
// org without members.
func (db *DB) AcceptGroup(ctx context.Context, groupID, memberID string, now time.Time) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := oneRow(q.TakeInvitation(ctx, groupID, memberID, millis(now))); err != nil {
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
		if in { // it is an open group, and the member joined it in the meantime
			return changed(fleet.GroupChanged, groupID), oneRow(q.SetGroupAdmin(ctx, groupID, memberID, admin))
		}
		if err := q.InsertGroupMember(ctx, groupID, memberID, admin, millis(now)-1); err != nil {
			return nil, err
		}
		if err := checkGroupsOf(ctx, q, memberID); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), recordJoin(ctx, q, groupID, memberID, now)
	}, "accept the invitation to group %q", groupID)
}

// DeclineGroup deletes a member's invitation to a group; ErrNotFound if there is none. If
// the group then has neither members nor invitations, it is deleted, too.
func (db *DB) DeclineGroup(ctx context.Context, groupID, memberID string, now time.Time) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := oneRow(q.TakeInvitation(ctx, groupID, memberID, millis(now))); err != nil {
			return nil, err
		}
		return deleteIfUnused(ctx, q, groupID)
	}, "decline the invitation to group %q", groupID)
}

// deleteIfUnused deletes a group that has neither members nor invitations.
func deleteIfUnused(ctx context.Context, q *query.Queries, groupID string) ([]fleet.Change, error) {
	size, err := q.GroupSize(ctx, groupID)
	if err != nil || size > 0 {
		return nil, err
	}
	n, err := q.CountInvitations(ctx, groupID, "", "")
	if err != nil || n.OfGroup > 0 {
		return nil, err
	}
	return changed(fleet.GroupChanged, groupID), deleteGroup(ctx, q, groupID)
}

// JoinGroup adds a member to an open group; ErrNotFound if there is no open group with
// that id, ErrExists if the member is in it, ErrTooMany if the member is in too many
// groups.
func (db *DB) JoinGroup(ctx context.Context, groupID, memberID string, now time.Time) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := oneRow(q.JoinGroup(ctx, memberID, millis(now)-1, groupID)); err != nil {
			return nil, err
		}
		if err := checkGroupsOf(ctx, q, memberID); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), recordJoin(ctx, q, groupID, memberID, now)
	}, "join group %q", groupID)
}

// checkGroupsOf returns ErrTooMany if the member is in the maximum number of groups. Each
// group has a member, or an invitation by the operator, so this also limits the number of
// groups. Every member sees all open groups.
func checkGroupsOf(ctx context.Context, q *query.Queries, memberID string) error {
	n, err := q.CountGroupsOf(ctx, memberID)
	if err == nil && n > account.MaxGroups {
		err = account.ErrTooMany
	}
	return err
}

// recordJoin records that a member joined, and deletes old joins.
func recordJoin(ctx context.Context, q *query.Queries, groupID, memberID string, now time.Time) error {
	if err := q.PruneJoins(ctx, millis(now.Add(-account.JoinLife))); err != nil {
		return err
	}
	return q.InsertJoin(ctx, groupID, memberID, millis(now))
}

// removeFromGroup removes a member from a group or withdraws the member's invitation. It
// does both in one transaction, so that a member who accepts the invitation at the same
// time does not stay in the group.
func removeFromGroup(ctx context.Context, q *query.Queries, groupID, memberID string) ([]fleet.Change, error) {
	left, err := q.DeleteGroupMember(ctx, groupID, memberID)
	if err != nil {
		return nil, err
	}
	if left > 0 {
		return changed(fleet.GroupChanged, groupID), nil
	}
	if err := oneRow(q.DeleteInvitation(ctx, groupID, memberID)); err != nil {
		return nil, err
	}
	return deleteIfUnused(ctx, q, groupID)
}

// Joins returns the newest joins of other members to the member's groups, since the
// member joined, up to most of them.
func (db *DB) Joins(ctx context.Context, memberID string, now time.Time, most int) ([]account.GroupJoin, error) {
	rows, err := db.query.Joins(ctx, memberID, millis(now.Add(-account.JoinLife)), int32(most))
	joins := convert(rows, func(row query.JoinsRow) account.GroupJoin {
		return account.GroupJoin{Group: row.GroupName, Member: row.MemberName, At: timeOf(row.At), New: row.Unseen}
	})
	return joins, db.wrap(err, "list the new members of the groups of member %q", memberID)
}
