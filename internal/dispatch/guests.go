package dispatch

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
)

const (
	// announcedCalls is how many calls of a cohort are announced to Others.
	announcedCalls = 4
	// slack is within what time arrivals at several processes count as one
	// (spec/peers.md#order).
	slack = 20 * time.Millisecond
)

// Others is what connects this Dispatcher with those of other processes (package
// cluster): calls that wait there are in the queues here, as Guests, and the other way
// round. A Dispatcher that is alone has none.
type Others interface {
	// Waits is called with the first calls of those that are equal to routing when they
	// changed. The queues are locked; it must not block.
	Waits(Waiting)
	// Rank orders calls that arrived at the same time: that of a host's Guests by its
	// number there, or one of this Dispatcher for the empty host.
	Rank(host string, number int64) uint64
	// Used is called when slots of a machine, or room under the limits by which it was
	// reached, were reserved or released.
	Used(*fleet.Candidate)
	// Sent is called with a prompt that a machine got, as package prefix writes it.
	Sent(prompt []byte)
	// Describe adds to a request for a machine that is connected elsewhere what is needed
	// to check the call there. served reports whether the machine has served a call of the
	// caller's circle, and hold is that of Take, or empty.
	Describe(r *http.Request, call *gateway.Call, served bool, hold string)
}

// Waiting is the oldest of the waiting calls that are equal to routing.
type Waiting struct {
	ID    int64 // of these calls
	Query fleet.Query
	Calls []WaitingCall // oldest first; none: none wait any longer
}

// WaitingCall is one waiting call.
type WaitingCall struct {
	Number  int64
	Arrived time.Time
}

// Host is a process whose calls wait here as Guests. Its functions are called while the
// queues are locked and must not block.
type Host struct {
	// Name differs from that of every other Host.
	Name string
	// Takes reports whether slots of the machine may be granted to calls of the host now.
	Takes func(fleet.MachineID) bool
	// Grant grants a slot to the guest of that number, which is in the queue no longer.
	Grant func(g *Guests, number int64, slot *Slot)
}

// Guests are waiting calls of a Host that are equal to routing. They get the slots of
// machines here in one order with the calls of this Dispatcher. They are neither refused
// nor served here.
type Guests struct {
	s      *scheduler
	host   *Host
	cohort *cohort
	known  map[int64]*waiter // also those that were granted a slot
}

// Slot is a reserved slot of a machine.
type Slot struct {
	*reservation
	s *scheduler
}

// Release gives the slot back, once.
func (s *Slot) Release() { s.s.release(s.reservation, unused) }

// line returns the way to the machine of a candidate. Requests to one that is connected
// elsewhere carry what is needed to check the call there. hold is that of Take, or empty.
func (d *Dispatcher) line(call *gateway.Call, c fleet.Candidate, hold string) (registry.Line, bool) {
	line, ok := d.cfg.Registry.Line(c.Machine.ID)
	if line.Home != "" {
		line.RoundTripper = describing{line.RoundTripper, func(r *http.Request) {
			d.scheduler.others.Describe(r, call, c.Standing > fleet.Unserved, hold)
		}}
	}
	return line, ok
}

// describing describes its requests to Others.
type describing struct {
	http.RoundTripper
	describe func(*http.Request)
}

// RoundTrip implements http.RoundTripper.
func (d describing) RoundTrip(r *http.Request) (*http.Response, error) {
	d.describe(r)
	return d.RoundTripper.RoundTrip(r)
}

// SetOthers connects the Dispatcher with others. It is called before Run and Do.
func (d *Dispatcher) SetOthers(o Others) { d.scheduler.setOthers(o) }

func (s *scheduler) setOthers(o Others) {
	s.others, s.began, s.numbered = o, time.Now(), make(map[int64]*waiter)
}

// order sets the place of w in its queue (spec/peers.md#order). Several processes rank the
// calls that arrived at the same time differently, so that they do not all grant a slot to
// the same one.
func (s *scheduler) order(w *waiter) {
	w.turn = w.arrived
	if s.others == nil {
		return
	}
	since := w.arrived.Sub(s.began)
	w.turn = s.began.Add(since - (since%slack+slack)%slack)
	w.rank = s.others.Rank(w.cohort.hostName(), w.number)
}

// enlist notes a call that waits here, so that Take finds it. Needs mu.
func (s *scheduler) enlist(w *waiter) {
	if s.others == nil {
		return
	}
	s.numbered[w.number] = w
	if w.cohort.id == 0 {
		s.cohorts++
		w.cohort.id = s.cohorts
	}
}

// announceFirst announces the first calls of a cohort of this Dispatcher, if they changed.
// Needs mu.
func (s *scheduler) announceFirst(c *cohort) {
	if s.others == nil || c.guests != nil {
		return
	}
	first := c.waiters[:min(len(c.waiters), announcedCalls)]
	if slices.EqualFunc(first, c.announced, func(w *waiter, number int64) bool { return w.number == number }) {
		return
	}
	c.announced = c.announced[:0]
	announced := Waiting{ID: c.id, Query: c.query}
	for _, w := range first {
		c.announced = append(c.announced, w.number)
		announced.Calls = append(announced.Calls, WaitingCall{w.number, w.arrived})
	}
	s.others.Waits(announced)
}

// used notifies Others that a reservation was made, widened or released.
func (s *scheduler) used(r *reservation) {
	if s.others != nil {
		s.others.Used(&r.Candidate)
	}
}

// NewGuests returns Guests of a host, without a call yet.
func (d *Dispatcher) NewGuests(host *Host, query fleet.Query) *Guests {
	return newGuests(&d.scheduler, host, query)
}

func newGuests(s *scheduler, host *Host, query fleet.Query) *Guests {
	g := &Guests{s: s, host: host, known: make(map[int64]*waiter)}
	g.cohort = &cohort{query: query, guests: g}
	return g
}

// Set replaces the calls that wait. One that was granted a slot stays out of the queue
// for as long as it is among them.
func (g *Guests) Set(calls []WaitingCall) {
	if g.s.setGuests(g, calls) {
		g.s.decideAll([]*cohort{g.cohort})
	}
}

// setGuests is Set without the decision, and reports whether one is due: whether another
// call is the first.
func (s *scheduler) setGuests(g *Guests, calls []WaitingCall) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := g.cohort
	before := c.first
	for _, call := range calls {
		w := g.known[call.Number]
		if w == nil {
			w = &waiter{cohort: c, number: call.Number, arrived: call.Arrived}
			g.known[call.Number] = w
			s.insert(w)
		} else if w.arrived.Sub(call.Arrived) > slack && !w.left { // the first announcement was late
			s.remove(w)
			w.arrived = call.Arrived
			s.insert(w)
		}
	}
	for number, w := range g.known {
		if slices.ContainsFunc(calls, func(call WaitingCall) bool { return call.Number == number }) {
			continue
		}
		if !w.left {
			s.remove(w)
		}
		delete(g.known, number)
	}
	return c.first != nil && c.first != before
}

// Return returns a call to the queue that did not take its slot.
func (g *Guests) Return(number int64) {
	g.s.returnGuest(g, number)
	g.s.decideAll([]*cohort{g.cohort})
}

func (s *scheduler) returnGuest(g *Guests, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := g.known[number]; w != nil && w.left {
		s.insert(w)
	}
}

// grant grants a slot to a guest. Needs mu.
func (g *Guests) grant(w *waiter, r *reservation) {
	g.s.remove(w)
	g.host.Grant(g, w.number, &Slot{r, g.s})
}

// Take gives a slot of a machine that is connected elsewhere, and held there under that
// name, to the call of that number. waits is whether the call still waits, and taken
// whether it has the slot. It has not if it could not be sent there now by the snapshot
// here: a way to the machine, or a share, may be known there before it is here, or here
// before there.
func (d *Dispatcher) Take(number int64, id fleet.MachineID, generation int64, hold string) (taken, waits bool) {
	return d.scheduler.takeHeld(number, id, generation, hold)
}

func (s *scheduler) takeHeld(number int64, id fleet.MachineID, generation int64, hold string) (taken, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.numbered[number]
	if w == nil {
		return false, false
	}
	query := w.cohort.query
	snapshot := s.refresh(&query)
	machine := snapshot.Machine(id)
	if machine == nil || !machine.Online || !machine.Elsewhere || machine.Generation != generation || query.Unconfirmed {
		return false, true
	}
	seen, ok := fleet.StateOf(snapshot, &query, machine)
	if !ok || seen.Offer.Load.Record(seen.Class).LeftOut(query.Now) {
		return false, true
	}
	machine.AddSlots(query.Model, 1) // the holder counts what is free
	seen.Limits = nil
	s.resolve(w, granting(&reservation{Candidate: seen.Candidate, model: query.Model, since: query.Now, hold: hold}))
	return true, true
}

// OnRoom takes members whose calls may have room under limits that calls elsewhere used:
// their waiting calls are decided again.
func (d *Dispatcher) OnRoom(members []fleet.MemberID) {
	s := &d.scheduler
	s.mu.Lock()
	cohorts := s.cohortsOf(members)
	s.mu.Unlock()
	s.decideAll(cohorts)
}

// Visit is a call of a Host on a machine that is connected here. The host has the caller,
// the ledger and the trace.
type Visit struct {
	Slot  *Slot
	Class fleet.Class

	d    *Dispatcher
	call *gateway.Call
}

// Reason is why a call of a Host is not served on a machine here.
type Reason int

// The reasons.
const (
	NoReason    Reason = iota
	Unknown            // the machine is not known
	Unreached          // the caller does not reach it, or that cannot be confirmed
	Unavailable        // paused, outside its hours, or its owner's limits are used up
	Full               // no free slot
)

// Reach returns by which class the caller of a host reaches the machine, by the snapshot
// here.
func (d *Dispatcher) Reach(call *gateway.Call, id fleet.MachineID) (fleet.Class, Reason) {
	seen, _, why := d.stateFor(call, id)
	return seen.Class, why
}

// stateFor returns the state of a machine for a call of a host, and the time of that.
func (d *Dispatcher) stateFor(call *gateway.Call, id fleet.MachineID) (seen fleet.CandidateState, now time.Time, why Reason) {
	query := queryOf(call)
	snapshot := d.refresh(&query)
	machine := snapshot.Machine(id)
	if machine == nil {
		return seen, query.Now, Unknown
	}
	seen, ok := fleet.StateOf(snapshot, &query, machine)
	if !ok || query.Unconfirmed {
		return seen, query.Now, Unreached
	}
	return seen, query.Now, NoReason
}

// Admit checks a call of a host again, by the snapshot here, and reserves a slot for it:
// held, if that is one of the machine for the model; held is released if it is not used.
// served is whether the machine has served a call of the caller's circle there.
func (d *Dispatcher) Admit(call *gateway.Call, id fleet.MachineID, held *Slot, served bool) (v *Visit, why Reason) {
	defer func() {
		if held != nil && (v == nil || v.Slot != held) {
			held.Release()
		}
	}()
	seen, now, why := d.stateFor(call, id)
	if why != NoReason {
		return nil, why
	}
	if seen.Class == fleet.Grouped && seen.Standing == fleet.Unserved && served {
		seen.Offer.Load.RaiseStanding(seen.Circle())
		if seen, now, why = d.stateFor(call, id); why != NoReason {
			return nil, why
		}
	}
	v = &Visit{Slot: held, Class: seen.Class, d: d, call: call}
	if held != nil && held.Machine.ID == id && held.model == call.Model {
		return v, NoReason
	}
	switch seen.State {
	case fleet.Ready:
	case fleet.Busy:
		return nil, Full
	default:
		return nil, Unavailable
	}
	r := d.scheduler.take([]fleet.Candidate{seen.Candidate}, call.Model, now)
	if r == nil {
		return nil, Full
	}
	v.Slot = &Slot{r, &d.scheduler}
	return v, NoReason
}

// Begin registers the call as one that runs, so that it ends as soon as the caller does
// not reach the machine. The context that it returns ends with the call; ended returns
// whether this Dispatcher ended it. finish releases the slot; used is whether the
// machine took the call, and full whether it refused the call as if it had no slot. ok is
// false if the caller does not reach the machine any longer.
func (v *Visit) Begin(ctx context.Context) (_ context.Context, finish func(used, full bool), ok bool) {
	d := v.d
	d.scheduler.widen(v.Slot.reservation, v.call.Choices)
	c := &activeCall{d: d, call: v.call, query: queryOf(v.call)}
	active, unregister := d.active.register(ctx, c)
	within, cancel := context.WithCancelCause(active)
	finish = func(used, full bool) {
		cancel(nil)
		unregister()
		use := unused
		switch {
		case full:
			use = refusedBusy
		case used:
			use = ran
		}
		d.scheduler.release(v.Slot.reservation, use)
	}
	a := &attempt{reservation: v.Slot.reservation, call: v.call, began: time.Now(), cancel: cancel}
	c.attempt.Store(a)
	return within, finish, d.mayStart(a) // OnChange did not see an attempt that was stored after its change
}

// IsRetried reports whether the host sends the call to another machine, after so many bytes
// of the answer: a streamed call whose machine is gone before the first one. It then does not
// count as one that the machine ran (slotUses).
func (v *Visit) IsRetried(gone bool, answered int64) bool {
	return gone && v.call.Stream && answered == 0
}

// Ending reports whether every call is ended because the hub ends.
func (d *Dispatcher) Ending() bool { return d.ending.Load() != nil }
