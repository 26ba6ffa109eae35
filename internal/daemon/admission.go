package daemon

import (
	"sync"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// admission counts the calls that run on this machine and admits calls of the hub
// while slots are free. The owner's local calls are counted and never refused: they
// may wait in the engine's own queue, and the hub's calls cannot use the slots that
// they hold.
type admission struct {
	// onLocal is called, without the lock, after each change of the local calls.
	onLocal func()

	mu    sync.Mutex
	hub   callCounts
	local callCounts
	// drain is closed once no call of the hub runs, ended when the next one ends; nil
	// while nothing waits for it.
	drain, ended chan struct{}
	// yields prevents calls of the hub from starting while local calls use the engines
	// of this machine, and for yieldGrace after.
	yields      bool
	localEngine int // local calls that an engine of this machine serves, no upstream
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

// admit takes a slot for a call of the hub if one of the machine's slots and one of
// the model's is free; ofModel 0 means that only the machine's count. The caller
// calls release once.
func (a *admission) admit(model fleet.ModelID, slots, ofModel int) (release func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ownerOnlyLocked() || a.hub.total+a.local.total >= slots || ofModel > 0 && a.hub.byModel[model]+a.local.byModel[model] >= ofModel {
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

// addChoices takes a slot, free or not, for each further choice that an admitted call
// asks for, until release. The call waited for one slot only; the next call waits
// until all of them are free again.
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

// drained returns a channel that is closed once no call of the hub runs.
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

// nextEnd returns a channel that is closed when a call of the hub ends; nil if none
// runs, or if the owner's calls go first.
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

// startLocal counts a local call, as one slot for each of its choices, until
// release, which may be called more than once. onEngine reports that an engine of
// this machine serves the call, not an upstream.
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

// running returns how many calls run, of the hub and local; of all models if the id
// is empty.
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
