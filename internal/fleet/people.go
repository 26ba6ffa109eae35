package fleet

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// Class says why a caller reaches a machine; the order is the order of
// attempts (decisions 2).
type Class uint8

// The classes of reach, best first.
const (
	Own Class = iota
	Shared
	Grouped
	classes // how many there are
)

// String is the class's word on the wire and in X-Kith-Route.
func (c Class) String() string { return [...]string{"own", "shared", "group"}[c] }

// Narrow is what a key may reach of its member's reach (decisions 5).
type Narrow uint8

// The narrowings of a key.
const (
	Everything Narrow = iota
	OwnAndShared
	OwnOnly
)

// Share says "Owner shares with Member": the owner's machines are candidates
// for the member, within the limits it carries (decisions 1). Immutable once
// WithShares was given it, but for its Load.
type Share struct {
	ID     ShareID
	Owner  MemberID
	Member MemberID
	// Models are the only ids it covers; empty: every model.
	Models []ModelID
	// Hours narrow the machine's own, on the wall clock of the machine's zone
	// whatever zone they were parsed for; empty: only the machine's own count.
	Hours      Hours
	Concurrent int // calls at once; 0: no limit
	PerDay     int // calls started in one UTC day; 0: no limit
	// Load is the one of the version before it from when it is in a Snapshot; of a
	// share that is new there the one it came with, or else an unused one.
	Load *ShareLoad
}

// ShareLoad is the use of one share; all versions of a share have the same one.
// The zero ShareLoad is unused.
type ShareLoad struct {
	running atomic.Int64
	today   atomic.Uint64 // the UTC day, in days since 1970, << 32 | calls started in it
}

// NewShareLoad is the use of a share of which so many calls were started on the
// UTC day of now, and none runs.
func NewShareLoad(now time.Time, started int) *ShareLoad {
	l := new(ShareLoad)
	l.today.Store(day(now)<<32 | uint64(uint32(started)))
	return l
}

// covers reports whether the model is within the share.
func (sh *Share) covers(model ModelID) bool {
	return len(sh.Models) == 0 || slices.Contains(sh.Models, model)
}

// spent reports whether the calls of the day are used up.
func (sh *Share) spent(now time.Time) bool {
	return sh.PerDay > 0 && sh.Load.started(now) >= sh.PerDay
}

// full reports whether the calls at once are all running.
func (sh *Share) full() bool {
	return sh.Concurrent > 0 && int(sh.Load.running.Load()) >= sh.Concurrent
}

// Reserve counts one call against the share's limits, if they leave room: true
// means it counts as running until Release. Safe with any number of others.
func (sh *Share) Reserve(now time.Time) bool {
	l := sh.Load
	for {
		n := l.running.Load()
		if sh.Concurrent > 0 && int(n) >= sh.Concurrent {
			return false
		}
		if l.running.CompareAndSwap(n, n+1) {
			break
		}
	}
	for {
		old, n := l.today.Load(), l.started(now)
		if sh.PerDay > 0 && n >= sh.PerDay {
			l.running.Add(-1)
			return false
		}
		if l.today.CompareAndSwap(old, day(now)<<32|uint64(n+1)) {
			return true
		}
	}
}

// Release ends a call that Reserve counted at that time; exactly once for each.
// One that no machine started (ran is false) is taken off its day's count.
func (sh *Share) Release(ran bool, reserved time.Time) {
	l := sh.Load
	l.running.Add(-1)
	for !ran {
		old, n := l.today.Load(), l.started(reserved)
		if n == 0 || l.today.CompareAndSwap(old, day(reserved)<<32|uint64(n-1)) {
			return
		}
	}
}

// started is how many calls were started on the day of now.
func (l *ShareLoad) started(now time.Time) int {
	if v := l.today.Load(); v>>32 == day(now) {
		return int(uint32(v))
	}
	return 0
}

// day numbers the UTC days since 1970.
func day(now time.Time) uint64 { return uint64(now.Unix() / 86400) }

// Group is a named set of members; every member's machines are candidates for
// every other member, unless their owner keeps a machine out (decisions 1).
// Immutable once WithGroup was given it.
type Group struct {
	ID      GroupID
	Name    string
	Open    bool // anyone can join; else its admins run it
	Members []MemberID
	KeptOut []MachineID // out of this group; Machine.KeptOut is out of all
}

// ErrBehind is what a reader of changes is told when they are no longer known
// one by one: everything has to be read again.
var ErrBehind = errors.New("too far behind to be told each change: read everything again")

// Change is one step of the store's epoch: what kind of fact moved and whose.
// Applying one twice, or late, is harmless: readers re-read the fact it names.
type Change struct {
	Epoch int64
	Kind  ChangeKind
	ID    string
}

// ChangeKind says what a Change's ID names.
type ChangeKind string

// The kinds of change.
const (
	MemberChanged  ChangeKind = "member"  // ID: member
	KeyChanged     ChangeKind = "key"     // ID: key
	MachineChanged ChangeKind = "machine" // ID: machine (made, renamed, revoked)
	SharesChanged  ChangeKind = "shares"  // ID: the member shared with
	GroupChanged   ChangeKind = "group"   // ID: group (members, keep-outs, end)

	SessionsChanged ChangeKind = "sessions" // ID: the member of whom one ended
)
