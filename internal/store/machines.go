package store

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// CreateMachine adds a machine; ErrExists if its owner has a live machine with that name,
// ErrNotFound if there is no such owner.
func (db *DB) CreateMachine(ctx context.Context, m account.Machine) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.MachineChanged, m.ID), insertMachine(ctx, q, m)
	}, "create machine %q", m.Name)
}

// MachineByHash returns the machine whose credential has that SHA-256, and its owner;
// ErrNotFound if there is none, it is revoked, or its owner is disabled.
func (db *DB) MachineByHash(ctx context.Context, hash [32]byte) (account.Machine, account.Member, error) {
	row, err := db.query.MachineByHash(ctx, hash[:])
	err = checkHash(err, row.Machine.Hash, hash)
	return machine(row.Machine, row.Member.Name), member(row.Member), db.wrap(err, "read a machine by its credential's hash")
}

// Machines returns every machine of the owner, or of all owners if ownerID is empty,
// oldest first. Revoked ones are included.
func (db *DB) Machines(ctx context.Context, ownerID string) ([]account.Machine, error) {
	if ownerID == "" {
		rows, err := db.query.Machines(ctx)
		read := func(row query.MachinesRow) account.Machine { return machine(row.Machine, row.OwnerName) }
		return convert(rows, read), db.wrap(err, "list the machines")
	}
	rows, err := db.query.MachinesOf(ctx, ownerID)
	read := func(row query.MachinesOfRow) account.Machine { return machine(row.Machine, row.OwnerName) }
	return convert(rows, read), db.wrap(err, "list the machines of member %q", ownerID)
}

// CountMachines returns the number of machines that are not revoked.
func (db *DB) CountMachines(ctx context.Context) (int, error) {
	n, err := db.query.CountMachines(ctx)
	return int(n), db.wrap(err, "count the machines")
}

// ListMachines returns all machines with part in their own or their owner's name, newest
// first, including revoked ones, without their credentials and offers. The case of ASCII
// characters is ignored.
func (db *DB) ListMachines(ctx context.Context, part string) ([]account.Machine, error) {
	if err := checkText(part); err != nil {
		return nil, db.wrap(err, "list machines")
	}
	rows, err := db.query.ListMachines(ctx, likePattern(part))
	return convert(rows, func(r query.ListMachinesRow) account.Machine {
		return account.Machine{ID: r.ID, Name: r.Name, OwnerName: r.OwnerName, Created: timeOf(r.Created), LastSeen: timeOf(r.LastSeen), Revoked: timeOf(r.Revoked)}
	}), db.wrap(err, "list machines")
}

// ActiveMachine returns one machine that may connect; ErrNotFound if it is revoked or
// its owner is disabled.
func (db *DB) ActiveMachine(ctx context.Context, id string) (account.Machine, error) {
	row, err := db.query.ActiveMachine(ctx, id)
	return machine(row.Machine, row.OwnerName), db.wrap(err, "read machine %q", id)
}

// RenameMachine renames a live machine of the owner; ErrExists if the owner has another
// with that name.
func (db *DB) RenameMachine(ctx context.Context, ownerID, id, name string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := checkText(name); err != nil {
			return nil, err
		}
		return changed(fleet.MachineChanged, id), oneRow(q.RenameMachine(ctx, id, ownerID, name))
	}, "rename machine %q of member %q", id, ownerID)
}

// RevokeMachine revokes a machine's credential and frees its name; ErrNotFound if it
// is not live.
func (db *DB) RevokeMachine(ctx context.Context, id string, now time.Time) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.MachineChanged, id), oneRow(q.RevokeMachine(ctx, id, millis(now)))
	}, "revoke machine %q", id)
}

// ShowClass sets whether others see the sizes of the GPUs and the memory of a live machine
// of the owner; ErrNotFound if there is no such machine.
func (db *DB) ShowClass(ctx context.Context, ownerID, id string, shown bool) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.MachineChanged, id), oneRow(q.ShowClass(ctx, id, ownerID, shown))
	}, "change what others see of machine %q", id)
}

// NextGeneration returns the number of a new tunnel of the machine. It is greater than
// those of the machine's earlier tunnels to any hub, and at least the current time in
// milliseconds, so that a database that lost recent writes does not return the same
// numbers again. ErrNotFound if the machine may not connect.
func (db *DB) NextGeneration(ctx context.Context, id string) (int64, error) {
	var generation int64
	err := db.transact(ctx, func(q *query.Queries) (err error) {
		generation, err = q.NextGeneration(ctx, id, db.Now().UnixMilli())
		return err
	}, "number a tunnel of machine %q", id)
	return generation, err
}

// SaveOffers stores a machine's latest advertisement, a JSON document, and when the
// machine was last seen. Routing uses the advertisement while the machine is offline.
func (db *DB) SaveOffers(ctx context.Context, id string, offers []byte, seen time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		return oneRow(q.SaveOffers(ctx, id, offers, millis(seen)))
	}, "keep the offers of machine %q", id)
}

// CreateLoginToken adds a token; ErrNotFound if there is no such member.
func (db *DB) CreateLoginToken(ctx context.Context, t account.LoginToken) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := checkText(t.ID, t.Name); err != nil {
			return err
		}
		return q.InsertLoginToken(ctx, query.InsertLoginTokenParams{
			ID: t.ID, MemberID: t.MemberID, Name: t.Name, Hash: t.Hash[:],
			Created: millis(t.Created), Expires: millis(t.Expires), Used: millis(t.Used),
		})
	}, "create a login token")
}

// RedeemLoginToken adds a machine for the member of a login token, given the SHA-256 of
// the token's secret. If the token has a name, that is the machine's name. One
// transaction uses the token and adds the machine: of concurrent calls one succeeds, and
// a call that fails does not use the token. ErrExists if the member has a live machine
// with that name; ErrNotFound if the token is wrong, used or expired, or its member is
// disabled.
func (db *DB) RedeemLoginToken(ctx context.Context, hash [32]byte, m account.Machine, now time.Time) (account.Machine, account.Member, error) {
	var owner account.Member
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		token, err := q.RedeemLoginToken(ctx, hash[:], millis(now))
		if err = checkHash(err, token.Hash, hash); err != nil {
			return nil, err
		}
		row, err := enabledMember(ctx, q, token.MemberID)
		if err != nil {
			return nil, err
		}
		owner = member(row)
		m.OwnerID, m.OwnerName, m.Name = owner.ID, owner.Name, cmp.Or(token.Name, m.Name)
		return changed(fleet.MachineChanged, m.ID), insertMachine(ctx, q, m)
	}, "redeem the login token")
	return m, owner, err
}

func insertMachine(ctx context.Context, q *query.Queries, m account.Machine) error {
	if err := checkText(m.ID, m.Name, m.Region, m.LastFour); err != nil {
		return err
	}
	err := q.InsertMachine(ctx, query.InsertMachineParams{
		ID: m.ID, OwnerID: m.OwnerID, Name: m.Name, Region: m.Region, Hash: m.Hash[:], LastFour: m.LastFour,
		Created: millis(m.Created), LastSeen: millis(m.LastSeen), Revoked: millis(m.Revoked),
		Offers: m.Offers, Generation: m.Generation, KeptOut: m.KeptOut,
	})
	if err != nil {
		err = fmt.Errorf("machine %q: %w", m.Name, err)
	}
	return err
}

func machine(row query.Machine, owner string) account.Machine {
	return account.Machine{
		ID: row.ID, OwnerID: row.OwnerID, OwnerName: owner, Name: row.Name, Region: row.Region,
		Hash: hashOf(row.Hash), LastFour: row.LastFour,
		Created: timeOf(row.Created), LastSeen: timeOf(row.LastSeen), Revoked: timeOf(row.Revoked),
		Offers: row.Offers, Generation: row.Generation, KeptOut: row.KeptOut,
		ShowsClass: row.ShowsClass,
	}
}
