package store

import (
	"context"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// CreateMember adds a member; ErrExists if the name is taken.
func (db *DB) CreateMember(ctx context.Context, m account.Member) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := text(m.ID, m.Name); err != nil {
			return nil, err
		}
		row := query.InsertMemberParams{ID: m.ID, Name: m.Name, Operator: m.Operator, Disabled: m.Disabled, Created: millis(m.Created)}
		return changed(fleet.MemberChanged, m.ID), q.InsertMember(ctx, row)
	})
	return db.told(err, "create member %q", m.Name)
}

// Member is the member with that id, disabled or not.
func (db *DB) Member(ctx context.Context, id string) (account.Member, error) {
	row, err := db.query.MemberByID(ctx, id)
	return member(row), db.told(err, "read member %q", id)
}

// MemberByName is the member with exactly that name, disabled or not.
func (db *DB) MemberByName(ctx context.Context, name string) (account.Member, error) {
	if err := text(name); err != nil {
		return account.Member{}, db.told(err, "read a member by name")
	}
	row, err := db.query.MemberByName(ctx, name)
	return member(row), db.told(err, "read member %q", name)
}

// Members is every member, the first first.
func (db *DB) Members(ctx context.Context) ([]account.Member, error) {
	rows, err := db.query.Members(ctx)
	return each(rows, member), db.told(err, "list the members")
}

// CountMembers is how many members there are, and how many of them are disabled.
func (db *DB) CountMembers(ctx context.Context) (all, disabled int, err error) {
	row, err := db.query.CountMembers(ctx)
	return int(row.Members), int(row.Disabled), db.told(err, "count the members")
}

// MembersBefore is a page of the members, the newest first: at most so many from
// that place on, of those whose names hold part, whatever the case of ASCII letters.
func (db *DB) MembersBefore(ctx context.Context, from account.Place, part string, most int) ([]account.Member, error) {
	if err := text(part, from.ID); err != nil {
		return nil, db.told(err, "list members")
	}
	at, id := beginning(from)
	rows, err := db.query.MembersBefore(ctx, at, id, holding(part), int32(most))
	return each(rows, member), db.told(err, "list members")
}

// SetMemberDisabled shuts a member out, or lets it in again. Whatever appears or
// vanishes with it is noted as changed: its keys and machines, the shares from
// it and to it, its groups (decisions 7: in effect everywhere within 5 s).
func (db *DB) SetMemberDisabled(ctx context.Context, id string, disabled bool) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		err := one(q.SetMemberDisabled(ctx, id, disabled))
		if err != nil {
			return nil, err
		}
		facts, err := q.MemberFacts(ctx, id)
		if err != nil {
			return nil, err
		}
		changes := append(changed(fleet.MemberChanged, id), changed(fleet.SharesChanged, id)...)
		for _, fact := range facts {
			changes = append(changes, changed(fleet.ChangeKind(fact.Kind), fact.Subject)...)
		}
		return changes, nil
	})
	if disabled {
		return db.told(err, "disable member %q", id)
	}
	return db.told(err, "enable member %q", id)
}

func member(row query.Member) account.Member {
	return account.Member{
		ID: row.ID, Name: row.Name,
		Operator: row.Operator, Disabled: row.Disabled,
		Created: moment(row.Created),
	}
}

// What a database remembers about itself: names for Meta.
const (
	MetaHub    = "hub"    // the hub's id
	MetaRegion = "region" // the region of the hub that made the database
)

// Meta is what the database remembers under that name. The first value given
// for a name is kept for ever: whoever asks first decides, and every hub on the
// database, whatever it would have given, is told the same.
func (db *DB) Meta(ctx context.Context, name, first string) (string, error) {
	var kept string
	err := db.transact(ctx, func(q *query.Queries) error {
		err := text(name, first)
		if err != nil {
			return err
		}
		if err = q.KeepMeta(ctx, name, first); err != nil {
			return err
		}
		kept, err = q.Meta(ctx, name)
		return err
	})
	return kept, db.told(err, "read the database's own %s", name)
}
