package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// errGone ends an exchange whose caller disconnected or is too slow: nothing more can be
// written.
var errGone = errors.New("the caller is gone")

// exchange is one request and its answer.
type exchange struct {
	g            *Edge
	tuning       *tuning
	w            http.ResponseWriter
	r            *http.Request
	control      *http.ResponseController
	id           string // correlation id, generated here and never taken from the caller
	arrived      time.Time
	started      time.Time // the same by Config.Now
	route        *route    // nil until the path is matched
	envelope     dialect.Dialect
	region       string // to forward the request to; empty: serve it here
	caller       fleet.Caller
	identified   bool // the caller is known, or the route needs no key
	bodyDone     bool // the body was read or discarded
	bodyTooLarge bool // the body is over the limit
	call         *Call
	turns        heldTurns // stored turns that the request needs
	// response is the translated answer to a call of the responses dialect.
	response *dialect.Response
	// forms translates the answer to a chat call that was sent to the machine in another
	// form.
	forms *dialect.ChatForms
	// passed is a stream of the responses dialect that is passed through unchanged.
	passed   *dialect.Stream
	pictures bool // the request has images
	routed   bool // the call was passed to the Backend

	// mu serializes the writes of the handler and of the heartbeat.
	mu        sync.Mutex
	began     bool // status and headers were sent
	routeSent bool // X-Kith-Route was sent, or the comment that replaces it
	status    int
	deadline  time.Time // of the next write, as last set
	firstByte time.Duration
	usage     dialect.Usage
	written   int64 // bytes of the answer sent to the caller
	maxPrompt int   // upper bound of the request's tokens, without tokenRoom
	text      int   // bytes of its conversation; 0: unknown, as with images
	// For a streamed answer, as in Outcome.
	firstToken, lastToken, blocked time.Duration
	frames                         int
}

func newExchange(g *Edge, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{
		g: g, tuning: g.tuning.Load(), w: w, r: r,
		control: http.NewResponseController(w),
		id:      "req_" + uuid.Must(uuid.NewV7()).String(),
		arrived: time.Now(), started: g.cfg.Now(),
	}
	x.envelope = envelopeOf(r, nil)
	x.bodyDone = r.ContentLength == 0 || r.ProtoMajor > 1 // HTTP/2 resets a stream itself
	x.setHeaders()
	return x
}

// setHeaders sets the headers that every answer has.
func (x *exchange) setHeaders() {
	h, id := x.w.Header(), []string{x.id}
	h[correlationHeader], h["Request-Id"], h["X-Request-Id"] = id, id, id
	if x.r.ProtoMajor == 1 && x.r.TransferEncoding != nil {
		// net/http has dropped a Content-Length next to Transfer-Encoding. If the two
		// disagreed, the bytes after this request must not be read as another one
		// (spec/security.md#smuggling).
		h["Connection"] = []string{"close"}
	}
}

// run serves the request. A panic affects only this request (spec/api.md#internal-error).
func (x *exchange) run() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fault.Defect(v)
		}
	}()
	return x.serve()
}

// serve performs the checks in their order (spec/api.md#order-of-checks).
func (x *exchange) serve() error {
	if x.g.cfg.Guard != nil {
		if err := x.g.cfg.Guard.check(x.r); err != nil {
			return err
		}
	}
	matched := find(x.r.URL.EscapedPath(), x.g.surface)
	if matched == nil {
		return x.routeFault()
	}
	x.route, x.envelope = matched, envelopeOf(x.r, matched)
	if !matched.allows(x.r.Method) {
		return fault.New(fault.MethodNotAllowed, "%s takes %s", matched.path, matched.methods)
	}
	if x.g.surface == hosted && !matched.open && !x.identified {
		if err := x.identify(); err != nil {
			if region, ok := errors.AsType[OtherRegion](err); ok {
				return x.forward(string(region), err)
			}
			return err
		}
	}
	x.identified = true
	if err := x.narrow(); err != nil {
		return err
	}
	if x.g.surface == local || !matched.open {
		if err := x.g.buckets.take(bucketOf(x.caller), x.arrived); err != nil {
			return err
		}
	}
	if matched.messages && x.g.surface == hosted { // spec/api.md#check-version
		if err := checkVersion(x.r.Header); err != nil {
			return err
		}
	}
	if matched.inference() {
		return x.infer()
	}
	return matched.serve(x)
}

func (x *exchange) routeFault() error {
	if path := nearest(x.r.URL.Path, x.g.surface); path != "" {
		return fault.New(fault.RouteNotFound, "no such path: you want %s; check whether the base URL should include /v1", path)
	}
	return fault.New(fault.RouteNotFound, "no such path: requests go to /v1/models, /v1/chat/completions and their neighbours; check the base URL")
}

// serviceInfo answers HEAD /, with which agents check that the service exists, and GET /
// from clients other than browsers: the program and its base URLs (spec/api.md#get-root).
func (x *exchange) serviceInfo() error {
	return x.writeJSON(struct {
		Name         string `json:"name"`
		Version      string `json:"version"`
		BaseURL      string `json:"base_url"`      // of the chat, embeddings, responses and audio dialects
		MessagesBase string `json:"messages_base"` // of the messages dialect
	}{"kith", x.g.cfg.Version, x.g.cfg.Base + "/v1", x.g.cfg.Base})
}

func (x *exchange) notImplemented() error {
	return fault.New(fault.NotImplemented, "POST /v1/completions is not implemented: use POST /v1/chat/completions")
}

// newCall returns a call with what is known before its body is read.
func (x *exchange) newCall(endpoint fleet.Endpoint) *Call {
	return &Call{
		ID: x.id, Endpoint: endpoint, Caller: x.caller, Arrived: x.arrived, Started: x.started,
		Waiting: func(int, time.Duration) {},
	}
}

// infer serves an inference route.
func (x *exchange) infer() error {
	call := x.newCall(x.route.endpoint)
	call.Wait = preferredWait(x.r.Header)
	defer call.close()
	defer x.turns.close()
	head, err := x.read(call)
	if err != nil {
		return err
	}
	call.Model, call.Stream, call.Choices = head.Model, head.Stream && x.route.streams(), head.Choices
	x.call, x.text = call, head.Text
	if x.pictures {
		x.text = 0
	}
	if !head.Model.Valid() { // no machine can offer it
		return impossibleModel()
	}
	x.routed = true
	if x.call.Stream {
		return x.stream()
	}
	return x.unary()
}

// impossibleModel returns the fault for an invalid model id.
func impossibleModel() *fault.Fault {
	return fault.New(fault.ModelNotFound, "no machine serves a model of that name, which no machine can have: an id has no space at either end and 256 bytes at most; send it exactly as GET /v1/models lists it")
}

// read reads and checks the request, and sets the fields of the call from it.
func (x *exchange) read(call *Call) (head dialect.Head, err error) {
	if call.Endpoint == fleet.Transcriptions {
		if call.Form, err = x.readForm(); err != nil {
			return head, err
		}
		return call.Form.Head(), nil
	}
	if call.Body, err = x.readBody(); err != nil {
		return head, err
	}
	var chat []byte
	if call.Endpoint == fleet.Responses && x.g.surface == hosted {
		body, err := call.Body.Load() // kept until the end: the answer repeats parts of it
		if err != nil {
			return head, err
		}
		if head, chat, err = x.readResponses(body); err != nil {
			return head, err
		}
		x.boundTokens(body, chat)
	} else if err = call.Body.View(x.r.Context(), func(body []byte) (err error) {
		head, chat, err = x.parse(call, body)
		x.boundTokens(body, chat)
		return err
	}); err != nil {
		return head, x.faultOf(x.r.Context(), err)
	}
	if chat != nil {
		call.chat, err = x.keep(chat)
	}
	return head, err
}

// parse parses a body and keeps no part of it. It returns the head, and the body
// translated to chat, nil if machines can get it as it is.
func (x *exchange) parse(call *Call, body []byte) (head dialect.Head, chat []byte, err error) {
	switch {
	case call.Endpoint == fleet.Messages && x.g.surface == local: // an upstream may accept what cannot be translated
		call.Header = ownHeaders(x.r.Header)
		if head, err = dialect.ReadMessagesHead(body); err == nil {
			_, chat, call.translationErr = x.translate(body)
		}
	case call.Endpoint == fleet.Messages:
		head, chat, err = x.translate(body)
	case call.Endpoint == fleet.EmbeddingsEndpoint:
		head, err = dialect.ReadEmbeddingsHead(body)
	case call.Endpoint == fleet.ChatCompletions:
		head, x.forms, chat, err = dialect.ReadChatHead(body)
		if err != nil && head.Model != "" && x.g.surface == local { // an upstream may accept it as it is
			call.translationErr, err = err, nil
		}
	default:
		head, err = dialect.ReadHead(body)
	}
	return head, chat, err
}

// preferredWait returns the caller's own limit on waiting (RFC 7240), negative if there
// is none. A malformed header is ignored, as that RFC requires.
func preferredWait(h http.Header) time.Duration {
	for _, line := range h["Prefer"] {
		for preference := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			seconds, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
			if err == nil {
				return time.Duration(seconds) * time.Second
			}
		}
	}
	return -1
}

// faultOf returns the error to report to the caller for err, or errGone if the caller has
// disconnected.
func (x *exchange) faultOf(ctx context.Context, err error) error {
	var f *fault.Fault
	switch cause := context.Cause(ctx); {
	case errors.As(context.Cause(x.r.Context()), &f): // the server ended the request; the caller is still connected
		return f
	case x.r.Context().Err() != nil || errors.Is(err, errGone) || errors.Is(cause, errGone):
		return errGone
	case errors.As(cause, &f):
		return f
	default:
		return err
	}
}
