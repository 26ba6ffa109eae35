package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// CreateMachine adds a machine; ErrExists if its owner has a live one of that
// name, ErrNotFound if there is no such owner.
func (db *DB) CreateMachine(ctx context.Context, m account.Machine) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.MachineChanged, m.ID), insertMachine(ctx, q, m)
	})
	return db.told(err, "create machine %q", m.Name)
}

// MachineByHash is the machine whose credential has that SHA-256, and its owner.
// A wrong credential, a revoked one and one of a disabled member are ErrNotFound
// alike.
func (db *DB) MachineByHash(ctx context.Context, hash [32]byte) (account.Machine, account.Member, error) {
	row, err := db.query.MachineByHash(ctx, hash[:])
	if err == nil && !sameHash(row.Machine.Hash, hash) {
		err = sql.ErrNoRows
	}
	if err != nil {
		return account.Machine{}, account.Member{}, db.told(err, "read a machine by its credential's hash")
	}
	return machine(row.Machine), member(row.Member), nil
}

// Machines is every machine of the owner, revoked ones too, the first first; of
// all owners if ownerID is empty.
func (db *DB) Machines(ctx context.Context, ownerID string) ([]account.Machine, error) {
	if ownerID == "" {
		rows, err := db.query.Machines(ctx)
		return each(rows, machine), db.told(err, "list the machines")
	}
	rows, err := db.query.MachinesOf(ctx, ownerID)
	return each(rows, machine), db.told(err, "list the machines of member %q", ownerID)
}

// CountMachines is how many machines are not revoked.
func (db *DB) CountMachines(ctx context.Context) (int, error) {
	n, err := db.query.CountMachines(ctx)
	return int(n), db.told(err, "count the machines")
}

// MachinesBefore is a page of all machines, revoked ones too, the newest first: at
// most so many from that place on, of those where the machine's name or its
// owner's holds part, whatever the case of ASCII letters.
func (db *DB) MachinesBefore(ctx context.Context, from account.Place, part string, most int) ([]account.Kept, error) {
	if err := text(part, from.ID); err != nil {
		return nil, db.told(err, "list machines")
	}
	at, id := beginning(from)
	rows, err := db.query.MachinesBefore(ctx, at, id, holding(part), int32(most))
	return each(rows, func(row query.MachinesBeforeRow) account.Kept {
		return account.Kept{Machine: machine(row.Machine), OwnerName: row.OwnerName}
	}), db.told(err, "list machines")
}

// KeptMachines is every machine of the region that may connect and was seen at
// since or later; the zero time asks for those never seen, too.
func (db *DB) KeptMachines(ctx context.Context, region string, since time.Time) ([]account.Kept, error) {
	rows, err := db.query.KeptMachines(ctx, region, millis(since))
	return each(rows, func(row query.KeptMachinesRow) account.Kept {
		return account.Kept{Machine: machine(row.Machine), OwnerName: row.OwnerName}
	}), db.told(err, "list the machines of region %q", region)
}

// KeptMachine is one machine as in KeptMachines; ErrNotFound once it is revoked
// or its owner disabled.
func (db *DB) KeptMachine(ctx context.Context, id string) (account.Kept, error) {
	row, err := db.query.KeptMachine(ctx, id)
	if err != nil {
		return account.Kept{}, db.told(err, "read machine %q", id)
	}
	return account.Kept{Machine: machine(row.Machine), OwnerName: row.OwnerName}, nil
}

// RevokeMachine ends a machine's credential for ever and frees its name;
// ErrNotFound if it is not live.
func (db *DB) RevokeMachine(ctx context.Context, id string, now time.Time) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.MachineChanged, id), one(q.RevokeMachine(ctx, id, millis(now)))
	})
	return db.told(err, "revoke machine %q", id)
}

// NextGeneration numbers a new tunnel of the machine: 1 more than the last, on
// whichever hub that was (decisions 8). ErrNotFound if it may not connect.
func (db *DB) NextGeneration(ctx context.Context, id string) (int64, error) {
	var generation int64
	err := db.transact(ctx, func(q *query.Queries) (err error) {
		generation, err = q.NextGeneration(ctx, id)
		return err
	})
	return generation, db.told(err, "number a tunnel of machine %q", id)
}

// SaveOffers keeps a machine's newest advertisement, a JSON document, and when it
// came: what is known of the machine once it is offline (decisions 2).
func (db *DB) SaveOffers(ctx context.Context, id string, offers []byte, seen time.Time) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		return one(q.SaveOffers(ctx, id, offers, millis(seen)))
	})
	return db.told(err, "keep the offers of machine %q", id)
}

// CreateLoginToken adds a token; ErrNotFound if there is no such member.
func (db *DB) CreateLoginToken(ctx context.Context, t account.LoginToken) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := text(t.ID, t.Name); err != nil {
			return err
		}
		return q.InsertLoginToken(ctx, query.InsertLoginTokenParams{
			ID: t.ID, MemberID: t.MemberID, Name: t.Name, Hash: t.Hash[:],
			Created: millis(t.Created), Expires: millis(t.Expires), Used: millis(t.Used),
		})
	})
	return db.told(err, "create a login token")
}

// RedeemLoginToken turns the token whose secret has that SHA-256 into a machine
// of the token's member, under the token's name or, if it has none, the one the
// machine came with. The token is used up in the transaction that makes the
// machine: of any number who redeem it at once, one succeeds, and one that fails
// (ErrExists: the member has a live machine of that name) leaves it unused. A
// wrong token, a used or expired one and one of a disabled member are
// ErrNotFound alike.
func (db *DB) RedeemLoginToken(ctx context.Context, hash [32]byte, m account.Machine, now time.Time) (account.Machine, account.Member, error) {
	var owner account.Member
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		token, err := q.RedeemLoginToken(ctx, hash[:], millis(now))
		if err != nil {
			return nil, err
		}
		row, err := q.MemberByID(ctx, token.MemberID)
		if err != nil {
			return nil, err
		}
		if row.Disabled || !sameHash(token.Hash, hash) {
			return nil, sql.ErrNoRows
		}
		owner = member(row)
		m.OwnerID = owner.ID
		if token.Name != "" {
			m.Name = token.Name
		}
		return changed(fleet.MachineChanged, m.ID), insertMachine(ctx, q, m)
	})
	if err != nil {
		return account.Machine{}, account.Member{}, db.told(err, "redeem the login token")
	}
	return m, owner, nil
}

func insertMachine(ctx context.Context, q *query.Queries, m account.Machine) error {
	if err := text(m.ID, m.Name, m.Region, m.LastFour); err != nil {
		return err
	}
	err := q.InsertMachine(ctx, query.InsertMachineParams{
		ID: m.ID, OwnerID: m.OwnerID, Name: m.Name, Region: m.Region,
		Hash: m.Hash[:], LastFour: m.LastFour,
		Created: millis(m.Created), LastSeen: millis(m.LastSeen),
		Offers: m.Offers, Generation: m.Generation, Revoked: millis(m.Revoked), KeptOut: m.KeptOut,
	})
	if err != nil {
		return fmt.Errorf("machine %q: %w", m.Name, err)
	}
	return nil
}

func machine(row query.Machine) account.Machine {
	return account.Machine{
		ID: row.ID, OwnerID: row.OwnerID, Name: row.Name, Region: row.Region,
		Hash: [32]byte(row.Hash), LastFour: row.LastFour,
		Created: moment(row.Created), LastSeen: moment(row.LastSeen),
		Offers: row.Offers, Generation: row.Generation, Revoked: moment(row.Revoked), KeptOut: row.KeptOut,
	}
}
