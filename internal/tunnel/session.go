package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	// offersPace is the least time between two lines of GET /offers: changes
	// that come closer together travel as one.
	offersPace = 50 * time.Millisecond
	// maxControl bounds the body of POST /control, in bytes.
	maxControl = 64 << 10
)

// session is the machine's end of one tunnel, from 101 to its loss: the HTTP/2
// server on the dialled connection and the protocol's own requests.
type session struct {
	dialer     *Dialer
	conn       *conn
	generation int64
	acked      event
	fenced     event
	calls      calls
}

// event happens once.
type event struct {
	once sync.Once
	done chan struct{}
}

func newEvent() event { return event{done: make(chan struct{})} }

func (e *event) happen() { e.once.Do(func() { close(e.done) }) }

func (e *event) happened() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

func newSession(d *Dialer, below net.Conn, generation int64) *session {
	return &session{dialer: d, conn: newDaemonConn(below), generation: generation, acked: newEvent(), fenced: newEvent()}
}

// run serves the hub until the connection ends and says why it did. Handlers
// may still run then; their contexts have ended.
func (s *session) run(ctx context.Context) (acked bool, err error) {
	closed := make(chan struct{})
	server := &http.Server{
		Handler:        s,
		Protocols:      priorKnowledge(),
		HTTP2:          http2Config(),
		MaxHeaderBytes: maxHead,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ErrorLog:       slog.NewLogLogger(s.dialer.logger().Handler(), slog.LevelDebug),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				close(closed)
			}
		},
	}
	var sent sync.WaitGroup
	sent.Go(s.conn.send)
	// It returns at once: the listener has the one connection and no other.
	_ = server.Serve(&oneConn{conn: s.conn})
	defer func() {
		s.conn.Close()
		sent.Wait()
		<-closed // from here no handler begins
	}()
	err = s.watch(ctx)
	// A fence and the hub's closing of the connection come together.
	if s.fenced.happened() {
		err = ErrFenced
	}
	return s.acked.happened(), err
}

// watch waits for what ends the session.
func (s *session) watch(ctx context.Context) error {
	late := time.NewTimer(ackWithin)
	defer late.Stop()
	acked := s.acked.done
	for {
		select {
		case <-acked:
			acked = nil
			late.Stop()
			s.dialer.state(State{Phase: Acked})
		case <-late.C:
			return errNoAck
		case <-s.fenced.done:
			select { // the hub closes; it learns of the answer to its word first
			case <-s.conn.done:
			case <-time.After(fenceWait):
			}
			return ErrFenced
		case <-s.conn.done:
			return s.conn.cause()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ServeHTTP answers the protocol's own requests and passes on the calls.
func (s *session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/offers":
		s.offers(w, r)
	case "/ack":
		s.acked.happen()
		w.WriteHeader(http.StatusNoContent)
	case "/fenced":
		s.fenced.happen()
		w.WriteHeader(http.StatusNoContent)
	case "/control":
		s.control(w, r)
	case PathEnded:
		s.ended(w, r)
	default:
		if s.fenced.happened() {
			w.Header().Set(HeaderRefused, string(RefusedFenced))
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer s.calls.begin(r.Header)()
		s.dialer.Handler.ServeHTTP(w, r)
	}
}

// ended answers once the call that it names has ended.
func (s *session) ended(w http.ResponseWriter, r *http.Request) {
	select {
	case <-s.calls.end(r.Header):
		w.WriteHeader(http.StatusNoContent)
	case <-r.Context().Done():
	}
}

// calls are the calls that run, each with a channel that is closed at its end.
type calls struct {
	mu      sync.Mutex
	running map[string]chan struct{}
}

func callName(h http.Header) string { return h.Get(HeaderCorrelation) + " " + h.Get(HeaderAttempt) }

// begin notes a call until the function that it returns is called.
func (c *calls) begin(h http.Header) (end func()) {
	name, ended := callName(h), make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = make(map[string]chan struct{})
	}
	c.running[name] = ended
	return func() {
		close(ended)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.running[name] == ended {
			delete(c.running, name)
		}
	}
}

var noCall = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// end is closed once the call has ended; at once for one that does not run.
func (c *calls) end(h http.Header) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ended, ok := c.running[callName(h)]; ok {
		return ended
	}
	return noCall
}

// offers writes the machine's state, at once and at each change, for as long as
// the tunnel lives.
func (s *session) offers(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w).Flush
	w.Header().Set("Content-Type", "application/jsonl")
	var sent Advertisement
	for first := true; ; first = false {
		ad, changed := s.dialer.Advertise()
		ad.Version, ad.Generation = Version, s.generation
		if first || !sameButFree(ad, sent) {
			line, err := json.Marshal(ad)
			if err != nil {
				s.conn.because(fmt.Errorf("cannot write this machine's offers: %w", err))
				s.conn.Close()
				return
			}
			if _, err := w.Write(append(line, '\n')); err != nil || flush() != nil {
				return
			}
			sent = ad
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		select {
		case <-time.After(offersPace):
		case <-r.Context().Done():
			return
		}
	}
}

// sameButFree reports whether two states differ in nothing but free slots,
// which the hub counts for itself: it knows its own calls, and the others are
// reported as local. So a call costs no line of offers.
func sameButFree(a, b Advertisement) bool {
	return reflect.DeepEqual(withoutFree(a), withoutFree(b))
}

func withoutFree(a Advertisement) Advertisement {
	a.Free = 0
	a.Models = slices.Clone(a.Models)
	for i := range a.Models {
		a.Models[i].Free = 0
	}
	return a
}

// control takes a change the owner made elsewhere.
func (s *session) control(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxControl))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	var change Control
	err = json.Unmarshal(body, &change)
	if err == nil {
		if s.dialer.Control == nil {
			err = errors.New("this daemon takes no changes from the hub")
		} else {
			err = s.dialer.Control(r.Context(), change)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// oneConn is a listener with one connection.
type oneConn struct{ conn *conn }

// Accept satisfies net.Listener.
func (l *oneConn) Accept() (net.Conn, error) {
	c := l.conn
	if c == nil {
		return nil, io.EOF
	}
	l.conn = nil
	return c, nil
}

// Close satisfies net.Listener; the connection outlives it.
func (l *oneConn) Close() error { return nil }

// Addr satisfies net.Listener.
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
