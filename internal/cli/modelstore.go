package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/daemon/private"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/llamaserver"
	"github.com/kith/kith/internal/pull"
)

const (
	// pullsFile has the daemon's pulls, in its data folder.
	pullsFile = "pulls.json"
	// loadWait is how long an act waits for a load to end. Longer ones go on.
	loadWait = 3 * time.Second
	// loadLimit is how long a load may take.
	loadLimit = 15 * time.Minute
)

// modelStore carries out the acts of this machine's owner on its model files: those from
// elsewhere, which come by the tunnel, and those of commands, by the daemon's socket.
type modelStore struct {
	config  *daemonFile
	engines *ownEngines
	queue   *pull.Queue // nil: there is no folder for models
	folder  string      // for models that are pulled

	mu    sync.Mutex
	loads map[string]*load // by the model's id: those that run, and the last that failed
}

// load is an attempt to load a model.
type load struct {
	ended chan struct{}
	err   error // set before ended is closed
}

func newModelStore(config *daemonFile, engines *ownEngines, log *slog.Logger) *modelStore {
	m := &modelStore{config: config, engines: engines, loads: map[string]*load{}}
	if m.folder = config.pullFolder(); m.folder == "" {
		return m
	}
	path := filepath.Join(config.Daemon.Data, pullsFile)
	var saved []pull.Job
	if err := private.Read(path, &saved); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error("the pulls that ran before are lost: ask for them again", "error", err)
	}
	m.queue = pull.NewQueue(saved, pull.QueueConfig{
		Folder: m.folder, Source: remoteSource, Check: checkMemory, Log: log,
		Save: func(jobs []pull.Job) error { return private.Write(path, jobs) },
	})
	return m
}

// run fetches what is to be pulled until ctx ends.
func (m *modelStore) run(ctx context.Context) error {
	if m.queue == nil {
		return nil
	}
	return m.queue.Run(ctx)
}

// pullFolder returns the folder for models that are pulled, the first in [engine] models, or
// "" if there is none.
func (c *daemonFile) pullFolder() string {
	i := slices.IndexFunc(c.Engine.Models, func(path string) bool { return filepath.Ext(path) != ".gguf" })
	if i < 0 {
		return ""
	}
	return c.Engine.Models[i]
}

// localSource returns the source of models for commands on this machine.
func localSource(ctx context.Context) *pull.Source {
	server, _ := llamaserver.Find(ctx)
	return &pull.Source{
		Endpoint: os.Getenv("HF_ENDPOINT"), Token: os.Getenv("HF_TOKEN"), Client: pull.NewClient(),
		Images: server != "",
	}
}

// remoteSource returns the source of models that are asked for from elsewhere.
func remoteSource(ctx context.Context) *pull.Source {
	source := localSource(ctx)
	source.Public, source.Client = true, pull.NewPublicClient(source.Endpoint)
	return source
}

// checkMemory rejects a model that this machine cannot run.
func checkMemory(ctx context.Context, model *pull.Model) error {
	largest, size := largestMemory(ctx), model.Size()
	if needs := pull.Memory(size); largest > 0 && size > 0 && needs > largest {
		return fmt.Errorf("%s needs about %s of memory, and one model can use %s here: choose a smaller one", model.ID,
			pull.Bytes(int64(needs)), pull.Bytes(int64(largest)))
	}
	return nil
}

// act carries out an act and returns the state after it. Its errors are for people.
func (m *modelStore) act(ctx context.Context, act fleet.FileAct) (fleet.ModelFiles, error) {
	var err error
	switch act.Act {
	case fleet.ActList:
	case fleet.ActPull:
		err = m.pull(ctx, act)
	case fleet.ActCancel:
		if err = pull.ErrNoJob; m.queue != nil {
			err = m.queue.Cancel(ctx, act.Model)
		}
	case fleet.ActRemove:
		err = m.remove(act.Model)
	case fleet.ActLoad:
		err = m.load(ctx, act.Model)
	case fleet.ActUnload:
		if err = m.mustExist(act.Model); err == nil {
			err = m.engines.unload(ctx, act.Model)
		}
	default:
		err = fmt.Errorf("unknown act %.20q on model files", act.Act)
	}
	if err != nil {
		return fleet.ModelFiles{}, err
	}
	return m.list(ctx)
}

func (m *modelStore) pull(ctx context.Context, act fleet.FileAct) error {
	if m.queue == nil {
		return errors.New("[engine] models names files only; add a folder there")
	}
	if err := remoteSource(ctx).Check(act.Model); err != nil {
		if near := likeListed(act.Model); errors.Is(err, pull.ErrUnknown) && near != "" {
			return fmt.Errorf("%w, did you mean %q?", err, near)
		} else if errors.Is(err, pull.ErrUnknown) {
			return fmt.Errorf("%w; hf.co/ORG/REPO:QUANT names a model of the model hub", err)
		}
		return err
	}
	return m.queue.Add(pull.Job{Reference: act.Model, By: act.By, At: time.Now().UTC().Truncate(time.Second)})
}

// likeListed returns the name in the list of models that is most like a text, or "".
func likeListed(text string) string {
	return nameLike(text, convert(pull.List(), func(l pull.Listed) string { return l.Name }))
}

func (m *modelStore) files() ([]modelFile, error) { return modelFiles(m.config.Engine.Models) }

// mustExist returns an error if no file of the model is there.
func (m *modelStore) mustExist(id string) error {
	_, err := m.file(id)
	return err
}

func (m *modelStore) file(id string) (modelFile, error) {
	files, err := m.files()
	if err != nil {
		return modelFile{}, err
	}
	if at := slices.IndexFunc(files, func(f modelFile) bool { return f.ID == id }); at >= 0 {
		return files[at], nil
	}
	return modelFile{}, errors.New("no file of that model is in the folders of [engine] models")
}

func (m *modelStore) remove(id string) error {
	file, err := m.file(id)
	if err != nil {
		return err
	}
	if _, err = m.config.deleteModel(file); err != nil {
		return err
	}
	m.forgetLoad(id)
	m.engines.look()
	return nil
}

// load begins to load a model, unless that has begun, and waits a while for it.
func (m *modelStore) load(ctx context.Context, id string) error {
	if err := m.mustExist(id); err != nil {
		return err
	}
	l := m.beginLoad(ctx, id)
	select {
	case <-l.ended:
		if l.err != nil {
			m.forgetLoad(id)
		}
		return l.err
	case <-time.After(loadWait):
	case <-ctx.Done():
	}
	return nil
}

func (m *modelStore) beginLoad(ctx context.Context, id string) *load {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.loads[id]; l != nil && l.running() {
		return l
	}
	l := &load{ended: make(chan struct{})}
	m.loads[id] = l
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadLimit)
		defer cancel()
		l.err = m.engines.load(ctx, id)
		close(l.ended)
	}()
	return l
}

func (l *load) running() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

func (m *modelStore) forgetLoad(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.loads, id)
}

// loadState returns whether a load of the model is running, and why the last one failed.
func (m *modelStore) loadState(id string) (running bool, failed error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch l := m.loads[id]; {
	case l == nil:
		return false, nil
	case l.running():
		return true, nil
	default:
		return false, l.err
	}
}

// list returns the state of the model files and of the pulls.
func (m *modelStore) list(ctx context.Context) (fleet.ModelFiles, error) {
	var jobs []pull.JobState
	if m.queue != nil {
		jobs = m.queue.Jobs() // first: the files of those that are complete are there
	}
	files, err := m.files()
	if err != nil {
		return fleet.ModelFiles{}, err
	}
	states, problems := m.engines.states(ctx)
	largest := largestMemory(ctx)
	now := fleet.ModelFiles{Files: []fleet.ModelFile{}, Pulls: viewPulls(jobs, files), List: []fleet.ListedModel{}, Memory: int64(largest)}
	if m.folder != "" {
		now.DiskFree = pull.DiskFree(m.folder)
	}
	for _, f := range files {
		file := fleet.ModelFile{ID: f.ID, Size: sizeOf(f), State: cmp.Or(states[f.ID], fleet.FileUnloaded), Problem: problems[f.ID]}
		running, failed := m.loadState(f.ID)
		switch {
		case file.State == fleet.FileLoaded:
		case running:
			file.State = fleet.FileLoading
		case failed != nil:
			file.Problem = cmp.Or(file.Problem, failed.Error())
		}
		now.Files = append(now.Files, file)
	}
	for _, l := range pull.List() {
		listed := newPullable(l, largest)
		now.List = append(now.List, listed.listed())
	}
	return now, nil
}

// viewPulls returns the state of the pulls, without complete ones whose files were removed.
func viewPulls(jobs []pull.JobState, files []modelFile) []fleet.ModelPull {
	pulls := []fleet.ModelPull{}
	for _, j := range jobs {
		if j.Complete && !slices.ContainsFunc(files, func(f modelFile) bool { return f.ID == j.ID }) {
			continue
		}
		p := fleet.ModelPull{
			Model: pull.Name(j.Reference), ID: j.ID, By: j.By, At: j.At, State: fleet.PullWaiting, File: j.Progress.File,
			Done: j.Progress.Done, Total: j.Progress.Total, Verifying: j.Progress.Verifying, Problem: cmp.Or(j.Failed, j.Problem),
		}
		switch {
		case j.Complete:
			p.State = fleet.PullDone
		case j.Failed != "":
			p.State = fleet.PullFailed
		case j.Running:
			p.State = fleet.PullRunning
			if j.Progress.Waiting != nil {
				p.Problem = j.Progress.Waiting.Error()
			}
		}
		pulls = append(pulls, p)
	}
	return pulls
}

// sizeOf returns the size of all files of a model, in bytes.
func sizeOf(m modelFile) (total int64) {
	folder := filepath.Dir(m.Path)
	entries, _ := os.ReadDir(folder) // without them the size is that of nothing
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		if !strings.HasSuffix(e.Name(), ".gguf") || pull.ModelID(e.Name()) != m.ID && path != m.Projector {
			continue
		}
		if info, err := os.Stat(path); err == nil {
			total += info.Size()
		}
	}
	return total
}
