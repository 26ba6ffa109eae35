package gateway

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

const (
	// writeLimit is how long the caller may take to receive one chunk. The deadline is
	// extended only after writeSlack of it has passed, since on HTTP/2 extending it costs
	// more than writing a chunk.
	writeLimit = 20 * time.Second
	writeSlack = time.Second
	// writeChunk is the largest chunk written under one deadline.
	writeChunk = 256 << 10

	minRetryAfter, maxRetryAfter = 1, 30 // seconds (spec/api.md#retry-after)
	retrySpread                  = 0.2
)

// begin sends the status and the headers, which are already set.
func (x *exchange) begin(status int) {
	if !x.bodyDone {
		x.discardBody()
	}
	x.began, x.status = true, status
	x.w.WriteHeader(status)
}

// arm sets the deadline of the next write to writeLimit from now.
func (x *exchange) arm(now time.Time) {
	if deadline := now.Add(writeLimit); deadline.Sub(x.deadline) > writeSlack {
		x.deadline = deadline
		_ = x.control.SetWriteDeadline(deadline) // an in-memory connection may not support deadlines
	}
}

// writeAll writes a body in chunks, each under its own deadline.
func (x *exchange) writeAll(body []byte) error {
	for len(body) > 0 {
		chunk := body[:min(len(body), writeChunk)]
		x.arm(time.Now())
		if _, err := x.w.Write(chunk); err != nil {
			return errGone
		}
		body = body[len(chunk):]
	}
	return nil
}

// setRoute sets the header that names the machines that received the prompt
// (spec/api.md#x-kith-route).
func setRoute(h http.Header, call *Call) {
	if route := call.Trace.Route; route != "" {
		h["X-Kith-Route"] = []string{oneLine(route)}
	}
}

// routeComment returns the value of setRoute as a comment in the stream, for headers that
// were sent before it was known. It returns nil if there is no value or if it was already
// sent.
func (x *exchange) routeComment() []byte {
	if x.routeSent || x.call.Trace.Route == "" {
		return nil
	}
	x.routeSent = true
	return []byte(": " + oneLine(x.call.Trace.Route) + "\n\n")
}

// oneLine makes text that contains names chosen by members safe for a header or an SSE
// comment.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// broken returns the fault for an answer whose body ended early without a known cause.
func broken(err error) error {
	var f *fault.Fault
	if errors.As(err, &f) {
		return f
	}
	return fault.New(fault.EngineError, "the answer broke off before its end: try again").Because(err)
}

// finish ends the exchange. It writes err, if any, calls Finished or Refused, and logs
// the event. If the answer is incomplete, it closes the connection.
func (x *exchange) finish(err error) {
	x.mu.Lock() // waits for a heartbeat that is being written
	defer x.mu.Unlock()
	var f *fault.Fault
	unclean := false
	switch {
	case err == nil:
	case errors.Is(err, errGone):
		unclean = true
	default:
		if f = fault.Of(err); x.routed && x.g.surface == hosted {
			f = x.g.Miss(x.caller, x.call.Model, f)
		}
		if f.Code == fault.ContextLengthExceeded && f.Param == "" {
			f = f.WithParam(x.promptMember())
		}
		unclean = x.began
		x.writeFault(f)
	}
	x.report(f, unclean && f == nil)
	if unclean {
		panic(http.ErrAbortHandler) // so that HTTP reports the answer as incomplete
	}
}

// promptMember returns the name of the request's field that holds the prompt.
func (x *exchange) promptMember() string {
	switch x.route.endpoint {
	case fleet.Responses, fleet.EmbeddingsEndpoint:
		return "input"
	}
	return "messages"
}

// writeJSON answers 200 with document, encoded as JSON.
func (x *exchange) writeJSON(document any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return x.writeDocument(body)
}

// writeDocument answers 200 with body, which is already JSON.
func (x *exchange) writeDocument(body []byte) error {
	h := x.w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.arm(time.Now())
	x.begin(http.StatusOK)
	if x.r.Method == http.MethodHead {
		return nil
	}
	return x.writeAll(body)
}

// writeFault writes the fault: as status and body or, once the answer has begun, as its
// last frame. If a prompt is too long for a stream of the responses dialect, the fault is
// an event of a stream with status 200 (spec/api.md#too-long-stream).
func (x *exchange) writeFault(f *fault.Fault) {
	x.arm(time.Now())
	if !x.began && x.response != nil && x.call != nil && x.call.Stream && f.Code == fault.ContextLengthExceeded {
		x.beginStream()
	}
	if x.began {
		if x.call != nil && x.call.Stream {
			_, _ = x.w.Write(append(x.routeComment(), x.lastFrames(f)...))
			_ = x.control.Flush()
		}
		return
	}
	body := dialect.FaultBody(x.envelope, f, x.id)
	h := x.w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	if x.call != nil {
		setRoute(h, x.call)
	}
	switch status := f.Status(); status {
	case http.StatusUnauthorized:
		h["Www-Authenticate"] = []string{"Bearer"}
	case http.StatusMethodNotAllowed:
		h["Allow"] = []string{x.route.methods}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h["Retry-After"] = []string{strconv.Itoa(x.retryAfter(f))}
	}
	if f.NoRetry {
		h["X-Should-Retry"] = []string{"false"}
	}
	x.begin(f.Status())
	_, _ = x.w.Write(body)
}

// lastFrames returns the last frames of a stream that failed after it had begun.
func (x *exchange) lastFrames(f *fault.Fault) []byte {
	if x.response != nil {
		return x.response.Fail(f, x.id)
	}
	if x.passed != nil {
		return x.passed.Fail(f, x.id)
	}
	return dialect.FaultFrame(x.envelope, f, x.id)
}

// retryAfter returns the seconds for the Retry-After header: those of the fault or the
// standard back-off, varied so that refused callers do not all return at once.
func (x *exchange) retryAfter(f *fault.Fault) int {
	if f.RetryAfter > 0 {
		return min(f.RetryAfter, maxRetryAfter)
	}
	spread := 1 + retrySpread*(2*rand.Float64()-1)
	seconds := x.tuning.RetryAfter.Seconds() * spread
	return min(max(int(seconds+0.5), minRetryAfter), maxRetryAfter)
}

// Cancelled is the Code of an Outcome whose caller disconnected or was too slow. It is
// also the Status if nothing had been sent. No caller ever sees either.
const (
	Cancelled       = "cancelled"
	statusCancelled = 499
)

// report calls Finished and writes the one log event of the exchange. It contains nothing
// of the content of the request or the answer.
func (x *exchange) report(f *fault.Fault, cancelled bool) {
	out := Outcome{
		Status: x.status, FirstByte: x.firstByte, Duration: time.Since(x.arrived), Reported: x.usage.Reported,
		FirstToken: x.firstToken, LastToken: x.lastToken, Frames: x.frames, Blocked: x.blocked,
	}
	out.TokensIn, out.TokensOut = x.tokens()
	out.Cached = min(max(x.usage.Cached, 0), out.TokensIn)
	out.Truncated = f == nil && !cancelled && x.truncation(x.usage) != ""
	switch {
	case cancelled:
		out.Code = Cancelled
		if !x.began {
			out.Status = statusCancelled
		}
	case f != nil:
		out.Code = string(f.Code)
	}
	if x.call != nil && !x.call.Stream && x.r.ProtoMajor == 1 && !cancelled {
		_ = x.control.Flush() // the caller need not wait for the records
	}
	switch {
	case x.routed && x.g.cfg.Finished != nil:
		x.g.cfg.Finished(x.call, out)
	case !x.routed && f != nil && x.route.inference() && x.g.cfg.Refused != nil:
		x.g.cfg.Refused(x.refusedCall(), out)
	}
	x.log(f, out)
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
func (x *exchange) tokens() (in, out int64) {
	within := func(n int64, most int) int64 { return min(max(n, 0), int64(most)+tokenRoom) }
	out = within(x.usage.Out, int(x.written))
	switch c := x.call; {
	case c == nil:
		return 0, 0
	case c.Form != nil: // the largest audio file bounds it
		return within(x.usage.In, int(x.tuning.Upload)), out
	default:
		return within(x.usage.In, x.maxPrompt), out
	}
}

// boundTokens sets the upper bound of the request's tokens. chat is the translation of
// body, if any; only it contains the previous turns.
func (x *exchange) boundTokens(body, chat []byte) {
	pictures := bytes.Count(body, []byte("data:image/"))
	x.maxPrompt, x.pictures = max(len(body), len(chat))+pictureRoom*pictures, pictures > 0
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
func (x *exchange) truncation(u dialect.Usage) string {
	if !u.Reported || u.In <= 0 || x.text < shortText || u.In >= int64(x.text/textOfToken) {
		return ""
	}
	return fmt.Sprintf("prompt_tokens=%d; the engine read only a part of the conversation", u.In)
}

// refusedCall returns what is known of a call whose request did not reach the Backend.
func (x *exchange) refusedCall() *Call {
	call := x.newCall(x.route.endpoint)
	if x.call != nil && x.call.Model.Valid() {
		call.Model, call.Stream = x.call.Model, x.call.Stream
	}
	return call
}

// log writes the event of calls and defects, and of other requests at debug level.
func (x *exchange) log(f *fault.Fault, out Outcome) {
	level := slog.LevelDebug
	switch {
	case f != nil && f.Code == fault.InternalError:
		level = slog.LevelError
	case (x.identified || x.region != "") && x.route.inference():
		level = slog.LevelInfo
	}
	ctx := context.WithoutCancel(x.r.Context())
	if !x.g.cfg.Log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs, slog.String("id", x.id))
	if x.route != nil {
		attrs = append(attrs, slog.String("endpoint", x.route.path))
	}
	attrs = append(attrs, slog.Int("status", out.Status), slog.Duration("duration", out.Duration))
	if out.Code != "" {
		attrs = append(attrs, slog.String("code", out.Code))
	}
	if x.caller.Member != "" {
		attrs = append(attrs, slog.String("member", string(x.caller.Member)), slog.String("key", x.caller.KeyID))
	}
	if x.region != "" {
		attrs = append(attrs, slog.String("region", x.region))
	}
	if x.routed {
		attrs = append(attrs,
			slog.String("model", string(x.call.Model)), slog.Bool("stream", x.call.Stream),
			slog.String("machine", string(x.call.Trace.Machine)), slog.Int("attempts", x.call.Trace.Attempts),
			slog.Duration("waited", x.call.Trace.Waited), slog.Duration("first_byte", out.FirstByte),
			slog.Int64("tokens_in", out.TokensIn), slog.Int64("tokens_out", out.TokensOut), slog.Bool("reported", out.Reported))
	}
	if f != nil {
		if cause := errors.Unwrap(f); cause != nil {
			attrs = append(attrs, slog.String("cause", cause.Error()))
		}
	}
	x.g.cfg.Log.LogAttrs(ctx, level, "call", attrs...)
}
