package tunnel

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// network provides connections in memory: a listener and its dial function.
type network struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	last *link
}

func newNetwork() *network {
	return &network{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error   { n.once.Do(func() { close(n.done) }); return nil }
func (n *network) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (n *network) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	l := new(link)
	n.mu.Lock()
	n.last = l
	n.mu.Unlock()
	select {
	case n.conns <- &linkEnd{Conn: b, link: l}:
		return &linkEnd{Conn: a, link: l}, nil
	case <-n.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// blackHole makes the newest connection lose all further bytes.
func (n *network) blackHole() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last.lost.Store(true)
}

// link is one connection. After it is lost, what is written disappears.
type link struct{ lost atomic.Bool }

type linkEnd struct {
	net.Conn
	link *link
}

func (e *linkEnd) Write(p []byte) (int, error) {
	if e.link.lost.Load() {
		return len(p), nil
	}
	return e.Conn.Write(p)
}

// hub is an HTTP server in memory with the hub's end of tunnels.
type hub struct {
	*network
	server *http.Server
}

// serveHub runs a hub in memory until the test ends.
func serveHub(t *testing.T, handler http.HandlerFunc) *hub {
	t.Helper()
	h := &hub{network: newNetwork(), server: &http.Server{Handler: handler}}
	served := make(chan struct{})
	go func() { defer close(served); h.server.Serve(h.network) }()
	t.Cleanup(func() {
		h.server.Close()
		h.network.Close()
		<-served
	})
	return h
}

// acceptTunnels returns a hub's handler that upgrades the connection and sends the Client
// to out.
func acceptTunnels(t *testing.T, out chan<- *Client) http.HandlerFunc {
	var generation atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		client, err := Upgrade(w, r, UpgradeConfig{Generation: generation.Add(1)})
		if err != nil {
			t.Errorf("Upgrade: %v", err)
			return
		}
		out <- client
	}
}

// clientOn returns a Client on a connection that is upgraded already.
func clientOn(t *testing.T, below net.Conn) *Client {
	t.Helper()
	client := assert.Value(newClient(t.Context(), below, UpgradeConfig{Generation: 1}))(t)
	return client
}

// machine is a Dialer under test, with its states and the result of Run.
type machine struct {
	*Dialer
	states chan State
	ended  chan error

	mu      sync.Mutex
	ad      Advertisement
	changed chan struct{}
}

func newMachine(h *hub, handler http.HandlerFunc) *machine {
	m := &machine{states: make(chan State, 1000), ended: make(chan error, 1), changed: make(chan struct{})}
	m.ad = Advertisement{Name: "laptop", Slots: 1, Free: 1, Models: []Model{{ID: "m", Families: []string{"chat"}}}}
	m.Dialer = &Dialer{
		HubURL:     "http://127.0.0.1",
		Credential: func() string { return "kithm_test" },
		Instance:   rand.Text(),
		Handler:    handler,
		Advertise:  m.advertise,
		OnState:    func(s State) { m.states <- s },
	}
	if h != nil {
		m.Dial = h.Dial
	}
	return m
}

func (m *machine) advertise() (Advertisement, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ad, m.changed
}

// change replaces the advertisement.
func (m *machine) change(f func(*Advertisement)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.ad)
	close(m.changed)
	m.changed = make(chan struct{})
}

// run starts the dialer until the test ends.
func (m *machine) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.ended <- m.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// until reads states up to the first one with the given phase and returns it.
func (m *machine) until(t *testing.T, phase Phase) State {
	t.Helper()
	for s := range m.states {
		if s.Phase == phase {
			return s
		}
	}
	return State{}
}

// certificate returns a self-signed certificate for 127.0.0.1 and a pool that trusts it.
func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der := assert.Value(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	leaf := assert.Value(x509.ParseCertificate(der))(t)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// overTLS connects a machine to a hub over TLS on loopback and returns the acknowledged
// Client.
func overTLS(t testing.TB, pass passage, handler http.HandlerFunc) *Client {
	t.Helper()
	cert, pool := certificate(t)
	listener := assert.Value(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}}))(t)
	out := make(chan *Client, 1)
	server := &http.Server{Handler: pass(func(w http.ResponseWriter, r *http.Request) {
		client, err := Upgrade(w, r, UpgradeConfig{Generation: 1})
		if err != nil {
			t.Errorf("Upgrade: %v", err)
			return
		}
		out <- client
	})}
	go server.Serve(listener)
	m := newMachine(nil, handler)
	m.HubURL = "https://" + listener.Addr().String()
	m.TLS = &tls.Config{RootCAs: pool}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	client := <-out
	t.Cleanup(func() { cancel(); <-done; client.Close(); server.Close() })
	assert.OK(t, client.Ack(ctx))
	return client
}

// bufioWith returns a reader with text in its buffer and nothing after it.
func bufioWith(t *testing.T, text string) *bufio.Reader {
	t.Helper()
	r := bufio.NewReader(strings.NewReader(text))
	assert.Value(r.Peek(len(text)))(t)
	return r
}

func clientTLS(roots *x509.CertPool) *tls.Config { return &tls.Config{RootCAs: roots} }

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// listenTLS listens on loopback with at most the given version of TLS.
func listenTLS(cert tls.Certificate, version string) (net.Listener, error) {
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	if version == "1.2" {
		config.MaxVersion = tls.VersionTLS12
	}
	return tls.Listen("tcp", "127.0.0.1:0", config)
}
