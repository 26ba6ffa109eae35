// Package hub is the hosted surface: it knows who calls (Identify), sends each
// call to a machine in the caller's reach (Do), lets calls wait for one, takes
// in the machines' tunnels, and wires the management API and the site.
package hub

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/ledger"
	"github.com/kith/kith/internal/ledger/journal"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/site"
	"github.com/kith/kith/internal/store"
)

// Config is what an operator sets of the hub. The zero value of each member
// means its default.
type Config struct {
	// Region names the region this hub serves; keys of another are refused.
	// Default "home".
	Region string
	// Wait and WaitStream are how long a call may wait for a machine, unary and
	// streamed (S7.1). Defaults 60 s and 180 s.
	Wait, WaitStream time.Duration
	// Running and Waiting are how many calls of one member may run on machines, and
	// wait for one, at the same time. Defaults 64 and 256; negative: not bounded.
	Running, Waiting int
	// FirstByte is how long a machine may take to its first byte once it took a
	// call (decisions 3). Default 10 min.
	FirstByte time.Duration
	// Admissions is how many tunnels may be in their handshake at once; more are
	// told to come back (decisions 8). Default 128.
	Admissions int
	// DB is the database of the management API and the site.
	DB *store.DB
	// Clients are those of the public address; nil: no proxy is trusted, and nothing is
	// bounded.
	Clients *gateway.Clients
	// Machines is how many machines of one member may be connected. Default 1000;
	// negative: not bounded.
	Machines int
	// Journal keeps what the ledger knows until the database has it, so that no
	// death of the hub loses a call. Without one, as in a simulation, records wait
	// in memory. The hub closes it no more than the database.
	Journal *journal.Journal
	// KeepResponses is how long a turn of the responses dialect can be referred to.
	// Default 24 h; negative: none is kept.
	KeepResponses time.Duration
	// Edge configures the HTTP edge: limits and rates. Its Backend, Identify,
	// Finished, Refused, Turns and Count are set here.
	Edge gateway.Config
	// Site configures the members' pages. Its Try, Call, Health and Limits are set
	// here.
	Site site.Config
	// Draw breaks ties between machines: a number spread over all 64 bits. Default
	// rand.Uint64; a simulation gives its own, so that a history repeats.
	Draw func() uint64
	// Log takes the hub's events. Default slog.Default.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	orDuration := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	if c.Region == "" {
		c.Region = "home"
	}
	orDuration(&c.Wait, 60*time.Second)
	orDuration(&c.WaitStream, 180*time.Second)
	orDuration(&c.FirstByte, 10*time.Minute)
	orDuration(&c.KeepResponses, 24*time.Hour)
	orDuration(&c.Edge.Limits.Stream, 30*time.Minute)
	orCount := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	orCount(&c.Admissions, 128)
	orCount(&c.Machines, 1000)
	orCount(&c.Running, 64)
	orCount(&c.Waiting, 256)
	if c.Draw == nil {
		c.Draw = rand.Uint64
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// Records is what calls and tunnels need of the database: *store.DB, or one with
// faults in a test. Times are UTC; a look-up that finds nothing is
// account.ErrNotFound, a clash account.ErrExists.
type Records interface {
	ledger.Store

	KeyByHash(context.Context, [32]byte) (account.Key, account.Member, error)
	MachineByHash(context.Context, [32]byte) (account.Machine, account.Member, error)
	MemberByName(ctx context.Context, name string) (account.Member, error)
	Keys(ctx context.Context, memberID string) ([]account.Key, error)
	Machines(ctx context.Context, memberID string) ([]account.Machine, error)
	NextGeneration(ctx context.Context, machineID string) (int64, error)
	RedeemLoginToken(ctx context.Context, hash [32]byte, machine account.Machine, now time.Time) (account.Machine, account.Member, error)
	Grant(ctx context.Context, hash [32]byte) (account.Grant, error)
}

// Hub is one node of the hosted surface. Make it with New, then Run it.
type Hub struct {
	cfg      Config
	records  Records
	live     *registry.Registry
	log      *slog.Logger
	room     room
	underway underway
	keys     keyring
	ledger   *ledger.Ledger
	traces   *ledger.Traces
	turns    *ledger.Turns
	edge     *gateway.Edge
	api      *api.API
	site     *site.Site
	tunnels  tunnels
	admitted chan struct{} // a place for each tunnel in its handshake
	paces    paces
	changed  atomic.Pointer[time.Time] // when facts of the store moved last; nil: never
}

// New makes a hub over what it keeps and who is connected. The registry's
// OnChange and OnFree are to call the hub's OnChange and OnMachine.
func New(cfg Config, records Records, live *registry.Registry) *Hub {
	cfg = cfg.withDefaults()
	h := &Hub{
		cfg: cfg, records: records, live: live, log: cfg.Log,
		ledger:   ledger.New(records, cfg.Journal, cfg.Log),
		traces:   ledger.NewTraces(records, cfg.Log),
		turns:    ledger.NewTurns(records, cfg.KeepResponses, cfg.Log),
		admitted: make(chan struct{}, cfg.Admissions),
	}
	h.tunnels.most = max(cfg.Machines, 0)
	h.underway.maxRunning, h.underway.maxWaiting = max(cfg.Running, 0), max(cfg.Waiting, 0)
	h.room.now, h.room.moved = h.now, func() { h.site.Stir() }
	edge := cfg.Edge
	edge.Backend, edge.Identify, edge.Log = h, h.Identify, cfg.Log
	edge.Count = h.count
	if cfg.KeepResponses > 0 {
		edge.Turns = &gateway.Turns{Keep: h.turns.Keep, Load: h.turns.Load, Forget: h.turns.Forget}
	}
	edge.Finished = func(call *gateway.Call, out gateway.Outcome) {
		h.ledger.End(record(call, out))
		h.traces.Add(storiesOf(call, out))
		if out.Code == "" {
			h.served(call)
		}
	}
	edge.Refused = func(call *gateway.Call, out gateway.Outcome) {
		if out.Code != string(fault.RateLimitExceeded) { // a flood of those would wash away what is worth telling
			h.traces.Add(storiesOf(call, out))
		}
	}
	h.edge = gateway.New(edge)
	h.api = h.newAPI()
	h.site = h.newSite()
	return h
}

// Handler is the hub's public address: the hosted routes, the members' pages and
// their API under /api/, GET /tunnel for machines and POST /login for a machine
// that has a token.
func (h *Hub) Handler() http.Handler {
	tunnel, login := h.guarded(h.acceptTunnel), h.guarded(h.login)
	serve := func(w http.ResponseWriter, r *http.Request) {
		// No mux: it would clean paths, which the edge wants as they came.
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/v1/"): // first: it is nearly all there is
			h.edge.ServeHTTP(w, r)
		case r.Method == http.MethodGet && path == "/tunnel":
			tunnel(w, r)
		case r.Method == http.MethodPost && path == "/login":
			login(w, r)
		case strings.HasPrefix(path, "/api/"):
			h.api.ServeHTTP(w, r)
		case h.site.Serves(r):
			h.site.ServeHTTP(w, r)
		default:
			h.edge.ServeHTTP(w, r)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, proxied := h.cfg.Clients.Resolve(r)
		if proxied && r.URL.Path != "/tunnel" { // those are counted by machine
			leave, err := h.cfg.Clients.Admit(r)
			if err != nil {
				h.edge.Refuse(w, r, err)
				return
			}
			defer leave()
		}
		serve(w, r)
	})
}

// TakeUp brings what an earlier start left in the journal to the database. It
// comes before the registry's first look there, which counts the day's calls of
// each share.
func (h *Hub) TakeUp(ctx context.Context) error { return h.ledger.Flush(ctx) }

// Run keeps the hub's books until ctx ends; what is pending is written first.
func (h *Hub) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.ledger.Run(ctx) })
	group.Go(func() error { return h.traces.Run(ctx) })
	group.Go(func() error { return h.turns.Run(ctx) })
	group.Go(func() error { return h.recheck(ctx) })
	group.Go(func() error { return h.site.Run(ctx) })
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// recheck lets waiting calls decide anew, looking each second whether time may
// have changed something: sharing hours open and close without anybody telling.
// It also sees to calls that run while the store cannot be read.
func (h *Hub) recheck(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			h.room.tick(now)
			h.recallUnsure(now)
		case <-ctx.Done():
			return nil
		}
	}
}

// OnChange takes in that facts of the store moved (nil: any of them): keys are
// looked up anew, calls decide anew that wait for what the changes may concern,
// and what runs by a key or a share that ended ends.
func (h *Hub) OnChange(changes []fleet.Change, whom fleet.Affected) {
	now := time.Now()
	h.changed.Store(&now) // before recall looks at what is underway
	h.keys.forget()
	h.site.OnChange(changes)
	h.recall(changes)
	h.room.recheck(whom)
}

// OnMachine takes in that a machine came, went or changed: those who wait for
// what it offers decide anew.
func (h *Hub) OnMachine(id fleet.MachineID) {
	h.site.Stir()
	if machine := h.live.Snapshot().Machine(id); machine != nil {
		h.room.changed(machine)
	}
}

// Models lists what the caller reaches now: models on online machines, whatever
// their state, sorted by id, each once, by its best machine (decisions 5).
func (h *Hub) Models(_ context.Context, caller gateway.Caller) ([]gateway.Model, error) {
	return listModels(h.live.Snapshot(), caller, time.Now()), nil
}
