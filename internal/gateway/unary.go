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
	"github.com/kith/kith/internal/spool"
)

// buffers are for checking and copying answers. Large ones are left to the garbage
// collector.
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

// unary serves a call that is not streamed. It holds and checks the complete answer
// before it sends the first byte.
func (x *exchange) unary() error {
	ctx, cancel := context.WithDeadlineCause(x.r.Context(), x.arrived.Add(x.tuning.Unary), x.tuning.late)
	defer cancel()
	answer, err := x.serveCall(ctx)
	if err != nil {
		return x.faultOf(ctx, x.inOwnTerms(err))
	}
	defer answer.Close()
	x.call.answered(x.response != nil)
	held := answer.Held
	if held == nil {
		if held, err = x.call.Hold(x.g.cfg.Spool, answer.Body, answer.ContentLength); err != nil {
			return x.faultOf(ctx, broken(err))
		}
	}
	defer held.Close()
	contentType, made := "application/json", []byte(nil)
	body := held.Open()
	defer body.Close()
	switch {
	case x.call.Form != nil:
		made, contentType, x.usage, err = x.call.Form.Answer(body)
	case dialect.PassesThrough(answer.Endpoint):
		x.usage, err = dialect.CheckPassthrough(body)
	case !x.call.translated(answer):
		x.usage, err = dialect.CheckUnary(body)
	case x.response != nil:
		if x.usage, err = x.response.Unary(body); err == nil {
			made = x.finishResponse()
		}
	case x.forms != nil:
		made, x.usage, err = x.forms.Answer(body)
	default:
		made, x.usage, err = dialect.MessageAnswer(body, x.messageID(), x.call.Model)
	}
	if err != nil {
		return x.faultOf(ctx, err)
	}
	if made != nil { // the translation of the machine's answer
		held.Close()
		if held, err = x.g.cfg.Spool.Keep(x.call.holder(), made); err != nil {
			return err
		}
		defer held.Close()
	}
	x.firstByte, x.written = time.Since(x.arrived), held.Len()
	h := x.w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.FormatInt(held.Len(), 10)}
	setRoute(h, x.call)
	if cut := x.truncation(x.usage); cut != "" {
		h["X-Kith-Truncated"] = []string{cut}
	}
	x.begin(http.StatusOK)
	_, err = held.WriteTo(chunked{x})
	return err
}

// chunked writes to the caller with writeAll.
type chunked struct{ x *exchange }

func (c chunked) Write(p []byte) (int, error) {
	if err := c.x.writeAll(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Hold reads and holds a complete unary answer to the call, counted for its caller, of at
// most dialect.MaxAnswer bytes. announced is its length, negative if unknown. Errors are
// those of reading, or *fault.Fault.
func (c *Call) Hold(in *spool.Spool, answer io.Reader, announced int64) (*spool.Bytes, error) {
	limit := dialect.MaxAnswer(c.Endpoint)
	held := in.Hold(c.holder(), announced)
	n, err := held.ReadFrom(io.LimitReader(answer, limit+1))
	if n > limit || announced > limit {
		err = fault.New(fault.EngineError, "the answer is longer than %d MiB: ask for less in one request", limit>>20)
	}
	if err != nil {
		held.Close()
		return nil, err
	}
	return held, nil
}

// holder returns the member that an answer to the call is counted for.
func (c *Call) holder() spool.Holder {
	return spool.Holder{Member: string(c.Caller.Member), Answer: true}
}
