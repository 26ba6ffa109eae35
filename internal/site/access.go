package site

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// accessWay is one way for a member to reach machines: the owner's share, or a group
// with both as members.
type accessWay struct {
	Group  string     // the group's name; empty for the share
	Limits api.Limits // for calls by this way
	Used   int        // calls that count against Limits.PerDay today
}

// Spent reports whether the calls of the day are used up.
func (w accessWay) Spent() bool { return w.Limits.PerDay != nil && w.Used >= *w.Limits.PerDay }

// accessRow lists the ways for a member to reach some machines of an owner. A call is
// allowed if one of Ways allows it.
type accessRow struct {
	Member   string
	Machines []string // empty: the owner has no machine yet
	Ways     []accessWay
	// Idle are groups that have no effect because the owner shares with the member: only
	// the share decides, until it ends (spec/routing.md#share).
	Idle []accessWay
}

// accessList returns who reaches which of the owner's machines, and how. It agrees with
// fleet.Route: a member's call runs on a machine if and only if a way in the member's row
// with that machine covers it.
func accessList(owner string, machines []api.Machine, given []api.Share, groups []api.Group) (rows []accessRow) {
	if len(machines) == 0 { // shows who will have access once there is one
		machines = []api.Machine{{}}
	}
	for _, m := range machines {
		for _, share := range given {
			rows = append(rows, accessRow{Member: share.With, Machines: []string{m.Name},
				Ways: []accessWay{{Limits: share.Limits}}})
		}
		ofShares := len(rows)
		for _, g := range groups {
			if !g.In || !serves(owner, m, g) {
				continue
			}
			way := accessWay{Group: g.Name}
			if g.Limits != nil {
				way.Limits = *g.Limits
			}
			for _, fellow := range g.Members {
				if fellow.Name == owner {
					continue
				}
				at := slices.IndexFunc(rows,
					func(r accessRow) bool { return r.Member == fellow.Name && r.Machines[0] == m.Name })
				if at < 0 {
					at, rows = len(rows), append(rows, accessRow{Member: fellow.Name, Machines: []string{m.Name}})
				}
				if at < ofShares {
					rows[at].Idle = append(rows[at].Idle, way)
				} else {
					rows[at].Ways = append(rows[at].Ways, way)
				}
			}
		}
	}
	return joinRows(rows)
}

// serves reports whether the members of a group reach a machine of the owner by the
// group.
func serves(owner string, m api.Machine, g api.Group) bool {
	return !m.KeptOut && (m.Groups == nil || slices.Contains(m.Groups, g.Name)) &&
		!slices.Contains(g.KeptOut, m.Name) &&
		ruleOf(g, owner, m.Name) != account.MachineExcluded
}

// joinRows joins rows of a member that differ only in their machines, and sorts them by
// member.
func joinRows(each []accessRow) (rows []accessRow) {
	same := func(a, b []accessWay) bool {
		return slices.EqualFunc(a, b, func(a, b accessWay) bool { return a.Group == b.Group })
	}
	for _, r := range each {
		at := slices.IndexFunc(rows, func(o accessRow) bool {
			return o.Member == r.Member && same(o.Ways, r.Ways) && same(o.Idle, r.Idle)
		})
		if at < 0 {
			at, rows = len(rows), append(rows, accessRow{Member: r.Member, Ways: r.Ways, Idle: r.Idle})
		}
		if name := r.Machines[0]; name != "" {
			rows[at].Machines = append(rows[at].Machines, name)
		}
	}
	slices.SortStableFunc(rows, func(a, b accessRow) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Member), strings.ToLower(b.Member)),
			strings.Compare(a.Member, b.Member))
	})
	return rows
}

// exceeds reports whether limits allow a call that the others do not.
func exceeds(a, others api.Limits) bool {
	return len(others.Models) > 0 && (len(a.Models) == 0 ||
		slices.ContainsFunc(a.Models, func(id string) bool { return !slices.Contains(others.Models, id) })) ||
		!within(a.Hours, others.Hours) || above(a.Concurrent, others.Concurrent) || above(a.PerDay, others.PerDay)
}

// above reports whether limit a is higher than the other; nil means no limit.
func above(a, other *int) bool { return other != nil && (a == nil || *a > *other) }

// within reports whether weekly hours are contained in others. Both are on the same wall
// clock.
func within(a, others string) bool {
	if others == "" || a == others {
		return true
	}
	inner, errInner := fleet.ParseHours(a, "UTC")
	outer, errOuter := fleet.ParseHours(others, "UTC")
	if errInner != nil || errOuter != nil {
		return false
	}
	monday := time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)
	for minute := range 7 * 24 * 60 {
		at := monday.Add(time.Duration(minute) * time.Minute)
		if inner.Open(at) && !outer.Open(at) {
			return false
		}
	}
	return true
}

// tightened returns limits that exceed neither the group's nor the share's, if limits can
// express that. Otherwise the share's limits win.
func tightened(group, share api.Limits) api.Limits {
	out := share
	common := slices.DeleteFunc(slices.Clone(group.Models),
		func(id string) bool { return len(share.Models) > 0 && !slices.Contains(share.Models, id) })
	if len(common) > 0 {
		out.Models = common
	}
	if group.Hours != "" && within(group.Hours, share.Hours) {
		out.Hours = group.Hours
	}
	if above(share.Concurrent, group.Concurrent) {
		out.Concurrent = group.Concurrent
	}
	if above(share.PerDay, group.PerDay) {
		out.PerDay = group.PerDay
	}
	return out
}

// accessWarning is a warning that a group gives a member more than the limits that the
// owner set elsewhere, with the limits for the group that would change that.
type accessWarning struct {
	Group  string     // the group with the higher limits
	By     string     // the other group; empty: the share
	Limits api.Limits // to apply to the group
}

// warnings returns the groups that give the row's member more than the share does, once
// the share ends, or more than another group with limits does now.
func (r accessRow) warnings() (all []accessWarning) {
	for _, idle := range r.Idle {
		if share := r.Ways[0].Limits; exceeds(idle.Limits, share) {
			all = append(all, accessWarning{Group: idle.Group, Limits: tightened(idle.Limits, share)})
		}
	}
	for _, wide := range r.Ways {
		for _, narrow := range r.Ways {
			if exceeds(wide.Limits, narrow.Limits) {
				all = append(all, accessWarning{wide.Group, narrow.Group, tightened(wide.Limits, narrow.Limits)})
				break
			}
		}
	}
	return all
}

// usableMachine is a machine of another member that the caller reaches.
type usableMachine struct {
	Name   string
	Online bool
}

// usableRow lists what a member reaches of another member's machines.
type usableRow struct {
	Owner    string
	Ways     []accessWay // the owner's share, or the groups; any of them may serve a call
	Machines []usableMachine
	Models   []string // covered by any way, in order
}

// Shown returns the first machines, as few does with names.
func (r usableRow) Shown() []usableMachine { return r.Machines[:len(r.Machines)-r.More()] }

// More returns how many machines are not in Shown.
func (r usableRow) More() int {
	if len(r.Machines) <= fewNames+1 {
		return 0
	}
	return len(r.Machines) - fewNames
}

// Through returns the names of the groups; empty: by the owner's share.
func (r usableRow) Through() (groups []string) {
	for _, way := range r.Ways {
		if way.Group != "" {
			groups = append(groups, way.Group)
		}
	}
	return groups
}

// usableList returns what the caller reaches of other members according to the routing
// snapshot, and the shares whose owners have no machine yet.
func usableList(s *fleet.Snapshot, caller fleet.MemberID, received []api.Share, now time.Time) (rows []usableRow) {
	of := func(owner string) *usableRow {
		at := slices.IndexFunc(rows, func(r usableRow) bool { return r.Owner == owner })
		if at < 0 {
			at, rows = len(rows), append(rows, usableRow{Owner: owner})
		}
		return &rows[at]
	}
	for _, share := range received {
		way := accessWay{Limits: share.Limits}
		if there := s.ShareOf(caller, fleet.ShareID(share.ID)); there != nil {
			way.Used = there.Limits.Load.Started(now)
		}
		row := of(share.Owner)
		row.Ways = append(row.Ways, way)
	}
	for m, access := range s.Reach(caller, fleet.Everything) {
		if access.Class == fleet.Own {
			continue
		}
		row := of(m.OwnerName)
		row.Machines = append(row.Machines, usableMachine{m.Name, m.Online})
		for g := range access.Groups(m) {
			if slices.ContainsFunc(row.Ways, func(w accessWay) bool { return w.Group == g.Name }) {
				continue
			}
			way := accessWay{Group: g.Name}
			if limits := g.Limits[m.Owner]; limits != nil {
				way.Used = limits.Load.Started(now)
				if shown := api.LimitsInForce(limits); shown != nil {
					way.Limits = *shown
				}
			}
			row.Ways = append(row.Ways, way)
		}
		for _, o := range m.Offers {
			shares, groups := s.AccessPaths(caller, m, o.ID)
			if len(shares)+len(groups) > 0 {
				row.Models = append(row.Models, string(o.ID))
			}
		}
	}
	for i := range rows {
		r := &rows[i]
		slices.SortFunc(r.Ways, func(a, b accessWay) int { return strings.Compare(a.Group, b.Group) })
		slices.Sort(r.Models)
		r.Models = slices.Compact(r.Models)
	}
	slices.SortFunc(rows, func(a, b usableRow) int { return strings.Compare(a.Owner, b.Owner) })
	return rows
}

// nameKey encodes a name for use in an element's id, which must not contain spaces.
func nameKey(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }
