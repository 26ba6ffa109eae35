package api

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

const (
	// maxSeals is the maximum number of machines in a list of those to seal for.
	maxSeals = 16
	// sealTime is how long a machine may take to send the statement of its key.
	sealTime = time.Second
	// maxStatement is the maximum size of a statement in bytes (spec/sealed.md#statement). With
	// larger ones a machine could make the list too long to be read.
	maxStatement = 2 << 10
)

// listSeals lists the machines that a call for a model can be sealed for, with the statements
// of their keys (spec/sealed.md#seals).
func (a *API) listSeals(ctx context.Context, c fleet.Caller, in ModelQuestion) (fleet.SealList, error) {
	family, ok := fleet.ParseFamily(cmp.Or(in.Family, fleet.Chat.String()))
	if !in.Model.Valid() || !ok || family == fleet.Audio {
		return fleet.SealList{}, fault.New(fault.InvalidRequest, "name a model, ?model=ID, and family=chat or embeddings").WithParam("model")
	}
	list := fleet.SealList{Now: a.DB.Now(), Machines: []fleet.SealMachine{}}
	q := fleet.Query{
		Caller: c.Member, Reach: c.Reach, Exclude: c.Machine, Model: in.Model, Family: family,
		Now: list.Now, Unconfirmed: !a.Confirmed(time.Now()),
	}
	snapshot := a.Snapshot()
	if d := fleet.Route(snapshot, q); d.Verdict == fleet.Refuse {
		return list, a.Miss(c, in.Model, d.Fault)
	}
	for _, m := range fleet.InOrder(snapshot, q, maxSeals) {
		list.Machines = append(list.Machines, fleet.SealMachine{
			ID: m.Machine.ID, Name: m.Machine.Name, Owner: m.Machine.Owner, OwnerName: m.Machine.OwnerName,
			Class: m.Class.String(), State: m.State.String(), Keys: m.Machine.Seals,
		})
	}
	ctx, cancel := context.WithTimeout(ctx, sealTime)
	defer cancel()
	var fetching sync.WaitGroup
	for i := range list.Machines {
		m := &list.Machines[i]
		if len(m.Keys) == 0 {
			continue
		}
		fetching.Go(func() {
			if seal, err := a.Seal(ctx, m.ID); err == nil && len(seal.Statement) <= maxStatement {
				m.Statement = seal.Statement
			}
		})
	}
	fetching.Wait()
	return list, nil
}

// machineSeal returns what is needed to seal calls for a machine of the caller.
func (a *API) machineSeal(ctx context.Context, c fleet.Caller, in MachineID) (fleet.Seal, error) {
	m, err := a.ownMachine(ctx, c, in.Machine)
	if err != nil {
		return fleet.Seal{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	defer cancel()
	seal, err := a.Seal(ctx, fleet.MachineID(m.ID))
	switch {
	case errors.Is(err, fleet.ErrNotConnected):
		return seal, fault.New(fault.MachineOffline, "machine %q is not connected", m.Name)
	case err != nil:
		return seal, fault.New(fault.MachineOffline, "machine %q did not send its key; is its kith up to date?", m.Name).Because(err)
	}
	return seal, nil
}
