package fleet

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Circle is a set of callers to whom a machine proves itself: its owner, the members with
// whom it is shared, or the members of one group. Proofs for one circle are not used for
// the others, because accounts of the same owner can prove anything to each other
// (spec/security.md#attracting).
type Circle struct {
	Class Class
	Group GroupID // if the class is Grouped
}

// Circle returns the circle that the candidate's caller belongs to.
func (c *Candidate) Circle() Circle {
	return Circle{c.Class, c.GroupID()}
}

// Alone reports whether the machine may run a call of the candidate's caller only while
// it runs no other, because it has not yet served a member of the group. It uses the same
// standing as the candidate's state, so that a ready machine has a slot.
func (c *Candidate) Alone() bool {
	return c.Class == Grouped && c.Standing == Unserved
}

// MarshalText implements encoding.TextMarshaler: "own", "shared", "group grp_1".
func (c Circle) MarshalText() ([]byte, error) {
	return []byte(strings.TrimSpace(c.Class.String() + " " + string(c.Group))), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Circle) UnmarshalText(text []byte) error {
	name, id, _ := strings.Cut(string(text), " ")
	for class := range classes {
		if class.String() == name && (class == Grouped) == (id != "") {
			*c = Circle{class, GroupID(id)}
			return nil
		}
	}
	return fmt.Errorf("unknown circle %q", text)
}

// Standing is how far a machine has proven itself to a group, for one model.
type Standing uint8

// The standings.
const (
	Unserved    Standing = iota // it has not served any member
	Newcomer                    // it has served a member
	Established                 // it has served EstablishedCalls calls of EstablishedMembers members
)

const (
	EstablishedCalls   = 20
	EstablishedMembers = 3
	// maxMembers is the number of a group's members that are checked for
	// EstablishedMembers.
	maxMembers = 1000
	// maxGroups bounds the number of groups with proofs for a model on a machine.
	maxGroups = 256
)

// Proof is what a machine has proven to one circle for one model.
type Proof struct {
	Measurements
	Standing Standing `json:",omitzero"`
	// Calls is how many calls it served to the group, and Members are some of the members
	// who made them, at most EstablishedMembers. Of accounts that can also reach each
	// other in other ways, only one is included.
	Calls    int        `json:",omitzero"`
	Members  []MemberID `json:",omitzero"`
	ServedAt time.Time  `json:",omitzero"` // when it last served the group
}

// last returns when the proof last changed. Measurements.At only covers the measurements:
// serving a call without a measurement must not make them count as newer.
func (p *Proof) last() time.Time {
	if p.ServedAt.After(p.At) {
		return p.ServedAt
	}
	return p.At
}

// proof is a Proof that is in use.
type proof struct {
	tried    atomic.Int64          // when a call was last sent to measure the machine, in Unix nanoseconds
	tries    atomic.Int32          // how many such calls resulted in no measurement
	speed    atomic.Pointer[Speed] // nil: not measured
	standing atomic.Uint32

	mu   sync.Mutex
	kept Proof
}

// Standing returns the machine's standing in the group. A nil proof is Unserved.
func (p *proof) Standing() Standing {
	if p == nil {
		return Unserved
	}
	return Standing(p.standing.Load())
}

// proof returns the proof for a circle, or nil if there is none.
func (l *Load) proof(c Circle) *proof {
	k := l.learned.Load()
	if k == nil {
		return nil
	}
	if c.Class < Grouped {
		return k.direct[c.Class].Load()
	}
	if groups := k.groups.Load(); groups != nil {
		return (*groups)[c.Group]
	}
	return nil
}

// proofs yields the proofs with their circles.
func (l *Load) proofs() iter.Seq2[Circle, *proof] {
	return func(yield func(Circle, *proof) bool) {
		k := l.learned.Load()
		if k == nil {
			return
		}
		for class := range k.direct {
			if p := k.direct[class].Load(); p != nil && !yield(Circle{Class: Class(class)}, p) {
				return
			}
		}
		if groups := k.groups.Load(); groups != nil {
			for id, p := range *groups {
				if !yield(Circle{Grouped, id}, p) {
					return
				}
			}
		}
	}
}

// isProven reports whether there is a proof for any circle.
func (l *Load) isProven() bool {
	for range l.proofs() {
		return true
	}
	return false
}

// prove returns the proof for a circle for modification. It creates it if necessary.
func (l *Load) prove(c Circle) *proof {
	if p := l.proof(c); p != nil {
		return p
	}
	k := l.learn()
	k.adding.Lock()
	defer k.adding.Unlock()
	if p := l.proof(c); p != nil { // added in the meantime
		return p
	}
	p := new(proof)
	if c.Class < Grouped {
		k.direct[c.Class].Store(p)
		return p
	}
	groups := make(map[GroupID]*proof)
	if before := k.groups.Load(); before != nil {
		groups = maps.Clone(*before)
	}
	if len(groups) >= maxGroups {
		delete(groups, oldest(groups))
	}
	groups[c.Group] = p
	k.groups.Store(&groups)
	return p
}

// oldest returns the group with the oldest proof.
func oldest(groups map[GroupID]*proof) (out GroupID) {
	var at time.Time
	for id, p := range groups {
		p.mu.Lock()
		if last := p.kept.last(); out == "" || last.Before(at) {
			out, at = id, last
		}
		p.mu.Unlock()
	}
	return out
}

// Standing returns the machine's standing for the model, and the calls and members behind
// it.
func (l *Load) Standing(c Circle) (standing Standing, calls, members int) {
	p := l.proof(c)
	if p == nil {
		return Unserved, 0, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Standing(), p.kept.Calls, len(p.kept.Members)
}

// ServedGroup records that the machine served a complete answer to a member of a group.
// It reports whether this raised the machine's standing (spec/routing.md#standing).
func (l *Load) ServedGroup(s *Snapshot, g *Group, owner, caller MemberID, now time.Time) (rose bool) {
	p := l.prove(Circle{Grouped, g.ID})
	p.mu.Lock()
	defer p.mu.Unlock()
	k := &p.kept
	before := k.Standing
	if k.ServedAt = now; before == Established {
		return false
	}
	needed := s.independent(g, owner)
	if !s.connected(g.ID, caller, owner) {
		k.Calls++
		if len(k.Members) < EstablishedMembers && !s.connected(g.ID, caller, k.Members...) {
			k.Members = append(k.Members, caller)
		}
	}
	switch {
	case needed == 0, k.Calls >= EstablishedCalls && len(k.Members) >= needed:
		k.Standing = Established
	case k.Calls > 0:
		k.Standing = Newcomer
	}
	p.standing.Store(uint32(k.Standing))
	return k.Standing > before
}

// RaiseStanding records that the machine served a call of a group through another node.
func (l *Load) RaiseStanding(c Circle) {
	p := l.prove(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept.Standing = max(p.kept.Standing, Newcomer)
	p.standing.Store(uint32(p.kept.Standing))
}

// Proofs returns copies of the proofs by circle, and the time of the newest.
func (l *Load) Proofs() (proofs map[Circle]Proof, at time.Time) {
	proofs = make(map[Circle]Proof)
	for c, p := range l.proofs() {
		p.mu.Lock()
		kept := p.kept
		kept.Measurements, kept.Members = kept.clone(), slices.Clone(kept.Members)
		p.mu.Unlock()
		last := kept.last()
		if last.IsZero() {
			continue
		}
		proofs[c] = kept
		if last.After(at) {
			at = last
		}
	}
	return proofs, at
}

// SetProofs merges proofs of another node, or of this node before a restart: for each
// circle it keeps the newer measurements and the higher standing. It reports whether a
// speed changed.
func (l *Load) SetProofs(proofs map[Circle]Proof) (changed bool) {
	for c, x := range proofs {
		if !x.valid() || x.Standing > Established || len(x.Members) > EstablishedMembers || x.Calls < 0 || len(proofs) > maxGroups+int(Grouped) {
			continue
		}
		p := l.prove(c)
		p.mu.Lock()
		k := &p.kept
		if x.At.After(k.At) {
			k.Measurements = x.clone()
			p.speed.Store(k.Speed())
			changed = true
		}
		k.Standing = max(k.Standing, x.Standing)
		k.Calls = max(k.Calls, x.Calls)
		if x.ServedAt.After(k.ServedAt) {
			k.ServedAt = x.ServedAt
		}
		if len(x.Members) > len(k.Members) {
			k.Members = slices.Clone(x.Members)
		}
		p.standing.Store(uint32(k.Standing))
		p.mu.Unlock()
	}
	return changed
}

// standing returns the standing of a machine in the group with the given proof.
func (g *Group) standing(m *Machine, p *proof) Standing {
	if slices.Contains(g.Pinned, m.ID) {
		return Established
	}
	return p.Standing()
}

// independent returns the number of members in a group, at most EstablishedMembers, who
// can reach neither the owner nor each other in other ways.
func (s *Snapshot) independent(g *Group, owner MemberID) int {
	found := append(make([]MemberID, 0, 1+EstablishedMembers), owner)
	for _, member := range g.Members[:min(len(g.Members), maxMembers)] {
		if len(found) <= EstablishedMembers && !s.connected(g.ID, member, found...) {
			found = append(found, member)
		}
	}
	return len(found) - 1
}

// connected reports whether a member of a group is one of the others, or is connected
// with one of them in another way: by a share in either direction or by another group.
// Open groups do not count, because anyone can join them.
func (s *Snapshot) connected(group GroupID, member MemberID, others ...MemberID) bool {
	n, p := s.find(member)
	return slices.ContainsFunc(others, func(other MemberID) bool {
		m, q := s.find(other)
		return member == other || p.sharedBy(m) || q.sharedBy(n) || slices.ContainsFunc(p.groups, func(id GroupID) bool {
			return id != group && slices.Contains(q.groups, id) && !s.group(id).Open
		})
	})
}

// sharedBy reports whether the owner with the given number shares with the person.
func (p *person) sharedBy(owner int) bool {
	return slices.ContainsFunc(p.shares, func(share incomingShare) bool { return share.owner == owner })
}
