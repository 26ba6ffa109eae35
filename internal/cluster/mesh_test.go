package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	open []net.Conn
	away bool // no connection is made
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	away := p.away
	p.mu.Unlock()
	if away {
		return nil, net.ErrClosed
	}
	a, b := net.Pipe()
	select {
	case p.conns <- b:
		p.mu.Lock()
		p.open = append(p.open, a, b)
		p.mu.Unlock()
		return a, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cut breaks every connection; while away is true no other is made.
func (p *pipes) cut(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}

// pair is two nodes; a dials b.
type pair struct {
	a, b *mesh
	net  *pipes
	peer *peer
}

// inPair runs a test in a bubble with two nodes that trust each other.
func inPair(t *testing.T, handler http.HandlerFunc, test func(context.Context, *pair)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := newPipes()
		a := meshOn(t, n)
		b := meshOn(t, n)
		b.trust([]account.Node{{Name: "a", Pin: a.pin}})
		p := &pair{a: a, b: b, net: n, peer: a.peer(account.Node{Name: "b", Address: "b:8703", Pin: b.pin})}
		var running sync.WaitGroup
		running.Go(func() {
			if err := b.serve(ctx, n, handler); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() { p.peer.run(ctx) })
		test(ctx, p)
		cancel()
		running.Wait()
	})
}

func meshOn(t *testing.T, n *pipes) *mesh {
	t.Helper()
	m := assert.Value(newMesh(n.dial, slog.New(slog.DiscardHandler)))(t)
	return m
}

func get(ctx context.Context, p *peer, path string) (*http.Response, error) {
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://machine"+path, nil)
	return p.RoundTrip(r)
}

func TestRequest(t *testing.T) {
	inPair(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.URL.Path+" "+r.Proto)
	}, func(ctx context.Context, p *pair) {
		assert.Value(p.peer.awaitLink(ctx))(t)
		response, err := get(ctx, p.peer, "/x")
		assert.OK(t, err)
		text, err := io.ReadAll(response.Body)
		assert.That(t, err == nil && string(text) == "/x HTTP/2.0", text, err)
		response.Body.Close()
	})
}

// fromConn is a connection from an address.
type fromConn struct {
	net.Conn
	from net.Addr
}

func (c fromConn) RemoteAddr() net.Addr { return c.from }

// fromListener gives the connections of a listener addresses: 192.0.2.1 as long as silent
// holds, and 192.0.2.2 afterwards.
type fromListener struct {
	*pipes
	silent atomic.Bool
}

func (l *fromListener) Accept() (net.Conn, error) {
	c, err := l.pipes.Accept()
	from := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 1}
	if l.silent.Load() {
		from.IP[15] = 1
	}
	return fromConn{c, from}, err
}

// TestSilentConnections: an address has a limited number of connections that do not show a
// node's key. Nodes connect meanwhile, as often as they like.
func TestSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := newPipes()
		a, b := meshOn(t, n), meshOn(t, n)
		b.trust([]account.Node{{Name: "a", Pin: a.pin}})
		listener := &fromListener{pipes: n}
		listener.silent.Store(true)
		var running sync.WaitGroup
		running.Go(func() {
			if err := b.serve(ctx, listener, http.NotFoundHandler()); err != nil {
				t.Error(err)
			}
		})
		var open, closed atomic.Int64
		for range 1500 {
			c := assert.Value(n.dial(ctx, ""))(t)
			open.Add(1)
			running.Go(func() {
				_, _ = c.Read(make([]byte, 1)) // until the other end closes it
				open.Add(-1)
				closed.Add(1)
			})
			synctest.Wait()
		}
		assert.Equal(t, open.Load(), maxArrivals, "silent connections are open")
		listener.silent.Store(false)
		peer := a.peer(account.Node{Name: "b", Address: "b:8703", Pin: b.pin})
		for range 2 * maxArrivals { // links that are open do not count
			assert.Value(peer.dial(ctx))(t)
		}
		time.Sleep(handshakeTimeout + time.Second)
		synctest.Wait()
		assert.Equal(t, open.Load(), 0, "silent connections are open after their time")
		cancel()
		n.cut(true)
		running.Wait()
	})
}

// Who follows a node and stops does not find it connected once more.
func TestConnectedEndsWithItsContext(t *testing.T) {
	inPair(t, func(http.ResponseWriter, *http.Request) {}, func(ctx context.Context, p *pair) {
		assert.Value(p.peer.awaitLink(ctx))(t)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		assert.Is(t, assert.Err(p.peer.awaitLink(ended)), context.Canceled, "with links and an ended context")
	})
}

func TestUnknownKeyIsRefused(t *testing.T) {
	inPair(t, func(w http.ResponseWriter, r *http.Request) {}, func(ctx context.Context, p *pair) {
		lost, err := p.peer.awaitLink(ctx)
		assert.OK(t, err)
		p.b.trust(nil) // the database knows node a no more
		response, err := get(ctx, p.peer, "/")
		if err != nil || response.StatusCode != http.StatusForbidden {
			t.Fatalf("a request of a node that is not trusted any more: %v, %v", response, err)
		}
		response.Body.Close()
		p.net.cut(false)
		<-lost
		time.Sleep(time.Minute)
		if response, err := get(ctx, p.peer, "/"); !errors.Is(err, errLost) {
			t.Errorf("a node that is not trusted connected again: %v, %v", response, err)
		}
	})
}

func TestAnotherProcessAtTheAddress(t *testing.T) {
	inPair(t, func(w http.ResponseWriter, r *http.Request) {}, func(ctx context.Context, p *pair) {
		wrong := p.a.peer(account.Node{Name: "c", Address: "c:8703", Pin: strings.Repeat("0", 64)})
		if _, err := wrong.dial(ctx); err == nil || !strings.Contains(err.Error(), `the process at c:8703 is not hub node "c"`) {
			t.Errorf("dialled a node of another key: %v", err)
		}
	})
}

func TestLostLink(t *testing.T) {
	inPair(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			io.WriteString(w, "some")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	}, func(ctx context.Context, p *pair) {
		lost := assert.Value(p.peer.awaitLink(ctx))(t)
		response := assert.Value(get(ctx, p.peer, "/begun"))(t)
		before := make(chan error, 1)
		go func() { _, err := get(ctx, p.peer, "/"); before <- err }()
		synctest.Wait()
		p.net.cut(true)
		<-lost
		assert.Is(t, <-before, errLost, "a request without an answer ended with")
		if text, err := io.ReadAll(response.Body); !errors.Is(err, errLost) || string(text) != "some" {
			t.Errorf("an answer that began ended with %q, %v", text, err)
		}
		p.net.cut(false)
		if _, err := p.peer.awaitLink(ctx); err != nil {
			t.Errorf("did not connect again: %v", err)
		}
	})
}
