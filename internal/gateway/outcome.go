package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// Cancelled is the Code of an Outcome whose caller disconnected or was too slow. It is
// also the Status if nothing had been sent. No caller ever sees either.
const (
	Cancelled       = "cancelled"
	statusCancelled = 499
)

// finish ends the request, after the last heartbeat. It writes err, if any, calls Finished
// or Refused, and logs the event. If the answer is incomplete, it closes the connection.
func (r *request) finish(err error) {
	var f *fault.Fault
	unclean := false
	switch {
	case err == nil:
	case errors.Is(err, errGone):
		unclean = true
	default:
		if f = fault.Of(err); r.call != nil && r.edge.surface == hosted {
			f = r.edge.Miss(r.caller, r.call.Model, f)
		}
		if f.Code == fault.ContextLengthExceeded && f.Param == "" {
			f = f.WithParam(r.promptMember())
		}
		unclean = r.reply.began
		r.writeFault(f)
	}
	r.report(f, unclean && f == nil)
	if unclean {
		panic(http.ErrAbortHandler) // so that HTTP reports the answer as incomplete
	}
}

// report calls Finished or Refused and writes the one log event of the request. It
// contains nothing of the content of the request or the answer.
func (r *request) report(f *fault.Fault, cancelled bool) {
	w, out := &r.reply, r.reply.outcome
	out.Status, out.Duration, out.Reported = w.status, time.Since(r.arrived), w.usage.Reported
	switch {
	case cancelled:
		out.Code = Cancelled
		if !w.began {
			out.Status = statusCancelled
		}
	case f != nil:
		if out.Code = string(f.Code); !f.Code.Quotes() {
			out.Message = f.Message
		}
	}
	if r.call != nil {
		out.TokensIn, out.TokensOut = r.tokens()
		out.Cached = min(max(w.usage.Cached, 0), out.TokensIn)
		out.Truncated = out.Code == "" && r.call.truncation(w.usage) != ""
		if !r.call.Stream && r.ProtoMajor == 1 && !cancelled {
			_ = w.control.Flush() // the caller need not wait for the records
		}
	}
	switch cfg := &r.edge.cfg; {
	case r.call != nil && cfg.Finished != nil:
		cfg.Finished(r.call, out)
	case r.call == nil && f != nil && r.route.inference() && cfg.Refused != nil:
		cfg.Refused(r.newCall(r.route.endpoint), out)
	}
	r.log(f, out)
}

// A token is at least one byte of text. So a machine may report at most as many tokens as
// it received bytes and its caller got bytes, plus some room for tokens that are in
// neither: an engine's template around the prompt, images (few bytes can become many
// tokens) and hidden thinking (spec/security.md#token-counts).
const (
	tokenRoom   = 2 << 10
	pictureRoom = 8 << 10 // per image
)

// tokens returns the usage that the machine reported, limited to what is possible.
func (r *request) tokens() (in, out int64) {
	within := func(n, most int64) int64 { return min(max(n, 0), most+tokenRoom) }
	prompt := int64(r.call.maxPrompt)
	if r.call.Form != nil {
		prompt = r.tuning.Upload // the largest audio file bounds it
	}
	return within(r.reply.usage.In, prompt), within(r.reply.usage.Out, r.reply.written)
}

// bound sets the upper bound of the request's tokens, and the length of its conversation.
// chat is the translation of body, if any; only it contains the previous turns.
func (c *Call) bound(head dialect.Head, body, chat []byte) {
	pictures := bytes.Count(body, []byte("data:image/"))
	if c.maxPrompt = max(len(body), len(chat)) + pictureRoom*pictures; pictures == 0 {
		c.text = head.Text
	}
}

// No tokenizer averages more than textOfToken bytes of conversation a token, and a
// conversation of less than shortText bytes fits into every context.
const (
	textOfToken = 12
	shortText   = 4 << 10
)

// truncation returns the header value for an answer whose engine read less of the
// conversation than it was sent, or "" if nothing indicates that. Some engines cut a
// prompt that is too long without an error (spec/api.md#x-kith-truncated).
func (c *Call) truncation(u dialect.Usage) string {
	if !u.Reported || u.In <= 0 || c.text < shortText || u.In >= int64(c.text/textOfToken) {
		return ""
	}
	return fmt.Sprintf("prompt_tokens=%d; the engine read only a part of the conversation", u.In)
}

// log writes the event of calls and defects, and of other requests at debug level.
func (r *request) log(f *fault.Fault, out Outcome) {
	level := slog.LevelDebug
	switch {
	case f != nil && f.Code == fault.InternalError:
		level = slog.LevelError
	case (r.identified || r.region != "") && r.route.inference():
		level = slog.LevelInfo
	}
	ctx := context.WithoutCancel(r.Context())
	if !r.edge.cfg.Log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs, slog.String("id", r.id))
	if r.route != nil {
		attrs = append(attrs, slog.String("endpoint", r.route.path))
	}
	attrs = append(attrs, slog.Int("status", out.Status), slog.Duration("duration", out.Duration))
	if out.Code != "" {
		attrs = append(attrs, slog.String("code", out.Code))
	}
	if r.caller.Member != "" {
		attrs = append(attrs, slog.String("member", string(r.caller.Member)), slog.String("key", r.caller.KeyID))
	}
	if r.region != "" {
		attrs = append(attrs, slog.String("region", r.region))
	}
	if c := r.call; c != nil {
		if c.Trace.HubID != "" {
			attrs = append(attrs, slog.String("hub_id", c.Trace.HubID))
		}
		attrs = append(attrs,
			slog.String("model", string(c.Model)), slog.Bool("stream", c.Stream),
			slog.String("machine", string(c.Trace.Machine)), slog.Int("attempts", c.Trace.Attempts),
			slog.Duration("waited", c.Trace.Waited), slog.Duration("first_byte", out.FirstByte),
			slog.Int64("tokens_in", out.TokensIn), slog.Int64("tokens_out", out.TokensOut),
			slog.Bool("reported", out.Reported))
	}
	if f != nil {
		if cause := errors.Unwrap(f); cause != nil {
			attrs = append(attrs, slog.String("cause", cause.Error()))
		}
	}
	r.edge.cfg.Log.LogAttrs(ctx, level, "call", attrs...)
}
