package tunnel

import (
	"context"
	"encoding/json/v2"
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

	"github.com/kith/kith/internal/fleet"
)

const (
	// offersInterval is the minimum time between two lines of GET /offers. Changes within
	// it are sent as one.
	offersInterval = 50 * time.Millisecond
	// maxTunnels is the maximum number of open tunnels. There are more than two if
	// several hub nodes are replaced one after another during long calls.
	maxTunnels = 8
	// maxControl is the maximum size of the body of POST /control, in bytes.
	maxControl = 64 << 10
)

// session is the machine's end of one tunnel, from the 101 until it is lost: an HTTP/2
// server on the connection that handles the protocol's own requests.
type session struct {
	dialer     *Dialer
	conn       *conn
	generation int64
	node       string // name of the hub node
	acked      event
	fenced     event
	moveAsked  event // by the hub
	moving     event // moveAsked, after the acknowledgement

	calls map[string]int // number of running calls, by model; guarded by Dialer.tunnels.mu
}

// event is a condition that becomes true once.
type event struct {
	once sync.Once
	done chan struct{} // closed by set
}

func newEvent() event { return event{done: make(chan struct{})} }

func (e *event) set() { e.once.Do(func() { close(e.done) }) }

func (e *event) isSet() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

func newSession(d *Dialer, on upgraded) *session {
	return &session{
		dialer: d, conn: newConn(on.Conn, machineFrames), generation: on.generation, node: on.node,
		acked: newEvent(), fenced: newEvent(), moveAsked: newEvent(), moving: newEvent(), calls: make(map[string]int),
	}
}

// run serves the hub's requests until the connection ends, and returns why it did.
// Handlers may still be running afterwards, but their contexts have ended.
func (s *session) run(ctx context.Context) error {
	s.dialer.tunnels.add(s)
	defer s.dialer.tunnels.remove(s)
	closed := make(chan struct{})
	server := &http.Server{
		Handler:        s,
		Protocols:      priorKnowledge(),
		HTTP2:          http2Config(),
		MaxHeaderBytes: maxHeader,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ErrorLog:       slog.NewLogLogger(s.dialer.logger().Handler(), slog.LevelDebug),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				close(closed)
			}
		},
	}
	var writer sync.WaitGroup
	writer.Go(s.conn.writeLoop)
	// Serve returns at once, because the listener has only this connection.
	_ = server.Serve(&oneConn{conn: s.conn})
	defer func() {
		s.conn.Close()
		writer.Wait()
		<-closed // no handler starts afterwards
	}()
	err := s.watch(ctx)
	// The hub closes the connection immediately after the fence.
	if s.fenced.isSet() {
		err = ErrFenced
	}
	return err
}

// watch waits until the session ends, and returns why.
func (s *session) watch(ctx context.Context) error {
	timeout := time.NewTimer(ackTimeout)
	defer timeout.Stop()
	acked, moveAsked := s.acked.done, (chan struct{})(nil)
	for {
		select {
		case <-acked:
			acked, moveAsked = nil, s.moveAsked.done
			timeout.Stop()
			s.dialer.state(State{Phase: Acked, Node: s.node})
		case <-moveAsked:
			moveAsked = nil
			if s.dialer.tunnels.count() < maxTunnels {
				s.moving.set()
			}
		case <-timeout.C:
			return errNoAck
		case <-s.fenced.done:
			select { // the hub reads the response, then closes
			case <-s.conn.done:
			case <-time.After(fenceTimeout):
			}
			return ErrFenced
		case <-s.conn.done:
			return s.conn.cause()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ServeHTTP handles the protocol's own requests and passes calls to the Handler.
func (s *session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/offers":
		s.offers(w, r)
	case "/ack":
		s.acked.set()
		w.WriteHeader(http.StatusNoContent)
	case "/fenced":
		s.fenced.set()
		w.WriteHeader(http.StatusNoContent)
	case PathMove:
		s.moveAsked.set()
		w.WriteHeader(http.StatusNoContent)
	case PathControl:
		s.control(w, r)
	case PathNotice:
		s.notice(w, r)
	case PathEnded:
		select {
		case <-s.dialer.tunnels.callEnded(r.Header):
			w.WriteHeader(http.StatusNoContent)
		case <-r.Context().Done():
		}
	default:
		if s.fenced.isSet() {
			w.Header().Set(HeaderRefused, string(RefusedFenced))
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer s.dialer.tunnels.startCall(s, r.Header)()
		s.dialer.Handler.ServeHTTP(w, r)
	}
}

// offers writes the machine's state at once and after each change, until the tunnel ends.
func (s *session) offers(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w).Flush
	w.Header().Set("Content-Type", "application/jsonl")
	var sent Advertisement
	for first := true; ; first = false {
		ad, changed := s.dialer.Advertise()
		ad.Version, ad.Generation = Version, s.generation
		olderChanged := s.dialer.tunnels.addOlderCalls(s, &ad)
		if first || !equalExceptFree(ad, sent) {
			line, err := json.Marshal(ad)
			if err != nil {
				s.conn.setCause(fmt.Errorf("cannot write this machine's offers: %w", err))
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
		case <-olderChanged:
		case <-r.Context().Done():
			return
		}
		select {
		case <-time.After(offersInterval):
		case <-r.Context().Done():
			return
		}
	}
}

// equalExceptFree reports whether two states differ at most in free slots. The hub
// computes those itself, because it knows its own calls and all others are reported as
// local. So a call does not send a line of offers.
func equalExceptFree(a, b Advertisement) bool {
	for _, ad := range []*Advertisement{&a, &b} {
		ad.Free, ad.Models = 0, slices.Clone(ad.Models)
		for i := range ad.Models {
			ad.Models[i].Free = 0
		}
	}
	return reflect.DeepEqual(a, b)
}

func (s *session) control(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxControl))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	var change Control
	switch err = json.Unmarshal(body, &change); {
	case err != nil:
	case change.Models != nil:
		s.files(w, r, *change.Models)
		return
	case s.dialer.Control == nil:
		err = errors.New("this daemon takes no changes from the hub")
	default:
		err = s.dialer.Control(r.Context(), change.Control)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// files carries out an act on this machine's model files. 403 means that it takes none from
// elsewhere.
func (s *session) files(w http.ResponseWriter, r *http.Request, act fleet.FileAct) {
	err := fleet.ErrFilesOff
	var files fleet.ModelFiles
	if s.dialer.Files != nil {
		files, err = s.dialer.Files(r.Context(), act)
	}
	switch {
	case errors.Is(err, fleet.ErrFilesOff):
		http.Error(w, err.Error(), http.StatusForbidden)
	case err != nil:
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.MarshalWrite(w, files) // the only possible error is a closed connection
	}
}

func (s *session) notice(w http.ResponseWriter, r *http.Request) {
	var notice Notice
	if err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxControl), &notice); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	if s.dialer.Notice != nil {
		s.dialer.Notice(notice)
	}
	w.WriteHeader(http.StatusNoContent)
}

type oneConn struct{ conn *conn }

// Accept implements net.Listener.
func (l *oneConn) Accept() (net.Conn, error) {
	c := l.conn
	if c == nil {
		return nil, io.EOF
	}
	l.conn = nil
	return c, nil
}

// Close implements net.Listener. It leaves the connection open.
func (l *oneConn) Close() error { return nil }

// Addr implements net.Listener.
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
