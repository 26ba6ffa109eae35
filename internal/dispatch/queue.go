package dispatch

import (
	"cmp"
	"slices"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// queue holds the calls that wait for one model, guarded by scheduler.mu. The cost of
// finding the call for a slot depends on the number of cohorts, not of calls. All slices
// are ordered by arrival.
type queue struct {
	model    fleet.ModelID
	offered  fleet.OfferedBy              // the machines that offered the model at the last tick
	waiters  []*waiter                    // all calls; the index of a call is its position
	cohorts  []*cohort                    // ordered by their first waiter; none is empty
	byCaller map[fleet.MemberID][]*cohort // the same cohorts
}

// cohort holds waiting calls of a queue that are the same to routing: if one of them may
// use a machine, all may.
type cohort struct {
	queue   *queue
	query   fleet.Query
	waiters []*waiter
	first   *waiter // the waiter that determines the cohort's place; nil: the cohort is empty
	guests  *Guests // that these calls belong to; nil: calls of this Dispatcher
	// id and announced are for Others, and 0 and nil without them. announced holds the
	// numbers of the oldest calls in the last announcement.
	id        int64
	announced []int64
}

// entryName returns the name of the guests' Entry, "" for calls of this Dispatcher.
func (c *cohort) entryName() string {
	if c.guests == nil {
		return ""
	}
	return c.guests.entry.Name
}

// waiter is one waiting call. The code that removes it from its queue with a result also
// sends the result, once.
type waiter struct {
	cohort  *cohort
	arrived time.Time
	// turn and rank order the calls of a queue. turn is the time of arrival. With Others
	// it is rounded down to a multiple of slack, and rank orders calls with the same
	// turn.
	turn   time.Time
	rank   uint64
	number int64           // orders calls that arrived at the same time
	result chan waitResult // nil for guests
	left   bool            // not in a queue; guarded by scheduler.mu
}

func newQueue(model fleet.ModelID, offered fleet.OfferedBy) *queue {
	return &queue{model: model, offered: offered, byCaller: make(map[fleet.MemberID][]*cohort)}
}

func (w *waiter) before(other *waiter) bool { return byArrival(w, other) < 0 }

func byArrival(a, b *waiter) int {
	return cmp.Or(
		a.turn.Compare(b.turn), cmp.Compare(a.rank, b.rank), cmp.Compare(a.number, b.number),
		cmp.Compare(a.cohort.entryName(), b.cohort.entryName()),
	)
}

func byFirst(a, b *cohort) int { return byArrival(a.first, b.first) }

// insertSorted inserts e into a sorted slice.
func insertSorted[E any](in []E, e E, order func(a, b E) int) []E {
	at, _ := slices.BinarySearchFunc(in, e, order)
	return slices.Insert(in, at, e)
}

// deleteSorted deletes e from a sorted slice.
func deleteSorted[E any](from []E, e E, order func(a, b E) int) []E {
	at, _ := slices.BinarySearchFunc(from, e, order)
	return slices.Delete(from, at, at+1)
}

// cohortOf returns the cohort for a query. A new one joins the queue with its first
// waiter.
func (q *queue) cohortOf(query fleet.Query) *cohort {
	for _, c := range q.byCaller[query.Caller] {
		if c.guests == nil && alike(&c.query, &query) {
			return c
		}
	}
	return &cohort{queue: q, query: query}
}

// alike reports whether two queries of one caller for one model are the same to routing.
// The order of the machines tried before does not matter.
func alike(a, b *fleet.Query) bool {
	return a.Reach == b.Reach && a.Exclude == b.Exclude && a.Family == b.Family &&
		a.Gone == b.Gone && len(a.Avoid) == len(b.Avoid) &&
		a.Sealed == b.Sealed && slices.Equal(a.To, b.To) && slices.Equal(a.Declined, b.Declined) &&
		!slices.ContainsFunc(a.Avoid, func(id fleet.MachineID) bool { return !slices.Contains(b.Avoid, id) })
}

func (q *queue) insert(w *waiter) {
	q.waiters = insertSorted(q.waiters, w, byArrival)
	w.cohort.waiters = insertSorted(w.cohort.waiters, w, byArrival)
	q.place(w.cohort)
}

func (q *queue) remove(w *waiter) {
	q.waiters = deleteSorted(q.waiters, w, byArrival)
	w.cohort.waiters = deleteSorted(w.cohort.waiters, w, byArrival)
	q.place(w.cohort)
}

// place moves a cohort to its new place after a change of its waiters. If it is empty, it
// leaves the queue.
func (q *queue) place(c *cohort) {
	var first *waiter
	if len(c.waiters) > 0 {
		first = c.waiters[0]
	}
	if first == c.first {
		return
	}
	same := q.byCaller[c.query.Caller]
	if c.first != nil {
		q.cohorts, same = deleteSorted(q.cohorts, c, byFirst), deleteSorted(same, c, byFirst)
	}
	if c.first = first; first != nil {
		q.cohorts, same = insertSorted(q.cohorts, c, byFirst), insertSorted(same, c, byFirst)
	}
	if q.byCaller[c.query.Caller] = same; len(same) == 0 {
		delete(q.byCaller, c.query.Caller)
	}
}
