package hub

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// unconfirmed is the row of decisions 2 that says only that the law cannot be
// told just now; of those that refuse, it alone does not end a wait (decisions 3).
const unconfirmed = 2

// room is where calls wait for a machine: one queue a model, oldest first
// (decisions 3). Every slot that a waiter gets is given out by hand, under mu:
// to the machine's owner, else to whoever waits longest of those who may use it.
// A call that does not wait takes a slot only after hand found no waiter for it.
type room struct {
	// now stamps an ask with what is known at this instant beside the snapshot.
	now func(*fleet.Query) *fleet.Snapshot
	// moved is told when a call took a slot, gave one back, or began or ceased to
	// wait.
	moved func()

	waiting atomic.Int64 // how many wait in all; lets a quiet hub skip mu

	mu     sync.Mutex
	queues map[fleet.ModelID]*queue
	joined int64     // how many joined so far
	unsure bool      // something was put off because reach could not be confirmed
	minute time.Time // of the last recheck
}

// held is a slot of a machine, and a place in the limits of the share or group it
// is reached by, that one call holds from its reservation until release.
type held struct {
	fleet.Candidate
	model fleet.ModelID
	since time.Time
	once  sync.Once
	extra int // slots beside the first, for as many more answers
	// refused is why its daemon did not take the call, if it said so, and prompt
	// whether it was given some of the call's body.
	refused tunnel.Refusal
	prompt  bool
}

// hold reserves what a call needs of a candidate; nil if someone was quicker.
func hold(c fleet.Candidate, model fleet.ModelID, now time.Time) *held {
	if !c.Machine.Reserve(model, c.Class) {
		return nil
	}
	if c.Limits != nil && !c.Limits.Reserve(now) {
		c.Machine.Release(model)
		return nil
	}
	return &held{Candidate: c, model: model, since: now}
}

// widen counts a slot for each of the answers that the call asks for.
func (h *held) widen(answers int) {
	h.extra = max(answers, 1) - 1
	h.Machine.AddSlots(h.model, h.extra)
}

// giveBack undoes hold and widen; ran says that the machine took the call.
func (h *held) giveBack(ran bool) {
	h.Machine.AddSlots(h.model, -h.extra)
	h.Machine.Release(h.model)
	if h.Limits != nil {
		h.Limits.Release(ran, h.since)
	}
}

// sharers is every member whose calls count against the same limits.
func (h *held) sharers() []fleet.MemberID {
	if h.Share != nil {
		return []fleet.MemberID{h.Share.Member}
	}
	return h.Group.Members
}

// take holds the first candidate that has room, for a call that does not wait;
// those who wait for the machine already go first. now is when the candidates
// were decided on: a call counts in a share's day by the same clock that found
// room in it.
func (r *room) take(candidates []fleet.Candidate, model fleet.ModelID, now time.Time) *held {
	crowded := r.waiting.Load() > 0
	if crowded {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	for _, c := range candidates {
		if crowded {
			r.hand(c.Machine.ID)
		}
		if h := hold(c, model, now); h != nil {
			r.moved()
			return h
		}
	}
	return nil
}

// release gives a slot back, once, to a waiter that may use it if one waits; ran
// says that the machine took the call.
func (r *room) release(h *held, ran bool) {
	h.once.Do(func() {
		h.giveBack(ran)
		r.moved()
		if r.waiting.Load() == 0 {
			return
		}
		r.mu.Lock()
		r.hand(h.Machine.ID)
		var lines []*line
		if h.Limits.Counts() { // its place there may be used on another machine
			for _, q := range r.queues {
				for _, member := range h.sharers() {
					lines = append(lines, q.of[member]...)
				}
			}
		}
		r.mu.Unlock()
		r.decide(lines)
	})
}

// refused gives back a slot that its machine did not grant: nobody is woken for
// what is not there.
func (r *room) refused(h *held) {
	h.once.Do(func() { h.giveBack(false); r.moved() })
}

// changed gives out what a machine that came, went or changed has free. If it
// takes no calls now, those who wait for what it offers may have to be refused.
func (r *room) changed(machine *fleet.Machine) {
	if r.waiting.Load() == 0 {
		return
	}
	var at fleet.Query
	r.now(&at)
	r.mu.Lock()
	r.hand(machine.ID)
	var lines []*line
	if !machine.Accepts(at.Now) {
		for i := range machine.Offers {
			if q := r.queues[machine.Offers[i].ID]; q != nil {
				lines = append(lines, q.lines...)
			}
		}
	}
	r.mu.Unlock()
	r.decide(lines)
}

// recheck decides anew for those who wait and whom a change of the store
// concerns. To find them costs far less than to decide for all.
func (r *room) recheck(whom fleet.Affected) {
	if r.waiting.Load() == 0 || !whom.Any() {
		return
	}
	var lines []*line
	r.mu.Lock()
	for _, q := range r.queues {
		for _, l := range q.lines {
			if whom.Includes(&l.ask) {
				lines = append(lines, l)
			}
		}
	}
	r.mu.Unlock()
	r.decide(lines)
}

// tick decides anew for those for whom time may have changed something. Sharing
// hours and the shares' days begin and end with a minute, and of all else there
// is word, but of two: that reach can be confirmed again, and that a machine no
// longer offers a model.
func (r *room) tick(now time.Time) {
	if r.waiting.Load() == 0 {
		return
	}
	r.mu.Lock()
	minute := now.Truncate(time.Minute)
	all := r.unsure || !minute.Equal(r.minute)
	r.unsure, r.minute = false, minute
	r.mu.Unlock()
	s := r.now(new(fleet.Query))
	var lines []*line
	r.mu.Lock()
	for _, q := range r.queues {
		was := q.offers
		q.offers = s.Offers(q.model)
		if all || q.offers != was {
			lines = append(lines, q.lines...)
		}
	}
	r.mu.Unlock()
	r.decide(lines)
}

// decide asks the law for each line whether its waiters are to be refused now,
// or may be served. It takes mu for each alone: a slot goes to whom hand says,
// in whatever order the lines are looked at.
func (r *room) decide(lines []*line) {
	for _, l := range lines {
		r.mu.Lock()
		r.decideFor(l, nil)
		r.mu.Unlock()
	}
}

// decideFor is decide for one line, where those machines are full. Needs mu.
func (r *room) decideFor(l *line, full []fleet.MachineID) {
	for len(l.waiters) > 0 {
		ask := l.ask
		ask.Full = full
		known := r.now(&ask)
		d := fleet.Route(known, ask)
		given := false
		switch {
		case d.Row == unconfirmed: // who waits, waits on: it ends within the wait or does not
			r.unsure = true
		case d.Verdict == fleet.Try:
			for _, c := range d.Candidates {
				given = r.hand(c.Machine.ID) || given
			}
		case d.Verdict == fleet.Refuse:
			for len(l.waiters) > 0 {
				r.end(l.waiters[len(l.waiters)-1], grant{refusal: d.Fault, judged: judgement(d)})
			}
		}
		if !given {
			return
		}
	}
}

// ready is the decision for a waiter whose turn has come: a machine is ready.
var ready = fleet.Decision{Verdict: fleet.Try, Row: 3}

// hand gives out the machine's free slots, each to the first in line for it,
// and reports whether it gave any. Needs mu.
func (r *room) hand(id fleet.MachineID) (given bool) {
	var at fleet.Query
	s := r.now(&at)
	machine := s.Machine(id)
	if machine == nil {
		return false
	}
	if at.Unconfirmed {
		r.unsure = true
		return false
	}
	for machine.FreeSlots() > 0 {
		w, c := r.first(s, machine, at.Now)
		if w == nil {
			break
		}
		if h := hold(c, w.line.ask.Model, at.Now); h != nil {
			r.end(w, grant{held: h, judged: judgement(ready)})
			given = true
		}
	}
	return given
}

// first is who goes first of those who wait for any model of the machine and
// may use it now: the owner, then the oldest. Needs mu.
func (r *room) first(s *fleet.Snapshot, machine *fleet.Machine, now time.Time) (*waiter, fleet.Candidate) {
	var best *waiter
	var by fleet.Candidate
	look := func(lines []*line) {
		for _, l := range lines {
			w := l.waiters[0]
			if best != nil && best.before(w) {
				return
			}
			ask := l.ask
			ask.Now = now
			if seen, ok := fleet.StateOf(s, &ask, machine); ok && seen.State == fleet.Ready {
				best, by = w, seen.Candidate
				return
			}
		}
	}
	each := func(lines func(*queue) []*line) {
		for i := range machine.Offers {
			if q := r.queues[machine.Offers[i].ID]; q != nil {
				look(lines(q))
			}
		}
	}
	if each(func(q *queue) []*line { return q.of[machine.Owner] }); best == nil {
		each(func(q *queue) []*line { return q.lines })
	}
	return best, by
}

// join puts a call in its model's queue, by its arrival, and decides for it
// once: what came free since it last looked is not missed. Behind one like it
// there is nothing to decide.
func (r *room) join(ask fleet.Query, arrived time.Time) *waiter {
	full := ask.Full
	ask.Full = nil // what a machine refused with just now is old by the next event
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[ask.Model]
	if q == nil {
		if r.queues == nil {
			r.queues = make(map[fleet.ModelID]*queue)
		}
		q = newQueue(ask.Model, r.now(new(fleet.Query)).Offers(ask.Model))
		r.queues[ask.Model] = q
	}
	r.joined++
	w := &waiter{arrived: arrived, number: r.joined, granted: make(chan grant, 1), line: q.line(ask)}
	q.insert(w)
	r.waiting.Add(1)
	r.moved()
	if w.line.waiters[0] == w {
		r.decideFor(w.line, full)
	}
	return w
}

// leave takes w out of the queue. A grant that came at the same moment is
// returned, so that its slot is not lost.
func (r *room) leave(w *waiter) (grant, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !w.out {
		r.remove(w)
		return grant{}, false
	}
	g := <-w.granted
	return g, true
}

// ahead is how many of those who came before w still wait for its model. On a
// machine of its own a call may yet go ahead of them.
func (r *room) ahead(w *waiter) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.out {
		return 0
	}
	at, _ := slices.BinarySearchFunc(w.line.queue.waiters, w, byArrival)
	return at
}

// maxQueued bounds how many lines queued looks at.
const maxQueued = 256

// queued is how many calls wait that the machine could take, whatever it does just
// now; of more than maxQueued callers, as many as those make.
func (r *room) queued(machine *fleet.Machine) int {
	if r.waiting.Load() == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var at fleet.Query
	s := r.now(&at)
	n, looked := 0, 0
	for i := range machine.Offers {
		q := r.queues[machine.Offers[i].ID]
		if q == nil {
			continue
		}
		for _, l := range q.lines {
			if looked++; looked > maxQueued {
				return n
			}
			ask := l.ask
			ask.Now = at.Now
			if _, ok := fleet.StateOf(s, &ask, machine); ok {
				n += len(l.waiters)
			}
		}
	}
	return n
}

// end takes w out of its queue and tells it why. Needs mu.
func (r *room) end(w *waiter, g grant) {
	r.remove(w)
	w.granted <- g
}

// remove takes w out of its queue. Needs mu.
func (r *room) remove(w *waiter) {
	q := w.line.queue
	q.remove(w)
	if len(q.waiters) == 0 {
		delete(r.queues, q.model)
	}
	w.out = true
	r.waiting.Add(-1)
	r.moved()
}
