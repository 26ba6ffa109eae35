package hub

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/fault"
)

const (
	// drainNotice is how long a draining hub still accepts new connections while it
	// reports that it is not ready. Load balancers notice within this time.
	drainNotice = 5 * time.Second
	// lastCall is how long a connection is kept open after its last call: the caller may
	// have sent another one before learning of the drain.
	lastCall = 500 * time.Millisecond
	// moveGrace is how long machines that were asked to move have time to do so.
	moveGrace = 10 * time.Second
	// When the hub ends its remaining calls with an error, lastFrames is how long it waits
	// for the next one of them to finish, and allFrames for all of them.
	lastFrames = 2 * time.Second
	allFrames  = 8 * time.Second
	// drainCheck is how often to check whether a drain is complete.
	drainCheck = 50 * time.Millisecond
	// retryDrained is the Retry-After of calls ended by a drain, in seconds.
	retryDrained = 2
)

// drain tracks the hub's calls and its shutdown.
type drain struct {
	begun atomic.Bool
	calls atomic.Int64              // requests of callers and of other nodes that are running
	ended atomic.Pointer[time.Time] // when the last one ended; nil before the first
}

// counted counts a request as a call until its response is complete.
func (d *drain) counted(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d.calls.Add(1)
		defer func() {
			now := time.Now()
			d.ended.Store(&now)
			d.calls.Add(-1)
		}()
		serve(w, r)
	}
}

// idle reports whether no call is running and none ended within lastCall.
func (d *drain) idle() bool {
	if d.calls.Load() > 0 {
		return false
	}
	ended := d.ended.Load()
	return ended == nil || time.Since(*ended) >= lastCall
}

// Calls returns how many calls the hub serves: those of callers, and those of other nodes
// for machines at this one.
func (h *Hub) Calls() int { return int(h.drain.calls.Load()) }

// ServeReady serves GET /readyz for load balancers: 200 if new callers and machines
// should connect to this hub.
func (h *Hub) ServeReady(w http.ResponseWriter, _ *http.Request) {
	switch err := h.Ready(time.Now()); {
	case h.drain.begun.Load():
		http.Error(w, "this hub is about to end", http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

// Drain prepares the shutdown of the hub (docs/operate/upgrade.md):
//
//  1. /readyz returns 503, and answers close their connections. If another node can take
//     over, this phase lasts drainNotice.
//  2. stopAccepting closes the public address. Waiting and running calls continue, and
//     an open connection accepts one more call.
//  3. If another node can take over, the machines are asked to move to it. Calls that
//     wait here are sent to machines that have moved.
//  4. Drain returns once there have been no calls for lastCall and the machines have
//     moved.
//  5. After Config.Drain, or when ctx ends, the remaining calls are ended: an answer
//     that has begun gets an error frame, any other call a 503, both with
//     CASCADE_EXHAUSTED.
func (h *Hub) Drain(ctx context.Context, stopAccepting func()) {
	h.drain.begun.Store(true)
	began := time.Now()
	limit := h.inForce.Load().Drain
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	successor := h.live.HasSuccessor(h.cfg.Node, began)
	h.log.Info("this hub ends once its calls have ended; another signal ends them now",
		"calls", h.Calls(), "machines", h.live.MachinesHere(), "successor", successor, "at_most", limit)
	moved := began
	if successor {
		select {
		case <-time.After(drainNotice):
		case <-bounded.Done():
		}
	}
	stopAccepting()
	if successor {
		h.live.Move(bounded)
		moved = time.Now().Add(moveGrace)
	}
	ticker := time.NewTicker(drainCheck)
	defer ticker.Stop()
	for bounded.Err() == nil {
		if h.drain.idle() && (h.live.MachinesHere() == 0 || time.Now().After(moved)) {
			break
		}
		select {
		case <-ticker.C:
		case <-bounded.Done():
		}
	}
	if h.Calls() > 0 {
		h.endCalls()
	}
	h.log.Info("drained", "took", time.Since(began).Round(time.Millisecond), "calls", h.Calls(), "machines", h.live.MachinesHere())
}

// endCalls ends every call and waits until their ends are sent. Callers may not read, so
// it stops waiting if none was sent for lastFrames, and after allFrames at the latest.
func (h *Hub) endCalls() {
	h.log.Warn("ending the calls that still run", "calls", h.Calls())
	replaced := fault.New(fault.CascadeExhausted, "this hub is stopping; try again").WithRetryAfter(retryDrained)
	h.edge.EndBodies(replaced)
	h.calls.EndAll(replaced)
	left, most := h.Calls(), time.Now().Add(allFrames)
	for late := time.Now().Add(lastFrames); left > 0 && time.Now().Before(late) && time.Now().Before(most); {
		time.Sleep(drainCheck)
		if now := h.Calls(); now < left {
			left, late = now, time.Now().Add(lastFrames)
		}
	}
}
