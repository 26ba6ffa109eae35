package daemon

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/tunnel"
)

// maxRequest bounds the body of a call from the tunnel, in bytes: what the hub
// takes (S8), and room for what its translation to chat adds.
const maxRequest = 40 << 20

// machine answers the calls that come down the tunnel. Whatever it answers
// without Kith-Refused came from the engine. Such a call is served here or not
// at all: it is never sent up again (decisions 2).
func (d *Daemon) machine() http.Handler {
	mux := http.NewServeMux()
	for _, endpoint := range []fleet.Endpoint{fleet.ChatCompletions, fleet.EmbeddingsEndpoint, fleet.Responses, fleet.Messages} {
		mux.HandleFunc("POST "+endpoint.Path(), d.apart(func(w http.ResponseWriter, r *http.Request, began *bool) {
			d.serveRouted(w, r, began, endpoint)
		}))
	}
	mux.HandleFunc("POST "+fleet.Transcriptions.Path(), d.apart(d.serveSpeech))
	mux.HandleFunc("POST "+tunnel.PathTokenize, d.apart(d.serveTokenize))
	return mux
}

// apart serves one call so that a defect in it is that call's alone.
func (d *Daemon) apart(serve func(w http.ResponseWriter, r *http.Request, began *bool)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := false
		defer func() {
			switch v := recover(); {
			case v == nil:
			case v == http.ErrAbortHandler: // a break meant for the hub, not a defect
				panic(v)
			default: // a defect of this call only
				err := fault.Defect(v)
				d.log.Error("a call from the hub failed", "id", r.Header.Get(tunnel.HeaderCorrelation), "error", err)
				if began {
					panic(http.ErrAbortHandler)
				}
				tellHub(w, r, fault.Of(err))
			}
		}()
		serve(w, r, &began)
	}
}

// serveRouted serves one call of the hub whose body is JSON.
func (d *Daemon) serveRouted(w http.ResponseWriter, r *http.Request, began *bool, endpoint fleet.Endpoint) {
	a, ok := d.admitHead(w, r, endpoint)
	if !ok {
		return
	}
	defer a.release()
	head, body, ok := d.readRequest(w, r, maxRequest)
	if !ok {
		return
	}
	defer body.Close()
	text, err := body.Load()
	if err != nil { // no room for it
		turnAway(w, tunnel.RefusedBusy)
		return
	}
	d.serveCall(w, r, began, a, engine.Request{Endpoint: endpoint, Model: head.Model, Stream: head.Stream, Choices: head.Choices, Body: text})
}

// admission is a call's engine and its slot there. The zero admission has none yet.
type admission struct {
	engine *engine.Engine
	model  fleet.ModelID
	free   func()
}

func (a *admission) release() {
	if a.free != nil {
		a.free()
	}
}

// admitHead admits a call of the hub by its head, before any of its body is read:
// the hub may keep the body back until then (decisions 2). ok is false where the
// call was refused. A hub before version 6 of the tunnel does not name the model in
// the head: the admission is empty, and serveCall admits the call.
func (d *Daemon) admitHead(w http.ResponseWriter, r *http.Request, endpoint fleet.Endpoint) (a *admission, ok bool) {
	a = new(admission)
	model, named := tunnel.CallModel(r.Header)
	return a, !named || d.admitCall(w, r, a, fleet.ModelID(model), endpoint)
}

// admitCall finds the engine for a call and takes a slot of it, or refuses the call.
func (d *Daemon) admitCall(w http.ResponseWriter, r *http.Request, a *admission, model fleet.ModelID, endpoint fleet.Endpoint) bool {
	e, free, refusal := d.admit(model, endpoint, classOf(r) == fleet.Own.String(), time.Now())
	if refusal != "" {
		turnAway(w, refusal)
		return false
	}
	*a = admission{e, model, free}
	return true
}

// classOf is the word for why the caller reaches this machine, as the hub says.
func classOf(r *http.Request) string {
	class, _, _ := strings.Cut(r.Header.Get(tunnel.HeaderCaller), " ")
	return class
}

// serveCall gives a call of the hub to the engine that serves it; *began is true
// from the answer's first byte on. The caller releases the admission.
func (d *Daemon) serveCall(w http.ResponseWriter, r *http.Request, began *bool, a *admission, call engine.Request) {
	switch {
	case a.engine == nil:
		if !d.admitCall(w, r, a, call.Model, call.Endpoint) {
			return
		}
	case a.model != call.Model: // what was checked is not what would run
		tellHub(w, r, fault.New(fault.InvalidRequest, "the request is for another model than its head names").WithParam("model"))
		return
	}
	_, caller, _ := strings.Cut(r.Header.Get(tunnel.HeaderCaller), " ")
	e := a.engine
	defer d.desk.widen(call.Model, call.Choices)()
	defer d.comfort.wakelock.Hold()()
	ctx, cancel := withDeadline(r.Context(), r.Header.Get(tunnel.HeaderDeadline))
	defer cancel()
	// Not Trusted, whoever the caller is: no string that came over the network
	// becomes a switch of the engine (decisions 5).
	call.Caller, call.Spool, call.Holder = caller, d.config.Spool, routed
	resp, err := e.Do(ctx, call)
	if err != nil {
		d.tellFailure(ctx, w, r, e, call.Model, err)
		return
	}
	defer resp.Body.Close()
	d.engineRefused(e, call.Model, resp.StatusCode)
	*began = true
	if err := relay(w, resp, call.Stream); err != nil {
		if ctx.Err() == nil {
			d.engineFailed(e, call.Model, err)
		}
		// Never an orderly end: the hub sees a reset and tells its caller.
		panic(http.ErrAbortHandler)
	}
}

// routed is who the calls of the hub are held for, all of them together: a hub
// can take no more of this computer than that, whatever it sends.
const routed = "hub"

// readRequest holds a call's body, whole, and reads its head. It answers the hub
// itself where there is nothing to serve: ok is false.
func (d *Daemon) readRequest(w http.ResponseWriter, r *http.Request, most int64) (head dialect.Head, body *spool.Bytes, ok bool) {
	body = d.config.Spool.Hold(spool.Holder{Member: routed}, r.ContentLength)
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, most))
	if err == nil {
		err = body.View(r.Context(), func(text []byte) (err error) {
			head, err = dialect.Peek(text)
			return err
		})
	}
	if err == nil {
		return head, body, true
	}
	body.Close()
	var f *fault.Fault
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		tellHub(w, r, fault.New(fault.RequestTooLarge, "the request is larger than %d MiB", most>>20))
	case !errors.As(err, &f):
		panic(http.ErrAbortHandler) // the hub gave the call up
	case f.Code == fault.CapacityFull:
		turnAway(w, tunnel.RefusedBusy)
	default:
		tellHub(w, r, f)
	}
	return head, nil, false
}

// turnAway tells the hub why this machine does not take a call.
func turnAway(w http.ResponseWriter, reason tunnel.Refusal) {
	w.Header().Set(tunnel.HeaderRefused, string(reason))
	w.WriteHeader(http.StatusServiceUnavailable)
}

// engineFor is the engine for a call from the tunnel, or why this machine does
// not take the call, slots aside. Sharing hours bind others, not the owner; a
// pause binds both (decisions 2).
func (d *Daemon) engineFor(model fleet.ModelID, endpoint fleet.Endpoint, own bool, now time.Time) (*engine.Engine, Sharing, tunnel.Refusal) {
	sharing, hours := d.settings.current(now)
	able := serving(d.board.shared(), model, endpoint)
	switch {
	case len(able) == 0 || !d.shares(model):
		return nil, sharing, tunnel.RefusedUnknownModel
	case d.isPaused(sharing):
		return nil, sharing, tunnel.RefusedPaused
	case !own && !hours.Open(now):
		return nil, sharing, tunnel.RefusedHours
	}
	return able[0], sharing, ""
}

// admit finds the engine for a call from the tunnel and takes a slot of it, or
// says why this machine does not take the call.
func (d *Daemon) admit(model fleet.ModelID, endpoint fleet.Endpoint, own bool, now time.Time) (*engine.Engine, func(), tunnel.Refusal) {
	e, sharing, refusal := d.engineFor(model, endpoint, own, now)
	if refusal != "" {
		return nil, nil, refusal
	}
	free := modelOf(e, model, endpoint).Slots - e.OtherCalls()
	release, ok := (func())(nil), false
	if free > 0 {
		release, ok = d.desk.admit(model, d.open(sharing), free)
	}
	if !ok {
		return nil, nil, tunnel.RefusedBusy
	}
	return e, release, ""
}

// withDeadline ends ctx when the hub gives the call up. The hub's clock rules
// and it resets a call it gave up anyway: a deadline that seems past already
// only says that this machine's clock is ahead, and is left aside (fault 38).
func withDeadline(ctx context.Context, header string) (context.Context, context.CancelFunc) {
	deadline, err := time.Parse(time.RFC3339, header)
	if err != nil || !deadline.After(time.Now()) {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline)
}

// tellFailure answers a call that got no answer from its engine.
func (d *Daemon) tellFailure(ctx context.Context, w http.ResponseWriter, r *http.Request, e *engine.Engine, model fleet.ModelID, err error) {
	f := (*fault.Fault)(nil)
	switch {
	case ctx.Err() != nil:
		panic(http.ErrAbortHandler) // nobody waits for words
	case errors.As(err, &f) && f.Code == fault.CapacityFull: // no room here for what was asked or answered
		turnAway(w, tunnel.RefusedBusy)
	case errors.Is(err, engine.ErrUnreachable):
		// As an engine's own 503: the hub goes on to the next machine.
		d.engineGone(e, err)
		w.WriteHeader(http.StatusServiceUnavailable)
	case errors.As(err, &f) && f.Code == fault.ModelNotFound:
		// The engine was replaced between the look at it and the call.
		w.Header().Set(tunnel.HeaderRefused, string(tunnel.RefusedUnknownModel))
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		d.engineFailed(e, model, err)
		tellHub(w, r, fault.Of(err))
	}
}

// tellHub answers the hub with a fault as an engine would.
func tellHub(w http.ResponseWriter, r *http.Request, f *fault.Fault) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status())
	// The only error is a hub that went away.
	_, _ = w.Write(dialect.FaultBody(dialect.Chat, f, r.Header.Get(tunnel.HeaderCorrelation)))
}

// relay passes an engine's answer on: of its headers the content's own, a
// stream flushed as it comes. The engine package bounds an error's body.
func relay(w http.ResponseWriter, resp *http.Response, stream bool) error {
	h := w.Header()
	h.Set("Content-Type", resp.Header.Get("Content-Type"))
	if after := resp.Header.Get("Retry-After"); after != "" {
		h.Set("Retry-After", after)
	}
	if resp.ContentLength >= 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	for name := range resp.Trailer {
		h.Add("Trailer", name)
	}
	w.WriteHeader(resp.StatusCode)
	if err := pour(w, resp.Body, stream); err != nil {
		return err
	}
	for name := range resp.Trailer {
		h.Set(name, resp.Trailer.Get(name))
	}
	return nil
}

// chunks are buffers for answers on their way: they were a third of what a call
// allocates.
var chunks = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// pour copies src to w, each read flushed if the answer is a stream.
func pour(w http.ResponseWriter, src io.Reader, stream bool) error {
	flush := http.NewResponseController(w).Flush
	pooled := chunks.Get().(*[8 << 10]byte)
	defer chunks.Put(pooled)
	chunk := pooled[:]
	for {
		n, err := src.Read(chunk)
		if n > 0 {
			if _, err := w.Write(chunk[:n]); err != nil {
				return err
			}
			if stream {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
