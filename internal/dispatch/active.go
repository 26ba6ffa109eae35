package dispatch

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// activeCalls holds the calls received here, from Do until their answers are closed, and
// other nodes' calls on machines here (Visit). It limits how many calls of one member run
// on machines, including the member's own, and how many wait for one
// (spec/routing.md#wait-many). Other nodes' calls are limited there.
type activeCalls struct {
	mu                     sync.Mutex
	maxRunning, maxWaiting int // of one member; 0: no limit

	calls    map[*activeCall]struct{}
	byMember map[fleet.MemberID]phaseCounts // only members with calls that run or wait
}

// setLimits changes how many calls of one member may run and wait.
func (a *activeCalls) setLimits(running, waiting int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.maxRunning, a.maxWaiting = running, waiting
}

// phase is the state that a call is counted in.
type phase uint8

const (
	phaseDeciding phase = iota // not counted
	phaseWaiting
	phaseRunning
)

// phaseCounts is how many calls of a member are in each phase.
type phaseCounts [phaseRunning + 1]int

// register adds a call until unregister is called. c.cancel cancels the context that it
// returns.
func (a *activeCalls) register(ctx context.Context, c *activeCall) (_ context.Context, unregister func()) {
	ctx, c.cancel = context.WithCancelCause(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls, a.byMember = make(map[*activeCall]struct{}), make(map[fleet.MemberID]phaseCounts)
	}
	a.calls[c] = struct{}{}
	return ctx, func() {
		a.mu.Lock()
		a.setPhase(c, phaseDeciding)
		delete(a.calls, c)
		a.mu.Unlock()
		c.cancel(nil)
	}
}

// enter starts counting a call as running or waiting, or returns the fault for a member
// that has too many of those. After a wait a call always may run. So the sum of running
// and waiting calls is limited as well; otherwise waiting would evade the limit on running
// calls. A call that starts to wait after it ran may be refused.
func (a *activeCalls) enter(c *activeCall, next phase) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	has := a.byMember[c.call.Caller.Member]
	running, waiting := has[phaseRunning], has[phaseWaiting]
	switch {
	case c.phase == next:
		return nil
	case next == phaseRunning && c.phase == phaseDeciding && a.maxRunning > 0 && running >= a.maxRunning:
		return fault.New(fault.RateLimitExceeded, "you have %d calls running, the maximum for one member; wait until one ends", a.maxRunning)
	case next == phaseWaiting && a.maxWaiting > 0 && waiting >= a.maxWaiting:
		return fault.New(fault.RateLimitExceeded, "you have %d calls waiting for a machine, the maximum for one member; wait until one ends", a.maxWaiting)
	case next == phaseWaiting && c.phase == phaseDeciding && a.maxWaiting > 0 && a.maxRunning > 0 && running+waiting >= a.maxRunning+a.maxWaiting:
		return fault.New(fault.RateLimitExceeded, "you have %d calls running or waiting, the maximum for one member; wait until one ends", running+waiting)
	}
	a.setPhase(c, next)
	return nil
}

// setPhase counts a call in another phase. mu must be held.
func (a *activeCalls) setPhase(c *activeCall, next phase) {
	member := c.call.Caller.Member
	counts := a.byMember[member]
	counts[c.phase]--
	counts[next]++
	counts[phaseDeciding] = 0
	c.phase = next
	if a.byMember[member] = counts; counts == (phaseCounts{}) {
		delete(a.byMember, member)
	}
}

// all returns the calls that are active now.
func (a *activeCalls) all() []*activeCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.AppendSeq(make([]*activeCall, 0, len(a.calls)), maps.Keys(a.calls))
}

// running returns how many calls run on machines.
func (a *activeCalls) running() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, counts := range a.byMember {
		n += counts[phaseRunning]
	}
	return n
}

// waiting returns the calls that wait for a machine.
func (a *activeCalls) waiting() (calls []*activeCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.calls {
		if c.phase == phaseWaiting {
			calls = append(calls, c)
		}
	}
	return calls
}

// Running returns the calls that run on machines now.
func (d *Dispatcher) Running() []fleet.ActiveCall {
	var out []fleet.ActiveCall
	for _, c := range d.active.all() {
		if a := c.attempt.Load(); a != nil {
			call := c.listed()
			call.Machine, call.Class = a.Machine, a.Class
			out = append(out, call)
		}
	}
	return out
}

// Waiting returns the calls that wait for a machine now.
func (d *Dispatcher) Waiting() []fleet.ActiveCall {
	var out []fleet.ActiveCall
	for _, c := range d.active.waiting() {
		out = append(out, c.listed())
	}
	return out
}

// listed returns the call without a machine.
func (c *activeCall) listed() fleet.ActiveCall {
	return fleet.ActiveCall{Caller: c.call.Caller.Member, Name: c.call.Caller.Name, Model: c.call.Model, Since: c.call.Arrived}
}
