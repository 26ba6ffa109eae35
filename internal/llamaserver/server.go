package llamaserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
)

const (
	firstPause = 500 * time.Millisecond // the most after a first crash
	longPause  = 30 * time.Second       // and after many
	// steadyAfter is how long a server must live for its end to count as the
	// first again.
	steadyAfter = time.Minute
	// loadTime is how long a server may take to load its model.
	loadTime = 10 * time.Minute
	// healthEvery is how often it is asked meanwhile.
	healthEvery = 100 * time.Millisecond
	// endTime is how long it may take to end when it was told to.
	endTime = 3 * time.Second
)

// server is one model and, while it is in use, its process.
type server struct {
	pool      *Pool
	file      File
	facts     facts
	context   int    // tokens of each slot that are asked for
	needs     uint64 // bytes, once loaded
	problem   string // why it can never be served
	transport *http.Transport
	wanted    chan *start // a start that somebody waits for

	mu        sync.Mutex
	model     Model
	starting  *start    // nil: none is under way
	onGPU     uint64    // bytes that the process took there
	address   string    // of the socket; empty: it does not run
	users     int       // calls that run or wait for the start
	idleSince time.Time // when users was last 0
	evicting  chan chan bool
	gone      chan struct{} // closed when the process that runs now has ended
	failures  int
	coolUntil time.Time // no start before
	cause     error     // of the last crash
}

// start is one attempt at running the server.
type start struct {
	done chan struct{}
	err  error // after done
}

func newServer(p *Pool, file File) *server {
	s := &server{pool: p, file: file, wanted: make(chan *start, 1), evicting: make(chan chan bool)}
	s.transport = &http.Transport{DialContext: s.dial, DisableCompression: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: 4 * time.Second}
	s.model.ID = file.ID
	f, err := inspect(file.Path)
	if err != nil {
		s.problem = err.Error()
		return s
	}
	s.facts, s.context = *f, min(p.config.Context, f.context)
	s.model = Model{ID: file.ID, ContextLength: s.context, Slots: p.config.Slots, Embeddings: f.embeds, Tools: f.tools && !f.embeds}
	s.needs = f.needs(p.config.Slots, s.context)
	return s
}

// run starts the process whenever it is wanted, until ctx ends.
func (s *server) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.close()
			return
		case want := <-s.wanted:
			s.live(ctx, want)
		}
	}
}

// close refuses all calls from now on.
func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = "kith is ending"
	select {
	case want := <-s.wanted:
		want.err = errors.New(s.problem)
		close(want.done)
	default:
	}
}

// live is one attempt from its start to the end of the process.
func (s *server) live(ctx context.Context, want *start) {
	began, ready := time.Now(), false
	finish := func(err error) { // of the start
		s.mu.Lock()
		s.starting = nil
		s.mu.Unlock()
		want.err = err
		close(want.done)
	}
	crashed, err := s.process(ctx, func() {
		ready = true
		finish(nil)
	})
	if crashed {
		s.mu.Lock()
		if time.Since(began) >= steadyAfter {
			s.failures = 0
		}
		// Full jitter: many machines that meet the same model do not all retry
		// at once, nor one in a rhythm.
		pause := rand.N(min(longPause, firstPause<<min(s.failures, 10)))
		s.failures++
		s.coolUntil, s.cause = time.Now().Add(pause), err
		s.mu.Unlock()
		s.pool.config.Log.Warn("llama-server ended", "model", s.file.ID, "cause", err, "not_before", pause)
	}
	if !ready {
		finish(err)
	}
}

// process runs the process once. crashed says that it ended by itself.
func (s *server) process(ctx context.Context, ready func()) (crashed bool, err error) {
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
	before := s.pool.freeOnGPUs()
	dir, err := os.MkdirTemp("", "kith-")
	if err != nil {
		return false, fmt.Errorf("cannot make a folder for its socket: %w", err)
	}
	defer os.RemoveAll(dir)
	address, err := freeAddress(dir)
	if err != nil {
		return false, err
	}
	// The kernel ends the process with the thread that started it: that thread
	// is this goroutine's for as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, end := context.WithCancel(ctx)
	defer end()
	cmd := s.command(own, address)
	words := &tail{}
	cmd.Stdout, cmd.Stderr = words, words
	if err := cmd.Start(); err != nil {
		return true, fmt.Errorf("cannot start it: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := s.awaitHealth(own, address, ended); err != nil {
		end()
		<-ended
		return ctx.Err() == nil, words.after(err)
	}
	words.mute() // from here it could tell of calls
	s.learn(own, address)
	s.pool.readGPUs(own)
	gone, taken := make(chan struct{}), before-min(before, s.pool.freeOnGPUs())
	s.mu.Lock()
	s.address, s.idleSince, s.gone, s.onGPU = address, time.Now(), gone, taken
	s.mu.Unlock()
	loaded()
	s.pool.config.Log.Info("llama-server is ready", "model", s.file.ID, "pid", cmd.Process.Pid)
	ready()
	reply, err := s.serve(ctx, ended)
	s.mu.Lock()
	s.address = ""
	s.mu.Unlock()
	s.transport.CloseIdleConnections()
	if err == nil {
		end()
		<-ended
	}
	s.pool.readGPUs(ctx)
	close(gone)
	if reply != nil {
		reply <- true
	}
	return err != nil, err
}

// freeAddress is where a process is to listen: a socket in the folder, which is
// ours alone, or on Windows a free port.
func freeAddress(dir string) (string, error) {
	if runtime.GOOS != "windows" {
		return filepath.Join(dir, "s.sock"), nil // llama-server knows a socket by this ending
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (s *server) command(ctx context.Context, address string) *exec.Cmd {
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
	if s.facts.embeds {
		args = append(args, "--embeddings")
		if !s.facts.pooled {
			args = append(args, "--pooling", "mean")
		}
	}
	cmd := exec.CommandContext(ctx, s.pool.config.Program, args...)
	cmd.Env = append(os.Environ(), "GGML_NO_BACKTRACE=1") // else an assertion starts a debugger
	cmd.SysProcAttr = childAttributes()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endTime
	return cmd
}

// awaitHealth returns once the server says that its model is loaded.
func (s *server) awaitHealth(ctx context.Context, address string, ended chan error) error {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	probe := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialTo(ctx, address) }}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://llama-server/health", nil)
		if err != nil {
			return err
		}
		if resp, err := probe.RoundTrip(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("it ended before its model was loaded: %w", early(err))
		case <-ctx.Done():
			return errors.New("its model was not loaded in time")
		case <-time.After(healthEvery):
		}
	}
}

// early is the error of a process's end; ending well is none, and wrong here.
func early(err error) error {
	if err == nil {
		return errors.New("it ended as if all were done")
	}
	return err
}

// serve returns when the process is to end (nil, and who waits for that if
// anybody does) or has ended by itself (why).
func (s *server) serve(ctx context.Context, ended chan error) (reply chan bool, err error) {
	for {
		var over <-chan time.Time
		if limit := s.pool.config.IdleUnload; limit > 0 {
			left := limit
			if since, idle := s.idle(); idle {
				left -= time.Since(since)
			}
			if left <= 0 && s.retire() {
				s.pool.config.Log.Info("llama-server is idle and ends", "model", s.file.ID)
				return nil, nil
			}
			over = time.After(left)
		}
		select {
		case <-over:
		case asked := <-s.evicting:
			if s.retire() {
				return asked, nil
			}
			asked <- false
		case err := <-ended:
			ended <- err
			return nil, early(err)
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// retire lets nobody in any more, if nobody is, and reports that: who comes now
// waits for the next start, and is not cut off by this end.
func (s *server) retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 {
		return false
	}
	s.address = ""
	return true
}

// idle reports whether the server runs and nobody uses it, and since when.
func (s *server) idle() (since time.Time, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idleSince, s.address != "" && s.users == 0
}

func (s *server) idleFrom() time.Time {
	since, _ := s.idle()
	return since
}

// evict ends the server if it is idle, and reports whether it has ended.
func (s *server) evict(ctx context.Context) bool {
	s.mu.Lock()
	gone := s.gone
	s.mu.Unlock()
	reply := make(chan bool, 1)
	select {
	case s.evicting <- reply:
		return <-reply
	case <-gone:
		return true
	case <-ctx.Done():
		return false
	}
}

// errAsleep is why what is no call is not served now.
var errAsleep = errors.New("its llama-server is started by the next call, and by nothing else")

// enter counts a call and waits until the server runs; a nil error is to be
// followed by leave. What is no call runs no model: for it nothing is started.
func (s *server) enter(ctx context.Context, call bool) error {
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
	if left := time.Until(s.coolUntil); left > 0 {
		cause := s.cause
		s.mu.Unlock()
		return fmt.Errorf("its llama-server ended (%w) and is not started again for %v", cause, left.Round(time.Millisecond))
	}
	if !call {
		s.mu.Unlock()
		return errAsleep
	}
	want := s.starting
	if want == nil {
		want = &start{done: make(chan struct{})}
		s.starting = want
		s.wanted <- want // there is room: one start at a time
	}
	s.users++
	s.mu.Unlock()
	select {
	case <-want.done:
		if want.err != nil {
			s.leave()
		}
		return want.err
	case <-ctx.Done():
		s.leave()
		return ctx.Err()
	}
}

func (s *server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		s.idleSince = time.Now()
	}
}

func (s *server) dial(ctx context.Context, _, _ string) (net.Conn, error) {
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

// toServer is a server as a RoundTripper.
type toServer server

// RoundTrip satisfies http.RoundTripper.
func (t *toServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s := (*server)(t)
	if err := s.enter(r.Context(), strings.HasPrefix(r.URL.Path, "/v1/")); err != nil {
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
		s.leave()
		return nil, err
	}
	resp.Body = &leaving{ReadCloser: resp.Body, leave: sync.OnceFunc(s.leave)}
	return resp, nil
}

// leaving is an answer's body, whose end is the end of the call.
type leaving struct {
	io.ReadCloser
	leave func()
}

// Close satisfies io.Closer.
func (l *leaving) Close() error {
	defer l.leave()
	return l.ReadCloser.Close()
}

// tail keeps the end of what a server writes until it is muted.
type tail struct {
	mu    sync.Mutex
	end   []byte
	muted bool
}

const tailBytes = 512

// Write satisfies io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.muted {
		t.end = append(t.end, p...)
		if n := len(t.end); n > tailBytes {
			t.end = append(t.end[:0], t.end[n-tailBytes:]...)
		}
	}
	return len(p), nil
}

func (t *tail) mute() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end, t.muted = nil, true
}

// after is err with what was written last.
func (t *tail) after(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if words := bytes.Fields(t.end); len(words) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.Join(words, []byte(" ")))
	}
	return err
}
