package fleet

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// State is the state of a reachable machine that offers the model, for one caller
// (spec/routing.md#the-state-of-a-machine). If a machine can be reached in two ways, the
// one with the higher State is used.
type State uint8

// The states, from the worst to the best.
const (
	Offline      State = iota // no tunnel, or held out because it flaps
	Returning                 // its tunnel was lost recently; counts as busy
	OutsideHours              // not the caller's own, and outside its hours or those of the limits
	Paused                    // by its owner
	Spent                     // the limits' calls for the day are used up
	Busy                      // no free slot for this call, or the limits' concurrent calls are running, or left out
	Ready
	states // number of states
)

// String returns the name of the state in the API and in records.
func (s State) String() string {
	return [...]string{"offline", "returning", "outside hours", "paused", "spent", "busy", "ready"}[s]
}

// StateText returns a text for members that describes the state with this name. It is the
// name itself if that is clear enough.
func StateText(name string) string {
	switch name {
	case Returning.String():
		return "reconnecting"
	case Spent.String():
		return "used up today"
	}
	return name
}

// Access is why a caller can reach a machine: it is the caller's own, its owner shares
// with the caller, or both are in a group. If the owner shares with the caller, common
// groups add nothing (spec/routing.md#share).
type Access struct {
	Class  Class
	shares []incomingShare // from the owner to the caller; empty unless Class is Shared

	// For Grouped, group is the first common group that the machine serves, and the fields
	// below are used to find the others. If group is nil there is no access.
	group     *groupIndex
	snapshot  *Snapshot
	me, owner *person
}

// next returns the next common group after g that the machine serves, or nil.
func (a *Access) next(g *groupIndex, m *Machine) *groupIndex {
	at, _ := slices.BinarySearch(a.me.groups, g.ID)
	return a.snapshot.common(a.me.groups[at+1:], a.owner.groups, m)
}

// Groups yields the common groups that give the caller the machine; none unless
// Class is Grouped.
func (a Access) Groups(m *Machine) iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		for g := a.group; g != nil && yield(g.Group); g = a.next(g, m) {
		}
	}
}

// Candidate is a machine that a call may be sent to, and why it may.
type Candidate struct {
	Machine  *Machine
	Offer    *Offer
	Class    Class
	Share    *Share   // nil unless Class is Shared
	Group    *Group   // nil unless Class is Grouped
	Limits   *Limits  // of Share or Group, counted for the call; nil: none
	Standing Standing // in Group
	// Expectation is Route's estimate for the call on this machine.
	Expectation Expectation
}

// GroupID returns the group through which the caller reaches the machine; empty: none.
func (c *Candidate) GroupID() GroupID {
	if c.Group == nil {
		return ""
	}
	return c.Group.ID
}

// CandidateState is one reachable machine that offers a model, and its state.
type CandidateState struct {
	Candidate
	State State

	proof   *proof  // for Group
	measure bool    // the call would serve to measure the machine
	turn    bool    // the machine is a newcomer, and it is its turn in the group
	seconds float64 // the spread time, used for ordering
	roll    uint64  // this machine's random number
}

// State returns the state of the machine for the caller and one of its offers at time
// now. It returns false if the caller has no access that covers the model.
func (a Access) State(m *Machine, o *Offer, now time.Time) (CandidateState, bool) {
	var c CandidateState
	ok := a.evaluate(&c, m, o, &Query{Now: now})
	return c, ok
}

// evaluate implements State for a query. It writes into c, because it runs for every
// machine of a decision and copying would take half of the time. If several shares or
// groups cover the model, it uses the one with the best State. Among groups with equal
// State it prefers one without limits, then the first.
func (a *Access) evaluate(c *CandidateState, m *Machine, o *Offer, q *Query) bool {
	*c = CandidateState{Candidate: Candidate{Machine: m, Offer: o, Class: a.Class}}
	room := m.room(o) && !o.Load.Record(a.Class).LeftOut(q.Now) && !slices.Contains(q.Full, m.ID)
	if a.Class == Own {
		c.State = m.state(Own, nil, q.Now, room)
		return true
	}
	found := false
	for i := range a.shares {
		share := a.shares[i].Share
		if !share.covers(o.ID) {
			continue
		}
		if state := m.state(Shared, &share.Limits, q.Now, room); !found || state > c.State {
			found, c.State, c.Share, c.Limits = true, state, share, &share.Limits
		}
	}
	for g := a.group; g != nil; g = a.next(g, m) {
		limits := g.Limits[m.Owner]
		if !limits.covers(o.ID) {
			continue
		}
		p := o.Load.proof(Circle{Grouped, g.ID})
		standing := g.standing(m, p)
		room := room && (standing > Unserved || o.Load.InFlight() == 0)
		if state := m.state(Grouped, limits, q.Now, room); !found || state > c.State || state == c.State && limits == nil && c.Limits != nil {
			found, c.State, c.Group, c.Limits, c.Standing, c.proof = true, state, g.Group, limits, standing, p
		}
		if limits == nil && standing > Unserved { // no other group can be better
			break
		}
	}
	return found
}

// state returns the first state that applies (spec/routing.md#the-state-of-a-machine).
// limits are those of the share or group through which the caller reaches the machine.
// room reports that there is a free slot for this call and that the machine is not left
// out.
func (m *Machine) state(class Class, limits *Limits, now time.Time, room bool) State {
	switch {
	case !m.Online && now.Before(m.ReturningUntil):
		return Returning
	case !m.Online, m.Load.heldOut.Load() > now.UnixNano():
		return Offline
	case class != Own && !m.Hours.Open(now), limits != nil && !limits.Hours.openOn(now, m.Hours):
		return OutsideHours
	case m.Paused:
		return Paused
	case limits != nil && limits.spent(now):
		return Spent
	case !room, limits != nil && limits.full():
		return Busy
	default:
		return Ready
	}
}

// room reports whether the machine and the model have a free slot.
func (m *Machine) room(o *Offer) bool {
	return m.Load.free(m.Slots) > 0 && (o.Slots == 0 || o.Load.free(o.Slots) > 0)
}

// Reach yields every machine that the caller can reach with a key of the given reach,
// once each and own machines first, regardless of offers and state.
func (s *Snapshot) Reach(caller MemberID, key KeyReach) iter.Seq2[*Machine, Access] {
	return func(yield func(*Machine, Access) bool) {
		w := newWalk(s, caller, key)
		w.all("", yield)
	}
}

// MachinesOf yields every machine that the members of a group can reach through it, once
// each, regardless of offers and state.
func (s *Snapshot) MachinesOf(id GroupID) iter.Seq[*Machine] {
	return func(yield func(*Machine) bool) {
		g := s.group(id)
		for _, member := range g.members {
			for _, m := range s.people.Get(member).machines {
				if g.admits(m) && !yield(m) {
					return
				}
			}
		}
	}
}

// walk visits the machines that a caller can reach.
type walk struct {
	s      *Snapshot
	caller int // the caller's number
	me     *person
	key    KeyReach
}

func newWalk(s *Snapshot, caller MemberID, key KeyReach) walk {
	n, me := s.find(caller)
	return walk{s: s, caller: n, me: me, key: key}
}

// all calls visit once for every machine in reach, with the caller's access, until visit
// returns false. If model is not empty, it skips, in groups, the members who do not offer
// it.
func (w *walk) all(model ModelID, visit func(*Machine, Access) bool) {
	for _, m := range w.me.machines {
		if !visit(m, Access{Class: Own}) {
			return
		}
	}
	if w.key == OwnOnly || !w.shared(visit) || w.key == OwnAndShared {
		return
	}
	for _, id := range w.me.groups {
		if !w.grouped(id, model, visit) {
			return
		}
	}
}

// shared visits the machines of members who share with the caller.
func (w *walk) shared(visit func(*Machine, Access) bool) bool {
	shares := w.me.shares
	for len(shares) > 0 {
		n := 1
		for n < len(shares) && shares[n].owner == shares[0].owner {
			n++
		}
		owner := w.s.people.Get(shares[0].owner)
		for _, m := range owner.machines {
			if !visit(m, Access{Class: Shared, shares: shares[:n]}) {
				return false
			}
		}
		shares = shares[n:]
	}
	return true
}

// grouped visits the machines in one group. It skips owners who share with the caller and
// members of groups that were visited before.
func (w *walk) grouped(id GroupID, model ModelID, visit func(*Machine, Access) bool) bool {
	g, _ := w.s.groups.Get(id)
	if model == "" {
		for _, member := range g.members {
			if !w.member(g, member, visit) {
				return false
			}
		}
		return true
	}
	of, ok := g.offering.Get(model)
	if !ok {
		return true
	}
	for it := of.Iterator(); !it.Done(); {
		if member, _, _ := it.Next(); !w.member(g, member, visit) {
			return false
		}
	}
	return true
}

func (w *walk) member(g *groupIndex, n int, visit func(*Machine, Access) bool) bool {
	if n == w.caller || w.isSharer(n) {
		return true
	}
	p := w.s.people.Get(n)
	if first := w.me.groups[0]; g.ID != first {
		if first, _ = firstCommon(w.me.groups, p.groups); g.ID != first {
			return true
		}
	}
	for _, m := range p.machines {
		group := g
		if !g.admits(m) {
			group = w.s.common(w.me.groups, p.groups, m)
		}
		if group != nil && !visit(m, Access{Class: Grouped, group: group, snapshot: w.s, me: w.me, owner: p}) {
			return false
		}
	}
	return true
}

// AccessTo returns the access to a machine for a caller with a key of the given reach. If
// the machine is out of reach, the access's State returns false.
func (s *Snapshot) AccessTo(caller MemberID, key KeyReach, m *Machine) Access {
	w := newWalk(s, caller, key)
	return w.access(m)
}

// access returns the caller's access to one machine. If the machine is out of reach, it
// has no shares and no group, so that evaluate returns false.
func (w *walk) access(m *Machine) Access {
	n, known := w.s.owners.Get(m.ID)
	switch {
	case known && n == w.caller:
		return Access{Class: Own}
	case !known || w.key == OwnOnly:
		return Access{Class: Grouped}
	}
	if shares := w.sharesOf(n); len(shares) > 0 {
		return Access{Class: Shared, shares: shares}
	}
	a := Access{Class: Grouped, snapshot: w.s, me: w.me, owner: w.s.people.Get(n)}
	if w.key == Everything {
		a.group = w.s.common(w.me.groups, a.owner.groups, m)
	}
	return a
}

// AccessPaths returns all the ways for the caller to reach another member's machine for the
// model: the shares that cover it or, if the owner does not share with the caller, the
// common groups that the machine serves and whose limits cover the model. A call
// continues if one way ends and another remains.
func (s *Snapshot) AccessPaths(caller MemberID, m *Machine, model ModelID) (shares []*Share, groups []*Group) {
	n, known := s.owners.Get(m.ID)
	if !known || m.Owner == caller {
		return nil, nil
	}
	w := newWalk(s, caller, Everything)
	if incoming := w.sharesOf(n); len(incoming) > 0 {
		for _, share := range incoming {
			if share.covers(model) {
				shares = append(shares, share.Share)
			}
		}
		return shares, nil
	}
	for g := range w.access(m).Groups(m) {
		if g.Limits[m.Owner].covers(model) {
			groups = append(groups, g)
		}
	}
	return nil, groups
}

// sharesOf returns the shares from the n-th member to the caller.
func (w *walk) sharesOf(n int) []incomingShare {
	from, _ := slices.BinarySearchFunc(w.me.shares, n, func(share incomingShare, n int) int {
		return cmp.Compare(share.owner, n)
	})
	to := from
	for to < len(w.me.shares) && w.me.shares[to].owner == n {
		to++
	}
	return w.me.shares[from:to]
}

// isSharer reports whether the n-th member shares with the caller.
func (w *walk) isSharer(n int) bool { return len(w.sharesOf(n)) > 0 }

// common returns the first group in both sorted lists that the machine serves, or nil.
func (s *Snapshot) common(mine, theirs []GroupID, m *Machine) *groupIndex {
	for {
		id, rest := firstCommon(mine, theirs)
		if id == "" {
			return nil
		}
		if g, _ := s.groups.Get(id); g.admits(m) {
			return g
		}
		mine = rest
	}
}

// firstCommon returns the first element that is in both sorted lists and the rest of the
// first list after it, or an empty ID if there is none.
func firstCommon(a, b []GroupID) (first GroupID, rest []GroupID) {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch cmp.Compare(a[i], b[j]) {
		case 0:
			return a[i], a[i+1:]
		case -1:
			i++
		default:
			j++
		}
	}
	return "", nil
}

// sharedWith reports whether a share names the caller or the caller is in a group with
// another member (spec/routing.md#shared-with), regardless of the key's reach.
func (w *walk) sharedWith() bool {
	if len(w.me.shares) > 0 {
		return true
	}
	return slices.ContainsFunc(w.me.groups, func(id GroupID) bool {
		g, _ := w.s.groups.Get(id)
		return len(g.members) > 1
	})
}
