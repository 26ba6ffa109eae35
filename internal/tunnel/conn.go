package tunnel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxPending bounds the bytes that wait for the writer of a connection. Past it
	// Write blocks.
	maxPending = 64 << 10
	// blockingWrite is the size from which Write blocks until the bytes are sent.
	// Streams alternate by the frame: what one of them buffers delays the others
	// (docs/faults.md#33).
	blockingWrite = maxFrame / 2
	// maxIdleBuffer is the capacity up to which each of the two buffers is kept while
	// there is nothing to send.
	maxIdleBuffer = 4 << 10
	// writeTimeout bounds a write of up to maxFrame bytes. A peer that sends but never
	// reads is not pinged, because its frames count as activity.
	writeTimeout = pingEvery + pingWait
	// closeTimeout bounds the sending of what is pending at Close.
	closeTimeout = 250 * time.Millisecond

	// smallFrame is the payload size in bytes below which a frame counts against
	// smallFramesPerSecond, the rate at which such frames are read. net/http accepts
	// any number of frames without content: pings, settings, empty continuations.
	smallFrame           = 256
	smallFramesPerSecond = 50_000
)

var (
	// errSilent is the cause when net/http closed a connection on which no read or
	// write had failed. net/http does not report its reason.
	errSilent = errors.New("the peer stopped answering pings or broke the protocol")
	// errUnexpectedFrame ends a connection whose daemon sends a frame type that no
	// daemon needs. net/http's client would write a line to the process's log for
	// each.
	errUnexpectedFrame = errors.New("the peer sent a frame of a type that has no place in a tunnel")
)

// daemonFrames are the frame types that a daemon sends, as bits: all of RFC 9113,
// section 6, except PRIORITY.
const daemonFrames = 1<<0 | 1<<1 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<9

// conn is the upgraded connection. It reports when and why it ended, and hides a
// TLS connection from net/http, which would otherwise require a negotiated "h2".
//
// One long-lived goroutine writes. What the streams write in the meantime is sent
// together, so that a call's header and body are one TLS record and one system
// call, and no stream's goroutine grows its stack for TLS.
//
// Read delays a peer that sends more small frames than any engine produces. A
// flood of them costs a bounded share of one core and delays no other connection.
type conn struct {
	net.Conn
	done       chan struct{} // closed by the first Close
	frames     frameCounter
	smallRate  *rate.Limiter // of small frames
	mu         sync.Mutex
	cond       *sync.Cond // pending was filled, taken or sent, or the connection closed
	err        error      // the first cause
	pending    []byte     // waits for the writer
	written    int64      // bytes ever added to pending
	sent       int64      // of written
	closed     bool
	closeUntil time.Time // once closed: the deadline for what is pending
}

// newHubConn returns the hub's end of c. The caller runs writeLoop.
func newHubConn(c net.Conn) *conn {
	return newConn(c, frameCounter{types: daemonFrames})
}

// newDaemonConn returns the machine's end of c. The caller runs writeLoop.
func newDaemonConn(c net.Conn) *conn {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // RFC 9113, 3.4
	return newConn(c, frameCounter{skip: len(preface), types: ^uint64(0)})
}

func newConn(c net.Conn, frames frameCounter) *conn {
	n := &conn{Conn: c, done: make(chan struct{}), frames: frames, smallRate: rate.NewLimiter(smallFramesPerSecond, smallFramesPerSecond)}
	n.cond = sync.NewCond(&n.mu)
	return n
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.setCause(err)
	}
	small, ok := c.frames.count(p[:n])
	if !ok {
		c.setCause(errUnexpectedFrame)
		return 0, errUnexpectedFrame
	}
	if small > 0 {
		if delay := c.smallRate.ReserveN(time.Now(), small).Delay(); delay > 0 {
			select {
			case <-time.After(delay):
			case <-c.done:
			}
		}
	}
	return n, err
}

// frameCounter finds the frames in the bytes of an HTTP/2 connection.
type frameCounter struct {
	types uint64  // the permitted types, as bits; an unknown type counts as 63
	skip  int     // bytes until the next frame header
	head  [9]byte // the frame header (RFC 9113, 4.1)
	have  int     // how many bytes of head are read
}

// count returns how many small frames begin in b, which follows the bytes of the
// call before, and whether all frame types are permitted.
func (f *frameCounter) count(b []byte) (small int, ok bool) {
	for {
		n := min(f.skip, len(b))
		f.skip -= n
		if b = b[n:]; len(b) == 0 {
			return small, true
		}
		n = copy(f.head[f.have:], b)
		f.have += n
		b = b[n:]
		if f.have < len(f.head) {
			return small, true
		}
		if f.types>>min(f.head[3], 63)&1 == 0 {
			return small, false
		}
		f.have, f.skip = 0, int(binary.BigEndian.Uint32(f.head[:4])>>8)
		if f.skip < smallFrame {
			small++
		}
	}
}

// Write queues p for the writer. It blocks while much is pending and, for a large
// p, until p is sent. It fails once the connection is closed.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) >= maxPending && !c.closed {
		c.cond.Wait()
	}
	if c.closed {
		return 0, c.err
	}
	c.pending = append(c.pending, p...)
	c.written += int64(len(p))
	c.cond.Broadcast()
	if len(p) < blockingWrite {
		return len(p), nil
	}
	for end := c.written; c.sent < end; c.cond.Wait() {
		if c.closed {
			return 0, c.err
		}
	}
	return len(p), nil
}

// writeLoop sends what is pending until the connection is closed, and closes it
// when sending fails.
func (c *conn) writeLoop() {
	defer closeInnermost(c.Conn)
	var batch []byte
	for {
		c.mu.Lock()
		for len(c.pending) == 0 && !c.closed {
			if cap(batch) > maxIdleBuffer {
				batch = nil
			}
			if cap(c.pending) > maxIdleBuffer {
				c.pending = nil
			}
			c.cond.Wait()
		}
		batch, c.pending = c.pending, batch[:0]
		c.cond.Broadcast()
		c.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		if err := c.send(batch); err != nil {
			c.setCause(err)
			c.Close()
			return
		}
		c.mu.Lock()
		c.sent += int64(len(batch))
		c.cond.Broadcast()
		c.mu.Unlock()
	}
}

// send writes all of p, each part of it within writeTimeout.
func (c *conn) send(p []byte) error {
	for part := range slices.Chunk(p, maxFrame) {
		if err := c.setWriteDeadline(); err != nil {
			return err
		}
		if _, err := c.Conn.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// setWriteDeadline sets the deadline of the next write or, once the connection is
// closed, of all that remain.
func (c *conn) setWriteDeadline() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := c.closeUntil
	if !c.closed {
		until = time.Now().Add(writeTimeout)
	}
	return c.Conn.SetWriteDeadline(until)
}

// setCause records why the connection ended. The first cause is kept.
func (c *conn) setCause(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// cause returns the first cause; errSilent if there was none before Close.
func (c *conn) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection. Writes fail, and what is pending, such as the end of
// a stream, is sent within closeTimeout. The closing messages of TLS and WebSocket
// are left out: they can block for seconds on a dead peer, and HTTP/2 ends its
// streams itself.
func (c *conn) Close() error {
	c.setCause(errSilent)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed, c.closeUntil = true, time.Now().Add(closeTimeout)
	c.cond.Broadcast()
	c.mu.Unlock()
	close(c.done)
	// A write that runs already gets the new deadline too.
	return c.setWriteDeadline()
}

// closeInnermost closes the connection under all others that c consists of.
func closeInnermost(c net.Conn) {
	for {
		outer, ok := c.(interface{ NetConn() net.Conn }) // tls.Conn, webSocketConn, bufferedConn
		if !ok {
			_ = c.Close() // its error says nothing: the connection has ended
			return
		}
		c = outer.NetConn()
	}
}

// bufferedConn is a connection of which a reader has buffered the first bytes.
type bufferedConn struct {
	net.Conn
	buffer *bufio.Reader // nil once it is empty
}

// withBuffer returns a connection that reads what in has buffered, then c. The
// caller must not read from in.
func withBuffer(c net.Conn, in *bufio.Reader) net.Conn {
	if in.Buffered() == 0 {
		return c
	}
	return &bufferedConn{c, in}
}

// NetConn returns the underlying connection, as that of tls.Conn does.
func (c *bufferedConn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn.
func (c *bufferedConn) Read(p []byte) (int, error) {
	if c.buffer == nil {
		return c.Conn.Read(p)
	}
	n, err := c.buffer.Read(p) // from the buffer alone: it is not empty
	if c.buffer.Buffered() == 0 {
		c.buffer = nil
	}
	return n, err
}
