package gateway

import (
	"context"
	"io"
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
func (r *request) unary() error {
	call, w := r.call, &r.reply
	ctx, cancel := context.WithDeadlineCause(r.Context(), r.arrived.Add(r.tuning.Unary), r.tuning.late)
	defer cancel()
	answer, err := r.serveCall(ctx)
	if err != nil {
		return r.faultOf(ctx, r.inOwnTerms(err))
	}
	defer answer.Close()
	call.answered()
	held := answer.Held
	if held == nil {
		if held, err = call.Hold(r.edge.cfg.Spool, answer.Body, answer.ContentLength); err != nil {
			return r.faultOf(ctx, broken(err))
		}
	}
	defer held.Close()
	contentType, made := "application/json", []byte(nil)
	body := held.Open()
	defer body.Close()
	switch {
	case call.Sealed != nil:
		contentType = "application/octet-stream"
		w.usage, _ = dialect.ParseTrailer(answer.Trailer.Get(dialect.UsageTrailer), answer.Trailer.Get(dialect.CachedTrailer))
	case call.Form != nil:
		made, contentType, w.usage, err = call.Form.Answer(body)
	case dialect.PassesThrough(answer.Endpoint):
		w.usage, err = dialect.CheckPassthrough(body)
	case !call.translated(answer):
		w.usage, err = dialect.CheckUnary(body)
	case call.response != nil:
		if w.usage, err = call.response.Unary(body); err == nil {
			made = r.finishResponse()
		}
	case call.forms != nil:
		made, w.usage, err = call.forms.Answer(body)
	default:
		made, w.usage, err = dialect.MessageAnswer(body, call.messageID(), call.Model)
	}
	if err != nil {
		return r.faultOf(ctx, err)
	}
	if made != nil { // the translation of the machine's answer
		held.Close()
		if held, err = r.edge.cfg.Spool.Keep(call.holder(), made); err != nil {
			return err
		}
		defer held.Close()
	}
	w.outcome.FirstByte, w.written = time.Since(r.arrived), held.Len()
	w.setRoute(call)
	if cut := call.truncation(w.usage); cut != "" {
		w.Header()["X-Kith-Truncated"] = []string{cut}
	}
	return w.writeHeld(contentType, held)
}

// Hold reads and holds a complete unary answer to the call, counted for its caller, of at
// most dialect.MaxAnswer bytes. announced is its length, negative if unknown. Errors are
// those of reading, or *fault.Fault.
func (c *Call) Hold(in *spool.Spool, answer io.Reader, announced int64) (*spool.Bytes, error) {
	limit := dialect.MaxAnswer(c.Endpoint)
	if c.Sealed != nil {
		limit += sealedAnswerRoom
	}
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
