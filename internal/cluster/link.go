package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/outbound"
)

const (
	// linksPerPeer is the number of connections that a node keeps open to each other node.
	linksPerPeer = 4
	// lostGrace is how long a failed exchange waits for the end of its link: HTTP/2
	// reports the end of a connection to its streams a moment before it closes the
	// connection.
	lostGrace = 250 * time.Millisecond

	minRedial = 100 * time.Millisecond
	maxRedial = 2 * time.Second

	// pathHello returns 204 if the node serves the link.
	pathHello = "/peer/hello"
)

// errLost is the error of an exchange without a link, or whose link ended. What the other
// node did with the request is unknown.
var errLost = errors.New("the connection to the other hub node was lost")

// peer is the connection to one other node: an http.RoundTripper that uses several links.
// Create it with mesh.peer and call run.
type peer struct {
	node account.Node
	mesh *mesh

	mu    sync.Mutex
	links []*link
	up    chan struct{} // closed if there is a link
	down  chan struct{} // closed if there is none
}

// link is one connection to the other node.
type link struct {
	http *http.ClientConn
	done <-chan struct{} // closed when the connection is closed
}

// peer returns the connection to a node, without links yet.
func (m *mesh) peer(node account.Node) *peer {
	p := &peer{node: node, mesh: m, up: make(chan struct{}), down: make(chan struct{})}
	close(p.down)
	return p
}

// run keeps the links open until ctx ends.
func (p *peer) run(ctx context.Context) {
	var group sync.WaitGroup
	for range linksPerPeer {
		group.Go(func() { p.keepLink(ctx) })
	}
	group.Wait()
}

func (p *peer) keepLink(ctx context.Context) {
	wait := minRedial
	for ctx.Err() == nil {
		l, err := p.dial(ctx)
		if err != nil {
			p.mesh.log.Debug("cannot connect to another hub node", "node", p.node.Name, "address", p.node.Address, "error", err)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
			wait = min(2*wait, maxRedial)
			continue
		}
		opened := time.Now()
		p.add(l)
		select {
		case <-l.done:
		case <-ctx.Done():
		}
		p.remove(l)
		l.http.Close()
		if time.Since(opened) > maxRedial {
			wait = minRedial
			continue
		}
		select { // a link that closes at once is not dialled in a loop
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, maxRedial)
	}
}

func (p *peer) add(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links = append(p.links, l); len(p.links) == 1 {
		close(p.up)
		p.down = make(chan struct{})
	}
}

func (p *peer) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links = slices.DeleteFunc(p.links, func(o *link) bool { return o == l })
	if len(p.links) == 0 {
		close(p.down)
		p.up = make(chan struct{})
	}
}

// isConnected reports whether there is a link.
func (p *peer) isConnected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links) > 0
}

// awaitLink waits until there is a link, and fails when ctx ends. lost is closed when
// there is no link left.
func (p *peer) awaitLink(ctx context.Context) (lost <-chan struct{}, err error) {
	for {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p.mu.Lock()
		up, down, connected := p.up, p.down, len(p.links) > 0
		p.mu.Unlock()
		if connected {
			return down, nil
		}
		select {
		case <-up:
		case <-ctx.Done():
		}
	}
}

// newTransport returns the transport for all links. It does not dial.
func (m *mesh) newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	return &http.Transport{
		DialTLSContext:         outbound.Given,
		Protocols:              protocols,
		HTTP2:                  http2Config(),
		DisableCompression:     true, // answers pass through unchanged
		MaxResponseHeaderBytes: maxHeader,
		// With Expect: 100-continue the body is sent when the machine requests it.
		ExpectContinueTimeout: math.MaxInt64,
	}
}

// dialTLS connects to the process with the key that the database holds for the node, and
// no other. done is closed when the connection is closed.
func (p *peer) dialTLS(ctx context.Context) (_ *tls.Conn, done <-chan struct{}, err error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := p.mesh.dialer(ctx, p.node.Address)
	if err != nil {
		return nil, nil, err
	}
	watched := &watchedConn{Conn: raw, done: make(chan struct{})}
	conn := tls.Client(watched, p.mesh.tlsConfig(func(state tls.ConnectionState) error {
		if pinOf(state.PeerCertificates[0]) != p.node.Pin {
			return fmt.Errorf("the process at %[2]s is not hub node %[1]q", p.node.Name, p.node.Address)
		}
		return nil
	}))
	if err := conn.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, watched.done, nil
}

// dial opens a link.
func (p *peer) dial(ctx context.Context) (*link, error) {
	conn, done, err := p.dialTLS(ctx)
	if err != nil {
		return nil, err
	}
	client, err := outbound.ClientConn(ctx, p.mesh.transport, conn, "https", p.node.Address)
	if err != nil {
		conn.Close()
		return nil, err
	}
	l := &link{http: client, done: done}
	within, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := l.hello(within); err != nil {
		client.Close()
		conn.Close()
		return nil, err
	}
	return l, nil
}

// hello returns once the other node serves the link. In TLS 1.3 the handshake completes
// here before the other end has checked this node's key.
func (l *link) hello(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://peer"+pathHello, nil)
	if err != nil {
		return err
	}
	if err := l.http.Reserve(); err != nil {
		return err
	}
	response, err := l.http.RoundTrip(r)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("it refuses this node: %s", response.Status)
	}
	return nil
}

// watchedConn reports when it is closed.
type watchedConn struct {
	net.Conn
	once sync.Once
	done chan struct{} // closed by the first Close
}

// Close implements net.Conn.
func (c *watchedConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

// reserve reserves a stream on the link with the fewest calls. It returns nil if there is
// no link.
func (p *peer) reserve() *link {
	p.mu.Lock()
	links := slices.Clone(p.links)
	p.mu.Unlock()
	slices.SortFunc(links, func(a, b *link) int { return cmp.Compare(a.http.InFlight(), b.http.InFlight()) })
	for _, l := range links { // one that is about to close has the fewest calls, and refuses
		if l.http.Reserve() == nil {
			return l
		}
	}
	return nil
}

// RoundTrip sends a request to the node and does not retry it. If the link ends, it fails
// with errLost, and so do reads of the response's body. Only the path of the request's
// URL matters, not the host.
func (p *peer) RoundTrip(r *http.Request) (*http.Response, error) {
	l := p.reserve()
	if l == nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, errLost
	}
	r = r.WithContext(r.Context())
	url := *r.URL
	url.Scheme, url.Host = "https", p.node.Address
	r.URL, r.Host = &url, ""
	response, err := l.http.RoundTrip(r)
	if err != nil {
		return nil, l.cause(r.Context(), err)
	}
	response.Body = &body{response.Body, r.Context(), l}
	return response, nil
}

// cause returns errLost, wrapping err, if the link has ended or ends within lostGrace. If
// ctx has ended, it returns the error of ctx.
func (l *link) cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case <-l.done:
		return fmt.Errorf("%w: %w", errLost, err)
	case <-time.After(lostGrace):
	case <-ctx.Done():
	}
	return err
}

// body is the body of a response. Its errors report whether the link ended.
type body struct {
	io.ReadCloser
	ctx  context.Context
	link *link
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = b.link.cause(b.ctx, err)
	}
	return n, err
}
