package tunnel

import (
	"bufio"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// mostUnsent bounds the bytes that wait for a connection's writer; past it
	// whoever writes waits too.
	mostUnsent = 64 << 10
	// bulk is a write that waits until it is sent: the streams of a tunnel take
	// turns by the frame, and what one hands over in advance the others wait for
	// (fault 33).
	bulk = 16 << 10
	// keepUnsent is how large each of the two buffers may be to be kept while there
	// is nothing to send.
	keepUnsent = 4 << 10
	// writeWithin is how long a write may make no progress. A peer that sends but
	// never reads answers no ping either, and is never asked for one.
	writeWithin = pingEvery + pingWait
	// lastWrite is how long the bytes that wait at Close may take.
	lastWrite = 250 * time.Millisecond
)

// errSilent stands in when the HTTP/2 library closed a connection on which no
// read or write had failed: it does not say why.
var errSilent = errors.New("the peer stopped answering pings or broke the protocol")

// conn is the upgraded connection. It tells that it ended and why, and hides TLS
// from the HTTP/2 library, which would otherwise insist on a negotiated "h2".
//
// It writes from one long-lived goroutine: what the streams write meanwhile
// goes out together, so that a call's header and body are one TLS record and
// one system call, and no stream's goroutine grows its stack by TLS's depth.
type conn struct {
	net.Conn
	done chan struct{} // closed with the first Close

	mu     sync.Mutex
	err    error      // the first reason
	unsent []byte     // waits for the writer
	taken  int64      // bytes that were ever in unsent
	sent   int64      // of these
	moved  *sync.Cond // unsent was filled, taken or sent, or the connection ended
	over   bool       // Close was called
	last   time.Time  // once over: until when what is unsent may go
}

// newConn speaks over c. Its send must run.
func newConn(c net.Conn) *conn {
	n := &conn{Conn: c, done: make(chan struct{})}
	n.moved = sync.NewCond(&n.mu)
	return n
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.because(err)
	}
	return n, err
}

// Write hands p to the writer. It waits while much is unsent and, with much,
// until it is sent; it fails once the connection has ended.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.unsent) >= mostUnsent && !c.over {
		c.moved.Wait()
	}
	if c.over {
		return 0, c.err
	}
	c.unsent = append(c.unsent, p...)
	c.taken += int64(len(p))
	c.moved.Broadcast()
	if len(p) < bulk {
		return len(p), nil
	}
	for mine := c.taken; c.sent < mine; c.moved.Wait() {
		if c.over {
			return 0, c.err
		}
	}
	return len(p), nil
}

// send is the writer: it sends what is written until the connection ends, and
// ends it when sending fails.
func (c *conn) send() {
	defer c.cut()
	var batch []byte
	for {
		c.mu.Lock()
		for len(c.unsent) == 0 && !c.over {
			if cap(batch) > keepUnsent {
				batch = nil
			}
			if cap(c.unsent) > keepUnsent {
				c.unsent = nil
			}
			c.moved.Wait()
		}
		batch, c.unsent = c.unsent, batch[:0]
		c.moved.Broadcast()
		c.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		if err := c.put(batch); err != nil {
			c.because(err)
			c.Close()
			return
		}
		c.mu.Lock()
		c.sent += int64(len(batch))
		c.moved.Broadcast()
		c.mu.Unlock()
	}
}

// put writes all of p. A write that timed out after some bytes has made progress
// and is taken up again.
func (c *conn) put(p []byte) error {
	for {
		if err := c.limit(); err != nil {
			return err
		}
		n, err := c.Conn.Write(p)
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		if n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// limit says until when the next write must have made progress; once the
// connection is over, until when all of them are to be done.
func (c *conn) limit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := c.last
	if !c.over {
		until = time.Now().Add(writeWithin)
	}
	return c.Conn.SetWriteDeadline(until)
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

// Close ends the connection: nothing more is written, and what is unsent has a
// moment to go, such as the last words of a stream. The partings of TLS and
// WebSocket are left out: they can block for seconds on a dead peer, and HTTP/2
// has its own ends of streams.
func (c *conn) Close() error {
	c.because(errSilent)
	c.mu.Lock()
	over := c.over
	if !over {
		c.over, c.last = true, time.Now().Add(lastWrite)
	}
	c.moved.Broadcast()
	c.mu.Unlock()
	if over {
		return nil
	}
	close(c.done)
	// The writer, should it be at work, has no longer than limit would give it now.
	return c.limit()
}

// cut closes the connection below.
func (c *conn) cut() {
	below := c.Conn
	for {
		over, ok := below.(interface{ NetConn() net.Conn }) // tls.Conn, frames, early
		if !ok {
			// Its error says nothing: the connection is over.
			_ = below.Close()
			return
		}
		below = over.NetConn()
	}
}

// early is a connection some of whose bytes were read already.
type early struct {
	net.Conn
	in *bufio.Reader // nil once drained
}

// withEarly gives back what in holds. Nobody else may read from it.
func withEarly(c net.Conn, in *bufio.Reader) net.Conn {
	if in.Buffered() == 0 {
		return c
	}
	return &early{c, in}
}

// NetConn is the connection below, as tls.Conn has it.
func (e *early) NetConn() net.Conn { return e.Conn }

func (e *early) Read(p []byte) (int, error) {
	if e.in == nil {
		return e.Conn.Read(p)
	}
	n, err := e.in.Read(p) // from its buffer alone: it is not empty
	if e.in.Buffered() == 0 {
		e.in = nil
	}
	return n, err
}
