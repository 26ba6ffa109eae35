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

// Facts provides the store's data to the registry of one region, in types of fleet.
type Facts struct {
	db     *DB
	region string
}

// Facts returns the store's data for the registry of a region.
func (db *DB) Facts(region string) *Facts { return &Facts{db, region} }

// Now returns the time by the database's clock.
func (f *Facts) Now() time.Time { return f.db.Now() }

// ActiveMachines returns the machines of the region that may connect and were seen at
// since or later. The zero time includes those that were never seen.
func (f *Facts) ActiveMachines(ctx context.Context, since time.Time) ([]account.Machine, error) {
	rows, err := f.db.query.ActiveMachines(ctx, f.region, millis(since))
	read := func(row query.ActiveMachinesRow) account.Machine { return machine(row.Machine, row.OwnerName) }
	return convert(rows, read), f.db.wrap(err, "list the machines of region %q", f.region)
}

// ActiveMachine returns one machine of the region that may connect; false if it is
// unknown or revoked, or its owner is disabled.
func (f *Facts) ActiveMachine(ctx context.Context, id fleet.MachineID) (account.Machine, bool, error) {
	m, err := f.db.ActiveMachine(ctx, string(id))
	if errors.Is(err, ErrNotFound) || err == nil && m.Region != f.region {
		return account.Machine{}, false, nil
	}
	return m, err == nil, err
}

// Shares returns all shares in force, each with the number of calls of the current UTC
// day, so that a restart does not reset a daily limit.
func (f *Facts) Shares(ctx context.Context) ([]*fleet.Share, error) {
	today := f.db.Now()
	records, err := f.db.ShareList(ctx)
	if err != nil {
		return nil, err
	}
	calls, err := f.db.query.CallsOfShares(ctx, millis(dayOf(today)))
	if err != nil {
		return nil, f.db.wrap(err, "count the day's calls of the shares")
	}
	return routingShares(records, calls, today)
}

// SharesTo returns every share in force to one member, as Shares does.
func (f *Facts) SharesTo(ctx context.Context, member fleet.MemberID) ([]*fleet.Share, error) {
	today := f.db.Now()
	records, err := f.db.SharesTo(ctx, string(member))
	if err != nil {
		return nil, err
	}
	calls, err := f.db.query.CallsOfSharesTo(ctx, string(member), millis(dayOf(today)))
	if err != nil {
		return nil, f.db.wrap(err, "count the day's calls of the shares to member %q", member)
	}
	same := func(row query.CallsOfSharesToRow) query.CallsOfSharesRow { return query.CallsOfSharesRow(row) }
	return routingShares(records, convert(calls, same), today)
}

// routingShares returns the shares in the form that routing uses, with the number of
// calls of the day. All calls between the two members for the share's models count,
// including those through a group before the share was created.
func routingShares(records []account.Share, calls []query.CallsOfSharesRow, today time.Time) ([]*fleet.Share, error) {
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
		limits, err := routingLimits(r.ID, r.Limits, today, started[r.ID])
		if err != nil {
			return nil, err
		}
		shares[i] = &fleet.Share{ID: fleet.ShareID(r.ID), Owner: fleet.MemberID(r.OwnerID), Member: fleet.MemberID(r.MemberID), Limits: limits}
	}
	return shares, nil
}

// Groups returns all groups without their disabled members, each with its owners' limits
// and the number of calls of the current UTC day, as Shares does.
func (f *Facts) Groups(ctx context.Context) ([]*fleet.Group, error) {
	today := f.db.Now()
	records, err := f.db.GroupList(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := f.db.query.GroupLimits(ctx)
	if err != nil {
		return nil, f.db.wrap(err, "list the limits of groups")
	}
	calls, err := f.db.query.CallsOfGroups(ctx, millis(dayOf(today)))
	if err != nil {
		return nil, f.db.wrap(err, "count the day's calls of the groups")
	}
	limits, err := groupLimitsByOwner(rows, calls, today)
	groups := make([]*fleet.Group, len(records))
	for i, r := range records {
		groups[i] = routingGroup(r, limits)
	}
	return groups, err
}

// Group returns one group as Groups does; nil if it is unknown.
func (f *Facts) Group(ctx context.Context, id fleet.GroupID) (*fleet.Group, error) {
	today := f.db.Now()
	record, err := f.db.GroupByID(ctx, string(id))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rows, err := f.db.query.GroupLimitsOf(ctx, string(id))
	if err != nil {
		return nil, f.db.wrap(err, "list the limits of group %q", id)
	}
	calls, err := f.db.query.CallsOfGroup(ctx, millis(dayOf(today)), string(id))
	if err != nil {
		return nil, f.db.wrap(err, "count the day's calls of group %q", id)
	}
	limits, err := groupLimitsByOwner(rows, calls, today)
	return routingGroup(record, limits), err
}

func routingGroup(r account.Group, limits limitsOfGroups) *fleet.Group {
	g := &fleet.Group{ID: fleet.GroupID(r.ID), Name: r.Name, Open: r.Kind == account.GroupOpen}
	g.Limits = limits[g.ID]
	for _, m := range r.Members {
		g.Members = append(g.Members, fleet.MemberID(m.MemberID))
	}
	for _, id := range slices.Concat(r.KeptOut, r.Excluded) {
		g.KeptOut = append(g.KeptOut, fleet.MachineID(id))
	}
	for _, id := range r.Pinned {
		g.Pinned = append(g.Pinned, fleet.MachineID(id))
	}
	return g
}

// Position returns the position of the newest change.
func (f *Facts) Position(ctx context.Context) (account.Position, error) { return f.db.Position(ctx) }

// Poll returns what changed after a position; account.ErrBehind if the changes are not
// known one by one. On PostgreSQL each Poll is also a beat of the node: see StartNode.
func (f *Facts) Poll(ctx context.Context, after account.Position) (account.StoreState, []fleet.Change, error) {
	if f.db.node.Name != "" {
		return f.db.beat(ctx, after)
	}
	position, changes, err := f.db.Changes(ctx, after)
	return account.StoreState{Position: position}, changes, err
}

// SaveOffers stores a machine's last advertisement and when the machine was last seen.
func (f *Facts) SaveOffers(ctx context.Context, id fleet.MachineID, advertisement []byte, seen time.Time) error {
	return f.db.SaveOffers(ctx, string(id), advertisement, seen)
}
