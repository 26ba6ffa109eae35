package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof" // in http.DefaultServeMux
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/cluster"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/hub"
	"github.com/kith/kith/internal/ledger/journal"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/site"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/store"
)

func (a *app) hub() *cobra.Command {
	var file, listen, data, admin, peerAddress string
	var anyAdmin bool
	read := func() (*hubFile, error) {
		config, err := loadHubFile(a.home, pathHere(file))
		if err != nil {
			return nil, err
		}
		if data != "" {
			config.Hub.Data = pathHere(data)
		}
		err = config.Hub.Listen.set("--listen", listen)
		if err == nil {
			err = config.Peer.Address.set("--peer-address", peerAddress)
		}
		return config, err
	}
	cmd := command("kith hub", func(ctx context.Context, _ []string) error {
		if err := new(address).set("--admin", admin); err != nil {
			return err
		}
		if err := new(loopback).UnmarshalText([]byte(admin)); err != nil && admin != "" && !anyAdmin {
			return wrongUse("cannot use --admin %s: metrics and profiles need no key there; "+
				"take a loopback address such as %s, or add --admin-any where only your own tools reach it", admin, defaultAdmin)
		}
		err := a.runHub(ctx, read, admin, anyAdmin)
		if next := store.WhatToDo(err); next != "" && !strings.Contains(err.Error(), next) {
			err = fmt.Errorf("%w: %s", err, next)
		}
		return err
	})
	cmd.Flags().StringVar(&file, "config", "", "the configuration file (default: hub.toml in KITH_HOME)")
	cmd.Flags().StringVar(&listen, "listen", "", "the public address (default "+defaultHub+")")
	cmd.Flags().StringVar(&data, "data", "", "the data folder (default: hub in KITH_HOME)")
	cmd.Flags().StringVar(&peerAddress, "peer-address", "", "the address at which other hubs reach this one (default: [peer] address)")
	cmd.Flags().StringVar(&admin, "admin", defaultAdmin, "the address of metrics, health and profiles; empty: none")
	cmd.Flags().BoolVar(&anyAdmin, "admin-any", false, "let --admin be an address that other computers reach")
	return cmd
}

// runHub opens a hub, prints its addresses and serves until ctx ends.
func (a *app) runHub(ctx context.Context, read func() (*hubFile, error), admin string, anyAdmin bool) error {
	hangups := make(chan os.Signal, 1) // buffered, so that one during the start is not lost
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	config, err := read()
	if err != nil {
		return err
	}
	tuneMemory()
	level := new(slog.LevelVar)
	level.Set(config.Log.level())
	p, err := openHub(ctx, config, config.Log.to(a.err, level))
	if err != nil {
		return err
	}
	defer p.close()
	p.read, p.level, p.hangups = read, level, hangups
	at := struct {
		Hub   string `json:"hub"`
		Admin string `json:"admin,omitempty"`
		// FirstLink is a one-time link that creates the account of the hub's first
		// operator. It is printed only to a terminal; a log gets the name of its file.
		FirstLink     string `json:"first_link,omitempty"`
		FirstLinkFile string `json:"first_link_file,omitempty"`
	}{Hub: p.base}
	if at.FirstLink, at.FirstLinkFile, err = p.firstLink(ctx); err != nil {
		return err
	}
	if !terminal(a.out) {
		at.FirstLink = ""
	}
	if admin != "" {
		listener, err := listenTCP(ctx, admin, "--admin")
		if err != nil {
			return err
		}
		at.Admin = "http://" + listener.Addr().String()
		p.admin = listener
		p.guard = gateway.Guard{Port: listener.Addr().(*net.TCPAddr).Port, AnyHost: anyAdmin}
	}
	err = a.print(at, func() {
		a.say("hub on %s; operator: kith admin --data %s\n", strong(at.Hub+"/v1"), config.Hub.Data)
		if at.FirstLinkFile != "" {
			a.say("no operator can sign in yet: make the first account, with the link in this file, once, within a day:\n  %s\n", at.FirstLinkFile)
		}
		if at.FirstLink != "" {
			a.say("the link is\n  %s\n", strong(at.FirstLink))
		}
	})
	atOnce, stop := secondSignal(ctx)
	defer stop()
	p.atOnce = atOnce
	return errors.Join(err, p.run(ctx))
}

// firstLinkFile is the file in the data folder with the link to the first operator's
// account. It exists until the link is used, and only this user can read it.
const firstLinkFile = "first-link"

// firstLink creates the link to the first operator's account and writes it to a file.
// Both are empty if an operator can already sign in.
func (p *hubProcess) firstLink(ctx context.Context) (link, file string, err error) {
	p.removeFirstLink() // an older link is no longer valid
	link, err = p.hub.FirstLink(ctx)
	if err != nil || link == "" {
		return "", "", err
	}
	file = filepath.Join(p.config.Hub.Data, firstLinkFile)
	if err := os.WriteFile(file, []byte(link+"\n"), 0o600); err != nil {
		return "", "", fmt.Errorf("cannot write the link to the first account: %w; choose another folder with --data", err)
	}
	return link, file, nil
}

func (p *hubProcess) removeFirstLink() {
	err := os.Remove(filepath.Join(p.config.Hub.Data, firstLinkFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.log.Warn("cannot remove the file with the first link, which is no longer valid", "error", err)
	}
}

// hubProcess is one hub with its files, sockets and servers.
type hubProcess struct {
	config      *hubFile
	log         *slog.Logger
	base        string // its address for members, without /v1
	records     *store.DB
	journal     *journal.Journal
	live        *registry.Registry
	hub         *hub.Hub
	public      *http.Server
	certificate certificateSource // for public; nil: plain HTTP
	clients     *gateway.Clients
	spool       *spool.Spool
	listener    net.Listener
	operator    net.Listener
	admin       net.Listener    // metrics, health and profiles; nil: none
	guard       gateway.Guard   // for admin
	atOnce      context.Context // ends when running calls must end at once; nil: only the time limit applies

	// read reads the configuration again; level is the log's. nil: there is no file.
	read      func() (*hubFile, error)
	level     *slog.LevelVar
	hangups   chan os.Signal // SIGHUP
	reloading sync.Mutex     // held during a reload
	inForce   *hubFile       // config with the changes by reload

	cluster     *cluster.Cluster // the other hubs; nil: there are none
	peers       net.Listener     // for connections from the other hubs
	peerAddress string           // the address of peers for the other hubs to dial
}

// slowStore is how long a hub waits for its database before it reports that.
const slowStore = 2 * time.Second

// openHub opens the data of a hub, then its addresses. The caller must close the
// hubProcess, even after run.
func openHub(ctx context.Context, config *hubFile, log *slog.Logger) (p *hubProcess, err error) {
	p = &hubProcess{config: config, inForce: config, log: log}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if err := os.MkdirAll(config.Hub.Data, 0o700); err != nil {
		if next := host.WhoseFolder(config.Hub.Data); next != "" {
			return p, fmt.Errorf("cannot make the hub's data folder: %w%s", err, next)
		}
		return p, fmt.Errorf("cannot make the hub's data folder: %w; choose another with --data", err)
	}
	if p.journal, err = journal.Open(filepath.Join(config.Hub.Data, "ledger-")); err != nil {
		return p, err
	}
	if err := checkDatabaseIsThere(config.database().Path, p.journal); err != nil {
		return p, err
	}
	slow := time.AfterFunc(slowStore, func() { log.Info("opening the database takes long: it does not answer yet, or is brought up to date") })
	p.records, err = store.Open(ctx, config.database())
	if slow.Stop(); err != nil {
		return p, err
	}
	if p.spool, err = openSpool(config.Hub.Data, config.Limits.Spool.Bytes, config.Limits.Member.Bytes); err != nil {
		return p, err
	}
	if p.listener, err = listenTCP(ctx, config.Hub.Listen.Text, "--listen"); err != nil {
		return p, err
	}
	if err = p.openCertificate(p.listener.Addr().(*net.TCPAddr).Port); err != nil {
		return p, err
	}
	if p.operator, err = daemon.ListenSocket(filepath.Join(config.Hub.Data, "admin.sock")); err != nil {
		return p, err
	}
	if err = p.openPeers(ctx); err != nil {
		return p, err
	}
	if err = p.startNode(ctx); err != nil {
		return p, err
	}
	p.base = config.publicURL(p.listener.Addr())
	if warning := config.plainWarning(p.listener.Addr()); warning != "" {
		log.Warn(warning)
	}
	p.clients = gateway.NewClients(config.proxies(), int(config.RateLimit.Connections), log)
	p.listener = p.clients.Listen(p.listener)
	p.wire()
	p.public = gateway.NewServer(p.hub.Handler(), log)
	p.public.ConnState = p.clients.ConnState
	if p.certificate != nil {
		p.public.TLSConfig = p.certificate.TLS()
	}
	return p, nil
}

// checkDatabaseIsThere refuses to create a new embedded database in the folder of a hub
// that had one: the calls in its journal belong to members of the old database.
func checkDatabaseIsThere(path string, j *journal.Journal) error {
	if path == "" || j.Holds() == 0 {
		return nil
	}
	info, err := os.Stat(path)
	state := "is empty"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		state = "is not there"
	case err != nil || info.Size() > 0:
		return nil // store.Open reports this error
	}
	return fmt.Errorf("cannot open the hub's database: %s %s, and the journal beside it has %s of calls; "+
		"restore a backup with `kith admin restore`, or move %s away to begin a new hub", path, state, count(j.Holds(), "record"), filepath.Join(filepath.Dir(path), "ledger-*"))
}

// publicURL returns the address for members, given the address that the hub listens on.
func (c *hubFile) publicURL(listens net.Addr) string {
	_, port, _ := net.SplitHostPort(listens.String())
	switch {
	case c.Hub.PublicURL.Text != "":
		return c.Hub.PublicURL.Text
	case c.TLS.ACME && port == "443":
		return "https://" + c.TLS.domains()[0]
	case c.TLS.ACME:
		return "https://" + net.JoinHostPort(c.TLS.domains()[0], port)
	case c.TLS.Certificate != "":
		return "https://" + listens.String()
	}
	return "http://" + listens.String()
}

// plainWarning returns a warning if the public address is open to a network without TLS
// and without a proxy that could terminate TLS. Otherwise it returns "".
func (c *hubFile) plainWarning(listens net.Addr) string {
	at, err := netip.ParseAddrPort(listens.String())
	if err != nil || at.Addr().Unmap().IsLoopback() || c.TLS.ACME || c.TLS.Certificate != "" || len(c.Hub.Proxies) > 0 {
		return ""
	}
	return fmt.Sprintf("the hub listens on %s without TLS: keys and prompts cross the network in the clear, and machines elsewhere do not connect; "+
		"set [tls], or name the proxy in front of it in [hub] proxies", listens)
}

// startNode adds this hub to those that share the database, and logs problems that put
// the database at risk.
func (p *hubProcess) startNode(ctx context.Context) error {
	warning, err := p.records.Warning(ctx)
	if err != nil {
		return err
	}
	if warning != "" {
		p.log.Warn(warning)
	}
	var pin string
	if p.cluster != nil {
		pin = p.cluster.Pin()
	}
	return p.records.StartNode(ctx, account.Node{
		Address: p.peerAddress, Pin: pin,
		Name: p.config.Hub.Node.Text, Incarnation: rand.Text(), Region: p.config.Hub.Region.Text,
		Version: thisBuild().Version, State: account.NodeServing, Started: p.records.Now(),
	})
}

// wire creates the registry and the hub that uses it.
func (p *hubProcess) wire() {
	p.live = registry.New(registry.Config{
		Node: p.config.Hub.Node.Text, Region: p.config.Hub.Region.Text, Facts: p.records.Facts(p.config.Hub.Region.Text), Log: p.log,
	})
	config := p.hubConfig(p.config)
	config.Cluster = p.cluster
	p.hub = hub.New(config, p.records, p.live)
}

// hubConfig converts a configuration file to the hub's configuration.
func (p *hubProcess) hubConfig(c *hubFile) hub.Config {
	limits := c.Limits
	keep := c.Responses.Keep.Duration
	if keep == 0 {
		keep = -1 // off
	}
	return hub.Config{
		Node:   c.Hub.Node.Text,
		Region: c.Hub.Region.Text, Regions: c.otherRegions(), Clients: p.clients, DB: p.records,
		Wait: limits.Wait.Duration, WaitStream: limits.WaitStream.Duration, FirstByte: limits.FirstByte.Duration,
		Running: bound(limits.Running), Waiting: bound(limits.Waiting), Machines: bound(limits.Machines),
		KeepResponses: keep, Drain: max(c.Hub.Drain.Duration, 1), // 0 would mean the default
		Edge: gateway.Config{
			Spool: p.spool,
			Base:  p.base, Version: thisBuild().Version, Origins: convert(c.Hub.CORS, func(o origin) string { return o.Text }),
			Rate: gateway.Rate{PerSecond: float64(c.RateLimit.RPS), Burst: int(c.RateLimit.Burst)},
			Limits: gateway.Limits{
				Body: limits.Body.Bytes, Upload: limits.Upload.Bytes, FirstByte: limits.FirstByte.Duration,
				Idle: limits.Idle.Duration, Stream: limits.Total.Duration,
			},
		},
		Journal: p.journal,
		Backups: hub.Backups{
			Every: c.Backup.Every.Duration, Keep: int(c.Backup.Keep),
			Folder: cmp.Or(c.Backup.Folder, filepath.Join(c.Hub.Data, "backups")),
		},
		Site:         site.Config{Base: p.base, SignUp: site.SignUp(c.Site.SignUp.Text), Provider: c.Site.OIDC.provider(), Mail: c.Site.SMTP.mail(), FirstMade: p.removeFirstLink},
		ReloadConfig: p.reload,
		Log:          p.log,
	}
}

// bound converts a limit for hub.Config: 0 is off in the file, and -1 there.
func bound(n uint16) int {
	if n == 0 {
		return -1
	}
	return int(n)
}

// run serves until ctx ends or the node must drain, and its calls have ended (nil), or
// until a part fails.
func (p *hubProcess) run(ended context.Context) error {
	if err := p.hub.FlushJournal(ended); err != nil {
		return fmt.Errorf("cannot take up the ledger of the last start: %w", err)
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ended))
	defer stop()
	group, ctx := errgroup.WithContext(serving)
	group.Go(func() error { return p.live.Run(ctx) })
	group.Go(func() error { return p.hub.Run(ctx) })
	select { // otherwise the hub would refuse calls that it can route
	case <-p.live.Ready():
	case <-ctx.Done():
		return group.Wait()
	case <-ended.Done():
		stop()
		return p.end(group.Wait())
	}
	group.Go(func() error {
		defer stop()
		p.drain(ended, ctx)
		return nil
	})
	group.Go(func() error { return serveHTTP(ctx, p.public, p.listener) })
	if p.certificate != nil {
		group.Go(func() error { return p.certificate.Run(ctx) })
	}
	if p.read != nil {
		group.Go(func() error {
			return onHangup(ctx, p.hangups, p.log, func() error { _, err := p.reload(ctx); return err })
		})
	}
	group.Go(func() error { return serveHTTP(ctx, gateway.NewServer(p.hub.Operator(), p.log), p.operator) })
	if p.cluster != nil {
		group.Go(func() error { return p.hub.ServePeers(ctx, p.peers) })
	}
	if p.admin != nil {
		group.Go(func() error {
			return serveHTTP(ctx, gateway.NewServer(p.guard.Handler(p.adminHandler()), p.log), p.admin)
		})
	}
	return p.end(group.Wait())
}

// end removes this hub from the nodes. err is the error of its parts.
func (p *hubProcess) end(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	if err := p.records.EndNode(ctx); err != nil {
		p.log.Warn("cannot remove this node from the database; it is shown as one that is gone", "error", err)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// drain waits until this hub must shut down, and then lets its calls end and its machines
// move. It returns at once if a part of the hub fails.
func (p *hubProcess) drain(ended, serving context.Context) {
	select {
	case <-ended.Done():
	case <-p.live.DrainAsked():
	case <-serving.Done():
		return
	}
	within, cancel := context.WithTimeout(serving, endWithin)
	if err := p.records.SetNodeState(within, p.config.Hub.Node.Text, account.NodeDraining); err != nil && !errors.Is(err, account.ErrNotFound) {
		p.log.Warn("the other nodes cannot read that this one drains", "error", err)
	}
	cancel()
	atOnce, cancel := context.WithCancel(serving)
	defer cancel()
	if p.atOnce != nil {
		defer context.AfterFunc(p.atOnce, cancel)()
	}
	p.hub.Drain(atOnce, func() { _ = p.listener.Close() })
}

// endWithin limits the hub's last writes to the database.
const endWithin = 5 * time.Second

// secondSignal returns a context that ends at the second signal to end this process.
func secondSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	atOnce, cancel := context.WithCancel(context.WithoutCancel(ctx))
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(signals)
		for range 2 {
			select {
			case <-signals:
			case <-atOnce.Done():
				return
			}
		}
		cancel()
	}()
	return atOnce, cancel
}

// close closes everything that openHub opened. It may be called at any time.
func (p *hubProcess) close() {
	for _, listener := range []net.Listener{p.listener, p.operator, p.admin, p.peers} {
		if listener != nil {
			_ = listener.Close() // run may already have closed it
		}
	}
	if p.journal != nil {
		_ = p.journal.Close() // this also syncs what must not be lost
	}
	if p.records != nil {
		if err := p.records.Close(); err != nil {
			p.log.Error("cannot close the store cleanly; it recovers at the next start", "error", err)
		}
	}
}

// adminHandler serves metrics and profiles; /healthz, which responds while the process
// runs; and /readyz, which reports whether a load balancer may send calls to this hub.
func (p *hubProcess) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.metrics(), promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", p.hub.ServeReady)
	mux.Handle("GET /debug/pprof/", http.DefaultServeMux)
	return mux
}

// defaultPeers is the default address for connections from the other hubs of the region.
const defaultPeers = ":8703"

// openPeers opens the address for the region's other hubs, if [peer] is configured. A hub
// with the embedded database has no other hubs.
func (p *hubProcess) openPeers(ctx context.Context) (err error) {
	config := p.config.Peer
	if config.Listen.Text == "" && config.Address.Text == "" {
		return nil
	}
	if p.config.Database.URL.text == "" {
		return errors.New("cannot connect to other hubs: they share a PostgreSQL database; set [database] url, or remove [peer]")
	}
	if p.cluster, err = cluster.New(cluster.Config{Log: p.log}); err != nil {
		return err
	}
	if p.peers, err = listenTCP(ctx, cmp.Or(config.Listen.Text, defaultPeers), "[peer] listen"); err != nil {
		return err
	}
	if p.peerAddress = config.Address.Text; p.peerAddress != "" {
		return nil
	}
	host, port, err := net.SplitHostPort(p.peers.Addr().String())
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return errors.New("cannot find this computer's name; set [peer] address to where other hubs reach this one")
		}
	}
	p.peerAddress = net.JoinHostPort(host, port)
	return nil
}

// metrics returns the metrics for GET /metrics: the hub's and those of its process.
func (p *hubProcess) metrics() *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kith_build_info", Help: "The version of this hub; the value is always 1.",
		ConstLabels: prometheus.Labels{"version": thisBuild().Version},
	})
	build.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kith_data_free_bytes", Help: "Free space of the disk with the data folder; 0 if it cannot be read.",
		}, func() float64 {
			usage, err := disk.Usage(p.config.Hub.Data)
			if err != nil {
				return 0
			}
			return float64(usage.Free)
		}),
	)
	for name, g := range map[string]struct {
		help  string
		value func(held, limit int) int
	}{
		"kith_client_held_max":   {"The most connections, or behind a proxy requests, that one client holds now.", func(held, _ int) int { return held }},
		"kith_client_held_limit": {"How many of them one client may hold; 0 is any number.", func(_, limit int) int { return limit }},
	} {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: g.help}, func() float64 {
			return float64(g.value(p.clients.Fullest()))
		}))
	}
	registry.MustRegister(p.hub.Metrics()...)
	if p.certificate != nil {
		registry.MustRegister(certificateEnd{p.certificate})
	}
	return registry
}

// certificateEnd is the metric with the certificate's expiry.
type certificateEnd struct{ certificateSource }

var certificateEndDesc = prometheus.NewDesc("kith_certificate_expiry_timestamp_seconds", "When the certificate of [tls] ends; absent without one.", nil, nil)

// Describe implements prometheus.Collector.
func (certificateEnd) Describe(descs chan<- *prometheus.Desc) { descs <- certificateEndDesc }

// Collect implements prometheus.Collector.
func (c certificateEnd) Collect(out chan<- prometheus.Metric) {
	if end := c.Expires(); !end.IsZero() {
		out <- prometheus.MustNewConstMetric(certificateEndDesc, prometheus.GaugeValue, float64(end.Unix()))
	}
}
