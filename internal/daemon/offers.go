package daemon

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// offers is what this machine can serve now: its engines and their models. If several
// engines offer a model at the same endpoint, the first one serves it; engines run by
// kith come before engines found on the machine.
type offers struct {
	own       atomic.Pointer[[]*engine.Engine] // run by kith
	finder    *engine.Finder
	audio     *engine.Audio      // nil: none
	upstreams []*engine.Upstream // services elsewhere; after the engines

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
}

// engines returns all engines of this machine in order of preference.
func (o *offers) engines() []*engine.Engine {
	var all []*engine.Engine
	for _, e := range *o.own.Load() {
		if e.Problem() == "" {
			all = append(all, e)
		}
	}
	all = append(all, o.finder.Engines()...)
	if o.audio != nil {
		if e := o.audio.Engine(); e != nil {
			all = append(all, e)
		}
	}
	return all
}

// forOwner returns the engines and upstreams for local calls.
func (o *offers) forOwner() []*engine.Engine { return o.withUpstreams((*engine.Upstream).Engine) }

// forHub returns the engines and shared upstreams for calls of the hub.
func (o *offers) forHub() []*engine.Engine { return o.withUpstreams((*engine.Upstream).Shared) }

func (o *offers) withUpstreams(of func(*engine.Upstream) *engine.Engine) []*engine.Engine {
	all := o.engines()
	for _, u := range o.upstreams {
		if e := of(u); e != nil {
			all = append(all, e)
		}
	}
	return all
}

// serving returns the engines that serve the model at the endpoint or, for the endpoint
// of messages, by chat. Engines come before upstreams, and engines with more free slots
// come first.
func serving(engines []*engine.Engine, model fleet.ModelID, endpoint fleet.Endpoint) []*engine.Engine {
	free := map[*engine.Engine]int{}
	for _, e := range engines {
		m := modelOf(e, model, endpoint)
		if m == nil && endpoint == fleet.Messages {
			m = modelOf(e, model, fleet.ChatCompletions)
		}
		switch {
		case m == nil:
		case e.IsUpstream():
			free[e] = math.MinInt
		default:
			free[e] = e.Free(m)
		}
	}
	engines = slices.DeleteFunc(engines, func(e *engine.Engine) bool { _, ok := free[e]; return !ok })
	slices.SortStableFunc(engines, func(a, b *engine.Engine) int { return cmp.Compare(free[b], free[a]) })
	return engines
}

// modelOf returns the engine's model with this id at the endpoint, or nil.
func modelOf(e *engine.Engine, model fleet.ModelID, endpoint fleet.Endpoint) *engine.Model {
	models := e.Models()
	i := slices.IndexFunc(models,
		func(m engine.Model) bool { return m.ID == model && slices.Contains(m.Endpoints, endpoint) })
	if i < 0 {
		return nil
	}
	return &models[i]
}

// hasSpeech reports whether an engine or upstream here has a speech model.
func (o *offers) hasSpeech() bool {
	return slices.ContainsFunc(o.forOwner(), func(e *engine.Engine) bool {
		return slices.ContainsFunc(e.Models(),
			func(m engine.Model) bool { return slices.Contains(m.Families, fleet.Audio) })
	})
}

// slots returns how many calls the engines run concurrently. For each engine this is the
// largest number of slots of a single model, because an engine's models share its memory
// and its processors.
func (o *offers) slots() int {
	n := 0
	for _, e := range o.forHub() {
		n += largest(e)
	}
	return max(n, 1)
}

// largest returns the largest number of slots of a single model of the engine.
func largest(e *engine.Engine) (slots int) {
	for _, m := range e.Models() {
		slots = max(slots, m.Slots)
	}
	return slots
}

// otherCalls returns how many of the engines' slots are used by other programs.
func (o *offers) otherCalls() (slots int) {
	for _, e := range o.engines() {
		slots += min(e.OtherCalls(), largest(e))
	}
	return slots
}

// otherCallsFor returns how many slots are used by other programs on engines that serve
// the model.
func (o *offers) otherCallsFor(model fleet.ModelID) (n int) {
	for _, e := range o.forHub() {
		models := e.Models()
		if i := slices.IndexFunc(models, func(m engine.Model) bool { return m.ID == model }); i >= 0 {
			n += min(e.OtherCalls(), models[i].Slots)
		}
	}
	return n
}

// familyCapability are the capabilities that identify models for families other than chat
// to clients.
var familyCapability = map[fleet.Family]string{fleet.Embeddings: "embeddings", fleet.Audio: "transcription"}

// models returns the models of the engines without their load, sorted by id and without
// duplicates.
func (o *offers) models(engines []*engine.Engine) []tunnel.Model {
	merged := map[fleet.ModelID]*tunnel.Model{}
	for _, e := range engines {
		for _, m := range e.Models() {
			offer := merged[m.ID]
			if offer == nil {
				offer = &tunnel.Model{ID: string(m.ID), ContextLength: m.ContextLength,
					Capabilities: slices.Clone(m.Capabilities), Engine: e.Kind(), ModelFacts: m.Checked()}
				merged[m.ID] = offer
			}
			offer.Slots += m.Slots // each engine has its own slots
			for _, f := range m.Families {
				offer.Families = addOnce(offer.Families, f.String())
				if word := familyCapability[f]; word != "" {
					offer.Capabilities = addOnce(slices.Clip(offer.Capabilities), word)
				}
			}
			for _, p := range m.Endpoints {
				offer.Endpoints = addOnce(offer.Endpoints, p.Path())
			}
		}
	}
	out := make([]tunnel.Model, 0, len(merged))
	for _, offer := range merged {
		slices.Sort(offer.Capabilities)
		out = append(out, *offer)
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

// setChanged notifies watchers that the advertisement has changed.
func (o *offers) setChanged() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
}

// watch returns a channel that is closed at the next change.
func (o *offers) watch() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}
