package hub

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
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
func (h *Hub) Do(ctx context.Context, call *gateway.Call) (*gateway.Answer, error) {
	d := &dispatch{hub: h, call: call, ask: fleet.Ask{
		Caller: call.Caller.Member, Narrow: call.Caller.Narrow, Exclude: call.Caller.Machine,
		Model: call.Model, Family: call.Endpoint.Family(),
	}}
	d.deadline = call.Arrived.Add(h.patience(call))
	for {
		decision := h.route(&d.ask)
		switch decision.Verdict {
		case fleet.Refuse:
			return nil, decision.Fault
		case fleet.Try:
			if held := h.room.take(decision.Candidates, call.Model); held != nil {
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
func (h *Hub) route(ask *fleet.Ask) fleet.Decision {
	ask.Now = time.Now()
	ask.Draw = rand.Uint64()
	ask.Unconfirmed = !h.live.Confirmed(ask.Now)
	return fleet.Route(h.live.Snapshot(), *ask)
}

// dispatch is one call's way through the hub.
type dispatch struct {
	hub      *Hub
	call     *gateway.Call
	ask      fleet.Ask
	deadline time.Time
	// full holds machines that refused as busy although they seemed free: the
	// hub's picture was behind, so they count as busy until they say more.
	full []fleet.MachineID
	// vanished says that a unary call already lost its machine once.
	vanished bool
}

// attempt tries the machine on which a slot is held. done is false when another
// machine may be tried.
func (d *dispatch) attempt(ctx context.Context, c *held) (_ *gateway.Answer, _ error, done bool) {
	d.call.Trace.Attempts++
	d.call.Trace.Machine = c.Machine.ID
	d.call.Trace.Owner = c.Machine.Owner
	d.call.Trace.Route = routeHeader(c.Candidate)
	answer, outcome, err := d.hub.try(ctx, d.call, c)
	switch outcome {
	case served, failed:
		return answer, err, true
	case refusedBusy:
		d.full = append(d.full, c.Machine.ID)
		d.ask.Owed = d.refusing
	case vanished:
		if d.vanished {
			return nil, fault.New(fault.MachineOffline, "two machines went away in the middle of the answer; try again shortly"), true
		}
		d.vanished = true
		d.ask.Avoid = append(d.ask.Avoid, c.Machine.ID)
	case movedOn:
		d.ask.Avoid = append(d.ask.Avoid, c.Machine.ID)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx), true
	}
	d.ask.Gone = len(d.ask.Avoid) > 0
	if len(d.ask.Avoid) == maxAttempts {
		return nil, d.giveUp(), true
	}
	return nil, nil, false
}

// refusing is fleet.Owed: a machine that refused as busy has nothing free for
// this call until it advertises anew.
func (d *dispatch) refusing(machine fleet.MachineID, _ fleet.ModelID) (ofMachine, ofModel int) {
	if slices.Contains(d.full, machine) {
		return math.MaxInt32, math.MaxInt32
	}
	return 0, 0
}

// giveUp is the refusal that holds after attempts or a wait (rows 8 to 12).
func (d *dispatch) giveUp() error {
	decision := d.hub.route(&d.ask)
	if decision.Verdict == fleet.Refuse {
		return decision.Fault
	}
	return fault.New(fault.CapacityFull, "every machine that was tried for this model was busy or went away before it started; try again shortly")
}

// wait holds the call in its model's queue until a machine has room for it, the
// decision turns into a refusal, the deadline passes or the caller hangs up.
func (d *dispatch) wait(ctx context.Context) (_ *gateway.Answer, _ error, done bool) {
	began := time.Now()
	w := d.hub.room.join(d.ask, d.call.Arrived)
	d.full, d.ask.Owed = nil, nil
	defer func() { d.call.Trace.Waited += time.Since(began) }()

	deadline := time.NewTimer(time.Until(d.deadline))
	defer deadline.Stop()
	report := time.NewTicker(reportWaiting)
	defer report.Stop()
	d.report(w)
	for {
		select {
		case g := <-w.granted:
			return d.granted(ctx, g)
		case <-report.C:
			d.report(w)
		case <-deadline.C:
			if g, ok := d.hub.room.leave(w); ok {
				return d.granted(ctx, g)
			}
			d.ask.Waited = true
			return nil, d.giveUp(), true
		case <-ctx.Done():
			if g, ok := d.hub.room.leave(w); ok && g.held != nil {
				d.hub.room.release(g.held, false)
			}
			return nil, context.Cause(ctx), true
		}
	}
}

func (d *dispatch) report(w *waiter) {
	if d.call.Waiting != nil {
		d.call.Waiting(d.hub.room.ahead(w), max(0, time.Until(d.deadline)))
	}
}

// granted goes on with what ended the wait.
func (d *dispatch) granted(ctx context.Context, g grant) (*gateway.Answer, error, bool) {
	if g.held == nil {
		return nil, g.refusal, true
	}
	return d.attempt(ctx, g.held)
}

// routeHeader says whose machine answers: X-Kith-Route (decisions 5).
func routeHeader(c fleet.Candidate) string {
	return c.Class.String() + "; machine=" + headerText(c.Machine.Name) + "; owner=" + headerText(c.Machine.OwnerName)
}
