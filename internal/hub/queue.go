package hub

import (
	"cmp"
	"slices"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// queue is the calls that wait for one model, guarded by room.mu. Those that the
// law cannot tell apart stand in one line, so that to find who may use a slot
// costs a look at each line, however many wait. The slices are in order by
// arrival; to put in and take out moves some bytes, and nothing else.
type queue struct {
	model   fleet.ModelID
	offers  int                        // of the model in the region, when last looked at
	waiters []*waiter                  // all: a call's place here is its position
	lines   []*line                    // by their first waiter; none is empty
	of      map[fleet.MemberID][]*line // the same lines, by who calls
}

// line is the waiters of a queue whose asks are alike: whoever comes first of
// them may use whatever any of them may.
type line struct {
	queue   *queue
	ask     fleet.Query
	waiters []*waiter
}

// waiter is one call in its model's queue. granted is written at most once, by
// whoever takes the waiter out of the queue to serve or refuse it.
type waiter struct {
	line    *line
	arrived time.Time
	number  int64 // tells apart who arrived at the same instant
	granted chan grant
	out     bool // of the queue; guarded by room.mu
}

// grant is what ends a wait: a machine with a slot held for the waiter, or the
// refusal that holds now.
type grant struct {
	held    *held
	refusal *fault.Fault
	judged  gateway.Decision // the decision that ended it
}

func newQueue(model fleet.ModelID, offers int) *queue {
	return &queue{model: model, offers: offers, of: make(map[fleet.MemberID][]*line)}
}

func (w *waiter) before(other *waiter) bool { return byArrival(w, other) < 0 }

func byArrival(a, b *waiter) int {
	return cmp.Or(a.arrived.Compare(b.arrived), cmp.Compare(a.number, b.number))
}

func byFirst(a, b *line) int { return byArrival(a.waiters[0], b.waiters[0]) }

// put inserts e into a slice that is in order.
func put[E any](in []E, e E, order func(a, b E) int) []E {
	at, _ := slices.BinarySearchFunc(in, e, order)
	return slices.Insert(in, at, e)
}

// pull takes e out of a slice that is in order.
func pull[E any](from []E, e E, order func(a, b E) int) []E {
	at, _ := slices.BinarySearchFunc(from, e, order)
	return slices.Delete(from, at, at+1)
}

// line is the one for such an ask; a new one is not in the queue before its
// first waiter.
func (q *queue) line(ask fleet.Query) *line {
	for _, l := range q.of[ask.Caller] {
		if alike(&l.ask, &ask) {
			return l
		}
	}
	return &line{queue: q, ask: ask}
}

// alike reports whether the law cannot tell two asks of one caller for one model
// apart.
func alike(a, b *fleet.Query) bool {
	return a.Narrow == b.Narrow && a.Exclude == b.Exclude && a.Family == b.Family &&
		a.Gone == b.Gone && slices.Equal(a.Avoid, b.Avoid)
}

func (q *queue) insert(w *waiter) {
	q.waiters = put(q.waiters, w, byArrival)
	l := w.line
	if len(l.waiters) > 0 && l.waiters[0].before(w) {
		l.waiters = put(l.waiters, w, byArrival)
		return
	}
	q.unrank(l)
	l.waiters = slices.Insert(l.waiters, 0, w)
	q.rank(l)
}

func (q *queue) remove(w *waiter) {
	q.waiters = pull(q.waiters, w, byArrival)
	l := w.line
	if l.waiters[0] != w {
		l.waiters = pull(l.waiters, w, byArrival)
		return
	}
	q.unrank(l)
	l.waiters = slices.Delete(l.waiters, 0, 1)
	q.rank(l)
}

// rank puts a line in its place by its first waiter, if it has one.
func (q *queue) rank(l *line) {
	if len(l.waiters) > 0 {
		q.lines = put(q.lines, l, byFirst)
		q.of[l.ask.Caller] = put(q.of[l.ask.Caller], l, byFirst)
	}
}

// unrank takes a line out of its place, before its first waiter changes.
func (q *queue) unrank(l *line) {
	if len(l.waiters) == 0 {
		return
	}
	q.lines = pull(q.lines, l, byFirst)
	if mine := pull(q.of[l.ask.Caller], l, byFirst); len(mine) > 0 {
		q.of[l.ask.Caller] = mine
	} else {
		delete(q.of, l.ask.Caller)
	}
}
