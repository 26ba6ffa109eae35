// Package hub implements the hosted side of kith. It connects the other packages:
//
//	client  ──▶ gateway ── Identify ──▶ dispatch ──▶ registry ══▶ machine
//	machine ──▶ GET /tunnel ───────────────────────▶ registry
//	member  ──▶ the members' pages, and the management API, which signs machines in
//	operator ─▶ the management API on a separate socket
//
// It contains the wiring (hub.go, management.go), the authentication of callers
// (identify.go), accepting machines (accept.go), health (health.go), metrics
// (metrics.go), backups (backups.go) and the shutdown (drain.go).
package hub

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/cluster"
	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/ledger"
	"github.com/kith/kith/internal/ledger/journal"
	"github.com/kith/kith/internal/limit"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/site"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/store"
)

// Config is the operator's configuration of the hub. A zero field means its default.
type Config struct {
	// Node is the name of this hub among those that share the database.
	Node string
	// Region is the region that this hub serves. Default "home".
	Region string
	// Regions are the addresses of the database's other regions, by name. Requests with
	// keys of those regions are forwarded there; keys of unknown regions are refused.
	Regions map[string]*url.URL
	// Wait and WaitStream limit how long a unary and a streamed call wait for a
	// machine. Defaults 60 s and 180 s.
	Wait, WaitStream time.Duration
	// Running and Waiting limit how many calls of one member run on machines and wait for
	// one at the same time. Defaults 64 and 256; negative: no limit.
	Running, Waiting int
	// FirstByte limits how long a machine may take until the first byte of its answer.
	// Default 10 min.
	FirstByte time.Duration
	// Admissions limits how many machines are being checked at the same time; others wait
	// (spec/tunnel.md#gate). Default 128.
	Admissions int
	// DB is the database for the management API and the site.
	DB *store.DB
	// Drain is how long calls may continue when the hub shuts down. Default 30 min.
	Drain time.Duration
	// Clients limits connections to the public address; nil: no limits, and no trusted
	// proxies.
	Clients *gateway.Clients
	// Machines limits the connected machines per member. Default 1000; negative: no limit.
	Machines int
	// Journal stores the ledger's records until they are in the database, so that a crash
	// loses no call; nil: they are kept in memory. The hub does not close it.
	Journal *journal.Journal
	// Backups is the schedule for backups; the zero value means none.
	Backups Backups
	// KeepResponses is how long turns of the responses dialect are kept. Default 24 h;
	// negative: none are.
	KeepResponses time.Duration
	// Edge configures the gateway: limits and rates. New sets its Backend, Identify,
	// Region, Regions, Finished, Refused, Turns, Count and Now.
	Edge gateway.Config
	// Site configures the site. New sets its Try, Call, Health and Limits.
	Site site.Config
	// ReloadConfig reads the operator's configuration again and applies it with
	// Hub.Reload.
	ReloadConfig func(context.Context) (api.Reloaded, error)
	// Cluster connects this hub with the other nodes of its region; nil: there are none.
	Cluster *cluster.Cluster
	// Draw returns random numbers for breaking ties between machines. Default rand.Uint64.
	// The simulation replaces it to make runs repeatable.
	Draw func() uint64
	// Log is the hub's log. Default slog.Default().
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Region = cmp.Or(c.Region, "home")
	c.Wait = cmp.Or(c.Wait, 60*time.Second)
	c.WaitStream = cmp.Or(c.WaitStream, 180*time.Second)
	c.FirstByte = cmp.Or(c.FirstByte, 10*time.Minute)
	c.Drain = cmp.Or(c.Drain, 30*time.Minute)
	c.KeepResponses = cmp.Or(c.KeepResponses, 24*time.Hour)
	c.Edge.Limits.Stream = cmp.Or(c.Edge.Limits.Stream, 30*time.Minute)
	c.Admissions = cmp.Or(c.Admissions, 128)
	c.Machines = cmp.Or(c.Machines, 1000)
	c.Running = cmp.Or(c.Running, 64)
	c.Waiting = cmp.Or(c.Waiting, 256)
	c.Log = cmp.Or(c.Log, slog.Default())
	return c
}

// Records is the part of the database that calls and tunnels use. *store.DB implements
// it, and tests add faults. Times are UTC. A look-up without a result fails with
// account.ErrNotFound, a conflict with account.ErrExists.
type Records interface {
	ledger.Store

	KeyByHash(context.Context, [32]byte) (account.Key, account.Member, error)
	MachineByHash(context.Context, [32]byte) (account.Machine, account.Member, error)
	DayOfKeys(ctx context.Context, memberID string, now time.Time) (map[string]int64, error)
	Member(ctx context.Context, id string) (account.Member, error)
	Key(ctx context.Context, id string) (account.Key, error)
	ActiveMachine(ctx context.Context, id string) (account.Machine, error)
	NextGeneration(ctx context.Context, machineID string) (int64, error)
	Grant(ctx context.Context, hash [32]byte) (account.Grant, error)

	SaveSpeeds(ctx context.Context, speeds []account.Speed, now time.Time) error
	Speeds(ctx context.Context, since time.Time) ([]account.Speed, error)
	PrefixKey(ctx context.Context, day time.Time) ([]byte, error)
}

// Hub is a node of the hosted side. Create it with New, then call Run.
type Hub struct {
	cfg      Config                 // as passed to New
	inForce  atomic.Pointer[Config] // cfg with the changes by Reload
	records  Records
	live     *registry.Registry
	log      *slog.Logger
	calls    *dispatch.Dispatcher
	keys     keyring
	guesses  limit.Throttle[netip.Prefix] // unknown secrets of each client
	ledger   *ledger.Ledger
	traces   *ledger.Traces
	turns    *ledger.Turns
	edge     *gateway.Edge
	spool    *spool.Spool
	api      *api.API
	site     *site.Site
	tunnels  tunnels
	admitted chan struct{} // one value per machine at the admission gate
	paces    paces
	metrics  callMetrics
	drain    drain
	backups  backups
	started  time.Time
}

// New returns a hub that uses a store and a registry. Run both.
func New(cfg Config, records Records, live *registry.Registry) *Hub {
	cfg = cfg.withDefaults()
	h := &Hub{
		cfg: cfg, records: records, live: live, log: cfg.Log,
		ledger:   ledger.New(records, cfg.Journal, cfg.Log),
		traces:   ledger.NewTraces(records, cfg.Log),
		turns:    ledger.NewTurns(records, cfg.KeepResponses, cfg.Log),
		admitted: make(chan struct{}, cfg.Admissions),
		tunnels:  tunnels{most: max(cfg.Machines, 0), of: map[string]map[string]int{}},
		guesses:  limit.Throttle[netip.Prefix]{Every: guessEvery, Burst: guessBurst},
		metrics:  newCallMetrics(),
		backups:  backups{Backups: cfg.Backups},
		started:  time.Now(),
	}
	edge := cfg.Edge
	if h.spool = edge.Spool; h.spool == nil {
		h.spool, _ = spool.Open("", spool.Limits{}) // without a folder it cannot fail
	}
	h.inForce.Store(&cfg)
	h.calls = dispatch.New(dispatch.Config{
		Limits:   cfg.callLimits(),
		Registry: live, Ledger: h.ledger, Traces: h.traces, Spool: h.spool,
		SaveSpeeds: records.SaveSpeeds, Speeds: records.Speeds, PrefixKey: records.PrefixKey,
		Revoked: h.revoked, Activity: func() { h.site.MarkChanged() }, Draw: cfg.Draw, Log: cfg.Log,
	})
	edge.Spool, edge.Region, edge.Regions, edge.SharedRate = h.spool, cfg.Region, cfg.Regions, cfg.Cluster != nil
	edge.Backend, edge.Identify, edge.Now, edge.Log = h.calls, h.Identify, records.Now, cfg.Log
	edge.Count, edge.Finished, edge.Refused = h.calls.Count, h.finished, h.refused
	if cfg.KeepResponses > 0 {
		edge.Turns = &gateway.Turns{Keep: h.turns.Keep, Load: h.turns.Load, Forget: h.turns.Forget}
	}
	h.edge = gateway.New(edge)
	h.api = h.newAPI()
	h.site = h.newSite()
	live.Observe(registry.Observer{Committed: h.onCommitted, Store: h.onChange, FailedOver: h.ledger.Requeue, Machine: h.onMachine})
	if cfg.Cluster != nil {
		cfg.Cluster.Join(cluster.Parts{Registry: live, Dispatch: h.calls, Edge: h.edge, Calls: h.Calls})
	}
	return h
}

// callLimits returns the limits for dispatch.
func (c Config) callLimits() dispatch.Limits {
	return dispatch.Limits{
		Wait: c.Wait, WaitStream: c.WaitStream, Running: c.Running, Waiting: c.Waiting,
		FirstByte: c.FirstByte, Stream: c.Edge.Limits.Stream,
	}
}

// Reload applies the fields of c that can change while calls run: Wait, WaitStream,
// Running, Waiting, FirstByte, Machines and Drain, and Rate, Limits and Origins of Edge.
// It ignores the others. A lower limit disconnects no call and no machine.
func (h *Hub) Reload(c Config) {
	c = c.withDefaults()
	h.calls.SetLimits(c.callLimits())
	h.tunnels.setMost(max(c.Machines, 0))
	h.edge.Reconfigure(c.Edge)
	h.inForce.Store(&c)
}

// Handler serves the hub's public address: the inference routes, the members' pages and
// their API under /api/, GET /tunnel for machines, POST /login for machines with a token,
// and GET /readyz for load balancers.
func (h *Hub) Handler() http.Handler {
	call := h.drain.counted(h.edge.ServeHTTP)
	serve := func(w http.ResponseWriter, r *http.Request) {
		// A ServeMux would clean paths, but the gateway compares them byte by byte.
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/v1/"): // nearly all requests
			call(w, r)
		case r.Method == http.MethodGet && path == "/readyz":
			h.ServeReady(w, r)
		case r.Method == http.MethodGet && path == "/tunnel":
			h.acceptTunnel(w, r)
		case strings.HasPrefix(path, "/api/"), r.Method == http.MethodPost && path == "/login":
			h.api.ServeHTTP(w, r)
		case h.site.Serves(r):
			h.site.ServeHTTP(w, r)
		default:
			h.edge.ServeHTTP(w, r)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.drain.begun.Load() && r.URL.Path != "/tunnel" {
			w.Header().Set("Connection", "close") // so that the next request goes to another hub
		}
		r, proxied := h.cfg.Clients.Resolve(r)
		if proxied { // the limit for tunnels is per machine, so their requests do not count here
			leave, err := h.cfg.Clients.Admit(r)
			if err != nil {
				h.edge.Refuse(w, r, err)
				return
			}
			defer leave()
		}
		serve(w, withClient(r))
	})
}

// ServePeers serves the other nodes of the region on the listener until ctx ends.
func (h *Hub) ServePeers(ctx context.Context, listener net.Listener) error {
	return h.cfg.Cluster.Serve(ctx, listener, h.drain.counted)
}

// FlushJournal writes what a previous process left in the journal to the database. Call it
// before loading the registry, which counts the day's calls of each share.
func (h *Hub) FlushJournal(ctx context.Context) error { return h.ledger.Flush(ctx) }

// Run runs the hub until ctx ends. It starts by writing pending records.
func (h *Hub) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{h.calls.Run, h.calls.RunSpeeds, h.ledger.Run, h.traces.Run, h.turns.Run, h.site.Run, h.runBackups} {
		group.Go(func() error { return run(ctx) })
	}
	if h.cfg.Cluster != nil {
		group.Go(func() error { return h.cfg.Cluster.Run(ctx) })
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// onCommitted handles changes of the store that are not yet in the registry's snapshot.
// Nil means that anything may have changed.
func (h *Hub) onCommitted(changes []fleet.Change) {
	h.keys.clear()
	h.calls.OnCommitted(changes)
}

// onChange handles changes of the store that are already in the registry's snapshot, and
// the callers that they affect. Nil means that anything may have changed.
func (h *Hub) onChange(changes []fleet.Change, affected fleet.Affected) {
	h.site.OnChange(changes)
	h.calls.OnChange(affected)
}

// onMachine is called when a machine connected, disconnected or changed.
func (h *Hub) onMachine(id fleet.MachineID) {
	h.site.MarkChanged()
	h.calls.OnMachine(id)
}
