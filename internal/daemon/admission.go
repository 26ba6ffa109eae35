package daemon

import (
	"sync"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// admission counts the running calls on this machine and admits calls of the hub while
// slots are free. Local calls are counted but never refused: they can wait in the
// engine's own queue, and the hub's calls cannot use their slots.
type admission struct {
	// onLocal is called, without the lock, after each change of the local calls.
	onLocal func()

	mu    sync.Mutex
	hub   callCounts
	local callCounts
	// drain is closed once no call of the hub is running, ended when the next one ends;
	// nil if nothing waits for it.
	drain, ended chan struct{}
	// yields keeps calls of the hub from starting while local calls use the engines of
	// this machine, and for yieldGrace after that.
	yields      bool
	localEngine int // local calls on an engine of this machine, not on an upstream
	yieldUntil  time.Time
}

// callCounts is a number of running calls, in total and by model.
type callCounts struct {
	total   int
	byModel map[fleet.ModelID]int
}

// add adds n calls of the model; n may be negative.
func (c *callCounts) add(model fleet.ModelID, n int) {
	if c.byModel == nil {
		c.byModel = make(map[fleet.ModelID]int)
	}
	c.total += n
	if c.byModel[model] += n; c.byModel[model] == 0 {
		delete(c.byModel, model)
	}
}

// admit reserves a slot for a call of the hub if one of the machine's slots and one of
// the model's is free. If ofModel is 0, only the machine's slots count. The caller must
// call release once.
func (a *admission) admit(model fleet.ModelID, slots, ofModel int) (release func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ownerOnlyLocked() || a.hub.total+a.local.total >= slots ||
		ofModel > 0 && a.hub.byModel[model]+a.local.byModel[model] >= ofModel {
		return nil, false
	}
	a.hub.add(model, 1)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.hub.add(model, -1)
		if a.ended != nil {
			close(a.ended)
			a.ended = nil
		}
		if a.hub.total == 0 && a.drain != nil {
			close(a.drain)
			a.drain = nil
		}
	}, true
}

// addChoices reserves a slot, even if none is free, for each further choice that an
// admitted call requests, until release. The call only waited for one slot; the next call
// waits until all of them are free again.
func (a *admission) addChoices(model fleet.ModelID, choices int) (release func()) {
	more := max(choices, 1) - 1
	add := func(n int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.hub.add(model, n)
	}
	add(more)
	return func() { add(-more) }
}

// drained returns a channel that is closed once no call of the hub is running.
func (a *admission) drained() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.drain == nil {
		a.drain = make(chan struct{})
	}
	drain := a.drain
	if a.hub.total == 0 {
		close(a.drain)
		a.drain = nil
	}
	return drain
}

// nextEnd returns a channel that is closed when a call of the hub ends. It is nil if none
// is running or if local calls have priority.
func (a *admission) nextEnd() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hub.total == 0 || a.local.total > 0 || a.ownerOnlyLocked() {
		return nil
	}
	if a.ended == nil {
		a.ended = make(chan struct{})
	}
	return a.ended
}

// startLocal counts a local call, as one slot for each of its choices, until release,
// which may be called several times. onEngine reports that the call uses an engine of
// this machine, not an upstream.
func (a *admission) startLocal(model fleet.ModelID, choices int, onEngine bool) (release func()) {
	choices = max(choices, 1)
	a.addLocal(model, onEngine, choices)
	return sync.OnceFunc(func() { a.addLocal(model, onEngine, -choices) })
}

func (a *admission) addLocal(model fleet.ModelID, onEngine bool, n int) {
	a.mu.Lock()
	a.local.add(model, n)
	if onEngine {
		if a.localEngine += n; a.localEngine == 0 && a.yields {
			a.yieldUntil = time.Now().Add(yieldGrace)
			time.AfterFunc(yieldGrace, a.onLocal)
		}
	}
	a.mu.Unlock()
	a.onLocal()
}

func (a *admission) setYields(yields bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.yields = yields
}

// running returns the number of running calls, of the hub and local. An empty id means
// all models.
func (a *admission) running(model fleet.ModelID) (hub, local int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if model == "" {
		return a.hub.total, a.local.total
	}
	return a.hub.byModel[model], a.local.byModel[model]
}

// ownerOnly reports whether only the owner's calls may start now.
func (a *admission) ownerOnly() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ownerOnlyLocked()
}

func (a *admission) ownerOnlyLocked() bool {
	return a.yields && (a.localEngine > 0 || time.Now().Before(a.yieldUntil))
}
