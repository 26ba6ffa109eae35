package h2

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"

	"golang.org/x/net/http2"
)

// Server is the answering end.
type Server struct {
	conn
	ctx     context.Context
	handler http.Handler
	log     *slog.Logger

	running int          // handlers; under mu
	waiting int          // workers without one; under mu
	work    chan *stream // for the workers that wait
}

// Serve answers the requests on a connection, which it owns from here, each with
// the handler. The requests' contexts come from ctx and end with their stream.
// A handler that panics breaks its stream alone; with anything but
// http.ErrAbortHandler that is logged. The server must be closed.
//
// A handler's answer is sent as it is written from 16 KiB on, else at a flush
// (http.NewResponseController) or its end. Of the trailers those are sent that
// the header Trailer announced.
func Serve(ctx context.Context, below net.Conn, handler http.Handler, log *slog.Logger) *Server {
	s := &Server{ctx: ctx, handler: handler, log: log, work: make(chan *stream, idleWorkers)}
	s.init(below)
	s.heads, s.start = s.accept, s.begun
	s.begin(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams})
	return s
}

// accept takes in the head of a request, or what follows its body.
func (c *Server) accept(f *http2.MetaHeadersFrame) error {
	broken := http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	if s := c.streams[f.StreamID]; s != nil {
		if s.ended || !f.StreamEnded() || len(f.PseudoFields()) > 0 || s.length > 0 {
			return broken
		}
		s.ended = true
		s.tell()
		return nil
	}
	if f.StreamID%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if f.StreamID <= c.newest { // of a stream that was reset
		return nil
	}
	c.newest = f.StreamID
	if len(c.streams) >= maxStreams || c.running >= maxHandlers {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeRefusedStream}
	}
	if f.Truncated {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeEnhanceYourCalm}
	}
	r, err := c.newRequest(f)
	if err != nil || f.StreamEnded() && r.ContentLength > 0 {
		return broken
	}
	s := c.open(f.StreamID)
	ctx, cancel := context.WithCancel(c.ctx)
	s.cancel, s.length, s.ended, s.fresh = cancel, r.ContentLength, f.StreamEnded(), true
	if s.ended {
		r.Body, r.ContentLength = http.NoBody, 0
	} else {
		r.Body = &requestBody{body{s, func() {}}}
	}
	s.request = r.WithContext(ctx)
	s.tell()
	return nil
}

// begun hands a stream to a worker. c.mu is held.
func (c *Server) begun(s *stream) {
	c.running++
	if c.waiting > 0 {
		c.waiting--
		c.work <- s // it has room for all that wait
		return
	}
	go c.serve(s)
}

// serve answers streams, one after the other, for as long as few wait as it
// does.
func (c *Server) serve(s *stream) {
	for {
		c.answer(s)
		c.mu.Lock()
		c.running--
		stay := c.waiting < idleWorkers && c.err == nil
		if stay {
			c.waiting++
		}
		c.mu.Unlock()
		if !stay {
			return
		}
		select {
		case s = <-c.work:
		case <-c.done:
			return
		}
	}
}

// answer runs the handler for a stream and ends it.
func (c *Server) answer(s *stream) {
	w := &writer{s: s, header: http.Header{}}
	whole := false
	defer func() {
		v := recover()
		if !whole && v != http.ErrAbortHandler {
			c.log.Error("a handler of a tunnel failed", "path", s.request.URL.Path, "panic", v, "stack", string(debug.Stack()))
		}
		if whole {
			whole = w.finish() == nil
		}
		c.part(s, whole)
	}()
	c.handler.ServeHTTP(w, s.request)
	whole = true
}

// part ends a stream whose handler has returned. A request that was answered
// before it was whole is not waited for (RFC 9113, 8.1).
func (c *Server) part(s *stream, whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.drop(http.ErrBodyReadAfterClose)
	if c.streams[s.id] != s {
		return
	}
	switch {
	case !whole:
		c.reset(s.id, http2.ErrCodeInternal, http.ErrAbortHandler)
	case !s.ended:
		c.reset(s.id, http2.ErrCodeNo, http.ErrAbortHandler)
	default:
		s.fail(http.ErrAbortHandler) // for what the handler left behind
	}
}

// writer is a handler's http.ResponseWriter.
type writer struct {
	s        *stream
	header   http.Header
	status   int      // 0: not written yet
	trailers []string // announced
}

// Header satisfies http.ResponseWriter.
func (w *writer) Header() http.Header { return w.header }

// WriteHeader satisfies http.ResponseWriter. Only the first one counts;
// informational ones are not sent.
func (w *writer) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status, w.trailers = status, listed(w.header["Trailer"])
	c := w.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.s.err != nil {
		return
	}
	c.block.Reset()
	c.field(":status", strconv.Itoa(status), false)
	c.header(w.header, w.trailers...)
	c.writeFields(w.s.id, false)
}

// Write satisfies http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.status == http.StatusNoContent || w.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	if err := w.s.write(p, false, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// FlushError is for http.ResponseController.
func (w *writer) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return w.s.write(nil, false, true)
}

// finish says what is left to say.
func (w *writer) finish() error {
	w.WriteHeader(http.StatusOK)
	if !slices.ContainsFunc(w.trailers, func(name string) bool { return w.header[name] != nil }) {
		return w.s.write(nil, true, true)
	}
	c := w.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.s.err != nil {
		return w.s.err
	}
	c.block.Reset()
	for _, name := range w.trailers {
		c.header(http.Header{name: w.header[name]})
	}
	c.writeFields(w.s.id, true)
	w.s.finished = true
	c.push()
	return nil
}

// requestBody is a request's body.
type requestBody struct{ body }

// Close satisfies io.Closer: what still comes is dropped.
func (b *requestBody) Close() error {
	c := b.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	b.s.drop(http.ErrBodyReadAfterClose)
	return nil
}
