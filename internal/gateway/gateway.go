// Package gateway is the HTTP edge of both surfaces. It matches the path, identifies the
// caller, enforces the limits against slow, greedy and hostile clients, reads and checks
// the request, and passes a Call to its Backend. It writes everything that the caller
// receives: answers, streams, heartbeats and faults, in the caller's dialect. It knows
// nothing of machines or of how a Call is served.
//
// Requests that net/http refuses before a handler runs (400 for a malformed request, 431
// for headers over the limit) have no correlation id; all others have one.
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

// Config configures an edge. The zero value of a limit is its default.
type Config struct {
	Backend Backend
	// Identify returns the caller for a key or machine credential. It gets the secret as
	// received and returns a *fault.Fault: invalid_api_key for any secret that is not
	// valid now (a RefusedKey, so that the caller does not learn why), another code if
	// that is not known. If Identify is nil, the surface is the local one and needs no
	// key (spec/api.md#local-no-key).
	Identify func(ctx context.Context, secret string) (fleet.Caller, error)
	// Region is the name of this surface's region; Regions has the addresses of the other
	// regions. For a key of another region, Identify returns an OtherRegion. If Regions
	// lists it, the request is forwarded there; otherwise it is refused.
	Region  string
	Regions map[string]*url.URL
	// Base is the surface's address as callers see it, without /v1; Version is the
	// program's version. The answer to GET / has both.
	Base, Version string
	// Origins are the origins of web applications that may call the hosted surface from a
	// browser with a key, compared byte for byte. Cookies are never accepted. Empty: none
	// may.
	Origins []string
	// Guard keeps web pages away from the local surface; nil for the hosted surface and
	// for unix sockets.
	Guard *Guard
	// Rate limits the requests of each key and machine credential; on the local surface,
	// all requests together. The zero Rate is off.
	Rate Rate
	// SharedRate collects the tokens taken from Rate for other nodes, which get them from
	// Taken.
	SharedRate bool
	Limits     Limits
	// Spool holds the bodies of requests and unary answers, counted for their callers.
	// nil: in memory, without limits.
	Spool *spool.Spool
	// Finished gets the outcome of each Call that reached the Backend, after its last
	// byte is written. May be nil.
	Finished func(*Call, Outcome)
	// Count counts the tokens of a call's prompt with a tokenizer, without serving the
	// call. It returns 0 if no tokenizer answers before ctx ends, and an error if nothing
	// could serve the call. nil: there is no tokenizer.
	Count func(ctx context.Context, call *Call) (tokens int64, err error)
	// Unsent returns the value of X-Kith-Sealed for requests to inference routes that do not
	// reach the Backend, empty for none. May be nil.
	Unsent func() string
	// Refused gets each request to an inference route that did not reach the Backend. The
	// Call has what is known of it, and no Body. Its Caller is zero if the caller was not
	// identified. May be nil.
	Refused func(*Call, Outcome)
	// Now is the clock of Call.Started. nil: time.Now.
	Now func() time.Time
	// Turns stores the turns of the responses dialect; nil: none are stored.
	Turns *Turns
	Log   *slog.Logger
}

// Limits bound one call (spec/api.md#limits, spec/routing.md#time-limits). Zero means the
// default in brackets.
type Limits struct {
	Body   int64 // bytes of a request body [32 MiB]
	Upload int64 // bytes of an audio file to transcribe [25 MiB]
	// Streamed is the largest size of a streamed answer in bytes [64 MiB].
	Streamed int
	// FirstByte is how long a machine that accepted a streamed call may take to send the
	// first frame [10 min]; Idle is the longest silence after that [2 min].
	FirstByte, Idle time.Duration
	// Stream is the longest duration of a streamed call after a machine accepted it [30
	// min]; Unary is that of any other call after its arrival [590 s].
	Stream, Unary time.Duration
	// RetryAfter is the standard back-off of a 503, sent with ± 20 % of variation, 1 to
	// 30 seconds [5 s].
	RetryAfter time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Body, l.Upload = cmp.Or(l.Body, 32<<20), cmp.Or(l.Upload, 25<<20)
	l.FirstByte, l.Idle = cmp.Or(l.FirstByte, 10*time.Minute), cmp.Or(l.Idle, 2*time.Minute)
	l.Stream, l.Unary = cmp.Or(l.Stream, 30*time.Minute), cmp.Or(l.Unary, 590*time.Second)
	l.RetryAfter = cmp.Or(l.RetryAfter, 5*time.Second)
	return l
}

// New returns the edge of one surface. The handler needs the path as received: a mux in
// front of it must not clean it or redirect.
func New(c Config) *Edge {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Spool == nil {
		c.Spool, _ = spool.Open("", spool.Limits{}) // without a directory, Open cannot fail
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

// Edge is the handler of one surface. Other handlers of its address count their requests
// against the same limits, with Admit and Miss.
type Edge struct {
	cfg     Config // without the fields that Reconfigure replaces
	surface surface
	tuning  atomic.Pointer[tuning] // the replaceable fields
	buckets buckets
	counts  buckets // for token counts by machines
	misses  misses
	// forwards limits the requests with keys of other regions, by client address.
	forwards buckets
	ending   context.Context // ended by EndBodies
	end      context.CancelCauseFunc
}

// tuning is the part of a Config that Reconfigure replaces. A request uses the tuning of
// the time when it began.
type tuning struct {
	Rate
	Limits
	origins   []string
	late      *fault.Fault    // the cause when a unary call exceeds Limits.Unary
	transport *http.Transport // to other regions
}

// Reconfigure applies Rate, Limits and Origins of c to new requests and ignores its other
// fields. A change of Rate fills every bucket.
func (g *Edge) Reconfigure(c Config) {
	limits := c.Limits.withDefaults()
	next := &tuning{
		Rate: c.Rate, Limits: limits, origins: c.Origins,
		late: fault.New(fault.EngineTimeout, "the answer took longer than %s: ask for less, or stream it",
			limits.Unary),
	}
	if last := g.tuning.Load(); last != nil && last.Unary == limits.Unary {
		next.transport = last.transport // keeps its connections
	} else {
		next.transport = newRegionTransport(limits.Unary)
	}
	g.tuning.Store(next)
	g.buckets.setRate(c.Rate)
	g.forwards.setRate(c.Rate)
}

// InForce returns the limits of new requests.
func (g *Edge) InForce() (Rate, Limits) {
	now := g.tuning.Load()
	return now.Rate, now.Limits
}

// ServeHTTP serves one request. This includes the answer or the fault, the log event, and
// the call to Finished or Refused.
func (g *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := newRequest(g, w, r)
	if g.cors(w.Header(), r) {
		q.reply.begin(http.StatusNoContent)
		return
	}
	q.finish(q.run())
}

// ServeAs serves one request as ServeHTTP does, for a caller that is already identified.
// A key in the request is ignored.
func (g *Edge) ServeAs(w http.ResponseWriter, r *http.Request, caller fleet.Caller) {
	q := newRequest(g, w, r)
	q.caller, q.identified = caller, true
	q.finish(q.run())
}

// EndBodies answers f to every request whose body is incomplete, now and in the future.
func (g *Edge) EndBodies(f *fault.Fault) { g.end(f) }

// Refuse answers a request that is refused without being read, in the dialect that its
// path and headers select.
func (g *Edge) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	g.cors(w.Header(), r)
	newRequest(g, w, r).finish(err)
}

// Admit takes a token of the caller's Rate. Without one it returns a fault with the time
// to retry.
func (g *Edge) Admit(c fleet.Caller) error { return g.buckets.take(bucketOf(c), time.Now()) }

// Taken returns the tokens that callers took from Rate here, for the other nodes. Each is
// returned once.
func (g *Edge) Taken() []Taken { return g.buckets.collected() }

// ApplyTaken subtracts the result of another node's Taken from the Rate here.
func (g *Edge) ApplyTaken(taken []Taken) { g.buckets.applyTaken(taken, time.Now()) }

// Miss counts f, the refusal of a model that is out of reach. It returns the refusal for
// the caller: f, or rate_limit_exceeded after too many such models
// (spec/security.md#enumeration).
func (g *Edge) Miss(c fleet.Caller, model fleet.ModelID, f *fault.Fault) *fault.Fault {
	if !isOutOfReach(f) {
		return f
	}
	if limited := g.misses.add(bucketOf(c), model, time.Now()); limited != nil {
		return limited
	}
	return f
}
