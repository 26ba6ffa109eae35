package hub

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// unconfirmed is the row of decisions 2 that says only that the law cannot be
// told just now; of those that refuse, it alone does not end a wait (decisions 3).
const unconfirmed = 2

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

// grant is what ends a wait: a machine with a slot held for the waiter, or the
// refusal that holds now.
type grant struct {
	held    *held
	refusal *fault.Fault
	judged  gateway.Judged // the decision that ended it
}

// held is a slot of a machine, and a place in the share it is reached by, that
// one call holds from its reservation until release.
type held struct {
	fleet.Candidate
	model fleet.ModelID
	since time.Time
	once  sync.Once
	// refused is why its daemon did not take the call, if it said so.
	refused tunnel.Refusal
}

// hold reserves what a call needs of a candidate; nil if someone was quicker.
func hold(c fleet.Candidate, model fleet.ModelID) *held {
	if !c.Machine.Reserve(model) {
		return nil
	}
	now := time.Now()
	if c.Share != nil && !c.Share.Reserve(now) {
		c.Machine.Release(model)
		return nil
	}
	return &held{Candidate: c, model: model, since: now}
}

// giveBack undoes hold; ran says that the machine took the call.
func (h *held) giveBack(ran bool) {
	h.Machine.Release(h.model)
	if h.Share != nil {
		h.Share.Release(ran, h.since)
	}
}

// take holds the first candidate that has room, for a call that does not wait;
// those who wait for the model already go first.
func (r *room) take(candidates []fleet.Candidate, model fleet.ModelID) *held {
	if r.waiting.Load() > 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.serve(model, "")
	}
	for _, c := range candidates {
		if h := hold(c, model); h != nil {
			return h
		}
	}
	return nil
}

// release gives a slot back, once, to the oldest waiter that may use it if one
// waits; ran says that the machine took the call.
func (r *room) release(h *held, ran bool) {
	h.once.Do(func() {
		if r.waiting.Load() > 0 {
			r.mu.Lock()
			defer r.mu.Unlock()
		}
		h.giveBack(ran)
		if r.waiting.Load() == 0 {
			return
		}
		for i := range h.Machine.Offers {
			if r.serve(h.Machine.Offers[i].ID, h.Machine.ID) {
				return
			}
		}
	})
}

// refused gives back a slot that its machine did not grant: nobody is woken for
// what is not there.
func (r *room) refused(h *held) {
	h.once.Do(func() { h.giveBack(false) })
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
		r.serve(machine.Offers[i].ID, "")
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
		r.serve(model, "")
	}
}

// serve walks a model's queue, oldest first, and grants what can be granted.
// With a machine, it ends when that machine's one freed slot is given away, and
// says so. Needs mu, and waiters.
func (r *room) serve(model fleet.ModelID, freed fleet.MachineID) bool {
	queue := r.queues[model]
	if queue == nil {
		return false
	}
	for e := queue.Front(); e != nil; {
		next := e.Next()
		if on := r.decide(e.Value.(*waiter)); on != "" && on == freed {
			return true
		}
		e = next
	}
	return false
}

// decide grants w if it can be served, on which machine it then says, or must
// be refused now. Needs mu.
func (r *room) decide(w *waiter) fleet.MachineID {
	d := r.route(&w.ask)
	switch d.Verdict {
	case fleet.Try:
		for _, c := range d.Candidates {
			if h := hold(c, w.ask.Model); h != nil {
				r.remove(w)
				w.granted <- grant{held: h, judged: judgement(d)}
				return c.Machine.ID
			}
		}
	case fleet.Refuse:
		if d.Row == unconfirmed { // who waits, waits on: it ends within the wait or does not
			return ""
		}
		r.remove(w)
		w.granted <- grant{refusal: d.Fault, judged: judgement(d)}
	}
	return ""
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
	w.ask.Owed = nil // what a machine refused with just now is old by the next event
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
