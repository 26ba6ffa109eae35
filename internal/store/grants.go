package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// grantKept is how long a grant is told of as expired before it is forgotten.
const grantKept = time.Hour

// CreateGrant adds a request that waits for approval; ErrExists if another has
// its user code, which its caller then draws again.
func (db *DB) CreateGrant(ctx context.Context, g account.Grant) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := text(g.ID, g.UserCode, g.Name, g.Client, g.Address); err != nil {
			return err
		}
		if err := q.PruneGrants(ctx, millis(g.Created.Add(-grantKept))); err != nil {
			return err
		}
		return q.InsertGrant(ctx, query.InsertGrantParams{
			ID: g.ID, Hash: g.Hash[:], UserCode: g.UserCode, Kind: string(g.Kind), Name: g.Name, Reach: string(g.Reach),
			Client: g.Client, Address: g.Address, Created: millis(g.Created), Expires: millis(g.Expires),
		})
	})
	return db.told(err, "create a request for approval")
}

// WaitingGrant is the one with that user code while it waits, else ErrNotFound.
func (db *DB) WaitingGrant(ctx context.Context, userCode string, now time.Time) (account.Grant, error) {
	if err := text(userCode); err != nil {
		return account.Grant{}, db.told(sql.ErrNoRows, "read a request for approval")
	}
	row, err := db.query.GrantByUserCode(ctx, userCode, millis(now))
	if err != nil {
		return account.Grant{}, db.told(err, "read a request for approval")
	}
	return grant(row), nil
}

// WaitingGrants is every request that waits, the first first.
func (db *DB) WaitingGrants(ctx context.Context, now time.Time) ([]account.Grant, error) {
	rows, err := db.query.WaitingGrants(ctx, millis(now))
	return each(rows, grant), db.told(err, "list the requests for approval")
}

// DecideGrant approves or denies a waiting request in the name of a member:
// once, of any number who decide. ErrNotFound if it does not wait.
func (db *DB) DecideGrant(ctx context.Context, userCode string, state account.GrantState, memberID string, now time.Time) (account.Grant, error) {
	var row query.DeviceGrant
	err := db.transact(ctx, func(q *query.Queries) (err error) {
		if err = text(userCode); err != nil {
			return sql.ErrNoRows
		}
		row, err = q.DecideGrant(ctx, userCode, string(state), memberID, millis(now))
		return err
	})
	if err != nil {
		return account.Grant{}, db.told(err, "decide a request for approval")
	}
	return grant(row), nil
}

// Grant is the request whose device code has that SHA-256, in whatever state.
func (db *DB) Grant(ctx context.Context, hash [32]byte) (account.Grant, error) {
	row, err := db.query.GrantByHash(ctx, hash[:])
	if err == nil && !sameHash(row.Hash, hash) {
		err = sql.ErrNoRows
	}
	if err != nil {
		return account.Grant{}, db.told(err, "read a request by its device code")
	}
	return grant(row), nil
}

// RedeemGrant turns an approved request into what it asked for: the machine or
// the key given, of the member who approved, under the request's name. As with
// RedeemLoginToken, one of any number succeeds, and one that fails leaves the
// request approved; ErrExists says that the member has a machine of that name.
func (db *DB) RedeemGrant(ctx context.Context, hash [32]byte, m account.Machine, k account.Key, now time.Time) (account.Member, error) {
	var whose query.Member
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		g, err := q.UseGrant(ctx, hash[:], millis(now))
		if err != nil {
			return nil, err
		}
		if whose, err = q.MemberByID(ctx, g.MemberID); err != nil {
			return nil, err
		}
		if whose.Disabled || !sameHash(g.Hash, hash) {
			return nil, sql.ErrNoRows
		}
		if account.GrantKind(g.Kind) == account.GrantMachine {
			m.OwnerID = whose.ID
			return changed(fleet.MachineChanged, m.ID), insertMachine(ctx, q, m)
		}
		k.MemberID, k.Name, k.Reach = whose.ID, g.Name, account.Reach(g.Reach)
		return changed(fleet.KeyChanged, k.ID), insertKey(ctx, q, k)
	})
	return member(whose), db.told(err, "redeem a request")
}

func grant(row query.DeviceGrant) account.Grant {
	return account.Grant{
		ID: row.ID, Hash: [32]byte(row.Hash), UserCode: row.UserCode, Kind: account.GrantKind(row.Kind), Name: row.Name,
		Reach: account.Reach(row.Reach), Client: row.Client, Address: row.Address, State: account.GrantState(row.State),
		MemberID: row.MemberID, Created: moment(row.Created), Expires: moment(row.Expires),
	}
}

// RevokeOwnKey is RevokeKey for a key of the member's; another's is ErrNotFound.
func (db *DB) RevokeOwnKey(ctx context.Context, memberID, id string, now time.Time) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.KeyChanged, id), one(q.RevokeOwnKey(ctx, id, memberID, millis(now)))
	})
	return db.told(err, "revoke key %q of member %q", id, memberID)
}

// RenameMachine gives a live machine of the owner's another name; ErrExists if
// another of theirs has it.
func (db *DB) RenameMachine(ctx context.Context, ownerID, id, name string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := text(name); err != nil {
			return nil, err
		}
		return changed(fleet.MachineChanged, id), one(q.RenameMachine(ctx, id, ownerID, name))
	})
	return db.told(err, "rename machine %q of member %q", id, ownerID)
}

// StoriesOf is a page of the member's stories, the newest first: at most so many
// from that place on.
func (db *DB) StoriesOf(ctx context.Context, memberID string, from account.Place, most int) ([]account.Trace, error) {
	at, id := beginning(from)
	rows, err := db.query.StoriesOf(ctx, memberID, at, id, int32(most))
	stories := make([]account.Trace, len(rows))
	for i, row := range rows {
		stories[i].MemberID = memberID
		if err == nil {
			err = json.Unmarshal([]byte(row), &stories[i])
		}
	}
	if err != nil {
		err = fmt.Errorf("stories: %w", err)
	}
	return stories, db.told(err, "list the last calls of member %q", memberID)
}
