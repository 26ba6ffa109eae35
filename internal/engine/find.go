package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxModels is how many models one engine may offer; the rest is left out.
const maxModels = 256

// Config of a Finder.
type Config struct {
	// Usual looks at the usual ports on loopback.
	Usual bool
	// Endpoints are more places to look: http or https addresses, with or
	// without a /v1 at the end. Only these may be off this machine.
	Endpoints []string
	Log       *slog.Logger
	// Transport reaches the engines; nil: one made for them.
	Transport http.RoundTripper
}

// A Finding says what was found at one place, or why nothing was.
type Finding struct {
	Place      string // its address, without /v1
	Configured bool   // named by the owner, not just a usual port
	Kind       string // of the engine; empty: none
	Name       string // of the engine, for people; empty: none
	Models     int    // how many it offers
	Others     int    // calls of other programs that it runs, where it tells
	Why        string // why there is no engine to use; empty: there is one
}

// Finder looks for engines whenever it is told to, and holds what it found.
type Finder struct {
	log   *slog.Logger
	rt    http.RoundTripper
	spots []*spot

	looking sync.Mutex // one look at a time

	mu      sync.RWMutex
	engines []*Engine
	others  int // calls of other programs that they run
	report  []Finding
	changed chan struct{}
}

// A spot is a place with what is remembered of it between looks; only the one
// look that holds Finder.looking touches it.
type spot struct {
	base       string
	configured bool
	known      map[string]Model
	engine     *Engine // nil: none
	load       *load   // of the engine there, from look to look
	missed     bool    // it did not answer in time when last looked at
	finding    Finding

	// twin is the same port of 127.0.0.1, for one of ::1: an engine at both is
	// one engine.
	twin *spot
	// stranger is the first page of what is there and no engine, seen last at
	// met; nil: something else, or nothing, is there.
	stranger []byte
	met      time.Time
}

// acquaintance is how long a server that turned out to be no engine is not
// asked all the questions again, unless its first answer changes: it may write
// a line in a log for each.
const acquaintance = 10 * time.Minute

// NewFinder is a Finder that has not looked yet. It refuses an endpoint that
// is no http or https address.
func NewFinder(c Config) (*Finder, error) {
	f := &Finder{log: c.Log, rt: c.Transport, changed: make(chan struct{})}
	if f.rt == nil {
		f.rt = newTransport()
	}
	add := func(base string, configured bool) *spot {
		i := slices.IndexFunc(f.spots, func(s *spot) bool { return s.base == base })
		if i < 0 {
			i = len(f.spots)
			f.spots = append(f.spots, &spot{base: base, configured: configured, known: map[string]Model{}, load: new(load)})
		}
		return f.spots[i]
	}
	for _, endpoint := range c.Endpoints {
		base, err := parseBase(endpoint)
		if err != nil {
			return nil, err
		}
		add(strings.Replace(base, "://localhost:", "://127.0.0.1:", 1), true)
	}
	if c.Usual {
		var ports []int
		for _, k := range kinds {
			ports = append(ports, k.ports...)
		}
		for _, port := range ports {
			add(fmt.Sprintf("http://127.0.0.1:%d", port), false)
		}
		for _, port := range ports { // those whose "localhost" is that
			add(fmt.Sprintf("http://[::1]:%d", port), false).twin = add(fmt.Sprintf("http://127.0.0.1:%d", port), false)
		}
	}
	return f, nil
}

// Look looks at every place now, all at once, and returns when all have
// answered or run out of time.
func (f *Finder) Look(ctx context.Context) { f.lookAll(ctx, true) }

// LookAgain is Look that leaves those alone who were no engine a moment ago.
func (f *Finder) LookAgain(ctx context.Context) { f.lookAll(ctx, false) }

func (f *Finder) lookAll(ctx context.Context, thorough bool) {
	f.looking.Lock()
	defer f.looking.Unlock()
	var all sync.WaitGroup
	for _, s := range f.spots {
		all.Go(func() { f.look(ctx, s, thorough) })
	}
	all.Wait()
	if ctx.Err() != nil {
		return // cut short: it says nothing of the engines
	}
	var engines []*Engine
	var report []Finding
	others := 0
	for _, s := range f.spots {
		if s.double() {
			continue
		}
		report = append(report, s.finding)
		if s.engine != nil {
			engines = append(engines, s.engine)
			others += s.finding.Others
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report = report
	if !slices.Equal(f.engines, engines) || f.others != others {
		f.engines, f.others = engines, others
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// double reports whether the spot of ::1 has nothing to say beside its twin.
func (s *spot) double() bool {
	if s.twin == nil {
		return false
	}
	if s.engine == nil || s.twin.engine == nil {
		return s.engine == nil && s.finding.Kind == ""
	}
	return s.engine.kind == s.twin.engine.kind && slices.EqualFunc(s.engine.models, s.twin.engine.models, sameModel)
}

// look brings one spot up to date.
func (f *Finder) look(ctx context.Context, s *spot, thorough bool) {
	p := &place{rt: f.rt, base: s.base, wait: nearWait, pages: map[string]page{}, known: s.known}
	limit := nearLook
	if !loopback(s.base) {
		p.wait, limit = farWait, farLook
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p.ctx = within
	if first := p.get("/v1/models"); !thorough && s.stranger != nil && first.err == nil &&
		bytes.Equal(first.body, s.stranger) && time.Since(s.met) < acquaintance {
		return
	}
	k, models, err := p.identify(s.configured)
	if ctx.Err() != nil {
		return
	}
	if s.stranger = nil; err == errStranger {
		s.stranger, s.met = append([]byte{}, p.get("/v1/models").body...), time.Now()
	}
	// A machine that computes hard is slow to answer: one look without an
	// answer in time is no absence yet.
	if missed := errors.Is(err, errSlow); missed && s.engine != nil && !s.missed {
		s.missed = true
		return
	}
	s.missed = false
	s.finding = Finding{Place: s.base, Configured: s.configured}
	if k != nil {
		s.finding.Kind, s.finding.Name = k.word, k.name
	}
	listed := len(models)
	models = usable(models)
	switch {
	case err != nil:
		s.finding.Why = err.Error()
	case len(models) == 0 && listed > 0:
		s.finding.Why = "it lists no model whose id can be offered: " + idRule
	case len(models) == 0:
		s.finding.Why = "it offers no model yet; load one there"
	default:
		s.finding.Others = s.load.told(p, k)
	}
	f.settle(s, k, models, listed-len(models))
}

// settle makes the spot's engine what the look found, that many models left out;
// one that stayed the same stays the same Engine.
func (f *Finder) settle(s *spot, k *kind, models []Model, left int) {
	if s.finding.Why != "" {
		if s.engine != nil {
			f.log.Info("engine gone", "engine", s.engine.name, "place", s.base, "why", s.finding.Why)
		}
		s.engine = nil
		return
	}
	s.finding.Models = len(models)
	if s.engine != nil && s.engine.kind == k && slices.EqualFunc(s.engine.models, models, sameModel) {
		return
	}
	s.engine = &Engine{kind: k, name: k.name, base: s.base + k.under, rt: f.rt, models: models, load: s.load}
	f.log.Info("engine found", "engine", k.name, "place", s.base, "models", len(models))
	if left > 0 {
		f.log.Warn("models left out", "engine", k.name, "place", s.base, "models", left, "why", idRule)
	}
}

// idRule is what fleet.ModelID.Valid holds, for owners. An id is never changed to
// fit: it would be another model's name for whoever reads it (S1.5).
const idRule = "an id is 1 to 256 printable bytes without a space at either end, and each is offered once; rename the others there"

// usable leaves out what cannot be advertised: odd ids, repeated ones, too many.
func usable(models []Model) []Model {
	var out []Model
	for _, m := range models {
		again := slices.ContainsFunc(out, func(o Model) bool { return o.ID == m.ID })
		if m.ID.Valid() && !again && len(out) < maxModels {
			out = append(out, m)
		}
	}
	return out
}

// Engines are those found at the last look, configured places first.
func (f *Finder) Engines() []*Engine {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return slices.Clone(f.engines)
}

// Changed is closed when the engines or their models next change; ask for a
// new one before reading Engines, so that no change is missed.
func (f *Finder) Changed() <-chan struct{} {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.changed
}

// Report says of every place what was found there or why nothing was.
func (f *Finder) Report() []Finding {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return slices.Clone(f.report)
}
