package fleet

import (
	"hash/fnv"
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Set is a set of families or endpoints.
type Set[T ~uint8] uint8

// FamilySet is a set of families.
type FamilySet = Set[Family]

// EndpointSet is a set of endpoints.
type EndpointSet = Set[Endpoint]

// Families returns the set of those families.
func Families(of ...Family) FamilySet { return setOf(of) }

// Endpoints returns the set of those endpoints.
func Endpoints(of ...Endpoint) EndpointSet { return setOf(of) }

func setOf[T ~uint8](of []T) Set[T] {
	var set Set[T]
	for _, v := range of {
		set |= 1 << v
	}
	return set
}

// Has reports whether v is in the set.
func (s Set[T]) Has(v T) bool { return s&(1<<v) != 0 }

// All yields the elements of the set in the order of their constants.
func (s Set[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for v := T(0); s>>v != 0; v++ {
			if s.Has(v) && !yield(v) {
				return
			}
		}
	}
}

// Offer is one model that a machine advertises (spec/routing.md#offer).
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
// last advertisement. After a call of WithMachine only its Loads change.
type Machine struct {
	ID        MachineID
	Owner     MemberID
	OwnerName string
	Name      string
	Created   time.Time
	// Online says that a tunnel is live and acknowledged.
	Online bool
	// Elsewhere says that the tunnel ends at another hub node, which grants its slots and
	// counts the limits of its owner.
	Elsewhere bool
	// ReturningUntil is, for a machine that is not online, the end of the time in
	// which it is expected back (spec/routing.md#returning). The zero time: it is not.
	ReturningUntil time.Time
	// Generation numbers the machine's tunnels; a newer one replaces the older.
	Generation int64
	Paused     bool
	// PausedUntil is when the pause ends by itself; the zero time: its owner ends it.
	PausedUntil time.Time
	Hours       Hours
	// KeptOut says that its owner keeps it out of every group.
	KeptOut bool
	// Groups are the names of the only groups that it serves; nil: every group of its
	// owner.
	Groups []string
	// Slots is how many requests it runs at once in all.
	Slots  int
	Offers []Offer
	// Load is the machine's, all models together; nil until the machine is in a Snapshot.
	Load *Load

	tieBreaker uint64 // derived from ID
	// withdrawn are the Loads of models that it no longer offers, whose records apply
	// again when it offers them again.
	withdrawn map[ModelID]*Load
}

// maxWithdrawn bounds Machine.withdrawn.
const maxWithdrawn = 256

// Offer returns the machine's offer of exactly that id, or nil. A nil Machine offers
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

// speech returns how many of the machine's offers are for audio.
func (m *Machine) speech() (n int32) {
	for _, o := range m.offers() {
		if o.Families.Has(Audio) {
			n++
		}
	}
	return n
}

// Reserve takes one slot of the machine for the model, if both have one free; with alone,
// only if the model has no other call. If it returns true the slot is held until Release.
// It is safe for concurrent use.
func (m *Machine) Reserve(model ModelID, alone bool) bool {
	o := m.Offer(model)
	if o == nil || !m.Load.reserve(m.Slots, false) {
		return false
	}
	if !o.Load.reserve(o.limit(), alone) {
		m.Load.release()
		return false
	}
	return true
}

// Release frees a slot that Reserve took; it is called exactly once for each.
func (m *Machine) Release(model ModelID) {
	m.Offer(model).Load.release()
	m.Load.release()
}

// AddSlots counts n more slots, or fewer if n is negative, for a call that Reserve
// took one for: a call for several answers is as many calls to its engine. The slots
// need not be free, so that such a call waits no longer than others.
func (m *Machine) AddSlots(model ModelID, n int) {
	m.Offer(model).Load.inFlight.Add(int64(n))
	m.Load.inFlight.Add(int64(n))
}

// FreeSlots returns how many slots of the machine are free now; it is not positive when
// the machine runs all it may.
func (m *Machine) FreeSlots() int { return m.Load.free(m.Slots) }

// Accepts reports whether the machine would accept calls of others at that time, if
// it had a free slot: it is online, within its hours, not paused, not held out.
func (m *Machine) Accepts(now time.Time) bool { return m.state(Grouped, nil, now, true) == Ready }

// limit returns how many requests the offer runs at once.
func (o *Offer) limit() int {
	if o.Slots == 0 {
		return math.MaxInt
	}
	return o.Slots
}

// Load is what changes on a machine, or on one model of it, from call to call.
// It is the only mutable part of a Snapshot: its numbers are atomic, and all versions
// of a machine share it. The zero Load is idle.
type Load struct {
	inFlight atomic.Int64 // reserved by this hub
	local    atomic.Int64 // held by others, as the machine advertised
	heldOut  atomic.Int64 // until this time, Unix nanoseconds
	// learned is what calls have shown; nil: nothing, as of most machines that are known
	// to a node, and of a machine's own Load.
	learned atomic.Pointer[learned]
}

// learned is what calls have shown of one model on a machine.
type learned struct {
	own, others Record
	direct      [Grouped]atomic.Pointer[proof]     // to the owner, and by shares
	groups      atomic.Pointer[map[GroupID]*proof] // the map is never changed
	adding      sync.Mutex                         // held while a proof is added
}

// learn returns what calls have shown, for a change of it.
func (l *Load) learn() *learned {
	if l.learned.Load() == nil {
		l.learned.CompareAndSwap(nil, new(learned))
	}
	return l.learned.Load()
}

// InFlight returns how many slots are reserved.
func (l *Load) InFlight() int { return int(l.inFlight.Load()) }

// Used returns how many slots are in use, by this hub's calls or others.
func (l *Load) Used() int { return int(l.inFlight.Load() + l.local.Load()) }

// SetLocal sets how many slots other things than this hub's calls hold, as the
// machine advertised last.
func (l *Load) SetLocal(slots int) { l.local.Store(int64(slots)) }

// HoldOut keeps a machine that flaps out of every decision until then: it counts as
// offline, so that no call waits for it. It applies to a machine's Load only.
func (l *Load) HoldOut(until time.Time) { l.heldOut.Store(until.UnixNano()) }

// free returns what is left of so many slots; negative when their number was reduced.
func (l *Load) free(slots int) int {
	return slots - int(l.inFlight.Load()) - int(l.local.Load())
}

// reserve takes one of so many slots; with alone, only if this hub holds none.
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

// inherit gives the machine the Loads of the version before it, or new ones, and its
// tieBreaker. Of its offers it writes only what is missing: a copy of a machine shares
// them with one that is already in use.
func (m *Machine) inherit(before *Machine) {
	m.tieBreaker = tieBreaker(m.ID)
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

// withdrawnSince returns what withdrawn has to hold after that version of the machine.
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

// tieBreaker returns a number that is the same in every process, so that the same draw
// breaks a tie the same way everywhere.
func tieBreaker(id MachineID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // it never fails
	return h.Sum64()
}

// StoredMachine is a machine as the store keeps it over a restart of the hub, with its
// last advertisement as it was received, which registry parses.
type StoredMachine struct {
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
