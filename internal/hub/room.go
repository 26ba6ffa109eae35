package hub

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// room is where calls wait for a machine: one queue a model, oldest first
// (decisions 3). A slot that comes free while calls wait is handed over under
// mu, so no newcomer takes what is owed to a waiter.
type room struct {
	// route decides for a waiter on what is known now.
	route func(*fleet.Ask) fleet.Decision

	waiting atomic.Int64 // how many wait in all; lets a quiet hub skip mu

	mu     sync.Mutex
	queues map[fleet.ModelID]*list.List // of *waiter, by arrival
}

// waiter is one call in its model's queue. granted is written at most once, by
// whoever takes the waiter out of the queue to serve or refuse it.
type waiter struct {
	ask     fleet.Ask
	arrived time.Time
	granted chan grant
	place   *list.Element // guarded by room.mu; nil once out of the queue
}

// grant is what ends a wait: a machine with a slot reserved for the waiter, or
// the decision that refuses it.
type grant struct {
	candidate fleet.Candidate
	decision  fleet.Decision
}

// reserve takes a slot for a call that does not wait.
func (r *room) reserve(machine *fleet.Machine, model fleet.ModelID) bool {
	if r.waiting.Load() == 0 {
		return machine.Reserve(model)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return machine.Reserve(model)
}

// release gives a slot back, to the oldest waiter that may use it if one waits.
func (r *room) release(machine *fleet.Machine, model fleet.ModelID) {
	if r.waiting.Load() == 0 {
		machine.Release(model)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	machine.Release(model)
	for i := range machine.Offers {
		if machine.Free(machine.Offers[i].ID) > 0 {
			r.serve(machine.Offers[i].ID, machine)
		}
	}
}

// changed lets every waiter for what the machine offers, or offered, decide
// anew: it may be served now, or refused.
func (r *room) changed(machine *fleet.Machine) {
	if r.waiting.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range machine.Offers {
		r.serve(machine.Offers[i].ID, nil)
	}
}

// recheck lets every waiter decide anew: shares, groups or the clock moved.
func (r *room) recheck() {
	if r.waiting.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for model := range r.queues {
		r.serve(model, nil)
	}
}

// serve walks a model's queue, oldest first, and grants what can be granted.
// With a machine, it stops once that machine has no free slot left. Needs mu.
func (r *room) serve(model fleet.ModelID, freed *fleet.Machine) {
	queue := r.queues[model]
	if queue == nil {
		return
	}
	for e := queue.Front(); e != nil; {
		next := e.Next()
		r.decide(e.Value.(*waiter))
		if freed != nil && freed.Free(model) <= 0 {
			return
		}
		e = next
	}
}

// decide grants w if it can be served or must be refused now. Needs mu.
func (r *room) decide(w *waiter) {
	d := r.route(&w.ask)
	switch d.Verdict {
	case fleet.Try:
		for _, c := range d.Candidates {
			if c.Machine.Reserve(w.ask.Model) {
				r.remove(w)
				w.granted <- grant{candidate: c, decision: d}
				return
			}
		}
	case fleet.Refuse:
		r.remove(w)
		w.granted <- grant{decision: d}
	}
}

// join puts a call in its model's queue, by its arrival, and decides for it
// once: what came free since it last looked is not missed.
func (r *room) join(ask fleet.Ask, arrived time.Time) *waiter {
	w := &waiter{ask: ask, arrived: arrived, granted: make(chan grant, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queues == nil {
		r.queues = make(map[fleet.ModelID]*list.List)
	}
	queue := r.queues[ask.Model]
	if queue == nil {
		queue = list.New()
		r.queues[ask.Model] = queue
	}
	e := queue.Back()
	for e != nil && e.Value.(*waiter).arrived.After(arrived) {
		e = e.Prev()
	}
	if e == nil {
		w.place = queue.PushFront(w)
	} else {
		w.place = queue.InsertAfter(w, e)
	}
	r.waiting.Add(1)
	r.decide(w)
	return w
}

// leave takes w out of the queue. A grant that came at the same moment is
// returned, so that its slot is not lost.
func (r *room) leave(w *waiter) (grant, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.place != nil {
		r.remove(w)
		return grant{}, false
	}
	g := <-w.granted
	return g, true
}

// ahead is how many wait before w.
func (r *room) ahead(w *waiter) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	if w.place == nil {
		return n
	}
	for e := w.place.Prev(); e != nil; e = e.Prev() {
		n++
	}
	return n
}

// remove takes w out of its queue. Needs mu.
func (r *room) remove(w *waiter) {
	queue := r.queues[w.ask.Model]
	queue.Remove(w.place)
	w.place = nil
	if queue.Len() == 0 {
		delete(r.queues, w.ask.Model)
	}
	r.waiting.Add(-1)
}
