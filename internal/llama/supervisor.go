package llama

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	firstBackoff = 500 * time.Millisecond // before the worker is started again
	maxBackoff   = 30 * time.Second
	// After a worker ran for stableAfter, the delay is firstBackoff again.
	stableAfter = time.Minute
	// startTimeout is how long a worker may take to become ready: it may have to read many
	// vocabularies from a slow disk.
	startTimeout = 2 * time.Minute
	// gpuFailures is how many workers in a row may end before stableAfter. The next one
	// then runs without a GPU library.
	gpuFailures = 3
)

// ErrStarting is the Problem of a Supervisor before its first worker is ready.
var ErrStarting = errors.New("the built-in engine is starting")

// Supervisor keeps one worker running. Create it with NewSupervisor.
type Supervisor struct {
	config    Config
	transport *http.Transport
	ready     chan struct{} // closed when the first worker is ready

	changing sync.Mutex // held while the worker's models are changed

	mu       sync.Mutex
	files    []ModelFile
	crashing map[ModelFile]bool // files that ended a worker: they are not read again
	address  string             // of the running worker, or ""
	secret   string
	problem  error // why no worker is running
	models   []Model
	gpus     []gpuFile         // used by the next worker
	unused   map[string]string // GPU libraries that it does not use, and why
	graphics Graphics          // of the running worker
}

// NewSupervisor returns a Supervisor. It does nothing before Run.
func NewSupervisor(c Config) *Supervisor {
	c.Slots, c.Context = min(max(c.Slots, 0), maxSlots), max(c.Context, 0)
	s := &Supervisor{config: c, files: c.Models, crashing: map[ModelFile]bool{}, ready: make(chan struct{}), problem: ErrStarting}
	s.transport = &http.Transport{
		DialContext:        s.dial,
		DisableCompression: true,
		MaxIdleConns:       16,
		IdleConnTimeout:    time.Minute,
	}
	return s
}

// Ready returns a channel that is closed when the first worker is ready. From then on
// Models is valid.
func (s *Supervisor) Ready() <-chan struct{} { return s.ready }

// SetModels changes the files to serve, either in the running worker or when the next one
// starts. It does not affect the models of files that remain.
func (s *Supervisor) SetModels(ctx context.Context, files []ModelFile) error {
	s.mu.Lock()
	s.files = files
	running := s.address != ""
	s.mu.Unlock()
	if !running {
		return nil
	}
	return s.sendModels(ctx)
}

// readable returns the files to serve, without those that ended a worker.
func (s *Supervisor) readable() []ModelFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.files), func(f ModelFile) bool { return s.crashing[f] })
}

// modelsOf returns the models of files: what the worker reports, and those that it does not
// read. s.mu is held.
func (s *Supervisor) modelsOf(reported []Model) (models []Model) {
	for _, f := range s.files {
		if s.crashing[f] {
			models = append(models, Model{ID: f.ID, Problem: "cannot read the model file: llama.cpp ended the engine on it; fetch it again, or remove it"})
		} else if i := slices.IndexFunc(reported, func(m Model) bool { return m.ID == f.ID }); i >= 0 {
			models = append(models, reported[i])
		}
	}
	return models
}

// sendModels sends the files to serve to the worker.
func (s *Supervisor) sendModels(ctx context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	body, err := json.Marshal(s.readable())
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://worker"+pathModels, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := s.Transport().RoundTrip(request)
	if err != nil {
		return fmt.Errorf("cannot change the models of the built-in engine: %w", err)
	}
	defer response.Body.Close()
	var models []Model
	if err := json.UnmarshalRead(response.Body, &models); err != nil {
		return fmt.Errorf("cannot change the models of the built-in engine: it answers %s: %w", response.Status, err)
	}
	s.mu.Lock()
	s.models = s.modelsOf(models)
	models = s.models
	s.mu.Unlock()
	s.modelsChanged(models)
	return nil
}

// modelsChanged logs why models cannot be served, and calls OnModels.
func (s *Supervisor) modelsChanged(models []Model) {
	for _, m := range models {
		if m.Problem != "" {
			s.config.Log.Warn("a model cannot be served", "model", m.ID, "cause", m.Problem)
		}
	}
	if s.config.OnModels != nil {
		s.config.OnModels()
	}
}

// Models returns the models that the worker serves, in the configured order, or nil
// before Ready.
func (s *Supervisor) Models() []Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.models), func(m Model) bool { return m.Problem != "" })
}

// Problems returns why some of the configured models cannot be served, by id.
func (s *Supervisor) Problems() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	problems := map[string]string{}
	for _, m := range s.models {
		if m.Problem != "" {
			problems[m.ID] = m.Problem
		}
	}
	return problems
}

// Problem returns why no worker is running, or nil. It is ErrStarting until the first one
// is ready or has failed.
func (s *Supervisor) Problem() error {
	_, _, err := s.current()
	return err
}

// Loaded returns the ids of the models whose weights are in memory; none if no worker is
// running.
func (s *Supervisor) Loaded(ctx context.Context) (ids []string) {
	response, err := s.request(ctx, http.MethodGet, pathLoaded)
	if err == nil {
		defer response.Body.Close()
		_ = json.UnmarshalRead(response.Body, &ids) // after an error there are none
	}
	return ids
}

// Load loads the weights of a model now, and not at its first request. They are freed
// IdleUnload later if there is none.
func (s *Supervisor) Load(ctx context.Context, id string) error { return s.order(ctx, pathLoad, id) }

// Unload frees the weights of a model. It fails if a request to it is running.
func (s *Supervisor) Unload(ctx context.Context, id string) error {
	return s.order(ctx, pathUnload, id)
}

func (s *Supervisor) order(ctx context.Context, path, id string) error {
	response, err := s.request(ctx, http.MethodPost, path+"?"+url.Values{"model": {id}}.Encode())
	if err != nil {
		if problem := s.Problem(); problem != nil {
			err = problem
		}
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNoContent {
		return nil
	}
	var refused errorBody
	if err := json.UnmarshalRead(response.Body, &refused); err != nil {
		return fmt.Errorf("the built-in engine answers %s", response.Status)
	}
	return errors.New(refused.Error.Message)
}

func (s *Supervisor) request(ctx context.Context, method, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://worker"+path, nil)
	if err != nil {
		return nil, err
	}
	return s.Transport().RoundTrip(r)
}

// Graphics returns what the worker computes with. It is valid after Ready.
func (s *Supervisor) Graphics() Graphics {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.graphics.merge(s.unused)
}

// Transport returns a RoundTripper to the running worker. It ignores the host of
// requests. If no worker is running, it returns the reason as an error. If the worker
// ends during a request, the connection breaks.
func (s *Supervisor) Transport() http.RoundTripper { return (*workerTransport)(s) }

// workerTransport is a Supervisor as a RoundTripper.
type workerTransport Supervisor

func (t *workerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	s := (*Supervisor)(t)
	_, secret, err := s.current()
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, &net.OpError{Op: "dial", Net: socketNetwork(), Err: err} // nothing was sent
	}
	r = r.Clone(r.Context())
	r.Header.Set(secretHeader, secret)
	u := *r.URL
	u.Scheme, u.Host = "http", "worker"
	r.URL = &u
	return s.transport.RoundTrip(r)
}

func (s *Supervisor) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	address, _, err := s.current()
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, socketNetwork(), address)
}

func (s *Supervisor) current() (address, secret string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.address == "" {
		return "", "", s.problem
	}
	return s.address, s.secret, nil
}

// setWorker makes Transport use the given worker. It returns its models.
func (s *Supervisor) setWorker(h workerReport, secret string) []Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address, s.secret, s.models, s.graphics = h.Address, secret, s.modelsOf(h.Models), h.Graphics
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
	return s.models
}

// setProblem sets why there is no worker.
func (s *Supervisor) setProblem(problem error) {
	s.mu.Lock()
	s.address, s.problem = "", problem
	s.mu.Unlock()
	s.transport.CloseIdleConnections()
}

// Run keeps a worker running until ctx ends. It fails at once if there are no libraries
// (ErrNoBackend) or they cannot be unpacked. When a worker ends, it is restarted after
// 0.5 s, doubling each time up to 30 s. If a GPU library repeatedly causes this, the next
// worker runs without one.
func (s *Supervisor) Run(ctx context.Context) error {
	libraries, err := libraries(s.config.Data)
	if err != nil {
		s.setProblem(err)
		return err
	}
	gpus, unused := installedGPUs(s.config.Data, s.config.GPUs)
	s.setGPUs(gpus, unused)
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier, pause.RandomizationFactor = firstBackoff, maxBackoff, 2, 0
	failures := 0
	for {
		began := time.Now()
		ready, err := s.runWorker(ctx, libraries)
		if ctx.Err() != nil {
			s.setProblem(errors.New("the built-in engine was stopped"))
			return nil
		}
		if errors.Is(err, errCrashingFile) {
			continue
		}
		if time.Since(began) >= stableAfter {
			pause.Reset()
			failures = 0
		}
		if failures++; !ready || failures >= gpuFailures {
			s.dropGPUs(err)
		}
		wait := pause.NextBackOff()
		s.setProblem(fmt.Errorf("the built-in engine is starting again: %w", err))
		s.config.Log.Warn("the inference worker ended", "cause", err, "again_in", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// setGPUs sets the GPU libraries for the next worker, and why others are not used.
func (s *Supervisor) setGPUs(gpus []gpuFile, unused map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gpus, s.unused = gpus, unused
}

// dropGPUs makes further workers run without GPU libraries, after failures of workers
// that used them. The reasons for libraries that the worker itself could not use remain.
func (s *Supervisor) dropGPUs(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, gpu := range s.gpus {
		if why, known := s.graphics.Unused[gpu.Name]; known {
			s.unused[gpu.Name] = why
			continue
		}
		s.unused[gpu.Name] = "the engine failed with it: " + strings.Join(strings.Fields(cause.Error()), " ") + "; it is tried again when the daemon starts"
		s.config.Log.Warn("a GPU library is no longer used", "library", gpu.Name, "cause", cause)
	}
	s.gpus = nil
}

// runWorker runs a worker from start to end. It returns whether the worker was ready and
// why it ended.
func (s *Supervisor) runWorker(ctx context.Context, libraries string) (ready bool, _ error) {
	// The kernel kills the worker when the thread that started it ends, so this goroutine
	// keeps the thread until then.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	dir, err := os.MkdirTemp("", "kith-")
	if err != nil {
		return false, fmt.Errorf("cannot make a folder for its socket: %w", err)
	}
	defer os.RemoveAll(dir)
	files := s.readable()
	s.mu.Lock()
	gpus := s.gpus
	s.mu.Unlock()
	o := workerConfig{
		Libraries: libraries, GPUs: gpus, Network: socketNetwork(), Address: filepath.Join(dir, "socket"), Secret: rand.Text(),
		Models: files, Slots: s.config.Slots, Context: s.config.Context, IdleNanos: int64(s.config.IdleUnload),
		Prompts: filepath.Join(s.config.Data, "prompts"), KeepPrompts: s.config.KeepPrompts, PromptKey: s.config.PromptKey,
	}
	if o.Network == "tcp" {
		o.Address = "127.0.0.1:0"
	}
	line, err := json.Marshal(o)
	if err != nil {
		return false, err
	}
	exe, err := os.Executable()
	if err != nil {
		return false, fmt.Errorf("cannot find this program: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, WorkerArg)
	// Without this variable a failed assertion in ggml starts a debugger.
	cmd.Env = append(os.Environ(), "GGML_NO_BACKTRACE=1")
	cmd.SysProcAttr = childAttributes()
	var stderr outputTail
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return false, err
	}
	// The worker ends itself, after it has stored its prompts.
	cmd.Cancel, cmd.WaitDelay = in.Close, leaveTimeout
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("cannot start it: %w", err)
	}
	reading, err := s.start(in, out, append(line, '\n'), o.Secret, cancel)
	if err == nil {
		s.config.Log.Info("the inference worker is ready", "pid", cmd.Process.Pid)
		if !slices.Equal(files, s.readable()) { // changed during the start
			go func() {
				if err := s.sendModels(ctx); err != nil && ctx.Err() == nil {
					s.config.Log.Warn("the models of the inference worker are those of its start", "error", err)
				}
			}()
		}
		io.Copy(io.Discard, out) // until the worker ends
	}
	cancel()
	ended := cmd.Wait()
	// A process that another one ended has no status. A GPU library may be the cause, too,
	// so the next worker runs without one before the file is.
	if crashed := cmd.ProcessState.ExitCode() > 0; err != nil && crashed && reading != nil && len(gpus) == 0 {
		s.mu.Lock()
		s.crashing[*reading] = true
		s.mu.Unlock()
		return false, errCrashingFile
	}
	return err == nil, errors.Join(cmp.Or(err, ended), stderr.err())
}

// errCrashingFile reports that a worker ended because of a file that the next one does not
// read.
var errCrashingFile = errors.New("a model file ended the inference worker")

// start sends the worker its configuration and waits until it is ready. It calls end
// after startTimeout. If it fails, reading is the model file that the worker was reading, or
// nil.
func (s *Supervisor) start(in io.Writer, out io.Reader, line []byte, secret string, end func()) (reading *ModelFile, err error) {
	if _, err := in.Write(line); err != nil {
		return nil, fmt.Errorf("cannot send its configuration: %w", err)
	}
	late := time.AfterFunc(startTimeout, end)
	defer late.Stop()
	for lines := bufio.NewReader(out); ; {
		answer, err := lines.ReadBytes('\n')
		if err != nil {
			return reading, errors.New("it ended before it was ready")
		}
		var h workerReport
		if err := json.Unmarshal(answer, &h); err != nil {
			return nil, fmt.Errorf("cannot read its report: %w", err)
		}
		switch {
		case h.Reading != nil:
			reading = h.Reading
		case h.Problem != "":
			return nil, errors.New(h.Problem)
		default:
			s.modelsChanged(s.setWorker(h, secret))
			return nil, nil
		}
	}
}

// outputTail keeps the end of a worker's standard error, which may contain a failed
// assertion. The worker writes nothing of a prompt there.
type outputTail struct{ end []byte }

const maxTail = 512

func (t *outputTail) Write(p []byte) (int, error) {
	t.end = append(t.end, p...)
	if n := len(t.end); n > maxTail {
		t.end = append(t.end[:0], t.end[n-maxTail:]...)
	}
	return len(p), nil
}

// err returns the output as an error, or nil if there is none.
func (t *outputTail) err() error {
	if text := bytes.TrimSpace(t.end); len(text) > 0 {
		return errors.New(string(text))
	}
	return nil
}
