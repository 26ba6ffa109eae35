package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// firstBackoff is how long a machine is left out that refused what it
	// advertised; each further refusal doubles it, up to longestBackoff (decisions 2).
	firstBackoff   = 30 * time.Second
	longestBackoff = 10 * time.Minute
	// raceWindow is how long it is left out for the first refusal where that may be a
	// race: by then the advertisement has come that it crossed.
	raceWindow = 200 * time.Millisecond
)

// Record is how a machine dealt with this hub's calls for one of its models. There
// is one for the calls of its owner and one for those of all others: serving the
// one says nothing of the other. The zero Record is of a machine not tried yet.
// It is safe for concurrent use.
type Record struct {
	served  atomic.Bool
	leftOut atomic.Int64 // until this time, Unix nanoseconds

	mu      sync.Mutex
	refused time.Time     // when the last refusal came that counted
	warned  bool          // there was one since a call was served
	backoff time.Duration // the last one; 0: none since a call was served
}

// Record is the record for callers of that class. An offer's Load only.
func (l *Load) Record(class Class) *Record {
	if class == Own {
		return &l.own
	}
	return &l.others
}

// Served notes that the machine served a call, complete: its refusals are
// forgotten. It reports whether the machine may be sent more than before.
func (r *Record) Served() (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	more = !r.served.Load() || r.leftOut.Load() != 0
	r.refused, r.warned, r.backoff = time.Time{}, false, 0
	r.leftOut.Store(0)
	r.served.Store(true)
	return more
}

// Refused notes that the machine refused a call, sent at that time, of the kind
// that it advertised to take. It returns until when the machine is left out, as if
// it had no free slot for the model.
//
// A refusal that may be a race between a call and an advertisement is forgiven
// once: the machine is left out for as long as an advertisement takes. Calls that
// were under way together are refused for one reason: of those the first counts,
// and for the others the zero time is returned.
func (r *Record) Refused(sent, now time.Time, race bool) (until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent.Before(r.refused) {
		return time.Time{}
	}
	r.refused = now
	if race && !r.warned {
		until = now.Add(raceWindow)
	} else {
		r.backoff = min(max(2*r.backoff, firstBackoff), longestBackoff)
		until = now.Add(r.backoff)
	}
	r.warned = true
	r.leftOut.Store(until.UnixNano())
	return until
}

// leftOutAt reports whether the machine is left out at that time.
func (r *Record) leftOutAt(now time.Time) bool { return r.leftOut.Load() > now.UnixNano() }

// proven reports whether a way of that class may rely on what the machine says of
// its slots and its speed. A machine reached through a group has to serve a call
// first: until then it runs one at once, so that no claim attracts calls.
func (l *Load) proven(class Class) bool { return class != Grouped || l.others.served.Load() }

// known reports whether there is anything in the records.
func (l *Load) known() bool { return l.own.known() || l.others.known() }

func (r *Record) known() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served.Load() || r.warned
}
