package dispatch

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// scheduler reserves the slots of machines for calls, and holds the calls that wait
// for one: a queue a model, oldest first. A waiting call gets its slot from
// grantSlots alone; a call that does not wait takes one after grantSlots found no
// waiting call for it. Guests, which are calls of other processes, wait in the same
// queues.
type scheduler struct {
	// refresh is Dispatcher.refresh.
	refresh func(*fleet.Query) *fleet.Snapshot
	// activity is Config.Activity.
	activity func()

	waitCount atomic.Int64 // how many calls wait; while none does, mu is not needed

	mu          sync.Mutex // never held together with activeCalls.mu
	queues      map[fleet.ModelID]*queue
	joined      int64     // how many calls have joined a queue so far
	unconfirmed bool      // the store could not be read: the next tick decides for all
	minute      time.Time // in which the last tick found waiting calls
	// For Others; zero without them.
	others   Others
	began    time.Time         // from which turns are counted
	cohorts  int64             // how many cohorts have been announced so far
	numbered map[int64]*waiter // the calls of this Dispatcher that wait
}

// waitResult is what ends a wait: a reserved slot, or the refusal that holds now.
type waitResult struct {
	slot     *reservation
	refusal  *fault.Fault
	decision gateway.Decision // that ended the wait
}

// reservation is a slot of a machine, and a place in the limits of the share or
// group by which the machine is reached, from reserve until release.
type reservation struct {
	fleet.Candidate
	model fleet.ModelID
	since time.Time
	once  sync.Once // of the release
	extra int       // slots beside the first, for the further answers of one call
	hold  string    // the name under which the slot is held where the machine is connected; empty: it is not
}

// slotUse is how a reservation was used.
type slotUse uint8

const (
	unused      slotUse = iota // the machine did not take the call
	refusedBusy                // it refused the call, as if it had no slot
	ran                        // it took the call
)

// reserve reserves a slot of the candidate; nil if none is free any more. The limits of
// a machine that is connected to another node are counted there.
func reserve(c fleet.Candidate, model fleet.ModelID, now time.Time) *reservation {
	if !c.Machine.Reserve(model, c.Alone()) {
		return nil
	}
	if c.Machine.Elsewhere {
		c.Limits = nil
	}
	if c.Limits != nil && !c.Limits.Reserve(now) {
		c.Machine.Release(model)
		return nil
	}
	return &reservation{Candidate: c, model: model, since: now}
}

// widen reserves a slot for each of the answers that a call asks for.
func (s *scheduler) widen(r *reservation, answers int) {
	if r.extra = max(answers, 1) - 1; r.extra > 0 {
		r.Machine.AddSlots(r.model, r.extra)
		s.used(r)
	}
}

// undo undoes reserve and widen.
func (r *reservation) undo(use slotUse) {
	r.Machine.AddSlots(r.model, -r.extra)
	r.Machine.Release(r.model)
	if r.Limits != nil {
		r.Limits.Release(use == ran, r.since)
	}
}

// grantSlots grants a machine's free slots to waiting calls, and reports whether it
// granted any (spec/routing.md#wait-order). Needs mu.
//
//  1. A machine that is not in the snapshot has no slots to grant. One that is connected
//     elsewhere has its slots granted there.
//  2. While the store cannot be read, nothing is granted; the next tick decides
//     again.
//  3. A free slot goes to a call of the machine's owner that waits for any of the
//     machine's models: of several, to the one that arrived first.
//  4. If the owner has none, it goes to the call that arrived first of all that wait
//     for any of the machine's models and may use the machine now.
//  5. If no waiting call may use the machine, the slot stays free for a call that
//     does not wait.
//  6. Steps 3 to 5 repeat while the machine has a free slot. A reservation that
//     fails was lost to a call that does not wait, and is tried again with what is
//     free then. This ends, since StateOf and reserve look at the same counts.
//  7. A slot for guests goes to their Host.
func (s *scheduler) grantSlots(id fleet.MachineID) (granted bool) {
	var moment fleet.Query
	snapshot := s.refresh(&moment)
	machine := snapshot.Machine(id)
	if machine == nil || machine.Elsewhere {
		return false
	}
	if moment.Unconfirmed {
		s.unconfirmed = true
		return false
	}
	for machine.FreeSlots() > 0 {
		w, candidate := s.nextWaiter(snapshot, machine, moment.Now)
		if w == nil {
			break
		}
		if r := reserve(candidate, w.cohort.query.Model, moment.Now); r != nil {
			s.used(r)
			if g := w.cohort.guests; g != nil {
				g.grant(w, r)
			} else {
				s.resolve(w, granting(r))
			}
			granted = true
		}
	}
	return granted
}

// granting is the result of a wait that ends with a slot.
func granting(r *reservation) waitResult {
	return waitResult{slot: r, decision: gateway.Decision{Verdict: fleet.Try, Row: rowReady}}
}

// nextWaiter returns the waiting call that the machine's next slot goes to, and the
// way by which it reaches the machine: steps 3 and 4 of grantSlots. It looks at one
// call of a cohort, for all of them. Needs mu.
func (s *scheduler) nextWaiter(snapshot *fleet.Snapshot, machine *fleet.Machine, now time.Time) (best *waiter, by fleet.Candidate) {
	look := func(cohorts []*cohort) {
		for _, c := range cohorts {
			if best != nil && best.before(c.first) {
				return
			}
			if c.guests != nil && !c.guests.host.Takes(machine.ID) {
				continue
			}
			query := c.query
			query.Now = now
			if seen, ok := fleet.StateOf(snapshot, &query, machine); ok && seen.State == fleet.Ready {
				best, by = c.first, seen.Candidate
				return
			}
		}
	}
	queues := s.queuesOf(machine)
	for _, q := range queues {
		look(q.byCaller[machine.Owner])
	}
	if best == nil {
		for _, q := range queues {
			look(q.cohorts)
		}
	}
	return best, by
}

// queuesOf returns the queues of the machine's models. Needs mu.
func (s *scheduler) queuesOf(machine *fleet.Machine) (queues []*queue) {
	for i := range machine.Offers {
		if q := s.queues[machine.Offers[i].ID]; q != nil {
			queues = append(queues, q)
		}
	}
	return queues
}

// decide routes the calls of a cohort again, where the machines in full count as busy
// (spec/routing.md#wait-end). Needs mu.
//
//  1. If routing cannot be confirmed, the calls wait on; the next tick decides
//     again.
//  2. Try: grantSlots grants the candidates' slots, to calls of other cohorts as
//     well. This repeats until nothing is granted or the cohort is empty.
//  3. Refuse: all calls of the cohort end with the refusal, unless they are guests.
//  4. Wait: they wait on.
func (s *scheduler) decide(c *cohort, full []fleet.MachineID) {
	for len(c.waiters) > 0 {
		query := c.query
		query.Full = full
		snapshot := s.refresh(&query)
		d := fleet.Route(snapshot, query)
		granted := false
		switch {
		case d.Row == rowUnconfirmed:
			s.unconfirmed = true
		case d.Verdict == fleet.Try:
			granted = s.grantCandidates(snapshot, query, d.Candidates)
		case d.Verdict == fleet.Refuse && c.guests == nil:
			for len(c.waiters) > 0 { // the last first: the cohort keeps its place until it is empty
				s.resolve(c.waiters[len(c.waiters)-1], waitResult{refusal: d.Fault, decision: decisionTrace(d, &query)})
			}
		}
		if !granted {
			return
		}
	}
}

// grantCandidates grants the slots of the candidates, and reports whether it granted any.
// If some of them are granted elsewhere, it looks at all machines that are ready: those
// here may not be among the best. Needs mu.
func (s *scheduler) grantCandidates(snapshot *fleet.Snapshot, query fleet.Query, candidates []fleet.Candidate) (granted bool) {
	elsewhere := false
	for _, c := range candidates {
		elsewhere = elsewhere || c.Machine.Elsewhere
		granted = s.grantSlots(c.Machine.ID) || granted
	}
	if granted || !elsewhere {
		return granted
	}
	for seen := range fleet.Reachable(snapshot, query) {
		if seen.State == fleet.Ready && s.grantSlots(seen.Machine.ID) {
			return true
		}
	}
	return false
}

// decideAll decides for each cohort, and holds mu for one at a time: the order in
// which they are looked at does not matter to grantSlots.
func (s *scheduler) decideAll(cohorts []*cohort, full ...fleet.MachineID) {
	for _, c := range cohorts {
		s.mu.Lock()
		s.decide(c, full)
		s.mu.Unlock()
	}
}

// take reserves a slot of the first candidate that has one, for a call that does
// not wait; waiting calls get theirs first, also from the homes of machines that are
// connected to other nodes. now is the time of the decision, so that
// a call counts in a share's day by the clock that found room in it.
func (s *scheduler) take(candidates []fleet.Candidate, model fleet.ModelID, now time.Time) *reservation {
	crowded := s.waitCount.Load() > 0
	if crowded {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	for _, c := range candidates {
		if crowded && c.Machine.Elsewhere {
			if w, _ := s.nextWaiter(s.refresh(new(fleet.Query)), c.Machine, now); w != nil {
				continue
			}
		} else if crowded {
			s.grantSlots(c.Machine.ID)
		}
		if r := reserve(c, model, now); r != nil {
			s.used(r)
			s.activity()
			return r
		}
	}
	return nil
}

// release gives a reservation back, once, for waiting calls to use: its slot, unless the
// machine refused the call as busy, and its place in the limits, on whichever machine. The
// other nodes learn of the place only if no call that waits got it: each of them would
// give it to another call.
func (s *scheduler) release(r *reservation, use slotUse) {
	r.once.Do(func() {
		r.undo(use)
		defer s.used(r)
		s.activity()
		if s.waitCount.Load() == 0 {
			return
		}
		var full []fleet.MachineID
		s.mu.Lock()
		if use == refusedBusy {
			full = append(full, r.Machine.ID)
		} else {
			s.grantSlots(r.Machine.ID)
		}
		cohorts := s.sharing(r)
		s.mu.Unlock()
		s.decideAll(cohorts, full...)
	})
}

// sharing returns the cohorts whose calls count against the same limits as that of a
// reservation. Needs mu.
func (s *scheduler) sharing(r *reservation) (cohorts []*cohort) {
	if !r.Limits.Counts() { // nor do nil Limits
		return nil
	}
	var members []fleet.MemberID
	if r.Share != nil {
		members = append(members, r.Share.Member)
	} else {
		members = r.Group.Members
	}
	return s.cohortsOf(members)
}

// cohortsOf returns the cohorts of calls of those members. Needs mu.
func (s *scheduler) cohortsOf(members []fleet.MemberID) (cohorts []*cohort) {
	for _, q := range s.queues {
		for _, member := range members {
			cohorts = append(cohorts, q.byCaller[member]...)
		}
	}
	return cohorts
}

// onMachine grants the free slots of a machine that connected, disconnected or
// changed. If it takes no calls now, those that wait for what it offers may have to
// be refused; tick finds those that wait for what it no longer offers.
func (s *scheduler) onMachine(machine *fleet.Machine) {
	if s.waitCount.Load() == 0 {
		return
	}
	var moment fleet.Query
	s.refresh(&moment)
	s.mu.Lock()
	s.grantSlots(machine.ID)
	var cohorts []*cohort
	if !machine.Accepts(moment.Now) {
		for _, q := range s.queuesOf(machine) {
			cohorts = append(cohorts, q.cohorts...)
		}
	}
	s.mu.Unlock()
	s.decideAll(cohorts)
}

// onChange decides again for the waiting calls that a change of the store affects.
// To find them costs far less than to decide for all.
func (s *scheduler) onChange(affected fleet.Affected) {
	if s.waitCount.Load() == 0 || !affected.Any() {
		return
	}
	var cohorts []*cohort
	s.mu.Lock()
	for _, q := range s.queues {
		for _, c := range q.cohorts {
			if affected.Includes(&c.query) {
				cohorts = append(cohorts, c)
			}
		}
	}
	s.mu.Unlock()
	s.decideAll(cohorts)
}

// tick decides again for the calls that time may have changed something for. Sharing
// hours and the days of shares begin and end with a minute. Two other changes are
// not notified: that the store can be read again, and that a machine no longer
// offers a model.
func (s *scheduler) tick(now time.Time) {
	if s.waitCount.Load() == 0 {
		return
	}
	snapshot := s.refresh(new(fleet.Query))
	var cohorts []*cohort
	s.mu.Lock()
	minute := now.Truncate(time.Minute)
	all := s.unconfirmed || !minute.Equal(s.minute)
	s.unconfirmed, s.minute = false, minute
	for _, q := range s.queues {
		was := q.offered
		q.offered = snapshot.OfferedBy(q.model)
		if all || q.offered != was {
			cohorts = append(cohorts, q.cohorts...)
		}
	}
	s.mu.Unlock()
	s.decideAll(cohorts)
}

// join puts a call into its model's queue, by its arrival, and decides for it once:
// a slot that came free since the call was decided is not missed. Behind another
// call of its cohort there is nothing to decide.
func (s *scheduler) join(query fleet.Query, arrived time.Time) *waiter {
	full := query.Full
	query.Full = nil          // that a machine was busy holds until the next event
	query.Work = fleet.Work{} // a call takes the first slot that comes free
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined++
	w := &waiter{arrived: arrived, number: s.joined, result: make(chan waitResult, 1), cohort: s.queueOf(query.Model).cohortOf(query)}
	s.enlist(w)
	s.insert(w)
	if w.cohort.first == w {
		s.decide(w.cohort, full)
	}
	s.announceFirst(w.cohort)
	return w
}

// queueOf returns the queue of a model. Needs mu.
func (s *scheduler) queueOf(model fleet.ModelID) *queue {
	q := s.queues[model]
	if q == nil {
		if s.queues == nil {
			s.queues = make(map[fleet.ModelID]*queue)
		}
		q = newQueue(model, s.refresh(new(fleet.Query)).OfferedBy(model))
		s.queues[model] = q
	}
	return q
}

// insert puts w into the queue of its cohort. Needs mu.
func (s *scheduler) insert(w *waiter) {
	s.order(w)
	w.left = false
	w.cohort.queue = s.queueOf(w.cohort.query.Model)
	w.cohort.queue.insert(w)
	s.waitCount.Add(1)
	s.activity()
}

// leave takes w out of its queue. If its wait ended at the same moment, leave
// returns the result, so that its slot is not lost.
func (s *scheduler) leave(w *waiter) (waitResult, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.left {
		s.remove(w)
		return waitResult{}, false
	}
	return <-w.result, true
}

// position returns how many calls that arrived before w wait for its model. On its
// owner's machine a call may still be served before them.
func (s *scheduler) position(w *waiter) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.left {
		return 0
	}
	at, _ := slices.BinarySearchFunc(w.cohort.queue.waiters, w, byArrival)
	return at
}

// maxLooked limits how many cohorts queued looks at.
const maxLooked = 256

// queued returns how many waiting calls the machine could take, whatever its state
// is now. Only the first maxLooked cohorts are counted; of more it is a lower bound.
func (s *scheduler) queued(machine *fleet.Machine) (n int) {
	if s.waitCount.Load() == 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var moment fleet.Query
	snapshot := s.refresh(&moment)
	looked := 0
	for _, q := range s.queuesOf(machine) {
		for _, c := range q.cohorts {
			if looked++; looked > maxLooked {
				return n
			}
			query := c.query
			query.Now = moment.Now
			if _, ok := fleet.StateOf(snapshot, &query, machine); ok {
				n += len(c.waiters)
			}
		}
	}
	return n
}

// resolve takes w out of its queue with a result. Needs mu.
func (s *scheduler) resolve(w *waiter, result waitResult) {
	s.remove(w)
	w.result <- result
}

// remove takes w out of its queue. Needs mu.
func (s *scheduler) remove(w *waiter) {
	q := w.cohort.queue
	q.remove(w)
	if len(q.waiters) == 0 {
		delete(s.queues, q.model)
	}
	w.left = true
	if w.cohort.guests == nil {
		delete(s.numbered, w.number)
	}
	s.waitCount.Add(-1)
	s.announceFirst(w.cohort)
	s.activity()
}
