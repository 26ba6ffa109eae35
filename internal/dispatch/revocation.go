package dispatch

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

const (
	// checkTimeout limits the look-ups of callers, and so how much later a change is
	// published. Those that it cuts off are repeated (endUnconfirmed).
	checkTimeout = 2 * time.Second
	checksAtOnce = 4
	// unconfirmedGrace is how long a running call continues while changes of the store
	// cannot be read, on top of the 5 s after which nothing new is granted
	// (spec/routing.md#frame-blind).
	unconfirmedGrace = 25 * time.Second
)

// errUnconfirmed ends a call that may have been revoked (spec/routing.md#frame-blind).
var errUnconfirmed = fault.New(fault.CascadeExhausted, "cannot confirm any more that this may go on; try again shortly")

// OnCommitted takes changes of the store that the registry's snapshot does not hold yet; nil
// stands for any. It ends the calls whose key, machine credential or member a change names
// and is no longer valid: before the snapshot, by which they would get another fault
// (spec/routing.md#wait-end). A call whose look-up fails may still get that one.
func (d *Dispatcher) OnCommitted(changes []fleet.Change) {
	now := time.Now()
	d.changed.Store(&now) // before it looks at the active calls
	named := slices.DeleteFunc(d.active.all(), func(c *activeCall) bool { return !concerns(changes, c.call.Caller) })
	d.endRevoked(named, now)
}

// OnChange takes what changes of the store affect, once the registry's snapshot holds them.
// A call that runs on a machine which its caller no longer reaches ends there; if its answer
// has not begun, it is decided again. So are waiting calls that are affected.
func (d *Dispatcher) OnChange(affected fleet.Affected) {
	for _, c := range d.active.all() { // those that OnCommitted ended keep their fault
		d.endOutOfReach(c)
	}
	d.scheduler.onChange(affected)
}

// concerns reports whether a change is of the caller's key, machine or member.
func concerns(changes []fleet.Change, caller gateway.Caller) bool {
	return changes == nil || slices.ContainsFunc(changes, func(c fleet.Change) bool {
		return c.ID == caller.KeyID || c.ID == string(caller.Member) || c.ID == string(caller.Machine)
	})
}

// endRevoked looks the callers of the calls up, and ends the calls of those whose
// credential is revoked. A look-up that fails is repeated with the next tick, and ends
// the call once it has failed for unconfirmedGrace.
func (d *Dispatcher) endRevoked(calls []*activeCall, now time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	callsOf := make(map[gateway.Caller][]*activeCall)
	for _, c := range calls {
		callsOf[c.call.Caller] = append(callsOf[c.call.Caller], c)
	}
	var lookUps errgroup.Group
	lookUps.SetLimit(checksAtOnce)
	for caller, calls := range callsOf {
		lookUps.Go(func() error {
			since := make([]*time.Time, len(calls))
			for i, c := range calls {
				since[i] = c.unchecked.Load()
			}
			revoked, err := d.cfg.Revoked(ctx, caller)
			for i, c := range calls {
				failing := now
				if since[i] != nil {
					failing = *since[i]
				}
				switch {
				case revoked != nil:
					c.cancel(revoked)
				case err == nil:
					c.unchecked.CompareAndSwap(since[i], nil) // not where a later look-up failed
				case now.Sub(failing) >= unconfirmedGrace:
					c.cancel(errUnconfirmed)
				default:
					c.unchecked.Store(&failing) // another pointer each time
				}
			}
			return nil
		})
	}
	lookUps.Wait()
}

// endUnconfirmed repeats the look-ups that failed. Once changes of the store could not be
// read for so long that any call may have been revoked, it ends those that run; waiting
// calls wait on.
func (d *Dispatcher) endUnconfirmed(now time.Time) {
	var unchecked []*activeCall
	for _, c := range d.active.all() {
		if !d.mayRun() && c.attempt.Load() != nil {
			c.cancel(errUnconfirmed)
		}
		if c.unchecked.Load() != nil {
			unchecked = append(unchecked, c)
		}
	}
	d.endRevoked(unchecked, now)
}

// mayRun reports whether changes of the store were read lately enough for running calls to
// continue (spec/routing.md#frame-blind).
func (d *Dispatcher) mayRun() bool {
	return d.cfg.Registry.Confirmed(time.Now().Add(-unconfirmedGrace))
}

// endOutOfReach ends the attempt of a call on a machine that its caller no longer
// reaches. Where the machine left the snapshot, the end of its tunnel ends the attempt.
func (d *Dispatcher) endOutOfReach(c *activeCall) {
	a := c.attempt.Load()
	if a == nil {
		return
	}
	s := d.cfg.Registry.Snapshot()
	machine, caller := s.Machine(a.Machine.ID), c.call.Caller
	if machine == nil {
		return
	}
	if _, ok := s.AccessTo(caller.Member, caller.Narrow, machine).State(machine, a.Offer, d.cfg.Registry.Now()); !ok {
		a.cancel(d.outOfReach(c.call))
	}
}

// mayStart reports whether the caller of a call that is about to be sent may use its
// machine: OnChange did not see an attempt that was stored after its change.
func (d *Dispatcher) mayStart(a *attempt) bool {
	query := queryOf(a.call)
	s := d.refresh(&query)
	machine := s.Machine(a.Machine.ID)
	if machine == nil {
		return false
	}
	_, ok := fleet.StateOf(s, &query, machine)
	return ok
}

// unreached is the fault of a call that the home of its machine ended: that of its
// credential, or what holds by the changes that the home has read, which this node may
// not have read yet. It returns the cause of ctx's end once that has ended.
func (d *Dispatcher) unreached(ctx context.Context, call *gateway.Call) error {
	within, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if revoked, err := d.cfg.Revoked(within, call.Caller); err == nil && revoked != nil {
		return revoked
	}
	d.cfg.Registry.Settle(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return d.outOfReach(call)
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
