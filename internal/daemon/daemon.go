// Package daemon is kith on a member's own machine: the local surface for the
// programs there, the machine's end of the tunnel for calls of the hub, and the
// socket the commands speak to. It decides who may use this machine's engines
// just now; it knows the hub only by its address.
package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/spool"
)

// Config is what a daemon needs to know.
type Config struct {
	// Home is the folder of the credential, the saved state and the socket
	// (KITH_HOME); it is made, 0700, if it is not there.
	Home string
	// Listen is the address of the local surface: a loopback literal with a
	// port. Empty: 127.0.0.1:8701. Any other address is refused: nobody is asked
	// for a key there (S5).
	Listen string
	// Origins are web pages that may call the local surface; empty: none may.
	Origins []string
	// Rate limits the local surface, all requests together (S8); zero: no limit.
	Rate gateway.Rate
	// Name is what this machine calls itself towards the hub.
	Name string
	// Version is the program's own, for status.
	Version string
	// Builtin is the engine compiled in; nil: none, or one that OfferBuiltin adds.
	Builtin *engine.Engine
	// Servers are processes that kith runs, each for one model; nil: none.
	Servers []*engine.Engine
	// Discovery says where to look for engines. Its Log may be left nil.
	Discovery engine.Config
	// Audio is the owner's engine for speech, if its address is set. Its Log may be
	// left nil; no MaxUpload is DefaultUpload.
	Audio engine.AudioConfig
	// Upstreams are services elsewhere that the owner has an account with.
	Upstreams []engine.UpstreamConfig
	// Sharing holds the first values of what the owner may change later.
	Sharing Sharing
	// Models are the only ones offered to the hub, for the owner's own calls from
	// elsewhere, too; empty: all.
	Models []fleet.ModelID
	// Groups are the names of the only groups whose members may use this machine;
	// nil: all that its owner is in.
	Groups []string
	// Unshared keeps the tunnel closed: nothing of the hub's runs here. Calls of
	// this machine still go to the hub.
	Unshared bool
	// Reread reads the configuration anew and calls Reload; nil: it cannot be.
	Reread func(context.Context) (Reloaded, error)
	// Spool holds the bodies of calls and of their answers, those of the hub as
	// one member's. nil: one without limits, in memory.
	Spool *spool.Spool
	// Comfort is what this machine does for its owner of itself.
	Comfort Comfort
	// TLS adds to the client's side towards the hub (roots); nil: the system's.
	TLS *tls.Config
	// Log is the daemon's log; it never gets a prompt, an answer or a secret.
	Log *slog.Logger

	// Dial and ListenOn stand for the network; nil: the real one. The simulation
	// brings one in memory. network is "tcp" or "unix".
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	ListenOn func(network, address string) (net.Listener, error)
	// Draw is tunnel.Dialer's.
	Draw func() uint64
}

// DefaultUpload is the largest clip that is taken for transcription, in bytes,
// where the configuration does not say (decisions 5).
const DefaultUpload = 25 << 20

// defaultListen is where programs look for the local surface.
const defaultListen = "127.0.0.1:8701"

// Daemon is one machine's daemon. Make it with New; Run lives once.
type Daemon struct {
	config   Config
	log      *slog.Logger
	started  time.Time
	address  netip.AddrPort // as configured; the port may be 0
	settings *settings
	finder   *engine.Finder
	audio    *engine.Audio // nil: none is configured
	board    *board
	desk     desk
	comfort  comfort
	// Who counts for others takes no place from the owner.
	routedCounts, localCounts counters
	hub                       http.RoundTripper      // to whichever hub
	up                        atomic.Pointer[uplink] // nil: not signed in
	policy                    atomic.Pointer[policy]
	signedIn                  chan struct{} // the credential in Home is new
	relook                    chan struct{} // an engine is not what it was: look now
	recheck                   chan struct{} // the same of the audio engine
	ready                     chan struct{} // closed once the local surface listens

	mu       sync.Mutex
	surface  http.Handler // the local one in force
	port     int          // it is for
	base     string       // its base URL
	line     LineStatus
	troubles []Trouble
}

// New reads the state and the credential in Home and checks the rest of the
// configuration; it starts nothing.
func New(c Config) (*Daemon, error) {
	address, err := loopback(c.Listen)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Home, 0o700); err != nil {
		return nil, fmt.Errorf("cannot use the daemon's folder: %w; set KITH_HOME, or [daemon] data, to one that you can write", err)
	}
	if _, err := LoadCredential(c.Home); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	settings, err := openSettings(filepath.Join(c.Home, stateFile), c.Sharing)
	if err != nil {
		return nil, err
	}
	if c.Spool == nil {
		c.Spool, _ = spool.Open("", spool.Limits{}) // without a folder nothing fails
	}
	if c.Discovery.Log == nil {
		c.Discovery.Log = c.Log
	}
	finder, err := engine.NewFinder(c.Discovery)
	if err != nil {
		return nil, err
	}
	audio, err := newAudio(&c)
	if err != nil {
		return nil, err
	}
	upstreams, err := newUpstreams(&c)
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		config: c, log: c.Log, started: time.Now(), address: address,
		settings: settings, finder: finder, audio: audio, board: newBoard(c.Builtin, finder, audio, upstreams),
		routedCounts: make(counters, countersAtOnce), localCounts: make(counters, countersAtOnce),
		hub:      newHubTransport(c.Dial, c.TLS),
		signedIn: make(chan struct{}, 1), relook: make(chan struct{}, 1), recheck: make(chan struct{}, 1), ready: make(chan struct{}),
	}
	d.port = int(address.Port())
	d.surface = d.newSurface(d.port)
	d.policy.Store(c.policy())
	d.board.servers = c.Servers
	d.desk.onLocal, d.desk.yields = d.board.touch, c.Comfort.Yield
	d.comfort.wakelock = host.Wakelock{
		Command: c.Comfort.Awake, OnError: func(err error) { d.trouble("%v", err) },
	}
	d.setLine(func(l *LineStatus) { l.State = LineOff })
	return d, nil
}

// OfferBuiltin adds the engine compiled in to what the daemon serves, where it was
// not ready when the daemon was made.
func (d *Daemon) OfferBuiltin(e *engine.Engine) {
	d.board.builtin.Store(e)
	d.board.touch()
}

// loopback reads the address of the local surface. Only a literal is taken: a
// name may mean another address tomorrow (trust 2, 4).
func loopback(listen string) (netip.AddrPort, error) {
	if listen == "" {
		listen = defaultListen
	}
	address, err := netip.ParseAddrPort(listen)
	if err != nil {
		return address, fmt.Errorf("cannot listen on %q: give a loopback address and a port, like %s", listen, defaultListen)
	}
	if a := address.Addr(); !a.IsLoopback() || a.Is4In6() || a.Zone() != "" {
		return address, fmt.Errorf("cannot listen on %s: the local surface asks nobody for a key, so it may only be on a loopback address, like %s; to reach this machine from elsewhere, sign in with `kith login`", listen, defaultListen)
	}
	return address, nil
}

// Run is the daemon's life: it looks for engines, serves the local surface and
// the socket, and keeps the line to the hub while signed in. It ends with ctx
// (nil), after running answers had a few seconds to finish, or with the error
// of what cannot work.
func (d *Daemon) Run(ctx context.Context) error {
	local, socket, err := d.listen()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	// Once before anything is served: a call that comes first thing must not be
	// told that there is no engine.
	d.finder.Probe(ctx)
	g.Go(func() error { return d.serve(ctx, local, d.Handler()) })
	g.Go(func() error { return d.serve(ctx, socket, d.socketSurface(d.Handler())) })
	g.Go(func() error { return d.watchEngines(ctx) })
	g.Go(func() error { return d.keepLooking(ctx) })
	g.Go(func() error { return d.keepAudio(ctx) })
	g.Go(func() error { return d.keepUpstreams(ctx) })
	g.Go(func() error { return d.keepLine(ctx) })
	g.Go(func() error { return d.keepPause(ctx) })
	g.Go(func() error { return d.keepComfort(ctx) })
	g.Go(func() error { return d.comfort.wakelock.Run(ctx) })
	close(d.ready)
	d.log.Info("the daemon listens", "address", d.base, "engines", len(d.board.engines()))
	return g.Wait()
}

// Ready is closed once the local surface listens.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// Handler is the local surface (S4). Before Run it answers to the configured
// port.
func (d *Daemon) Handler() http.Handler { return http.HandlerFunc(d.current) }
