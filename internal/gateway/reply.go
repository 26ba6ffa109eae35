package gateway

import (
	"encoding/json/v2"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
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

// reply is the answer to a request, as far as it was written.
type reply struct {
	http.ResponseWriter
	control *http.ResponseController
	body    *requestBody // discarded before the answer, if it was not read

	mu        sync.Mutex // serializes the writes of the handler and of the heartbeat
	began     bool       // status and headers were sent
	status    int
	deadline  time.Time // of the next write, as last set
	routeSent bool      // X-Kith-Route was sent, or the comment that replaces it
	// passed is a stream of the responses dialect that is passed through unchanged.
	passed  *dialect.Stream
	written int64         // bytes of the answer to a call
	usage   dialect.Usage // as its engine reported it
	outcome Outcome       // its times, and the number of its frames
}

// begin sends the status and the headers, which are already set.
func (w *reply) begin(status int) {
	w.body.discard(w.Header())
	w.WriteHeader(status)
}

// WriteHeader sends a status and the headers. The status may be informational.
func (w *reply) WriteHeader(status int) {
	if status >= http.StatusOK {
		w.began, w.status = true, status
	}
	w.arm(time.Now())
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *reply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// arm sets the deadline of the next write to writeLimit from now.
func (w *reply) arm(now time.Time) {
	if deadline := now.Add(writeLimit); deadline.Sub(w.deadline) > writeSlack {
		w.deadline = deadline
		_ = w.control.SetWriteDeadline(deadline) // an in-memory connection may not support deadlines
	}
}

// Write writes p in chunks, each under its own deadline.
func (w *reply) Write(p []byte) (n int, err error) {
	for n < len(p) {
		w.arm(time.Now())
		if _, err := w.ResponseWriter.Write(p[n:min(len(p), n+writeChunk)]); err != nil {
			return n, errGone
		}
		n = min(len(p), n+writeChunk)
	}
	return n, nil
}

// beginStream sends the status and headers of a streamed answer.
func (w *reply) beginStream() {
	h := w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"}
	w.begin(http.StatusOK)
}

// setBody sets the headers that describe a body of that length.
func (w *reply) setBody(contentType string, length int64) {
	h := w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
}

// writeHeld answers 200 with a body.
func (w *reply) writeHeld(contentType string, body *spool.Bytes) error {
	w.setBody(contentType, body.Len())
	w.begin(http.StatusOK)
	_, err := body.WriteTo(w)
	return err
}

// writeJSON answers 200 with document, encoded as JSON.
func (r *request) writeJSON(document any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return err
	}
	r.reply.setBody("application/json", int64(len(body)))
	r.reply.begin(http.StatusOK)
	if r.Method != http.MethodHead {
		_, err = r.reply.Write(body)
	}
	return err
}

// setRoute sets the headers that name the machines that received the prompt
// (spec/api.md#x-kith-route), and whether it was sealed for them (spec/sealed.md#x-kith-sealed).
func (w *reply) setRoute(call *Call) {
	w.setSealed(call.Trace.Sealed)
	if route := call.Trace.Route; route != "" {
		w.Header()["X-Kith-Route"] = []string{oneLine(route)}
	}
}

func (w *reply) setSealed(value string) {
	if value != "" {
		w.Header()["X-Kith-Sealed"] = []string{value}
	}
}

// routeComment returns the values of setRoute as comments in the stream, for headers that
// were sent before they were known. It returns nil if there is no value or if they were
// already sent.
func (w *reply) routeComment(call *Call) (comment []byte) {
	if w.routeSent {
		return nil
	}
	if route := call.Trace.Route; route != "" {
		comment = append(comment, ": "+oneLine(route)+"\n\n"...)
	}
	if sealed := call.Trace.Sealed; sealed != "" {
		comment = append(comment, ": sealed="+sealed+"\n\n"...)
	}
	w.routeSent = comment != nil
	return comment
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
	return fault.New(fault.EngineError, "the answer ended early: try again").Because(err)
}

// promptMember returns the name of the request's field that holds the prompt.
func (r *request) promptMember() string {
	switch r.route.endpoint {
	case fleet.Responses, fleet.EmbeddingsEndpoint:
		return "input"
	}
	return "messages"
}

// writeFault writes the fault: as status and body or, once the answer has begun, as its
// last frame. If a prompt is too long for a stream of the responses dialect, the fault is
// an event of a stream with status 200 (spec/api.md#too-long-stream).
func (r *request) writeFault(f *fault.Fault) {
	w, streamed := &r.reply, r.call != nil && r.call.Stream
	if streamed && !w.began && r.call.response != nil && f.Code == fault.ContextLengthExceeded {
		w.beginStream()
	}
	if w.began {
		if streamed {
			_, _ = w.Write(append(w.routeComment(r.call), r.lastFrames(f)...))
			_ = w.control.Flush()
		}
		return
	}
	body := dialect.FaultBody(r.envelope, f, r.id)
	w.setBody("application/json", int64(len(body)))
	if r.call != nil {
		w.setRoute(r.call)
	} else if unsent := r.edge.cfg.Unsent; unsent != nil && r.route.inference() {
		w.setSealed(unsent())
	}
	h := w.Header()
	switch status := f.Status(); status {
	case http.StatusUnauthorized:
		h["Www-Authenticate"] = []string{"Bearer"}
	case http.StatusMethodNotAllowed:
		h["Allow"] = []string{r.route.methods}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h["Retry-After"] = []string{strconv.Itoa(r.retryAfter(f))}
	}
	if f.NoRetry {
		h["X-Should-Retry"] = []string{"false"}
	}
	w.begin(f.Status())
	_, _ = w.Write(body)
}

// lastFrames returns the last frames of a stream that failed after it had begun.
func (r *request) lastFrames(f *fault.Fault) []byte {
	switch {
	case r.call.response != nil:
		return r.call.response.Fail(f, r.id)
	case r.reply.passed != nil:
		return r.reply.passed.Fail(f, r.id)
	}
	return dialect.FaultFrame(r.envelope, f, r.id)
}

// retryAfter returns the seconds for the Retry-After header: those of the fault or the
// standard back-off, varied so that refused callers do not all return at once.
func (r *request) retryAfter(f *fault.Fault) int {
	if f.RetryAfter > 0 {
		return min(f.RetryAfter, maxRetryAfter)
	}
	spread := 1 + retrySpread*(2*rand.Float64()-1)
	seconds := r.tuning.RetryAfter.Seconds() * spread
	return min(max(int(seconds+0.5), minRetryAfter), maxRetryAfter)
}
