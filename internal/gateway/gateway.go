// Package gateway is the HTTP edge of both surfaces: it matches the path, identifies the caller, enforces the limits
// against slow, greedy and hostile clients, reads and checks the request, and gives a Call to its Backend. It alone writes
// to the caller: answers, streams, heartbeats and faults in the caller's dialect. It knows neither machines nor how a Call
// is served.
//
// What net/http refuses before a handler runs (400 for a malformed request,
// 431 for headers over the limit) carries no correlation id; everything else
// does.
package gateway

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// Config is what an edge needs to know. Zero values of limits mean the default.
type Config struct {
	Backend Backend
	// Identify finds the caller of a key or machine credential. It gets the secret as it came and returns a *fault.Fault:
	// invalid_api_key for any secret that is not valid now, a RefusedKey where the caller is not to learn why; another one
	// when that is not known. nil makes the local surface, which needs no key (spec/api.md#local-no-key).
	Identify func(ctx context.Context, secret string) (Caller, error)
	// Region is the name of this surface's region, and Regions has the addresses of the others. A request whose key is of
	// one of those, which Identify reports by an OtherRegion, is forwarded there; of any other it is refused.
	Region  string
	Regions map[string]*url.URL
	// Base is the surface's address as callers see it, without /v1, and Version the
	// program's: both are in the answer to GET /.
	Base, Version string
	// Origins are those of web applications that may call the hosted surface from a
	// browser with a key, byte for byte; cookies are never taken. Empty: none may.
	Origins []string
	// Guard keeps browser pages off the local surface; nil for none (the hosted
	// surface, or a unix socket).
	Guard *Guard
	// Rate limits the requests of each key and machine credential; on the local
	// surface all requests together. The zero Rate is off.
	Rate Rate
	// SharedRate collects what is taken of the Rate for other nodes, who get it by Taken.
	SharedRate bool
	Limits     Limits
	// Spool holds the bodies of requests and unary answers, each as its caller's.
	// nil: one without limits, in memory.
	Spool *spool.Spool
	// Finished gets the outcome of each Call that reached the Backend, after its last byte was written. May be nil.
	Finished func(*Call, Outcome)
	// Count asks a tokenizer for the number of tokens of a call's prompt, without serving the call; 0: no tokenizer
	// answered before ctx ended. An error is the refusal of a call that nothing could serve. nil: there is no tokenizer.
	Count func(ctx context.Context, call *Call) (tokens int64, err error)
	// Refused gets each request for an inference route that did not reach the Backend: Call has what is known of it, and
	// no Body. Its Caller is zero if the caller was not identified. May be nil.
	Refused func(*Call, Outcome)
	// Now is the clock of Call.Started. nil: time.Now.
	Now func() time.Time
	// Turns keeps the turns of the responses dialect; nil: none are kept.
	Turns *Turns
	Log   *slog.Logger
}

// Limits bound one call (spec/api.md#limits, spec/routing.md#time-limits). Zero is the default in brackets.
type Limits struct {
	Body   int64 // bytes of a request body [32 MiB]
	Upload int64 // bytes of a clip to transcribe [25 MiB]
	// Streamed is how many bytes a streamed answer may have [64 MiB].
	Streamed int
	// FirstByte, once a machine took a streamed call, is how long it may take
	// to its first frame [10 min]; Idle is the longest silence after that
	// [2 min].
	FirstByte, Idle time.Duration
	// Stream is how long a streamed call may take once a machine took it
	// [30 min]; Unary how long any other may take from its arrival [590 s].
	Stream, Unary time.Duration
	// RetryAfter is the standard back-off of a 503, sent ± 20 % in seconds, 1 to 30 [5 s].
	RetryAfter time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Body, l.Upload = cmp.Or(l.Body, 32<<20), cmp.Or(l.Upload, 25<<20)
	l.FirstByte, l.Idle = cmp.Or(l.FirstByte, 10*time.Minute), cmp.Or(l.Idle, 2*time.Minute)
	l.Stream, l.Unary = cmp.Or(l.Stream, 30*time.Minute), cmp.Or(l.Unary, 590*time.Second)
	l.RetryAfter = cmp.Or(l.RetryAfter, 5*time.Second)
	return l
}

// New makes the edge of one surface. The handler wants the request's path as
// it came: a mux in front of it must not clean or redirect.
func New(c Config) *Edge {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Spool == nil {
		c.Spool, _ = spool.Open("", spool.Limits{}) // without a folder nothing fails
	}
	g := &Edge{cfg: c, surface: hosted, buckets: buckets{shared: c.SharedRate}, counts: buckets{rate: countRate}}
	g.cfg.Rate, g.cfg.Limits, g.cfg.Origins = Rate{}, Limits{}, nil
	g.ending, g.end = context.WithCancelCause(context.Background())
	g.Reconfigure(c)
	if c.Identify == nil {
		g.surface = local
	}
	return g
}

// Edge is the handler of one surface. Other handlers of its address count what
// they answer against the same limits, with Admit and Miss.
type Edge struct {
	cfg     Config // without the fields that Reconfigure replaces
	surface surface
	tuning  atomic.Pointer[tuning] // those
	buckets buckets
	counts  buckets // of the token counts that machines make
	misses  misses
	// forwards limits the requests with keys of other regions, for each client's address.
	forwards buckets
	ending   context.Context // ends with EndBodies
	end      context.CancelCauseFunc
}

// tuning is the part of a Config that Reconfigure replaces. A request keeps the one that
// it began with.
type tuning struct {
	Rate
	Limits
	origins   []string
	late      *fault.Fault    // the end of a unary call that takes longer than Limits.Unary
	transport *http.Transport // to other regions
}

// Reconfigure applies Rate, Limits and Origins of c to the requests that come from now
// on, and ignores its other fields. A change of Rate fills every bucket.
func (g *Edge) Reconfigure(c Config) {
	limits := c.Limits.withDefaults()
	next := &tuning{
		Rate: c.Rate, Limits: limits, origins: c.Origins,
		late: fault.New(fault.EngineTimeout, "the answer took longer than %s: ask for less, or stream it", limits.Unary),
	}
	if last := g.tuning.Load(); last != nil && last.Unary == limits.Unary {
		next.transport = last.transport // and its connections
	} else {
		next.transport = newRegionTransport(limits.Unary)
	}
	g.tuning.Store(next)
	g.buckets.setRate(c.Rate)
	g.forwards.setRate(c.Rate)
}

// InForce returns the limits of requests that come now.
func (g *Edge) InForce() (Rate, Limits) {
	now := g.tuning.Load()
	return now.Rate, now.Limits
}

// ServeHTTP serves one request, its end included: the answer or the fault, the
// log event, and Finished or Refused.
func (g *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := newExchange(g, w, r)
	if g.cors(w.Header(), r) {
		x.begin(http.StatusNoContent)
		return
	}
	x.finish(x.run())
}

// ServeAs serves one request as ServeHTTP does, for a caller that was identified
// already: a key in the request is ignored.
func (g *Edge) ServeAs(w http.ResponseWriter, r *http.Request, caller Caller) {
	x := newExchange(g, w, r)
	x.caller, x.identified = caller, true
	x.finish(x.run())
}

// EndBodies answers the requests whose bodies have not arrived completely with f, now and
// from now on.
func (g *Edge) EndBodies(f *fault.Fault) { g.end(f) }

// Refuse answers a request that is refused before it is looked at, in the shape
// that its path and headers ask for.
func (g *Edge) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	g.cors(w.Header(), r)
	newExchange(g, w, r).finish(err)
}

// Admit takes a token of the caller's Rate, or returns the fault that says when
// there is one.
func (g *Edge) Admit(c Caller) error { return g.buckets.take(bucketOf(c), time.Now()) }

// Taken returns what callers took of the Rate here, for the other nodes, once.
func (g *Edge) Taken() []Taken { return g.buckets.collected() }

// TakeElsewhere counts what another node's Taken returned against the Rate here.
func (g *Edge) TakeElsewhere(taken []Taken) { g.buckets.takeElsewhere(taken, time.Now()) }

// Miss counts a refusal that says that the model is out of reach. It returns the refusal for the caller: f, or
// rate_limit_exceeded after too many such models (spec/security.md#enumeration).
func (g *Edge) Miss(c Caller, model fleet.ModelID, f *fault.Fault) *fault.Fault {
	if !isOutOfReach(f) {
		return f
	}
	if limited := g.misses.add(bucketOf(c), model, time.Now()); limited != nil {
		return limited
	}
	return f
}
