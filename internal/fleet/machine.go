package fleet

import (
	"iter"
	"math"
	"sync/atomic"
	"time"
)

// FamilySet is a set of families.
type FamilySet uint8

// Families is the set of those families.
func Families(of ...Family) FamilySet {
	var set FamilySet
	for _, f := range of {
		set |= 1 << f
	}
	return set
}

// Has reports whether the family is in the set.
func (s FamilySet) Has(f Family) bool { return s&(1<<f) != 0 }

// All yields the families of the set in the order of their constants.
func (s FamilySet) All() iter.Seq[Family] {
	return func(yield func(Family) bool) {
		for f := range families {
			if s.Has(f) && !yield(f) {
				return
			}
		}
	}
}

// EndpointSet is a set of endpoints.
type EndpointSet uint8

// Endpoints is the set of those endpoints.
func Endpoints(of ...Endpoint) EndpointSet {
	var set EndpointSet
	for _, e := range of {
		set |= 1 << e
	}
	return set
}

// Has reports whether the endpoint is in the set.
func (s EndpointSet) Has(e Endpoint) bool { return s&(1<<e) != 0 }

// All yields the endpoints of the set in the order of their constants.
func (s EndpointSet) All() iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		for e := range endpoints {
			if s.Has(e) && !yield(e) {
				return
			}
		}
	}
}

// Offer is one model a machine advertises (decisions 1). A machine has at most
// one offer with an id.
type Offer struct {
	ID            ModelID
	Families      FamilySet
	Endpoints     EndpointSet // what its engine speaks natively
	ContextLength int         // tokens; 0: unknown
	Capabilities  []string
	Slots         int // requests at once; 0: only the machine's total counts
	Engine        string
	// Load is the model's own on this machine; nil until the machine is in a
	// Snapshot.
	Load *Load
}

// Machine is a member's computer as the hub knows it: online, or kept from its
// last advertisement. Once WithMachine was given it, only the Loads change.
type Machine struct {
	ID        MachineID
	Owner     MemberID
	OwnerName string
	Name      string
	Created   time.Time
	// Online says that a tunnel is live and acknowledged.
	Online bool
	// ReturningUntil is, while the machine is not online, the end of the time in
	// which it is expected back: 10 s after its tunnel was lost, 30 s after the
	// hub's start (decisions 2). The zero time: it is not expected.
	ReturningUntil time.Time
	// Generation numbers the machine's tunnels; a newer one fences the older.
	Generation int64
	Paused     bool
	Hours      Hours
	// KeptOut says that its owner keeps it out of every group.
	KeptOut bool
	// Groups are the names of the only groups that it serves; nil: every one of
	// its owner's.
	Groups []string
	// Slots is how many requests it runs at once in all.
	Slots  int
	Offers []Offer
	// Load is the whole machine's; nil until the machine is in a Snapshot.
	Load *Load

	mark uint64 // a number of its own, made from ID, that breaks ties
	// withdrawn are the Loads of models that it no longer offers: their records
	// hold when it offers them again.
	withdrawn map[ModelID]*Load
}

// maxWithdrawn bounds Machine.withdrawn.
const maxWithdrawn = 256

// Offer is the machine's offer of exactly that id, or nil. A nil Machine offers
// nothing.
func (m *Machine) Offer(model ModelID) *Offer {
	offers := m.offers()
	for i := range offers {
		if offers[i].ID == model {
			return &offers[i]
		}
	}
	return nil
}

func (m *Machine) offers() []Offer {
	if m == nil {
		return nil
	}
	return m.Offers
}

// speech is how many of the machine's offers are for audio.
func (m *Machine) speech() (n int32) {
	for _, o := range m.offers() {
		if o.Families.Has(Audio) {
			n++
		}
	}
	return n
}

// Reserve takes one slot of the machine for the model, if both have one free for
// a caller of that class: true means it is held until Release. Safe with any
// number of others.
func (m *Machine) Reserve(model ModelID, class Class) bool {
	o := m.Offer(model)
	if o == nil || !m.Load.reserve(m.Slots, false) {
		return false
	}
	if !o.Load.reserve(o.limit(), !o.Load.proven(class)) {
		m.Load.release()
		return false
	}
	return true
}

// Release gives a slot back that Reserve took; exactly once for each.
func (m *Machine) Release(model ModelID) {
	m.Offer(model).Load.release()
	m.Load.release()
}

// Widen counts n more slots, or fewer where n is negative, for a call that Reserve
// took one for: one that asks for several answers is so many calls to its engine.
// They need not be free, so that such a call waits no longer than others; until it
// ends, the machine has that much less for others.
func (m *Machine) Widen(model ModelID, n int) {
	m.Offer(model).Load.inFlight.Add(int64(n))
	m.Load.inFlight.Add(int64(n))
}

// Free is how many slots the machine has free now, whatever for; none or fewer
// when it runs all it may.
func (m *Machine) Free() int { return m.Load.free(m.Slots) }

// Takes reports whether the machine would take calls of others at that time, if
// it had a slot free: online, within its hours, not paused, not held out.
func (m *Machine) Takes(now time.Time) bool { return m.state(Grouped, nil, now, true) == Ready }

// limit is how many requests the offer runs at once.
func (o *Offer) limit() int {
	if o.Slots == 0 {
		return math.MaxInt
	}
	return o.Slots
}

// Load is what changes on a machine, or on one model of it, from call to call.
// It is the one thing in a Snapshot that is not immutable: its numbers are
// atomic, and all versions of a machine share it. The zero Load is idle.
type Load struct {
	inFlight atomic.Int64 // reserved by this hub
	local    atomic.Int64 // held by others, as the machine advertised
	heldOut  atomic.Int64 // until this time, Unix nanoseconds
	ttft     atomic.Int64 // recent time to first token, nanoseconds; 0: unknown

	own, others Record // of an offer
}

// InFlight is how many slots Reserve holds.
func (l *Load) InFlight() int { return int(l.inFlight.Load()) }

// SetLocal says how many slots others than this hub's calls hold, as the
// machine advertised last.
func (l *Load) SetLocal(slots int) { l.local.Store(int64(slots)) }

// HoldOut keeps a machine that flaps out of every decision until then: an
// online machine that is held out counts as offline, so that nobody waits for
// it. A machine's Load only; no meaning on an offer's.
func (l *Load) HoldOut(until time.Time) { l.heldOut.Store(until.UnixNano()) }

// TTFT is the recent time to first token; 0: not measured yet.
func (l *Load) TTFT() time.Duration { return time.Duration(l.ttft.Load()) }

// ObserveTTFT takes one measured time to first token into the running mean, in
// which each weighs an eighth; of two at one instant only one may count. An
// offer's Load is what Route looks at.
func (l *Load) ObserveTTFT(d time.Duration) {
	mean := d
	if old := l.TTFT(); old != 0 {
		mean = old + (d-old)/8
	}
	l.ttft.Store(int64(mean))
}

// free is what is left of so many slots; negative when they were made fewer.
func (l *Load) free(slots int) int {
	return slots - int(l.inFlight.Load()) - int(l.local.Load())
}

// reserve takes one of so many slots; alone: only if this hub holds none.
func (l *Load) reserve(slots int, alone bool) bool {
	for {
		n := l.inFlight.Load()
		if int(n) >= slots-int(l.local.Load()) || alone && n > 0 {
			return false
		}
		if l.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (l *Load) release() { l.inFlight.Add(-1) }

// settle gives the machine what it needs in a Snapshot: the Loads of the
// version before it, or new ones, and its mark. Of its offers it writes only what
// is missing, because a copy of a machine has those of one that is shared already.
func (m *Machine) settle(before *Machine) {
	m.mark = fnv1a(string(m.ID))
	if m.Load == nil && before != nil {
		m.Load = before.Load
	}
	if m.Load == nil {
		m.Load = new(Load)
	}
	for i := range m.Offers {
		o := &m.Offers[i]
		if was := before.Offer(o.ID); o.Load == nil && was != nil {
			o.Load = was.Load
		}
		if o.Load == nil && before != nil {
			o.Load = before.withdrawn[o.ID]
		}
		if o.Load == nil {
			o.Load = new(Load)
		}
	}
	m.withdrawn = m.withdrawnSince(before)
}

// withdrawnSince is what withdrawn has to hold after that version of the machine.
func (m *Machine) withdrawnSince(before *Machine) map[ModelID]*Load {
	if before == nil {
		return nil
	}
	var out map[ModelID]*Load
	keep := func(id ModelID, l *Load) {
		if len(out) == maxWithdrawn || m.Offer(id) != nil {
			return
		}
		if out == nil {
			out = make(map[ModelID]*Load)
		}
		out[id] = l
	}
	for id, l := range before.withdrawn {
		keep(id, l)
	}
	for i := range before.Offers {
		if o := &before.Offers[i]; o.Load.known() {
			keep(o.ID, o.Load)
		}
	}
	return out
}

// fnv1a is the 64-bit FNV-1a hash: the same in every process, so that the same
// draw breaks a tie the same way everywhere.
func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// Kept is a machine as the store keeps it over a restart of the hub: whose it
// is, and its last advertisement as it came, which registry reads.
type Kept struct {
	ID            MachineID
	Owner         MemberID
	OwnerName     string
	Name          string
	Generation    int64  // of its newest tunnel
	Advertisement []byte // JSON; nil: it never connected
	KeptOut       bool   // out of every group
	LastSeen      time.Time
	Created       time.Time
}
