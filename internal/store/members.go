package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// CreateMember adds a member; ErrExists if the name is taken, ErrLooksTaken if it looks
// like another name.
func (db *DB) CreateMember(ctx context.Context, m account.Member) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := checkText(m.ID, m.Name); err != nil {
			return nil, err
		}
		return changed(fleet.MemberChanged, m.ID), insertMember(ctx, q, m)
	}, "create member %q", m.Name)
}

// Member returns the member with that id, disabled or not.
func (db *DB) Member(ctx context.Context, id string) (account.Member, error) {
	row, err := db.query.MemberByID(ctx, id)
	return member(row), db.wrap(err, "read member %q", id)
}

// MemberByName returns the member with exactly that name, disabled or not.
func (db *DB) MemberByName(ctx context.Context, name string) (account.Member, error) {
	if err := checkText(name); err != nil {
		return account.Member{}, db.wrap(err, "read a member by name")
	}
	row, err := db.query.MemberByName(ctx, name)
	return member(row), db.wrap(err, "read member %q", name)
}

// MemberWhoTypes returns the member whose name was typed, in capitals or not; names that
// differ in capitals alone are never given out. It compares by strings.ToLower, because
// attempts to sign in are limited for each strings.ToLower of the typed name; strings.EqualFold
// would accept further spellings, each with attempts of its own.
func (db *DB) MemberWhoTypes(ctx context.Context, name string) (account.Member, error) {
	found, err := db.MemberByName(ctx, name)
	if !errors.Is(err, ErrNotFound) {
		return found, err
	}
	small := strings.ToLower(name)
	row, err := db.query.MemberBySkeleton(ctx, account.Skeletons(name)[0])
	if err == nil && strings.ToLower(row.Name) != small { // it only looks like the typed one
		err = sql.ErrNoRows
	}
	return member(row), db.wrap(err, "read member %q", name)
}

// enabledMember returns the member with that id, or sql.ErrNoRows if it is disabled.
func enabledMember(ctx context.Context, q *query.Queries, id string) (query.Member, error) {
	row, err := q.MemberByID(ctx, id)
	if err == nil && row.Disabled {
		err = sql.ErrNoRows
	}
	return row, err
}

// Members returns every member, oldest first.
func (db *DB) Members(ctx context.Context) ([]account.Member, error) {
	rows, err := db.query.Members(ctx)
	return convert(rows, member), db.wrap(err, "list the members")
}

// CountMembers returns the number of members, and of those that are disabled. Each of the
// words, at most account.MemberWords of them, is part of the names that count.
func (db *DB) CountMembers(ctx context.Context, words ...string) (all, disabled int, err error) {
	in, err := wordPatterns(words)
	if err != nil {
		return 0, 0, db.wrap(err, "count the members")
	}
	row, err := db.query.CountMembers(ctx, in[0], in[1], in[2], in[3])
	return int(row.Members), int(row.Disabled), db.wrap(err, "count the members")
}

// ListMembers returns a page of the members, each with what it last did.
func (db *DB) ListMembers(ctx context.Context, q account.MemberQuery) ([]account.MemberActivity, error) {
	in, err := wordPatterns(q.Words)
	if err != nil {
		return nil, db.wrap(err, "list members")
	}
	rows, err := db.query.ListMembers(ctx, query.ListMembersParams{
		Word1: in[0], Word2: in[1], Word3: in[2], Word4: in[3],
		State: q.State, Sort: q.Sort, Skip: int32(q.Skip), Most: int32(q.Most),
	})
	return convert(rows, func(r query.ListMembersRow) account.MemberActivity {
		if r.Active != 0 {
			r.Active = max(r.Active, r.Created) // the hour of a call begins before it
		}
		return account.MemberActivity{
			Member:   account.Member{ID: r.ID, Name: r.Name, Operator: r.Operator, Disabled: r.Disabled, Created: timeOf(r.Created)},
			Machines: int(r.Machines), Active: timeOf(r.Active),
		}
	}), db.wrap(err, "list members")
}

// wordPatterns returns the patterns of texts with the words; ErrInvalid if no text can have
// one.
func wordPatterns(words []string) (patterns [account.MemberWords]string, err error) {
	for i := range patterns {
		patterns[i] = likePattern("")
		if i < len(words) {
			patterns[i] = likePattern(words[i])
		}
	}
	return patterns, checkText(words...)
}

var errNoOperatorLeft = fmt.Errorf("%w: no operator would be left", ErrInvalid)

// SetMemberDisabled disables or enables a member. It records a change for each record
// that appears or disappears with the member: its keys and machines, the shares from and
// to it, and its groups (spec/api.md#within-5s). It returns ErrInvalid if the last
// enabled operator of the hub would be disabled.
func (db *DB) SetMemberDisabled(ctx context.Context, id string, disabled bool) error {
	verb := "enable"
	if disabled {
		verb = "disable"
	}
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) { // serialized, so that each sees who is left
		before, err := q.CountOperators(ctx)
		if err == nil {
			err = oneRow(q.SetMemberDisabled(ctx, id, disabled))
		}
		if err != nil {
			return nil, err
		}
		left, err := q.CountOperators(ctx)
		if err == nil && before > 0 && left == 0 {
			err = errNoOperatorLeft
		}
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
	}, "%s member %q", verb, id)
}

// SetMemberOperator gives a member the role of operator or takes it away; ErrInvalid if
// no enabled operator would be left.
func (db *DB) SetMemberOperator(ctx context.Context, id string, operator bool) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) { // serialized, so that each sees who is left
		if err := oneRow(q.SetMemberOperator(ctx, id, operator)); err != nil {
			return nil, err
		}
		if !operator {
			if err := q.DeleteNoticesOfKind(ctx, id, string(account.NoticeBackup)); err != nil {
				return nil, err
			}
		}
		left, err := q.CountOperators(ctx)
		if err == nil && left == 0 {
			err = errNoOperatorLeft
		}
		return changed(fleet.MemberChanged, id), err
	}, "set the role of member %q", id)
}

func member(row query.Member) account.Member {
	return account.Member{
		ID: row.ID, Name: row.Name, Operator: row.Operator, Disabled: row.Disabled, Created: timeOf(row.Created),
	}
}

// insertMember adds a member; ErrLooksTaken if the name looks like another one.
func insertMember(ctx context.Context, q *query.Queries, m account.Member) error {
	row := query.InsertMemberParams{ID: m.ID, Name: m.Name, Operator: m.Operator, Disabled: m.Disabled, Created: millis(m.Created)}
	if err := q.InsertMember(ctx, row); err != nil {
		return err
	}
	return claim(ctx, q.InsertMemberSkeleton, m.ID, m.Name)
}

// claim inserts the skeletons of a new name; ErrLooksTaken if another name has one of
// them.
func claim(ctx context.Context, insert func(ctx context.Context, skeleton, id string) (int64, error), id, name string) error {
	for _, skeleton := range account.Skeletons(name) {
		if n, err := insert(ctx, skeleton, id); err != nil {
			return err
		} else if n == 0 {
			return account.ErrLooksTaken
		}
	}
	return nil
}
