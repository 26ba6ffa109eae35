package gateway

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/spool"
)

// A request body has bodyGrace plus one second for each bodyFloor bytes to arrive. A
// slower one closes the connection without a response (spec/api.md#limit-slow): SDKs
// would repeat the request after a 408.
const (
	bodyGrace = 30 * time.Second
	bodyFloor = 64 << 10
	// bodyStep is the number of bytes after which the read deadline is extended.
	bodyStep = 64 << 10
)

// To keep the connection, the rest of an unread body is discarded before the answer is
// sent, if it is at most discardLimit bytes and arrives within discardTime.
const (
	discardLimit = 64 << 10
	discardTime  = time.Second
)

// requestBody is the body of a request while it arrives. It extends the read deadline for
// the bytes received. The transport to another region may read it in the background, even
// after the request has ended.
type requestBody struct {
	r       *http.Request
	src     io.Reader // r.Body, limited
	control *http.ResponseController
	arrived time.Time
	ending  context.Context // ended by EndBodies

	mu              sync.Mutex // held while a deadline is set
	received, armed int
	done, closed    bool  // read to its end; to be read no further
	err             error // of reading from the caller
	tooLarge        bool  // over a limit
}

// start sets the first read deadline. Until stop is called, EndBodies interrupts the
// reading.
func (b *requestBody) start(src io.Reader) (stop func() bool) {
	b.src = src
	b.extendDeadline()
	return context.AfterFunc(b.ending, b.extendDeadline)
}

// extendDeadline sets the read deadline for the bytes received: now, after EndBodies.
func (b *requestBody) extendDeadline() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.extendLocked()
}

func (b *requestBody) extendLocked() {
	deadline := b.arrived.Add(bodyGrace + time.Duration(b.received)*time.Second/bodyFloor)
	if b.ending.Err() != nil {
		deadline = time.Now()
	}
	if !b.done && !b.closed {
		_ = b.control.SetReadDeadline(deadline) // an in-memory connection may not support deadlines
	}
}

// Read reads the body. At its end it clears the read deadline, which would interrupt the
// answer.
func (b *requestBody) Read(p []byte) (int, error) {
	if b.isDone() { // the transport reads on although the answer may have closed the body
		return 0, io.EOF
	}
	n, err := b.src.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.received += n
	switch length := b.r.ContentLength; {
	case b.closed || b.done:
	case err == io.EOF || length > 0 && int64(b.received) >= length:
		b.done = true
		_ = b.control.SetReadDeadline(time.Time{})
	case err != nil:
		b.err = cmp.Or(b.err, err)
	case b.received-b.armed >= bodyStep:
		b.armed = b.received
		b.extendLocked()
	}
	return n, err
}

// Close does nothing: net/http closes the body after the request.
func (b *requestBody) Close() error { return nil }

func (b *requestBody) isDone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done
}

// end ends the reading of the body.
func (b *requestBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed = true; !b.done {
		_ = b.control.SetReadDeadline(time.Now()) // net/http waits for the current read
	}
}

// discard discards a body that was not read, before the answer with the headers h is sent;
// net/http would wait for the rest of it without a limit. It reads a small body to keep
// the connection. For a larger one, the answer is sent at once and the connection closed
// afterwards.
func (b *requestBody) discard(h http.Header) {
	if b.r.ProtoMajor > 1 || b.isDone() { // HTTP/2 resets a stream itself
		return
	}
	_ = b.control.SetReadDeadline(time.Now().Add(discardTime))
	if !b.tooLarge && b.r.ContentLength <= discardLimit && b.r.Header["Expect"] == nil && b.ending.Err() == nil {
		if _, err := io.CopyN(io.Discard, b.r.Body, discardLimit+1); err == io.EOF {
			_ = b.control.SetReadDeadline(time.Time{})
			return
		}
	}
	_ = b.control.EnableFullDuplex()
	h["Connection"] = []string{"close"}
}

// readBody reads and holds the complete body of the request. If memory and disk run out,
// it refuses the body without reading further.
func (r *request) readBody() (*spool.Bytes, error) {
	limit := r.tuning.Body
	if r.route.sealed {
		limit += sealedRoom
	}
	if r.ContentLength > limit {
		return nil, r.tooLarge()
	}
	if err := r.checkEncoding("body"); err != nil {
		return nil, err
	}
	if r.edge.cfg.Guard != nil && ofBrowser(r.Header) && !isJSON(r.Header.Get("Content-Type")) {
		return nil, fault.New(fault.InvalidRequest, "send the body with Content-Type: application/json")
	}
	held := r.hold(r.ContentLength)
	stop := r.body.start(http.MaxBytesReader(r.reply.ResponseWriter, r.Body, limit))
	_, err := held.ReadFrom(&r.body)
	stop()
	if err != nil {
		held.Close()
		return nil, r.bodyError(err)
	}
	return held, nil
}

// checkEncoding refuses a body with a Content-Encoding.
func (r *request) checkEncoding(what string) error {
	for _, encoding := range r.Header["Content-Encoding"] {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return fault.New(fault.UnsupportedEncoding, "send the %s as it is, without Content-Encoding", what)
		}
	}
	return nil
}

// hold returns an empty body that is counted for the caller.
func (r *request) hold(announced int64) *spool.Bytes {
	return r.edge.cfg.Spool.Hold(r.holder(), announced)
}

// keep holds made, the translation of a body, for the caller.
func (r *request) keep(made []byte) (*spool.Bytes, error) {
	return r.edge.cfg.Spool.Keep(r.holder(), made)
}

// holder returns the member that the bytes of the request are counted for.
func (r *request) holder() spool.Holder { return spool.Holder{Member: string(r.caller.Member)} }

func (r *request) tooLarge() error {
	r.body.tooLarge = true
	return fault.New(fault.RequestTooLarge, "the body exceeds %d bytes", r.tuning.Body)
}

// bodyError returns the error for a body that is too large, malformed or incomplete. If
// reading it from the caller did not fail, it is err, the error of the spool.
func (r *request) bodyError(err error) error {
	var tooLarge *http.MaxBytesError
	switch read, cause := r.body.err, context.Cause(r.edge.ending); {
	case read == nil:
		r.body.tooLarge = r.body.tooLarge || fault.Of(err).Code == fault.CapacityFull
		return err
	case cause != nil && errors.Is(read, os.ErrDeadlineExceeded):
		return cause
	case errors.As(read, &tooLarge):
		return r.tooLarge()
	case errors.Is(read, os.ErrDeadlineExceeded), r.Context().Err() != nil, errors.Is(read, io.ErrUnexpectedEOF):
		return errGone
	default: // such as malformed chunks
		return fault.New(fault.InvalidRequest, "cannot read the body: its transfer is malformed").Because(read)
	}
}

// readForm is readBody for a transcription, which has its own size limit and the same
// minimum speed.
func (r *request) readForm() (*dialect.Transcription, error) {
	limit := r.tuning.Upload
	if r.ContentLength > limit+dialect.FormOverhead {
		return nil, r.audioTooLarge()
	}
	if err := r.checkEncoding("form"); err != nil {
		return nil, err
	}
	stop := r.body.start(http.MaxBytesReader(r.reply.ResponseWriter, r.Body, limit+dialect.FormOverhead))
	form, err := dialect.ReadTranscription(r.Header.Get("Content-Type"), &r.body, r.hold(-1), limit)
	if err == nil { // discard what follows the form, to keep the connection
		_, err = io.Copy(io.Discard, &r.body)
	}
	stop()
	if err == nil {
		return form, nil
	}
	form.Close()
	if err = r.bodyError(err); err != errGone && fault.Of(err).Code == fault.RequestTooLarge {
		err = r.audioTooLarge()
	}
	return nil, err
}

func (r *request) audioTooLarge() error {
	r.body.tooLarge = true
	return fault.New(fault.RequestTooLarge, "audio exceeds %d bytes", r.tuning.Upload).WithParam("file")
}
