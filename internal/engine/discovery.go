package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxModels is how many models an engine may offer.
const maxModels = 256

// Config configures a Finder.
type Config struct {
	// Usual probes the usual ports on loopback.
	Usual bool
	// Endpoints are additional addresses to probe, http or https, with or without /v1.
	// Only these may be on another machine.
	Endpoints []string
	// Slots is the number of concurrent calls per model for an engine that does not report
	// it; 0 means the usual number for its kind.
	Slots int
	Log   *slog.Logger
	// Transport connects to the engines; nil means a new transport.
	Transport http.RoundTripper
}

// Finding is the result for one address: an engine, or why there is none.
type Finding struct {
	Place      string `json:"place"`              // without /v1
	Configured bool   `json:"configured"`         // by the owner, not just a usual port
	Kind       string `json:"kind,omitempty"`     // of the engine, or ""
	Name       string `json:"name,omitempty"`     // of the engine, or ""
	Version    string `json:"version,omitempty"`  // as the engine reports it, or ""
	Model      string `json:"model,omitempty"`    // the model that cannot be served, for an engine that kith runs
	Models     int    `json:"models"`             // number of offered models
	LeftOut    string `json:"left_out,omitempty"` // how many models are not offered, and why, or ""
	Others     int    `json:"others,omitzero"`    // running calls of other programs, if the engine reports them
	Why        string `json:"why,omitempty"`      // why no engine can be used, or ""
	// Graphics is what the built-in engine computes with.
	Graphics *Graphics `json:"graphics,omitempty"`
}

// Finder finds the engines at a list of addresses and stores the result.
type Finder struct {
	log       *slog.Logger
	rt        http.RoundTripper
	addresses []*address
	slots     int // Config.Slots

	probing sync.Mutex // held while all addresses are being probed

	mu      sync.RWMutex
	engines []*Engine
	others  int // calls of other programs on these engines
	report  []Finding
	late    bool // an address without an engine timed out for the first time
	gone    bool // an engine was removed less than restartLimit ago
	changed chan struct{}
}

// address is an address to probe, with the state kept between probes. It is guarded by
// Finder.probing.
type address struct {
	base       string
	configured bool
	known      map[string]Model
	engine     *Engine // nil if there is none
	load       *load
	missed     bool // the last probe timed out
	finding    Finding
	answeredAt time.Time // when a probe last found the engine
	goneAt     time.Time // when the engine was removed; zero: it was not

	// ipv4 is the same port on 127.0.0.1 if this address is on ::1. An engine that listens
	// on both counts once.
	ipv4 *address
	// other is the first page of a server that is not an engine, read at otherAt, or nil.
	other   []byte
	otherAt time.Time
}

const (
	// busyLimit is how long an engine that accepts connections but does not respond counts
	// as busy if none of our calls are running there. A single-threaded engine does not
	// respond while it computes for another program.
	busyLimit = 10 * time.Minute
	// restartLimit is how long an engine that disappeared may take to restart.
	restartLimit = 5 * time.Minute
)

// otherAge is how long a server that is not an engine is not probed again unless its
// first page changes, because it may log every unknown path.
const otherAge = 10 * time.Minute

// NewFinder returns a Finder that has not probed yet. It refuses endpoints that are not
// http or https addresses.
func NewFinder(c Config) (*Finder, error) {
	f := &Finder{log: c.Log, rt: c.Transport, slots: c.Slots, changed: make(chan struct{})}
	if f.rt == nil {
		f.rt = newTransport()
	}
	add := func(base string, configured bool) *address {
		i := slices.IndexFunc(f.addresses, func(a *address) bool { return a.base == base })
		if i < 0 {
			i = len(f.addresses)
			f.addresses = append(f.addresses, &address{base: base, configured: configured, known: map[string]Model{}, load: new(load)})
		}
		return f.addresses[i]
	}
	for _, endpoint := range c.Endpoints {
		base, err := parseBase(endpoint)
		if err != nil {
			return nil, err
		}
		add(base, true)
	}
	if c.Usual {
		var ports []int
		for _, k := range kinds {
			ports = append(ports, k.ports...)
		}
		for _, port := range ports {
			add(fmt.Sprintf("http://127.0.0.1:%d", port), false)
		}
		if base := ollamaHost(os.Getenv("OLLAMA_HOST")); base != "" {
			add(base, false)
		}
		for _, port := range ports { // the "localhost" of some servers is ::1
			add(fmt.Sprintf("http://[::1]:%d", port), false).ipv4 = add(fmt.Sprintf("http://127.0.0.1:%d", port), false)
		}
	}
	return f, nil
}

// ollamaHost returns the address in OLLAMA_HOST, parsed like Ollama does: a host, a port
// or both, with an optional scheme. If Ollama listens on all addresses it returns this
// machine's. It returns "" if there is no address or if it is not on this machine,
// because only the owner's endpoints may be elsewhere.
func ollamaHost(value string) string {
	value = strings.Trim(strings.TrimSpace(value), `"'`)
	if value == "" {
		return ""
	}
	scheme, rest, found := strings.Cut(value, "://")
	if !found {
		scheme, rest = "http", value
	}
	rest, _, _ = strings.Cut(rest, "/")
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = strings.Trim(rest, "[]"), "11434"
	}
	if host == "" || host == "0.0.0.0" || host == "::" || host == "localhost" {
		host = "127.0.0.1"
	}
	if base := scheme + "://" + net.JoinHostPort(host, port); loopback(base) {
		return base
	}
	return ""
}

// Probe probes all addresses concurrently and returns when all of them have responded or
// timed out.
func (f *Finder) Probe(ctx context.Context) { f.probeAll(ctx, true) }

// ProbeAgain is like Probe, but if a server was found to be no engine less than otherAge
// ago, it requests only the first page, and the other pages only if that has changed.
func (f *Finder) ProbeAgain(ctx context.Context) { f.probeAll(ctx, false) }

func (f *Finder) probeAll(ctx context.Context, thorough bool) {
	f.probing.Lock()
	defer f.probing.Unlock()
	var all sync.WaitGroup
	var late atomic.Bool
	for _, a := range f.addresses {
		missed := a.missed
		all.Go(func() {
			f.probe(ctx, a, thorough)
			if a.missed && !missed && a.engine == nil {
				late.Store(true)
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return // an interrupted probe has no result
	}
	var engines []*Engine
	var report []Finding
	others, gone := 0, false
	for _, a := range f.addresses {
		gone = gone || !a.goneAt.IsZero() && time.Since(a.goneAt) < restartLimit
		if a.duplicate() {
			continue
		}
		report = append(report, a.finding)
		if a.engine != nil {
			engines = append(engines, a.engine)
			others += a.finding.Others
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report, f.late, f.gone = report, late.Load(), gone
	if !slices.Equal(f.engines, engines) || f.others != others {
		f.engines, f.others = engines, others
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// duplicate reports whether a is on ::1 and has the same engine as a.ipv4, or none.
func (a *address) duplicate() bool {
	if a.ipv4 == nil {
		return false
	}
	if a.engine == nil || a.ipv4.engine == nil {
		return a.engine == nil && a.finding.Kind == ""
	}
	return a.engine.kind == a.ipv4.engine.kind && slices.EqualFunc(a.engine.models, a.ipv4.engine.models, sameModel)
}

func (f *Finder) probe(ctx context.Context, a *address, thorough bool) {
	p := &probe{rt: f.rt, base: a.base, wait: nearWait, pages: map[string]page{}, known: a.known, retried: a.missed}
	limit := nearProbe
	switch {
	// The probe after one that timed out decides what the engine is, so it may take longer.
	case !loopback(a.base), !thorough && (a.missed || a.load.missed):
		p.wait, limit = farWait, farProbe
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p.ctx = within
	if first := p.get("/v1/models"); !thorough && a.other != nil && first.err == nil &&
		bytes.Equal(first.body, a.other) && time.Since(a.otherAt) < otherAge {
		return
	}
	if a.engine != nil && errors.Is(p.get("/v1/models").err, errSlow) && ctx.Err() == nil && f.busy(a, p) {
		return
	}
	k, models, err := p.identify(a.configured)
	if ctx.Err() != nil {
		return
	}
	if a.other = nil; err == errNotEngine {
		a.other, a.otherAt = append([]byte{}, p.get("/v1/models").body...), time.Now()
	}
	// A busy machine responds slowly, so a single timeout does not remove an engine.
	missed := errors.Is(err, errSlow)
	if missed && a.engine != nil && !a.missed {
		a.missed = true
		return
	}
	a.missed = missed
	a.finding = Finding{Place: a.base, Configured: a.configured}
	if k != nil {
		a.finding.Kind, a.finding.Name = k.id, k.name
	}
	listed := len(models)
	models, a.finding.LeftOut = usable(models)
	for i := range models {
		if models[i].Slots == 0 {
			models[i].Slots = max(cmp.Or(f.slots, k.slots), 1)
		}
	}
	switch {
	case err != nil:
		a.finding.Why = err.Error()
	case len(models) == 0 && listed > 0:
		a.finding.Why = "it lists no model whose id can be offered: " + idRule
	case len(models) == 0:
		a.finding.Why = "it offers no model yet; load one there"
	default:
		a.finding.Others = a.load.update(p, k)
		if k.version != nil {
			a.finding.Version = k.version(p)
		}
		a.answeredAt, a.goneAt = time.Now(), time.Time{}
	}
	f.update(a, k, models)
}

// busy reports whether an engine that does not respond is busy: one of our calls is
// running there, or it accepts connections and responded less than busyLimit ago. It then
// keeps its models. Without a call of ours, its slots count as used by other programs.
func (f *Finder) busy(a *address, p *probe) bool {
	switch {
	case a.load.ours.Load() > 0:
		a.finding.Others = 0
	case p.accepted.Load() && time.Since(a.answeredAt) < busyLimit:
		for _, m := range a.engine.Models() {
			a.finding.Others = max(a.finding.Others, m.Slots)
		}
	default:
		return false
	}
	a.load.others.Store(int64(a.finding.Others))
	return true
}

// update sets the engine of a to the result of a probe. If nothing changed, it keeps the
// same Engine.
func (f *Finder) update(a *address, k *kind, models []Model) {
	if a.finding.Why != "" {
		if a.engine != nil {
			f.log.Info("engine gone", "engine", a.engine.name, "place", a.base, "why", a.finding.Why)
			a.goneAt = time.Now()
		}
		a.engine = nil
		return
	}
	a.finding.Models = len(models)
	if a.engine != nil && a.engine.kind == k && a.engine.version == a.finding.Version &&
		slices.EqualFunc(a.engine.models, models, sameModel) {
		return
	}
	a.engine = &Engine{
		kind: k, name: k.name, version: a.finding.Version, base: a.base + k.prefix, rt: f.rt, models: models, load: a.load,
	}
	f.log.Info("engine found", "engine", k.name, "place", a.base, "models", len(models))
	if a.finding.LeftOut != "" {
		f.log.Warn("models left out", "engine", k.name, "place", a.base, "why", a.finding.LeftOut)
	}
}

// idRule describes fleet.ModelID.Valid (spec/routing.md#model-id). An id is never changed
// to fit, because it could become the id of another model.
const idRule = "an id is 1 to 256 printable bytes without a space at either end, and each is offered once; rename the others there"

// usable returns the models that can be advertised: those with valid ids, without
// duplicates, at most maxModels. leftOut describes the others, or is "".
func usable(models []Model) (out []Model, leftOut string) {
	ids, more := 0, 0
	for _, m := range models {
		again := slices.ContainsFunc(out, func(o Model) bool { return o.ID == m.ID })
		switch {
		case !m.ID.Valid() || again:
			ids++
		case len(out) == maxModels:
			more++
		default:
			out = append(out, m)
		}
	}
	var why []string
	if more > 0 {
		why = append(why, fmt.Sprintf("%d models, because an engine can offer %d at most; have it list fewer", more, maxModels))
	}
	if ids > 0 {
		why = append(why, fmt.Sprintf("%d models by their ids: %s", ids, idRule))
	}
	return out, strings.Join(why, "; and ")
}

// locked returns the value at v, which is guarded by mu.
func locked[T any](mu *sync.RWMutex, v *T) T {
	mu.RLock()
	defer mu.RUnlock()
	return *v
}

// Engines returns the engines of the last probe. Those at configured addresses come
// first.
func (f *Finder) Engines() []*Engine { return slices.Clone(locked(&f.mu, &f.engines)) }

// Restarting reports whether an engine was removed less than restartLimit ago and has not
// returned. The caller should probe again soon.
func (f *Finder) Restarting() bool { return locked(&f.mu, &f.gone) }

// Late reports whether an address without an engine timed out in the last probe, but not
// before. It may be an engine on a busy computer, so the caller should probe again soon.
func (f *Finder) Late() bool { return locked(&f.mu, &f.late) }

// Changed returns a channel that is closed when the engines or their models
// change. Call it before Engines, so that no change is missed.
func (f *Finder) Changed() <-chan struct{} { return locked(&f.mu, &f.changed) }

// Report returns the findings for all addresses.
func (f *Finder) Report() []Finding { return slices.Clone(locked(&f.mu, &f.report)) }

// Reconfigure replaces the addresses by those in c. An address that remains keeps its
// engine; running calls on other engines continue. New addresses are probed by the next
// Probe. On error nothing changes.
func (f *Finder) Reconfigure(c Config) error {
	c.Log, c.Transport = f.log, f.rt
	next, err := NewFinder(c)
	if err != nil {
		return err
	}
	f.probing.Lock()
	defer f.probing.Unlock()
	for _, a := range next.addresses {
		if i := slices.IndexFunc(f.addresses, func(old *address) bool { return old.base == a.base }); i >= 0 {
			old := f.addresses[i]
			a.known, a.engine, a.load, a.missed, a.finding = old.known, old.engine, old.load, old.missed, old.finding
			a.answeredAt, a.goneAt = old.answeredAt, old.goneAt
		}
	}
	f.addresses, f.slots = next.addresses, next.slots
	return nil
}
