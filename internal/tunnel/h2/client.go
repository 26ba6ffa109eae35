package h2

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

// Client is the asking end, an http.RoundTripper. All methods may be used at
// once.
type Client struct{ conn }

// Dial begins HTTP/2 on a connection to one that serves it, and owns it from
// here. The client must be closed.
func Dial(below net.Conn) *Client {
	c := new(Client)
	c.init(below)
	c.heads = c.answer
	c.mu.Lock()
	_, _ = unsent{&c.conn}.Write([]byte(http2.ClientPreface))
	c.mu.Unlock()
	c.begin(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	return c
}

// RoundTrip sends one request. It never waits for a stream to come free
// (ErrFull) and never repeats a request. Any other error means that it is over:
// the connection ended, the peer cut the stream, or the request's context did.
// A body of up to 16 KiB of a known length is read before the request is sent.
// Of a trace in the request's context WroteHeaders is called.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	upload := r.Body
	if upload == nil {
		upload = http.NoBody
	}
	if err := check(r); err != nil {
		upload.Close()
		return nil, err
	}
	first, rest, err := beginning(upload, r.ContentLength)
	if err != nil {
		upload.Close()
		return nil, fmt.Errorf("cannot read the call's body: %w", err)
	}
	ctx := r.Context()
	s, err := c.ask(r, first, rest)
	if err != nil {
		upload.Close()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.abandon(http2.ErrCodeCancel, ctx.Err()) })
	if rest {
		go s.send(upload)
	} else {
		upload.Close()
	}
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.WroteHeaders != nil {
		trace.WroteHeaders()
	}
	response, err := s.await()
	if err != nil {
		stop()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	response.Request = r
	if response.Body == nil {
		response.Body = &answerBody{body{s, func() { stop() }}, response}
	} else {
		stop()
	}
	return response, nil
}

// check says what cannot be sent.
func check(r *http.Request) error {
	for name, values := range r.Header {
		for _, value := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return fmt.Errorf("cannot send the call: its header %q is no valid one", name)
			}
		}
	}
	return r.Context().Err()
}

// beginning is the body that goes with the head, and whether more may follow.
func beginning(upload io.Reader, n int64) (first []byte, rest bool, err error) {
	switch {
	case upload == http.NoBody:
		return nil, false, nil
	case n <= 0 || n > bulk:
		return nil, true, nil
	default:
		first = make([]byte, n)
		_, err = io.ReadFull(upload, first)
		return first, false, err
	}
}

// ask opens a stream with the request's head and, if nothing else is in the
// way, what there is of its body.
func (c *Client) ask(r *http.Request, first []byte, rest bool) (*stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.unsent) >= mostUnsent && c.err == nil {
		c.push()
		if len(c.unsent) >= mostUnsent && c.err == nil {
			c.moved.Wait()
		}
	}
	switch {
	case c.err != nil:
		return nil, fmt.Errorf("cannot send the call: the tunnel ended: %w", c.err)
	case c.away || len(c.streams) >= int(min(c.maxStreams, maxStreams)):
		return nil, ErrFull
	case c.newest >= lastStream-1:
		c.end(errUsedUp)
		return nil, c.err
	}
	s := c.open(c.next())
	if rest {
		s.upload = r.Body
	}
	c.requestHead(r)
	c.writeFields(s.id, len(first) == 0 && !rest)
	switch n := int64(len(first)); {
	case rest:
	case n == 0:
		s.finished = true
	case n <= min(s.credit, c.credit, maxFrame):
		s.finished = true
		s.credit -= n
		c.credit -= n
		_ = c.framer.WriteData(s.id, true, first)
	default:
		go s.write(first, true, true) // its error is the stream's
	}
	c.push()
	return s, nil
}

// next is the number of the next stream that this end opens.
func (c *Client) next() uint32 {
	if c.newest == 0 {
		return 1
	}
	return c.newest + 2
}

// requestHead puts a request's fields into the block.
func (c *Client) requestHead(r *http.Request) {
	c.block.Reset()
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	c.field(":method", r.Method, false)
	c.field(":scheme", "http", false)
	c.field(":authority", host, false)
	c.field(":path", r.URL.RequestURI(), false)
	if r.ContentLength > 0 {
		c.field("content-length", strconv.FormatInt(r.ContentLength, 10), true)
	}
	c.header(r.Header, "Host", "Content-Length", "User-Agent")
	if agent := r.Header.Get("User-Agent"); agent != "" {
		c.field("user-agent", agent, false)
	}
}

// send sends a body that does not go with the head, while the answer is
// awaited.
func (s *stream) send(rest io.Reader) {
	defer s.closeUpload()
	chunk := make([]byte, bulk)
	for {
		n, err := rest.Read(chunk)
		if n > 0 && s.write(chunk[:n], false, true) != nil {
			return
		}
		if err == io.EOF {
			_ = s.write(nil, true, true) // its error is the stream's
			return
		}
		if err != nil {
			s.abandon(http2.ErrCodeCancel, fmt.Errorf("cannot read the call's body: %w", err))
			return
		}
	}
}

// closeUpload closes the body, unless the stream's end did.
func (s *stream) closeUpload() {
	s.c.mu.Lock()
	upload := s.upload
	s.upload = nil
	s.c.mu.Unlock()
	if upload != nil {
		upload.Close()
	}
}

// await waits for the answer's head. Its body is nil if one may follow, or if
// closing it is what ends the call.
func (s *stream) await() (*http.Response, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for s.response == nil && s.err == nil {
		s.changed.Wait()
	}
	switch {
	case s.dropped != nil:
		return nil, s.dropped
	case s.response == nil:
		return nil, s.err
	}
	if s.ended && s.finished && len(s.in) == 0 && s.trailer == nil {
		s.response.Body = http.NoBody
	}
	return s.response, nil
}

// answer takes in the head of an answer, or what follows its body.
func (c *Client) answer(f *http2.MetaHeadersFrame) error {
	broken := http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	s := c.streams[f.StreamID]
	switch {
	case f.StreamID > c.newest || f.StreamID%2 == 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil: // on its way when the stream ended
		return nil
	case s.ended || f.Truncated:
		return broken
	case s.response != nil:
		h, _, err := c.fields(f)
		if err != nil || !f.StreamEnded() || len(f.PseudoFields()) > 0 || s.length > 0 {
			return broken
		}
		s.trailer = h
	default:
		response, err := c.newResponse(f)
		if err != nil || response == nil && f.StreamEnded() {
			return broken
		}
		if response == nil {
			return nil
		}
		if f.StreamEnded() {
			response.ContentLength = max(response.ContentLength, 0)
		}
		s.response = response
		if status := response.StatusCode; status != http.StatusNoContent && status != http.StatusNotModified {
			s.length = response.ContentLength
		}
	}
	if f.StreamEnded() {
		if s.length > 0 {
			return broken
		}
		s.ended = true
		s.over()
	}
	s.tell()
	return nil
}

// answerBody is an answer's body.
type answerBody struct {
	body
	response *http.Response
}

// Read satisfies io.Reader. At the end the answer's trailer is there.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err == io.EOF && b.s.trailer != nil {
		if b.response.Trailer == nil {
			b.response.Trailer = http.Header{}
		}
		for name, values := range b.s.trailer {
			b.response.Trailer[name] = values
		}
	}
	return n, err
}

// Close ends the call if the answer was not read to its end.
func (b *answerBody) Close() error {
	b.end()
	b.s.abandon(http2.ErrCodeCancel, http.ErrBodyReadAfterClose)
	return nil
}
