package hub

import (
	"context"
	"sync"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// underway is the calls from Do to the end of their answers, so that the end of
// a key, a member or a share is the end of what runs by it (decisions 4, 7), and so
// that no one member's calls fill the hub: each member may have a number of calls
// that run on machines, the member's own included, and a number that wait for one.
type underway struct {
	maxRunning, maxWaiting int // of one member; 0: not bounded

	mu    sync.Mutex
	calls map[*dispatch]context.CancelCauseFunc
	of    map[fleet.MemberID]*memberCalls // members with calls that run or wait
}

// memberCalls is how many calls of a member run and wait.
type memberCalls struct{ running, waiting int }

// phase is what a call counts as.
type phase uint8

const (
	deciding phase = iota // counts as nothing
	waits
	runs
)

// begin notes a call until end; the context ends with why it was recalled.
func (u *underway) begin(ctx context.Context, d *dispatch) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls == nil {
		u.calls = make(map[*dispatch]context.CancelCauseFunc)
		u.of = make(map[fleet.MemberID]*memberCalls)
	}
	u.calls[d] = cancel
	return ctx, func() {
		u.mu.Lock()
		u.count(d, deciding)
		delete(u.calls, d)
		u.mu.Unlock()
		cancel(nil)
	}
}

// enter counts a call that begin noted as running or waiting from now on, or returns
// the fault that says that its member has too many of those. A call that waited is
// not refused when its turn to run comes: those that run and wait are bounded
// together, so that waiting is no way to run any number.
func (u *underway) enter(d *dispatch, next phase) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	var has memberCalls
	if counted := u.of[d.call.Caller.Member]; counted != nil {
		has = *counted
	}
	switch {
	case d.phase == next:
		return nil
	case next == runs && d.phase == deciding && u.maxRunning > 0 && has.running >= u.maxRunning:
		return fault.New(fault.RateLimitExceeded, "you have %d calls running, which is as many as one member may have at once; wait until one ends", u.maxRunning)
	case next == waits && u.maxWaiting > 0 && has.waiting >= u.maxWaiting:
		return fault.New(fault.RateLimitExceeded, "you have %d calls waiting for a machine, which is as many as one member may have; wait until one ends", u.maxWaiting)
	case next == waits && d.phase == deciding && u.maxWaiting > 0 && u.maxRunning > 0 && has.running+has.waiting >= u.maxRunning+u.maxWaiting:
		return fault.New(fault.RateLimitExceeded, "you have %d calls running or waiting for a machine, which is as many as one member may have; wait until one ends", has.running+has.waiting)
	}
	u.count(d, next)
	return nil
}

// count moves a call from what it counts as to what it counts as next. Needs mu.
func (u *underway) count(d *dispatch, next phase) {
	member := d.call.Caller.Member
	c := u.of[member]
	if c == nil {
		c = new(memberCalls)
		u.of[member] = c
	}
	c.add(d.phase, -1)
	c.add(next, 1)
	d.phase = next
	if *c == (memberCalls{}) {
		delete(u.of, member)
	}
}

func (c *memberCalls) add(as phase, n int) {
	switch as {
	case waits:
		c.waiting += n
	case runs:
		c.running += n
	}
}
