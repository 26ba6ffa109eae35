package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// firstBackoff is how long a machine is left out after it refused a model that it
	// advertised. Each further refusal doubles it, up to longestBackoff
	// (spec/routing.md#left-out).
	firstBackoff   = 30 * time.Second
	longestBackoff = 10 * time.Minute
	// raceWindow is how long a machine is left out after a first refusal that may have
	// crossed with an advertisement. The advertisement has arrived by then.
	raceWindow = 200 * time.Millisecond
	// newsRetry is how long a machine is left out if its refusal named its state. Its next
	// advertisement arrives within this time.
	newsRetry = 3 * time.Second
)

// Record is how a machine responded to this hub's calls for one of its models. The calls
// of its owner have one Record and the calls of everyone else another, and neither
// affects the other. A nil or zero Record is that of a machine that was not tried. It is
// safe for concurrent use.
type Record struct {
	leftOut atomic.Int64 // left out until this time, in Unix nanoseconds

	mu      sync.Mutex
	refused time.Time     // when the last refusal arrived that was counted
	warned  bool          // there was a strike since the last call that was served
	named   bool          // a refusal named the machine's state since the last call that was served
	backoff time.Duration // the last one; 0: none since the last call that was served
}

// Record returns the record for callers of the given class, or nil. Only an offer's Load
// uses it and the methods below.
func (l *Load) Record(class Class) *Record { return l.learned.Load().record(class) }

func (k *learned) record(class Class) *Record {
	switch {
	case k == nil:
		return nil
	case class == Own:
		return &k.own
	default:
		return &k.others
	}
}

// Served records that the machine served a complete answer to a caller of the given
// class, and clears its refusals. It reports whether the machine was left out.
func (l *Load) Served(class Class) (wasLeftOut bool) {
	r := l.Record(class)
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	wasLeftOut = r.leftOut.Load() != 0
	r.refused, r.warned, r.named, r.backoff = time.Time{}, false, false, 0
	r.leftOut.Store(0)
	return wasLeftOut
}

// Refusal is a machine's refusal of a call for a model that it advertised.
type Refusal struct {
	Class    Class     // of the machine for the caller
	Sent     time.Time // when the call was sent
	Received time.Time // when the refusal was received
	// Race reports whether the call and an advertisement may have crossed.
	Race bool
	// NamesState reports whether the refusal names the state of the machine: busy, paused,
	// outside its hours or its limits exhausted.
	NamesState bool
}

// Refused records a refusal. It returns the time until which the machine is left out. A
// machine that is left out counts as having no free slot for the model.
//
// The first refusal that may be a race between a call and an advertisement (Race) leaves
// the machine out only as long as an advertisement takes. So does the first refusal that
// names the state of the machine (NamesState): it is not a strike, and after each further
// one the machine is tried again after newsRetry. If several calls were in flight at the
// last refusal, only the first refusal counts; for the others Refused returns the zero
// time.
func (l *Load) Refused(refusal Refusal) (until time.Time) {
	r, now := l.learn().record(refusal.Class), refusal.Received
	r.mu.Lock()
	defer r.mu.Unlock()
	if refusal.Sent.Before(r.refused) {
		return time.Time{}
	}
	r.refused = now
	switch {
	case refusal.NamesState && r.named:
		until = now.Add(newsRetry)
	case refusal.NamesState:
		r.named = true
		until = now.Add(raceWindow)
	case refusal.Race && !r.warned:
		r.warned = true
		until = now.Add(raceWindow)
	default:
		r.warned = true
		r.backoff = min(max(2*r.backoff, firstBackoff), longestBackoff)
		until = now.Add(r.backoff)
	}
	r.leftOut.Store(until.UnixNano())
	return until
}

// LeftOut reports whether the machine is left out at time now.
func (r *Record) LeftOut(now time.Time) bool { return r != nil && r.leftOut.Load() > now.UnixNano() }

// known reports whether there are any records.
func (l *Load) known() bool {
	k := l.learned.Load()
	return k != nil && (k.own.known() || k.others.known() || l.isProven())
}

func (r *Record) known() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.warned || r.named
}
