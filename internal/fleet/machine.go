package fleet

import (
	"errors"
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

// Families returns the set of the given families.
func Families(of ...Family) FamilySet { return setOf(of) }

// Endpoints returns the set of the given endpoints.
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
	Endpoints     EndpointSet // native to the machine's engine
	ContextLength int         // tokens; 0: unknown
	Capabilities  []string
	Slots         int // concurrent requests; 0: only the machine's Slots limit them
	Engine        string
	// Facts are for people. Route does not read them.
	Facts ModelFacts
	// Load is the load of this model on this machine. It is nil until the machine is in a
	// Snapshot.
	Load *Load
}

// Machine is a member's computer as the hub knows it: either online or restored from its
// last advertisement. After WithMachine only its Loads change.
type Machine struct {
	ID        MachineID
	Owner     MemberID
	OwnerName string
	Name      string
	Created   time.Time
	// Online reports that the machine has an acknowledged tunnel.
	Online bool
	// Remote reports that the tunnel ends at another hub node, which reserves the
	// machine's slots and counts its owner's limits.
	Remote bool
	// ReturningUntil is set for a machine that is offline but expected back: the end of
	// the time in which it counts as returning (spec/routing.md#returning). Otherwise it
	// is zero.
	ReturningUntil time.Time
	// LastSeen is when the machine was last connected, if it is offline.
	LastSeen time.Time
	// Generation numbers the machine's tunnels; a newer one replaces the older.
	Generation int64
	Paused     bool
	// PausedUntil is when the pause ends automatically; zero if the owner must end it.
	PausedUntil time.Time
	Hours       Hours
	// KeptOut reports that the owner excludes the machine from all groups.
	KeptOut bool
	// Groups are the names of the groups that the machine serves; nil: all groups of its
	// owner.
	Groups []string
	// Slots is the total number of concurrent requests.
	Slots  int
	Offers []Offer
	// Seals are the keys that calls can be sealed for, the newest first; nil: none.
	Seals []SealKey
	// Facts are for people. Route does not read them. Nil: unknown.
	Facts *MachineFacts
	// ShowsClass reports that the owner lets others see the sizes of its GPUs and memory.
	ShowsClass bool
	// Load is the load of the machine for all models together. It is nil until the machine
	// is in a Snapshot.
	Load *Load

	tieBreaker uint64 // derived from ID
	// withdrawn holds the Loads of models that the machine no longer offers. They are used
	// again if it offers the model again.
	withdrawn map[ModelID]*Load
}

// maxWithdrawn bounds Machine.withdrawn.
const maxWithdrawn = 256

// ErrNotConnected is returned for a Control of a machine that is connected to no node.
var ErrNotConnected = errors.New("the machine is not connected")

// Control is a change of a machine's settings by its owner, on the site or with the CLI:
// the body of POST /control on the tunnel, and of the management API. A nil field leaves
// the setting unchanged.
type Control struct {
	// Paused stops or resumes accepting calls. Running calls finish.
	Paused *bool `json:"paused,omitzero"`
	// Until is when a pause ends automatically. The zero time means never. It belongs to
	// Paused: a change that sets only Paused removes the end.
	Until *time.Time `json:"until,omitzero"`
	// Hours are weekly windows in the format of ParseHours, in the IANA time zone
	// Timezone. Empty hours are a change: always.
	Hours    *string `json:"hours,omitzero"`
	Timezone *string `json:"timezone,omitzero"`
	// Slots is the number of concurrent calls; 0: as many as the engines allow.
	Slots *int `json:"slots,omitzero"`
	// Account gives the machine the account key of its owner: the base64 of the answer to
	// its ask (spec/sealed.md#approval).
	Account string `json:"account,omitzero"`
}

// ActiveCall is a call that runs on a machine, or that waits for one.
type ActiveCall struct {
	Caller  MemberID
	Name    string   // the caller's name
	Machine *Machine // nil: it waits
	Model   ModelID
	Class   Class     // how the caller reaches the machine
	Since   time.Time // when the call arrived
}

// Offer returns the machine's offer with exactly this id, or nil. A nil Machine offers
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

// Reserve reserves a slot of the machine for the model if both have a free one. With
// alone it succeeds only if this hub's node has no other call for the model. If it
// returns true, the slot is reserved until Release. It is safe for concurrent use.
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

// Accepts reports whether the machine would accept other members' calls at time now if it
// had a free slot: it is online, within its hours, not paused and not held out.
func (m *Machine) Accepts(now time.Time) bool { return m.state(Grouped, nil, now, true) == Ready }

// limit returns the number of concurrent requests of the offer.
func (o *Offer) limit() int {
	if o.Slots == 0 {
		return math.MaxInt
	}
	return o.Slots
}

// Load is the part of a machine, or of one of its models, that changes with every call.
// It is the only mutable part of a Snapshot: its counters are atomic, and all versions of
// a machine share them. The zero Load is idle.
type Load struct {
	inFlight atomic.Int64 // slots reserved by this hub
	local    atomic.Int64 // slots used by others, as last advertised
	heldOut  atomic.Int64 // held out until this time, in Unix nanoseconds
	// learned is what the results of calls have shown. It is nil for a machine's own Load
	// and, at a node, for most of the other machines.
	learned atomic.Pointer[learned]
}

// learned is what the results of calls have shown about one model on a machine.
type learned struct {
	own, others Record
	direct      [Grouped]atomic.Pointer[proof]     // for the owner, and for shares
	groups      atomic.Pointer[map[GroupID]*proof] // the map is never modified
	adding      sync.Mutex                         // held while a proof is added
}

// learn returns l.learned for modification. It creates it if necessary.
func (l *Load) learn() *learned {
	if l.learned.Load() == nil {
		l.learned.CompareAndSwap(nil, new(learned))
	}
	return l.learned.Load()
}

// InFlight returns the number of slots that this hub has reserved.
func (l *Load) InFlight() int { return int(l.inFlight.Load()) }

// Used returns how many slots are in use, by this hub's calls or others.
func (l *Load) Used() int { return int(l.inFlight.Load() + l.local.Load()) }

// SetLocal sets the number of slots that are used by anything other than this hub's
// calls, from the machine's last advertisement.
func (l *Load) SetLocal(slots int) { l.local.Store(int64(slots)) }

// HoldOut excludes a flapping machine from all decisions until the given time: it counts
// as offline, so that no call waits for it. Only a machine's own Load uses it.
func (l *Load) HoldOut(until time.Time) { l.heldOut.Store(until.UnixNano()) }

// free returns how many of the given slots are free. The result is negative after their
// number was reduced.
func (l *Load) free(slots int) int {
	return slots - int(l.inFlight.Load()) - int(l.local.Load())
}

// reserve reserves one of the given slots. With alone it succeeds only if this hub has
// reserved none.
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

// inherit takes the Loads and tieBreaker from the machine's previous version, or creates
// them. It only writes to offers whose Load is nil: a copy of a machine shares its offers
// with one that is already in use.
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

// withdrawnSince returns the value for withdrawn, given the machine's previous version.
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

// tieBreaker returns a number that is the same in every process, so that the same random
// number breaks a tie in the same way everywhere.
func tieBreaker(id MachineID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	return h.Sum64()
}
