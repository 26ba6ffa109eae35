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
	// checkTimeout limits the look-ups after a change.
	checkTimeout = 2 * time.Second
	// unconfirmedGrace is how long a running call continues while changes of the store
	// cannot be read, from when nothing new is granted: 30 s in all
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
func (d *Dispatcher) revoke(changes []fleet.Change) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	checked := make(map[gateway.Caller]error)
	for _, c := range d.active.all() {
		caller := c.call.Caller
		invalid, known := checked[caller]
		if !known {
			if names(changes, caller) {
				invalid = d.cfg.Valid(ctx, caller)
			}
			checked[caller] = invalid
		}
		if invalid != nil {
			d.active.revoke(c, invalid)
		} else if a := c.attempt.Load(); a != nil && !d.reaches(caller, a) {
			a.cancel(d.outOfReach(c.call))
		}
	}
}

// revokeUnconfirmed ends every running call once changes of the store could not be
// read for so long that the call may have been revoked. Waiting calls wait on.
func (d *Dispatcher) revokeUnconfirmed(now time.Time) {
	if d.cfg.Registry.Confirmed(now.Add(-unconfirmedGrace)) {
		return
	}
	for _, c := range d.active.all() {
		if c.attempt.Load() != nil {
			d.active.revoke(c, fault.New(fault.CascadeExhausted, "cannot confirm any more that this may go on; try again shortly"))
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
	// The end of its tunnel ends the calls of a machine that left the snapshot.
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
