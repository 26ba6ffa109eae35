package gateway

import (
	"io"
	"net/http"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// readForm is readBody for a transcription, which has its own size limit and the same
// minimum speed.
func (x *exchange) readForm() (*dialect.Transcription, error) {
	limit := x.tuning.Upload
	if x.r.ContentLength > limit+dialect.FormOverhead {
		return nil, x.soundTooLarge()
	}
	if err := x.checkEncoding("form"); err != nil {
		return nil, err
	}
	body := &paced{x: x, src: http.MaxBytesReader(x.w, x.r.Body, limit+dialect.FormOverhead)}
	stop := x.awaitBody()
	form, err := dialect.ReadTranscription(x.r.Header.Get("Content-Type"), body, x.hold(-1), limit)
	if err == nil { // discard what follows the form, to keep the connection
		_, err = io.Copy(io.Discard, body)
	}
	stop()
	if err == nil {
		x.bodyWasRead()
		return form, nil
	}
	form.Close()
	if err = x.unread(body, err); err != errGone && fault.Of(err).Code == fault.RequestTooLarge {
		err = x.soundTooLarge()
	}
	return nil, err
}

func (x *exchange) soundTooLarge() error {
	x.bodyTooLarge = true
	return fault.New(fault.RequestTooLarge, "the sound is larger than %d bytes: send less", x.tuning.Upload).WithParam("file")
}

// paced is a body with the read deadlines of bodyDeadline. It records the error that
// ended it.
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
