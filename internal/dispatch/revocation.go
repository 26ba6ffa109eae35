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
	// checkTimeout limits the time for looking up callers, and so the delay before a
	// change is published. Look-ups that it cuts off are repeated (endUnconfirmed).
	checkTimeout = 2 * time.Second
	checksAtOnce = 4
	// unconfirmedGrace is how long running calls continue while changes of the store
	// cannot be read. It starts after the 5 s after which no new slots are granted
	// (spec/routing.md#frame-blind).
	unconfirmedGrace = 25 * time.Second
)

// errUnconfirmed ends a call that may have been revoked (spec/routing.md#frame-blind).
var errUnconfirmed = fault.New(fault.CascadeExhausted,
	"the hub can no longer confirm that this call is allowed; try again shortly")

// OnCommitted handles changes of the store that are not yet in the registry's snapshot;
// nil means any change. It ends the calls whose key, machine credential or member a change
// names, if that is no longer valid. It does so before the snapshot changes, because they
// would then get another fault (spec/routing.md#wait-end). A call whose look-up fails may
// still get that fault.
func (d *Dispatcher) OnCommitted(changes []fleet.Change) {
	now := time.Now()
	d.changed.Store(&now) // before looking at the active calls
	named := slices.DeleteFunc(d.active.all(), func(c *activeCall) bool { return !concerns(changes, c.call.Caller) })
	d.endRevoked(named, now)
}

// OnChange handles changes of the store after they are in the registry's snapshot. It
// ends attempts on machines that the caller no longer reaches; a call whose answer has
// not begun is routed again. Affected waiting calls are also routed again.
func (d *Dispatcher) OnChange(affected fleet.Affected) {
	for _, c := range d.active.all() { // calls that OnCommitted ended keep their fault
		d.endOutOfReach(c)
	}
	d.scheduler.onChange(affected)
}

// concerns reports whether a change is about the caller's key, machine or member.
func concerns(changes []fleet.Change, caller fleet.Caller) bool {
	return changes == nil || slices.ContainsFunc(changes, func(c fleet.Change) bool {
		return c.ID == caller.KeyID || c.ID == string(caller.Member) || c.ID == string(caller.Machine)
	})
}

// endRevoked looks up the callers of the calls, and ends the calls whose credential is
// revoked. A look-up that fails is repeated at the next tick. When it has failed for
// unconfirmedGrace, the calls end.
func (d *Dispatcher) endRevoked(calls []*activeCall, now time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	callsOf := make(map[fleet.Caller][]*activeCall)
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
					c.unchecked.CompareAndSwap(since[i], nil) // unless a later look-up has failed
				case now.Sub(failing) >= unconfirmedGrace:
					c.cancel(errUnconfirmed)
				default:
					c.unchecked.Store(&failing) // a new pointer each time
				}
			}
			return nil
		})
	}
	lookUps.Wait()
}

// endUnconfirmed repeats the look-ups that failed. If changes of the store have not been
// read for so long that any call may have been revoked, it ends the running calls;
// waiting calls continue to wait.
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

// mayRun reports whether changes of the store were read recently enough for running calls
// to continue (spec/routing.md#frame-blind).
func (d *Dispatcher) mayRun() bool {
	return d.cfg.Registry.Confirmed(time.Now().Add(-unconfirmedGrace))
}

// endOutOfReach ends the attempt of a call on a machine that its caller no longer
// reaches. If the machine is no longer in the snapshot, the end of its tunnel ends the
// attempt.
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
	if _, ok := s.AccessTo(caller.Member, caller.Reach, machine).State(machine, a.Offer, d.cfg.Registry.Now()); !ok {
		a.cancel(d.outOfReach(c.call))
	}
}

// mayStart reports whether the caller of a call that is about to be sent may use its
// machine. It is necessary because OnChange cannot see an attempt that is stored after
// its change.
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

// unreached returns the fault of a call that was ended by its machine's home node: that
// of a revoked credential, or the current refusal. The home node may have read changes
// that this node has not, so unreached waits until this node has read them, too. If ctx
// has ended, it returns the cause.
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

// outOfReach returns the current refusal for a call whose machine is out of reach. An
// answer that has begun ends even if another machine could serve the call.
func (d *Dispatcher) outOfReach(call *gateway.Call) *fault.Fault {
	query := queryOf(call)
	query.Sealed, query.To, query.Declined = false, nil, nil // it can no longer be sealed again
	if decision := d.route(&query); decision.Verdict == fleet.Refuse {
		return decision.Fault
	}
	return fault.New(fault.CascadeExhausted, "the machine that ran this is no longer shared with you; another one serves the model: try again")
}
