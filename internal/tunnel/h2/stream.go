package h2

import (
	"context"
	"io"
	"net/http"
	"sync"

	"golang.org/x/net/http2"
)

// stream is one call's half at this end. All is under its connection's lock.
type stream struct {
	c       *conn
	id      uint32
	changed sync.Cond // something came, more may be sent, or it ended
	due     bool      // changed is told of soon
	fresh   bool      // the peer opened it and nothing runs for it yet
	err     error     // why it broke

	// What comes.
	in      []byte // came and was not read, from off on
	off     int
	window  int64 // bytes that the peer may still send
	owed    int64 // bytes that were read and not given back to it yet
	length  int64 // bytes of the body that were announced and did not come; -1: not announced
	dropped error // why nobody reads what comes
	ended   bool  // the peer has said all
	trailer http.Header

	// What goes.
	credit   int64 // bytes that may be sent
	finished bool  // all is said

	request  *http.Request      // at the answering end
	cancel   context.CancelFunc // of the request's context
	response *http.Response     // at the asking end, once its head came
	upload   io.Closer          // a body that goes on while the answer is awaited; whoever closes it takes it
}

// open makes the stream of that number. c.mu is held.
func (c *conn) open(id uint32) *stream {
	s := &stream{c: c, id: id, window: StreamWindow, length: -1, credit: c.streamCredit}
	s.changed.L = &c.mu
	c.newest = id
	c.streams[id] = s
	return s
}

// tell has the stream told that something came, once the reader has taken in
// what else is here.
func (s *stream) tell() {
	if !s.due {
		s.due = true
		s.c.due = append(s.c.due, s)
	}
}

// fail breaks the stream, if it is not over. c.mu is held.
func (s *stream) fail(err error) {
	if s.c.streams[s.id] != s {
		return
	}
	s.err = err
	s.leave()
}

// leave takes the stream off its connection.
func (s *stream) leave() {
	delete(s.c.streams, s.id)
	if s.cancel != nil {
		s.cancel()
	}
	if upload := s.upload; upload != nil && !s.finished {
		s.upload = nil
		go upload.Close() // it may be waited for in a Read
	}
	s.changed.Broadcast()
}

// over takes a stream off its connection whose both halves are said.
func (s *stream) over() {
	if s.ended && s.finished && s.request == nil {
		s.leave()
	}
}

// receive takes in size bytes on the wire, of which p are the body's. An error
// breaks the stream.
func (s *stream) receive(p []byte, size int64, last bool) http2.ErrCode {
	switch {
	case s.ended:
		return http2.ErrCodeStreamClosed
	case s.request == nil && s.response == nil: // no head yet
		return http2.ErrCodeProtocol
	}
	if s.window -= size; s.window < 0 {
		return http2.ErrCodeFlowControl
	}
	if s.length >= 0 {
		if s.length -= int64(len(p)); s.length < 0 || last && s.length > 0 {
			return http2.ErrCodeProtocol
		}
	}
	if s.dropped != nil {
		s.used(size)
	} else {
		if s.off > len(s.in)/2 { // a reader that is always behind never empties it
			s.in, s.off = append(s.in[:0], s.in[s.off:]...), 0
		}
		s.in = append(s.in, p...)
		s.used(size - int64(len(p))) // padding
	}
	if last {
		s.ended = true
		s.over()
	}
	s.tell()
	return 0
}

// used gives the peer n bytes of the windows back.
func (s *stream) used(n int64) {
	s.c.refund(n)
	if s.owed += n; s.owed >= streamRefund && !s.ended && s.err == nil {
		_ = s.c.framer.WriteWindowUpdate(s.id, uint32(s.owed))
		s.window += s.owed
		s.owed = 0
		s.c.reply()
	}
}

// drop forgets what was not read and will not be; who reads on learns the reason.
func (s *stream) drop(reason error) {
	if s.dropped == nil {
		unread := len(s.in) - s.off
		s.in, s.off, s.dropped = nil, 0, reason
		s.used(int64(unread)) // the peer may still have more to say
	}
}

// abandon breaks the stream from this end.
func (s *stream) abandon(code http2.ErrCode, reason error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s.drop(reason)
	if c.streams[s.id] == s {
		c.reset(s.id, code, reason)
	}
}

// read gives what came, then io.EOF or why there is no more.
func (s *stream) read(p []byte) (int, error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(p) > 0 && s.off == len(s.in) && !s.ended && s.err == nil && s.dropped == nil {
		s.changed.Wait()
	}
	if s.dropped != nil {
		return 0, s.dropped
	}
	n := copy(p, s.in[s.off:])
	if s.off += n; s.off == len(s.in) {
		if s.in = s.in[:0]; cap(s.in) > mostUnsent {
			s.in = nil
		}
		s.off = 0
	}
	switch {
	case n > 0 || len(p) == 0:
		s.used(int64(n))
		return n, nil
	case s.ended:
		return 0, io.EOF
	}
	return 0, s.err
}

// write sends p, which ends the body if last, in frames as the windows and the
// other streams let it. Without push it may stay unsent until the next push.
func (s *stream) write(p []byte, last, push bool) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(p) > 0 {
		n, err := s.grant(len(p))
		if err != nil {
			return err
		}
		s.credit -= int64(n)
		c.credit -= int64(n)
		s.finished = last && n == len(p)
		_ = c.framer.WriteData(s.id, s.finished, p[:n])
		c.useful()
		p = p[n:]
		if n >= bulk {
			mine := c.taken
			c.push()
			for c.sent < mine && c.err == nil {
				c.moved.Wait()
			}
		}
	}
	if s.err != nil {
		return s.err
	}
	if last {
		if !s.finished {
			s.finished = true
			_ = c.framer.WriteData(s.id, true, nil)
		}
		s.over()
	}
	if push || len(c.unsent) >= bulk {
		c.push()
	}
	return nil
}

// grant waits until some of n bytes may be sent and says how many.
func (s *stream) grant(n int) (int, error) {
	c := s.c
	for s.err == nil {
		may := min(int64(n), s.credit, c.credit, maxFrame)
		if may > 0 && len(c.unsent) < mostUnsent {
			return int(may), nil
		}
		if len(c.unsent) > 0 && !c.writing && c.err == nil {
			c.write() // what is waited for may depend on it
			continue
		}
		if may > 0 {
			c.moved.Wait()
		} else {
			s.changed.Wait()
		}
	}
	return 0, s.err
}

// body is what a stream brings, as net/http has it.
type body struct {
	s *stream
	// end is called when all was read or nobody reads on.
	end func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.s.read(p)
	if err != nil {
		b.end()
	}
	return n, err
}
