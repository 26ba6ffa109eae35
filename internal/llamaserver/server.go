package llamaserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// After a crash a server is restarted after a random delay of up to firstBackoff,
	// doubling with each further crash up to maxBackoff. Full jitter keeps many machines
	// with the same model from retrying at the same time.
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// After a server ran for stableAfter, the limit is firstBackoff again.
	stableAfter    = time.Minute
	loadTimeout    = 10 * time.Minute
	healthInterval = 100 * time.Millisecond
	// removedInterval is how often the server of a removed model checks whether its calls
	// have ended.
	removedInterval = time.Second
	// exitTimeout is how long a process may take to exit after SIGTERM.
	exitTimeout = 3 * time.Second
)

// Server is a model and, while the model is in use, its process. A removed model has a
// problem.
type Server struct {
	pool      *Pool
	file      File
	info      modelInfo
	context   int    // per slot, in tokens
	needs     uint64 // bytes when loaded
	problem   string // why it can never be served
	transport *http.Transport
	starts    chan *start                // the requested start
	removed   chan struct{}              // closed when the model is removed
	backoff   backoff.ExponentialBackOff // only used by run

	mu        sync.Mutex
	model     Model
	starting  *start    // the requested or current start
	onGPU     uint64    // bytes of GPU memory used by the process
	address   string    // of the socket; empty if not running
	users     int       // calls that are running or waiting for the start
	idleSince time.Time // when users was last 0
	evictions chan chan bool
	exited    chan struct{} // closed when the current process has ended
	notBefore time.Time     // earliest time of the next start
	crash     error         // the error of the last crash
	loads     bool          // the crashed process had loaded the model
}

// start is one attempt to start the server.
type start struct {
	done chan struct{}
	err  error // set before done is closed
}

func newServer(p *Pool, file File) *Server {
	s := &Server{pool: p, file: file, starts: make(chan *start, 1), removed: make(chan struct{}), evictions: make(chan chan bool)}
	s.backoff = backoff.ExponentialBackOff{InitialInterval: firstBackoff / 2, MaxInterval: maxBackoff / 2, Multiplier: 2, RandomizationFactor: 1}
	s.transport = &http.Transport{DialContext: s.dial, DisableCompression: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: 4 * time.Second}
	s.model.ID = file.ID
	f, err := inspect(file.Path)
	if err != nil {
		s.problem = err.Error()
		return s
	}
	if projector, err := os.Stat(file.Projector); err == nil {
		f.size += uint64(projector.Size())
	}
	s.info, s.context = *f, min(p.config.Context, f.context)
	s.model = Model{ID: file.ID, ContextLength: s.context, Slots: p.config.Slots, Embeddings: f.embeds, Tools: f.tools && !f.embeds, Facts: f.facts}
	s.needs = f.needs(p.config.Slots, s.context)
	return s
}

// run starts the process on each request until ctx ends or the model is removed.
func (s *Server) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.refuse("kith is ending")
			return
		case <-s.removed:
			s.refuse(isRemoved)
			return
		case st := <-s.starts:
			s.runOnce(ctx, st)
		}
	}
}

// isRemoved is the problem of a removed model.
const isRemoved = "its file was removed"

// remove makes s refuse all new calls, and end after its current calls.
func (s *Server) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = isRemoved
	close(s.removed)
}

func (s *Server) isRemoved() bool {
	select {
	case <-s.removed:
		return true
	default:
		return false
	}
}

// refuse makes s refuse all new calls for the given reason.
func (s *Server) refuse(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = why
	select {
	case st := <-s.starts:
		st.err = errors.New(s.problem)
		close(st.done)
	default:
	}
}

// runOnce runs the process for the start st until it ends.
func (s *Server) runOnce(ctx context.Context, st *start) {
	began, ready := time.Now(), false
	finish := func(err error) {
		s.mu.Lock()
		s.starting = nil
		s.mu.Unlock()
		st.err = err
		close(st.done)
	}
	crashed, err := s.runProcess(ctx, func() {
		ready = true
		finish(nil)
	})
	if crashed {
		if time.Since(began) >= stableAfter {
			s.backoff.Reset()
		}
		pause := s.backoff.NextBackOff()
		s.mu.Lock()
		s.notBefore, s.crash, s.loads = time.Now().Add(pause), err, ready
		s.mu.Unlock()
		s.pool.config.Log.Warn("llama-server ended", "model", s.file.ID, "cause", err, "not_before", pause)
	}
	if !ready {
		finish(err)
	}
}

// runProcess runs the process until it ends. It calls ready when the model is loaded.
// crashed reports that the process ended by itself.
func (s *Server) runProcess(ctx context.Context, ready func()) (crashed bool, err error) {
	select {
	case s.pool.loading <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	loaded := sync.OnceFunc(func() { <-s.pool.loading })
	defer loaded()
	if err := s.pool.makeRoom(ctx, s); err != nil {
		return false, err
	}
	before := s.pool.freeGPU()
	dir, err := os.MkdirTemp("", "kith-")
	if err != nil {
		return false, fmt.Errorf("cannot make a folder for its socket: %w", err)
	}
	defer os.RemoveAll(dir)
	address, err := freeAddress(dir)
	if err != nil {
		return false, err
	}
	// The kernel kills the process when the thread that started it ends, so this goroutine
	// keeps the thread until then.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, end := context.WithCancel(ctx)
	defer end()
	cmd := s.command(own, address)
	output := new(outputTail)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return true, fmt.Errorf("cannot start it: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := s.awaitHealth(own, address, ended); err != nil {
		end()
		<-ended
		return ctx.Err() == nil, output.annotate(err)
	}
	output.discard() // later output may contain text of calls
	s.readProps(own, address)
	s.pool.readGPUs(own)
	exited, taken := make(chan struct{}), before-min(before, s.pool.freeGPU())
	s.mu.Lock()
	s.address, s.idleSince, s.exited, s.onGPU = address, time.Now(), exited, taken
	s.mu.Unlock()
	loaded()
	s.pool.config.Log.Info("llama-server is ready", "model", s.file.ID, "pid", cmd.Process.Pid)
	ready()
	reply, err := s.awaitEnd(ctx, ended)
	s.mu.Lock()
	s.address = ""
	s.mu.Unlock()
	s.transport.CloseIdleConnections()
	if err == nil {
		end()
		<-ended
	}
	s.pool.readGPUs(ctx)
	close(exited)
	if reply != nil {
		reply <- true
	}
	return err != nil, err
}

// freeAddress returns an address to listen on: a socket in the private folder
// dir, or a free port on Windows.
func freeAddress(dir string) (string, error) {
	if runtime.GOOS != "windows" {
		return filepath.Join(dir, "s.sock"), nil // llama-server recognizes sockets by this suffix
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (s *Server) command(ctx context.Context, address string) *exec.Cmd {
	slots := s.pool.config.Slots
	args := []string{
		"-m", s.file.Path, "--alias", s.file.ID, "-np", strconv.Itoa(slots), "-c", strconv.Itoa(slots * s.context),
		"--metrics", "--offline",
	}
	if host, port, err := net.SplitHostPort(address); err == nil {
		args = append(args, "--host", host, "--port", port)
	} else {
		args = append(args, "--host", address)
	}
	if s.file.Projector != "" {
		args = append(args, "--mmproj", s.file.Projector)
	}
	if s.info.embeds {
		// An input to embed must fit into one batch, so the batch is as long as the
		// context.
		batch := strconv.Itoa(s.context)
		args = append(args, "--embeddings", "-b", batch, "-ub", batch)
		if !s.info.pooled {
			args = append(args, "--pooling", "mean")
		}
	}
	cmd := exec.CommandContext(ctx, s.pool.config.Program, args...)
	// Without the first variable a failed assertion starts a debugger. The second one
	// disables the prompt cache in main memory: its memory is not included in needs, and
	// it is used for every call, even with cache_prompt false.
	cmd.Env = append(os.Environ(), "GGML_NO_BACKTRACE=1", "LLAMA_ARG_CACHE_RAM=0")
	cmd.SysProcAttr = childAttributes()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = exitTimeout
	return cmd
}

// awaitHealth waits until the server reports that its model is loaded.
func (s *Server) awaitHealth(ctx context.Context, address string, ended chan error) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	for {
		if resp, err := get(ctx, address, "/health"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("it ended before its model was loaded: %w", cmp.Or(err, errStatus0))
		case <-ctx.Done():
			return errors.New("its model was not loaded in time")
		case <-time.After(healthInterval):
		}
	}
}

// errStatus0 is the error of a process that ended by itself, with exit status 0.
var errStatus0 = errors.New("it ended with status 0")

// awaitEnd waits until the process should end (nil) or has ended by itself (the error).
// If reply is not nil, the caller sends to it after the process has ended.
func (s *Server) awaitEnd(ctx context.Context, ended chan error) (reply chan bool, err error) {
	removed := s.removed
	for {
		var over <-chan time.Time
		if s.isRemoved() {
			if removed = nil; s.closeIfIdle() {
				return nil, nil
			}
			over = time.After(removedInterval)
		} else if limit := s.pool.config.IdleUnload; limit > 0 {
			left := limit
			if since, idle := s.idle(); idle {
				left -= time.Since(since)
			}
			if left <= 0 && s.closeIfIdle() {
				s.pool.config.Log.Info("llama-server is idle and ends", "model", s.file.ID)
				return nil, nil
			}
			over = time.After(left)
		}
		select {
		case <-over:
		case <-removed:
		case reply := <-s.evictions:
			if s.closeIfIdle() {
				return reply, nil
			}
			reply <- false
		case err := <-ended:
			ended <- err
			return nil, cmp.Or(err, errStatus0)
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// closeIfIdle stops accepting calls if none is running, and reports whether it did. A
// later call then waits for the next start and is not interrupted by this end.
func (s *Server) closeIfIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 {
		return false
	}
	s.address = ""
	return true
}

// idle reports whether the server is running without calls, and since when.
func (s *Server) idle() (since time.Time, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idleSince, s.address != "" && s.users == 0
}

// evict ends the server if it is idle, and reports whether the server has ended.
func (s *Server) evict(ctx context.Context) bool {
	s.mu.Lock()
	exited := s.exited
	s.mu.Unlock()
	reply := make(chan bool, 1)
	select {
	case s.evictions <- reply:
		return <-reply
	case <-exited:
		return true
	case <-ctx.Done():
		return false
	}
}

// ErrRunning is the error of Unload while a call is running.
var ErrRunning = errors.New("a call runs on it: wait until it has ended")

// ID returns the id that the model is offered as.
func (s *Server) ID() string { return s.file.ID }

// Loaded reports whether the model is in memory. loading reports that it soon is, or not.
func (s *Server) Loaded() (loaded, loading bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address != "", s.starting != nil
}

// Load starts the server now, and not at its first call, and waits until its model is
// loaded. It ends IdleUnload later if there is no call.
func (s *Server) Load(ctx context.Context) error {
	err := s.acquire(ctx, true)
	if err == nil {
		s.release()
	}
	return err
}

// Unload ends the server and waits for that. It fails with ErrRunning if a call is running
// or waits for its start.
func (s *Server) Unload(ctx context.Context) error {
	switch loaded, loading := s.Loaded(); {
	case loading:
		return ErrRunning
	case !loaded, s.evict(ctx):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return ErrRunning
}

// errNotRunning is the error of requests that do not start the server.
var errNotRunning = errors.New("its llama-server is started by the next call, and by nothing else")

// acquire counts a call and waits until the server is running. If the error is nil, the
// caller must call release. Only inference calls start the server.
func (s *Server) acquire(ctx context.Context, call bool) error {
	s.mu.Lock()
	if s.problem != "" {
		s.mu.Unlock()
		return errors.New(s.problem)
	}
	if s.address != "" {
		s.users++
		s.mu.Unlock()
		return nil
	}
	if left := time.Until(s.notBefore); left > 0 {
		cause := s.crash
		s.mu.Unlock()
		return fmt.Errorf("its llama-server ended (%w) and is not started again for %v", cause, left.Round(time.Millisecond))
	}
	if !call {
		s.mu.Unlock()
		return errNotRunning
	}
	st := s.starting
	if st == nil {
		st = &start{done: make(chan struct{})}
		s.starting = st
		s.starts <- st // never blocks, because there is only one start at a time
	}
	s.users++
	s.mu.Unlock()
	select {
	case <-st.done:
		if st.err != nil {
			s.release()
		}
		return st.err
	case <-ctx.Done():
		s.release()
		return ctx.Err()
	}
}

func (s *Server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		s.idleSince = time.Now()
	}
}

func (s *Server) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	s.mu.Lock()
	address := s.address
	s.mu.Unlock()
	if address == "" {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: errors.New("its llama-server has ended")}
	}
	return dialTo(ctx, address)
}

func dialTo(ctx context.Context, address string) (net.Conn, error) {
	network := "unix"
	if _, _, err := net.SplitHostPort(address); err == nil {
		network = "tcp"
	}
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// RoundTrip implements http.RoundTripper. It ignores the host of requests and starts the
// server if necessary. If the server cannot run now, the error is a *net.OpError of a
// dial: nothing was sent.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := s.acquire(r.Context(), strings.HasPrefix(r.URL.Path, "/v1/")); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		if r.Context().Err() != nil {
			return nil, err
		}
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: err}
	}
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", "llama-server"
	resp, err := s.transport.RoundTrip(r)
	if err != nil {
		s.release()
		return nil, err
	}
	resp.Body = &callBody{ReadCloser: resp.Body, release: sync.OnceFunc(s.release)}
	return resp, nil
}

// callBody is the body of an answer; closing it ends the call.
type callBody struct {
	io.ReadCloser
	release func()
}

func (l *callBody) Close() error {
	defer l.release()
	return l.ReadCloser.Close()
}

// outputTail keeps the end of a process's output until discard.
type outputTail struct {
	mu        sync.Mutex
	end       []byte
	discarded bool
}

const maxTail = 512

func (t *outputTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.discarded {
		t.end = append(t.end, p...)
		if n := len(t.end); n > maxTail {
			t.end = append(t.end[:0], t.end[n-maxTail:]...)
		}
	}
	return len(p), nil
}

func (t *outputTail) discard() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end, t.discarded = nil, true
}

// annotate adds the output to err.
func (t *outputTail) annotate(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if words := bytes.Fields(t.end); len(words) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.Join(words, []byte(" ")))
	}
	return err
}

const (
	propsTimeout  = 5 * time.Second
	maxPropsBytes = 1 << 20 // the answer holds the chat template
)

// props is the used part of llama-server's answer to GET /props.
type props struct {
	Settings struct {
		Context int `json:"n_ctx"` // tokens of each slot
	} `json:"default_generation_settings"`
	Slots      int `json:"total_slots"`
	Modalities struct {
		Vision bool `json:"vision"`
		Audio  bool `json:"audio"`
	} `json:"modalities"`
	Template *struct {
		Tools bool `json:"supports_tools"`
		Calls bool `json:"supports_tool_calls"`
	} `json:"chat_template_caps"`
}

// readProps updates s.model from the server's properties of the loaded model. Without an
// answer, the values from the file remain.
func (s *Server) readProps(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, propsTimeout)
	defer cancel()
	var got props
	if err := getProps(ctx, address, &got); err != nil {
		s.pool.config.Log.Warn("cannot read llama-server's properties of its model", "model", s.file.ID, "cause", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got.Settings.Context > 0 {
		s.model.ContextLength = min(s.context, got.Settings.Context)
	}
	if got.Slots > 0 {
		s.model.Slots = min(s.pool.config.Slots, got.Slots)
	}
	if s.model.Embeddings {
		return
	}
	s.model.Vision, s.model.Audio = got.Modalities.Vision, got.Modalities.Audio
	if got.Template != nil {
		s.model.Tools = got.Template.Tools || got.Template.Calls
	}
}

func getProps(ctx context.Context, address string, into *props) error {
	resp, err := get(ctx, address, "/props")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered with status %d", resp.StatusCode)
	}
	return json.UnmarshalRead(io.LimitReader(resp.Body, maxPropsBytes), into)
}

// get requests a page of a server over a separate connection.
func get(ctx context.Context, address, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://llama-server"+path, nil)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialTo(ctx, address) }}
	return t.RoundTrip(req)
}
