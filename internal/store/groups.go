package store

import (
	"cmp"
	"context"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// CreateGroup adds a group with its members, invitations and kept-out machines; ErrExists
// if the name is taken, ErrLooksTaken if it looks like another name, ErrTooMany if a
// member is in too many groups.
func (db *DB) CreateGroup(ctx context.Context, g account.Group) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := checkText(g.ID, g.Name); err != nil {
			return nil, err
		}
		if err := q.InsertGroup(ctx, g.ID, g.Name, string(g.Kind), millis(g.Created)); err != nil {
			return nil, err
		}
		if err := claim(ctx, q.InsertGroupSkeleton, g.ID, g.Name); err != nil {
			return nil, err
		}
		for _, m := range g.Members {
			if err := q.InsertGroupMember(ctx, g.ID, m.MemberID, m.Admin, millis(g.Created)-1); err != nil {
				return nil, err
			}
			if err := checkGroupsOf(ctx, q, m.MemberID); err != nil {
				return nil, err
			}
		}
		for _, id := range g.KeptOut {
			if err := q.InsertKeepOut(ctx, g.ID, id); err != nil {
				return nil, err
			}
		}
		for _, i := range g.Invited {
			if err := addInvitation(ctx, q, i); err != nil {
				return nil, err
			}
		}
		return changed(fleet.GroupChanged, g.ID), nil
	}, "create group %q", g.Name)
}

// GroupByID returns the group in the form that routing uses: without disabled members.
func (db *DB) GroupByID(ctx context.Context, id string) (account.Group, error) {
	return db.group(ctx, id, false)
}

// GroupByName returns the group with exactly that name and all its members, disabled
// ones included.
func (db *DB) GroupByName(ctx context.Context, name string) (account.Group, error) {
	if err := checkText(name); err != nil {
		return account.Group{}, db.wrap(err, "read a group by name")
	}
	row, err := db.query.GroupByName(ctx, name)
	if err != nil {
		return account.Group{}, db.wrap(err, "read group %q", name)
	}
	return db.group(ctx, row.ID, true)
}

// GroupList returns every group in the form that routing uses: without disabled members.
// The oldest is first.
func (db *DB) GroupList(ctx context.Context) ([]account.Group, error) {
	var groups []account.Group
	err := db.view(ctx, func(q *query.Queries) error {
		rows, err := q.Groups(ctx)
		if err != nil {
			return err
		}
		members, err1 := q.GroupMembers(ctx, false)
		keepOuts, err2 := q.KeepOuts(ctx)
		rules, err3 := q.GroupMachines(ctx)
		groups = assemble(rows, members, keepOuts, rules)
		return cmp.Or(err1, err2, err3)
	}, "list the groups")
	return groups, err
}

func (db *DB) group(ctx context.Context, id string, disabledToo bool) (account.Group, error) {
	var group account.Group
	err := db.view(ctx, func(q *query.Queries) error {
		row, err := q.GroupByID(ctx, id)
		if err != nil {
			return err
		}
		members, err1 := q.GroupMembersOf(ctx, id, disabledToo)
		keepOuts, err2 := q.KeepOutsOf(ctx, id)
		rules, err3 := q.GroupMachinesOf(ctx, id)
		group = assemble([]query.Group{row}, members, keepOuts, rules)[0]
		return cmp.Or(err1, err2, err3)
	}, "read group %q", id)
	return group, err
}

// assemble builds groups from their rows and the rows of their members, kept-out machines
// and admins' decisions about machines.
func assemble(rows []query.Group, members []query.GroupMember, keepOuts []query.KeepOut, rules []query.GroupMachine) []account.Group {
	groups := make([]account.Group, len(rows))
	byID := make(map[string]*account.Group, len(rows))
	for i, row := range rows {
		groups[i] = account.Group{ID: row.ID, Name: row.Name, Kind: account.GroupKind(row.Kind), Created: timeOf(row.Created)}
		byID[row.ID] = &groups[i]
	}
	for _, m := range members {
		g := byID[m.GroupID]
		g.Members = append(g.Members, account.GroupMember{MemberID: m.MemberID, Admin: m.Admin})
	}
	for _, k := range keepOuts {
		g := byID[k.GroupID]
		g.KeptOut = append(g.KeptOut, k.MachineID)
	}
	for _, r := range rules {
		g := byID[r.GroupID]
		if account.MachineRule(r.Rule) == account.MachinePinned {
			g.Pinned = append(g.Pinned, r.MachineID)
		} else {
			g.Excluded = append(g.Excluded, r.MachineID)
		}
	}
	return groups
}

// RemoveGroupMember removes a member from a group, or withdraws the member's invitation;
// ErrNotFound if there is neither. It keeps the record of the machines that the member
// kept out.
func (db *DB) RemoveGroupMember(ctx context.Context, groupID, memberID string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return removeFromGroup(ctx, q, groupID, memberID)
	}, "remove member %q from group %q", memberID, groupID)
}
