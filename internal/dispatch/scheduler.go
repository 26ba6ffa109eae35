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

// scheduler reserves the slots of machines for calls, and holds the waiting calls: one
// queue for each model, oldest first. Waiting calls get slots only from grantSlots or, if
// another node holds the slot, from takeHeld. A new call takes a slot only if no waiting
// call was found for it. Guests, the calls of other nodes, wait in the same queues.
type scheduler struct {
	// refresh is Dispatcher.refresh.
	refresh func(*fleet.Query) *fleet.Snapshot
	// activity is Config.Activity.
	activity func()

	waitCount atomic.Int64 // number of waiting calls; if 0, mu is not needed

	mu          sync.Mutex // never held together with activeCalls.mu
	queues      map[fleet.ModelID]*queue
	joined      int64     // number of calls that have joined a queue so far
	unconfirmed bool      // the store could not be read, so the next tick routes all again
	minute      time.Time // of the last tick with waiting calls
	// For Others; zero without them.
	others   Others
	began    time.Time         // start of the steps of slack
	cohorts  int64             // number of cohorts announced so far
	numbered map[int64]*waiter // the waiting calls of this Dispatcher
}

// waitResult is the end of a wait: a reserved slot or a refusal.
type waitResult struct {
	reservation *reservation
	refusal     *fault.Fault
	decision    gateway.Decision // the decision that ended the wait
}

// reservation is a slot of a machine, and a place under the limits of the share or group
// through which the machine is reached, from reserve until release.
type reservation struct {
	fleet.Candidate
	model fleet.ModelID
	since time.Time
	once  sync.Once // for the release
	extra int       // additional slots for the other answers of one call
	hold  string    // the name under which another node holds the slot; empty: none does
}

// slotUse is how a reservation was used.
type slotUse uint8

const (
	unused      slotUse = iota // the machine did not accept the call
	refusedBusy                // the machine refused the call as if it had no slot
	ran                        // the machine accepted the call
)

// reserve reserves a slot of the candidate. It returns nil if none is free. The limits
// for a machine that is connected to another node are counted there.
func reserve(c fleet.Candidate, model fleet.ModelID, now time.Time) *reservation {
	if !c.Machine.Reserve(model, c.Alone()) {
		return nil
	}
	if c.Machine.Remote {
		c.Limits = nil
	}
	if c.Limits != nil && !c.Limits.Reserve(now) {
		c.Machine.Release(model)
		return nil
	}
	return &reservation{Candidate: c, model: model, since: now}
}

// widen reserves a slot for each answer that a call requests.
func (s *scheduler) widen(r *reservation, answers int) {
	if r.extra = max(answers, 1) - 1; r.extra > 0 {
		r.Machine.AddSlots(r.model, r.extra)
		s.notifyUsed(r)
	}
}

// undo reverts reserve and widen.
func (r *reservation) undo(use slotUse) {
	r.Machine.AddSlots(r.model, -r.extra)
	r.Machine.Release(r.model)
	if r.Limits != nil {
		r.Limits.Release(use == ran, r.since)
	}
}

// grantSlots grants a machine's free slots to waiting calls, and reports whether it
// granted any (spec/routing.md#wait-order). mu must be held.
//
//  1. A machine that is not in the snapshot has no slots to grant. If a machine is
//     connected to another node, that node grants its slots.
//  2. While the store cannot be read, nothing is granted; the next tick routes again.
//  3. A free slot is granted to a waiting call of the machine's owner for any of the
//     machine's models: to the one that arrived first.
//  4. If there is none, it is granted to a waiting call of any member for any of the
//     machine's models that may use the machine now: to the one that arrived first.
//  5. If no waiting call may use the machine, the slot stays free for a new call.
//  6. Steps 3 to 5 repeat while the machine has a free slot. If a reservation fails, a new
//     call has taken the slot, and the steps repeat with the slots that are still free.
//     This ends, since StateOf and reserve use the same counts.
//  7. A slot for guests is passed to their Entry.
func (s *scheduler) grantSlots(id fleet.MachineID) (granted bool) {
	var moment fleet.Query
	snapshot := s.refresh(&moment)
	machine := snapshot.Machine(id)
	if machine == nil || machine.Remote {
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
			s.notifyUsed(r)
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

// granting returns the result of a wait that ends with a slot.
func granting(r *reservation) waitResult {
	return waitResult{reservation: r, decision: gateway.Decision{Verdict: fleet.Try, Row: rowReady}}
}

// nextWaiter returns the waiting call that gets the machine's next slot, and the machine
// as a candidate for that call: steps 3 and 4 of grantSlots. It checks only one call of
// each cohort. mu must be held.
func (s *scheduler) nextWaiter(snapshot *fleet.Snapshot, machine *fleet.Machine, now time.Time) (best *waiter, by fleet.Candidate) {
	look := func(cohorts []*cohort) {
		for _, c := range cohorts {
			if best != nil && best.before(c.first) {
				return
			}
			if c.guests != nil && !c.guests.entry.MayGrant(machine.ID) {
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

// queuesOf returns the queues of the machine's models. mu must be held.
func (s *scheduler) queuesOf(machine *fleet.Machine) (queues []*queue) {
	for i := range machine.Offers {
		if q := s.queues[machine.Offers[i].ID]; q != nil {
			queues = append(queues, q)
		}
	}
	return queues
}

// decide routes the calls of a cohort again. The machines in full count as busy
// (spec/routing.md#wait-end). mu must be held.
//
//  1. If routing cannot be confirmed, the calls continue to wait; the next tick routes
//     them again.
//  2. Try: grantSlots grants the candidates' slots, also to calls of other cohorts. This
//     repeats until nothing is granted or the cohort is empty.
//  3. Refuse: all calls of the cohort end with the refusal, unless they are guests. If
//     another machine could take a sealed call sooner than those that it waits for, only the
//     first one ends, to be sealed for it (spec/sealed.md#routing).
//  4. Wait: the calls continue to wait.
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
			if d.Fault.Code == fault.StaleSeal && d.Tally.Busy > 0 {
				s.resolve(c.first, waitResult{refusal: d.Fault, decision: decisionTrace(d, &query)})
				return
			}
			for len(c.waiters) > 0 { // the last first, so that the cohort keeps its place until it is empty
				s.resolve(c.waiters[len(c.waiters)-1], waitResult{refusal: d.Fault, decision: decisionTrace(d, &query)})
			}
		}
		if !granted {
			return
		}
	}
}

// grantCandidates grants the slots of the candidates, and reports whether it granted any.
// If other nodes grant the slots of some candidates, it tries all machines that are
// ready, because those of this node may not be among the best. mu must be held.
func (s *scheduler) grantCandidates(snapshot *fleet.Snapshot, query fleet.Query, candidates []fleet.Candidate) (granted bool) {
	remote := false
	for _, c := range candidates {
		remote = remote || c.Machine.Remote
		granted = s.grantSlots(c.Machine.ID) || granted
	}
	if granted || !remote {
		return granted
	}
	for seen := range fleet.Reachable(snapshot, query) {
		if seen.State == fleet.Ready && s.grantSlots(seen.Machine.ID) {
			return true
		}
	}
	return false
}

// decideAll calls decide for each cohort. It locks mu for one cohort at a time; their order
// does not matter to grantSlots.
func (s *scheduler) decideAll(cohorts []*cohort, full ...fleet.MachineID) {
	for _, c := range cohorts {
		s.mu.Lock()
		s.decide(c, full)
		s.mu.Unlock()
	}
}

// reserveFirst reserves a slot of the first candidate that has one, for a new call.
// Waiting calls get theirs first, also from machines of other nodes. now is the time of
// the decision, so that a call is counted for the day of a share that had room for it.
func (s *scheduler) reserveFirst(candidates []fleet.Candidate, model fleet.ModelID, now time.Time) *reservation {
	crowded := s.waitCount.Load() > 0
	if crowded {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	for _, c := range candidates {
		if crowded && c.Machine.Remote {
			if w, _ := s.nextWaiter(s.refresh(new(fleet.Query)), c.Machine, now); w != nil {
				continue
			}
		} else if crowded {
			s.grantSlots(c.Machine.ID)
		}
		if r := reserve(c, model, now); r != nil {
			s.notifyUsed(r)
			s.activity()
			return r
		}
	}
	return nil
}

// release frees the reservation, once. It then grants the slot to a waiting call, unless
// the machine refused as busy, and routes again the calls under the same limits: a place
// under these may help on any machine. The other nodes are notified only after that,
// because each of them would give the place under the limits to another call.
func (s *scheduler) release(r *reservation, use slotUse) {
	r.once.Do(func() {
		r.undo(use)
		defer s.notifyUsed(r)
		s.activity()
		if s.waitCount.Load() == 0 {
			return
		}
		var full []fleet.MachineID
		s.mu.Lock()
		cohorts := s.underSameLimits(r)
		if use == refusedBusy {
			full = append(full, r.Machine.ID)
		} else {
			s.grantSlots(r.Machine.ID)
			cohorts = append(cohorts, s.sealedCohorts(r.Machine)...)
		}
		s.mu.Unlock()
		s.decideAll(cohorts, full...)
	})
}

// underSameLimits returns the cohorts whose calls count against the same limits as a
// reservation. mu must be held.
func (s *scheduler) underSameLimits(r *reservation) (cohorts []*cohort) {
	if !r.Limits.Counts() { // nil Limits do not count, either
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

// sealedCohorts returns the cohorts of sealed calls for models of a machine that may be
// ready, for which they could be sealed. mu must be held.
func (s *scheduler) sealedCohorts(machine *fleet.Machine) (cohorts []*cohort) {
	if machine.FreeSlots() <= 0 || len(machine.Seals) == 0 {
		return nil
	}
	for _, q := range s.queuesOf(machine) {
		for _, c := range q.cohorts {
			if c.query.To != nil && c.guests == nil {
				cohorts = append(cohorts, c)
			}
		}
	}
	return cohorts
}

// cohortsOf returns the cohorts of calls of those members. mu must be held.
func (s *scheduler) cohortsOf(members []fleet.MemberID) (cohorts []*cohort) {
	for _, q := range s.queues {
		for _, member := range members {
			cohorts = append(cohorts, q.byCaller[member]...)
		}
	}
	return cohorts
}

// onMachine grants the free slots of a machine that connected, disconnected or changed.
// If the machine accepts no calls now, calls that wait for its models may have to be
// refused. tick handles those that wait for models which it no longer offers.
func (s *scheduler) onMachine(machine *fleet.Machine) {
	if s.waitCount.Load() == 0 {
		return
	}
	var moment fleet.Query
	s.refresh(&moment)
	s.mu.Lock()
	s.grantSlots(machine.ID)
	cohorts := s.sealedCohorts(machine)
	if !machine.Accepts(moment.Now) {
		for _, q := range s.queuesOf(machine) {
			cohorts = append(cohorts, q.cohorts...)
		}
	}
	s.mu.Unlock()
	s.decideAll(cohorts)
}

// onChange routes again the waiting calls that a change of the store affects. Finding
// them costs much less than routing all.
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

// tick routes again the calls that the passing of time may affect. Sharing hours and
// the days of shares start and end with a minute. There are no notifications of two other
// changes: that the store can be read again, and that a machine no longer offers a model.
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

// join puts a call into its model's queue, ordered by arrival, and routes it once, so
// that it does not miss a slot that became free since its last decision. If an earlier
// call of its cohort waits, that is not necessary.
func (s *scheduler) join(query fleet.Query, arrived time.Time) *waiter {
	full := query.Full
	query.Full = nil          // a busy machine counts as busy only until the next event
	query.Work = fleet.Work{} // a call takes the first free slot
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

// queueOf returns the queue of a model. mu must be held.
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

// insert puts w into the queue of its cohort. mu must be held.
func (s *scheduler) insert(w *waiter) {
	s.order(w)
	w.left = false
	w.cohort.queue = s.queueOf(w.cohort.query.Model)
	w.cohort.queue.insert(w)
	s.waitCount.Add(1)
	s.activity()
}

// order sets the position of w in its queue (spec/peers.md#order). Each process ranks
// calls that arrived at the same time differently, so that the processes do not all grant
// a slot to the same call.
func (s *scheduler) order(w *waiter) {
	w.turn = w.arrived
	if s.others == nil {
		return
	}
	since := w.arrived.Sub(s.began)
	w.turn = s.began.Add(since - (since%slack+slack)%slack)
	w.rank = s.others.Rank(w.cohort.entryName(), w.number)
}

// leave removes w from its queue. If its wait has just ended, leave returns the result,
// so that its slot is not lost.
func (s *scheduler) leave(w *waiter) (waitResult, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.left {
		s.remove(w)
		return waitResult{}, false
	}
	return <-w.result, true
}

// position returns how many calls that arrived before w wait for its model. A later call
// may still be served first on a machine that belongs to its caller.
func (s *scheduler) position(w *waiter) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.left {
		return 0
	}
	at, _ := slices.BinarySearchFunc(w.cohort.queue.waiters, w, byArrival)
	return at
}

// maxLooked is the maximum number of cohorts that queued examines.
const maxLooked = 256

// queued returns how many waiting calls the machine could serve, regardless of its
// current state. It counts only the first maxLooked cohorts; if there are more, it
// returns a lower bound.
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

// resolve removes w from its queue with a result. mu must be held.
func (s *scheduler) resolve(w *waiter, result waitResult) {
	s.remove(w)
	w.result <- result
}

// remove removes w from its queue. mu must be held.
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
