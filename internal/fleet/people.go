package fleet

import (
	"slices"
	"sync/atomic"
	"time"
)

// Class is the reason why a caller can reach a machine. The order of the constants is the
// order of attempts (spec/routing.md#order-class).
type Class uint8

// The classes of reach, best first.
const (
	Own Class = iota
	Shared
	Grouped
	classes // number of classes
)

// String returns the name of the class in the protocol and in X-Kith-Route.
func (c Class) String() string { return [...]string{"own", "shared", "group"}[c] }

// KeyReach is the part of its member's reach that a key has (spec/routing.md#narrowed-key).
type KeyReach uint8

// The values of KeyReach.
const (
	Everything KeyReach = iota
	OwnAndShared
	OwnOnly
)

// keyReaches are the names of the constants, in their order.
var keyReaches = [...]string{"all", "shared", "own"}

// String returns the name: "all", "shared" (own and shared) or "own".
func (r KeyReach) String() string { return keyReaches[r] }

// ParseKeyReach parses the name of a KeyReach. It returns false if there is none of that
// name.
func ParseKeyReach(word string) (KeyReach, bool) {
	i := slices.Index(keyReaches[:], word)
	return KeyReach(max(i, 0)), i >= 0
}

// Program is a command of kith whose calls are recorded under its name.
type Program string

// The programs (spec/api.md#kith-program).
const (
	ProgramRun    Program = "run"    // kith run
	ProgramLaunch Program = "launch" // an agent that kith launch started
)

// ParseProgram returns the program of that name, or "" if there is none.
func ParseProgram(name string) Program {
	switch p := Program(name); p {
	case ProgramRun, ProgramLaunch:
		return p
	}
	return ""
}

// Caller is the member who makes a call or a request of the management API, identified by
// an API key, a machine credential or a session of the site. The zero Caller is the owner,
// on the local surface.
type Caller struct {
	Member MemberID
	Name   string
	KeyID  string // empty: a machine credential, or locally
	Reach  KeyReach
	// Machine is set for a machine credential. The machine's own calls are never routed
	// back to it.
	Machine MachineID
	// Program is the command of kith that made the call at the machine's daemon; empty:
	// another program, or not at a daemon.
	Program Program
	// Inference is set if the key is only for inference and for listing models
	// (spec/api.md#scopes).
	Inference bool
	// PerDay is how many calls the key may make per UTC day (spec/api.md#key-day); 0: no
	// limit.
	PerDay int
}

// Limits are an owner's limits for a share or a group (spec/routing.md#limits). A nil
// *Limits limits nothing. Once in a Snapshot, only its Load changes.
type Limits struct {
	// Models are the ids that may be used; empty: every model.
	Models []ModelID
	// Hours restrict the machine's own hours. They apply in the machine's time zone,
	// whatever zone they were parsed for. Empty: only the machine's own hours apply.
	Hours      Hours
	Concurrent int // concurrent calls; 0: no limit
	PerDay     int // calls started per UTC day; 0: no limit
	// Load is taken from the previous version when the limits are put into a Snapshot. New
	// limits keep the Load that they have, or get an unused one.
	Load *LimitLoad
}

// LimitLoad counts the use of Limits. All versions of a share's limits have the same
// LimitLoad, and so do all versions of an owner's limits for a group, and of a key's. The
// zero value is unused.
type LimitLoad struct {
	running atomic.Int64
	today   atomic.Uint64 // the UTC day, in days since 1970, << 32 | calls started on it
	begun   atomic.Int64  // calls that Reserve counted and that ran on a machine
	others  atomic.Int64  // running on machines of other nodes
}

// Use returns how many calls are running under the limits on machines of this node, and
// how many have been started there since the node started.
func (l *LimitLoad) Use() (running, begun int64) { return l.running.Load(), l.begun.Load() }

// AddOthers adds calls on machines of other nodes: the change in the number of running
// calls, which may be negative, and the number of started ones.
func (l *LimitLoad) AddOthers(now time.Time, running, started int64) {
	l.others.Add(running)
	for {
		old, n := l.today.Load(), int64(l.Started(now))
		if l.today.CompareAndSwap(old, day(now)<<32|uint64(uint32(max(n+started, 0)))) {
			return
		}
	}
}

// Raise raises the number of calls started on the UTC day of now to at least started. It
// does nothing if a later day has begun.
func (l *LimitLoad) Raise(now time.Time, started int) {
	for {
		old := l.today.Load()
		if old>>32 > day(now) || old>>32 == day(now) && int(uint32(old)) >= started {
			return
		}
		if l.today.CompareAndSwap(old, day(now)<<32|uint64(uint32(started))) {
			return
		}
	}
}

// NewLimitLoad returns a load with no running calls and the given number of calls started
// on the UTC day of now.
func NewLimitLoad(now time.Time, started int) *LimitLoad {
	l := new(LimitLoad)
	l.today.Store(day(now)<<32 | uint64(uint32(started)))
	return l
}

// covers reports whether the limits allow the model.
func (l *Limits) covers(model ModelID) bool {
	return l == nil || len(l.Models) == 0 || slices.Contains(l.Models, model)
}

// spent reports whether the day's calls are used up.
func (l *Limits) spent(now time.Time) bool {
	return l.PerDay > 0 && l.Load.Started(now) >= l.PerDay
}

// full reports whether the maximum number of concurrent calls is running.
func (l *Limits) full() bool {
	return l.Concurrent > 0 && int(l.Load.running.Load()+l.Load.others.Load()) >= l.Concurrent
}

// Counts reports whether calls are counted against the limits, so that the end of one can
// make room for another.
func (l *Limits) Counts() bool { return l != nil && (l.Concurrent > 0 || l.PerDay > 0) }

// equal reports whether the limits are the same, ignoring their Loads.
func (l *Limits) equal(other *Limits) bool {
	if l == nil || other == nil {
		return l == other
	}
	return slices.Equal(l.Models, other.Models) && slices.Equal(l.Hours.windows, other.Hours.windows) &&
		l.Concurrent == other.Concurrent && l.PerDay == other.PerDay
}

// inherit takes the Load of the previous version of the limits, or creates one.
func (l *Limits) inherit(before *Limits) {
	if before != nil {
		l.Load = before.Load
	}
	if l.Load == nil {
		l.Load = new(LimitLoad)
	}
}

// Reserve counts a call against the limits if they allow it. If it returns true, the call
// counts as running until Release. It is safe for concurrent use.
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

// Release ends a call that Reserve counted at time reserved. It must be called exactly
// once for each. A call that did not run on a machine (ran is false) is removed from the
// day's count.
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

// Started returns how many calls were started on the UTC day of now.
func (l *LimitLoad) Started(now time.Time) int {
	if v := l.today.Load(); v>>32 == day(now) {
		return int(uint32(v))
	}
	return 0
}

// Share makes Owner's machines candidates for Member's calls, within its limits
// (spec/routing.md#share). After WithShares only its Load changes.
type Share struct {
	ID     ShareID
	Owner  MemberID
	Member MemberID
	Limits
}

// day returns the number of UTC days since 1970.
func day(now time.Time) uint64 { return uint64(now.Unix() / 86400) }

// Group is a named set of members who can use each other's machines
// (spec/routing.md#group). It does not change after WithGroup.
type Group struct {
	ID      GroupID
	Name    string
	Open    bool // anyone can join; otherwise its admins manage it
	Members []MemberID
	KeptOut []MachineID // excluded from this group; Machine.KeptOut excludes from all
	Pinned  []MachineID // always Established
	// Limits are each owner's limits for all other members together, for calls that reach
	// the owner's machines through this group. An owner without an entry limits nothing.
	Limits map[MemberID]*Limits
}
