package dispatch

import (
	"context"
	"errors"
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
	// slack is how far apart arrivals at different processes may be to count as
	// simultaneous (spec/peers.md#order).
	slack = 20 * time.Millisecond
)

// Others connects this Dispatcher with those of other hub nodes (package cluster). Calls
// that wait at another node are also in the queues here, as Guests, and vice versa. A
// Dispatcher of the only node has none.
type Others interface {
	// Waits is called with the first calls of a cohort when they have changed. The queues
	// are locked; it must not block.
	Waits(Waiting)
	// Rank returns the order among calls that arrived at the same time. The call is a
	// guest of that Entry with that number, or one of this Dispatcher if entry is "".
	Rank(entry string, number int64) uint64
	// Used is called when slots of a machine, or room under the limits that apply to the
	// candidate, have been reserved or released.
	Used(*fleet.Candidate)
	// KeyCounted is called when KeyLoad returns the key's count for the first time.
	KeyCounted(key string)
	// KeyUsed is called when a call has been counted, or is no longer running, under the
	// calls a day of a key.
	KeyUsed(key string, load *fleet.LimitLoad)
	// Sent is called with a prompt that was sent to a machine, encoded by package prefix.
	Sent(prompt []byte)
	// Describe adds to a request for a machine of another node the headers that the node
	// needs to check the call. served reports whether the machine has served a call of
	// the caller's circle. hold is as in AcceptGrant, or "".
	Describe(r *http.Request, call *gateway.Call, served bool, hold string)
}

// Errors of a request to a machine that is connected to another hub node, and of reading
// the response's body.
var (
	// ErrRefused means that the machine's home refused the request because, by its own
	// snapshot, the machine takes no call of the caller at the moment. This node's
	// snapshot will follow (spec/peers.md#news). The machine did not get the request.
	ErrRefused = errors.New("refused by the machine's hub node: it accepts no calls from the caller now")
	// ErrNotTaken means that the machine's home refused the request for another reason.
	// The machine did not get it.
	ErrNotTaken = errors.New("refused by the machine's hub node, which did not forward the request")
	// ErrLost means that the machine was disconnected, or its home is gone.
	ErrLost = errors.New("the machine's tunnel, or the hub node that it is connected to, was lost")
	// ErrUnreached means that the home ended the request because the caller no longer
	// reaches the machine.
	ErrUnreached = errors.New("ended by the machine's hub node: the machine is out of the caller's reach")
)

// Waiting holds the oldest calls of a cohort.
type Waiting struct {
	ID    int64 // of the cohort
	Query fleet.Query
	Calls []WaitingCall // oldest first; empty: none wait now
}

// WaitingCall is one waiting call.
type WaitingCall struct {
	Number  int64
	Arrived time.Time
}

// Entry is another node whose waiting calls are Guests here: the node that has their
// callers (docs/spec/peers.md). Its functions are called while the queues are locked and
// must not block.
type Entry struct {
	// Name is unique among the Entries.
	Name string
	// MayGrant reports whether slots of the machine may currently be granted to calls of
	// the entry.
	MayGrant func(fleet.MachineID) bool
	// Grant grants a slot to the guest with that number, which has left the queue.
	Grant func(g *Guests, number int64, slot *HeldSlot)
}

// Guests are waiting calls of an Entry that form a cohort. They get slots of machines
// here in one common order with the calls of this Dispatcher. They are neither
// refused nor served here.
type Guests struct {
	s      *scheduler
	entry  *Entry
	cohort *cohort
	known  map[int64]*waiter // including those that were granted a slot
}

// HeldSlot is a reserved slot of a machine that is held for a call of an Entry.
type HeldSlot struct {
	*reservation
	s *scheduler
}

// Release releases the slot; only the first call has an effect.
func (s *HeldSlot) Release() { s.s.release(s.reservation, unused) }

// line returns the line to the machine of a candidate. If the machine is connected to
// another node, requests carry the headers which that node needs to check the call. hold
// is as in AcceptGrant, or "".
func (d *Dispatcher) line(call *gateway.Call, c fleet.Candidate, hold string) (registry.Line, bool) {
	line, ok := d.cfg.Registry.Line(c.Machine.ID)
	if line.Home != "" {
		line.RoundTripper = describing{line.RoundTripper, func(r *http.Request) {
			d.scheduler.others.Describe(r, call, c.Standing > fleet.Unserved, hold)
		}}
	}
	return line, ok
}

// describing adds the headers of Others.Describe to its requests.
type describing struct {
	http.RoundTripper
	describe func(*http.Request)
}

// RoundTrip implements http.RoundTripper.
func (d describing) RoundTrip(r *http.Request) (*http.Response, error) {
	d.describe(r)
	return d.RoundTripper.RoundTrip(r)
}

// SetOthers sets others. Call it before Run and Do.
func (d *Dispatcher) SetOthers(o Others) { d.scheduler.setOthers(o) }

func (s *scheduler) setOthers(o Others) {
	s.others, s.began, s.numbered = o, time.Now(), make(map[int64]*waiter)
}

// enlist records a call that waits here, so that AcceptGrant can
// find it. mu must be held.
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

// announceFirst announces the first calls of a cohort of this Dispatcher if they have
// changed. mu must be held.
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

// notifyUsed notifies Others that a reservation was made, widened or released.
func (s *scheduler) notifyUsed(r *reservation) {
	if s.others != nil {
		s.others.Used(&r.Candidate)
	}
}

// NewGuests returns Guests of an entry, without any calls.
func (d *Dispatcher) NewGuests(entry *Entry, query fleet.Query) *Guests {
	return newGuests(&d.scheduler, entry, query)
}

func newGuests(s *scheduler, entry *Entry, query fleet.Query) *Guests {
	g := &Guests{s: s, entry: entry, known: make(map[int64]*waiter)}
	g.cohort = &cohort{query: query, guests: g}
	return g
}

// Set replaces the waiting calls. A call that was granted a slot stays out of the queue
// for as long as it is in calls.
func (g *Guests) Set(calls []WaitingCall) {
	if g.s.setGuests(g, calls) {
		g.s.decideAll([]*cohort{g.cohort})
	}
}

// setGuests is Set without the decision. It reports whether one is necessary, because
// another call is the first now.
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

// Return puts a call that did not take its slot back into the queue.
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

// grant grants a slot to a guest. mu must be held.
func (g *Guests) grant(w *waiter, r *reservation) {
	g.s.remove(w)
	g.entry.Grant(g, w.number, &HeldSlot{r, g.s})
}

// AcceptGrant gives a slot of a machine on another node to the call with that number. The
// machine's home holds the slot under the name hold. waits reports whether the call still
// waits, and taken whether it now has the slot. It does not get the slot if the snapshot
// here does not allow sending it to the machine now: the two nodes may learn of a
// connection or a share at different times.
func (d *Dispatcher) AcceptGrant(number int64, id fleet.MachineID, generation int64, hold string) (taken, waits bool) {
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
	if machine == nil || !machine.Online || !machine.Remote || machine.Generation != generation || query.Unconfirmed {
		return false, true
	}
	seen, ok := fleet.StateOf(snapshot, &query, machine)
	if !ok || seen.Offer.Load.Record(seen.Class).LeftOut(query.Now) {
		return false, true
	}
	machine.AddSlots(query.Model, 1) // the holder counts the free slots
	seen.Limits = nil
	s.resolve(w, granting(&reservation{Candidate: seen.Candidate, model: query.Model, since: query.Now, hold: hold}))
	return true, true
}

// OnLimitsFreed handles members that may have room again under limits used by calls at
// other nodes: their waiting calls are routed again.
func (d *Dispatcher) OnLimitsFreed(members []fleet.MemberID) {
	s := &d.scheduler
	s.mu.Lock()
	cohorts := s.cohortsOf(members)
	s.mu.Unlock()
	s.decideAll(cohorts)
}

// Visit is a call of another node on a machine that is connected here. Its entry keeps
// the caller, the ledger and the trace.
type Visit struct {
	Slot  *HeldSlot
	Class fleet.Class

	d    *Dispatcher
	call *gateway.Call
}

// Reason is why another node's call is not served on a machine here.
type Reason int

// The reasons.
const (
	NoReason    Reason = iota
	Unknown            // unknown machine
	Unreached          // out of the caller's reach, or that cannot be confirmed
	Unavailable        // paused, outside its hours, or its owner's limits are exhausted
	Full               // no free slot
)

// Reach returns the class of the machine for the caller of another node's call, according
// to the snapshot here.
func (d *Dispatcher) Reach(call *gateway.Call, id fleet.MachineID) (fleet.Class, Reason) {
	seen, _, why := d.stateFor(call, id)
	return seen.Class, why
}

// stateFor returns the state of a machine for another node's call, and the time of the
// decision.
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

// Admit checks another node's call again, against the snapshot here, and reserves a slot
// for it. It uses held if that is a slot of this machine for this model, and releases held
// otherwise. served reports whether the entry knows that the machine has served a call of
// the caller's circle.
func (d *Dispatcher) Admit(call *gateway.Call, id fleet.MachineID, held *HeldSlot, served bool) (v *Visit, why Reason) {
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
	r := d.scheduler.reserveFirst([]fleet.Candidate{seen.Candidate}, call.Model, now)
	if r == nil {
		return nil, Full
	}
	v.Slot = &HeldSlot{r, &d.scheduler}
	return v, NoReason
}

// Begin registers the call as running, so that it ends when the caller no longer reaches
// the machine. The returned context ends with the call. finish releases the slot: used is
// whether the machine accepted the call, and full whether it refused it as if it had no
// slot. ok is false if the caller no longer reaches the machine.
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
	return within, finish, d.mayStart(a) // OnChange cannot see an attempt that is stored after its change
}

// IsRetried reports whether the entry will send the call to another machine: it is
// streamed, and its machine was gone before the first byte of the answer. It then does
// not count as a call that ran on the machine (slotUses).
func (v *Visit) IsRetried(gone bool, answered int64) bool {
	return gone && v.call.Stream && answered == 0
}

// Ending reports whether all calls are ended because the hub stops.
func (d *Dispatcher) Ending() bool { return d.ending.Load() != nil }
