package daemon

import (
	"sync"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// desk counts the calls that run on this machine and admits one more from the
// tunnel while there is room. The owner's own local calls are counted and never
// refused: they may use the engine's own queue beyond the slots, and what they
// hold is not free for others (decisions 6).
type desk struct {
	mu     sync.Mutex
	routed tally
	local  tally
	// idle is closed once no routed call runs; nil while nobody asks.
	idle chan struct{}
	// onLocal is called, outside the lock, after each change of the local load.
	onLocal func()
	// yields says that no routed call begins while local ones run, and until the
	// lull after them is over.
	yields bool
	here   int // local calls that use the engines of this machine, and no upstream
	lulled time.Time
}

// tally is a number of running calls, in all and by model.
type tally struct {
	all int
	by  map[fleet.ModelID]int
}

// add counts n more (or, negative, fewer) calls of the model.
func (t *tally) add(model fleet.ModelID, n int) {
	if t.by == nil {
		t.by = make(map[fleet.ModelID]int)
	}
	t.all += n
	if t.by[model] += n; t.by[model] == 0 {
		delete(t.by, model)
	}
}

// admit takes a slot for a call from the tunnel, if one of the machine's slots
// and one of the model's (0: the machine's alone count) is free. The caller
// gives it back by release, once.
func (k *desk) admit(model fleet.ModelID, slots, ofModel int) (release func(), ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ownersLocked() || k.routed.all+k.local.all >= slots || ofModel > 0 && k.routed.by[model]+k.local.by[model] >= ofModel {
		return nil, false
	}
	k.routed.add(model, 1)
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.routed.add(model, -1)
		if k.routed.all == 0 && k.idle != nil {
			close(k.idle)
			k.idle = nil
		}
	}, true
}

// widen counts a slot for each further answer that an admitted call asks for, free
// or not, until narrow: the call waited for one alone, and the next one waits until
// all are free again.
func (k *desk) widen(model fleet.ModelID, answers int) (narrow func()) {
	more := max(answers, 1) - 1
	count := func(n int) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.routed.add(model, n)
	}
	count(more)
	return func() { count(-more) }
}

// drained is closed once no call from the tunnel runs.
func (k *desk) drained() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.idle == nil {
		k.idle = make(chan struct{})
	}
	idle := k.idle
	if k.routed.all == 0 {
		close(k.idle)
		k.idle = nil
	}
	return idle
}

// enter counts a local call, as a slot for each answer that it asks for, until
// release, which may be called more than once; here says that an engine of this
// machine serves it.
func (k *desk) enter(model fleet.ModelID, answers int, here bool) (release func()) {
	answers = max(answers, 1)
	k.countLocal(model, here, answers)
	return sync.OnceFunc(func() { k.countLocal(model, here, -answers) })
}

func (k *desk) countLocal(model fleet.ModelID, here bool, n int) {
	k.mu.Lock()
	k.local.add(model, n)
	if here {
		if k.here += n; k.here == 0 && k.yields {
			k.lulled = time.Now().Add(lull)
			time.AfterFunc(lull, k.onLocal)
		}
	}
	k.mu.Unlock()
	k.onLocal()
}

// yield sets yields.
func (k *desk) yield(yields bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.yields = yields
}

// load is how many calls run: from the tunnel and local; of one model, or of
// all with an empty id.
func (k *desk) load(model fleet.ModelID) (routed, local int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if model == "" {
		return k.routed.all, k.local.all
	}
	return k.routed.by[model], k.local.by[model]
}

// owners reports whether the engines are the owner's alone just now.
func (k *desk) owners() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ownersLocked()
}

func (k *desk) ownersLocked() bool {
	return k.yields && (k.here > 0 || time.Now().Before(k.lulled))
}
