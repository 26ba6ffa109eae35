// Package engine finds the engines of this machine, learns what they offer and
// speaks to each of them: the built-in one, llama.cpp's server, Ollama,
// LM Studio, vLLM. What differs between kinds is data in one table (kinds.go);
// a call goes in as a chat or embeddings body, or as the form of a clip to
// transcribe, and comes back canonical: advertised model id, both names of the
// reasoning, mended tool calls (decisions 5). It knows nothing of hubs, members or sharing.
package engine

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
	"github.com/kith/kith/internal/spool"
)

// ErrUnreachable says that no connection to the engine could be made: the call
// did not start there and may go elsewhere.
var ErrUnreachable = errors.New("the engine cannot be reached")

// maxRefusal bounds the body of an engine's error.
const maxRefusal = 64 << 10

// Model is one model as its engine offers it.
type Model struct {
	ID            fleet.ModelID
	Families      []fleet.Family
	Endpoints     []fleet.Endpoint // those its engine speaks natively
	ContextLength int              // tokens; 0: unknown
	Capabilities  []string         // of tools, vision, audio, thinking; sorted
	Slots         int              // calls it runs at once; at least 1

	efforts []string // LM Studio: the reasoning settings the model allows
}

// Can reports whether the model is known to have the capability.
func (m *Model) Can(capability string) bool { return slices.Contains(m.Capabilities, capability) }

func sameModel(m, o Model) bool {
	return m.ID == o.ID && m.ContextLength == o.ContextLength && m.Slots == o.Slots &&
		slices.Equal(m.Families, o.Families) && slices.Equal(m.Endpoints, o.Endpoints) &&
		slices.Equal(m.Capabilities, o.Capabilities) && slices.Equal(m.efforts, o.efforts)
}

// Engine is one engine as it was when last looked at. It never changes, but for
// a Server: one that offers other models is another Engine. It is safe for
// concurrent use.
type Engine struct {
	kind   *kind
	name   string
	base   string // no slash at the end, without the /v1
	rt     http.RoundTripper
	models []Model
	// model is a Server's only one, instead of models.
	model func() Model
	load  *load
	// why says why it cannot be used just now; nil, or an empty answer: it can.
	why func() string
	// elsewhere: it is an upstream, whose base has the /v1.
	elsewhere bool
}

// Builtin is the engine that kith brings itself, reached through rt.
func Builtin(name string, rt http.RoundTripper, models []Model) *Engine {
	return &Engine{kind: &builtin, name: name, base: "http://" + builtin.word, rt: rt, models: models, load: new(load)}
}

// Server is the llama-server of this machine that kith runs for a model,
// reached through rt. model is what it offers just now, of which more is known
// once it is loaded; why says why it cannot be used just now, if so.
func Server(rt http.RoundTripper, model func() Model, why func() string) *Engine {
	return &Engine{kind: kinds[0], name: "llama-server", base: "http://llama-server", rt: rt, model: model, load: new(load), why: why}
}

// Why says why an engine that kith runs itself cannot be used just now; empty:
// it can.
func (e *Engine) Why() string {
	if e.why == nil {
		return ""
	}
	return e.why()
}

// Kind is the word of the engine's kind, as it stands in an offer.
func (e *Engine) Kind() string { return e.kind.word }

// Name is what a person calls the engine.
func (e *Engine) Name() string { return e.name }

// Elsewhere reports whether it is an upstream and runs on no machine of ours.
func (e *Engine) Elsewhere() bool { return e.elsewhere }

// Base is the engine's address without /v1.
func (e *Engine) Base() string { return e.base }

// Others is how many calls of other programs the engine ran when it was last
// looked at; 0 where it does not tell.
func (e *Engine) Others() int { return int(e.load.others.Load()) }

// load counts the calls that an engine runs.
type load struct {
	ours   atomic.Int64 // begun by Do and not over
	others atomic.Int64
}

// told asks the engine what it runs and takes what is not ours for others'.
func (l *load) told(p *place, k *kind) int {
	others := int64(0)
	if k.running != nil {
		ours := l.ours.Load() // first: a call that begins meanwhile is none of others'
		if calls, known := k.running(p); known {
			others = max(0, int64(calls)-max(ours, l.ours.Load()))
		}
	}
	l.others.Store(others)
	return int(others)
}

// Models are what the engine offers, in its own order; not to be changed.
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

// Request is one call for an engine.
type Request struct {
	Endpoint fleet.Endpoint
	Model    fleet.ModelID
	Stream   bool
	Choices  int    // answers asked for at once; 0: one
	Body     []byte // JSON as the caller sent it
	// Form is the request of a transcription, which has no Body.
	Form *dialect.Transcription
	// Trusted says that the owner of this machine made the call here: every
	// field is carried. Otherwise only an allow-list is, clamped (decisions 5).
	Trusted bool
	// Caller names who made the call where it was not the owner. One caller's
	// prompts must not speed up another's, which would tell of them: engines
	// that can are told to keep their caches apart.
	Caller string
	// Header holds headers of the dialect itself; they go to an upstream alone.
	Header http.Header
	// Spool holds what goes to the engine and a whole answer of it, as Holder's.
	// nil: one without limits, in memory.
	Spool  *spool.Spool
	Holder string

	plainly bool // without words that an older engine may refuse
}

// Do runs the call and gives the engine's own status with its canonical body;
// closing the body, or the end of ctx, ends the call at the engine. Errors are
// a *fault.Fault where the call itself was at fault or the engine failed on
// it, one that is ErrUnreachable where it did not start, and ctx's own.
func (e *Engine) Do(ctx context.Context, req Request) (*http.Response, error) {
	models := e.Models()
	i := slices.IndexFunc(models, func(m Model) bool { return m.ID == req.Model })
	if i < 0 || !slices.Contains(models[i].Endpoints, req.Endpoint) {
		return nil, fault.New(fault.ModelNotFound, "%s does not offer %q for %s now; list the models again", e.name, req.Model, req.Endpoint.Path())
	}
	var body []byte
	var want wants
	switch {
	case req.Form != nil:
	case dialect.Native(req.Endpoint) && !req.Trusted: // there is no list of what a stranger may say in it
		return nil, fault.New(fault.ModelNotFound, "%s serves %q to others in the chat dialect only", e.name, req.Model)
	case dialect.Native(req.Endpoint): // its bytes pass as they are
		body = req.Body
	default:
		var err error
		if body, want, err = e.request(&req, &models[i]); err != nil {
			return nil, err
		}
	}
	if req.Spool == nil {
		req.Spool, _ = spool.Open("", spool.Limits{}) // without a folder nothing fails
	}
	asked, err := req.Spool.Keep(spool.Holder{Member: req.Holder}, body)
	if err != nil {
		return nil, err
	}
	parent := ctx
	ctx, stop := context.WithCancel(ctx)
	e.load.ours.Add(1)
	cancel := sync.OnceFunc(func() { // however the call ends
		e.load.ours.Add(-1)
		stop()
		asked.Close()
	})
	hr, err := http.NewRequestWithContext(ctx, http.MethodPost, e.target(req.Endpoint), nil)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot make the request for %s: %w", e.name, err)
	}
	if e.elsewhere && req.Header != nil {
		hr.Header = req.Header.Clone()
	}
	hr.Header.Set("Content-Type", "application/json")
	hr.Header.Set("User-Agent", "kith")
	attach(hr, &req, asked)
	// The round tripper itself: no redirects are followed, none is needed.
	resp, err := e.rt.RoundTrip(hr)
	asked.Done()
	if err != nil {
		defer cancel()
		return nil, e.failed(ctx, err)
	}
	if resp.StatusCode == http.StatusBadRequest && want.effort {
		// Perhaps for the word: nothing was computed, and the template was told, too.
		resp.Body.Close()
		cancel()
		req.plainly = true
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

// target is where the engine has the endpoint.
func (e *Engine) target(endpoint fleet.Endpoint) string {
	if e.elsewhere {
		return e.base + strings.TrimPrefix(endpoint.Path(), "/v1")
	}
	return e.base + endpoint.Path()
}

// failed says what became of a call that got no answer. An engine that broke
// off has had the prompt and may have died of it: that is its failure on this
// call, and it must not walk on to the next machine (decisions 2).
func (e *Engine) failed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	op, dialled := errors.AsType[*net.OpError](err)
	_, uncertain := errors.AsType[*tls.CertificateVerificationError](err)
	if dialled && op.Op == "dial" || uncertain {
		return fmt.Errorf("%w: %s at %s: %w", ErrUnreachable, e.name, e.base, err)
	}
	return brokeOff(err)
}

func brokeOff(err error) error {
	return fault.New(fault.EngineError, "the engine broke off before its answer was whole").Because(err)
}

// respond makes what the engine answered canonical.
func (e *Engine) respond(ctx context.Context, resp *http.Response, cancel context.CancelFunc, req *Request, want wants) (*http.Response, error) {
	if s := resp.StatusCode; s >= 300 && s < 400 || s < 200 {
		return nil, fault.New(fault.EngineError, "the engine answered with status %d, which is no answer", s)
	}
	body := resp.Body
	switch resp.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip": // never asked for
		body = &unzipped{src: resp.Body}
	default:
		return nil, fault.New(fault.EngineError, "the engine answered in an encoding that was not asked for")
	}
	out := &http.Response{
		Status:        resp.Status,
		StatusCode:    resp.StatusCode,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        http.Header{"Content-Type": {resp.Header.Get("Content-Type")}},
		ContentLength: -1,
		Request:       resp.Request,
	}
	if after := resp.Header.Get("Retry-After"); after != "" {
		out.Header.Set("Retry-After", after)
	}
	if resp.StatusCode != http.StatusOK {
		out.Body = &limited{Reader: io.LimitReader(body, maxRefusal), src: body, cancel: cancel}
		return out, nil
	}
	if dialect.Native(req.Endpoint) {
		out.Body = native(body, req.Stream, dialect.MaxAnswer(req.Endpoint), cancel)
		return out, nil
	}
	mend := newMender(req, want)
	streamed := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	if req.Stream && streamed {
		out.Trailer = http.Header{dialect.UsageTrailer: nil}
		out.Body = &stream{ctx: ctx, src: body, cancel: cancel, mend: mend, trailer: out.Trailer}
		return out, nil
	}
	if streamed {
		return nil, fault.New(fault.EngineError, "the engine streamed an answer that was not to be streamed")
	}
	whole, err := e.whole(ctx, body, resp.ContentLength, req, mend)
	if err != nil {
		return nil, err
	}
	body.Close()
	if req.Stream {
		out.Header.Set("Content-Type", "text/event-stream")
		out.Trailer = http.Header{dialect.UsageTrailer: nil}
		out.Body = &stream{ctx: ctx, src: taken{whole.Open(), whole}, cancel: cancel, mend: mend, trailer: out.Trailer}
		return out, nil
	}
	cancel()
	out.ContentLength = whole.Len()
	out.Header.Set("Content-Length", strconv.FormatInt(whole.Len(), 10))
	out.Body = taken{whole.Open(), whole}
	return out, nil
}

// whole reads the complete answer of a call that its engine does not stream, and
// returns it in canonical form: unary, or as the frames of a stream where the
// caller wants one.
func (e *Engine) whole(ctx context.Context, body io.Reader, announced int64, req *Request, mend *mender) (*spool.Bytes, error) {
	most := dialect.MaxAnswer(req.Endpoint)
	holder := spool.Holder{Member: req.Holder, Answer: true}
	held := req.Spool.Hold(holder, announced)
	defer held.Close()
	n, err := held.ReadFrom(io.LimitReader(body, most+1))
	switch {
	case n > most:
		return nil, fault.New(fault.EngineError, "the engine's answer is larger than %d MiB", most>>20)
	case err == nil:
	case context.Cause(ctx) != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, new(*fault.Fault)): // no room
		return nil, err
	default:
		return nil, brokeOff(err)
	}
	var made []byte
	err = held.View(ctx, func(whole []byte) (err error) {
		if req.Endpoint == fleet.ChatCompletions {
			whole = wholeTexts(whole)
		}
		switch {
		case req.Stream && req.Form != nil:
			made, err = speechOf(whole)
		case req.Stream:
			made, err = framesOf(whole)
		case req.Form != nil: // the edge makes the transcript of it
			made = bytes.Clone(whole)
		default:
			made, err = mend.unary(whole)
			return err
		}
		if err != nil {
			err = fault.New(fault.EngineError, "the engine did not stream its answer, and what it sent cannot be read").Because(err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return req.Spool.Keep(holder, made)
}

// taken reads what is held for it alone, and gives it back.
type taken struct {
	io.Reader
	of *spool.Bytes
}

func (t taken) Close() error {
	t.of.Close()
	return nil
}

// limited is an engine's error on its way through.
type limited struct {
	io.Reader
	src    io.Closer
	cancel context.CancelFunc
}

func (l *limited) Close() error {
	defer l.cancel()
	return l.src.Close()
}

// unzipped undoes a gzip nobody asked for; it waits for the first bytes only
// when it is read.
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

// newTransport is how engines are reached: no proxy from the environment, no
// compression, no limit on the wait for the first byte, which may be minutes
// of prompt reading and is the caller's to bound. Idle connections are given
// up before the 5 s after which llama.cpp's, Node's and uvicorn's servers do,
// or a call would now and then be sent into a connection that just closed.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		// How long one who asks first waits for the word to go on.
		ExpectContinueTimeout: time.Second,
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       4 * time.Second,
		DisableCompression:    true,
		WriteBufferSize:       16 << 10,
		ReadBufferSize:        16 << 10,
	}
}

// parseBase is a configured place as a base address, without a /v1 at its end.
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
	return u.Scheme + "://" + u.Host + strings.TrimSuffix(path, "/v1"), nil
}
