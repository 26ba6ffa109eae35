package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// errGone ends a request whose caller disconnected or is too slow: nothing more can be
// written.
var errGone = errors.New("the caller is gone")

// request is one request, and what is known of it before its call is routed.
type request struct {
	*http.Request
	edge       *Edge
	tuning     *tuning
	id         string // correlation id, generated here and never taken from the caller
	arrived    time.Time
	started    time.Time // the same by Config.Now
	route      *route    // nil until the path is matched
	envelope   dialect.Dialect
	region     string // that it is forwarded to; empty: it is served here
	caller     fleet.Caller
	identified bool // the caller is known, or the route needs no key
	body       requestBody
	turns      heldTurns // stored turns that it needs
	call       *Call     // nil until it is passed to the Backend
	reply      reply
}

func newRequest(g *Edge, w http.ResponseWriter, r *http.Request) *request {
	control := http.NewResponseController(w)
	q := &request{
		Request: r, edge: g, tuning: g.tuning.Load(),
		id:      "req_" + uuid.Must(uuid.NewV7()).String(),
		arrived: time.Now(), started: g.cfg.Now(),
		envelope: envelopeOf(r, nil),
	}
	q.body = requestBody{r: r, control: control, arrived: q.arrived, ending: g.ending, done: r.ContentLength == 0}
	q.reply = reply{ResponseWriter: w, control: control, body: &q.body}
	q.setHeaders()
	return q
}

// setHeaders sets the headers that every answer has.
func (r *request) setHeaders() {
	h, id := r.reply.Header(), []string{r.id}
	h[correlationHeader], h["Request-Id"], h["X-Request-Id"] = id, id, id
	if r.ProtoMajor == 1 && r.TransferEncoding != nil {
		// net/http has dropped a Content-Length next to Transfer-Encoding. If the two
		// disagreed, the bytes after this request must not be read as another one
		// (spec/security.md#smuggling).
		h["Connection"] = []string{"close"}
	}
}

// run serves the request. A panic affects only this request (spec/api.md#internal-error).
func (r *request) run() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fault.Defect(v)
		}
	}()
	return r.serve()
}

// serve performs the checks in their order (spec/api.md#order-of-checks).
func (r *request) serve() error {
	if r.edge.cfg.Guard != nil {
		if err := r.edge.cfg.Guard.check(r.Request); err != nil {
			return err
		}
	}
	matched := find(r.URL.EscapedPath(), r.edge.surface)
	if matched == nil {
		return r.routeFault()
	}
	r.route, r.envelope = matched, envelopeOf(r.Request, matched)
	if !matched.allows(r.Method) {
		return fault.New(fault.MethodNotAllowed, "%s takes %s", matched.path, matched.methods)
	}
	if r.edge.surface == hosted && !matched.open && !r.identified {
		if err := r.identify(); err != nil {
			if region, ok := errors.AsType[OtherRegion](err); ok {
				return r.forward(string(region), err)
			}
			return err
		}
	}
	r.identified = true
	if err := r.narrow(); err != nil {
		return err
	}
	r.setProgram()
	if r.edge.surface == local || !matched.open {
		if err := r.edge.buckets.take(bucketOf(r.caller), r.arrived); err != nil {
			return err
		}
	}
	if matched.messages && r.edge.surface == hosted { // spec/api.md#check-version
		if err := checkVersion(r.Header); err != nil {
			return err
		}
	}
	if matched.inference() {
		return r.infer()
	}
	return matched.serve(r)
}

func (r *request) routeFault() error {
	if path := nearest(r.URL.Path, r.edge.surface); path != "" {
		return fault.New(fault.RouteNotFound, "no such path: use %s; check whether the base URL should include /v1",
			path)
	}
	return fault.New(fault.RouteNotFound,
		"no such path: requests go to /v1/models, /v1/chat/completions and similar paths; check the base URL")
}

// serviceInfo answers HEAD /, with which agents check that the service exists, and GET /
// from clients other than browsers: the program and its base URLs (spec/api.md#get-root).
func (r *request) serviceInfo() error {
	return r.writeJSON(struct {
		Name         string `json:"name"`
		Version      string `json:"version"`
		BaseURL      string `json:"base_url"`      // of the chat, embeddings, responses and audio dialects
		MessagesBase string `json:"messages_base"` // of the messages dialect
	}{"kith", r.edge.cfg.Version, r.edge.cfg.Base + "/v1", r.edge.cfg.Base})
}

func (r *request) notImplemented() error {
	return fault.New(fault.NotImplemented, "POST /v1/completions is not implemented: use POST /v1/chat/completions")
}

// newCall returns a call with what is known before its body is read.
func (r *request) newCall(endpoint fleet.Endpoint) *Call {
	return &Call{
		ID: r.id, Endpoint: endpoint, Caller: r.caller, Arrived: r.arrived, Started: r.started,
		Waiting: func(int, time.Duration) {},
	}
}

// infer serves an inference route.
func (r *request) infer() error {
	call := r.newCall(r.route.endpoint)
	call.Wait = preferredWait(r.Header)
	defer call.close()
	defer r.turns.close()
	head, err := r.read(call)
	if err != nil {
		return err
	}
	call.Model, call.Stream, call.Choices = head.Model, head.Stream && r.route.streams(), head.Choices
	if !head.Model.Valid() { // no machine can offer it
		return impossibleModel()
	}
	r.call = call
	if call.Stream {
		return r.stream()
	}
	return r.unary()
}

// impossibleModel returns the fault for an invalid model id.
func impossibleModel() *fault.Fault {
	return fault.New(fault.ModelNotFound, "the model id is invalid: "+
		"an id has at most 256 bytes and no space at either end; send it exactly as GET /v1/models lists it")
}

// read reads and checks the request, and sets the fields of the call from it.
func (r *request) read(call *Call) (head dialect.Head, err error) {
	if call.Endpoint == fleet.Transcriptions {
		if call.Form, err = r.readForm(); err != nil {
			return head, err
		}
		return call.Form.Head(), nil
	}
	if call.Body, err = r.readBody(); err != nil {
		return head, err
	}
	if r.route.sealed {
		return r.readSealed(call)
	}
	var chat []byte
	if call.Endpoint == fleet.Responses && r.edge.surface == hosted {
		body, err := call.Body.Load() // kept until the end: the answer repeats parts of it
		if err != nil {
			return head, err
		}
		if head, chat, err = r.readResponses(call, body); err != nil {
			return head, err
		}
		call.bound(head, body, chat)
	} else if err = call.Body.View(r.Context(), func(body []byte) (err error) {
		head, chat, err = r.parse(call, body)
		call.bound(head, body, chat)
		return err
	}); err != nil {
		return head, r.faultOf(r.Context(), err)
	}
	if chat != nil {
		call.chat, err = r.keep(chat)
	}
	return head, err
}

// parse parses a body and keeps no part of it. It returns the head, and the body
// translated to chat, nil if machines can get it as it is.
func (r *request) parse(call *Call, body []byte) (head dialect.Head, chat []byte, err error) {
	switch {
	case call.Endpoint == fleet.Messages && r.edge.surface == local: // an upstream may accept what cannot be translated
		call.Header = ownHeaders(r.Header)
		if head, err = dialect.ReadMessagesHead(body); err == nil {
			_, chat, call.translationErr = r.translate(body)
		}
	case call.Endpoint == fleet.Messages:
		head, chat, err = r.translate(body)
	case call.Endpoint == fleet.EmbeddingsEndpoint:
		head, err = dialect.ReadEmbeddingsHead(body)
	case call.Endpoint == fleet.ChatCompletions:
		head, call.forms, chat, err = dialect.ReadChatHead(body)
		if err != nil && head.Model != "" && r.edge.surface == local { // an upstream may accept it as it is
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
func (r *request) faultOf(ctx context.Context, err error) error {
	var f *fault.Fault
	switch cause := context.Cause(ctx); {
	case errors.As(context.Cause(r.Context()), &f): // the server ended the request; the caller is still connected
		return f
	case r.Context().Err() != nil || errors.Is(err, errGone) || errors.Is(cause, errGone):
		return errGone
	case errors.As(cause, &f):
		return f
	default:
		return err
	}
}
