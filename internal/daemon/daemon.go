// Package daemon is kith on a member's machine: the local surface for programs there, the
// machine's end of the tunnel for calls of the hub, and the socket for the commands. It
// decides who may use the machine's engines now. All it knows about the hub is its
// address.
package daemon

import (
	"cmp"
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

	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/tunnel"
)

// Config configures a Daemon.
type Config struct {
	// Home is the folder with the credential, the saved state and the socket (KITH_HOME).
	// It is created with mode 0700 if it does not exist.
	Home string
	// Listen is the address of the local surface, a literal loopback address with a port.
	// Empty means 127.0.0.1:8701. Any other address is refused, because the local surface
	// requires no key.
	Listen string
	// NoBackend reports that this build has no built-in engine (spec/api.md#no-backend).
	NoBackend bool
	// Origins are the origins of web pages that may call the local surface.
	Origins []string
	// Rate limits all requests of the local surface together; zero is no limit.
	Rate gateway.Rate
	// Name is the machine's name at the hub.
	Name string
	// Version is the program's version, for status.
	Version string
	// Own are the engines that kith runs, until OfferOwn replaces them: the built-in
	// engine, or a process per model.
	Own []*engine.Engine
	// Discovery configures the addresses of engines.
	Discovery engine.Config
	// Audio is the owner's speech engine, if it has an address. A zero MaxUpload means
	// DefaultMaxUpload.
	Audio engine.AudioConfig
	// Upstreams are services elsewhere that the owner has an account with.
	Upstreams []engine.UpstreamConfig
	// Sharing are the configured values, which the owner can change later.
	Sharing Sharing
	// Models are the models offered to the hub; empty: all. The restriction applies to the
	// owner's own remote calls, too.
	Models []fleet.ModelID
	// Groups are the names of the groups whose members may use this machine; nil: all
	// groups of its owner.
	Groups []string
	// Unshared keeps the tunnel closed, so that no call of the hub runs here. Local calls
	// may still be sent to the hub.
	Unshared bool
	// Reach restricts what local calls can reach through the hub.
	Reach fleet.KeyReach
	// Sealed is whether calls to and from other machines are sealed; empty: they are not.
	Sealed sealed.Mode
	// Files carries out an act on the model files that kith serves; nil if it serves none.
	// The text of its errors is sent to the owner.
	Files func(context.Context, fleet.FileAct) (fleet.ModelFiles, error)
	// FilesHere lets only commands on this machine use Files, and not the hub.
	FilesHere bool
	// SharedCache lets other members' calls use the prompt cache of an engine with a
	// single shared cache (engine.Request.SharedCache).
	SharedCache bool
	// ReloadConfig reads the configuration again and calls Reload; nil if there is no
	// configuration file.
	ReloadConfig func(context.Context) (ReloadResult, error)
	// Spool holds the bodies of calls and responses. Those of the hub's calls count as one
	// member's. Nil means a spool in memory without limits.
	Spool *spool.Spool
	// CacheKey makes the names of callers' prompt caches unpredictable. With the same key
	// they are the same after a restart. Empty means a random one.
	CacheKey string
	// Computer is described to the hub and in the status; nil: it is not read.
	Computer *host.Computer
	// PowerPolicy configures when this machine pauses automatically.
	PowerPolicy PowerPolicy
	// TLS contains additional roots for connections to the hub; nil means the system's.
	TLS *tls.Config
	// Log is the log of the daemon, Discovery, Audio and Upstreams. It never contains a
	// prompt, an answer or a secret.
	Log *slog.Logger

	// Dial and ListenOn replace the network; nil means the real one. The simulation uses a
	// network in memory. network is "tcp" or "unix".
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	ListenOn func(network, address string) (net.Listener, error)
	// Draw is passed to tunnel.Dialer.
	Draw func() uint64
}

// DefaultMaxUpload is the default limit for a clip to transcribe, in bytes.
const DefaultMaxUpload = 25 << 20

// defaultListen is the default address of the local surface.
const defaultListen = "127.0.0.1:8701"

// Daemon is one machine's daemon. Create it with New and call Run once.
type Daemon struct {
	config    Config // as passed to New
	log       *slog.Logger
	started   time.Time
	address   netip.AddrPort // as configured; port 0 means any port
	settings  *settings
	finder    *engine.Finder
	audio     *engine.Audio // nil: not configured
	offers    *offers
	admission admission
	calls     callsHere
	power     powerState
	// hubCounts and localCounts limit concurrent token counts, separately so that the
	// hub's counts do not delay the owner's.
	hubCounts, localCounts *semaphore.Weighted
	hubTransport           http.RoundTripper         // to any hub
	hubClient              atomic.Pointer[hubClient] // nil: not signed in
	policy                 atomic.Pointer[policy]
	fileActs               fileLimits
	hardware               atomic.Pointer[fleet.MachineFacts] // without engines; nil: not read
	gauges                 gaugeReader
	instance               string        // a random id of this process
	reconnectNow           trigger       // of a new tunnel; see reconnect
	discoverNow            trigger       // of a check of the engines
	checkAudioNow          trigger       // of a check of the audio engine
	checkUpstreamsNow      trigger       // of a check of the upstreams
	ready                  chan struct{} // closed once the local surface listens

	mu           sync.Mutex
	surface      *gateway.Edge // the local surface
	base         string        // its base URL, with /v1; empty before Run
	tunnel       TunnelStatus
	recentErrors []RecentError
}

// New returns a Daemon. It reads the state and the credential in Home and checks the rest
// of the configuration, but starts nothing.
func New(c Config) (*Daemon, error) {
	address, err := loopback(c.Listen)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Home, 0o700); err != nil {
		return nil, fmt.Errorf("cannot use the daemon's folder: %w; "+
			"set KITH_HOME, or [daemon] data, to one that you can write", err)
	}
	if _, err := LoadCredential(c.Home); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if c.Sealed.IsOn() {
		if err := sealed.CheckFiles(c.Home); err != nil {
			return nil, err
		}
	}
	settings, err := openSettings(filepath.Join(c.Home, stateFile), c.Sharing)
	if err != nil {
		return nil, err
	}
	c.CacheKey = cmp.Or(c.CacheKey, rand.Text())
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
		reconnectNow: make(trigger, 1), discoverNow: make(trigger, 1), checkAudioNow: make(trigger, 1),
		checkUpstreamsNow: make(trigger, 1), ready: make(chan struct{}), fileActs: newFileLimits(),
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

// OfferOwn replaces the engines that kith runs. Calls running on the old ones continue.
func (d *Daemon) OfferOwn(engines []*engine.Engine) {
	d.offers.own.Store(&engines)
	d.offers.setChanged()
}

// ReportError adds an error from outside this package to the status.
func (d *Daemon) ReportError(format string, args ...any) { d.recordError(format, args...) }

// loopback parses the address of the local surface. It refuses host names, because they
// may later resolve to a different address.
func loopback(listen string) (netip.AddrPort, error) {
	if listen == "" {
		listen = defaultListen
	}
	address, err := netip.ParseAddrPort(listen)
	if err != nil {
		return address, fmt.Errorf("cannot listen on %q: give a loopback address and a port, like %s", listen,
			defaultListen)
	}
	if a := address.Addr(); !a.IsLoopback() || a.Is4In6() || a.Zone() != "" {
		return address, fmt.Errorf("cannot listen on %s: the local surface requires no key, "+
			"so it may only be on a loopback address, like %s; to reach this machine from elsewhere, "+
			"sign in with `kith login`", listen, defaultListen)
	}
	return address, nil
}

// Run discovers engines, serves the local surface and the socket, and keeps a tunnel to
// the hub open while this machine is signed in. It returns nil after ctx ended and
// running responses had a few seconds to finish, or the error of a part that fails.
func (d *Daemon) Run(ctx context.Context) error {
	local, socket, err := d.listen()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	// Before the first call, so that it is not refused for lack of an engine.
	d.finder.Probe(ctx)
	d.discoverLate()
	g.Go(func() error { return d.serve(ctx, local, d.Handler()) })
	g.Go(func() error { return d.serve(ctx, socket, d.socketSurface(d.Handler())) })
	g.Go(func() error { return d.watchEngines(ctx) })
	g.Go(func() error { return d.runDiscovery(ctx) })
	g.Go(func() error { return d.runAudioChecks(ctx) })
	g.Go(func() error { return d.runUpstreamChecks(ctx) })
	g.Go(func() error { return d.runTunnels(ctx) })
	g.Go(func() error { return d.runSeals(ctx) })
	g.Go(func() error { return d.endTimedPauses(ctx) })
	g.Go(func() error { return d.runPowerPolicy(ctx) })
	g.Go(func() error { return d.runHardware(ctx) })
	g.Go(func() error { return d.power.wakelock.Run(ctx) })
	close(d.ready)
	d.log.Info("the daemon listens", "address", d.base, "engines", len(d.offers.engines()))
	return g.Wait()
}

// Ready returns a channel that is closed once the local surface listens.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// Handler returns the handler for the local surface. It accepts requests for the port
// that Run listens on, or for the configured port before that.
func (d *Daemon) Handler() http.Handler {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.surface
}

// newSurface returns the local surface for a port.
func (d *Daemon) newSurface(port uint16) *gateway.Edge {
	return gateway.New(gateway.Config{
		Backend: awakeBackend{d},
		Base:    strings.TrimSuffix(d.base, "/v1"), Version: d.config.Version,
		Guard:    &gateway.Guard{Port: int(port), Origins: d.config.Origins},
		Rate:     d.policy.Load().rate,
		Limits:   gateway.Limits{Upload: d.config.Audio.MaxUpload},
		Count:    d.count,
		Unsent:   func() string { return d.ifSealing(sealed.NotSent) },
		Finished: d.calls.add,
		Log:      d.log,
	})
}
