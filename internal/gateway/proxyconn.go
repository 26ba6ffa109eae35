package gateway

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxyHeaderLimit is how long a trusted proxy may take to send the first bytes of a
// connection, which are a PROXY header or are not.
const proxyHeaderLimit = 5 * time.Second

var errTooManyConnections = errors.New("the client behind the proxy holds as many connections as one may")

// proxyConn is a connection of a trusted proxy. If it begins with a PROXY header, its
// RemoteAddr is the client that the header names, and it is counted among that client's
// connections. The header is read with the first use, so that Accept never waits for it.
type proxyConn struct {
	*net.TCPConn
	header *proxyproto.Conn // over TCPConn; it has read more than the header
	begin  func() error     // reads the header and counts the connection, once

	mu   sync.Mutex
	free func() // nil: not counted
	over bool   // closed or hijacked: it is not counted any more
}

func newProxyConn(clients *Clients, tcp *net.TCPConn) *proxyConn {
	c := &proxyConn{TCPConn: tcp, header: proxyproto.NewConn(tcp, proxyproto.WithPolicy(proxyproto.USE), proxyproto.SetReadHeaderTimeout(proxyHeaderLimit))}
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
				clients.log.Warn("a trusted proxy sent a PROXY header that cannot be read", "proxy", c.TCPConn.RemoteAddr(), "error", err)
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
	return c.TCPConn.RemoteAddr()
}

// Read reads what follows the header.
func (c *proxyConn) Read(b []byte) (int, error) {
	if err := c.begin(); err != nil {
		return 0, err
	}
	return c.header.Read(b)
}

// WriteTo implements io.WriterTo: the one of the *net.TCPConn would lose what was read
// with the header.
func (c *proxyConn) WriteTo(w io.Writer) (int64, error) {
	if err := c.begin(); err != nil {
		return 0, err
	}
	return c.header.WriteTo(w)
}

// SetDeadline sets the deadlines, which outlast the one for the header.
func (c *proxyConn) SetDeadline(t time.Time) error { return c.header.SetDeadline(t) }

// SetReadDeadline sets the deadline of reads, which outlasts the one for the header.
func (c *proxyConn) SetReadDeadline(t time.Time) error { return c.header.SetReadDeadline(t) }

// Close closes the connection, which counts no more.
func (c *proxyConn) Close() error {
	defer c.uncount()
	return c.TCPConn.Close()
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
