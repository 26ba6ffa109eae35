package h2

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is what both ends share: one reader, and writes that go out together.
//
// Whoever has something to say appends it to unsent and pushes. If nobody
// writes, it is written from there; else whoever writes leaves it to send. So
// the head and the body of a call are one TLS record, and a call that is alone
// wakes nobody.
type conn struct {
	below  net.Conn
	in     *bufio.Reader
	framer *http2.Framer // its reading half is read's, its writing half is under mu
	names  names         // of fields that came; read's
	done   chan struct{} // closed when the connection has ended
	loops  sync.WaitGroup

	heads func(*http2.MetaHeadersFrame) error // takes a block of fields; under mu
	start func(*stream)                       // begins a stream that the peer opened; under mu

	mu      sync.Mutex
	err     error     // why it ended; nil while it lives
	until   time.Time // once it ended: until when what is unsent may go
	streams map[uint32]*stream
	newest  uint32 // the highest number of a stream so far
	due     []*stream
	idle    int // frames that carry nothing and may yet come

	heard  time.Time // when the last frame came
	pinged bool      // and none came since a ping went out
	pulse  *time.Timer

	window int64 // bytes that the peer may still send
	owed   int64 // bytes that were used up and not given back to it yet

	credit       int64  // bytes that may be sent
	streamCredit int64  // with which a stream begins
	maxStreams   uint32 // that the peer takes
	away         bool   // it takes no new ones

	encoder *hpack.Encoder // into block
	block   bytes.Buffer
	lower   names
	unsent  []byte
	spare   []byte     // the other buffer, while nobody writes from it
	writing bool       // somebody writes
	taken   int64      // bytes that were ever in unsent
	sent    int64      // of these
	moved   *sync.Cond // something was sent, or the connection ended
	work    *sync.Cond // there is work for send
}

func (c *conn) init(below net.Conn) {
	c.below, c.in = below, bufio.NewReader(below)
	c.framer = http2.NewFramer(unsent{c}, c.in)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = MaxHead
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.framer.SetReuseFrames()
	c.encoder = hpack.NewEncoder(&c.block)
	c.done = make(chan struct{})
	c.streams = map[uint32]*stream{}
	c.moved, c.work = sync.NewCond(&c.mu), sync.NewCond(&c.mu)
	c.idle, c.heard = mostIdle, time.Now()
	c.window = ConnectionWindow
	c.credit, c.streamCredit, c.maxStreams = initialWindow, initialWindow, initialStreams
}

// begin runs the connection; own is what this end grants besides windows. The
// first frames of both ends are their settings.
func (c *conn) begin(own ...http2.Setting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own = append(own,
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: StreamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: MaxHead})
	_ = c.framer.WriteSettings(own...) // into unsent: no error
	_ = c.framer.WriteWindowUpdate(0, ConnectionWindow-initialWindow)
	c.pulse = time.AfterFunc(pingEvery, c.beat)
	c.loops.Go(c.read)
	c.loops.Go(c.send)
}

// Done is closed when the connection has ended.
func (c *conn) Done() <-chan struct{} { return c.done }

// Err is why the connection ended; nil while it lives.
func (c *conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection for that reason, if it has not ended, and all its
// streams with it. What is unsent has a moment to go, such as the last words of
// a stream. The partings of TLS and WebSocket are left out: they can block for
// seconds on a dead peer, and HTTP/2 has its own ends of streams.
func (c *conn) Close(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(reason)
}

// Wait returns when the connection has ended and its goroutines with it; those
// of handlers may go on.
func (c *conn) Wait() { c.loops.Wait() }

// end ends the connection. c.mu is held.
func (c *conn) end(reason error) {
	if c.err != nil {
		return
	}
	c.err, c.until = reason, time.Now().Add(lastWrite)
	c.pulse.Stop()
	close(c.done)
	for _, s := range c.streams {
		s.fail(reason)
	}
	c.moved.Broadcast()
	c.work.Signal()
	// Whoever writes now has no longer than send will have; if this fails, so
	// does the write.
	_ = c.below.SetWriteDeadline(c.until)
}

// beat pings a peer that says nothing and gives up one that answers nothing.
func (c *conn) beat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.idle = max(c.idle, mostIdle)
	quiet := time.Since(c.heard)
	switch {
	case quiet < pingEvery:
		c.pinged = false
		c.pulse.Reset(pingEvery - quiet)
	case !c.pinged:
		c.pinged = true
		c.shrink()
		_ = c.framer.WritePing(false, [8]byte{})
		c.reply()
		c.pulse.Reset(pingWait)
	default:
		c.end(errSilent)
	}
}

// shrink gives up what an idle connection does not need.
func (c *conn) shrink() {
	if len(c.unsent) == 0 && !c.writing {
		c.unsent, c.spare = nil, nil
	}
}

// read takes in the peer's frames until the connection ends.
func (c *conn) read() {
	err := c.greeted()
	for {
		var frame http2.Frame
		if err == nil {
			frame, err = c.framer.ReadFrame()
		}
		c.mu.Lock()
		c.heard = time.Now()
		if err == nil && c.err == nil { // what begins now would not learn of the end
			err = c.take(frame)
		}
		if err != nil {
			c.fault(err)
			err = nil
		}
		if c.err != nil || !c.more() {
			c.settle()
		}
		over := c.err != nil
		c.mu.Unlock()
		if over {
			return
		}
	}
}

// greeted takes in how the peer must begin (RFC 9113, 3.4).
func (c *conn) greeted() error {
	if c.start != nil {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(c.in, preface); err != nil {
			return err
		}
		if string(preface) != http2.ClientPreface {
			return errNotBegun
		}
	}
	frame, err := c.framer.ReadFrame()
	if err != nil {
		return err
	}
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		return errNotBegun
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settings(settings)
}

// more reports whether the next frame is here, whole, with those that a block of
// fields goes on in.
func (c *conn) more() bool {
	const head = 9 // RFC 9113, 4.1
	here := c.in.Buffered()
	if here < head {
		return false
	}
	next, _ := c.in.Peek(5) // it is buffered
	if http2.FrameType(next[3]) == http2.FrameHeaders && !http2.Flags(next[4]).Has(http2.FlagHeadersEndHeaders) {
		return false // rare enough not to look for the others
	}
	return here >= head+int(next[0])<<16+int(next[1])<<8+int(next[2])
}

// settle tells the streams what came for them.
func (c *conn) settle() {
	for i, s := range c.due {
		c.due[i], s.due = nil, false
		if s.fresh {
			s.fresh = false
			if s.err == nil {
				c.start(s)
			} else {
				s.drop(s.err)
			}
		}
		s.changed.Broadcast()
	}
	c.due = c.due[:0]
}

// fault ends what an error ends: a stream or the connection.
func (c *conn) fault(err error) {
	if broken := (http2.StreamError{}); errors.As(err, &broken) {
		if c.idle--; c.idle >= 0 {
			c.reset(broken.StreamID, broken.Code, fmt.Errorf("the peer broke the protocol: %w", err))
			return
		}
		err = errFlood
	}
	code := http2.ErrCodeProtocol
	switch broken := http2.ConnectionError(0); {
	case errors.As(err, &broken):
		code, err = http2.ErrCode(broken), fmt.Errorf("the peer broke the protocol: %w", err)
		if detail := c.framer.ErrorDetail(); detail != nil {
			err = fmt.Errorf("%w: %w", err, detail)
		}
	case errors.Is(err, http2.ErrFrameTooLarge):
		code = http2.ErrCodeFrameSize
	case errors.Is(err, errFlood):
		code = http2.ErrCodeEnhanceYourCalm
	case errors.Is(err, errNotBegun):
	case errors.Is(err, io.EOF): // never a good end of what was read from it
		c.end(errClosed)
		return
	default: // the connection broke: nobody is there to be told
		c.end(err)
		return
	}
	if c.err == nil {
		_ = c.framer.WriteGoAway(c.newest, code, nil)
	}
	c.end(err)
}

// reset ends a stream on both sides.
func (c *conn) reset(id uint32, code http2.ErrCode, reason error) {
	_ = c.framer.WriteRSTStream(id, code)
	c.reply()
	if s := c.streams[id]; s != nil {
		s.fail(reason)
	}
}

// take takes one frame in. An error is a fault.
func (c *conn) take(frame http2.Frame) error {
	if err := c.count(frame); err != nil {
		return err
	}
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return c.heads(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = c.framer.WritePing(true, f.Data)
			c.reply()
		}
	case *http2.WindowUpdateFrame:
		return c.grow(f)
	case *http2.RSTStreamFrame:
		if f.StreamID > c.newest {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if s := c.streams[f.StreamID]; s != nil {
			s.fail(fmt.Errorf("the peer cut the stream: %v", f.ErrCode))
		}
	case *http2.GoAwayFrame:
		return c.leave(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	default: // priorities, and what later versions may bring (RFC 9113, 5.5)
	}
	return nil
}

// count keeps the budget of frames that carry nothing.
func (c *conn) count(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		c.useful()
		return nil
	case *http2.DataFrame:
		if len(f.Data()) > 0 || f.StreamEnded() {
			c.useful()
			return nil
		}
	}
	if c.idle--; c.idle < 0 {
		return errFlood
	}
	return nil
}

// useful allows ten frames that carry nothing for one that carries something,
// whoever sent it.
func (c *conn) useful() { c.idle = min(c.idle+10, mostIdle) }

// data takes in a part of a body.
func (c *conn) data(f *http2.DataFrame) error {
	c.window -= int64(f.Length)
	if c.window < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	s := c.streams[f.StreamID]
	if s == nil {
		if f.StreamID > c.newest || f.StreamID%2 == 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.refund(int64(f.Length)) // on its way when the stream ended
		return nil
	}
	if err := s.receive(f.Data(), int64(f.Length), f.StreamEnded()); err != 0 {
		c.refund(int64(f.Length))
		return http2.StreamError{StreamID: s.id, Code: err}
	}
	return nil
}

// refund gives the peer n bytes of the connection's window back.
func (c *conn) refund(n int64) {
	if c.owed += n; c.owed >= connectionRefund {
		_ = c.framer.WriteWindowUpdate(0, uint32(c.owed))
		c.window += c.owed
		c.owed = 0
		c.reply()
	}
}

// settings does as the peer wishes.
func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.HasDuplicates() { // each may cost a look at all streams
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			change := int64(s.Val) - c.streamCredit
			c.streamCredit = int64(s.Val)
			for _, open := range c.streams {
				if open.credit += change; open.credit > lastStream {
					return http2.ConnectionError(http2.ErrCodeFlowControl)
				}
				open.changed.Broadcast()
			}
		case http2.SettingMaxConcurrentStreams:
			c.maxStreams = s.Val
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSize(min(s.Val, 4096))
		}
		return nil
	})
	if err != nil {
		return err
	}
	_ = c.framer.WriteSettingsAck()
	c.reply()
	return nil
}

// grow takes in that more may be sent.
func (c *conn) grow(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		if c.credit += int64(f.Increment); c.credit > lastStream {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		for _, s := range c.streams {
			s.changed.Broadcast()
		}
		return nil
	}
	if f.StreamID > c.newest {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if s := c.streams[f.StreamID]; s != nil {
		if s.credit += int64(f.Increment); s.credit > lastStream {
			return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
		}
		s.changed.Broadcast()
	}
	return nil
}

// leave takes in that the peer takes no further streams; without an error of
// its own it still serves those up to the last that it names.
func (c *conn) leave(f *http2.GoAwayFrame) error {
	if f.ErrCode != http2.ErrCodeNo {
		detail := f.DebugData()
		c.end(fmt.Errorf("the peer ended the connection: %v %q", f.ErrCode, detail[:min(len(detail), mostDetail)]))
		return nil
	}
	c.away = true
	for id, s := range c.streams {
		if id > f.LastStreamID && s.request == nil { // it numbers those that this end opened
			s.fail(errors.New("the peer took no further streams"))
		}
	}
	return nil
}

// unsent is where frames are written: conn's buffer. c.mu is held.
type unsent struct{ c *conn }

func (u unsent) Write(p []byte) (int, error) {
	u.c.unsent = append(u.c.unsent, p...)
	u.c.taken += int64(len(p))
	return len(p), nil
}

// writeFields sends the fields in c.block as one block.
func (c *conn) writeFields(id uint32, last bool) {
	block := c.block.Bytes()
	first := block[:min(len(block), maxFrame)]
	block = block[len(first):]
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: last, EndHeaders: len(block) == 0})
	for len(block) > 0 {
		next := block[:min(len(block), maxFrame)]
		block = block[len(next):]
		_ = c.framer.WriteContinuation(id, len(block) == 0, next)
	}
	c.useful()
}

// reply sees to it that unsent goes, for those who cannot wait: the reader, who
// would stand still with a peer that does not read either.
func (c *conn) reply() {
	if len(c.unsent) > mostReplies {
		c.end(errUnread)
	}
	c.work.Signal()
}

// push sends what is unsent, unless somebody is at it. It gives c.mu up
// meanwhile.
func (c *conn) push() {
	if len(c.unsent) > 0 && !c.writing && c.err == nil {
		c.write()
	}
}

// send writes what others left unsent, and ends what is below with the
// connection.
func (c *conn) send() {
	c.mu.Lock()
	for c.err == nil || c.writing {
		if len(c.unsent) == 0 || c.writing {
			c.work.Wait()
			continue
		}
		c.write()
	}
	if len(c.unsent) > 0 {
		c.write()
	}
	c.mu.Unlock()
	cut(c.below)
}

// write sends what is unsent; c.mu is given up meanwhile. Nobody else writes.
func (c *conn) write() {
	batch := c.unsent
	c.unsent, c.spare, c.writing = c.spare[:0], nil, true
	c.mu.Unlock()
	err := c.put(batch)
	c.mu.Lock()
	c.writing = false
	if cap(batch) <= 2*mostUnsent {
		c.spare = batch
	}
	if err != nil {
		c.unsent = nil
		c.fault(err)
	} else {
		c.sent += int64(len(batch))
	}
	c.moved.Broadcast()
	if len(c.unsent) > 0 || c.err != nil {
		c.work.Signal()
	}
}

// put writes all of p, in pieces that a slow peer can take in time: TLS cannot go
// on with a write that a deadline cut, and a peer that takes a byte now and then
// must not hold those who wait.
func (c *conn) put(p []byte) error {
	for len(p) > 0 {
		if err := c.limit(); err != nil {
			return err
		}
		n, err := c.below.Write(p[:min(len(p), bulk)])
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// limit says until when the next write must be done; once the connection is
// over, all of them.
func (c *conn) limit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := c.until
	if c.err == nil {
		until = time.Now().Add(WriteWithin)
	}
	return c.below.SetWriteDeadline(until)
}

// cut closes the connection at the bottom.
func cut(below net.Conn) {
	for {
		over, ok := below.(interface{ NetConn() net.Conn }) // tls.Conn and the like
		if !ok {
			// Its error says nothing: the connection is over.
			_ = below.Close()
			return
		}
		below = over.NetConn()
	}
}
