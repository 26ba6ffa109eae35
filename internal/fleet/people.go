package fleet

import (
	"slices"
	"sync/atomic"
	"time"
)

// Class is why a caller reaches a machine, in the order of attempts
// (spec/routing.md#order-class).
type Class uint8

// The classes of reach, best first.
const (
	Own Class = iota
	Shared
	Grouped
	classes // how many there are
)

// String returns the class's word on the wire and in X-Kith-Route.
func (c Class) String() string { return [...]string{"own", "shared", "group"}[c] }

// Narrow is what a key may reach of its member's reach (spec/routing.md#narrowed-key).
type Narrow uint8

// The narrowings of a key.
const (
	Everything Narrow = iota
	OwnAndShared
	OwnOnly
)

// narrows are the words for a Narrow, in the order of the constants.
var narrows = [...]string{"all", "shared", "own"}

// String returns the word for what is reached: "all", "shared" (own and shared) or "own".
func (n Narrow) String() string { return narrows[n] }

// ParseNarrow reads the word of a Narrow; false: it is none.
func ParseNarrow(word string) (Narrow, bool) {
	i := slices.Index(narrows[:], word)
	return Narrow(max(i, 0)), i >= 0
}

// Limits are what an owner gives by a share, or to a group (spec/routing.md#limits). A
// nil *Limits limits nothing. Once in a Snapshot, only its Load changes.
type Limits struct {
	// Models are the only ids covered; empty: every model.
	Models []ModelID
	// Hours narrow the machine's own, on the wall clock of the machine's zone
	// whatever zone they were parsed for; empty: only the machine's own apply.
	Hours      Hours
	Concurrent int // calls at once; 0: no limit
	PerDay     int // calls started in one UTC day; 0: no limit
	// Load is inherited from the version before when the limits are put into a
	// Snapshot; new limits keep the Load they have, or get an unused one.
	Load *LimitLoad
}

// LimitLoad is what is used of Limits. All versions of a share's limits have the same
// one, and so have all versions of an owner's limits for a group. The zero LimitLoad is
// unused.
type LimitLoad struct {
	running atomic.Int64
	today   atomic.Uint64 // the UTC day, in days since 1970, << 32 | calls started in it
	begun   atomic.Int64  // calls that Reserve counted and that a machine started
	others  atomic.Int64  // running on machines of other hub nodes
}

// Use returns how many calls run under the limits on this hub node's machines, and how
// many were started there since it began.
func (l *LimitLoad) Use() (running, begun int64) { return l.running.Load(), l.begun.Load() }

// AddOthers counts calls on machines of other hub nodes: so many more that run, or fewer
// if it is negative, and so many that were started.
func (l *LimitLoad) AddOthers(now time.Time, running, started int64) {
	l.others.Add(running)
	for {
		old, n := l.today.Load(), int64(l.Started(now))
		if l.today.CompareAndSwap(old, day(now)<<32|uint64(uint32(max(n+started, 0)))) {
			return
		}
	}
}

// NewLimitLoad returns the load of limits under which so many calls were started on
// the UTC day of now, and none runs.
func NewLimitLoad(now time.Time, started int) *LimitLoad {
	l := new(LimitLoad)
	l.today.Store(day(now)<<32 | uint64(uint32(started)))
	return l
}

// covers reports whether the model is within the limits.
func (l *Limits) covers(model ModelID) bool {
	return l == nil || len(l.Models) == 0 || slices.Contains(l.Models, model)
}

// spent reports whether the calls of the day are used up.
func (l *Limits) spent(now time.Time) bool {
	return l.PerDay > 0 && l.Load.Started(now) >= l.PerDay
}

// full reports whether the calls at once are all running.
func (l *Limits) full() bool {
	return l.Concurrent > 0 && int(l.Load.running.Load()+l.Load.others.Load()) >= l.Concurrent
}

// Counts reports whether calls are counted against the limits, so that the end of one
// may make room for another.
func (l *Limits) Counts() bool { return l != nil && (l.Concurrent > 0 || l.PerDay > 0) }

// equal reports whether both are the same limits, apart from their Loads.
func (l *Limits) equal(other *Limits) bool {
	if l == nil || other == nil {
		return l == other
	}
	return slices.Equal(l.Models, other.Models) && slices.Equal(l.Hours.windows, other.Hours.windows) &&
		l.Concurrent == other.Concurrent && l.PerDay == other.PerDay
}

// inherit gives the limits the Load of the version before them, or a new one.
func (l *Limits) inherit(before *Limits) {
	if before != nil {
		l.Load = before.Load
	}
	if l.Load == nil {
		l.Load = new(LimitLoad)
	}
}

// Reserve counts one call against the limits, if they leave room. If it returns true
// the call counts as running until Release. It is safe for concurrent use.
func (l *Limits) Reserve(now time.Time) bool {
	load := l.Load
	for {
		n := load.running.Load()
		if l.Concurrent > 0 && int(n+load.others.Load()) >= l.Concurrent {
			return false
		}
		if load.running.CompareAndSwap(n, n+1) {
			break
		}
	}
	for {
		old, n := load.today.Load(), load.Started(now)
		if l.PerDay > 0 && n >= l.PerDay {
			load.running.Add(-1)
			return false
		}
		if load.today.CompareAndSwap(old, day(now)<<32|uint64(n+1)) {
			load.begun.Add(1)
			return true
		}
	}
}

// Release ends a call that Reserve counted at that time; it is called exactly once for
// each. A call that no machine started (ran is false) is removed from its day's count.
func (l *Limits) Release(ran bool, reserved time.Time) {
	load := l.Load
	load.running.Add(-1)
	if !ran {
		load.begun.Add(-1)
	}
	for !ran {
		old, n := load.today.Load(), load.Started(reserved)
		if n == 0 || load.today.CompareAndSwap(old, day(reserved)<<32|uint64(n-1)) {
			return
		}
	}
}

// Started returns how many calls were started on the day of now.
func (l *LimitLoad) Started(now time.Time) int {
	if v := l.today.Load(); v>>32 == day(now) {
		return int(uint32(v))
	}
	return 0
}

// Share makes Owner's machines candidates for Member, within its limits
// (spec/routing.md#share). After a call of WithShares only its Load changes.
type Share struct {
	ID     ShareID
	Owner  MemberID
	Member MemberID
	Limits
}

// day returns the number of UTC days since 1970.
func day(now time.Time) uint64 { return uint64(now.Unix() / 86400) }

// Group is a named set of members who reach each other's machines
// (spec/routing.md#group). It does not change after a call of WithGroup.
type Group struct {
	ID      GroupID
	Name    string
	Open    bool // anyone can join; else its admins run it
	Members []MemberID
	KeptOut []MachineID // out of this group; Machine.KeptOut is out of all
	Pinned  []MachineID // that count as Established, whatever they served
	// Limits are what an owner gives to all other members of the group together, for
	// their calls on that owner's machines that reach them by this group. An owner
	// without an entry limits nothing.
	Limits map[MemberID]*Limits
}
