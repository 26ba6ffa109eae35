package fleet

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// State is what one reachable machine that offers the model is to one caller
// (decisions 2). Of two ways to reach a machine the one with the higher State is
// the better one.
type State uint8

// The states, in the order in which the first that fits is the machine's.
const (
	Offline      State = iota // no live tunnel, or held out for flapping
	Returning                 // its tunnel was lost just now; counts as busy
	OutsideHours              // not the caller's own, and outside its hours or those of the limits
	Paused                    // by its owner
	Spent                     // the limits' calls of the day are used up
	Busy                      // no free slot for this call, or the limits' calls at once are running, or the machine is left out
	Ready
	states // how many there are
)

// String is the state as a person reads it.
func (s State) String() string {
	return [...]string{"offline", "returning", "outside hours", "paused", "spent", "busy", "ready"}[s]
}

// Standing is why a caller reaches a machine: it is the caller's own, its owner
// shares with the caller, or both are in a group. Where a share of the owner
// names the caller, that share alone decides between the two of them, and a
// group that both are in adds nothing (decisions 1, share).
type Standing struct {
	Class  Class
	shares []naming // from the owner to the caller; none unless Class is Shared

	// Where Class is Grouped: the first group in common that the machine serves,
	// and what next finds the others by. A group that is nil is no way.
	group     *circle
	snapshot  *Snapshot
	me, owner *person
}

// next is the group in common after that one that the machine serves; nil: none.
func (st *Standing) next(c *circle, m *Machine) *circle {
	at, _ := slices.BinarySearch(st.me.groups, c.ID)
	return st.snapshot.common(st.me.groups[at+1:], st.owner.groups, m)
}

// Candidate is a machine a call may be sent to, and what allows it.
type Candidate struct {
	Machine *Machine
	Offer   *Offer
	Class   Class
	Share   *Share  // nil unless Class is Shared
	Group   *Group  // nil unless Class is Grouped
	Limits  *Limits // of Share or Group, that the call counts against; nil: none
}

// GroupID names the group by which the caller reaches the machine; empty: by none.
func (c *Candidate) GroupID() GroupID {
	if c.Group == nil {
		return ""
	}
	return c.Group.ID
}

// Sighting is one reachable machine that offers a model, as a caller sees it.
type Sighting struct {
	Candidate
	State State

	free, total int // slots, of the machine or of the model: whichever is scarcer
}

// Sight is what the machine is to the caller for one of its offers at that time;
// false if no way to the machine covers the model.
func (st Standing) Sight(m *Machine, o *Offer, now time.Time) (Sighting, bool) {
	var sighting Sighting
	ok := st.sight(&sighting, m, o, now, nil)
	return sighting, ok
}

// Owed is how many free slots of a machine, and how many of those it has for
// the model, are owed to waiters who go before the call that asks.
type Owed func(machine MachineID, model ModelID) (ofMachine, ofModel int)

// sight writes into best, which it alone knows until it returns: this runs for
// every machine of a decision, and copies of it would be half of the time. Of
// several ways that cover the model the one with the highest State is taken, of
// groups that are equal the one without limits, else the first.
func (st *Standing) sight(best *Sighting, m *Machine, o *Offer, now time.Time, owed Owed) bool {
	*best = Sighting{Candidate: Candidate{Machine: m, Offer: o, Class: st.Class}}
	best.free, best.total = m.room(o, owed)
	room, found := best.free > 0 && !o.Load.Record(st.Class).leftOutAt(now), false
	if st.Class == Own {
		best.State = m.state(Own, nil, now, room)
		return true
	}
	for i := range st.shares {
		share := st.shares[i].Share
		if !share.covers(o.ID) {
			continue
		}
		if state := m.state(Shared, &share.Limits, now, room); !found || state > best.State {
			found, best.State, best.Share, best.Limits = true, state, share, &share.Limits
		}
	}
	if st.group != nil {
		room = room && (o.Load.proven(Grouped) || o.Load.InFlight() == 0)
	}
	for c := st.group; c != nil; c = st.next(c, m) {
		limits := c.Limits[m.Owner]
		if !limits.covers(o.ID) {
			continue
		}
		if state := m.state(Grouped, limits, now, room); !found || state > best.State || limits == nil {
			found, best.State, best.Group, best.Limits = true, state, c.Group, limits
		}
		if limits == nil { // no other way gives more
			break
		}
	}
	return found
}

// state is the table of decisions 2, row by row; limits are those of the way by
// which the caller reaches the machine, and room says that a slot is free for this
// call and reserved for no other, and that the machine is not left out.
func (m *Machine) state(class Class, limits *Limits, now time.Time, room bool) State {
	switch {
	case !m.Online && now.Before(m.ReturningUntil):
		return Returning
	case !m.Online, m.Load.heldOut.Load() > now.UnixNano():
		return Offline
	case class != Own && !m.Hours.Open(now), limits != nil && !limits.Hours.openIn(now, m.Hours.zone):
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

// room is how many slots are free for one more call of the offer, and of how
// many: the machine's own or the model's, whichever has the smaller part free.
func (m *Machine) room(o *Offer, owed Owed) (free, total int) {
	var owedMachine, owedModel int
	if owed != nil {
		owedMachine, owedModel = owed(m.ID, o.ID)
	}
	free, total = m.Load.free(m.Slots)-owedMachine, m.Slots
	if o.Slots == 0 {
		return free, total
	}
	if f := o.Load.free(o.Slots) - owedModel; f*total < free*o.Slots {
		return f, o.Slots
	}
	return free, total
}

// Reach yields every machine the caller reaches under the key's narrowing, each
// once, own machines first, whatever it offers and whatever its state.
func (s *Snapshot) Reach(caller MemberID, narrow Narrow) iter.Seq2[*Machine, Standing] {
	return func(yield func(*Machine, Standing) bool) {
		w := newWalk(s, caller, narrow)
		w.all("", yield)
	}
}

// walk goes through what one caller reaches.
type walk struct {
	s      *Snapshot
	caller int // the caller's number
	me     *person
	narrow Narrow
}

func newWalk(s *Snapshot, caller MemberID, narrow Narrow) walk {
	n, me := s.find(caller)
	return walk{s: s, caller: n, me: me, narrow: narrow}
}

// all shows every machine in reach once, with the caller's standing; false
// from see ends it. With a model it looks, in groups, only at those who offer
// it; an empty model means whatever they offer.
func (w *walk) all(model ModelID, see func(*Machine, Standing) bool) {
	for _, m := range w.me.machines {
		if !see(m, Standing{Class: Own}) {
			return
		}
	}
	if w.narrow == OwnOnly || !w.shared(see) || w.narrow == OwnAndShared {
		return
	}
	for _, id := range w.me.groups {
		if !w.grouped(id, model, see) {
			return
		}
	}
}

// shared shows the machines of those who share with the caller.
func (w *walk) shared(see func(*Machine, Standing) bool) bool {
	shares := w.me.shares
	for len(shares) > 0 {
		n := 1
		for n < len(shares) && shares[n].owner == shares[0].owner {
			n++
		}
		owner := w.s.people.Get(shares[0].owner)
		for _, m := range owner.machines {
			if !see(m, Standing{Class: Shared, shares: shares[:n]}) {
				return false
			}
		}
		shares = shares[n:]
	}
	return true
}

// grouped shows the machines of one group, without those of owners who share
// with the caller, which the share decides about, and those of members of an
// earlier group, which were shown before.
func (w *walk) grouped(id GroupID, model ModelID, see func(*Machine, Standing) bool) bool {
	c, _ := w.s.groups.Get(id)
	if model == "" {
		for _, member := range c.members {
			if !w.member(c, member, see) {
				return false
			}
		}
		return true
	}
	of, ok := c.offering.Get(model)
	if !ok {
		return true
	}
	for it := of.Iterator(); !it.Done(); {
		if member, _, _ := it.Next(); !w.member(c, member, see) {
			return false
		}
	}
	return true
}

func (w *walk) member(c *circle, n int, see func(*Machine, Standing) bool) bool {
	if n == w.caller || w.sharer(n) {
		return true
	}
	p := w.s.people.Get(n)
	if first := w.me.groups[0]; c.ID != first {
		if first, _ = firstCommon(w.me.groups, p.groups); c.ID != first {
			return true
		}
	}
	for _, m := range p.machines {
		group := c
		if !c.admits(m) {
			group = w.s.common(w.me.groups, p.groups, m)
		}
		if group != nil && !see(m, Standing{Class: Grouped, group: group, snapshot: w.s, me: w.me, owner: p}) {
			return false
		}
	}
	return true
}

// standing is the caller's with one machine. To one out of reach there is no
// way in it, and so no sight of it.
func (w *walk) standing(m *Machine) Standing {
	n, known := w.s.owners.Get(m.ID)
	switch {
	case known && n == w.caller:
		return Standing{Class: Own}
	case !known || w.narrow == OwnOnly:
		return Standing{Class: Grouped}
	}
	if shares := w.sharesOf(n); len(shares) > 0 {
		return Standing{Class: Shared, shares: shares}
	}
	st := Standing{Class: Grouped, snapshot: w.s, me: w.me, owner: w.s.people.Get(n)}
	if w.narrow == Everything {
		st.group = w.s.common(w.me.groups, st.owner.groups, m)
	}
	return st
}

// Ways is every way by which the caller reaches another member's machine for
// the model: the shares that cover it, or, where its owner does not share with
// the caller at all, the groups they have in common that the machine serves and
// that its owner's limits cover the model for.
// Where one of them ends, a call goes on by another.
func (s *Snapshot) Ways(caller MemberID, m *Machine, model ModelID) (shares []*Share, groups []*Group) {
	n, known := s.owners.Get(m.ID)
	if !known || m.Owner == caller {
		return nil, nil
	}
	w := newWalk(s, caller, Everything)
	if naming := w.sharesOf(n); len(naming) > 0 {
		for _, share := range naming {
			if share.covers(model) {
				shares = append(shares, share.Share)
			}
		}
		return shares, nil
	}
	st := w.standing(m)
	for c := st.group; c != nil; c = st.next(c, m) {
		if c.Limits[m.Owner].covers(model) {
			groups = append(groups, c.Group)
		}
	}
	return nil, groups
}

// sharesOf is the shares from the member of that number to the caller.
func (w *walk) sharesOf(n int) []naming {
	from, _ := slices.BinarySearchFunc(w.me.shares, n, func(share naming, n int) int {
		return cmp.Compare(share.owner, n)
	})
	to := from
	for to < len(w.me.shares) && w.me.shares[to].owner == n {
		to++
	}
	return w.me.shares[from:to]
}

// sharer reports whether the member of that number shares with the caller.
func (w *walk) sharer(n int) bool { return len(w.sharesOf(n)) > 0 }

// common is the first group of both ordered lists that the machine serves, or nil.
func (s *Snapshot) common(mine, theirs []GroupID, m *Machine) *circle {
	for {
		id, rest := firstCommon(mine, theirs)
		if id == "" {
			return nil
		}
		if c, _ := s.groups.Get(id); c.admits(m) {
			return c
		}
		mine = rest
	}
}

// firstCommon is the first that two ordered lists have in common, and what
// follows it in the first list; empty if there is none.
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

// somebodyShares reports whether at least one share names the caller, or the
// caller is in a group with another member (decisions 1). A narrow key does not
// change who shares.
func (w *walk) somebodyShares() bool {
	if len(w.me.shares) > 0 {
		return true
	}
	return slices.ContainsFunc(w.me.groups, func(id GroupID) bool {
		c, _ := w.s.groups.Get(id)
		return len(c.members) > 1
	})
}
