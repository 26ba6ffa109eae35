package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// ReadTranscription reads the form of a transcription call, its sound of at most
// limit bytes into a file without a name, which is gone with the process or
// with the form's Close, whichever is first. Errors are *fault.Fault, but for
// those of reading body.
func ReadTranscription(contentType string, body io.Reader, limit int64) (*dialect.Transcription, error) {
	file, err := spool()
	if err != nil {
		return nil, fmt.Errorf("cannot keep the sound of a call: %w; see that the folder of temporary files has room", err)
	}
	form, err := dialect.ReadTranscription(contentType, body, file, limit)
	if err != nil {
		form.Close()
		return nil, err
	}
	return form, nil
}

// readForm is readBody for a transcription: the limits of its own size and the
// same pace.
func (x *exchange) readForm() (*dialect.Transcription, error) {
	limit := x.g.Limits.Upload
	if x.r.ContentLength > limit+dialect.FormRoom {
		return nil, x.soundTooLarge()
	}
	for _, encoding := range x.r.Header["Content-Encoding"] {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return nil, fault.New(fault.UnsupportedEncoding, "send the form as it is, without Content-Encoding")
		}
	}
	body := &paced{x: x, src: http.MaxBytesReader(x.w, x.r.Body, limit+dialect.FormRoom)}
	x.bodyDeadline(0)
	form, err := ReadTranscription(x.r.Header.Get("Content-Type"), body, limit)
	if err == nil { // what follows the form is nobody's, and has to be out of the way
		if _, err = io.Copy(io.Discard, body); err != nil {
			form.Close()
		}
	}
	if body.err != nil {
		err = x.brokenBody(body.err)
	}
	switch f := fault.Of(err); {
	case err == nil:
		x.settled = true
		_ = x.control.SetReadDeadline(time.Time{}) // else it would cut the answer
		return form, nil
	case err == errGone:
		return nil, err
	case f.Code == fault.RequestTooLarge:
		return nil, x.soundTooLarge()
	default:
		return nil, err
	}
}

func (x *exchange) soundTooLarge() error {
	x.tooMuch = true
	return fault.New(fault.RequestTooLarge, "the sound is larger than %d bytes: send less", x.g.Limits.Upload).WithParam("file")
}

// paced is a body that has to come within its time, and remembers why it did
// not.
type paced struct {
	x               *exchange
	src             io.Reader
	received, armed int
	err             error
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.src.Read(b)
	p.received += n
	if p.received-p.armed >= bodyStep {
		p.armed = p.received
		p.x.bodyDeadline(p.armed)
	}
	if err != nil && err != io.EOF {
		p.err = err
	}
	return n, err
}

// AttachForm makes the form of a transcription the body of a request for the
// next hop; any other call's request stays as it is.
func (c *Call) AttachForm(r *http.Request) {
	if c.Form == nil {
		return
	}
	contentType, length, body := c.Form.Encode(true)
	r.Header.Set("Content-Type", contentType)
	r.ContentLength, r.Body = length, body()
	r.GetBody = func() (io.ReadCloser, error) { return body(), nil }
}
