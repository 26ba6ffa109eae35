package store

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// The methods below take the member who makes a change. In the change's transaction they
// check that the member may make it, and return ErrNotFound if not.

// SeenGroups returns the groups that the viewer may see, oldest first, or only the one
// with exactly that name. It neither includes nor counts disabled members and expired
// invitations.
func (db *DB) SeenGroups(ctx context.Context, viewerID, name string, now time.Time) ([]account.SeenGroup, error) {
	if err := checkText(name); err != nil {
		return nil, db.wrap(err, "list the groups")
	}
	var groups []account.SeenGroup
	err := db.view(ctx, func(q *query.Queries) error {
		rows, err := q.SeenGroups(ctx, viewerID, millis(now), name)
		invitations, err1 := q.SeenInvitations(ctx, viewerID, millis(now))
		fellows, err2 := q.FellowMembers(ctx, viewerID)
		rules, err3 := q.GroupMachinesSeen(ctx, viewerID)
		keepOuts, err4 := q.KeepOutsBy(ctx, viewerID)
		limits, err5 := q.GroupLimitsBy(ctx, viewerID)
		groups = seenGroups(rows, fellows, keepOuts, rules, limits)
		addInvitations(groups, viewerID, invitations)
		return cmp.Or(err, err1, err2, err3, err4, err5)
	}, "list the groups that member %q sees", viewerID)
	return groups, err
}

func seenGroups(
	rows []query.SeenGroupsRow, fellows []query.FellowMembersRow, keepOuts []query.KeepOutsByRow,
	rules []query.GroupMachinesSeenRow, limits []query.GroupLimit,
) []account.SeenGroup {
	groups := make([]account.SeenGroup, len(rows))
	byID := make(map[string]*account.SeenGroup, len(rows)) // those that the viewer belongs to
	for i, row := range rows {
		groups[i] = account.SeenGroup{
			ID: row.Group.ID, Name: row.Group.Name, Kind: account.GroupKind(row.Group.Kind), Created: timeOf(row.Group.Created),
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
	for _, r := range rules {
		if g := byID[r.GroupID]; g != nil {
			g.Machines = append(g.Machines, account.GroupMachine{Owner: r.Owner, Machine: r.Machine, Rule: account.MachineRule(r.Rule)})
		}
	}
	for _, l := range limits {
		if g := byID[l.GroupID]; g != nil {
			g.Limits = groupLimits(l)
		}
	}
	return groups
}

// addInvitations adds invitations to their groups: the viewer's own as Invited, and those
// that the viewer sees as an admin as Invitations.
func addInvitations(groups []account.SeenGroup, viewerID string, invitations []query.SeenInvitationsRow) {
	for _, i := range invitations {
		n := slices.IndexFunc(groups, func(g account.SeenGroup) bool { return g.ID == i.GroupID })
		if n < 0 {
			continue
		}
		invitation := account.GroupInvitation{
			GroupID: i.GroupID, MemberID: i.MemberID, ByID: i.ByID, Member: i.MemberName, By: i.ByName, Created: timeOf(i.Created), Expires: timeOf(i.Expires),
		}
		if i.MemberID == viewerID {
			groups[n].Invited = &invitation
		} else {
			groups[n].Invitations = append(groups[n].Invitations, invitation)
		}
	}
}

// LeaveGroup removes a member from a group; ErrNotFound if the member is not in it,
// ErrLastAdmin if the member is an org's last enabled admin. It deletes an open group
// when the last member leaves.
func (db *DB) LeaveGroup(ctx context.Context, groupID, memberID string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := checkOtherAdmin(ctx, q, groupID, memberID); err != nil {
			return nil, err
		}
		if err := oneRow(q.DeleteGroupMember(ctx, groupID, memberID)); err != nil {
			return nil, err
		}
		left, err := q.GroupSize(ctx, groupID)
		if err == nil && left == 0 {
			err = deleteGroup(ctx, q, groupID)
		}
		return changed(fleet.GroupChanged, groupID), err
	}, "leave group %q", groupID)
}

// checkOtherAdmin returns ErrLastAdmin if the member is an org's last enabled admin.
func checkOtherAdmin(ctx context.Context, q *query.Queries, groupID, memberID string) error {
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

// ExpelFromGroup removes a member from an org, or withdraws the member's invitation, on
// behalf of one of its admins; ErrNotFound if there is neither, ErrLastAdmin if the
// member is the last admin.
func (db *DB) ExpelFromGroup(ctx context.Context, adminID, groupID, memberID string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := checkAdmin(ctx, q, adminID, groupID); err != nil {
			return nil, err
		}
		if err := checkOtherAdmin(ctx, q, groupID, memberID); err != nil {
			return nil, err
		}
		return removeFromGroup(ctx, q, groupID, memberID)
	}, "remove member %q from group %q", memberID, groupID)
}

// MakeAdmin makes a member of an org an admin, on behalf of one of its admins.
func (db *DB) MakeAdmin(ctx context.Context, adminID, groupID, memberID string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := checkAdmin(ctx, q, adminID, groupID); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), oneRow(q.SetGroupAdmin(ctx, groupID, memberID, true))
	}, "make member %q an admin of group %q", memberID, groupID)
}

// NameAdmin makes a member of an org an admin, on behalf of the hub's operator. It is for
// orgs whose admins are all disabled; ErrExists if there is an enabled admin.
func (db *DB) NameAdmin(ctx context.Context, groupID, memberID string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		group, err := q.GroupByID(ctx, groupID)
		if err == nil && group.Kind != string(account.GroupOrg) {
			err = sql.ErrNoRows
		}
		if err != nil {
			return nil, err
		}
		admins, err := q.OtherAdmins(ctx, groupID, "")
		if err == nil && admins > 0 {
			err = ErrExists
		}
		if err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), oneRow(q.SetGroupAdmin(ctx, groupID, memberID, true))
	}, "make member %q an admin of group %q", memberID, groupID)
}

// DropAdmin takes the role of admin from a member of an org, on behalf of one of its
// admins, who may be the same member. ErrLastAdmin if there is no other.
func (db *DB) DropAdmin(ctx context.Context, adminID, groupID, memberID string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := checkAdmin(ctx, q, adminID, groupID); err != nil {
			return nil, err
		}
		if err := checkOtherAdmin(ctx, q, groupID, memberID); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), oneRow(q.SetGroupAdmin(ctx, groupID, memberID, false))
	}, "make member %q no admin of group %q", memberID, groupID)
}

// checkAdmin returns sql.ErrNoRows if the member is not an admin of the org.
func checkAdmin(ctx context.Context, q *query.Queries, adminID, groupID string) error {
	kind, err := q.AdminKind(ctx, groupID, adminID)
	if err == nil && kind != string(account.GroupOrg) {
		err = sql.ErrNoRows
	}
	return err
}

// EndGroup deletes a group of either kind, on behalf of one of its admins.
func (db *DB) EndGroup(ctx context.Context, adminID, groupID string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if _, err := q.AdminKind(ctx, groupID, adminID); err != nil {
			return nil, err
		}
		return changed(fleet.GroupChanged, groupID), deleteGroup(ctx, q, groupID)
	}, "end group %q", groupID)
}

// deleteGroup deletes a group and everything that belongs to it.
func deleteGroup(ctx context.Context, q *query.Queries, groupID string) error {
	for _, remove := range []func(context.Context, string) error{q.DeleteKeepOuts, q.DeleteGroupMachines, q.DeleteGroupLimits, q.DeleteInvitations, q.DeleteJoins, q.DeleteGroupMembers} {
		if err := remove(ctx, groupID); err != nil {
			return err
		}
	}
	return oneRow(q.DeleteGroup(ctx, groupID))
}

// OwnMachine returns a live machine of the owner.
func (db *DB) OwnMachine(ctx context.Context, ownerID, id string) (account.Machine, error) {
	row, err := db.query.OwnMachine(ctx, id, ownerID)
	return machine(row.Machine, row.OwnerName), db.wrap(err, "read machine %q", id)
}

// KeepOutOwn keeps the owner's machine out of a group, or lets it in again. It is
// idempotent.
func (db *DB) KeepOutOwn(ctx context.Context, ownerID, groupID, machineID string, out bool) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if _, err := q.OwnMachine(ctx, machineID, ownerID); err != nil {
			return nil, err
		}
		set := q.DeleteKeepOut
		if out {
			set = q.InsertKeepOut
		}
		return changed(fleet.GroupChanged, groupID), set(ctx, groupID, machineID)
	}, "change what machine %q is to group %q", machineID, groupID)
}

// SetGroupMachine sets the decision of a group's admin about a member's machine.
// ErrNotFound if adminID is not an admin of the group, or the machine does not belong to
// a member.
func (db *DB) SetGroupMachine(ctx context.Context, adminID, groupID, machineID string, rule account.MachineRule) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if _, err := q.AdminKind(ctx, groupID, adminID); err != nil {
			return nil, err
		}
		if _, err := q.MachineInGroup(ctx, groupID, machineID); err != nil {
			return nil, err
		}
		if rule == account.NoRule {
			return changed(fleet.GroupChanged, groupID), q.DeleteGroupMachine(ctx, groupID, machineID)
		}
		return changed(fleet.GroupChanged, groupID), q.PutGroupMachine(ctx, groupID, machineID, string(rule))
	}, "decide on machine %q in group %q", machineID, groupID)
}

// KeepOutOfAll keeps the owner's machine out of every group, or lets it into all
// that KeepOutOwn does not keep it out of.
func (db *DB) KeepOutOfAll(ctx context.Context, ownerID, machineID string, out bool) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.MachineChanged, machineID), oneRow(q.SetKeptOut(ctx, machineID, ownerID, out))
	}, "change what machine %q is to groups", machineID)
}
