package tunnel

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// mostUnsent bounds the bytes that wait for a connection's writer; past it
	// a write waits too.
	mostUnsent = 64 << 10
	// bulk is the size from which a write waits until it is sent: the streams of a
	// tunnel take turns by the frame, and what one writes ahead delays the others
	// (fault 33).
	bulk = maxFrame / 2
	// keepUnsent is how large each of the two buffers may be to be kept while there
	// is nothing to send.
	keepUnsent = 4 << 10
	// writeWithin is how long a write of up to maxFrame bytes may take. A peer that
	// sends but never reads answers no ping either, and is never asked for one.
	writeWithin = pingEvery + pingWait
	// lastWrite is how long the bytes that wait at Close may take.
	lastWrite = 250 * time.Millisecond

	// smallFrame is the payload in bytes below which a frame counts against
	// framesPerSecond, the rate at which such frames are read. net/http accepts any
	// number of frames that carry nothing: pings, settings, empty continuations.
	smallFrame      = 256
	framesPerSecond = 50_000
)

var (
	// errSilent is the reason when net/http closed a connection on which no read or
	// write had failed: it does not say why.
	errSilent = errors.New("the peer stopped answering pings or broke the protocol")
	// errOddFrame ends a line whose daemon sends frames that none has to send.
	// net/http's client would write a line to the process's log for each.
	errOddFrame = errors.New("the peer sent a frame of a type that has no place in a tunnel")
)

// daemonFrames are the types of frames that a daemon has to send, as bits: all
// of RFC 9113, 6 except PRIORITY.
const daemonFrames = 1<<0 | 1<<1 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<9

// conn is the upgraded connection. It reports that it ended and why, and hides
// TLS from net/http, which would otherwise insist on a negotiated "h2".
//
// It writes from one long-lived goroutine: what the streams write meanwhile
// goes out together, so that a call's header and body are one TLS record and
// one system call, and no stream's goroutine grows its stack by TLS's depth.
//
// It delays a peer that sends more small frames than any engine produces, so
// that a flood of them costs a bounded share of a core and delays no one else.
type conn struct {
	net.Conn
	done   chan struct{} // closed with the first Close
	frames frameCounter
	pace   *rate.Limiter // of small frames

	mu     sync.Mutex
	err    error      // the first reason
	unsent []byte     // waits for the writer
	taken  int64      // bytes that were ever in unsent
	sent   int64      // of these
	moved  *sync.Cond // unsent was filled, taken or sent, or the connection ended
	over   bool       // Close was called
	last   time.Time  // once over: until when what is unsent may go
}

// newHubConn is the hub's end of c. Its send must run.
func newHubConn(c net.Conn) *conn {
	return newConn(c, frameCounter{types: daemonFrames})
}

// newDaemonConn is the machine's end of c. Its send must run.
func newDaemonConn(c net.Conn) *conn {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // RFC 9113, 3.4
	return newConn(c, frameCounter{skip: len(preface), types: ^uint64(0)})
}

func newConn(c net.Conn, frames frameCounter) *conn {
	n := &conn{Conn: c, done: make(chan struct{}), frames: frames, pace: rate.NewLimiter(framesPerSecond, framesPerSecond)}
	n.moved = sync.NewCond(&n.mu)
	return n
}

// Read satisfies net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.because(err)
	}
	small, ok := c.frames.count(p[:n])
	if !ok {
		c.because(errOddFrame)
		return 0, errOddFrame
	}
	if small > 0 {
		if delay := c.pace.ReserveN(time.Now(), small).Delay(); delay > 0 {
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
	types uint64  // that are ok, as bits; one that is not known counts as type 63
	skip  int     // bytes until the next frame's head
	head  [9]byte // of which have are here (RFC 9113, 4.1)
	have  int
}

// count returns how many small frames begin in b, which follows what it counted
// before, and whether all types are ok.
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

// put writes all of p, each part within writeWithin.
func (c *conn) put(p []byte) error {
	for part := range slices.Chunk(p, maxFrame) {
		if err := c.limit(); err != nil {
			return err
		}
		if _, err := c.Conn.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// limit sets when the next write must have ended; once the connection is over,
// when all of them must have.
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
// moment to go, such as the end of a stream. The closing messages of TLS and
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
		over, ok := below.(interface{ NetConn() net.Conn }) // tls.Conn, webSocketConn, early
		if !ok {
			// Its error says nothing: the connection is over.
			_ = below.Close()
			return
		}
		below = over.NetConn()
	}
}
