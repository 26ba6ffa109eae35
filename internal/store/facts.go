package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
)

// Facts is the store in the law's terms, for one region: what the registry
// reads to know who may reach what.
type Facts struct {
	db     *DB
	region string
}

// Facts is the store as the registry of that region reads it.
func (db *DB) Facts(region string) *Facts { return &Facts{db, region} }

// Kept is every machine of the region seen since then, or not seen yet.
func (f *Facts) Kept(ctx context.Context, since time.Time) ([]fleet.Kept, error) {
	machines, err := f.db.KeptMachines(ctx, f.region, since)
	if err != nil {
		return nil, err
	}
	kept := make([]fleet.Kept, len(machines))
	for i, m := range machines {
		kept[i] = keptOf(m)
	}
	return kept, nil
}

// KeptMachine is one machine; false when it is gone, revoked or its owner
// disabled.
func (f *Facts) KeptMachine(ctx context.Context, id fleet.MachineID) (fleet.Kept, bool, error) {
	m, err := f.db.KeptMachine(ctx, string(id))
	if errors.Is(err, ErrNotFound) || err == nil && m.Machine.Region != f.region {
		return fleet.Kept{}, false, nil
	}
	return keptOf(m), err == nil, err
}

func keptOf(m account.Kept) fleet.Kept {
	return fleet.Kept{
		ID: fleet.MachineID(m.Machine.ID), Owner: fleet.MemberID(m.Machine.OwnerID), OwnerName: m.OwnerName,
		Name: m.Machine.Name, Generation: m.Machine.Generation, Advertisement: m.Machine.Offers, KeptOut: m.Machine.KeptOut,
		LastSeen: m.Machine.LastSeen, Created: m.Machine.Created,
	}
}

// Shares is every share in force.
func (f *Facts) Shares(ctx context.Context) ([]*fleet.Share, error) {
	return sharesOf(f.db.ShareList(ctx))
}

// SharesTo is every share in force to one member.
func (f *Facts) SharesTo(ctx context.Context, member fleet.MemberID) ([]*fleet.Share, error) {
	return sharesOf(f.db.SharesTo(ctx, string(member)))
}

func sharesOf(records []account.Share, err error) ([]*fleet.Share, error) {
	if err != nil {
		return nil, err
	}
	shares := make([]*fleet.Share, len(records))
	for i, r := range records {
		hours, err := fleet.ParseHours(r.Hours, "")
		if err != nil {
			return nil, fmt.Errorf("cannot read the hours of share %s: %w", r.ID, err)
		}
		models := make([]fleet.ModelID, len(r.Models))
		for j, id := range r.Models {
			models[j] = fleet.ModelID(id)
		}
		shares[i] = &fleet.Share{
			ID: fleet.ShareID(r.ID), Owner: fleet.MemberID(r.OwnerID), Member: fleet.MemberID(r.MemberID),
			Models: models, Hours: hours, Concurrent: r.Concurrent, PerDay: r.PerDay,
		}
	}
	return shares, nil
}

// Groups is every group, without disabled members.
func (f *Facts) Groups(ctx context.Context) ([]*fleet.Group, error) {
	records, err := f.db.GroupList(ctx)
	if err != nil {
		return nil, err
	}
	groups := make([]*fleet.Group, len(records))
	for i, r := range records {
		groups[i] = groupOf(r)
	}
	return groups, nil
}

// Group is one group; nil once it has ended.
func (f *Facts) Group(ctx context.Context, id fleet.GroupID) (*fleet.Group, error) {
	record, err := f.db.GroupByID(ctx, string(id))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return groupOf(record), nil
}

func groupOf(r account.Group) *fleet.Group {
	g := &fleet.Group{ID: fleet.GroupID(r.ID), Name: r.Name, Open: r.Kind == account.GroupOpen}
	for _, m := range r.Members {
		g.Members = append(g.Members, fleet.MemberID(m.MemberID))
	}
	for _, id := range r.KeptOut {
		g.KeptOut = append(g.KeptOut, fleet.MachineID(id))
	}
	return g
}

// Epoch is how far the store has moved.
func (f *Facts) Epoch(ctx context.Context) (int64, error) { return f.db.Epoch(ctx) }

// Changes is what moved after an epoch; fleet.ErrBehind asks to read everything again.
func (f *Facts) Changes(ctx context.Context, after int64) (int64, []fleet.Change, error) {
	return f.db.Changes(ctx, after)
}

// SaveOffers keeps a machine's last advertisement and when it was seen.
func (f *Facts) SaveOffers(ctx context.Context, id fleet.MachineID, advertisement []byte, seen time.Time) error {
	return f.db.SaveOffers(ctx, string(id), advertisement, seen)
}
