package fleet

import "slices"

// Affected is the set of callers whose routing decisions may change because of changes in
// the store. The zero Affected is empty.
type Affected struct {
	everyone bool
	members  map[MemberID]struct{} // for any model
	models   map[ModelID]struct{}  // for any caller
}

// AffectedBy returns the callers affected by the changes between the snapshots before and
// after. If changes is nil, everyone is affected.
func AffectedBy(before, after *Snapshot, changes []Change) Affected {
	a := Affected{everyone: changes == nil, members: map[MemberID]struct{}{}, models: map[ModelID]struct{}{}}
	for _, change := range changes {
		switch change.Kind {
		case MemberChanged, KeyChanged, SessionsChanged: // other kinds of changes affect what these reach
		case SharesChanged:
			a.members[MemberID(change.ID)] = struct{}{}
		case MachineChanged:
			a.machine(before.Machine(MachineID(change.ID)), after.Machine(MachineID(change.ID)))
		case GroupChanged:
			a.group(before, after, GroupID(change.ID))
		default: // kinds of a newer hub version
			a.everyone = true
		}
	}
	return a
}

// Any reports whether any caller is affected.
func (a Affected) Any() bool { return a.everyone || len(a.members)+len(a.models) > 0 }

// Includes reports whether the decision for the query may have changed.
func (a Affected) Includes(q *Query) bool {
	if a.everyone {
		return true
	}
	_, member := a.members[q.Caller]
	_, model := a.models[q.Model]
	return member || model
}

// machine adds the models of a machine that was added or removed, or whose owner started
// or stopped excluding it from groups.
func (a Affected) machine(before, after *Machine) {
	if before != nil && after != nil && before.Owner == after.Owner && before.KeptOut == after.KeptOut {
		return // it was only renamed
	}
	a.offersOf(before)
	a.offersOf(after)
}

func (a Affected) offersOf(m *Machine) {
	for _, o := range m.offers() {
		a.models[o.ID] = struct{}{}
	}
}

// group adds the members who joined or left, and the models of their machines, of
// machines that were excluded or no longer are, and of owners who changed their limits.
// If the group has at least two members only before or only after the change, it adds all
// members. Machines that were added or removed have their own changes, so the machines in
// after are sufficient.
func (a Affected) group(before, after *Snapshot, id GroupID) {
	was, is := before.group(id), after.group(id)
	for member := range difference(was.ids, is.ids) {
		a.members[member] = struct{}{}
		a.machinesOf(after, member)
	}
	if min(len(was.ids), len(is.ids)) < 2 {
		for _, member := range slices.Concat(was.ids, is.ids) {
			a.members[member] = struct{}{}
		}
	}
	for machine := range difference(was.keptOut, is.keptOut) {
		a.offersOf(after.Machine(machine))
	}
	for _, machine := range slices.Concat(was.Pinned, is.Pinned) {
		if slices.Contains(was.Pinned, machine) != slices.Contains(is.Pinned, machine) {
			a.offersOf(after.Machine(machine))
		}
	}
	for _, limits := range []map[MemberID]*Limits{was.Limits, is.Limits} {
		for owner := range limits {
			if !was.Limits[owner].equal(is.Limits[owner]) {
				a.machinesOf(after, owner)
			}
		}
	}
}

// machinesOf adds the models of a member's machines.
func (a Affected) machinesOf(s *Snapshot, member MemberID) {
	_, p := s.find(member)
	for _, m := range p.machines {
		a.offersOf(m)
	}
}

// group returns the group with the given id, or an empty one.
func (s *Snapshot) group(id GroupID) *groupIndex {
	if g, ok := s.groups.Get(id); ok {
		return g
	}
	return &groupIndex{Group: new(Group)}
}
