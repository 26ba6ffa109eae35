package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
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
func (f *Facts) Kept(ctx context.Context, since time.Time) ([]fleet.StoredMachine, error) {
	machines, err := f.db.KeptMachines(ctx, f.region, since)
	if err != nil {
		return nil, err
	}
	kept := make([]fleet.StoredMachine, len(machines))
	for i, m := range machines {
		kept[i] = keptOf(m)
	}
	return kept, nil
}

// KeptMachine is one machine; false when it is gone, revoked or its owner
// disabled.
func (f *Facts) KeptMachine(ctx context.Context, id fleet.MachineID) (fleet.StoredMachine, bool, error) {
	m, err := f.db.KeptMachine(ctx, string(id))
	if errors.Is(err, ErrNotFound) || err == nil && m.Machine.Region != f.region {
		return fleet.StoredMachine{}, false, nil
	}
	return keptOf(m), err == nil, err
}

func keptOf(m account.Kept) fleet.StoredMachine {
	return fleet.StoredMachine{
		ID: fleet.MachineID(m.Machine.ID), Owner: fleet.MemberID(m.Machine.OwnerID), OwnerName: m.OwnerName,
		Name: m.Machine.Name, Generation: m.Machine.Generation, Advertisement: m.Machine.Offers, KeptOut: m.Machine.KeptOut,
		LastSeen: m.Machine.LastSeen, Created: m.Machine.Created,
	}
}

// Shares is every share in force, each with what the ledger has of its calls of
// the day (UTC), so that a restart forgets none.
func (f *Facts) Shares(ctx context.Context) ([]*fleet.Share, error) {
	today := time.Now()
	records, err := f.db.ShareList(ctx)
	if err != nil {
		return nil, err
	}
	calls, err := f.db.query.CallsOfShares(ctx, millis(dayOf(today)))
	if err != nil {
		return nil, f.db.told(err, "count the day's calls of the shares")
	}
	return sharesOf(records, calls, today)
}

// SharesTo is every share in force to one member, likewise.
func (f *Facts) SharesTo(ctx context.Context, member fleet.MemberID) ([]*fleet.Share, error) {
	today := time.Now()
	records, err := f.db.SharesTo(ctx, string(member))
	if err != nil {
		return nil, err
	}
	calls, err := f.db.query.CallsOfSharesTo(ctx, string(member), millis(dayOf(today)))
	if err != nil {
		return nil, f.db.told(err, "count the day's calls of the shares to member %q", member)
	}
	same := func(row query.CallsOfSharesToRow) query.CallsOfSharesRow { return query.CallsOfSharesRow(row) }
	return sharesOf(records, each(calls, same), today)
}

// sharesOf is the shares as routing sees them, each with what was called today. All
// calls of the pair count whose model the share covers, also those that came by a
// group before the share was there.
func sharesOf(records []account.Share, calls []query.CallsOfSharesRow, today time.Time) ([]*fleet.Share, error) {
	models := make(map[string][]string, len(records))
	for _, r := range records {
		models[r.ID] = r.Models
	}
	started := make(map[string]int, len(calls))
	for _, row := range calls {
		if only := models[row.ID]; len(only) == 0 || slices.Contains(only, row.Model) {
			started[row.ID] += int(row.Calls)
		}
	}
	shares := make([]*fleet.Share, len(records))
	for i, r := range records {
		limits, err := limitsInForce(r.ID, r.Limits, today, started[r.ID])
		if err != nil {
			return nil, err
		}
		shares[i] = &fleet.Share{ID: fleet.ShareID(r.ID), Owner: fleet.MemberID(r.OwnerID), Member: fleet.MemberID(r.MemberID), Limits: limits}
	}
	return shares, nil
}

// Groups is every group, without disabled members, each with its owners' limits
// and what the ledger has of their calls of the day (UTC), so that a restart
// forgets none.
func (f *Facts) Groups(ctx context.Context) ([]*fleet.Group, error) {
	today := time.Now()
	records, err := f.db.GroupList(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := f.db.query.GroupLimits(ctx)
	if err != nil {
		return nil, f.db.told(err, "list the limits of groups")
	}
	calls, err := f.db.query.CallsOfGroups(ctx, millis(dayOf(today)))
	if err != nil {
		return nil, f.db.told(err, "count the day's calls of the groups")
	}
	limits, err := limitsIn(rows, calls, today)
	groups := make([]*fleet.Group, len(records))
	for i, r := range records {
		groups[i] = groupOf(r, limits)
	}
	return groups, err
}

// Group is one group, likewise; nil once it has ended.
func (f *Facts) Group(ctx context.Context, id fleet.GroupID) (*fleet.Group, error) {
	today := time.Now()
	record, err := f.db.GroupByID(ctx, string(id))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rows, err := f.db.query.GroupLimitsOf(ctx, string(id))
	if err != nil {
		return nil, f.db.told(err, "list the limits of group %q", id)
	}
	calls, err := f.db.query.CallsOfGroup(ctx, millis(dayOf(today)), string(id))
	if err != nil {
		return nil, f.db.told(err, "count the day's calls of group %q", id)
	}
	limits, err := limitsIn(rows, each(calls, func(row query.CallsOfGroupRow) query.CallsOfGroupsRow {
		return query.CallsOfGroupsRow{GroupID: string(id), OwnerID: row.OwnerID, Calls: row.Calls}
	}), today)
	return groupOf(record, limits), err
}

func groupOf(r account.Group, limits limitsOfGroups) *fleet.Group {
	g := &fleet.Group{ID: fleet.GroupID(r.ID), Name: r.Name, Open: r.Kind == account.GroupOpen}
	g.Limits = limits[g.ID]
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
