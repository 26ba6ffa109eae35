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
// connection, whether or not they are a PROXY header (spec/security.md#slow-clients). On
// a busy computer, a proxy with hundreds of requests takes seconds from connecting to its
// first bytes; with a shorter limit its clients would get 502.
const proxyHeaderLimit = 30 * time.Second

var errTooManyConnections = errors.New("the client behind the proxy has the maximum number of connections")

// proxyConn is a connection of a trusted proxy. If it begins with a PROXY header,
// RemoteAddr is the client that the header names, and the connection is counted for that
// client. The header is read on first use, so that Accept never waits for it.
type proxyConn struct {
	net.Conn
	header *proxyproto.Conn // may have buffered bytes after the header
	begin  func() error     // reads the header and counts the connection, once

	mu   sync.Mutex
	free func() // nil: not counted
	over bool   // closed or hijacked, so not counted
}

func newProxyConn(clients *Clients, conn net.Conn) *proxyConn {
	c := &proxyConn{Conn: conn, header: proxyproto.NewConn(conn, proxyproto.WithPolicy(proxyproto.USE),
		proxyproto.SetReadHeaderTimeout(proxyHeaderLimit))}
	c.begin = sync.OnceValue(func() error { return c.count(clients) })
	return c
}

// count reads the header and counts the connection for its client. If that client is also
// a trusted proxy, its clients are in X-Forwarded-For and their requests are counted
// instead.
func (c *proxyConn) count(clients *Clients) error {
	_, err := c.header.Read(nil) // reads only the header
	if err != nil {
		if _, lost := errors.AsType[net.Error](err); !lost {
			clients.malformed.Do(func() {
				clients.log.Warn("a trusted proxy sent a PROXY header that cannot be read",
					"proxy", c.Conn.RemoteAddr(), "error", err)
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

// readError returns an error for which net/http closes a connection without an answer.
func readError(err error) error { return &net.OpError{Op: "read", Net: "tcp", Err: err} }

// RemoteAddr returns the client in the PROXY header, or the proxy if there is none.
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

// SetDeadline sets the deadlines. They remain after the deadline for the header.
func (c *proxyConn) SetDeadline(t time.Time) error { return c.header.SetDeadline(t) }

// SetReadDeadline sets the read deadline. It remains after the deadline for the header.
func (c *proxyConn) SetReadDeadline(t time.Time) error { return c.header.SetReadDeadline(t) }

// Close closes the connection and ends its count.
func (c *proxyConn) Close() error {
	defer c.uncount()
	return c.Conn.Close()
}

// CloseWrite shuts down the writing side, as net/http does to deliver an early 413.
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
