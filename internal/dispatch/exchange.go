package dispatch

import (
	"context"
	"crypto/rand"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// Others is the other hub nodes of the region (package cluster).
type Others interface {
	// Waits is called with the first calls of those that are equal to routing when they
	// changed.
	Waits(Waiting)
	// Used is called when slots of a machine, or room under the limits by which it was
	// reached, were reserved or released.
	Used(*fleet.Candidate)
	// Sent is called with a prompt that a machine got, as package prefix writes it.
	Sent(prompt []byte)
	// Offer offers a held slot to the node of a waiting call.
	Offer(ctx context.Context, node string, g Grant) GrantOutcome
}

// Waiting is the oldest of the calls that wait at a node and are equal to routing
// (spec/peers.md#waiting).
type Waiting struct {
	ID      int64             `json:"id"` // of these calls, at their node
	Member  fleet.MemberID    `json:"member,omitempty"`
	Narrow  fleet.Narrow      `json:"narrow,omitempty"`
	Machine fleet.MachineID   `json:"machine,omitempty"` // whose daemon sent the calls
	Model   fleet.ModelID     `json:"model,omitempty"`
	Family  fleet.Family      `json:"family,omitempty"`
	Avoid   []fleet.MachineID `json:"avoid,omitempty"`
	Calls   []WaitingCall     `json:"calls,omitempty"` // oldest first; none: none wait any longer
}

// WaitingCall is one call that waits.
type WaitingCall struct {
	Number int64 `json:"number"` // at its node
	// Age is how long it had been there, in microseconds, when its node announced it: the
	// clocks of two nodes are not compared.
	Age     int64     `json:"age"`
	Arrived time.Time `json:"-"` // by this node's clock
}

// Grant is a held slot of a machine for one waiting call of another node.
type Grant struct {
	Call       int64           `json:"call"` // its number at its node
	Machine    fleet.MachineID `json:"machine"`
	Generation int64           `json:"generation"`
	Hold       string          `json:"hold"` // the call's request names it
}

// GrantOutcome is what a node did with a grant.
type GrantOutcome int

// The outcomes of a grant, and the statuses of their answers.
const (
	GrantTaken    = GrantOutcome(http.StatusNoContent) // the call's request follows
	GrantGone     = GrantOutcome(http.StatusGone)      // the call does not wait any longer
	GrantDeclined = GrantOutcome(http.StatusConflict)  // the call waits, and not for this machine now
	GrantLost     = GrantOutcome(0)                    // there is no answer
)

const (
	// announcedCalls is how many calls of a cohort are announced to the other nodes.
	announcedCalls = 4
	// slack is within what time arrivals at several nodes count as one
	// (spec/peers.md#order).
	slack = 20 * time.Millisecond
	// holdFor is how long a slot is held for a call of another node.
	holdFor = time.Second
	// pauseFor is how long a machine is not offered again to a node that declined it.
	pauseFor = time.Second
)

// exchange is the part of the scheduler that orders the calls of several nodes
// (spec/peers.md#waiting). Each node announces the first calls of its cohorts, and puts
// those of the others into its own queues. So the home of a machine grants its slots to
// the calls of all nodes in one order:
//
//	entry                                            home of the machine
//	join ──▶ announceFirst ── the first calls ──────▶ onWaiting ──▶ insert
//	                                                  grantSlots ──▶ offer: the slot is held
//	accept ◀──────────────────── POST /peer/grant ───┘
//	  └──▶ the request, with Kith-Hold ─────────────▶ redeem: the call has the slot
//
// A slot whose call does not come within holdFor is free again: the answer was lost, or
// the entry is gone. Without other nodes nothing of this is used.
type exchange struct {
	others Others // nil: there are none
	node   string // this node's name
	counts grantCounts

	// Guarded by scheduler.mu.
	began   time.Time // from which turns are counted
	cohorts int64     // how many cohorts have been announced so far
	calls   map[int64]*waiter
	remote  map[string]map[int64]*cohort // by node, and by id there
	paused  map[declined]time.Time       // until when
	holds   map[string]*reservation
}

// declined is a machine whose slot a node did not take, although its call waits.
type declined struct {
	machine fleet.MachineID
	node    string
}

// grantCounts counts the slots that were offered to other nodes.
type grantCounts struct{ offered, taken, gone, declined, lost, expired atomic.Int64 }

// Grants is how many slots this node has offered to calls of other nodes, and what
// resulted.
type Grants struct {
	Offered  int64
	Taken    int64 // the call's request followed, or was to
	Gone     int64 // the call did not wait any more
	Declined int64 // it waits, and not for this machine now
	Lost     int64 // there was no answer
	Expired  int64 // the call's request did not come in time
}

// Grants returns what this node has offered to calls of other nodes.
func (d *Dispatcher) Grants() Grants {
	c := &d.scheduler.counts
	return Grants{c.offered.Load(), c.taken.Load(), c.gone.Load(), c.declined.Load(), c.lost.Load(), c.expired.Load()}
}

// SetOthers sets the other hub nodes of the region. It is called before Run and Do.
func (d *Dispatcher) SetOthers(o Others) { d.scheduler.enter(d.cfg.Registry.NodeName(), o) }

// enter makes the scheduler that of a node which has others, under that name.
func (s *scheduler) enter(name string, o Others) {
	s.others, s.node, s.began = o, name, time.Now()
	s.calls = make(map[int64]*waiter)
	s.remote = make(map[string]map[int64]*cohort)
	s.paused = make(map[declined]time.Time)
	s.holds = make(map[string]*reservation)
}

// order sets the place of w in its queue (spec/peers.md#order). Homes rank the calls that
// arrived at the same time differently, so that they do not all offer a slot to the same
// one.
func (s *scheduler) order(w *waiter) {
	w.turn = w.arrived
	if s.others == nil {
		return
	}
	since := w.arrived.Sub(s.began)
	w.turn = s.began.Add(since - (since%slack+slack)%slack)
	node := w.cohort.node
	if node == "" {
		node = s.node
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.node + " " + node + " " + strconv.FormatInt(w.number, 10))) // it never fails
	w.rank = h.Sum64()
}

// enlist notes a call that waits here, so that a grant finds it. Needs mu.
func (s *scheduler) enlist(w *waiter) {
	if s.others == nil {
		return
	}
	s.calls[w.number] = w
	if w.cohort.id == 0 {
		s.cohorts++
		w.cohort.id = s.cohorts
	}
}

// announceFirst announces the first calls of a cohort of this node, if they changed.
// Needs mu.
func (s *scheduler) announceFirst(c *cohort) {
	if s.others == nil || c.node != "" {
		return
	}
	first := c.waiters[:min(len(c.waiters), announcedCalls)]
	if slices.EqualFunc(first, c.announced, func(w *waiter, number int64) bool { return w.number == number }) {
		return
	}
	c.announced = c.announced[:0]
	q := &c.query
	announced := Waiting{
		ID: c.id, Member: q.Caller, Narrow: q.Narrow, Machine: q.Exclude, Model: q.Model, Family: q.Family, Avoid: q.Avoid,
	}
	for _, w := range first {
		c.announced = append(c.announced, w.number)
		announced.Calls = append(announced.Calls, WaitingCall{Number: w.number, Arrived: w.arrived})
	}
	s.others.Waits(announced)
}

// onWaiting takes what another node announced of its waiting calls: all of them if
// complete is true, else those that changed.
func (s *scheduler) onWaiting(node string, complete bool, all []Waiting) {
	s.mu.Lock()
	of := s.remote[node]
	if of == nil {
		of = make(map[int64]*cohort)
		s.remote[node] = of
	}
	if complete {
		for id, c := range of {
			if !slices.ContainsFunc(all, func(w Waiting) bool { return w.ID == id }) {
				s.forget(c, nil)
				delete(of, id)
			}
		}
	}
	var changed []*cohort
	for i := range all {
		w := &all[i]
		c := of[w.ID]
		if c == nil {
			c = &cohort{node: node, id: w.ID, known: make(map[int64]*waiter), query: fleet.Query{
				Caller: w.Member, Narrow: w.Narrow, Exclude: w.Machine, Model: w.Model, Family: w.Family, Avoid: w.Avoid,
			}}
			of[w.ID] = c
		}
		before := c.first
		s.learn(c, w.Calls)
		if len(w.Calls) == 0 {
			delete(of, w.ID)
		}
		if c.first != nil && c.first != before {
			changed = append(changed, c)
		}
	}
	if len(of) == 0 {
		delete(s.remote, node)
	}
	s.mu.Unlock()
	s.decideAll(changed)
}

// learn replaces the calls that are known of a cohort of another node. One that was
// granted a slot stays out of the queue: grants are remembered by call. Needs mu.
func (s *scheduler) learn(c *cohort, calls []WaitingCall) {
	for _, call := range calls {
		w := c.known[call.Number]
		if w == nil {
			w = &waiter{cohort: c, number: call.Number, arrived: call.Arrived}
			c.known[call.Number] = w
			s.insert(w)
		} else if w.arrived.Sub(call.Arrived) > slack && !w.left { // the first announcement was late
			s.remove(w)
			w.arrived = call.Arrived
			s.insert(w)
		}
	}
	s.forget(c, calls)
}

// forget removes all calls of a cohort of another node but those. Needs mu.
func (s *scheduler) forget(c *cohort, except []WaitingCall) {
	for number, w := range c.known {
		if slices.ContainsFunc(except, func(call WaitingCall) bool { return call.Number == number }) {
			continue
		}
		if !w.left {
			s.remove(w)
		}
		delete(c.known, number)
	}
}

// isPaused reports whether the machine's slots are not offered to that node now. Needs mu.
func (s *scheduler) isPaused(machine fleet.MachineID, node string) bool {
	return len(s.paused) > 0 && time.Now().Before(s.paused[declined{machine, node}])
}

// offer holds a slot for a call of another node, and offers it to that node. Needs mu.
func (s *scheduler) offer(w *waiter, r *reservation) {
	s.remove(w)
	r.hold = rand.Text()
	s.holds[r.hold] = r
	s.counts.offered.Add(1)
	go s.sendOffer(w, r)
}

// sendOffer is offer without the lock. What happens to the slot, by the outcome:
//
//  1. Taken: the call's request redeems it. If that does not come within holdFor of the
//     offer, the slot is released.
//  2. Gone: the slot is released.
//  3. Declined, or there is no answer: the slot is released. The call waits on, and the
//     machine is not offered to its node again for pauseFor.
func (s *scheduler) sendOffer(w *waiter, r *reservation) {
	expires := time.AfterFunc(holdFor, func() {
		if s.redeem(r.hold) != nil {
			s.counts.expired.Add(1)
			s.release(r, unused)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), holdFor)
	defer cancel()
	outcome := s.others.Offer(ctx, w.cohort.node, Grant{
		Call: w.number, Machine: r.Machine.ID, Generation: r.Machine.Generation, Hold: r.hold,
	})
	switch outcome {
	case GrantTaken:
		s.counts.taken.Add(1)
		return
	case GrantGone:
		s.counts.gone.Add(1)
	case GrantDeclined:
		s.counts.declined.Add(1)
		s.returnToQueue(w, r.Machine)
	default:
		s.counts.lost.Add(1)
		s.returnToQueue(w, r.Machine)
	}
	if expires.Stop() && s.redeem(r.hold) != nil {
		s.release(r, unused)
	}
}

// returnToQueue lets a call of another node wait on that did not take a slot of the
// machine.
func (s *scheduler) returnToQueue(w *waiter, machine *fleet.Machine) {
	not := declined{machine.ID, w.cohort.node}
	s.mu.Lock()
	s.paused[not] = time.Now().Add(pauseFor)
	if w.cohort.known[w.number] == w {
		s.insert(w)
	}
	s.mu.Unlock()
	time.AfterFunc(pauseFor, func() {
		s.mu.Lock()
		delete(s.paused, not)
		s.mu.Unlock()
		s.onMachine(machine)
	})
	s.decideAll([]*cohort{w.cohort})
}

// redeem returns the slot of a hold, once; nil if it was released.
func (s *scheduler) redeem(hold string) *reservation {
	if hold == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.holds[hold]
	delete(s.holds, hold)
	return r
}

// accept gives a slot that another node holds to the call that waits here for it. It
// declines where the call could not be sent there now by this node's own snapshot: a way
// to the machine, or a share, may be known there before it is here, or here before there.
func (s *scheduler) accept(g Grant) GrantOutcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.calls[g.Call]
	if w == nil {
		return GrantGone
	}
	query := w.cohort.query
	snapshot := s.refresh(&query)
	machine := snapshot.Machine(g.Machine)
	if machine == nil || !machine.Online || !machine.Elsewhere || machine.Generation != g.Generation || query.Unconfirmed {
		return GrantDeclined
	}
	seen, ok := fleet.StateOf(snapshot, &query, machine)
	if !ok || seen.Offer.Load.Record(seen.Class).LeftOut(query.Now) {
		return GrantDeclined
	}
	machine.AddSlots(query.Model, 1) // the home counts what is free
	seen.Limits = nil
	s.resolve(w, granting(&reservation{Candidate: seen.Candidate, model: query.Model, since: query.Now, hold: g.Hold}))
	return GrantTaken
}

// used notifies the other nodes that a reservation was made, widened or released.
func (s *scheduler) used(r *reservation) {
	if s.others != nil {
		s.others.Used(&r.Candidate)
	}
}

// OnRoom takes members whose calls may have room under limits that calls on machines of
// other nodes used: their waiting calls are decided again.
func (d *Dispatcher) OnRoom(members []fleet.MemberID) {
	s := &d.scheduler
	s.mu.Lock()
	cohorts := s.cohortsOf(members)
	s.mu.Unlock()
	s.decideAll(cohorts)
}

// OnWaiting takes what another node announced of its waiting calls: all of them if
// complete is true, else those that changed.
func (d *Dispatcher) OnWaiting(node string, complete bool, calls []Waiting) {
	d.scheduler.onWaiting(node, complete, calls)
}

// Accept takes a slot that another node holds for a call that waits here.
func (d *Dispatcher) Accept(g Grant) GrantOutcome { return d.scheduler.accept(g) }
