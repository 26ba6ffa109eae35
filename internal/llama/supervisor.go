package llama

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-json-experiment/json"
)

const (
	firstPause = 500 * time.Millisecond // before the worker is started again
	longPause  = 30 * time.Second
	// steadyAfter is how long a worker must live for its end to count as the
	// first again.
	steadyAfter = time.Minute
	// startTime is how long a worker may take to say that it is ready: reading
	// the vocabularies of many models from a slow disk.
	startTime = 2 * time.Minute
)

// Supervisor keeps one worker running. Make it with NewSupervisor.
type Supervisor struct {
	config    Config
	transport *http.Transport
	ready     chan struct{} // closed once the first worker is ready

	mu      sync.Mutex
	address string // where the worker listens; "" while there is none
	secret  string
	why     error // why there is none
	models  []Model
}

// NewSupervisor checks nothing and starts nothing: Run does.
func NewSupervisor(c Config) *Supervisor {
	if c.Slots <= 0 {
		c.Slots = defaultSlots
	}
	c.Slots = min(c.Slots, maxSlots)
	if c.Context <= 0 {
		c.Context = defaultContext
	}
	s := &Supervisor{config: c, ready: make(chan struct{}), why: errors.New("the built-in engine is starting")}
	s.transport = &http.Transport{
		DialContext:        s.dial,
		DisableCompression: true,
		MaxIdleConns:       16,
		IdleConnTimeout:    time.Minute,
	}
	return s
}

// Ready is closed when the worker answers for the first time; Models is known
// from then on.
func (s *Supervisor) Ready() <-chan struct{} { return s.ready }

// Models is what the worker serves, in the order configured, without those it
// could not read. Nil before Ready.
func (s *Supervisor) Models() []Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.models), func(m Model) bool { return m.Problem != "" })
}

// Problems says which of the configured models cannot be served, and why.
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

// Transport reaches the worker that runs now, whatever host the request names.
// While none runs, its error says why; a request that ran when the worker ended
// sees its connection break.
func (s *Supervisor) Transport() http.RoundTripper { return (*toWorker)(s) }

// toWorker is a Supervisor as a RoundTripper.
type toWorker Supervisor

// RoundTrip satisfies http.RoundTripper.
func (t *toWorker) RoundTrip(r *http.Request) (*http.Response, error) {
	s := (*Supervisor)(t)
	_, secret, err := s.current()
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, &net.OpError{Op: "dial", Net: socketNetwork(), Err: err} // nothing was sent: another may be asked
	}
	r = r.Clone(r.Context())
	r.Header.Set(headerSecret, secret)
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
		return "", "", s.why
	}
	return s.address, s.secret, nil
}

// publish makes a worker the one that is reached.
func (s *Supervisor) publish(h hello, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address, s.secret, s.models = h.Address, secret, h.Models
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

// withdraw says that no worker is reached, and why.
func (s *Supervisor) withdraw(why error) {
	s.mu.Lock()
	s.address, s.why = "", why
	s.mu.Unlock()
	s.transport.CloseIdleConnections()
}

// Run keeps a worker running until ctx ends. It fails at once if there are no
// libraries (ErrNoBackend) or they cannot be unpacked; a worker that ends is
// started again after 0.5 s, then twice as long each time, up to 30 s.
func (s *Supervisor) Run(ctx context.Context) error {
	libraries, err := libraries(s.config.Data)
	if err != nil {
		s.withdraw(err)
		return err
	}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier, pause.RandomizationFactor = firstPause, longPause, 2, 0
	for {
		began := time.Now()
		err := s.life(ctx, libraries)
		if ctx.Err() != nil {
			s.withdraw(errors.New("the built-in engine was stopped"))
			return nil
		}
		if time.Since(began) >= steadyAfter {
			pause.Reset()
		}
		wait := pause.NextBackOff()
		s.withdraw(fmt.Errorf("the built-in engine is starting again: %w", err))
		s.config.Log.Warn("the inference worker ended", "cause", err, "again_in", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// life is one worker from start to end; its error says why it ended.
func (s *Supervisor) life(ctx context.Context, libraries string) error {
	// The kernel ends the worker with the thread that started it: that thread
	// is this goroutine's for as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	dir, err := os.MkdirTemp("", "kith-")
	if err != nil {
		return fmt.Errorf("cannot make a folder for its socket: %w", err)
	}
	defer os.RemoveAll(dir)
	o := order{
		Libraries: libraries, Network: socketNetwork(), Address: filepath.Join(dir, "socket"), Secret: rand.Text(),
		Models: s.config.Models, Slots: s.config.Slots, Context: s.config.Context, IdleNanos: int64(s.config.IdleUnload),
	}
	if o.Network == "tcp" {
		o.Address = "127.0.0.1:0"
	}
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, WorkerArg)
	// Without this variable an assertion in ggml starts a debugger.
	cmd.Env = append(os.Environ(), "GGML_NO_BACKTRACE=1")
	cmd.SysProcAttr = childAttributes()
	var lastWords tail
	cmd.Stderr = &lastWords
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start it: %w", err)
	}
	greeted := s.greet(in, out, append(line, '\n'), o.Secret, cancel)
	if greeted == nil {
		s.config.Log.Info("the inference worker is ready", "pid", cmd.Process.Pid)
		io.Copy(io.Discard, out) // until it ends
	}
	cancel()
	ended := cmd.Wait()
	if greeted != nil {
		return errors.Join(greeted, lastWords.err())
	}
	return errors.Join(ended, lastWords.err())
}

// greet sends the order and waits for the worker to be ready; one that says
// nothing for startTime is ended.
func (s *Supervisor) greet(in io.Writer, out io.Reader, line []byte, secret string, end func()) error {
	if _, err := in.Write(line); err != nil {
		return fmt.Errorf("cannot give it its order: %w", err)
	}
	late := time.AfterFunc(startTime, end)
	defer late.Stop()
	said, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return errors.New("it ended before it was ready")
	}
	var h hello
	if err := json.Unmarshal(said, &h); err != nil {
		return fmt.Errorf("cannot understand it: %w", err)
	}
	if h.Problem != "" {
		return errors.New(h.Problem)
	}
	for _, m := range h.Models {
		if m.Problem != "" {
			s.config.Log.Warn("a model cannot be served", "model", m.ID, "cause", m.Problem)
		}
	}
	s.publish(h, secret)
	return nil
}

// tail keeps the end of what a worker writes on standard error: an assertion's
// text. The worker never writes anything of a prompt there.
type tail struct{ end []byte }

const tailBytes = 512

// Write satisfies io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.end = append(t.end, p...)
	if n := len(t.end); n > tailBytes {
		t.end = append(t.end[:0], t.end[n-tailBytes:]...)
	}
	return len(p), nil
}

// err is what was written last, nil if nothing was.
func (t *tail) err() error {
	if text := bytes.TrimSpace(t.end); len(text) > 0 {
		return errors.New(string(text))
	}
	return nil
}
