package fleet

import "slices"

// Concern is whom some changes of the store concern: for everybody else every
// decision is what it was before them. The zero Concern is nobody.
type Concern struct {
	everybody bool
	members   map[MemberID]struct{} // whatever they ask for
	models    map[ModelID]struct{}  // whoever asks for them
}

// Concerned is whom the changes concern of which before does not know yet and
// after does; nil changes stand for any, which concern everybody.
func Concerned(before, after *Snapshot, changes []Change) Concern {
	c := Concern{everybody: changes == nil, members: map[MemberID]struct{}{}, models: map[ModelID]struct{}{}}
	for _, change := range changes {
		switch change.Kind {
		case MemberChanged, KeyChanged, SessionsChanged: // what they reach moves with changes of its own
		case SharesChanged:
			c.members[MemberID(change.ID)] = struct{}{}
		case MachineChanged:
			c.machine(before.Machine(MachineID(change.ID)), after.Machine(MachineID(change.ID)))
		case GroupChanged:
			c.group(before, after, GroupID(change.ID))
		default: // of a newer hub
			c.everybody = true
		}
	}
	return c
}

// Anybody reports whether there is anybody whom it concerns.
func (c Concern) Anybody() bool { return c.everybody || len(c.members)+len(c.models) > 0 }

// With reports whether a decision about the ask may not be what it was.
func (c Concern) With(a *Ask) bool {
	if c.everybody {
		return true
	}
	_, member := c.members[a.Caller]
	_, model := c.models[a.Model]
	return member || model
}

// machine adds those who ask for what a machine offers that came, went, or is
// let into groups or kept out of them.
func (c Concern) machine(before, after *Machine) {
	if before != nil && after != nil && before.Owner == after.Owner && before.KeptOut == after.KeptOut {
		return // a name
	}
	c.offersOf(before)
	c.offersOf(after)
}

func (c Concern) offersOf(m *Machine) {
	for _, o := range m.offers() {
		c.models[o.ID] = struct{}{}
	}
}

// group adds those who joined or left, and who ask for what their machines
// offer, or what machines do that are now kept out or no longer, or whose owner
// changed the limits of the group; and all who are
// in it where it is no longer, or only now, more than one. A machine that came or
// went as well has a change of its own: those of after are enough.
func (c Concern) group(before, after *Snapshot, id GroupID) {
	was, is := before.circle(id), after.circle(id)
	for member := range difference(was.ids, is.ids) {
		c.members[member] = struct{}{}
		_, p := after.find(member)
		for _, m := range p.machines {
			c.offersOf(m)
		}
	}
	if min(len(was.ids), len(is.ids)) < 2 {
		for _, member := range slices.Concat(was.ids, is.ids) {
			c.members[member] = struct{}{}
		}
	}
	for machine := range difference(was.keptOut, is.keptOut) {
		c.offersOf(after.Machine(machine))
	}
	for _, limits := range []map[MemberID]*Limits{was.Limits, is.Limits} {
		for owner := range limits {
			if !was.Limits[owner].equal(is.Limits[owner]) {
				_, p := after.find(owner)
				for _, m := range p.machines {
					c.offersOf(m)
				}
			}
		}
	}
}

// circle is the group of that id, or one of nobody.
func (s *Snapshot) circle(id GroupID) *circle {
	if c, ok := s.groups.Get(id); ok {
		return c
	}
	return &circle{Group: new(Group)}
}
