package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

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

// readBody reads and holds the complete body of the request. If memory and disk run out,
// it refuses the body without reading further.
func (x *exchange) readBody() (*spool.Bytes, error) {
	limit, length := x.tuning.Body, x.r.ContentLength
	if length > limit {
		return nil, x.tooLarge()
	}
	if err := x.checkEncoding("body"); err != nil {
		return nil, err
	}
	if x.g.cfg.Guard != nil && ofBrowser(x.r.Header) && !isJSON(x.r.Header.Get("Content-Type")) {
		return nil, fault.New(fault.InvalidRequest, "send the body with Content-Type: application/json")
	}
	body := x.hold(length)
	from := &paced{x: x, src: http.MaxBytesReader(x.w, x.r.Body, limit)}
	stop := x.awaitBody()
	_, err := body.ReadFrom(from)
	stop()
	if err != nil {
		body.Close()
		return nil, x.unread(from, err)
	}
	x.bodyWasRead()
	return body, nil
}

// checkEncoding refuses a body with a Content-Encoding.
func (x *exchange) checkEncoding(what string) error {
	for _, encoding := range x.r.Header["Content-Encoding"] {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return fault.New(fault.UnsupportedEncoding, "send the %s as it is, without Content-Encoding", what)
		}
	}
	return nil
}

// hold returns an empty body that is counted for the caller.
func (x *exchange) hold(announced int64) *spool.Bytes {
	return x.g.cfg.Spool.Hold(x.holder(), announced)
}

// keep holds made, the translation of a body, for the caller.
func (x *exchange) keep(made []byte) (*spool.Bytes, error) {
	return x.g.cfg.Spool.Keep(x.holder(), made)
}

// holder returns the member that the bytes of the request are counted for.
func (x *exchange) holder() spool.Holder { return spool.Holder{Member: string(x.caller.Member)} }

// bodyWasRead records that the request was read to its end, and clears the read deadline.
func (x *exchange) bodyWasRead() {
	x.bodyDone = true
	_ = x.control.SetReadDeadline(time.Time{}) // or it would interrupt the answer
}

// unread returns why a body was not read to its end: the error of from, if any, else err,
// the error of the spool.
func (x *exchange) unread(from *paced, err error) error {
	if cause := context.Cause(x.g.ending); cause != nil && errors.Is(from.err, os.ErrDeadlineExceeded) {
		return cause
	}
	if from.err != nil {
		return x.brokenBody(from.err)
	}
	x.bodyTooLarge = x.bodyTooLarge || fault.Of(err).Code == fault.CapacityFull
	return err
}

// bodyDeadline extends the read deadline for the bytes received.
func (x *exchange) bodyDeadline(received int) {
	allowed := bodyGrace + time.Duration(received)*time.Second/bodyFloor
	_ = x.control.SetReadDeadline(x.arrived.Add(allowed)) // an in-memory connection may not support deadlines
	if x.g.ending.Err() != nil {
		x.stopReading()
	}
}

// awaitBody sets the first read deadline of a body. Until stop is called, EndBodies
// interrupts its reading.
func (x *exchange) awaitBody() (stop func()) {
	x.bodyDeadline(0)
	ends := context.AfterFunc(x.g.ending, x.stopReading)
	return func() { ends() }
}

// stopReading interrupts the current read of the body and fails all later ones.
func (x *exchange) stopReading() { _ = x.control.SetReadDeadline(time.Now()) }

func (x *exchange) tooLarge() error {
	x.bodyTooLarge = true
	return fault.New(fault.RequestTooLarge, "the body is larger than %d bytes: send less", x.tuning.Body)
}

// brokenBody returns the error for a body that is too large, malformed or incomplete.
func (x *exchange) brokenBody(err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return x.tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded), x.r.Context().Err() != nil, errors.Is(err, io.ErrUnexpectedEOF):
		return errGone
	default: // such as malformed chunks
		return fault.New(fault.InvalidRequest, "cannot read the body: its transfer is malformed").Because(err)
	}
}

// discardBody discards a body that was not read, before the answer is sent; net/http
// would wait for the rest of it without a limit. It reads a small body to keep the
// connection. For a larger one, the answer is sent at once and the connection closed
// afterwards.
func (x *exchange) discardBody() {
	x.bodyDone = true
	_ = x.control.SetReadDeadline(time.Now().Add(discardTime))
	if !x.bodyTooLarge && x.r.ContentLength <= discardLimit && x.r.Header["Expect"] == nil && x.g.ending.Err() == nil {
		if _, err := io.CopyN(io.Discard, x.r.Body, discardLimit+1); err == io.EOF {
			_ = x.control.SetReadDeadline(time.Time{})
			return
		}
	}
	_ = x.control.EnableFullDuplex()
	x.w.Header()["Connection"] = []string{"close"}
}
