package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

const (
	// checkTimeout limits the look-ups after a change, and so how much later waiting
	// calls are decided again. Those that it cuts off are repeated (checkCaller).
	checkTimeout = 2 * time.Second
	// unconfirmedGrace is how long a running call continues while changes of the store
	// cannot be read, on top of the 5 s after which nothing new is granted
	// (spec/routing.md#frame-blind).
	unconfirmedGrace = 25 * time.Second
)

// revoke ends every call that the changes end; nil stands for any change.
//
//  1. A call whose key, machine credential or member a change names, and is no
//     longer valid, ends.
//  2. A call that runs on a machine which its caller no longer reaches ends there.
//     If its answer has not begun, it is decided again.
//  3. All others continue. The scheduler decides again for waiting calls.
//
// The calls that no change names come first: they need no look-up.
func (d *Dispatcher) revoke(changes []fleet.Change) {
	var named []*activeCall
	for _, c := range d.active.all() {
		if names(changes, c.call.Caller) {
			named = append(named, c)
		} else {
			d.revokeReach(c)
		}
	}
	d.endRevoked(named, time.Now())
	for _, c := range named { // those that were just ended keep their fault
		d.revokeReach(c)
	}
}

// revokeReach ends a running call on a machine that its caller no longer reaches.
func (d *Dispatcher) revokeReach(c *activeCall) {
	if a := c.attempt.Load(); a != nil && !d.reaches(c.call.Caller, a) {
		a.cancel(d.outOfReach(c.call))
	}
}

// endRevoked looks the callers of the calls up, and ends the calls of those whose
// credential is revoked.
func (d *Dispatcher) endRevoked(calls []*activeCall, now time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	checked := make(map[gateway.Caller]*fault.Fault)
	for _, c := range calls {
		f, ok := checked[c.call.Caller]
		if !ok {
			f = d.checkCaller(ctx, c.call.Caller, now)
			checked[c.call.Caller] = f
		}
		if f != nil {
			d.active.revoke(c, f)
		}
	}
}

// checkCaller returns the fault that ends the caller's calls. A look-up that fails is
// repeated with the next tick, and ends the calls once it has failed for
// unconfirmedGrace.
func (d *Dispatcher) checkCaller(ctx context.Context, caller gateway.Caller, now time.Time) *fault.Fault {
	f, err := d.cfg.Revoked(ctx, caller)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		delete(d.unchecked, caller)
		return f
	}
	if d.unchecked == nil {
		d.unchecked = make(map[gateway.Caller]time.Time)
	}
	if _, ok := d.unchecked[caller]; !ok {
		d.unchecked[caller] = now
	}
	if now.Sub(d.unchecked[caller]) >= unconfirmedGrace {
		return errUnconfirmed
	}
	return nil
}

// revokeUnchecked repeats the look-ups that failed, for the calls that are still
// active.
func (d *Dispatcher) revokeUnchecked(now time.Time) {
	d.mu.Lock()
	if len(d.unchecked) == 0 {
		d.mu.Unlock()
		return
	}
	var calls []*activeCall
	still := make(map[gateway.Caller]time.Time)
	for _, c := range d.active.all() {
		if since, ok := d.unchecked[c.call.Caller]; ok {
			calls = append(calls, c)
			still[c.call.Caller] = since
		}
	}
	d.unchecked = still
	d.mu.Unlock()
	d.endRevoked(calls, now)
}

// errUnconfirmed ends calls that may have been revoked, as far as the hub can see
// (spec/routing.md#frame-blind).
var errUnconfirmed = fault.New(fault.CascadeExhausted, "cannot confirm any more that this may go on; try again shortly")

// revokeUnconfirmed ends every running call once changes of the store could not be
// read for so long that the call may have been revoked. Waiting calls wait on.
func (d *Dispatcher) revokeUnconfirmed(now time.Time) {
	if d.cfg.Registry.Confirmed(now.Add(-unconfirmedGrace)) {
		return
	}
	for _, c := range d.active.all() {
		if c.attempt.Load() != nil {
			d.active.revoke(c, errUnconfirmed)
		}
	}
}

// names reports whether a change is of the caller's key, machine or member.
func names(changes []fleet.Change, caller gateway.Caller) bool {
	return changes == nil || slices.ContainsFunc(changes, func(c fleet.Change) bool {
		return c.ID == caller.KeyID || c.ID == string(caller.Member) || c.ID == string(caller.Machine)
	})
}

// reaches reports whether the caller of a running call still may use its machine.
func (d *Dispatcher) reaches(caller gateway.Caller, a *attempt) bool {
	s := d.cfg.Registry.Snapshot()
	for machine, standing := range s.Reach(caller.Member, caller.Narrow) {
		if machine.ID == a.Machine.ID {
			_, ok := standing.State(machine, a.Offer, time.Now())
			return ok
		}
	}
	// Of a machine that left the snapshot the end of its tunnel ends the call, not revoke.
	return s.Machine(a.Machine.ID) == nil
}

// stillReaches reports whether the caller of a call that is about to be sent may use
// its machine: revoke did not see an attempt that was stored after its change.
func (d *Dispatcher) stillReaches(a *attempt) bool {
	query := queryOf(a.call)
	s := d.now(&query)
	machine := s.Machine(a.Machine.ID)
	if machine == nil {
		return false
	}
	_, ok := fleet.StateOf(s, &query, machine)
	return ok
}

// outOfReach is the refusal that holds now for a call whose machine is out of reach.
// An answer that has begun ends also where another machine would serve the call.
func (d *Dispatcher) outOfReach(call *gateway.Call) *fault.Fault {
	query := queryOf(call)
	if decision := d.route(&query); decision.Verdict == fleet.Refuse {
		return decision.Fault
	}
	return fault.New(fault.CascadeExhausted, "the machine that ran this is no longer shared with you; another one serves the model: try again")
}
