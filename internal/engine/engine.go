// Package engine finds the engines of this machine, lists their models and sends
// calls to them: the built-in engine, llama.cpp's server, Ollama, LM Studio, vLLM
// and others. The differences between kinds are data in one table (kinds.go). A
// request is the JSON of a chat or embeddings call, or the form of a
// transcription. Its answer becomes canonical chat or an error
// (spec/engine-answers.md). The package knows nothing of hubs, members or
// sharing.
package engine

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/outbound"
	"github.com/kith/kith/internal/spool"
)

// ErrUnreachable reports that no connection to the engine could be made. The call
// did not start and may go to another engine.
var ErrUnreachable = errors.New("the engine cannot be reached")

// maxRefusal bounds the body of an engine's error.
const maxRefusal = 64 << 10

// Model is one model as its engine offers it.
type Model struct {
	ID            fleet.ModelID
	Families      []fleet.Family
	Endpoints     []fleet.Endpoint // those that its engine speaks natively
	ContextLength int              // in tokens; 0 if unknown
	Capabilities  []string         // sorted: audio, thinking, tools, vision
	Slots         int              // calls that it runs at once; at least 1

	efforts []string // the reasoning settings that LM Studio allows
}

// Can reports whether the model is known to have the capability.
func (m *Model) Can(capability string) bool { return slices.Contains(m.Capabilities, capability) }

func sameModel(m, o Model) bool {
	return m.ID == o.ID && m.ContextLength == o.ContextLength && m.Slots == o.Slots &&
		slices.Equal(m.Families, o.Families) && slices.Equal(m.Endpoints, o.Endpoints) &&
		slices.Equal(m.Capabilities, o.Capabilities) && slices.Equal(m.efforts, o.efforts)
}

// Engine is one engine as it was when it was last checked. It is immutable: a
// changed list of models makes a new Engine. Only that of a Server changes. It is
// safe for concurrent use.
type Engine struct {
	kind   *kind
	name   string
	base   string // URL without a slash at the end and without /v1
	rt     http.RoundTripper
	models []Model
	// model returns the only model of a Server, which has no models.
	model func() Model
	load  *load
	// problem returns why it cannot be used now, or ""; nil means it always can.
	problem func() string
	// problems says why some models of an engine that kith runs cannot be served.
	problems map[fleet.ModelID]string
	graphics *Graphics // of the engine that is part of kith
	// upstream marks an upstream, whose base ends with /v1.
	upstream bool
}

// Graphics is what the engine that is part of kith computes with.
type Graphics struct {
	Library string            `json:"library,omitempty"` // the GPU library in use, or "": the CPU computes
	Cards   []string          `json:"cards,omitempty"`   // the graphics cards in use
	Unused  map[string]string `json:"unused,omitempty"`  // other GPU libraries that are there, and why each is not used
}

// BuiltinState is what the engine that is part of kith offers.
type BuiltinState struct {
	Models []Model
	// Problems says why other models that it was given cannot be served.
	Problems map[fleet.ModelID]string
	Graphics Graphics
}

// Builtin returns the engine that is part of kith, reached through rt.
func Builtin(name string, rt http.RoundTripper, now BuiltinState) *Engine {
	return &Engine{
		kind: &builtin, name: name, base: "http://" + builtin.id, rt: rt, models: now.Models, load: new(load),
		problems: now.Problems, graphics: &now.Graphics,
	}
}

// Starting returns the engine that is part of kith before it has started for the first
// time, with the models that it was given. why returns why it does not run yet.
func Starting(name string, ids []fleet.ModelID, why func() string) *Engine {
	models := make([]Model, len(ids))
	for i, id := range ids {
		models[i].ID = id
	}
	return &Engine{kind: &builtin, name: name, base: "http://" + builtin.id, models: models, load: new(load), problem: why}
}

// Graphics returns what the engine that is part of kith computes with; nil for others.
func (e *Engine) Graphics() *Graphics { return e.graphics }

// Server returns the llama-server that kith runs for one model, reached through
// rt. model returns what it offers; more of it is known once the model is loaded.
// problem returns why it cannot be used now, or "".
func Server(rt http.RoundTripper, model func() Model, problem func() string) *Engine {
	return &Engine{kind: kinds[0], name: "llama-server", base: "http://llama-server", rt: rt, model: model, load: new(load), problem: problem}
}

// Problem returns why an engine that kith runs cannot be used now, or "".
func (e *Engine) Problem() string {
	if e.problem == nil {
		return ""
	}
	return e.problem()
}

// IsStarting reports whether it is the engine that is part of kith before it has started.
func (e *Engine) IsStarting() bool { return e.problem != nil && !e.IsServer() }

// IsServer reports whether it is a process that kith runs for one model.
func (e *Engine) IsServer() bool { return e.model != nil }

// Problems returns why models of an engine that kith runs cannot be served now.
func (e *Engine) Problems() map[fleet.ModelID]string {
	why := e.Problem()
	if why == "" {
		return e.problems
	}
	problems := make(map[fleet.ModelID]string)
	for _, m := range e.Models() {
		problems[m.ID] = why
	}
	return problems
}

// Kind returns the id of the engine's kind, as in offers.
func (e *Engine) Kind() string { return e.kind.id }

// Name returns the name of the engine for people.
func (e *Engine) Name() string { return e.name }

// IsUpstream reports whether the engine is an upstream, on none of our machines.
func (e *Engine) IsUpstream() bool { return e.upstream }

// Base returns the engine's address without /v1.
func (e *Engine) Base() string { return e.base }

// OtherCalls returns how many calls of other programs the engine ran when it was
// last checked; 0 if it does not report them.
func (e *Engine) OtherCalls() int { return int(e.load.others.Load()) }

// Free returns how many more calls of the model the engine can run now; below 0 if calls
// wait there.
func (e *Engine) Free(m *Model) int {
	return m.Slots - int(e.load.others.Load()+e.load.ours.Load())
}

// load counts the calls of an engine.
type load struct {
	ours   atomic.Int64 // started by Do and not ended
	others atomic.Int64
	missed bool // the last probe got no count in time; guarded by Finder.probing
}

// update reads how many calls the engine runs and counts those that are not ours. If
// that is late once, the last count stays: a busy engine answers slowly.
func (l *load) update(p *probe, k *kind) int {
	others, missed := int64(0), false
	if k.running != nil {
		ours := l.ours.Load() // read before and after: a call may start or end in between
		calls, known := k.running(p)
		switch missed = !known && p.late() != nil; {
		case known:
			others = max(0, int64(calls)-max(ours, l.ours.Load()))
		case missed && !l.missed:
			others = l.others.Load()
		}
	}
	l.missed = missed
	l.others.Store(others)
	return int(others)
}

// Models returns the models of the engine in its own order. The caller does not
// change them.
func (e *Engine) Models() []Model {
	if e.model == nil {
		return e.models
	}
	m := e.model()
	for _, f := range m.Families {
		if f == fleet.Chat {
			m.Endpoints = append(m.Endpoints, fleet.ChatCompletions)
		} else {
			m.Endpoints = append(m.Endpoints, fleet.EmbeddingsEndpoint)
		}
	}
	return []Model{m}
}

// Request is a call to an engine.
type Request struct {
	Endpoint fleet.Endpoint
	Model    fleet.ModelID
	Stream   bool
	Choices  int    // number of answers; 0 means 1
	Body     []byte // JSON as received from the caller
	// Form is the form of a transcription, which has no Body.
	Form *dialect.Transcription
	// Trusted marks a call that the owner of this machine made here: all fields
	// are passed on. Of other calls only those of the allow-list are.
	Trusted bool
	// Caller identifies the caller; "" is the owner of this machine. An engine that
	// keeps computed prompts uses them for the same caller only: a fast answer would
	// otherwise reveal that another caller sent the same prompt
	// (spec/security.md#prompt-cache).
	Caller string
	// SharedCache lets other callers than the owner use the prompt cache of an engine
	// that cannot keep callers apart.
	SharedCache bool
	// Header holds headers of the dialect. Only upstreams receive them.
	Header http.Header
	// Spool holds the request and a unary answer on the account of Holder. nil
	// means one in memory, without limits.
	Spool  *spool.Spool
	Holder string

	noEffort bool // leave out reasoning_effort, which older engines refuse
}

func (e *Engine) modelFor(req *Request) (*Model, error) {
	models := e.Models()
	i := slices.IndexFunc(models, func(m Model) bool { return m.ID == req.Model })
	if i < 0 || !slices.Contains(models[i].Endpoints, req.Endpoint) {
		return nil, fault.New(fault.ModelNotFound, "%s does not offer %q for %s now; list the models again", e.name, req.Model, req.Endpoint.Path())
	}
	return &models[i], nil
}

// Do sends the call and returns the engine's status with the normalized body.
// Closing the body or the end of ctx cancels the call at the engine. The error is
// a *fault.Fault if the call is at fault or the engine failed on it, wraps
// ErrUnreachable if the call did not start, or is the cause of ctx.
func (e *Engine) Do(ctx context.Context, req Request) (*http.Response, error) {
	model, err := e.modelFor(&req)
	if err != nil {
		return nil, err
	}
	var body []byte
	var want wants
	switch {
	case req.Form != nil:
	case dialect.PassesThrough(req.Endpoint) && !req.Trusted: // there is no allow-list for these dialects
		return nil, fault.New(fault.ModelNotFound, "%s serves %q to others in the chat dialect only", e.name, req.Model)
	case dialect.PassesThrough(req.Endpoint):
		body = req.Body
	default:
		if body, want, err = e.request(&req, model); err != nil {
			return nil, err
		}
	}
	if req.Spool == nil {
		req.Spool, _ = spool.Open("", spool.Limits{}) // fails only with a folder
	}
	sent, err := req.Spool.Keep(spool.Holder{Member: req.Holder}, body)
	if err != nil {
		return nil, err
	}
	parent := ctx
	ctx, stop := context.WithCancel(ctx)
	e.load.ours.Add(1)
	cancel := sync.OnceFunc(func() {
		e.load.ours.Add(-1)
		stop()
		sent.Close()
	})
	var sending sending
	hr, err := http.NewRequestWithContext(sending.traced(ctx), http.MethodPost, e.target(req.Endpoint), nil)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot make the request for %s: %w", e.name, err)
	}
	if e.upstream && req.Header != nil {
		hr.Header = req.Header.Clone()
	}
	hr.Header.Set("User-Agent", "kith")
	dialect.SetBody(hr, req.Form, sent, req.Trusted)
	// The transport sends the request again, on a new connection, if an idle one ends before
	// the first byte of the answer: engines close idle connections without announcing it. The
	// header is not sent.
	hr.Header["Idempotency-Key"] = nil
	hr.Close = e.kind.streamed && want.streamed
	// RoundTrip and not Client.Do, because redirects are not followed.
	resp, err := e.rt.RoundTrip(hr)
	sent.Done()
	if err != nil {
		defer cancel()
		return nil, e.failed(ctx, err, &sending)
	}
	if resp.StatusCode == http.StatusBadRequest && want.effort {
		// The engine may not know this effort; the chat template got the setting, too.
		resp.Body.Close()
		cancel()
		req.noEffort = true
		return e.Do(parent, req)
	}
	out, err := e.respond(ctx, resp, cancel, &req, want)
	if err != nil {
		resp.Body.Close()
		cancel()
		return nil, err
	}
	return out, nil
}

func (e *Engine) target(endpoint fleet.Endpoint) string {
	if e.upstream {
		return e.base + strings.TrimPrefix(endpoint.Path(), "/v1")
	}
	return e.base + endpoint.Path()
}

// sending records how far a request came. One that failed in the TLS handshake was not
// sent, whatever the error is: a certificate, a time-out, an end of the connection.
type sending struct{ shaking, connected, sent atomic.Bool }

// traced returns the context of the request.
func (s *sending) traced(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// Again after an idle connection turned out to be dead.
		GetConn:           func(string) { s.connected.Store(false) },
		TLSHandshakeStart: func() { s.shaking.Store(true) },
		GotConn:           func(httptrace.GotConnInfo) { s.connected.Store(true) },
		WroteRequest: func(w httptrace.WroteRequestInfo) {
			if w.Err == nil {
				s.sent.Store(true)
			}
		},
	})
}

// failed returns the error of a call without an answer. If the connection broke
// after the request was sent, the engine may have crashed on this prompt: the
// call fails, so that it does not crash the engines of other machines.
func (e *Engine) failed(ctx context.Context, err error, s *sending) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	op, dialled := errors.AsType[*net.OpError](err)
	if !s.sent.Load() && (dialled && op.Op == "dial" || s.shaking.Load() && !s.connected.Load()) {
		return fmt.Errorf("%w: %s at %s: %w", ErrUnreachable, e.name, e.base, err)
	}
	return brokeOff(err)
}

func brokeOff(err error) error {
	return fault.New(fault.EngineError, "the engine broke off before its answer was complete").Because(err)
}

func (e *Engine) respond(ctx context.Context, resp *http.Response, cancel context.CancelFunc, req *Request, want wants) (*http.Response, error) {
	if s := resp.StatusCode; s >= 300 && s < 400 || s < 200 {
		return nil, fault.New(fault.EngineError, "the engine answered with status %d, which is no answer", s)
	}
	body := resp.Body
	switch resp.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip": // although the request does not accept it
		body = &unzipped{src: resp.Body}
	default:
		return nil, fault.New(fault.EngineError, "the engine answered in an encoding that was not asked for")
	}
	out := &http.Response{
		Status:        resp.Status,
		StatusCode:    resp.StatusCode,
		Header:        http.Header{"Content-Type": {resp.Header.Get("Content-Type")}},
		ContentLength: -1,
		Request:       resp.Request,
	}
	if after := resp.Header.Get("Retry-After"); after != "" {
		out.Header.Set("Retry-After", after)
	}
	most := int64(math.MaxInt64) // bytes of an answer that passes unchanged
	switch {
	case resp.StatusCode != http.StatusOK:
		most = maxRefusal
	case !req.Stream:
		most = dialect.MaxAnswer(req.Endpoint)
	}
	if resp.StatusCode != http.StatusOK || dialect.PassesThrough(req.Endpoint) {
		out.Body = &limited{Reader: io.LimitReader(body, most), src: body, cancel: cancel}
		return out, nil
	}
	norm := newNormalizer(req, want)
	if req.Stream {
		out.Header.Set("Content-Type", "text/event-stream")
		out.Trailer = http.Header{dialect.UsageTrailer: nil, dialect.CachedTrailer: nil}
		out.Body = &stream{ctx: ctx, src: body, cancel: cancel, normalizer: norm, trailer: out.Trailer}
		return out, nil
	}
	var answer *spool.Bytes
	var err error
	if req.Endpoint == fleet.ChatCompletions {
		if answer, err = e.unary(ctx, body, req, norm); err == nil {
			drain(body, cancel)
		}
	} else {
		answer, err = e.held(ctx, body, resp.ContentLength, req, want)
	}
	if sent, ok := errors.AsType[*sentError](err); ok { // a refusal, whatever its status is
		out.StatusCode = sent.status()
		out.Status = http.StatusText(out.StatusCode)
		out.Body = &limited{Reader: io.LimitReader(bytes.NewReader(sent.document), maxRefusal), src: body, cancel: cancel}
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	body.Close()
	cancel()
	out.Header.Set("Content-Type", "application/json")
	out.ContentLength = answer.Len()
	out.Header.Set("Content-Length", strconv.FormatInt(answer.Len(), 10))
	out.Body = spooled{answer.Open(), answer}
	return out, nil
}

// unary reads a complete chat answer, which may come as a stream, and returns it
// normalized.
func (e *Engine) unary(ctx context.Context, body io.Reader, req *Request, norm *normalizer) (*spool.Bytes, error) {
	buffer := make([]byte, 32<<10)
	for !norm.ended {
		n, err := body.Read(buffer)
		failed := norm.read(buffer[:n])
		if failed == nil && err == io.EOF {
			failed = norm.finish()
		}
		switch {
		case failed != nil:
			return nil, failed
		case err == nil || err == io.EOF:
		case context.Cause(ctx) != nil:
			return nil, context.Cause(ctx)
		default:
			return nil, brokeOff(err)
		}
	}
	return req.Spool.Keep(spool.Holder{Member: req.Holder, Answer: true}, norm.out)
}

// held reads a complete answer of another endpoint than chat. A transcript is returned
// as it is, because the gateway makes its form of it.
func (e *Engine) held(ctx context.Context, body io.Reader, announced int64, req *Request, want wants) (_ *spool.Bytes, err error) {
	limit := dialect.MaxAnswer(req.Endpoint)
	holder := spool.Holder{Member: req.Holder, Answer: true}
	held := req.Spool.Hold(holder, announced)
	defer func() {
		if err != nil {
			held.Close()
		}
	}()
	size, err := held.ReadFrom(io.LimitReader(body, limit+1))
	switch {
	case size > limit:
		return nil, answerTooLong(limit)
	case err == nil:
	case context.Cause(ctx) != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, new(*fault.Fault)): // the spool is full
		return nil, err
	default:
		return nil, brokeOff(err)
	}
	if req.Form != nil {
		return held, nil
	}
	var normalized []byte
	err = held.View(ctx, func(read []byte) (err error) {
		normalized, err = embeddings(read, req.Model, want)
		return err
	})
	if err != nil {
		return nil, err
	}
	held.Close()
	return req.Spool.Keep(holder, normalized)
}

func answerTooLong(limit int64) error {
	return fault.New(fault.EngineError, "the engine's answer is larger than %d MiB", limit>>20)
}

// spooled reads bytes of the spool and releases them when it is closed.
type spooled struct {
	io.Reader
	of *spool.Bytes
}

func (t spooled) Close() error {
	t.of.Close()
	return nil
}

// Held returns the complete body of a unary answer of Do, or nil if it is not held. The
// caller closes it, and then reads nothing from the body.
func Held(answer *http.Response) *spool.Bytes {
	body, _ := answer.Body.(spooled)
	return body.of
}

// limited is the bounded body of an answer that passes unchanged.
type limited struct {
	io.Reader
	src    io.Closer
	cancel context.CancelFunc
}

func (l *limited) Close() error {
	defer l.cancel()
	return l.src.Close()
}

// unzipped decompresses a body. It reads the header at the first Read, because
// opening it would wait for the engine's first bytes.
type unzipped struct {
	src io.ReadCloser
	zip *gzip.Reader
}

func (u *unzipped) Read(p []byte) (int, error) {
	if u.zip == nil {
		zip, err := gzip.NewReader(u.src)
		if err != nil {
			return 0, err
		}
		u.zip = zip
	}
	return u.zip.Read(p)
}

func (u *unzipped) Close() error { return u.src.Close() }

// newTransport returns the transport to engines. It uses no proxy of the
// environment and no compression. The wait for the first byte is not limited: an
// engine may read a prompt for minutes, and the caller has a deadline. Idle
// connections are closed before the 5 s after which the servers of llama.cpp,
// Node and uvicorn close them, because a request on a closing connection fails.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         outbound.Dial,
		TLSHandshakeTimeout: 5 * time.Second,
		// How long a request with Expect: 100-continue waits.
		ExpectContinueTimeout: time.Second,
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       4 * time.Second,
		DisableCompression:    true,
		WriteBufferSize:       16 << 10,
		ReadBufferSize:        16 << 10,
	}
}

// parseBase returns the base of a configured address, without /v1 at its end.
func parseBase(place string) (string, error) {
	u, err := url.Parse(place)
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot read the engine's address %q: write it like http://127.0.0.1:11434", place)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", fmt.Errorf("cannot use %q as an engine's address: write it like http://127.0.0.1:11434", place)
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return "", fmt.Errorf("cannot use %q as an engine's address: leave out the user, the query and the fragment", place)
	}
	path := strings.TrimRight(u.Path, "/")
	return origin(u) + strings.TrimSuffix(path, "/v1"), nil
}

// origin returns the scheme and the host of an address, with 127.0.0.1 for localhost:
// many engines do not listen on ::1. Over TLS the name stays, because the certificate
// is for it.
func origin(u *url.URL) string {
	host := u.Host
	if u.Scheme == "http" && u.Hostname() == "localhost" {
		host = strings.Replace(host, "localhost", "127.0.0.1", 1)
	}
	return u.Scheme + "://" + host
}
