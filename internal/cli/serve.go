package cli

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/outbound"
)

func (a *app) serve() *cobra.Command {
	var file, listen string
	cmd := command("kith serve", func(ctx context.Context, _ []string) error {
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
		return m.run(ctx)
	})
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
	config.Spool, config.Own, config.CacheKey = room, m.engines.all(), m.engines.secrets.CacheKey
	models := newModelStore(m.config, m.engines, m.log)
	config.Files = models.act
	if m.read != nil {
		config.ReloadConfig = m.reload
	}
	d, err := daemon.New(config)
	if err == nil {
		m.daemon = d
		group.Go(func() error { return m.reloadOnHangup(ctx) })
		group.Go(func() error { return d.Run(ctx) })
		group.Go(func() error { return m.engines.follow(ctx, group, d) })
		group.Go(func() error { return models.run(ctx) })
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
		Sealed:      sealed.Mode(cmp.Or(c.Privacy.Sealed.Text, string(defaultSealed))),
		FilesHere:   !c.Hub.Remote,
		SharedCache: c.Share.Cache.Text == "all",
		Computer:    new(thisComputer()), PowerPolicy: c.powerPolicy(),
		Log:       m.log,
		NoBackend: errors.Is(llama.Available(), llama.ErrNoBackend),
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

// thisComputer returns the source of this computer's readings. Tests replace it with the
// folder in KITH_SYSTEM_ROOT (docs/HACKING.md).
func thisComputer() host.Computer { return host.Computer{Root: os.Getenv("KITH_SYSTEM_ROOT")} }

// setPowerDefaults sets the defaults of the power policy for `kith serve`. In `kith dev`,
// where one computer is both hub and machine, the policy is off.
func (c *daemonFile) setPowerDefaults(computer host.Computer) {
	personal := computer.Personal()
	c.Share.PauseOnBattery, c.Share.PauseOnBusyGPU, c.Share.PauseOnHotCPU = personal, personal, personal
	c.Share.YieldToLocal = true
}

func (c *daemonFile) powerPolicy() daemon.PowerPolicy {
	return daemon.PowerPolicy{
		Computer:  thisComputer(),
		OnBattery: c.Share.PauseOnBattery, OnBusyGPU: c.Share.PauseOnBusyGPU, OnHotCPU: c.Share.PauseOnHotCPU,
		Yield: c.Share.YieldToLocal, Awake: thisComputer().AwakeCommand(),
	}
}

// showSelfPause prints why the machine has paused automatically or yields.
func (a *app) showSelfPause(now daemon.Status) {
	if now.PausedBy != nil {
		a.fact("", "paused by itself: %s; resumes when that is over ([share] pause_on_… of config.toml)", strings.Join(now.PausedBy, ", "))
	}
	if now.Yielding {
		a.fact("", "yields to your own calls: no call from the hub starts now ([share] yield_to_local)")
	}
}

// reloadable are the sections of config.toml that a running daemon can apply. The others
// take effect at the next start.
var reloadable = []string{"ratelimit", "discovery", "share", "privacy"}

func (a *app) reload() *cobra.Command {
	return command("kith reload", func(ctx context.Context, _ []string) error {
		config, err := loadLocalFile(a.home)
		if err != nil {
			return err
		}
		process := requester{a, func() (*client, error) { return control(config.Daemon.Data), nil }, "reload"}
		request := api.Request[daemon.ReloadResult]{Method: http.MethodPost, Path: "/reload"}
		return ask(ctx, process, request, func(done daemon.ReloadResult) {
			a.showReloaded("daemon", done.Applied, done.Restart)
		})
	})
}

// showReloaded prints which settings of a process have changed.
func (a *app) showReloaded(process string, applied, restart []string) {
	if len(applied)+len(restart) == 0 {
		a.say("nothing has changed\n")
	}
	if len(applied) > 0 {
		a.say("in effect now: %s\n", strong(strings.Join(applied, ", ")))
	}
	if len(restart) > 0 {
		a.say("from the next start of the %s: %s\n", process, strong(strings.Join(restart, ", ")))
	}
}

// reload reads the configuration again and applies the settings that can change. On error
// nothing changes.
func (m *daemonProcess) reload(ctx context.Context) (daemon.ReloadResult, error) {
	m.reloading.Lock()
	defer m.reloading.Unlock()
	done := daemon.ReloadResult{Applied: []string{}, Restart: []string{}}
	next, err := m.read()
	if err != nil {
		return done, err
	}
	for _, key := range changed(reflect.ValueOf(*m.config), reflect.ValueOf(*next), "") {
		section, _, _ := strings.Cut(key, ".")
		if slices.Contains(reloadable, section) {
			done.Applied = append(done.Applied, key)
		} else {
			done.Restart = append(done.Restart, key)
		}
	}
	after := *m.config
	after.RateLimit, after.Discovery, after.Share, after.Privacy = next.RateLimit, next.Discovery, next.Share, next.Privacy
	if err := m.daemon.Reload(ctx, (&daemonProcess{config: &after, log: m.log}).daemonConfig()); err != nil {
		return done, err
	}
	m.config = &after
	m.engines.look()
	m.log.Info("the configuration was read again", "applied", done.Applied, "restart", done.Restart)
	return done, nil
}

// changed returns the dotted keys whose values differ.
func changed(before, after reflect.Value, prefix string) []string {
	var keys []string
	for field := range before.Type().Fields() {
		x, y := before.FieldByIndex(field.Index), after.FieldByIndex(field.Index)
		key := prefix + field.Tag.Get("toml")
		switch {
		case field.Type.Kind() == reflect.Struct && section(field.Type):
			keys = append(keys, changed(x, y, key+".")...)
		case !reflect.DeepEqual(x.Interface(), y.Interface()):
			keys = append(keys, key)
		}
	}
	return keys
}

// reloadOnHangup reads the configuration again at each SIGHUP until ctx ends.
func (m *daemonProcess) reloadOnHangup(ctx context.Context) error {
	if m.read == nil {
		return nil
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	return onHangup(ctx, hangups, m.log, func() error { _, err := m.reload(ctx); return err })
}

// onHangup calls reload for each signal until ctx ends.
func onHangup(ctx context.Context, hangups <-chan os.Signal, log *slog.Logger, reload func() error) error {
	for {
		select {
		case <-hangups:
			if err := reload(); err != nil {
				log.Error("cannot apply the configuration; nothing has changed", "error", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}
