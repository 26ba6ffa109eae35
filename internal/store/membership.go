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

// What members do to groups. Each method says who asks, and looks that up in
// the transaction that writes: who may not is told ErrNotFound.

// SeenGroups is every group the viewer may see, the first first, or with a name
// only the one of exactly that name. Disabled members are left out and not
// counted, as are invitations that have expired.
func (db *DB) SeenGroups(ctx context.Context, viewerID, name string, now time.Time) ([]account.SeenGroup, error) {
	if err := text(name); err != nil {
		return nil, db.told(err, "list the groups")
	}
	var groups []account.SeenGroup
	err := db.view(ctx, func(q *query.Queries) error {
		rows, err := q.SeenGroups(ctx, viewerID, millis(now), name)
		if err != nil {
			return err
		}
		invitations, err := q.SeenInvitations(ctx, viewerID, millis(now))
		if err != nil {
			return err
		}
		fellows, err := q.Fellows(ctx, viewerID)
		if err != nil {
			return err
		}
		keepOuts, err := q.KeepOutsBy(ctx, viewerID)
		if err != nil {
			return err
		}
		groups = seen(rows, fellows, keepOuts)
		showInvitations(groups, viewerID, invitations)
		limits, err := q.GroupLimitsBy(ctx, viewerID)
		withLimits(groups, limits)
		return err
	})
	return groups, db.told(err, "list the groups that member %q sees", viewerID)
}

func seen(rows []query.SeenGroupsRow, fellows []query.FellowsRow, keepOuts []query.KeepOutsByRow) []account.SeenGroup {
	groups := make([]account.SeenGroup, len(rows))
	byID := make(map[string]*account.SeenGroup, len(rows))
	for i, row := range rows {
		groups[i] = account.SeenGroup{
			ID: row.Group.ID, Name: row.Group.Name, Kind: account.GroupKind(row.Group.Kind), Created: moment(row.Group.Created),
			In: row.Admin != nil, Admin: row.Admin != nil && *row.Admin, Size: int(row.Size),
		}
		if groups[i].In {
			byID[row.Group.ID] = &groups[i]
		}
	}
	for _, f := range fellows {
		if g := byID[f.GroupID]; g != nil {
			g.Members = append(g.Members, account.Fellow{Name: f.Name, Admin: f.Admin})
		}
	}
	for _, k := range keepOuts {
		if g := byID[k.GroupID]; g != nil {
			g.KeptOut = append(g.KeptOut, account.Named{ID: k.ID, Name: k.Name})
		}
	}
	return groups
}

// withLimits gives the groups that the viewer is in the viewer's limits.
func withLimits(groups []account.SeenGroup, rows []query.GroupLimit) {
	for _, row := range rows {
		if i := slices.IndexFunc(groups, func(g account.SeenGroup) bool { return g.ID == row.GroupID && g.In }); i >= 0 {
			groups[i].Limits = groupLimits(row)
		}
	}
}

// showInvitations puts invitations into the groups that they are to: the viewer's
// own apart from those that the viewer sees as an admin.
func showInvitations(groups []account.SeenGroup, viewerID string, invitations []query.SeenInvitationsRow) {
	for _, i := range invitations {
		n := slices.IndexFunc(groups, func(g account.SeenGroup) bool { return g.ID == i.GroupID })
		if n < 0 {
			continue
		}
		invitation := account.GroupInvitation{
			GroupID: i.GroupID, MemberID: i.MemberID, ByID: i.ByID, Member: i.MemberName, By: i.ByName, Created: moment(i.Created), Expires: moment(i.Expires),
		}
		if i.MemberID == viewerID {
			groups[n].Invited = &invitation
		} else {
			groups[n].Invitations = append(groups[n].Invitations, invitation)
		}
	}
}

// LeaveGroup takes a member out of a group; ErrNotFound if it is not in,
// ErrLastAdmin if an org would be left without an admin who can run it. An open
// group ends with its last member.
func (db *DB) LeaveGroup(ctx context.Context, groupID, memberID string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := spare(ctx, q, groupID, memberID); err != nil {
			return nil, err
		}
		if err := one(q.DeleteGroupMember(ctx, groupID, memberID)); err != nil {
			return nil, err
		}
		left, err := q.GroupSize(ctx, groupID)
		if err == nil && left == 0 {
			err = end(ctx, q, groupID)
		}
		return changed(fleet.GroupChanged, groupID), err
	})
	return db.told(err, "leave group %q", groupID)
}

// spare refuses to do without a member who is an org's last admin.
func spare(ctx context.Context, q *query.Queries, groupID, memberID string) error {
	kind, err := q.AdminKind(ctx, groupID, memberID)
	if err == sql.ErrNoRows || err == nil && kind != string(account.GroupOrg) {
		return nil
	}
	if err != nil {
		return err
	}
	others, err := q.OtherAdmins(ctx, groupID, memberID)
	if err == nil && others == 0 {
		err = account.ErrLastAdmin
	}
	return err
}

// ExpelFromGroup lets an org's admin take a member out, or withdraw the member's
// invitation; ErrNotFound if there is neither, ErrLastAdmin if it is the admin and
// the last one.
func (db *DB) ExpelFromGroup(ctx context.Context, adminID, groupID, memberID string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := runs(ctx, q, adminID, groupID); err != nil {
			return nil, err
		}
		if err := spare(ctx, q, groupID, memberID); err != nil {
			return nil, err
		}
		return depart(ctx, q, groupID, memberID)
	})
	return db.told(err, "remove member %q from group %q", memberID, groupID)
}

// MakeAdmin lets an org's admin make a member of it another.
func (db *DB) MakeAdmin(ctx context.Context, adminID, groupID, memberID string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := runs(ctx, q, adminID, groupID); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), one(q.SetGroupAdmin(ctx, groupID, memberID, true))
	})
	return db.told(err, "make member %q an admin of group %q", memberID, groupID)
}

// DropAdmin lets an org's admin take an admin's role away, the own one too;
// ErrLastAdmin if nobody else could run it.
func (db *DB) DropAdmin(ctx context.Context, adminID, groupID, memberID string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := runs(ctx, q, adminID, groupID); err != nil {
			return nil, err
		}
		if err := spare(ctx, q, groupID, memberID); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), one(q.SetGroupAdmin(ctx, groupID, memberID, false))
	})
	return db.told(err, "make member %q no admin of group %q", memberID, groupID)
}

// runs checks that the member is an admin of the org.
func runs(ctx context.Context, q *query.Queries, adminID, groupID string) error {
	kind, err := q.AdminKind(ctx, groupID, adminID)
	if err == nil && kind != string(account.GroupOrg) {
		err = sql.ErrNoRows
	}
	return err
}

// EndGroup lets an admin of a group, of either kind, end it for everybody.
func (db *DB) EndGroup(ctx context.Context, adminID, groupID string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if _, err := q.AdminKind(ctx, groupID, adminID); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), end(ctx, q, groupID)
	})
	return db.told(err, "end group %q", groupID)
}

// end takes out the group with all that belongs to it.
func end(ctx context.Context, q *query.Queries, groupID string) error {
	for _, take := range []func(context.Context, string) error{q.DeleteKeepOuts, q.DeleteGroupLimits, q.DeleteInvitations, q.DeleteJoins, q.DeleteGroupMembers} {
		if err := take(ctx, groupID); err != nil {
			return err
		}
	}
	return one(q.DeleteGroup(ctx, groupID))
}

// OwnMachine is the owner's live machine of that id.
func (db *DB) OwnMachine(ctx context.Context, ownerID, id string) (account.Machine, error) {
	row, err := db.query.OwnMachine(ctx, id, ownerID)
	if err != nil {
		return account.Machine{}, db.told(err, "read machine %q", id)
	}
	return machine(row), nil
}

// KeepOutOwn keeps the owner's machine out of a group, or lets
// it in again; doing either twice is the same as once.
func (db *DB) KeepOutOwn(ctx context.Context, ownerID, groupID, machineID string, out bool) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if _, err := q.OwnMachine(ctx, machineID, ownerID); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), keepOut(ctx, q, groupID, machineID, out)
	})
	return db.told(err, "change what machine %q is to group %q", machineID, groupID)
}

// KeepOutOfAll keeps the owner's machine out of every group, or lets it into
// those again that it is not kept out of one by one.
func (db *DB) KeepOutOfAll(ctx context.Context, ownerID, machineID string, out bool) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.MachineChanged, machineID), one(q.SetKeptOut(ctx, machineID, ownerID, out))
	})
	return db.told(err, "change what machine %q is to groups", machineID)
}
