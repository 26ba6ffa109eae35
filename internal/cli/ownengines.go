package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/daemon/private"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/llamaserver"
	"github.com/kith/kith/internal/pull"
)

const (
	// engineTimeout is how long the daemon's start waits for the models of the built-in
	// engine.
	engineTimeout = 20 * time.Second
	// settledAfter is how long the model folders must be unchanged before they are read.
	settledAfter = 500 * time.Millisecond
	// lookEvery is how often they are read in any case, because not every file system
	// reports changes.
	lookEvery = time.Minute
)

// ownEngines runs this machine's model files and follows changes of the files. It uses
// the machine's llama-server, if there is one, and otherwise the built-in engine.
type ownEngines struct {
	config *daemonFile
	// builtinOnly uses the built-in engine even if there is a llama-server.
	builtinOnly bool
	log         *slog.Logger

	secrets    secrets
	files      []modelFile
	pool       *llamaserver.Pool // nil: there is no llama-server, or no file yet
	version    string            // of the llama-server; "" if unknown
	supervisor *llama.Supervisor // nil: the same for the built-in engine
	failed     chan error        // why the built-in engine is not running
	// For other goroutines: what pool and supervisor are once they are set.
	startedPool atomic.Pointer[llamaserver.Pool]
	started     atomic.Pointer[llama.Supervisor]
	failure     atomic.Pointer[error]
	changed     chan struct{}   // buffered: the result of all has changed
	said        map[string]bool // problems that were already logged
	facts       map[modelFile]llamaserver.Facts
	lookNow     chan struct{} // buffered: read the folders
}

func newOwnEngines(config *daemonFile, builtinOnly bool, log *slog.Logger) *ownEngines {
	return &ownEngines{config: config, builtinOnly: builtinOnly, log: log, failed: make(chan error, 1), changed: make(chan struct{}, 1), lookNow: make(chan struct{}, 1)}
}

// begin starts the engines for the current files in group. It waits until their models
// are known, at most engineTimeout.
func (o *ownEngines) begin(ctx context.Context, group *errgroup.Group) error {
	files, err := modelFiles(o.config.Engine.Models)
	if err != nil {
		return err
	}
	if o.secrets, err = o.config.secrets(); err != nil {
		return err
	}
	if err := o.set(ctx, group, files); err != nil {
		return err
	}
	if o.supervisor == nil {
		return nil
	}
	select {
	case <-o.supervisor.Ready():
	case err := <-o.failed:
		o.failed <- err // read by follow
	case <-time.After(engineTimeout):
		o.log.Warn("the built-in engine is not ready; the daemon starts without it, and offers it once it is", "after", engineTimeout)
	case <-ctx.Done():
	}
	return nil
}

// set changes the files to serve.
func (o *ownEngines) set(ctx context.Context, group *errgroup.Group, files []modelFile) error {
	if slices.Equal(files, o.files) {
		return nil
	}
	o.files = files
	notify(o.changed)
	switch {
	case o.pool != nil:
		o.pool.SetModels(files)
	case o.supervisor != nil:
		return o.supervisor.SetModels(ctx, builtinFiles(files))
	default:
		o.start(ctx, group)
	}
	return nil
}

// start runs the first files.
func (o *ownEngines) start(ctx context.Context, group *errgroup.Group) {
	settings := o.config.Engine
	program := ""
	if !o.builtinOnly {
		program, o.version = llamaserver.Find(ctx)
	}
	if program != "" {
		computer := thisComputer()
		o.pool = llamaserver.New(ctx, llamaserver.Config{
			Program: program, Models: o.files, Slots: int(settings.Slots), Context: int(settings.Context),
			IdleUnload: settings.IdleUnload.Duration, Log: o.log,
			RAM: func() llamaserver.Memory { return llamaserver.Memory(computer.RAM(ctx)) },
			GPUs: func(ctx context.Context) []llamaserver.Memory {
				return convert(computer.GPUs(ctx), func(card host.GPU) llamaserver.Memory { return llamaserver.Memory(card.Memory) })
			},
		})
		o.startedPool.Store(o.pool)
		group.Go(func() error { return o.pool.Run(ctx) })
		return
	}
	if !settings.Builtin {
		return
	}
	o.supervisor = llama.NewSupervisor(llama.Config{
		KeepPrompts: settings.KeepPrompts.Bytes, PromptKey: o.secrets.PromptKey,
		Models: builtinFiles(o.files), Slots: int(settings.Slots), Context: int(settings.Context),
		IdleUnload: settings.IdleUnload.Duration, OnModels: func() { notify(o.changed) },
		Data: o.config.engineFolder(), GPUs: gpuLibraries(), Log: o.log,
	})
	o.started.Store(o.supervisor)
	group.Go(func() error {
		if err := o.supervisor.Run(ctx); err != nil && ctx.Err() == nil {
			o.failure.Store(&err)
			o.failed <- err
		}
		return nil
	})
}

// secrets are keys that this machine makes at its first start.
type secrets struct {
	PromptKey string `json:"prompt_key"` // of computed prompts on disk
	CacheKey  string `json:"cache_key"`  // of the names of callers' prompt caches
}

// secrets returns the machine's keys. Without the file it makes them.
func (c *daemonFile) secrets() (s secrets, err error) {
	path := filepath.Join(c.Daemon.Data, "secrets.json")
	err = private.Read(path, &s)
	if err == nil && (s.CacheKey == "" || !llama.IsPromptKey(s.PromptKey)) {
		err = fmt.Errorf("cannot use %s: it lacks a key", path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%w; or remove it, and kith makes new keys: only prompts that were kept are computed again", err)
	}
	if err == nil {
		return s, nil
	}
	if s.PromptKey, err = llama.NewPromptKey(); err != nil {
		return s, err
	}
	s.CacheKey = rand.Text()
	if err = os.MkdirAll(c.Daemon.Data, 0o700); err != nil {
		return s, err
	}
	return s, private.Write(path, s)
}

// all returns the engines that are running.
func (o *ownEngines) all() []*engine.Engine {
	var all []*engine.Engine
	if o.pool != nil {
		for _, s := range o.pool.Servers() {
			all = append(all, engine.Server(s, o.version, func() engine.Model { return serverModel(s.Model()) }, s.Problem))
		}
	}
	if o.supervisor == nil || o.failure.Load() != nil {
		return all
	}
	select {
	case <-o.supervisor.Ready():
	default:
		return append(all, startingEngine(o.supervisor, o.files))
	}
	models, problems := o.supervisor.Models(), make(map[fleet.ModelID]string)
	for id, why := range o.supervisor.Problems() {
		problems[fleet.ModelID(id)] = why
	}
	if len(models)+len(problems) == 0 {
		return all
	}
	return append(all, engine.Builtin("built-in engine", o.supervisor.Transport(), engine.BuiltinState{
		Models: o.withFacts(builtinModels(models)), Problems: problems, Graphics: engine.Graphics(o.supervisor.Graphics()),
		Version: "llama.cpp " + llama.Version,
	}))
}

// withFacts adds what the files say of the built-in engine's models. Each file is read once.
func (o *ownEngines) withFacts(models []engine.Model) []engine.Model {
	known := o.facts
	o.facts = make(map[modelFile]llamaserver.Facts, len(o.files))
	for _, file := range o.files {
		i := slices.IndexFunc(models, func(m engine.Model) bool { return string(m.ID) == file.ID })
		if i < 0 {
			continue
		}
		facts, ok := known[file]
		if !ok {
			facts, _ = llamaserver.FactsOf(file.Path) // the engine reads more kinds of files
		}
		o.facts[file], models[i].ModelFacts = facts, fleet.ModelFacts(facts)
	}
	return models
}

// startingEngine returns the built-in engine before its first worker is ready.
func startingEngine(s *llama.Supervisor, files []modelFile) *engine.Engine {
	ids := convert(files, func(f modelFile) fleet.ModelID { return fleet.ModelID(f.ID) })
	return engine.Starting("built-in engine", ids, func() string {
		if err := s.Problem(); err != nil {
			return err.Error()
		}
		return "the built-in engine has just started" // its models will be offered soon
	})
}

// problem returns why the built-in engine, if it was started, is not running. final
// reports that it will not be started again.
func (o *ownEngines) problem() (err error, final bool) {
	if failure := o.failure.Load(); failure != nil {
		return *failure, true
	}
	if s := o.started.Load(); s != nil {
		return s.Problem(), false
	}
	return nil, false
}

// errNotServed is the error of a model that no engine of kith's own has.
var errNotServed = errors.New("no engine of kith on this machine serves a file of that model")

// load loads a model into memory; unload frees it again, unless a call is running.
func (o *ownEngines) load(ctx context.Context, id string) error {
	return o.order(ctx, id, (*llamaserver.Server).Load, (*llama.Supervisor).Load)
}

func (o *ownEngines) unload(ctx context.Context, id string) error {
	return o.order(ctx, id, (*llamaserver.Server).Unload, (*llama.Supervisor).Unload)
}

func (o *ownEngines) order(ctx context.Context, id string, byServer func(*llamaserver.Server, context.Context) error,
	byWorker func(*llama.Supervisor, context.Context, string) error) error {
	if pool := o.startedPool.Load(); pool != nil {
		for _, s := range pool.Servers() {
			if s.ID() == id {
				return byServer(s, ctx)
			}
		}
	} else if s := o.started.Load(); s != nil {
		return byWorker(s, ctx, id)
	}
	return errNotServed
}

// states returns which models are in memory, or soon will be, and why others cannot be served.
func (o *ownEngines) states(ctx context.Context) (states map[string]fleet.FileState, problems map[string]string) {
	states, problems = map[string]fleet.FileState{}, map[string]string{}
	if pool := o.startedPool.Load(); pool != nil {
		for _, s := range pool.Servers() {
			if why := s.Problem(); why != "" {
				problems[s.ID()] = why
			}
			switch loaded, loading := s.Loaded(); {
			case loaded:
				states[s.ID()] = fleet.FileLoaded
			case loading:
				states[s.ID()] = fleet.FileLoading
			}
		}
	} else if s := o.started.Load(); s != nil {
		problems = s.Problems()
		for _, id := range s.Loaded(ctx) {
			states[id] = fleet.FileLoaded
		}
	}
	return states, problems
}

// look makes follow read the folders soon.
func (o *ownEngines) look() { notify(o.lookNow) }

// follow offers the models in the model folders until ctx ends.
func (o *ownEngines) follow(ctx context.Context, group *errgroup.Group, d *daemon.Daemon) error {
	var events <-chan fsnotify.Event
	var lost <-chan error
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		o.log.Warn("cannot watch the model folders; they are read once a minute", "error", err)
	} else {
		defer watch.Close()
		events, lost = watch.Events, watch.Errors
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for settled := time.After(0); ; {
		select {
		case <-events:
			settled = time.After(settledAfter)
		case <-lost:
			settled = time.After(settledAfter)
		case <-ticker.C:
			settled = time.After(0)
		case <-o.lookNow:
			settled = time.After(0)
		case <-settled:
			if watch != nil {
				o.watchFolders(watch)
			}
			o.update(ctx, group, d)
		case <-o.changed:
			o.report(d)
			d.OfferOwn(o.all())
		case err := <-o.failed:
			o.log.Error("the built-in engine does not run; other engines serve", "error", err)
			d.ReportError("the built-in engine does not run: %v", err)
			d.OfferOwn(o.all())
		case <-ctx.Done():
			return nil
		}
	}
}

// update reads the folders and serves the models in them.
func (o *ownEngines) update(ctx context.Context, group *errgroup.Group, d *daemon.Daemon) {
	files, err := modelFiles(o.config.Engine.Models)
	if err == nil {
		err = o.set(ctx, group, files)
	}
	if err != nil && ctx.Err() == nil && o.first(err) {
		o.log.Error("cannot serve what the model folders hold now", "error", err)
		d.ReportError("%v", err)
	}
}

// first reports whether a problem is new. Problems are found again every minute.
func (o *ownEngines) first(problem error) bool {
	if o.said == nil {
		o.said = make(map[string]bool)
	}
	again := o.said[problem.Error()]
	o.said[problem.Error()] = true
	return !again
}

// report logs the models that cannot be served.
func (o *ownEngines) report(d *daemon.Daemon) {
	for _, e := range o.all() {
		if e.IsStarting() {
			continue
		}
		for id, why := range e.Problems() {
			o.log.Error("a model cannot be served", "model", id, "error", why)
		}
	}
}

// watchFolders watches the model folders and their subfolders. It creates the default
// folder.
func (o *ownEngines) watchFolders(watch *fsnotify.Watcher) {
	for _, path := range o.config.Engine.Models {
		if filepath.Ext(path) == ".gguf" {
			path = filepath.Dir(path)
		} else if err := os.MkdirAll(path, 0o755); err != nil {
			continue // a missing path has no models
		}
		folders, _ := modelFolders(path) // the rest is read every minute
		for _, folder := range folders {
			if err := watch.Add(folder); err != nil && !errors.Is(err, fsnotify.ErrClosed) && o.first(fmt.Errorf("%s: %w", folder, err)) {
				o.log.Warn("cannot watch a model folder; it is read once a minute", "folder", folder, "error", err)
			}
		}
	}
}

// notify sends to a buffered channel, unless it already contains a value.
func notify(changed chan struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

func builtinFiles(files []modelFile) []llama.ModelFile {
	return convert(files, func(f modelFile) llama.ModelFile { return llama.ModelFile{ID: f.ID, Path: f.Path, Version: f.Version} })
}

func serverModel(m llamaserver.Model) engine.Model {
	offer := engine.Model{ID: fleet.ModelID(m.ID), ContextLength: m.ContextLength, Slots: max(m.Slots, 1), Families: []fleet.Family{fleet.Chat}, ModelFacts: fleet.ModelFacts(m.Facts)}
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
		switch { // sorted
		case m.DefaultTools:
			offer.Capabilities = append(offer.Capabilities, "default_tools")
			offer.Lacks = "a form of tool calls in its chat template; they are described to it, which works less well"
		case m.ToolProblem != "":
			offer.Capabilities = append(offer.Capabilities, "no_tools")
			offer.Lacks = "tools: " + m.ToolProblem
		}
		if m.Thinking {
			offer.Capabilities = append(offer.Capabilities, "thinking")
		}
		if m.Tools {
			offer.Capabilities = append(offer.Capabilities, "tools")
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

// modelFile is a model in one or more GGUF files on this machine. Path is that of its first
// part.
type modelFile = llamaserver.File

// modelFiles returns the models at the configured paths. A model's id is the file name
// without extension and part; of two models with the same id the first one is used.
// Folders are searched with their subfolders. In a folder, a file whose name starts with
// mmproj belongs to the models next to it. Folders may be missing, files may not.
func modelFiles(paths []string) ([]modelFile, error) {
	var files []modelFile
	add := func(path, projector string) {
		m := modelFile{ID: pull.ModelID(filepath.Base(path)), Path: path, Projector: projector, Version: versionOf(path) + versionOf(projector)}
		if !slices.ContainsFunc(files, func(other modelFile) bool { return other.ID == m.ID }) {
			files = append(files, m)
		}
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && filepath.Ext(path) != ".gguf":
			continue
		case err != nil:
			return nil, fmt.Errorf("cannot use a path of [engine] models: %w", err)
		case info.Mode().IsRegular():
			add(path, "")
			continue
		case !info.IsDir():
			return nil, fmt.Errorf("cannot use a path of [engine] models: %s is neither a file nor a folder", path)
		}
		folders, err := modelFolders(path)
		if err != nil {
			return nil, fmt.Errorf("cannot look for models: %w", err)
		}
		for _, folder := range folders {
			models, projector := ggufIn(folder)
			for _, m := range models {
				add(m, projector)
			}
		}
	}
	return files, nil
}

// modelFolders returns a folder and its subfolders.
func modelFolders(path string) ([]string, error) {
	folders := []string{path}
	entries, err := os.ReadDir(path)
	for _, entry := range entries {
		if name := filepath.Join(path, entry.Name()); !strings.HasPrefix(entry.Name(), ".") && isFolder(name) {
			folders = append(folders, name)
		}
	}
	return folders, err
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// ggufIn returns the first file of each model in a folder, and the folder's projector. If
// the folder cannot be read it returns none.
func ggufIn(folder string) (models []string, projector string) {
	entries, _ := os.ReadDir(folder)
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		switch {
		case filepath.Ext(path) != ".gguf", !isFile(path): // opening a pipe would block until it has a writer
		case pull.IsProjector(entry.Name()):
			projector = path
		case pull.IsFirstPart(entry.Name()):
			models = append(models, path)
		}
	}
	return models, projector
}

// versionOf returns a string that changes when a file's content does.
func versionOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return strconv.FormatInt(info.Size(), 10) + " " + info.ModTime().UTC().Format(time.RFC3339Nano) + ";"
}
