package daemon

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// board is what this machine can serve just now: the engines and, on the way to
// the hub, the offers made of them. A model that several engines offer for one
// endpoint belongs to the first: what kith runs itself before what was found.
type board struct {
	builtin atomic.Pointer[engine.Engine] // nil: none, or not ready yet
	finder  *engine.Finder
	audio   *engine.Audio // nil: none
	// servers are processes that kith runs, each for a model.
	servers []*engine.Engine
	// upstreams are services elsewhere, after all engines here.
	upstreams []*engine.Upstream

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
}

func newBoard(builtin *engine.Engine, finder *engine.Finder, audio *engine.Audio, upstreams []*engine.Upstream) *board {
	b := &board{finder: finder, audio: audio, upstreams: upstreams, changed: make(chan struct{})}
	b.builtin.Store(builtin)
	return b
}

// engines are all of this machine's, in order of preference.
func (b *board) engines() []*engine.Engine {
	var all []*engine.Engine
	if e := b.builtin.Load(); e != nil {
		all = append(all, e)
	}
	for _, e := range b.servers {
		if e.Problem() == "" {
			all = append(all, e)
		}
	}
	all = append(all, b.finder.Engines()...)
	if b.audio != nil {
		if e := b.audio.Engine(); e != nil {
			all = append(all, e)
		}
	}
	return all
}

// whyNot says why a server that kith runs for the model cannot serve it now;
// empty: it can, or there is none.
func (b *board) whyNot(model fleet.ModelID) string {
	for _, e := range b.servers {
		if e.Models()[0].ID == model {
			return e.Problem()
		}
	}
	return ""
}

// own are the engines and upstreams that serve the calls made here.
func (b *board) own() []*engine.Engine {
	all := b.engines()
	for _, u := range b.upstreams {
		if e := u.Engine(); e != nil {
			all = append(all, e)
		}
	}
	return all
}

// shared are the engines, and the upstreams whose owner shares them, that serve
// calls of the hub.
func (b *board) shared() []*engine.Engine {
	all := b.engines()
	for _, u := range b.upstreams {
		if e := u.Shared(); e != nil {
			all = append(all, e)
		}
	}
	return all
}

// serving are those of the engines that serve the model at the endpoint, in
// order.
func serving(engines []*engine.Engine, model fleet.ModelID, endpoint fleet.Endpoint) []*engine.Engine {
	return slices.DeleteFunc(engines, func(e *engine.Engine) bool { return modelOf(e, model, endpoint) == nil })
}

// modelOf is the engine's model of that id for the endpoint; nil: it has none.
func modelOf(e *engine.Engine, model fleet.ModelID, endpoint fleet.Endpoint) *engine.Model {
	models := e.Models()
	i := slices.IndexFunc(models, func(m engine.Model) bool { return m.ID == model && slices.Contains(m.Endpoints, endpoint) })
	if i < 0 {
		return nil
	}
	return &models[i]
}

// speaks reports whether anything here serves a model for speech.
func (b *board) speaks() bool {
	return slices.ContainsFunc(b.own(), func(e *engine.Engine) bool {
		return slices.ContainsFunc(e.Models(), func(m engine.Model) bool { return slices.Contains(m.Families, fleet.Audio) })
	})
}

// slots is how many calls the engines run at once: of each what its roomiest
// model takes, for models of one engine share its memory and its processors.
func (b *board) slots() int {
	n := 0
	for _, e := range b.shared() {
		roomiest := 0
		for _, m := range e.Models() {
			roomiest = max(roomiest, m.Slots)
		}
		n += roomiest
	}
	return max(n, 1)
}

// others is how many calls of other programs the engines run.
func (b *board) others() int {
	n := 0
	for _, e := range b.engines() {
		n += e.OtherCalls()
	}
	return n
}

// othersAt is how many calls of other programs the engine runs that would take
// a call for the model.
func (b *board) othersAt(model fleet.ModelID) int {
	for _, e := range b.shared() {
		if slices.ContainsFunc(e.Models(), func(m engine.Model) bool { return m.ID == model }) {
			return e.OtherCalls()
		}
	}
	return 0
}

// offers are the models of the engines, sorted by id, each once, without their
// load.
func (b *board) offers(engines []*engine.Engine) []tunnel.Model {
	merged := map[fleet.ModelID]*tunnel.Model{}
	for _, e := range engines {
		for _, m := range e.Models() {
			o := merged[m.ID]
			if o == nil {
				o = &tunnel.Model{ID: string(m.ID), ContextLength: m.ContextLength, Capabilities: m.Capabilities, Engine: e.Kind()}
				merged[m.ID] = o
			}
			o.Slots = max(o.Slots, m.Slots)
			for _, f := range m.Families {
				o.Families = addOnce(o.Families, f.String())
			}
			for _, p := range m.Endpoints {
				o.Endpoints = addOnce(o.Endpoints, p.Path())
			}
		}
	}
	out := make([]tunnel.Model, 0, len(merged))
	for _, o := range merged {
		out = append(out, *o)
	}
	slices.SortFunc(out, func(a, b tunnel.Model) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func addOnce(list []string, word string) []string {
	if slices.Contains(list, word) {
		return list
	}
	return append(list, word)
}

// touch says that what is to be advertised has changed.
func (b *board) touch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.changed)
	b.changed = make(chan struct{})
}

// change is closed at the next touch.
func (b *board) change() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}
