// Package daemon is kith on a member's own machine: the local surface for programs
// there, the machine's end of the tunnel for calls of the hub, and the socket that the
// commands use. It decides who may use this machine's engines now. It knows the hub
// only by its address.
package daemon

import (
	"context"
	"crypto/rand"
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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/tunnel"
)

// Config configures a Daemon.
type Config struct {
	// Home is the folder of the credential, the saved state and the socket
	// (KITH_HOME). It is created with mode 0700 if it does not exist.
	Home string
	// Listen is the address of the local surface: a literal loopback address with a
	// port; empty is 127.0.0.1:8701. Any other address is refused, because the local
	// surface requires no key.
	Listen string
	// NoBackend says that this build has no engine of its own (spec/api.md#no-backend).
	NoBackend bool
	// Origins are those of web pages that may call the local surface.
	Origins []string
	// Rate limits all requests of the local surface together; zero is no limit.
	Rate gateway.Rate
	// Name is the machine's name at the hub.
	Name string
	// Version is the program's version, for status.
	Version string
	// Own are the engines that kith runs, until OfferOwn changes them: the one compiled
	// in, or a process for each model.
	Own []*engine.Engine
	// Discovery names the addresses of engines.
	Discovery engine.Config
	// Audio is the owner's speech engine, if its address is set. A zero MaxUpload is
	// DefaultMaxUpload.
	Audio engine.AudioConfig
	// Upstreams are services elsewhere that the owner has an account with.
	Upstreams []engine.UpstreamConfig
	// Sharing holds the configured values, which the owner can change later.
	Sharing Sharing
	// Models are the only models offered to the hub; empty: all. They bind the owner's
	// calls from elsewhere too.
	Models []fleet.ModelID
	// Groups are the names of the only groups whose members may use this machine;
	// nil: all that its owner is in.
	Groups []string
	// Unshared keeps the tunnel closed: no call of the hub runs here. Local calls may
	// still be sent to the hub.
	Unshared bool
	// Reach narrows what local calls reach through the hub.
	Reach fleet.Narrow
	// SharedCache lets callers of the hub use the prompt cache of an engine that cannot
	// keep callers apart (engine.Request.SharedCache).
	SharedCache bool
	// ReloadConfig reads the configuration again and calls Reload; nil if there is no
	// configuration file.
	ReloadConfig func(context.Context) (ReloadResult, error)
	// Spool holds the bodies of calls and of their responses, those of the hub's calls
	// as one member's; nil is a spool in memory without limits.
	Spool *spool.Spool
	// PowerPolicy says when this machine pauses by itself.
	PowerPolicy PowerPolicy
	// TLS adds roots for connections to the hub; nil is the system's.
	TLS *tls.Config
	// Log is the daemon's log, also for Discovery, Audio and Upstreams. It never holds a
	// prompt, an answer or a secret.
	Log *slog.Logger

	// Dial and ListenOn replace the network; nil is the real one. The simulation has one
	// in memory. network is "tcp" or "unix".
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	ListenOn func(network, address string) (net.Listener, error)
	// Draw is tunnel.Dialer's.
	Draw func() uint64
}

// DefaultMaxUpload is the largest clip for transcription, in bytes, if the
// configuration names none.
const DefaultMaxUpload = 25 << 20

// defaultListen is the usual address of the local surface.
const defaultListen = "127.0.0.1:8701"

// Daemon is one machine's daemon. New returns one; Run is called once.
type Daemon struct {
	config    Config // as New got it
	log       *slog.Logger
	started   time.Time
	address   netip.AddrPort // as configured; the port may be 0
	settings  *settings
	finder    *engine.Finder
	audio     *engine.Audio // nil: none is configured
	offers    *offers
	admission admission
	power     powerState
	// hubCounts and localCounts limit token counts; the hub's do not delay the owner's.
	hubCounts, localCounts *semaphore.Weighted
	hubTransport           http.RoundTripper         // to any hub
	hubClient              atomic.Pointer[hubClient] // nil: not signed in
	policy                 atomic.Pointer[policy]
	instance               string        // random, of this process
	reconnectNow           chan struct{} // one request for another tunnel, see reconnect
	discoverNow            chan struct{} // one request to check the engines
	checkAudioNow          chan struct{} // one request to check the audio engine
	checkUpstreamsNow      chan struct{} // one request to check the upstreams
	ready                  chan struct{} // closed once the local surface listens

	mu           sync.Mutex
	surface      *gateway.Edge // the local surface
	base         string        // its base URL, with /v1; empty before Run
	tunnel       TunnelStatus
	recentErrors []RecentError
}

// New returns a Daemon. It reads the state and the credential in Home, checks the
// rest of the configuration and starts nothing.
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
		c.Spool, _ = spool.Open("", spool.Limits{}) // without a folder it cannot fail
	}
	c.Discovery.Log, c.Audio.Log = c.Log, c.Log
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
		settings: settings, finder: finder, audio: audio,
		offers:    &offers{finder: finder, audio: audio, upstreams: upstreams, changed: make(chan struct{})},
		hubCounts: semaphore.NewWeighted(maxCounts), localCounts: semaphore.NewWeighted(maxCounts),
		hubTransport: tunnel.HubTransport(c.Dial, c.TLS),
		instance:     rand.Text(),
		reconnectNow: make(chan struct{}, 1), discoverNow: make(chan struct{}, 1), checkAudioNow: make(chan struct{}, 1), checkUpstreamsNow: make(chan struct{}, 1), ready: make(chan struct{}),
	}
	d.policy.Store(c.policy())
	d.surface = d.newSurface(address.Port())
	d.offers.own.Store(&c.Own)
	d.admission.onLocal, d.admission.yields = d.offers.setChanged, c.PowerPolicy.Yield
	d.power.wakelock = host.Wakelock{
		Command: c.PowerPolicy.Awake, OnError: func(err error) { d.recordError("%v", err) },
	}
	d.setTunnel(func(t *TunnelStatus) { t.State = TunnelOff })
	return d, nil
}

// OfferOwn replaces the engines that kith runs. Calls that one of them runs go on.
func (d *Daemon) OfferOwn(engines []*engine.Engine) {
	d.offers.own.Store(&engines)
	d.offers.setChanged()
}

// ReportError adds what went wrong outside this package to the status.
func (d *Daemon) ReportError(format string, args ...any) { d.recordError(format, args...) }

// loopback parses the address of the local surface. It refuses a name, which may
// resolve to another address later.
func loopback(listen string) (netip.AddrPort, error) {
	if listen == "" {
		listen = defaultListen
	}
	address, err := netip.ParseAddrPort(listen)
	if err != nil {
		return address, fmt.Errorf("cannot listen on %q: give a loopback address and a port, like %s", listen, defaultListen)
	}
	if a := address.Addr(); !a.IsLoopback() || a.Is4In6() || a.Zone() != "" {
		return address, fmt.Errorf("cannot listen on %s: the local surface requires no key, so it may only be on a loopback address, like %s; to reach this machine from elsewhere, sign in with `kith login`", listen, defaultListen)
	}
	return address, nil
}

// Run looks for engines, serves the local surface and the socket, and keeps a tunnel
// to the hub while this machine is signed in. It returns nil when ctx ends, after
// running responses had a few seconds to finish, or the error of a part that fails.
func (d *Daemon) Run(ctx context.Context) error {
	local, socket, err := d.listen()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	// Before the first call is served, so that it is not refused for lack of an engine.
	d.finder.Probe(ctx)
	d.discoverLate()
	g.Go(func() error { return d.serve(ctx, local, d.Handler()) })
	g.Go(func() error { return d.serve(ctx, socket, d.socketSurface(d.Handler())) })
	g.Go(func() error { return d.watchEngines(ctx) })
	g.Go(func() error { return d.runDiscovery(ctx) })
	g.Go(func() error { return d.runAudioChecks(ctx) })
	g.Go(func() error { return d.runUpstreamChecks(ctx) })
	g.Go(func() error { return d.runTunnels(ctx) })
	g.Go(func() error { return d.endTimedPauses(ctx) })
	g.Go(func() error { return d.runPowerPolicy(ctx) })
	g.Go(func() error { return d.power.wakelock.Run(ctx) })
	close(d.ready)
	d.log.Info("the daemon listens", "address", d.base, "engines", len(d.offers.engines()))
	return g.Wait()
}

// Ready is closed once the local surface listens.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// Handler returns the local surface. It serves requests to the port on which Run
// listens, before that to the configured one.
func (d *Daemon) Handler() http.Handler {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.surface
}

// newSurface returns the local surface of a port.
func (d *Daemon) newSurface(port uint16) *gateway.Edge {
	return gateway.New(gateway.Config{
		Backend: awakeBackend{d},
		Base:    strings.TrimSuffix(d.base, "/v1"), Version: d.config.Version,
		Guard:  &gateway.Guard{Port: int(port), Origins: d.config.Origins},
		Rate:   d.policy.Load().rate,
		Limits: gateway.Limits{Upload: d.config.Audio.MaxUpload},
		Count:  d.count,
		Log:    d.log,
	})
}
