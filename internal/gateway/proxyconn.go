package gateway

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxyHeaderLimit is how long a trusted proxy may take to send the first bytes of a
// connection, which are a PROXY header or are not (spec/security.md#slow-clients). A proxy
// that passes on hundreds of requests at once on a busy computer takes seconds between the
// two; its clients would get 502.
const proxyHeaderLimit = 30 * time.Second

var errTooManyConnections = errors.New("the client behind the proxy holds as many connections as one may")

// proxyConn is a connection of a trusted proxy. If it begins with a PROXY header, its
// RemoteAddr is the client that the header names, and it is counted among that client's
// connections. The header is read with the first use, so that Accept never waits for it.
type proxyConn struct {
	net.Conn
	header *proxyproto.Conn // over the connection; it has read more than the header
	begin  func() error     // reads the header and counts the connection, once

	mu   sync.Mutex
	free func() // nil: not counted
	over bool   // closed or hijacked: it is not counted any more
}

func newProxyConn(clients *Clients, conn net.Conn) *proxyConn {
	c := &proxyConn{Conn: conn, header: proxyproto.NewConn(conn, proxyproto.WithPolicy(proxyproto.USE), proxyproto.SetReadHeaderTimeout(proxyHeaderLimit))}
	c.begin = sync.OnceValue(func() error { return c.count(clients) })
	return c
}

// count reads the header and counts the connection as its client's. A client that is
// itself a trusted proxy is named in X-Forwarded-For, and its requests are counted.
func (c *proxyConn) count(clients *Clients) error {
	_, err := c.header.Read(nil) // reads the header and nothing of what follows
	if err != nil {
		if _, lost := errors.AsType[net.Error](err); !lost {
			clients.malformed.Do(func() {
				clients.log.Warn("a trusted proxy sent a PROXY header that cannot be read", "proxy", c.Conn.RemoteAddr(), "error", err)
			})
		}
		return readError(err)
	}
	named, ok := c.header.RemoteAddr().(*net.TCPAddr)
	if c.header.ProxyHeader() == nil || !ok || clients.trusts(addrOf(named)) {
		return nil
	}
	free := clients.take(&clients.connections, "connections", addrOf(named))
	if free == nil {
		return readError(errTooManyConnections)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free = free; c.over {
		free()
	}
	return nil
}

// readError is an error at which net/http closes a connection without an answer.
func readError(err error) error { return &net.OpError{Op: "read", Net: "tcp", Err: err} }

// RemoteAddr returns the client of the PROXY header, else the proxy.
func (c *proxyConn) RemoteAddr() net.Addr {
	if c.begin() == nil {
		if named, ok := c.header.RemoteAddr().(*net.TCPAddr); ok {
			return named
		}
	}
	return c.Conn.RemoteAddr()
}

// Read reads what follows the header.
func (c *proxyConn) Read(b []byte) (int, error) {
	if err := c.begin(); err != nil {
		return 0, err
	}
	return c.header.Read(b)
}

// SetDeadline sets the deadlines, which outlast the one for the header.
func (c *proxyConn) SetDeadline(t time.Time) error { return c.header.SetDeadline(t) }

// SetReadDeadline sets the deadline of reads, which outlasts the one for the header.
func (c *proxyConn) SetReadDeadline(t time.Time) error { return c.header.SetReadDeadline(t) }

// Close closes the connection, which counts no more.
func (c *proxyConn) Close() error {
	defer c.uncount()
	return c.Conn.Close()
}

// CloseWrite ends what is written: net/http does so to deliver an early 413.
func (c *proxyConn) CloseWrite() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.CloseWrite()
	}
	return nil
}

func (c *proxyConn) uncount() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over = true; c.free != nil {
		c.free()
	}
}

// addrOf returns the IP address of a TCP address.
func addrOf(addr net.Addr) netip.Addr { return addr.(*net.TCPAddr).AddrPort().Addr() }
