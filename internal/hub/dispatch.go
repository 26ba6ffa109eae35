package hub

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

const (
	// maxAttempts is how many machines one call may try (decisions 2).
	maxAttempts = 3
	// reportWaiting is how often a waiting call is told its position anew.
	reportWaiting = 2 * time.Second
)

// Do serves a call on a machine in the caller's reach, or says which refusal
// it is (decisions 2, 3): decide, try, wait, give up.
func (h *Hub) Do(ctx context.Context, call *gateway.Call) (answer *gateway.Answer, err error) {
	d := &dispatch{hub: h, call: call, ask: askOf(call), deadline: call.Arrived.Add(h.patience(call))}
	ctx, end := h.underway.begin(ctx, d)
	defer func() {
		if answer == nil { // refused, or ended by a defect, which may have left a slot
			if on := d.on.Load(); on != nil {
				h.room.release(on.held, true)
			}
			end()
		}
	}()
	// Its body may have taken minutes to come. What changed since it was identified,
	// and before it was underway, recall did not end it for.
	if changed := h.changed.Load(); changed != nil && !call.Arrived.After(*changed) && !h.stands(ctx, call.Caller) {
		return nil, badKey()
	}
	if answer, err = d.run(ctx); err != nil {
		return nil, err
	}
	answer.Body = &lasting{answer.Body, end}
	return answer, nil
}

// lasting is an answer's body whose close ends the call.
type lasting struct {
	io.ReadCloser
	end func()
}

// Close satisfies io.Closer.
func (b *lasting) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

func askOf(call *gateway.Call) fleet.Query {
	return fleet.Query{
		Caller: call.Caller.Member, Narrow: call.Caller.Narrow, Exclude: call.Caller.Machine,
		Model: call.Model, Family: call.Endpoint.Family(),
	}
}

// run is the call's way to an answer or its fault.
func (d *dispatch) run(ctx context.Context) (*gateway.Answer, error) {
	h, call := d.hub, d.call
	for {
		decision := h.route(&d.ask)
		d.judged(judgement(decision))
		switch decision.Verdict {
		case fleet.Refuse:
			return nil, d.refusal(decision)
		case fleet.Try:
			if held := h.room.take(decision.Candidates, call.Model, d.ask.Now); held != nil {
				if err := h.underway.enter(d, runs); err != nil {
					h.room.release(held, false)
					return nil, err
				}
				if answer, err, done := d.attempt(ctx, held); done {
					return answer, err
				}
				continue
			}
			// Others were quicker: the queue finds what is left.
		}
		if answer, err, done := d.wait(ctx); done {
			return answer, err
		}
	}
}

// patience is how long the call may wait for a machine: the hub's limit, or
// the caller's own if that is shorter (decisions 3).
func (h *Hub) patience(call *gateway.Call) time.Duration {
	limit := h.cfg.Wait
	if call.Stream {
		limit = h.cfg.WaitStream
	}
	if call.Wait >= 0 {
		limit = min(limit, call.Wait)
	}
	return limit
}

// route decides on the newest snapshot, at this instant, with a fresh draw.
func (h *Hub) route(ask *fleet.Query) fleet.Decision {
	s := h.now(ask)
	return fleet.Route(s, *ask)
}

// now stamps the ask with this instant, and gives the newest snapshot.
func (h *Hub) now(ask *fleet.Query) *fleet.Snapshot {
	ask.Now = time.Now()
	ask.Draw = h.cfg.Draw()
	ask.Unconfirmed = !h.live.Confirmed(ask.Now)
	return h.live.Snapshot()
}

// dispatch is one call's way through the hub.
type dispatch struct {
	hub      *Hub
	call     *gateway.Call
	ask      fleet.Query
	deadline time.Time
	// vanished says that a unary call lost its machine after it had started.
	vanished bool
	// on is the attempt that runs now; nil: none.
	on    atomic.Pointer[running]
	phase phase // guarded by underway.mu
}

// running is a call on a machine; end ends this attempt and not the call.
type running struct {
	*held
	end context.CancelCauseFunc
}

// attempt tries the machine on which a slot is held. done is false when another
// machine may be tried.
func (d *dispatch) attempt(ctx context.Context, c *held) (_ *gateway.Answer, _ error, done bool) {
	trace := &d.call.Trace
	trace.Attempts++
	c.widen(d.call.Choices)
	u := usageOf(d.call)
	u.MachineID, u.OwnerID, u.GroupID = string(c.Machine.ID), string(c.Machine.Owner), string(c.GroupID())
	noted, err := d.hub.ledger.Begin(u)
	if err != nil {
		d.hub.room.release(c, false)
		return nil, err, true
	}
	trace.Machine, trace.Owner, trace.Group = c.Machine.ID, c.Machine.Owner, c.GroupID()
	began := time.Now()
	here, end := context.WithCancelCause(ctx)
	d.on.Store(&running{c, end})
	answer, outcome, err := d.hub.try(here, d.call, c)
	if outcome == served {
		if err = d.hub.ledger.Await(here, noted); err != nil {
			answer.Close()
			answer, outcome = nil, failed
		}
	}
	if outcome == failed && here.Err() != nil && ctx.Err() == nil && d.hub.stopped(ctx, d.call, c) {
		outcome = movedOn // out of the caller's reach before the answer began
	}
	d.tried(c, began, outcome)
	if outcome == served || outcome == failed {
		return answer, err, true
	}
	d.on.Store(nil)
	end(nil)
	if outcome != vanished {
		trace.Machine, trace.Owner, trace.Group = "", "", "" // it never ran the call
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx), true
	case outcome == refusedBusy:
		d.ask.Full = append(d.ask.Full, c.Machine.ID) // until the call has waited
		return nil, nil, false
	case outcome == vanished && d.vanished:
		return nil, vanishedTwice(), true
	}
	d.vanished = d.vanished || outcome == vanished
	d.ask.Avoid, d.ask.Gone = append(d.ask.Avoid, c.Machine.ID), true
	if len(d.ask.Avoid) == maxAttempts {
		return nil, d.giveUp(), true
	}
	return nil, nil, false
}

// refusal is the fault of a decision to refuse. Where no machine is left for a
// call that had started on one, that one's end is the cause.
func (d *dispatch) refusal(decision fleet.Decision) *fault.Fault {
	if d.vanished && decision.Row == 11 {
		return fault.New(fault.MachineOffline, "the machine went away in the middle of the answer and no other one is free; try again shortly")
	}
	return decision.Fault
}

func vanishedTwice() *fault.Fault {
	return fault.New(fault.MachineOffline, "two machines went away in the middle of the answer; try again shortly")
}

// giveUp is the refusal that holds after all attempts or the wait (rows 8 to
// 12). Where the law would still try or wait, the attempts or the time for it
// are used up: row 11.
func (d *dispatch) giveUp() *fault.Fault {
	decision := d.hub.route(&d.ask)
	if decision.Verdict == fleet.Refuse {
		d.judged(judgement(decision))
		return d.refusal(decision)
	}
	decision.Verdict, decision.Row = fleet.Refuse, 11
	d.judged(judgement(decision))
	code := fault.CapacityFull
	if d.ask.Family != fleet.Chat {
		code = fault.CascadeExhausted
	}
	f := fault.New(code, "every machine that was tried for this model was busy or went away before it started; try again shortly")
	if d.ask.Waited {
		f = f.AfterWait()
	}
	return f
}

// wait holds the call in its model's queue until a machine has room for it, the
// decision turns into a refusal, the deadline passes or the caller hangs up.
func (d *dispatch) wait(ctx context.Context) (_ *gateway.Answer, _ error, done bool) {
	if err := d.hub.underway.enter(d, waits); err != nil {
		return nil, err, true
	}
	began := time.Now()
	w := d.hub.room.join(d.ask, d.call.Arrived)
	d.ask.Full = nil
	g, err := d.sit(ctx, w)
	d.call.Trace.Waited += time.Since(began)
	d.call.Waiting(-1, 0)
	if err != nil {
		return nil, err, true
	}
	d.judged(g.judged)
	if g.held == nil {
		return nil, g.refusal, true
	}
	_ = d.hub.underway.enter(d, runs) // who waited is not refused
	return d.attempt(ctx, g.held)
}

// sit is the wait itself: what ended it, or the error it ended with.
func (d *dispatch) sit(ctx context.Context, w *waiter) (grant, error) {
	deadline := time.NewTimer(time.Until(d.deadline))
	defer deadline.Stop()
	report := time.NewTicker(reportWaiting)
	defer report.Stop()
	d.report(w)
	for {
		select {
		case g := <-w.granted:
			return g, nil
		case <-report.C:
			d.report(w)
		case <-deadline.C:
			if g, ok := d.hub.room.leave(w); ok {
				return g, nil
			}
			d.ask.Waited = true
			return grant{}, d.giveUp()
		case <-ctx.Done():
			if g, ok := d.hub.room.leave(w); ok && g.held != nil {
				d.hub.room.release(g.held, false)
			}
			return grant{}, context.Cause(ctx)
		}
	}
}

func (d *dispatch) report(w *waiter) {
	d.call.Waiting(d.hub.room.ahead(w), max(0, time.Until(d.deadline)))
}

// routeOf is X-Kith-Route's value: each machine that was given the prompt, once, in
// the order in which they had it last; the one that answers is the last (decisions
// 5). A machine that refused without it is not named.
func routeOf(tries []gateway.Attempt) string {
	var parts []string
	for i, t := range tries {
		again := slices.ContainsFunc(tries[i+1:], func(later gateway.Attempt) bool { return later.Prompt && later.Machine.ID == t.Machine.ID })
		if t.Prompt && !again {
			parts = append(parts, t.Class.String()+"; machine="+headerText(t.Machine.Name)+"; owner="+headerText(t.Machine.OwnerName))
		}
	}
	return strings.Join(parts, ", ")
}
