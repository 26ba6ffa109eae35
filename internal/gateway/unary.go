package gateway

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// buffers holds answers while they are checked and copied. Large ones are left
// to the collector.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, minBuffer); return &b }}

const (
	minBuffer = 4 << 10
	maxPooled = 64 << 10
)

func release(buffer *[]byte) {
	if cap(*buffer) <= maxPooled {
		*buffer = (*buffer)[:0]
		buffers.Put(buffer)
	}
}

// unary serves a call whose answer is told whole: it is read to its end and
// checked before the first byte goes out.
func (x *exchange) unary() error {
	ctx, cancel := context.WithDeadlineCause(x.r.Context(), x.arrived.Add(x.g.Limits.Unary), x.g.late)
	defer cancel()
	answer, err := x.serveCall(ctx)
	if err != nil {
		return x.faultOf(ctx, err)
	}
	defer answer.Body.Close()
	pooled := buffers.Get().(*[]byte)
	defer release(pooled)
	if err := readAnswer(pooled, answer, x.g.Limits.Answer); err != nil {
		return x.faultOf(ctx, err)
	}
	body, contentType := *pooled, "application/json"
	switch {
	case x.call.Form != nil:
		body, contentType, x.usage, err = x.call.Form.Answer(body)
	case dialect.Native(answer.Endpoint):
		x.usage, err = dialect.CheckNative(body)
	case !x.call.translated(answer):
		x.usage, err = dialect.CheckUnary(body)
	case x.response != nil:
		if x.usage, err = x.response.Whole(body); err == nil {
			body = x.conclude()
		}
	case x.forms != nil:
		body, x.usage, err = x.forms.Answer(body)
	default:
		body, x.usage, err = dialect.AppendMessage(nil, body, x.messageID(), x.call.Model)
	}
	if err != nil {
		return err
	}
	x.first, x.given = time.Since(x.arrived), int64(len(body))
	h := x.w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	tellRoute(h, x.call)
	x.begin(http.StatusOK)
	return x.writeAll(body)
}

// readAnswer reads the answer's body into buffer, at most limit bytes.
func readAnswer(buffer *[]byte, answer *Answer, limit int64) error {
	b := (*buffer)[:0]
	if size := answer.ContentLength; size > limit {
		return tooLong(limit)
	} else if size >= int64(cap(b)) {
		b = make([]byte, 0, size+1)
	}
	defer func() { *buffer = b }()
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := answer.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return tooLong(limit)
		case err == io.EOF:
			return nil
		case err != nil:
			return broken(err)
		}
	}
}

func tooLong(limit int64) error {
	return fault.New(fault.EngineError, "the answer is longer than %d bytes: ask for less in one request", limit)
}
