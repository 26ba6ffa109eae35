package dispatch

import (
	"context"
	"sync"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// activeCalls is the calls from Do until their answers are closed. It ends them when
// their key, member or share ends, and limits how many calls of one member run on
// machines, the member's own included, and wait for one (spec/routing.md#wait-many).
type activeCalls struct {
	maxRunning, maxWaiting int // of one member; 0: no limit

	mu       sync.Mutex
	cancel   map[*activeCall]context.CancelCauseFunc
	byMember map[fleet.MemberID]*memberCalls // members with calls that run or wait
}

// memberCalls is how many calls of a member run and wait.
type memberCalls struct{ running, waiting int }

// phase is what a call counts as.
type phase uint8

const (
	deciding phase = iota // counts as nothing
	waiting
	running
)

// begin adds a call until end is called; the context ends with the cause that
// revoke gives.
func (a *activeCalls) begin(ctx context.Context, c *activeCall) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel == nil {
		a.cancel = make(map[*activeCall]context.CancelCauseFunc)
		a.byMember = make(map[fleet.MemberID]*memberCalls)
	}
	a.cancel[c] = cancel
	return ctx, func() {
		a.mu.Lock()
		a.count(c, deciding)
		delete(a.cancel, c)
		a.mu.Unlock()
		cancel(nil)
	}
}

// enter counts a call as running or waiting from now on, or returns the fault for a
// member that has too many of those. A call that waited is not refused when it is
// to run: those that run and wait are limited together, so that waiting is no way
// to run more. A call that ran and is to wait may be refused.
func (a *activeCalls) enter(c *activeCall, next phase) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var has memberCalls
	if counted := a.byMember[c.call.Caller.Member]; counted != nil {
		has = *counted
	}
	switch {
	case c.phase == next:
		return nil
	case next == running && c.phase == deciding && a.maxRunning > 0 && has.running >= a.maxRunning:
		return fault.New(fault.RateLimitExceeded, "you have %d calls running, which is as many as one member may have at once; wait until one ends", a.maxRunning)
	case next == waiting && a.maxWaiting > 0 && has.waiting >= a.maxWaiting:
		return fault.New(fault.RateLimitExceeded, "you have %d calls waiting for a machine, which is as many as one member may have; wait until one ends", a.maxWaiting)
	case next == waiting && c.phase == deciding && a.maxWaiting > 0 && a.maxRunning > 0 && has.running+has.waiting >= a.maxRunning+a.maxWaiting:
		return fault.New(fault.RateLimitExceeded, "you have %d calls running or waiting for a machine, which is as many as one member may have; wait until one ends", has.running+has.waiting)
	}
	a.count(c, next)
	return nil
}

// count moves a call from its phase to the next. Needs mu.
func (a *activeCalls) count(c *activeCall, next phase) {
	member := c.call.Caller.Member
	calls := a.byMember[member]
	if calls == nil {
		calls = new(memberCalls)
		a.byMember[member] = calls
	}
	calls.add(c.phase, -1)
	calls.add(next, 1)
	c.phase = next
	if *calls == (memberCalls{}) {
		delete(a.byMember, member)
	}
}

func (m *memberCalls) add(as phase, n int) {
	switch as {
	case waiting:
		m.waiting += n
	case running:
		m.running += n
	}
}

// all returns the calls that are active now.
func (a *activeCalls) all() []*activeCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*activeCall, 0, len(a.cancel))
	for c := range a.cancel {
		out = append(out, c)
	}
	return out
}

// revoke ends a call with that fault, if it is still active.
func (a *activeCalls) revoke(c *activeCall, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.cancel[c]; cancel != nil {
		cancel(why)
	}
}

// Running is a call that a machine runs now.
type Running struct {
	Caller  fleet.MemberID
	Name    string // the caller's
	Machine *fleet.Machine
	Model   fleet.ModelID
	Class   fleet.Class // how the caller reached it
}

// Running returns what machines run now.
func (d *Dispatcher) Running() []Running {
	var out []Running
	for _, c := range d.active.all() {
		if a := c.attempt.Load(); a != nil {
			out = append(out, Running{c.call.Caller.Member, c.call.Caller.Name, a.Machine, c.call.Model, a.Class})
		}
	}
	return out
}
