package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// firstBackoff is how long a machine is left out that refused what it advertised;
	// each further refusal doubles it, up to longestBackoff (spec/routing.md#left-out).
	firstBackoff   = 30 * time.Second
	longestBackoff = 10 * time.Minute
	// raceWindow is how long it is left out for a first refusal that may be a race with
	// an advertisement, which has arrived by then.
	raceWindow = 200 * time.Millisecond
	// newsRetry is how long a machine is left out that names its state. Its next
	// advertisement arrives within this time.
	newsRetry = 3 * time.Second
)

// Record is how a machine dealt with this hub's calls for one of its models. There
// is one for the calls of its owner and one for the calls of all others: one says
// nothing about the other. A nil Record, and the zero one, are those of a machine not
// tried yet. It is safe for concurrent use.
type Record struct {
	leftOut atomic.Int64 // until this time, Unix nanoseconds

	mu      sync.Mutex
	refused time.Time     // when the last refusal came that counted
	warned  bool          // there was a strike since a call was served
	named   bool          // a refusal named the machine's state since a call was served
	backoff time.Duration // the last one; 0: none since a call was served
}

// Record returns the record for callers of that class, or nil. It applies to an offer's
// Load only, as do the methods below.
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

// Served records that the machine served a complete answer to a caller of that class: its
// refusals are forgotten. It reports whether the machine was left out.
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

// Refused records that the machine refused a call of that class, sent at that time, although
// it advertised the model. It returns until when the machine is left out, as if it had no
// free slot for the model.
//
// The first refusal that may be a race between a call and an advertisement leaves the
// machine out for only as long as an advertisement takes. So does the first that names the
// state of the machine (busy, paused, outside its hours): it is news and no strike, and
// after each further one the machine is asked again after newsRetry. Of calls that were
// sent before the last refusal only that one counts; for the others Refused returns the
// zero time.
func (l *Load) Refused(class Class, sent, now time.Time, race, news bool) (until time.Time) {
	r := l.learn().record(class)
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent.Before(r.refused) {
		return time.Time{}
	}
	r.refused = now
	switch {
	case news && r.named:
		until = now.Add(newsRetry)
	case news:
		r.named = true
		until = now.Add(raceWindow)
	case race && !r.warned:
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

// LeftOut reports whether the machine is left out at that time.
func (r *Record) LeftOut(now time.Time) bool { return r != nil && r.leftOut.Load() > now.UnixNano() }

// known reports whether anything is recorded.
func (l *Load) known() bool {
	k := l.learned.Load()
	return k != nil && (k.own.known() || k.others.known() || l.isProven())
}

func (r *Record) known() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.warned || r.named
}
