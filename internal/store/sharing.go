package store

import (
	"context"
	"slices"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// AddShare adds a share; ErrExists if its owner shares with that member already,
// ErrNotFound if one of them is no member, ErrInvalid if they are the same.
func (db *DB) AddShare(ctx context.Context, s account.Share) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := limitText(s.Limits, s.ID); err != nil {
			return nil, err
		}
		return changed(fleet.SharesChanged, s.MemberID), q.InsertShare(ctx, query.InsertShareParams{
			ID: s.ID, OwnerID: s.OwnerID, MemberID: s.MemberID,
			Models: s.Models, Hours: s.Hours, Concurrent: s.Concurrent, PerDay: s.PerDay, Created: millis(s.Created),
		})
	})
	return db.told(err, "share %q's machines with member %q", s.OwnerID, s.MemberID)
}

// PutShare makes a share without limits but those of the change, or makes the
// change to the one of that pair; the share as it is then. ErrNotFound if one of
// the two is no member, ErrInvalid if they are the same.
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
		if err != nil {
			return nil, err
		}
		s = share(row)
		return changed(fleet.SharesChanged, s.MemberID), nil
	})
	return s, db.told(err, "share %q's machines with member %q", s.OwnerID, s.MemberID)
}

// RemoveShare ends the share of that pair; ErrNotFound if there is none.
func (db *DB) RemoveShare(ctx context.Context, ownerID, memberID string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SharesChanged, memberID), one(q.DeleteShare(ctx, ownerID, memberID))
	})
	return db.told(err, "end the share of %q's machines with member %q", ownerID, memberID)
}

// Shares is every share from or to the member, the first first, whoever of the
// two is disabled.
func (db *DB) Shares(ctx context.Context, memberID string) ([]account.Share, error) {
	rows, err := db.query.SharesOf(ctx, memberID)
	return each(rows, share), db.told(err, "list the shares of member %q", memberID)
}

// ShareList is every share that is in force: neither member is disabled.
func (db *DB) ShareList(ctx context.Context) ([]account.Share, error) {
	rows, err := db.query.LiveShares(ctx)
	return each(rows, share), db.told(err, "list the shares")
}

// SharesTo is every share in force to the member.
func (db *DB) SharesTo(ctx context.Context, memberID string) ([]account.Share, error) {
	rows, err := db.query.LiveSharesTo(ctx, memberID)
	return each(rows, share), db.told(err, "list the shares to member %q", memberID)
}

// NamedShares is every share from or to the member with both names, the first
// first, whoever of the two is disabled.
func (db *DB) NamedShares(ctx context.Context, memberID string) ([]account.NamedShare, error) {
	rows, err := db.query.NamedShares(ctx, memberID)
	return each(rows, func(row query.NamedSharesRow) account.NamedShare {
		return account.NamedShare{Share: share(row.Share), Owner: row.Owner, Member: row.Member}
	}), db.told(err, "list the shares of member %q", memberID)
}

func share(row query.Share) account.Share {
	return account.Share{
		ID: row.ID, OwnerID: row.OwnerID, MemberID: row.MemberID, Created: moment(row.Created),
		Limits: account.Limits{Models: row.Models, Hours: row.Hours, Concurrent: row.Concurrent, PerDay: row.PerDay},
	}
}

// limitText checks the text of limits, and other text, as text does.
func limitText(l account.Limits, others ...string) error {
	return text(slices.Concat(others, []string{l.Hours}, l.Models)...)
}

// CreateGroup adds a group with the members and keep-outs it comes with;
// ErrExists if the name is taken.
func (db *DB) CreateGroup(ctx context.Context, g account.Group) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := text(g.ID, g.Name); err != nil {
			return nil, err
		}
		if err := q.InsertGroup(ctx, g.ID, g.Name, string(g.Kind), millis(g.Created)); err != nil {
			return nil, err
		}
		for _, m := range g.Members {
			if err := q.InsertGroupMember(ctx, g.ID, m.MemberID, m.Admin, millis(g.Created)-1); err != nil {
				return nil, err
			}
		}
		for _, id := range g.KeptOut {
			if err := q.InsertKeepOut(ctx, g.ID, id); err != nil {
				return nil, err
			}
		}
		for _, i := range g.Invited {
			if err := keepInvitation(ctx, q, i); err != nil {
				return nil, err
			}
		}
		return changed(fleet.GroupChanged, g.ID), nil
	})
	return db.told(err, "create group %q", g.Name)
}

// Group is the group with that id and all its members, disabled ones too.
func (db *DB) Group(ctx context.Context, id string) (account.Group, error) {
	return db.group(ctx, id, true)
}

// GroupByID is the group as routing sees it: without disabled members.
func (db *DB) GroupByID(ctx context.Context, id string) (account.Group, error) {
	return db.group(ctx, id, false)
}

// GroupByName is the group with exactly that name and all its members, disabled
// ones too.
func (db *DB) GroupByName(ctx context.Context, name string) (account.Group, error) {
	if err := text(name); err != nil {
		return account.Group{}, db.told(err, "read a group by name")
	}
	row, err := db.query.GroupByName(ctx, name)
	if err != nil {
		return account.Group{}, db.told(err, "read group %q", name)
	}
	return db.group(ctx, row.ID, true)
}

// Groups is every group with all its members, disabled ones too; the first first.
func (db *DB) Groups(ctx context.Context) ([]account.Group, error) {
	return db.groups(ctx, true)
}

// GroupList is every group as routing sees it: without disabled members.
func (db *DB) GroupList(ctx context.Context) ([]account.Group, error) {
	return db.groups(ctx, false)
}

func (db *DB) group(ctx context.Context, id string, disabledToo bool) (account.Group, error) {
	var group account.Group
	err := db.view(ctx, func(q *query.Queries) error {
		row, err := q.GroupByID(ctx, id)
		if err != nil {
			return err
		}
		members, err := q.GroupMembersOf(ctx, id, disabledToo)
		if err != nil {
			return err
		}
		keepOuts, err := q.KeepOutsOf(ctx, id)
		group = assemble([]query.Group{row}, members, keepOuts)[0]
		return err
	})
	return group, db.told(err, "read group %q", id)
}

func (db *DB) groups(ctx context.Context, disabledToo bool) ([]account.Group, error) {
	var groups []account.Group
	err := db.view(ctx, func(q *query.Queries) error {
		rows, err := q.Groups(ctx)
		if err != nil {
			return err
		}
		members, err := q.GroupMembers(ctx, disabledToo)
		if err != nil {
			return err
		}
		keepOuts, err := q.KeepOuts(ctx)
		groups = assemble(rows, members, keepOuts)
		return err
	})
	return groups, db.told(err, "list the groups")
}

// assemble puts members and keep-outs, in their order, into their groups.
func assemble(rows []query.Group, members []query.GroupMember, keepOuts []query.KeepOut) []account.Group {
	groups := make([]account.Group, len(rows))
	byID := make(map[string]*account.Group, len(rows))
	for i, row := range rows {
		groups[i] = account.Group{ID: row.ID, Name: row.Name, Kind: account.GroupKind(row.Kind), Created: moment(row.Created)}
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
	return groups
}

// RemoveGroupMember takes a member out of a group, or withdraws the member's
// invitation to it; ErrNotFound if there is neither. What it kept out stays noted,
// should it come back.
func (db *DB) RemoveGroupMember(ctx context.Context, groupID, memberID string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) { return depart(ctx, q, groupID, memberID) })
	return db.told(err, "remove member %q from group %q", memberID, groupID)
}

// keepOut keeps a machine out of a group, or lets it in again.
func keepOut(ctx context.Context, q *query.Queries, groupID, machineID string, out bool) error {
	if out {
		return q.InsertKeepOut(ctx, groupID, machineID)
	}
	return q.DeleteKeepOut(ctx, groupID, machineID)
}
