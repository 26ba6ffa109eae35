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

// A body must come within bodyGrace and bodyFloor bytes a second; otherwise the connection is closed
// (spec/api.md#limit-slow): SDKs would repeat the request after a 408.
const (
	bodyGrace = 30 * time.Second
	bodyFloor = 64 << 10
	// bodyStep is how often the deadline moves.
	bodyStep = 64 << 10
)

// A body that was not read when the answer goes out may still be this long, and
// has this long to come, for the connection to be kept.
const (
	discardLimit = 64 << 10
	discardTime  = time.Second
)

// readBody holds the complete body of the request. Where there is no room for it, it is refused at that byte.
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

// hold begins to hold a body for the caller.
func (x *exchange) hold(announced int64) *spool.Bytes {
	return x.g.cfg.Spool.Hold(x.holder(), announced)
}

// keep holds for the caller what was made of a body.
func (x *exchange) keep(made []byte) (*spool.Bytes, error) {
	return x.g.cfg.Spool.Keep(x.holder(), made)
}

// holder is who the bytes of the request are counted for.
func (x *exchange) holder() spool.Holder { return spool.Holder{Member: string(x.caller.Member)} }

// bodyWasRead notes that nothing of the request is left on the connection.
func (x *exchange) bodyWasRead() {
	x.bodyDone = true
	_ = x.control.SetReadDeadline(time.Time{}) // else it would cut the answer
}

// unread returns why a body was not read to its end: the error of its source, else err,
// which is the spool's.
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

// bodyDeadline gives the client until when that many bytes more must have come.
func (x *exchange) bodyDeadline(received int) {
	allowed := bodyGrace + time.Duration(received)*time.Second/bodyFloor
	_ = x.control.SetReadDeadline(x.arrived.Add(allowed)) // a connection in memory may have none
	if x.g.ending.Err() != nil {
		x.stopReading()
	}
}

// awaitBody begins the time of a body, which EndBodies ends until stop is called.
func (x *exchange) awaitBody() (stop func()) {
	x.bodyDeadline(0)
	ends := context.AfterFunc(x.g.ending, x.stopReading)
	return func() { ends() }
}

// stopReading ends a read of the body that is underway, and any later one.
func (x *exchange) stopReading() { _ = x.control.SetReadDeadline(time.Now()) }

func (x *exchange) tooLarge() error {
	x.bodyTooLarge = true
	return fault.New(fault.RequestTooLarge, "the body is larger than %d bytes: send less", x.tuning.Body)
}

// brokenBody is the error of a body that is over the limit, malformed, or did not come.
func (x *exchange) brokenBody(err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return x.tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded), x.r.Context().Err() != nil, errors.Is(err, io.ErrUnexpectedEOF):
		return errGone
	default: // malformed chunks and their like
		return fault.New(fault.InvalidRequest, "cannot read the body: its transfer is malformed").Because(err)
	}
}

// discardBody discards a body that was not read, before the answer goes out: net/http would first wait for the rest of
// it, without a limit. A small one is read, so that the connection is kept; for any other the answer goes out at once and
// the connection is closed after it.
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
