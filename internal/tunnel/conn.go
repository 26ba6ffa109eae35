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
	// maxPending limits the number of bytes that wait for the writer of a connection.
	// Beyond it Write blocks.
	maxPending = 64 << 10
	// blockingWrite is the minimum size of a Write that blocks until the bytes are sent.
	// Streams take turns after each frame, so what one of them buffers delays the others
	// (docs/faults.md#33).
	blockingWrite = maxFrame / 2
	// maxIdleBuffer is the maximum capacity of a buffer that is kept while there is
	// nothing to send.
	maxIdleBuffer = 4 << 10
	// writeTimeout is the timeout for a write of up to maxFrame bytes. A peer that sends
	// but never reads is not pinged, because its frames count as activity.
	writeTimeout = pingEvery + pingWait
	// closeTimeout is the timeout for sending what is pending at Close.
	closeTimeout = 250 * time.Millisecond

	// smallFrame is a payload size in bytes. Frames below it are read at a rate of at most
	// smallFramesPerSecond. net/http accepts any number of frames without content, such
	// as pings, settings and empty continuations.
	smallFrame           = 256
	smallFramesPerSecond = 50_000
)

var (
	// errSilent is the cause when net/http closed a connection without a failed read or
	// write, because net/http does not report its reason.
	errSilent = errors.New("the peer stopped answering pings or broke the protocol")
	// errUnexpectedFrame ends a connection whose daemon sends a frame type that no daemon
	// needs. net/http's client would log a line for each.
	errUnexpectedFrame = errors.New("the peer sent a frame of a type that has no place in a tunnel")
)

// daemonFrames are the frame types that a daemon may send, as bits: all of RFC 9113,
// section 6, except PRIORITY.
const daemonFrames = 1<<0 | 1<<1 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<9

// conn is the upgraded connection. It reports when and why it ended. It also hides a TLS
// connection from net/http, which would otherwise require "h2" to be negotiated.
//
// One long-lived goroutine writes. It sends everything that the streams wrote in the
// meantime together, so that a call's header and body are one TLS record and one system
// call, and the streams' goroutines do not grow their stacks for TLS.
//
// Read delays a peer that sends more small frames than any engine produces. A flood of
// them takes a limited share of one core and does not delay other connections.
type conn struct {
	net.Conn
	done       chan struct{} // closed by the first Close
	frames     frameCounter
	smallRate  *rate.Limiter // limits small frames
	mu         sync.Mutex
	cond       *sync.Cond // pending was filled, taken or sent, or the connection was closed
	err        error      // the first cause
	pending    []byte     // waits for the writer
	written    int64      // total number of bytes added to pending
	sent       int64      // number of those bytes that were sent
	closed     bool
	closeUntil time.Time // after Close: the deadline for what is pending
}

// hubFrames and machineFrames count the frames that the two ends receive. A machine gets
// the preface of HTTP/2 first (RFC 9113, 3.4).
var (
	hubFrames     = frameCounter{types: daemonFrames}
	machineFrames = frameCounter{types: ^uint64(0), skip: len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}
)

// newConn returns one end of c. The caller must run writeLoop.
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

// frameCounter counts frames in the bytes of an HTTP/2 connection.
type frameCounter struct {
	types uint64  // the permitted types, as bits; an unknown type counts as 63
	skip  int     // bytes until the next frame header
	head  [9]byte // the frame header (RFC 9113, 4.1)
	have  int     // number of bytes of head that were read
}

// count returns how many small frames begin in b, which continues the bytes of the
// previous call, and whether all frame types are permitted.
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

// Write queues p for the writer. It blocks while too much is pending and, if p is large,
// until p is sent. It fails after the connection is closed.
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

// writeLoop sends what is pending until the connection is closed. If sending fails, it
// closes the connection.
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

// send writes all of p. Each part of maxFrame bytes has writeTimeout.
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

// setWriteDeadline sets the deadline of the next write or, after Close, of all remaining
// writes.
func (c *conn) setWriteDeadline() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := c.closeUntil
	if !c.closed {
		until = time.Now().Add(writeTimeout)
	}
	return c.Conn.SetWriteDeadline(until)
}

// setCause records why the connection ended. Only the first cause is kept.
func (c *conn) setCause(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// cause returns the first cause, or errSilent if there was none before Close.
func (c *conn) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection. Writes fail, and what is pending, such as the end of a
// stream, is sent within closeTimeout. Close does not send the closing messages of TLS
// and WebSocket: they can block for seconds on a dead peer, and HTTP/2 ends its streams
// itself.
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
	// This also applies to a write that is running.
	return c.setWriteDeadline()
}

func closeInnermost(c net.Conn) {
	for {
		outer, ok := c.(interface{ NetConn() net.Conn }) // tls.Conn, webSocketConn, bufferedConn
		if !ok {
			_ = c.Close() // the error does not matter: the connection has ended
			return
		}
		c = outer.NetConn()
	}
}

// bufferedConn is a connection whose first bytes are already in a reader's buffer.
type bufferedConn struct {
	net.Conn
	buffer *bufio.Reader // nil once it is empty
}

// withBuffer returns a connection that reads what is buffered in in, and then c. The
// caller must not read from in.
func withBuffer(c net.Conn, in *bufio.Reader) net.Conn {
	if in.Buffered() == 0 {
		return c
	}
	return &bufferedConn{c, in}
}

// NetConn returns the underlying connection, like the method of tls.Conn.
func (c *bufferedConn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn.
func (c *bufferedConn) Read(p []byte) (int, error) {
	if c.buffer == nil {
		return c.Conn.Read(p)
	}
	n, err := c.buffer.Read(p) // only from the buffer, which is not empty
	if c.buffer.Buffered() == 0 {
		c.buffer = nil
	}
	return n, err
}
