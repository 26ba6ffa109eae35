package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/outbound"
)

func (a *app) serve() *cobra.Command {
	var file, listen string
	cmd := &cobra.Command{
		Use: "serve", Short: "Run this machine's daemon", Args: cobra.NoArgs,
		Long: "Run this machine's daemon: the local API for programs here, the engines of this machine,\n" +
			"and, when signed in, the connection to the hub.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			read := func() (*daemonFile, error) {
				config, err := loadDaemonFile(a.home, pathHere(file))
				if err != nil || listen == "" {
					return config, err
				}
				if err := config.Daemon.Listen.UnmarshalText([]byte(listen)); err != nil {
					return nil, wrongUse("cannot use --listen %s: it %w", listen, err)
				}
				return config, nil
			}
			config, err := read()
			if err != nil {
				return err
			}
			m := &daemonProcess{config: config, flag: "--listen", read: read, log: logTo(a.err, slog.LevelInfo)}
			m.ready = func(d *daemon.Daemon) error {
				status := d.Status()
				return a.print(map[string]string{"local": status.Local}, func() { a.say("%s", readyText(status)) })
			}
			return m.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the configuration file (default: config.toml in KITH_HOME)")
	cmd.Flags().StringVar(&listen, "listen", "", "the local address, on loopback (default "+defaultLocal+")")
	return cmd
}

// noModels is what to do if a machine has no model.
const noModels = "`kith pull` lists some that fit this machine, or start an engine that has one"

// readyText is what a daemon prints when it is ready.
func readyText(status daemon.Status) string {
	text := "daemon on " + strong(status.Local) + "\n"
	if len(status.Models) > 0 {
		return text
	}
	why := noModels
	if i := slices.IndexFunc(status.Engines, isStarting); i >= 0 {
		why = status.Engines[i].Why
	}
	return text + "no model yet: " + why + "\n"
}

// daemonProcess is a daemon and the engines that kith runs for it.
type daemonProcess struct {
	config  *daemonFile
	engines *ownEngines // nil: those in config
	flag    string      // the flag for the local address
	// read reads the configuration again; nil if there is no file.
	read      func() (*daemonFile, error)
	log       *slog.Logger
	daemon    *daemon.Daemon // set once it is created
	reloading sync.Mutex     // held during a reload
	// ready is called once the local surface listens.
	ready func(*daemon.Daemon) error
}

// run serves until ctx ends (nil) or a part fails. A failure of the built-in engine is
// only logged, because other engines may work.
func (m *daemonProcess) run(ctx context.Context) error {
	tuneMemory()
	group, ctx := errgroup.WithContext(ctx)
	room, err := openSpool(m.config.Daemon.Data, diskLimit, 0)
	if err != nil {
		return err
	}
	if m.engines == nil {
		m.engines = newOwnEngines(m.config, false, m.log)
	}
	if err := m.engines.begin(ctx, group); err != nil {
		return errors.Join(err, group.Wait())
	}
	config := m.daemonConfig()
	config.Spool, config.Own = room, m.engines.all()
	if m.read != nil {
		config.ReloadConfig = m.reload
	}
	d, err := daemon.New(config)
	if err == nil {
		m.daemon = d
		group.Go(func() error { return m.reloadOnHangup(ctx) })
		group.Go(func() error { return d.Run(ctx) })
		group.Go(func() error { return m.engines.follow(ctx, group, d) })
		group.Go(func() error {
			select {
			case <-d.Ready():
				return m.ready(d)
			case <-ctx.Done():
				return nil
			}
		})
	} else {
		group.Go(func() error { return err })
	}
	err = group.Wait()
	switch {
	case errors.Is(err, context.Canceled):
		return nil
	case outbound.IsInUse(err):
		return addressInUse(m.config.Daemon.Listen.Text, m.flag)
	}
	return err
}

// Worker runs the process of the built-in engine, which this program starts with
// llama.WorkerArg. It returns the exit status.
func Worker() int {
	return llama.Worker(func() (bytes uint64, known bool) {
		ram := thisComputer().RAM(context.Background())
		return ram.Free, ram.Total > 0
	})
}

func (m *daemonProcess) daemonConfig() daemon.Config {
	c := m.config
	config := daemon.Config{
		Home: c.Daemon.Data, Listen: c.Daemon.Listen.Text, Name: hostName(), Version: thisBuild().Version,
		Discovery: engine.Config{
			Usual: c.Discovery.Enabled, Endpoints: convert(c.Discovery.Endpoints, func(w web) string { return w.Text }),
			Slots: int(c.Share.Slots),
		},
		Sharing:     c.sharing(),
		Groups:      c.Share.Groups,
		Models:      c.Share.Models,
		Audio:       engine.AudioConfig{Engine: c.Audio.Engine.Text, MaxUpload: c.Audio.MaxUpload.Bytes, Model: c.Audio.Model},
		Upstreams:   c.upstreams(),
		Unshared:    !c.Share.Enabled,
		Reach:       c.Hub.Reach.Reach,
		SharedCache: c.Share.Cache.Text == "all",
		PowerPolicy: c.powerPolicy(),
		Log:         m.log,
		NoBackend:   errors.Is(llama.Available(), llama.ErrNoBackend),
	}
	if c.RateLimit.Enabled {
		config.Rate = gateway.Rate{PerSecond: float64(c.RateLimit.RPS), Burst: int(c.RateLimit.Burst)}
	}
	return config
}

// sharing returns the configured settings that the owner can change later.
func (c *daemonFile) sharing() daemon.Sharing {
	return daemon.Sharing{Hours: c.Share.Hours.Text, Timezone: c.Share.Timezone.Text, NoZone: c.Share.Timezone.unknown, Slots: int(c.Share.Slots)}
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "machine"
	}
	return name
}
