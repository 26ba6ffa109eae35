package fleet

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"slices"
	"time"

	"github.com/benbjohnson/immutable"
)

// Snapshot is the state of one region's machines and members at one moment. It is
// immutable and persistent: every With method returns a new Snapshot that shares the
// unchanged parts, so its cost depends only on the size of the change. Any number of
// goroutines may read one; the With methods are for the single writer.
//
// Reach is derived from owners, shares and groups, and never expanded into pairs. A
// decision reads only the caller's own reach, two counts for each model and one for all
// speech models, so the time for a refusal does not depend on what others run
// (spec/routing.md#hidden).
type Snapshot struct {
	// Members are numbered in the order of their first appearance, and keep their numbers.
	// A slice is faster to read than a map, and a decision reads hundreds of members.
	numbers *immutable.Map[MemberID, int]
	people  *immutable.List[*person]
	owners  *immutable.Map[MachineID, int]
	groups  *immutable.Map[GroupID, *groupIndex]
	models  *immutable.Map[ModelID, offerCount]
	speech  int32                                  // offers for audio, of any model, online or not
	zones   *immutable.Map[string, *time.Location] // shared by all machines: one Location for each name
	seed    maphash.Seed
}

// person holds the machines, shares and groups of a member.
type person struct {
	machines []*Machine      // by ID
	shares   []incomingShare // to this member, by the owner's number
	groups   []GroupID       // in order
}

var noPerson person // never modified

// incomingShare is a share for a member, with the number of its owner.
type incomingShare struct {
	*Share
	owner int
}

// groupIndex is a group with an index of the members who offer each model.
type groupIndex struct {
	*Group
	ids      []MemberID  // Group.Members, sorted and without duplicates
	members  []int       // the members' numbers, sorted
	keptOut  []MachineID // Group.KeptOut, sorted
	offering *immutable.Map[ModelID, *immutable.Map[int, struct{}]]
}

// offerCount counts the region's machines that offer a model, by family: all, and those
// that calls can be sealed for.
type offerCount struct {
	all, sealed familyCount
	by          OfferedBy // of all.kept
}

// familyCount counts machines: online of those with a tunnel, kept of all.
type familyCount struct{ kept, online [families]int32 }

// OfferedBy identifies the set of machines that offer a model, with the keys that calls can
// be sealed for, to compare it at two points in time: different sets have different values.
type OfferedBy struct{ sum uint64 }

// hasher hashes identifiers with a seed of the process. Untrusted members choose model
// ids, and they must not be able to produce collisions.
type hasher[K ~string] struct{ seed maphash.Seed }

func (h hasher[K]) Hash(key K) uint32 { return uint32(maphash.String(h.seed, string(key))) }
func (h hasher[K]) Equal(a, b K) bool { return a == b }

// numbered hashes member numbers.
type numbered struct{}

func (numbered) Hash(n int) uint32   { return uint32(mix(uint64(n))) }
func (numbered) Equal(a, b int) bool { return a == b }

// NewSnapshot returns the Snapshot of an empty region.
func NewSnapshot() *Snapshot {
	seed := maphash.MakeSeed()
	return &Snapshot{
		numbers: immutable.NewMap[MemberID, int](hasher[MemberID]{seed}),
		people:  immutable.NewList[*person](),
		owners:  immutable.NewMap[MachineID, int](hasher[MachineID]{seed}),
		groups:  immutable.NewMap[GroupID, *groupIndex](hasher[GroupID]{seed}),
		models:  immutable.NewMap[ModelID, offerCount](hasher[ModelID]{seed}),
		zones:   immutable.NewMap[string, *time.Location](hasher[string]{seed}),
		seed:    seed,
	}
}

// Machine returns the machine with the given id, or nil.
func (s *Snapshot) Machine(id MachineID) *Machine {
	owner, ok := s.owners.Get(id)
	if !ok {
		return nil
	}
	machines := s.people.Get(owner).machines
	at, _ := slices.BinarySearchFunc(machines, id, compareID)
	return machines[at]
}

// OfferedBy identifies the machines of the region that offer the model, whether they are
// online or in reach, or not.
func (s *Snapshot) OfferedBy(model ModelID) OfferedBy {
	c, _ := s.models.Get(model)
	return c.by
}

// ShareOf returns the member's incoming share with the given id, or nil.
func (s *Snapshot) ShareOf(member MemberID, id ShareID) *Share {
	_, p := s.find(member)
	for i := range p.shares {
		if p.shares[i].ID == id {
			return p.shares[i].Share
		}
	}
	return nil
}

// Group returns the group with the given id, or nil.
func (s *Snapshot) Group(id GroupID) *Group {
	if g, ok := s.groups.Get(id); ok {
		return g.Group
	}
	return nil
}

// Machines yields every machine once.
func (s *Snapshot) Machines() iter.Seq[*Machine] {
	return func(yield func(*Machine) bool) {
		for it := s.people.Iterator(); !it.Done(); {
			_, p := it.Next()
			for _, m := range p.machines {
				if !yield(m) {
					return
				}
			}
		}
	}
}

// Shares yields every share once.
func (s *Snapshot) Shares() iter.Seq[*Share] {
	return func(yield func(*Share) bool) {
		for it := s.people.Iterator(); !it.Done(); {
			_, p := it.Next()
			for _, share := range p.shares {
				if !yield(share.Share) {
					return
				}
			}
		}
	}
}

// GroupsOf yields the member's groups, sorted by id.
func (s *Snapshot) GroupsOf(member MemberID) iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		_, p := s.find(member)
		for _, id := range p.groups {
			if !yield(s.Group(id)) {
				return
			}
		}
	}
}

// WithMachine adds the machine or replaces its previous version. The snapshot takes
// ownership of m. Loads that are nil are taken from the previous version, model by model,
// or created.
func (s *Snapshot) WithMachine(m *Machine) *Snapshot {
	before := s.Machine(m.ID)
	if before != nil && before.Owner != m.Owner {
		s = s.WithoutMachine(m.ID)
		before = nil
	}
	next := *s
	m.inherit(before)
	m.Hours.zone = next.zone(m.Hours.zone)
	owner := next.number(m.Owner)
	p := *next.people.Get(owner)
	at, found := slices.BinarySearchFunc(p.machines, m.ID, compareID)
	p.machines = slices.Clone(p.machines)
	if found {
		p.machines[at] = m
	} else {
		p.machines = slices.Insert(p.machines, at, m)
		next.owners = next.owners.Set(m.ID, owner)
	}
	next.people = next.people.Set(owner, &p)
	next.reindex(owner, before, m)
	return &next
}

// WithoutMachine removes the machine and its Loads.
func (s *Snapshot) WithoutMachine(id MachineID) *Snapshot {
	before := s.Machine(id)
	if before == nil {
		return s
	}
	next := *s
	owner := next.number(before.Owner)
	p := *next.people.Get(owner)
	p.machines = slices.DeleteFunc(slices.Clone(p.machines), func(m *Machine) bool { return m.ID == id })
	next.owners = next.owners.Delete(id)
	next.people = next.people.Set(owner, &p)
	next.reindex(owner, before, nil)
	return &next
}

// WithShares replaces all shares for the member. The snapshot takes ownership of them. A
// share that already existed keeps its Load.
func (s *Snapshot) WithShares(member MemberID, shares []*Share) *Snapshot {
	next := *s
	n := next.number(member)
	p := *next.people.Get(n)
	before := p.shares
	p.shares = nil
	for _, share := range shares {
		if share.Owner == member || share.Member != member {
			continue // members reach their own machines without a share
		}
		var was *Limits
		if i := slices.IndexFunc(before, func(b incomingShare) bool { return b.ID == share.ID }); i >= 0 {
			was = &before[i].Limits
		}
		share.inherit(was)
		p.shares = append(p.shares, incomingShare{share, next.number(share.Owner)})
	}
	slices.SortFunc(p.shares, func(a, b incomingShare) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.ID, b.ID))
	})
	next.people = next.people.Set(n, &p)
	return &next
}

// WithoutShare removes the owner's shares for the member.
func (s *Snapshot) WithoutShare(owner, member MemberID) *Snapshot {
	n, p := s.find(member)
	named := func(share incomingShare) bool { return share.Owner == owner }
	if !slices.ContainsFunc(p.shares, named) {
		return s
	}
	next, without := *s, *p
	without.shares = slices.DeleteFunc(slices.Clone(p.shares), named)
	next.people = next.people.Set(n, &without)
	return &next
}

// WithGroup adds the group or replaces its previous version. The snapshot takes ownership
// of g. An owner's limits that already existed keep their Load. The cost is a comparison
// per member, and an update per member who joined or left.
func (s *Snapshot) WithGroup(g *Group) *Snapshot {
	next := *s
	before, ok := next.groups.Get(g.ID)
	if !ok {
		before = &groupIndex{Group: new(Group), offering: immutable.NewMap[ModelID, *immutable.Map[int, struct{}]](hasher[ModelID]{s.seed})}
	}
	for owner, limits := range g.Limits {
		limits.inherit(before.Limits[owner])
	}
	c := &groupIndex{Group: g, ids: sorted(g.Members), keptOut: sorted(g.KeptOut), offering: before.offering}
	left := map[int]bool{}
	for id, joined := range difference(before.ids, c.ids) {
		member := next.number(id)
		if joined {
			c.members = append(c.members, member)
		} else {
			left[member] = true
		}
		for _, m := range next.setMembership(member, g.ID, joined).machines {
			for i := range m.Offers {
				c.list(m.Offers[i].ID, member, joined)
			}
		}
	}
	for _, member := range before.members {
		if !left[member] {
			c.members = append(c.members, member)
		}
	}
	slices.Sort(c.members)
	next.groups = next.groups.Set(g.ID, c)
	return &next
}

// WithoutGroup removes the group.
func (s *Snapshot) WithoutGroup(id GroupID) *Snapshot {
	c, ok := s.groups.Get(id)
	if !ok {
		return s
	}
	next := *s
	for _, member := range c.members {
		next.setMembership(member, id, false)
	}
	next.groups = next.groups.Delete(id)
	return &next
}

// find returns a member's number and data. For an unknown member it returns an unused
// number and empty data.
func (s *Snapshot) find(id MemberID) (int, *person) {
	n, ok := s.numbers.Get(id)
	if !ok {
		return s.people.Len(), &noPerson
	}
	return n, s.people.Get(n)
}

// The methods below modify a Snapshot that is not shared yet.

// number returns the number of a member. A new member gets the next number.
func (s *Snapshot) number(id MemberID) int {
	if n, ok := s.numbers.Get(id); ok {
		return n
	}
	n := s.people.Len()
	s.numbers = s.numbers.Set(id, n)
	s.people = s.people.Append(&noPerson)
	return n
}

// setMembership adds a group to a member's groups, or removes it.
func (s *Snapshot) setMembership(member int, group GroupID, joined bool) *person {
	p := *s.people.Get(member)
	p.groups = slices.DeleteFunc(slices.Clone(p.groups), func(g GroupID) bool { return g == group })
	if joined {
		p.groups = sorted(append(p.groups, group))
	}
	s.people = s.people.Set(member, &p)
	return &p
}

// zone returns the shared Location with the name of loc.
func (s *Snapshot) zone(loc *time.Location) *time.Location {
	if known, ok := s.zones.Get(loc.String()); ok {
		return known
	}
	s.zones = s.zones.Set(loc.String(), loc)
	return loc
}

// reindex updates the model indexes after one of the owner's machines changed. before and
// after may be nil.
func (s *Snapshot) reindex(owner int, before, after *Machine) {
	same := func(a, b Offer) bool { return a.ID == b.ID && a.Families == b.Families }
	if before != nil && after != nil && before.Online == after.Online && slices.Equal(before.Seals, after.Seals) && slices.EqualFunc(before.Offers, after.Offers, same) {
		return // the common case: only slots, pause or hours changed
	}
	for _, o := range before.offers() {
		s.reindexModel(o.ID, owner, before, after)
	}
	for _, o := range after.offers() {
		if before.Offer(o.ID) == nil {
			s.reindexModel(o.ID, owner, before, after)
		}
	}
}

func (s *Snapshot) reindexModel(model ModelID, owner int, before, after *Machine) {
	was, _ := s.models.Get(model)
	now := was.add(before, model, -1).add(after, model, 1)
	s.speech += now.all.kept[Audio] - was.all.kept[Audio]
	switch now {
	case was:
	case offerCount{}:
		s.models = s.models.Delete(model)
	default:
		s.models = s.models.Set(model, now)
	}
	if (before.Offer(model) == nil) == (after.Offer(model) == nil) {
		return
	}
	p := s.people.Get(owner)
	offers := slices.ContainsFunc(p.machines, func(m *Machine) bool { return m.Offer(model) != nil })
	for _, id := range p.groups {
		was, _ := s.groups.Get(id)
		c := *was
		c.list(model, owner, offers)
		s.groups = s.groups.Set(id, &c)
	}
}

// list adds the member to the members who offer the model, or removes it.
func (c *groupIndex) list(model ModelID, member int, offers bool) {
	of, ok := c.offering.Get(model)
	if !ok {
		of = immutable.NewMap[int, struct{}](numbered{})
	}
	if offers {
		of = of.Set(member, struct{}{})
	} else {
		of = of.Delete(member)
	}
	if of.Len() == 0 {
		c.offering = c.offering.Delete(model)
		return
	}
	c.offering = c.offering.Set(model, of)
}

// admits reports whether the machine serves the group: its owner excludes it neither from
// this group nor from all groups, and it is not restricted to other groups.
func (c *groupIndex) admits(m *Machine) bool {
	if m.KeptOut || m.Groups != nil && !slices.Contains(m.Groups, c.Name) {
		return false
	}
	_, out := slices.BinarySearch(c.keptOut, m.ID)
	return !out
}

// add returns the counts after adding the machine n times, if it offers the model.
func (c offerCount) add(m *Machine, model ModelID, n int32) offerCount {
	o := m.Offer(model)
	if o == nil {
		return c
	}
	state := m.tieBreaker
	for _, key := range m.Seals {
		state = mix(state ^ binary.BigEndian.Uint64(key[:]))
	}
	for f := range o.Families.All() {
		c.all.add(f, m.Online, n)
		if len(m.Seals) > 0 {
			c.sealed.add(f, m.Online, n)
		}
		c.by.sum += uint64(n) * mix(state+uint64(f))
	}
	return c
}

func (c *familyCount) add(f Family, online bool, n int32) {
	c.kept[f] += n
	if online {
		c.online[f] += n
	}
}

// sorted returns a sorted copy without duplicates.
func sorted[S ~[]E, E cmp.Ordered](s S) S {
	s = slices.Clone(s)
	slices.Sort(s)
	return slices.Compact(s)
}

// difference yields the elements that are in only one of two sorted lists; the bool is
// true if that is after.
func difference[E cmp.Ordered](before, after []E) iter.Seq2[E, bool] {
	return func(yield func(E, bool) bool) {
		for len(before) > 0 || len(after) > 0 {
			switch {
			case len(after) == 0 || len(before) > 0 && before[0] < after[0]:
				if !yield(before[0], false) {
					return
				}
				before = before[1:]
			case len(before) == 0 || after[0] < before[0]:
				if !yield(after[0], true) {
					return
				}
				after = after[1:]
			default:
				before, after = before[1:], after[1:]
			}
		}
	}
}

func compareID(m *Machine, id MachineID) int { return cmp.Compare(m.ID, id) }
