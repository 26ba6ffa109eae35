package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// keepGrants is how long an expired request is kept, so that its device can be notified.
const keepGrants = time.Hour

// CreateGrant adds a request that waits for approval; ErrExists if another one has
// its user code.
func (db *DB) CreateGrant(ctx context.Context, g account.Grant) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := checkText(g.ID, g.UserCode, g.Name, g.Region, g.Client, g.Address); err != nil {
			return err
		}
		if err := q.PruneGrants(ctx, millis(g.Created.Add(-keepGrants))); err != nil {
			return err
		}
		return q.InsertGrant(ctx, query.InsertGrantParams{
			ID: g.ID, Hash: g.Hash[:], UserCode: g.UserCode, Kind: string(g.Kind), Name: g.Name, Reach: string(g.Reach), Region: g.Region,
			Client: g.Client, Address: g.Address, Created: millis(g.Created), Expires: millis(g.Expires), KeyExpires: millis(g.KeyExpires), Manage: g.Manage,
			PerDay: g.PerDay,
		})
	}, "create a request for approval")
}

// WaitingGrant returns the pending request with that user code; ErrNotFound if there is
// none.
func (db *DB) WaitingGrant(ctx context.Context, userCode string, now time.Time) (account.Grant, error) {
	if err := checkText(userCode); err != nil {
		return account.Grant{}, db.wrap(sql.ErrNoRows, "read a request for approval")
	}
	row, err := db.query.GrantByUserCode(ctx, userCode, millis(now))
	return grant(row), db.wrap(err, "read a request for approval")
}

// WaitingGrants returns all pending requests, oldest first.
func (db *DB) WaitingGrants(ctx context.Context, now time.Time) ([]account.Grant, error) {
	rows, err := db.query.WaitingGrants(ctx, millis(now))
	return convert(rows, grant), db.wrap(err, "list the requests for approval")
}

// DecideGrant approves or denies a pending request for a member. Of concurrent calls one
// succeeds. ErrNotFound if the request is not pending.
func (db *DB) DecideGrant(ctx context.Context, userCode string, state account.GrantState, memberID string, now time.Time) (account.Grant, error) {
	var row query.DeviceGrant
	err := db.transact(ctx, func(q *query.Queries) (err error) {
		if err = checkText(userCode); err != nil {
			return sql.ErrNoRows
		}
		row, err = q.DecideGrant(ctx, userCode, string(state), memberID, millis(now))
		return err
	}, "decide a request for approval")
	return grant(row), err
}

// Grant returns the request whose device code has that SHA-256, in any state.
func (db *DB) Grant(ctx context.Context, hash [32]byte) (account.Grant, error) {
	row, err := db.query.GrantByHash(ctx, hash[:])
	return grant(row), db.wrap(checkHash(err, row.Hash, hash), "read a request by its device code")
}

// RedeemGrant creates the machine or key of an approved request, with the request's name,
// for the member who approved it. As with RedeemLoginToken, of concurrent calls one
// succeeds, and if one fails the request stays approved. ErrExists if the member has a
// machine with that name.
func (db *DB) RedeemGrant(ctx context.Context, hash [32]byte, m account.Machine, k account.Key, now time.Time) (account.Member, error) {
	var whose query.Member
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		g, err := q.UseGrant(ctx, hash[:], millis(now))
		if err = checkHash(err, g.Hash, hash); err != nil {
			return nil, err
		}
		if whose, err = enabledMember(ctx, q, g.MemberID); err != nil {
			return nil, err
		}
		if account.GrantKind(g.Kind) == account.GrantMachine {
			m.OwnerID = whose.ID
			return changed(fleet.MachineChanged, m.ID), insertMachine(ctx, q, m)
		}
		k.MemberID, k.Name, k.Reach, k.Manage, k.Expires, k.PerDay = whose.ID, g.Name, account.Reach(g.Reach), g.Manage, timeOf(g.KeyExpires), g.PerDay
		return changed(fleet.KeyChanged, k.ID), insertKey(ctx, q, k)
	}, "redeem a request")
	return member(whose), err
}

func grant(row query.DeviceGrant) account.Grant {
	return account.Grant{
		ID: row.ID, Hash: hashOf(row.Hash), UserCode: row.UserCode, Kind: account.GrantKind(row.Kind), Name: row.Name,
		Reach: account.Reach(row.Reach), Region: row.Region, Client: row.Client, Address: row.Address, State: account.GrantState(row.State),
		MemberID: row.MemberID, Created: timeOf(row.Created), Expires: timeOf(row.Expires), KeyExpires: timeOf(row.KeyExpires), Manage: row.Manage,
		PerDay: row.PerDay,
	}
}
