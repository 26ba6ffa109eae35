// Package engine finds the engines of this machine, lists their models and sends calls to
// them: the built-in engine, llama.cpp's server, Ollama, LM Studio, vLLM and others. The
// differences between the kinds of engines are in one table (kinds.go). A request is the
// JSON of a chat or embeddings call, or the form of a transcription. The answer is
// converted to canonical chat or an error (spec/engine-answers.md). The package knows
// nothing about hubs, members or sharing.
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

// ErrUnreachable reports that the engine could not be connected to. The call did not
// start and may be sent to another engine.
var ErrUnreachable = errors.New("the engine cannot be reached")

// maxRefusal bounds the body of an engine's error.
const maxRefusal = 64 << 10

// Model is a model that an engine offers.
type Model struct {
	ID            fleet.ModelID
	Families      []fleet.Family
	Endpoints     []fleet.Endpoint // supported natively by the engine
	ContextLength int              // in tokens; 0 if unknown
	Capabilities  []string         // sorted: audio, default_tools, no_tools, thinking, tools, vision
	Slots         int              // concurrent calls, at least 1
	fleet.ModelFacts

	// Lacks is what the model cannot do, and why, for the owner; "" if nothing is known.
	Lacks string

	efforts []string // the reasoning settings that LM Studio accepts
}

// Can reports whether the model is known to have the capability.
func (m *Model) Can(capability string) bool { return slices.Contains(m.Capabilities, capability) }

func sameModel(m, o Model) bool {
	return m.ID == o.ID && m.ContextLength == o.ContextLength && m.Slots == o.Slots &&
		slices.Equal(m.Families, o.Families) && slices.Equal(m.Endpoints, o.Endpoints) &&
		m.Lacks == o.Lacks && m.ModelFacts == o.ModelFacts && slices.Equal(m.Capabilities, o.Capabilities) && slices.Equal(m.efforts, o.efforts)
}

// Engine is the state of an engine when it was last checked. It is immutable: if its
// models change, there is a new Engine. The exception is a Server. It is safe for
// concurrent use.
type Engine struct {
	kind    *kind
	name    string
	version string // "" if unknown
	base    string // URL without a trailing slash and without /v1
	rt      http.RoundTripper
	models  []Model
	// model returns the model of a Server, whose models are nil.
	model func() Model
	load  *load
	// problem returns why the engine cannot be used now, or ""; nil means that it can
	// always be used.
	problem func() string
	// problems are the reasons why models of an engine that kith runs cannot be served.
	problems map[fleet.ModelID]string
	graphics *Graphics // of the built-in engine
	// upstream reports that this is an upstream, whose base ends with /v1.
	upstream bool
}

// Graphics is what the built-in engine computes with.
type Graphics struct {
	Library string            `json:"library,omitempty"` // the GPU library in use; "" means the CPU
	Cards   []string          `json:"cards,omitempty"`   // the graphics cards in use
	Unused  map[string]string `json:"unused,omitempty"`  // other installed GPU libraries and why they are not used
}

// BuiltinState is what the built-in engine offers.
type BuiltinState struct {
	Models []Model
	// Problems are the reasons why its other models cannot be served.
	Problems map[fleet.ModelID]string
	Graphics Graphics
	Version  string // of llama.cpp
}

// Builtin returns the built-in engine, which rt connects to.
func Builtin(name string, rt http.RoundTripper, now BuiltinState) *Engine {
	return &Engine{
		kind: &builtin, name: name, base: "http://" + builtin.id, rt: rt, models: now.Models, load: new(load),
		problems: now.Problems, graphics: &now.Graphics, version: now.Version,
	}
}

// Starting returns the built-in engine before its first start has completed, with its
// future models. why returns why it is not running yet.
func Starting(name string, ids []fleet.ModelID, why func() string) *Engine {
	models := make([]Model, len(ids))
	for i, id := range ids {
		models[i].ID = id
	}
	return &Engine{kind: &builtin, name: name, base: "http://" + builtin.id, models: models, load: new(load), problem: why}
}

// Graphics returns what the built-in engine computes with, or nil for other engines.
func (e *Engine) Graphics() *Graphics { return e.graphics }

// Server returns the llama-server that kith runs for one model, which rt connects to.
// version is its version, or "". model returns what it offers; more details are known once
// the model is loaded. problem returns why it cannot be used now, or "".
func Server(rt http.RoundTripper, version string, model func() Model, problem func() string) *Engine {
	return &Engine{
		kind: kinds[0], name: "llama-server", version: version, base: "http://llama-server", rt: rt, model: model, load: new(load), problem: problem,
	}
}

// Problem returns why an engine that kith runs cannot be used now, or "".
func (e *Engine) Problem() string {
	if e.problem == nil {
		return ""
	}
	return e.problem()
}

// IsStarting reports whether it is the built-in engine before its start has completed.
func (e *Engine) IsStarting() bool { return e.problem != nil && !e.IsServer() }

// IsServer reports whether it is a process that kith runs for a single model.
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

// Kind returns the id of the engine's kind, as in advertisements.
func (e *Engine) Kind() string { return e.kind.id }

// Name returns the name of the engine for people.
func (e *Engine) Name() string { return e.name }

// Version returns the version that the engine reported, or "".
func (e *Engine) Version() string { return e.version }

// IsUpstream reports whether the engine is an upstream and so not on this machine.
func (e *Engine) IsUpstream() bool { return e.upstream }

// Base returns the engine's address without /v1.
func (e *Engine) Base() string { return e.base }

// OtherCalls returns how many calls of other programs the engine was running when it was
// last checked, or 0 if it does not report them.
func (e *Engine) OtherCalls() int { return int(e.load.others.Load()) }

// Free returns how many further calls of the model the engine can run now. It is negative
// if calls are waiting there.
func (e *Engine) Free(m *Model) int {
	return m.Slots - int(e.load.others.Load()+e.load.ours.Load())
}

// load counts an engine's calls.
type load struct {
	ours   atomic.Int64 // started by Do and not yet ended
	others atomic.Int64
	missed bool // the last probe got no count in time; guarded by Finder.probing
}

// update reads how many calls the engine runs and subtracts ours. If the engine is late
// once, the previous count remains, because a busy engine responds slowly.
func (l *load) update(p *probe, k *kind) int {
	others, missed := int64(0), false
	if k.running != nil {
		ours := l.ours.Load() // read before and after, because a call may start or end in between
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

// Models returns the engine's models in its own order. The caller must not change them.
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
	Body     []byte // JSON, unchanged from the caller
	// Form is the form of a transcription, which has no Body.
	Form *dialect.Transcription
	// Trusted marks a local call by the owner of this machine: all fields are passed on.
	// For other calls only those in the allow-list are.
	Trusted bool
	// Caller is a name of the caller that no one can guess; "" is the owner of this
	// machine. An engine with a prompt cache uses cached prompts only for the same caller. Otherwise a fast answer
	// would reveal that another caller had sent the same prompt
	// (spec/security.md#prompt-cache).
	Caller string
	// SharedCache lets callers other than the owner use the prompt cache of an engine with
	// a single shared cache.
	SharedCache bool
	// Header holds headers of the dialect. Only upstreams receive them.
	Header http.Header
	// Spool holds the request and a unary answer, counted for Holder. Nil means in memory
	// and without limits.
	Spool  *spool.Spool
	Holder string

	noEffort bool // omit reasoning_effort, which older engines refuse
}

func (e *Engine) modelFor(req *Request) (*Model, error) {
	models := e.Models()
	i := slices.IndexFunc(models, func(m Model) bool { return m.ID == req.Model })
	if i < 0 || !slices.Contains(models[i].Endpoints, req.Endpoint) {
		return nil, fault.New(fault.ModelNotFound, "%s does not offer %q for %s now; list the models again", e.name, req.Model, req.Endpoint.Path())
	}
	return &models[i], nil
}

// Do sends the call and returns the engine's status with the normalized body. Closing the
// body or ending ctx cancels the call at the engine. The error is a *fault.Fault if the
// call is invalid or the engine failed, wraps ErrUnreachable if the call did not start,
// or is the cause of ctx.
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
	// If an idle connection ends before the first byte of the answer, the transport sends
	// the request again on a new connection, because engines close idle connections
	// without notice. This header is not sent.
	hr.Header["Idempotency-Key"] = nil
	hr.Close = e.kind.streamed && want.streamed
	// RoundTrip instead of Client.Do, so that redirects are not followed.
	resp, err := e.rt.RoundTrip(hr)
	sent.Done()
	if err != nil {
		defer cancel()
		return nil, e.failed(ctx, err, &sending)
	}
	if resp.StatusCode == http.StatusBadRequest && want.effort {
		// The engine may not support this effort; the chat template got the setting, too.
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

// sending records how far a request got. A request that failed during the TLS handshake
// was not sent, whatever the error: an invalid certificate, a timeout or a closed
// connection.
type sending struct{ shaking, connected, sent atomic.Bool }

func (s *sending) traced(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// Called again if an idle connection turned out to be dead.
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

// failed returns the error for a call without an answer. If the connection broke after
// the request was sent, this prompt may have crashed the engine, so the call fails and
// does not crash engines on other machines.
func (e *Engine) failed(ctx context.Context, err error, s *sending) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	op, dialled := errors.AsType[*net.OpError](err)
	if !s.sent.Load() && (dialled && op.Op == "dial" || s.shaking.Load() && !s.connected.Load()) {
		return fmt.Errorf("%w: %s at %s: %w", ErrUnreachable, e.name, e.base, err)
	}
	return brokeOff(ctx, err)
}

// brokeOff returns the error of an answer that ended with err: the cause of ctx, if that
// has ended.
func brokeOff(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return fault.New(fault.EngineError, "the answer of the engine was cut off").Because(err)
}

func (e *Engine) respond(ctx context.Context, resp *http.Response, cancel context.CancelFunc, req *Request, want wants) (*http.Response, error) {
	if s := resp.StatusCode; s >= 300 && s < 400 || s < 200 {
		return nil, fault.New(fault.EngineError, "the engine responded with unexpected status %d", s)
	}
	body := resp.Body
	switch resp.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip": // although the request did not accept it
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
	most := int64(math.MaxInt64) // limit for an answer that passes unchanged
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
	if sent, ok := errors.AsType[*sentError](err); ok { // a refusal, regardless of its status
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

// unary reads a complete chat answer, which may be a stream, and returns it normalized.
func (e *Engine) unary(ctx context.Context, body io.Reader, req *Request, norm *normalizer) (*spool.Bytes, error) {
	buffer := make([]byte, 32<<10)
	for !norm.ended {
		n, err := body.Read(buffer)
		failed := norm.read(buffer[:n])
		if failed == nil && err == io.EOF {
			failed = norm.finish()
		}
		if failed == nil && err != nil && err != io.EOF {
			failed = brokeOff(ctx, err)
		}
		if failed != nil {
			return nil, failed
		}
	}
	return req.Spool.Keep(spool.Holder{Member: req.Holder, Answer: true}, norm.out)
}

// held reads a complete answer of an endpoint other than chat. It returns a transcript
// unchanged, because the gateway formats it.
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
	case context.Cause(ctx) == nil && errors.As(err, new(*fault.Fault)): // the spool is full
		return nil, err
	default:
		return nil, brokeOff(ctx, err)
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

// spooled reads bytes from the spool and releases them when it is closed.
type spooled struct {
	io.Reader
	of *spool.Bytes
}

func (t spooled) Close() error {
	t.of.Close()
	return nil
}

// Held returns the complete body of a unary answer of Do, or nil if it is not in the
// spool. The caller must close it and must not read from the answer's body afterwards.
func Held(answer *http.Response) *spool.Bytes {
	body, _ := answer.Body.(spooled)
	return body.of
}

// limited is the body of an answer that passes unchanged, with a size limit.
type limited struct {
	io.Reader
	src    io.Closer
	cancel context.CancelFunc
}

func (l *limited) Close() error {
	defer l.cancel()
	return l.src.Close()
}

// unzipped decompresses a body. It reads the header during the first Read, because
// opening it would block until the engine's first bytes.
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

// newTransport returns the transport to engines. It uses neither the environment's proxy
// nor compression. The wait for the first byte has no limit: an engine may process a
// prompt for minutes, and the caller has a deadline. Idle connections are closed before 5
// s, when the servers of llama.cpp, Node and uvicorn close them, because a request on a
// closing connection fails.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         outbound.Dial,
		TLSHandshakeTimeout: 5 * time.Second,
		// The wait of a request with Expect: 100-continue.
		ExpectContinueTimeout: time.Second,
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       4 * time.Second,
		DisableCompression:    true,
		WriteBufferSize:       16 << 10,
		ReadBufferSize:        16 << 10,
	}
}

// parseBase returns the base of a configured address, without a trailing /v1.
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

// origin returns the scheme and the host of an address, with 127.0.0.1 instead of
// localhost, because many engines do not listen on ::1. With TLS the name is kept,
// because the certificate contains it.
func origin(u *url.URL) string {
	host := u.Host
	if u.Scheme == "http" && u.Hostname() == "localhost" {
		host = strings.Replace(host, "localhost", "127.0.0.1", 1)
	}
	return u.Scheme + "://" + host
}
