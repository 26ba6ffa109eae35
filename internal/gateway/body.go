package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/kith/kith/internal/fault"
)

// A body must come within bodyGrace and bodyFloor bytes a second; otherwise
// the connection is closed: a 408 would make SDKs send it again (decisions 4).
const (
	bodyGrace = 30 * time.Second
	bodyFloor = 64 << 10
	// bodyStep is how much is taken on a Content-Length's word alone, and how
	// often the deadline moves.
	bodyStep = 64 << 10
)

// A body that was not read when the answer goes out may still be this long, and
// has this long to come, for the connection to be kept.
const (
	settleBytes = 64 << 10
	settleTime  = time.Second
)

// readBody reads the request's body, whole. It is not pooled: a transport may
// still be reading it when the answer is already there.
func (x *exchange) readBody() ([]byte, error) {
	limit, length := x.g.Limits.Body, x.r.ContentLength
	if length > limit {
		return nil, x.tooLarge()
	}
	for _, encoding := range x.r.Header["Content-Encoding"] {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return nil, fault.New(fault.UnsupportedEncoding, "send the body as it is, without Content-Encoding")
		}
	}
	if x.g.Guard != nil && ofBrowser(x.r.Header) && !isJSON(x.r.Header.Get("Content-Type")) {
		return nil, fault.New(fault.InvalidRequest, "send the body with Content-Type: application/json")
	}
	size := int64(4 << 10)
	if length >= 0 {
		size = min(length+1, bodyStep) // one more, so that the end is seen without growing
	}
	source := http.MaxBytesReader(x.w, x.r.Body, limit)
	buffer := make([]byte, 0, size)
	x.bodyDeadline(0)
	for armed := 0; ; {
		n, err := source.Read(buffer[len(buffer):cap(buffer)])
		buffer = buffer[:len(buffer)+n]
		if err == io.EOF {
			x.settled = true
			_ = x.control.SetReadDeadline(time.Time{}) // else it would cut the answer
			return buffer, nil
		}
		if err != nil {
			return nil, x.brokenBody(err)
		}
		if len(buffer)-armed >= bodyStep {
			armed = len(buffer)
			x.bodyDeadline(armed)
		}
		if len(buffer) == cap(buffer) {
			grown := make([]byte, len(buffer), min(2*int64(cap(buffer)), limit)+1)
			copy(grown, buffer)
			buffer = grown
		}
	}
}

// bodyDeadline gives the client until when that many bytes more must have come.
func (x *exchange) bodyDeadline(received int) {
	allowed := bodyGrace + time.Duration(received)*time.Second/bodyFloor
	_ = x.control.SetReadDeadline(x.arrived.Add(allowed)) // a connection in memory may have none
}

func (x *exchange) tooLarge() error {
	x.tooMuch = true
	return fault.New(fault.RequestTooLarge, "the body is larger than %d bytes: send less", x.g.Limits.Body)
}

// brokenBody tells a body over the limit from one that will never come.
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

// settle sees to a body that nobody read, before the answer goes out: net/http
// would wait for the rest of it, first and without a limit. A small one is
// taken in, so that the connection is kept; for any other the answer goes out
// at once and the connection is closed behind it.
func (x *exchange) settle() {
	x.settled = true
	_ = x.control.SetReadDeadline(time.Now().Add(settleTime))
	if !x.tooMuch && x.r.ContentLength <= settleBytes && x.r.Header["Expect"] == nil {
		if _, err := io.CopyN(io.Discard, x.r.Body, settleBytes+1); err == io.EOF {
			_ = x.control.SetReadDeadline(time.Time{})
			return
		}
	}
	_ = x.control.EnableFullDuplex()
	x.w.Header()["Connection"] = []string{"close"}
}
