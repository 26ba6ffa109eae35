package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/llamaserver"
)

// engineTimeout is how long the start of the daemon waits for the models of the
// built-in engine.
const engineTimeout = 20 * time.Second

func (a *app) serve() *cobra.Command {
	var file, listen string
	cmd := &cobra.Command{
		Use: "serve", Short: "Run this machine's daemon", Args: cobra.NoArgs,
		Long: "Run this machine's daemon: the local API for programs here, the engines of this machine,\n" +
			"and, when signed in, the connection to the hub.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			read := func() (*daemonFile, error) {
				config, err := loadDaemonFile(a.home, file)
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
			files, err := modelFiles(config.Engine.Models)
			if err != nil {
				return err
			}
			m := &daemonProcess{config: config, files: files, flag: "--listen", read: read, log: logTo(a.err, slog.LevelInfo)}
			if len(files) > 0 {
				m.program = llamaserver.Find(cmd.Context())
			}
			m.ready = func(d *daemon.Daemon) error {
				local := d.Status().Local
				return a.print(map[string]string{"local": local}, func() { a.say("daemon on %s\n", strong(local)) })
			}
			return m.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the configuration file (default: config.toml in KITH_HOME)")
	cmd.Flags().StringVar(&listen, "listen", "", "the local address, on loopback (default "+defaultLocal+")")
	return cmd
}

// modelFiles returns the GGUF files at the configured paths. The name of a file without
// its extension is its model's id. A folder need not exist; a file must.
func modelFiles(paths []string) ([]llama.ModelFile, error) {
	var files []llama.ModelFile
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && filepath.Ext(path) != ".gguf":
			continue
		case err != nil:
			return nil, fmt.Errorf("cannot use a path of [engine] models: %w", err)
		case !info.IsDir():
			files = append(files, modelFile(path))
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fmt.Errorf("cannot look for models: %w", err)
		}
		for _, entry := range entries {
			if filepath.Ext(entry.Name()) == ".gguf" && !laterPart(entry.Name()) {
				files = append(files, modelFile(filepath.Join(path, entry.Name())))
			}
		}
	}
	return files, nil
}

// laterPart reports whether the file is not the first part of its model.
func laterPart(name string) bool {
	return partName.MatchString(name) && !strings.Contains(name, "-00001-of-")
}

// partName matches the file names of the parts of a model.
var partName = regexp.MustCompile(`-[0-9]{5}-of-[0-9]{5}\.gguf$`)

func modelFile(path string) llama.ModelFile {
	return llama.ModelFile{ID: strings.TrimSuffix(filepath.Base(path), ".gguf"), Path: path}
}

// daemonProcess is one daemon and the engines that kith runs for it.
type daemonProcess struct {
	config *daemonFile
	files  []llama.ModelFile
	// program is the llama-server that runs the files; empty is the built-in engine.
	program string
	flag    string // the flag that sets the local address
	// read reads the configuration again; nil if there is no file.
	read      func() (*daemonFile, error)
	log       *slog.Logger
	daemon    *daemon.Daemon // once it is made
	reloading sync.Mutex     // held during a reload
	// ready is called once the local surface listens.
	ready func(*daemon.Daemon) error
}

// addSmallModel has the daemon serve the small model, which it unpacks to folder: with
// the built-in engine, else with a llama-server on the PATH. Without either it does
// nothing.
func (m *daemonProcess) addSmallModel(ctx context.Context, folder string) error {
	if llama.Available() != nil {
		if m.program = llamaserver.Find(ctx); m.program == "" {
			return nil
		}
	}
	small, err := llama.Tiny(folder)
	if err == nil {
		m.files = []llama.ModelFile{small}
	}
	return err
}

// run serves until ctx ends (nil) or a part fails. A failure of the built-in engine is
// logged only: other engines may serve.
func (m *daemonProcess) run(ctx context.Context) error {
	tuneMemory()
	group, ctx := errgroup.WithContext(ctx)
	room, err := openSpool(m.config.Daemon.Data, diskLimit, 0)
	if err != nil {
		return err
	}
	builtin, later := m.startEngine(ctx, group)
	config := m.daemonConfig(builtin)
	config.Spool = room
	config.Servers = m.startServers(ctx, group)
	if m.read != nil {
		config.ReloadConfig = m.reload
	}
	d, err := daemon.New(config)
	if err == nil {
		m.daemon = d
		group.Go(func() error { return m.reloadOnHangup(ctx) })
		group.Go(func() error { return d.Run(ctx) })
		group.Go(func() error {
			select {
			case e := <-later:
				d.OfferBuiltin(e)
			case <-ctx.Done():
			}
			return nil
		})
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
	case errors.Is(err, syscall.EADDRINUSE):
		return addressInUse(m.config.Daemon.Listen.Text, m.flag)
	}
	return err
}

// startEngine runs the built-in engine in group and returns it once it knows its
// models; nil if there is none. An engine that needs longer than engineTimeout is sent
// to later.
func (m *daemonProcess) startEngine(ctx context.Context, group *errgroup.Group) (now *engine.Engine, later <-chan *engine.Engine) {
	if !m.config.Engine.Builtin || len(m.files) == 0 || m.program != "" {
		return nil, nil
	}
	supervisor := llama.NewSupervisor(llama.Config{
		Models: m.files, Slots: int(m.config.Engine.Slots), Context: int(m.config.Engine.Context),
		IdleUnload: m.config.Engine.IdleUnload.Duration,
		Data:       filepath.Join(m.config.Daemon.Data, "engine"), Log: m.log,
	})
	started, failed := make(chan *engine.Engine, 1), make(chan struct{})
	group.Go(func() error {
		defer close(failed)
		if err := supervisor.Run(ctx); err != nil && ctx.Err() == nil {
			m.log.Error("the built-in engine does not run; other engines serve", "error", err)
		}
		return nil
	})
	group.Go(func() error {
		select {
		case <-supervisor.Ready():
		case <-failed:
			return nil
		case <-ctx.Done():
			return nil
		}
		for id, problem := range supervisor.Problems() {
			m.log.Error("a model cannot be served", "model", id, "error", problem)
		}
		started <- engine.Builtin("kith", supervisor.Transport(), builtinModels(supervisor.Models()))
		return nil
	})
	timeout := time.NewTimer(engineTimeout)
	defer timeout.Stop()
	select {
	case e := <-started:
		return e, nil
	case <-timeout.C:
		m.log.Warn("the built-in engine is not ready; the daemon starts without it, and offers it once it is", "after", engineTimeout)
		return nil, started
	case <-failed:
	case <-ctx.Done():
	}
	return nil, nil
}

// Worker runs the built-in engine's process, which this program starts with
// llama.WorkerArg, and returns its exit status.
func Worker() int {
	return llama.Worker(func() (bytes uint64, known bool) {
		ram := thisComputer().RAM(context.Background())
		return ram.Free, ram.Total > 0
	})
}

// startServers runs this machine's llama-server for the files in group, if there is
// one.
func (m *daemonProcess) startServers(ctx context.Context, group *errgroup.Group) []*engine.Engine {
	if m.program == "" {
		return nil
	}
	files := convert(m.files, func(f llama.ModelFile) llamaserver.File { return llamaserver.File{ID: f.ID, Path: f.Path} })
	computer := thisComputer()
	pool := llamaserver.New(ctx, llamaserver.Config{
		Program: m.program, Models: files, Slots: int(m.config.Engine.Slots), Context: int(m.config.Engine.Context),
		IdleUnload: m.config.Engine.IdleUnload.Duration, Log: m.log,
		RAM: func() llamaserver.Memory { return llamaserver.Memory(computer.RAM(ctx)) },
		GPUs: func(ctx context.Context) []llamaserver.Memory {
			return convert(computer.GPUs(ctx), func(card host.Memory) llamaserver.Memory { return llamaserver.Memory(card) })
		},
	})
	group.Go(func() error { return pool.Run(ctx) })
	var servers []*engine.Engine
	for _, id := range pool.IDs() {
		offer := func() engine.Model { return serverModel(pool.Model(id)) }
		servers = append(servers, engine.Server(pool.Transport(id), offer, func() string { return pool.Problem(id) }))
		if why := pool.Problem(id); why != "" {
			m.log.Error("a model cannot be served", "model", id, "error", why)
		}
	}
	return servers
}

func serverModel(m llamaserver.Model) engine.Model {
	offer := engine.Model{ID: fleet.ModelID(m.ID), ContextLength: m.ContextLength, Slots: max(m.Slots, 1), Families: []fleet.Family{fleet.Chat}}
	if m.Embeddings {
		offer.Families = []fleet.Family{fleet.Embeddings}
	}
	for _, ability := range []struct { // sorted
		name string
		has  bool
	}{{"audio", m.Audio}, {"tools", m.Tools}, {"vision", m.Vision}} {
		if ability.has {
			offer.Capabilities = append(offer.Capabilities, ability.name)
		}
	}
	return offer
}

func builtinModels(models []llama.Model) []engine.Model {
	return convert(models, func(m llama.Model) engine.Model {
		offer := engine.Model{ID: fleet.ModelID(m.ID), ContextLength: m.ContextLength, Slots: m.Slots}
		if m.Thinking {
			offer.Capabilities = append(offer.Capabilities, "thinking")
		}
		if m.Chat {
			offer.Families = append(offer.Families, fleet.Chat)
			offer.Endpoints = append(offer.Endpoints, fleet.ChatCompletions)
		}
		if m.Embeddings {
			offer.Families = append(offer.Families, fleet.Embeddings)
			offer.Endpoints = append(offer.Endpoints, fleet.EmbeddingsEndpoint)
		}
		return offer
	})
}

func (m *daemonProcess) daemonConfig(builtin *engine.Engine) daemon.Config {
	c := m.config
	config := daemon.Config{
		Home: c.Daemon.Data, Listen: c.Daemon.Listen.Text, Name: hostName(), Version: thisBuild().Version,
		Builtin: builtin,
		Discovery: engine.Config{
			Usual: c.Discovery.Enabled, Endpoints: convert(c.Discovery.Endpoints, func(w web) string { return w.Text }),
		},
		Sharing:     c.sharing(),
		Groups:      c.Share.Groups,
		Models:      c.Share.Models,
		Audio:       engine.AudioConfig{Engine: c.Audio.Engine.Text, MaxUpload: c.Audio.MaxUpload.Bytes, Model: c.Audio.Model},
		Upstreams:   c.upstreams(),
		Unshared:    !c.Share.Enabled,
		PowerPolicy: c.powerPolicy(),
		Log:         m.log,
	}
	if c.RateLimit.Enabled {
		config.Rate = gateway.Rate{PerSecond: float64(c.RateLimit.RPS), Burst: int(c.RateLimit.Burst)}
	}
	return config
}

// sharing returns the configured settings that the owner can change later.
func (c *daemonFile) sharing() daemon.Sharing {
	return daemon.Sharing{Hours: c.Share.Hours.Text, Timezone: c.Share.Timezone.Text, Slots: int(c.Share.Slots)}
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "machine"
	}
	return name
}
