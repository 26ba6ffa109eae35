package dispatch

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// reportEvery is how often a waiting call's position is reported to its caller.
const reportEvery = 2 * time.Second

// activeCall is a call received here, from Do until its answer is closed, or another
// node's call on a machine here (Visit).
type activeCall struct {
	d        *Dispatcher
	call     *gateway.Call
	query    fleet.Query
	deadline time.Time               // of the wait
	cancel   context.CancelCauseFunc // ends the call
	// lostOne is set when a unary call has lost its machine after it had started
	// (spec/routing.md#vanished).
	lostOne     bool
	reservation *reservation              // the latest one
	attempt     atomic.Pointer[attempt]   // the current one on a machine; nil: none
	unchecked   atomic.Pointer[time.Time] // when looking up its caller began to fail; nil: it has not
	phase       phase                     // guarded by activeCalls.mu
	prompt      prefix.Prompt             // what its machines have to process
	staleKey    bool                      // a machine cannot take the call with the key that it is sealed for
}

// errRouteAgain is returned by runOn for a call that must be routed again.
var errRouteAgain = errors.New("the call must be routed again")

// run decides, reserves or waits, and attempts until there is an answer or a fault.
func (c *activeCall) run(ctx context.Context) (*gateway.Answer, error) {
	for {
		decision := c.d.route(&c.query)
		c.recordDecision(decisionTrace(decision, &c.query))
		if decision.Verdict == fleet.Refuse {
			return nil, c.refusal(ctx, decision.Row, decision.Fault)
		}
		// With the verdict Wait, there are no candidates.
		c.reservation = c.d.scheduler.reserveFirst(decision.Candidates, c.call.Model, c.query.Now)
		if c.reservation == nil {
			if err := c.wait(ctx); err != nil {
				return nil, err
			}
		}
		if err := c.d.active.enter(c, phaseRunning); err != nil {
			c.d.scheduler.release(c.reservation, unused)
			return nil, err
		}
		if answer, err := c.runOn(ctx, c.reservation); err != errRouteAgain {
			return answer, err
		}
	}
}

// runOn attempts the call on the machine of a reservation. What happens next depends on
// the outcome of send:
//
//  1. answered, failed: the call ends with that answer or fault.
//  2. busy, unsent: the call is routed again, and the machine counts as busy until the
//     call joins a queue. It does not count as a machine that the call has tried.
//  3. notTaken, notAdmitted, revoked, vanished: the call is routed again without this
//     machine, unless it has tried fleet.MaxCandidates or a second machine has vanished. An
//     attempt cancelled because of reach counts as revoked if the machine confirms its end;
//     otherwise it has failed.
func (c *activeCall) runOn(ctx context.Context, r *reservation) (*gateway.Answer, error) {
	trace := &c.call.Trace
	trace.Attempts++
	c.d.scheduler.widen(r, c.call.Choices)
	trace.Machine, trace.Owner, trace.Group = r.Machine.ID, r.Machine.Owner, r.GroupID()
	receipt, err := c.d.cfg.Ledger.Begin(runningUsage(c.call))
	if err != nil {
		trace.Machine, trace.Owner, trace.Group = "", "", ""
		c.d.scheduler.release(r, unused)
		return nil, err
	}
	attemptCtx, cancel := context.WithCancelCause(ctx)
	a := &attempt{reservation: r, call: c.call, began: time.Now(), cancel: cancel}
	a.Offer.Load.Trying(a.Circle(), c.d.cfg.Registry.Now())
	c.d.turns.tried(c.call.Caller.Member, &a.Candidate, trace.Attempts == 1)
	c.attempt.Store(a)
	answer, outcome, err := c.d.send(attemptCtx, a)
	if outcome == answered {
		c.d.remember(c, a)
		if !c.call.Stream { // the machine is done
			c.attempt.Store(nil)
		}
		if err = c.d.cfg.Ledger.Await(attemptCtx, receipt); err != nil {
			answer.Close()
			answer, outcome = nil, failed
		}
	}
	if outcome == failed && attemptCtx.Err() != nil && ctx.Err() == nil {
		switch stopped := c.d.hasStopped(ctx, a); {
		case ctx.Err() != nil: // the call has ended in the meantime
			err = context.Cause(ctx)
		case stopped:
			outcome = revoked
		}
	}
	c.recordAttempt(a, outcome)
	if outcome == answered || outcome == failed {
		return answer, err
	}
	c.attempt.Store(nil)
	cancel(nil)
	if outcome != vanished {
		trace.Machine, trace.Owner, trace.Group = "", "", "" // the machine no longer has the call
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case outcome == busy, outcome == unsent:
		c.query.Full = append(c.query.Full, r.Machine.ID) // until the call joins a queue
		return nil, errRouteAgain
	case outcome == vanished && c.lostOne:
		return nil, fault.New(fault.MachineOffline, "two machines disconnected during the answer; try again shortly")
	}
	c.lostOne = c.lostOne || outcome == vanished
	c.staleKey = c.staleKey || a.needsOtherSeal()
	c.query.Avoid, c.query.Gone = append(c.query.Avoid, r.Machine.ID), true
	if len(c.query.Avoid) == fleet.MaxCandidates {
		return nil, c.exhausted(ctx)
	}
	return nil, errRouteAgain
}

// refusal returns the fault of a call that is refused by that row. After the loss of its
// machine, row 11 becomes a fault that names the loss. If the call has already ended,
// refusal returns the fault that ended it: the change that revoked its credential may also
// have ended its reach (spec/routing.md#wait-end).
func (c *activeCall) refusal(ctx context.Context, row int, f *fault.Fault) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.staleKey && row >= rowNotReady {
		return fault.New(fault.StaleSeal, "the machine cannot take the call with the key that it is sealed for; seal it again")
	}
	if c.lostOne && row == rowExhausted {
		f = fault.New(fault.MachineOffline, "the machine disconnected during the answer and no other machine could continue it; try again shortly")
		if c.query.Waited {
			f = f.AfterWait()
		}
	}
	return f
}

// Rows of spec/routing.md#the-twelve-rows that this package handles.
const (
	rowUnconfirmed = 2  // the store cannot be read; the only refusal that does not end a wait
	rowReady       = 3  // a machine is ready
	rowNotReady    = 8  // the first of those for machines that are reached and cannot take the call
	rowExhausted   = 11 // no attempts or no time are left
)

// exhausted returns the fault of a call that has no attempts or time left: the current
// refusal, or that of row 11 if fleet.Route would still try or wait.
func (c *activeCall) exhausted(ctx context.Context) error {
	decision := c.d.route(&c.query)
	if decision.Verdict == fleet.Refuse {
		c.recordDecision(decisionTrace(decision, &c.query))
		return c.refusal(ctx, decision.Row, decision.Fault)
	}
	decision.Verdict, decision.Row = fleet.Refuse, rowExhausted
	c.recordDecision(decisionTrace(decision, &c.query))
	code := fault.CapacityFull
	if c.query.Family != fleet.Chat {
		code = fault.CascadeExhausted
	}
	f := fault.New(code, "every machine that was tried for this model was busy or disconnected; try again shortly")
	if c.query.Waited {
		f = f.AfterWait()
	}
	return c.refusal(ctx, rowExhausted, f)
}

// wait queues the call for its model until it has a slot. It returns the fault that ends
// the wait, if any.
func (c *activeCall) wait(ctx context.Context) error {
	if err := c.d.active.enter(c, phaseWaiting); err != nil {
		return err
	}
	began := time.Now()
	w := c.d.scheduler.join(c.query, c.call.Arrived)
	c.query.Full = nil
	result, err := c.await(ctx, w)
	c.reservation = result.reservation
	c.call.Trace.Waited += time.Since(began)
	c.call.Waiting(-1, 0) // negative: it no longer waits
	if err != nil {
		return err
	}
	c.recordDecision(result.decision)
	if result.reservation == nil {
		return c.refusal(ctx, result.decision.Row, result.refusal)
	}
	return nil
}

// await returns the result of the wait, or the error that ended it: that of the deadline
// or of the caller's context.
func (c *activeCall) await(ctx context.Context, w *waiter) (waitResult, error) {
	resolved := false
	defer func() {
		if resolved {
			return
		}
		// The caller disconnected, or there was a panic.
		if result, ok := c.d.scheduler.leave(w); ok && result.reservation != nil {
			c.d.scheduler.release(result.reservation, unused)
		}
	}()
	deadline := time.NewTimer(time.Until(c.deadline))
	defer deadline.Stop()
	report := time.NewTicker(reportEvery)
	defer report.Stop()
	for {
		ahead := c.d.scheduler.position(w)
		if c.call.Trace.Place == 0 {
			c.call.Trace.Place = ahead + 1
		}
		c.call.Waiting(ahead, max(0, time.Until(c.deadline)))
		select {
		case result := <-w.result:
			resolved = true
			return result, nil
		case <-report.C:
		case <-deadline.C:
			resolved = true
			if result, ok := c.d.scheduler.leave(w); ok {
				return result, nil
			}
			c.query.Waited = true
			return waitResult{}, c.exhausted(ctx)
		case <-ctx.Done():
			return waitResult{}, context.Cause(ctx)
		}
	}
}
