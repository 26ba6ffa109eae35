package tunnel

import (
	"bufio"
	"errors"
	"net"
	"os"
	"sync"
)

// errSilent stands in when the HTTP/2 library closed a connection on which no
// read or write had failed: it does not say why.
var errSilent = errors.New("the peer stopped answering pings or broke the protocol")

// conn is the upgraded connection. It gives back the bytes that were read
// together with the upgrade, tells that it ended and why, and hides TLS from
// the HTTP/2 library, which would otherwise insist on a negotiated "h2".
type conn struct {
	net.Conn
	early *bufio.Reader // nil once drained; touched by the one reader only
	done  chan struct{} // closed with the first Close

	mu  sync.Mutex
	err error // the first reason
}

func newConn(c net.Conn, early *bufio.Reader) *conn {
	if early != nil && early.Buffered() == 0 {
		early = nil
	}
	return &conn{Conn: c, early: early, done: make(chan struct{})}
}

func (c *conn) Read(p []byte) (int, error) {
	if c.early != nil {
		n, err := c.early.Read(p) // from its buffer alone: it is not empty
		if c.early.Buffered() == 0 {
			c.early = nil
		}
		return n, err
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.because(err)
	}
	return n, err
}

// Write closes the connection when it fails for good: the HTTP/2 client would
// otherwise go on reading from a peer it can no longer write to. A write that
// timed out after some bytes has made progress and is taken up again.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
		c.because(err)
		c.Close()
	}
	return n, err
}

// because keeps the first reason why the connection ended.
func (c *conn) because(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// cause is the first reason; errSilent if none was noted before Close.
func (c *conn) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection at once. The partings of TLS and WebSocket are left
// out: they can block for seconds on a dead peer, and HTTP/2 has its own ends of
// streams.
func (c *conn) Close() error {
	c.because(errSilent)
	c.mu.Lock()
	select {
	case <-c.done:
	default:
		close(c.done)
	}
	c.mu.Unlock()
	if over, ok := c.Conn.(interface{ NetConn() net.Conn }); ok { // tls.Conn, frames
		return over.NetConn().Close()
	}
	return c.Conn.Close()
}
