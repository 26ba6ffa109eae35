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

// maxRequest bounds the body of a call of the hub, in bytes: the hub's own limit, and
// room for what its translation to chat adds.
const maxRequest = 40 << 20

// machineHandler returns the handler of the hub's calls. A response without
// Kith-Refused is the engine's. Such a call is served here or not at all: it is never
// sent back to the hub.
func (d *Daemon) machineHandler() http.Handler {
	mux := http.NewServeMux()
	for _, endpoint := range []fleet.Endpoint{fleet.ChatCompletions, fleet.EmbeddingsEndpoint, fleet.Responses, fleet.Messages} {
		mux.HandleFunc("POST "+endpoint.Path(), d.isolate(func(w http.ResponseWriter, r *http.Request, began *bool) {
			d.serveJSON(w, r, began, endpoint)
		}))
	}
	mux.HandleFunc("POST "+fleet.Transcriptions.Path(), d.isolate(d.serveTranscription))
	mux.HandleFunc("POST "+tunnel.PathTokenize, d.isolate(d.serveTokenize))
	return mux
}

// isolate recovers a panic of serve, so that it fails one request only. began reports
// whether the response has begun.
func (d *Daemon) isolate(serve func(w http.ResponseWriter, r *http.Request, began *bool)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := false
		defer func() {
			switch v := recover(); {
			case v == nil:
			case v == http.ErrAbortHandler: // a deliberate reset of the stream
				panic(v)
			default:
				err := fault.Defect(v)
				d.log.Error("a request failed", "request", r.Method+" "+r.URL.Path, "id", correlation(r), "error", err)
				if began {
					panic(http.ErrAbortHandler)
				}
				writeFault(w, fault.Of(err), correlation(r))
			}
		}()
		serve(w, r, &began)
	}
}

// serveJSON serves one call of the hub whose body is JSON.
func (d *Daemon) serveJSON(w http.ResponseWriter, r *http.Request, began *bool, endpoint fleet.Endpoint) {
	a, ok := d.admitHead(w, r, endpoint)
	if !ok {
		return
	}
	defer a.release()
	head, text, release, ok := d.readRequest(w, r, maxRequest)
	defer release()
	if !ok {
		return
	}
	stream := head.Stream && endpoint != fleet.EmbeddingsEndpoint // which has no stream
	d.serveCall(w, r, began, a, engine.Request{Endpoint: endpoint, Model: head.Model, Stream: stream, Choices: head.Choices, Body: text})
}

// admittedCall is a call's engine and its slot there.
type admittedCall struct {
	engine  *engine.Engine
	model   fleet.ModelID
	release func() // of the slot
}

// admitHead admits a call of the hub by its header, before its body is read: the hub
// may send the body only then. ok is false if the call was refused.
func (d *Daemon) admitHead(w http.ResponseWriter, r *http.Request, endpoint fleet.Endpoint) (a admittedCall, ok bool) {
	model := fleet.ModelID(tunnel.CallModel(r.Header))
	reserve := func() (*engine.Engine, func(), tunnel.Refusal) {
		return d.reserve(model, endpoint, fromOwner(r), time.Now())
	}
	e, free, refusal := reserve()
	if refusal == tunnel.RefusedBusy {
		e, free, refusal = d.awaitEnd(r.Context(), reserve)
	}
	if refusal != "" {
		refuseCall(w, refusal)
		return admittedCall{}, false
	}
	return admittedCall{e, model, free}, true
}

// endWithin is how long a call waits here for another call of the hub to end
// (spec/tunnel.md#refused-busy). The hub counts its calls: where they hold all slots, it
// has cancelled one that has not ended here yet.
const endWithin = 200 * time.Millisecond

// awaitEnd reserves again whenever a call of the hub ends, while the machine is busy with
// such calls alone, for at most endWithin.
func (d *Daemon) awaitEnd(ctx context.Context, reserve func() (*engine.Engine, func(), tunnel.Refusal)) (*engine.Engine, func(), tunnel.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	for {
		ended := d.admission.nextEnd()
		e, free, refusal := reserve()
		if refusal != tunnel.RefusedBusy || ended == nil || ctx.Err() != nil {
			return e, free, refusal
		}
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
}

// fromOwner reports whether a call of the hub is of this machine's owner.
func fromOwner(r *http.Request) bool {
	class, _, _ := strings.Cut(r.Header.Get(tunnel.HeaderCaller), " ")
	return class == fleet.Own.String()
}

// cacheOf returns the name of the caller's prompt cache; "" for the owner of this
// machine, whose local calls use it, too.
func cacheOf(r *http.Request) string {
	if fromOwner(r) {
		return ""
	}
	return "hub " + r.Header.Get(tunnel.HeaderCache)
}

var errOtherModel = fault.New(fault.InvalidRequest, "the request is for another model than its head names").WithParam("model")

// serveCall sends a call of the hub to the engine that serves it and copies the
// response; *began is true from its first byte on. The caller releases a.
func (d *Daemon) serveCall(w http.ResponseWriter, r *http.Request, began *bool, a admittedCall, call engine.Request) {
	if a.model != call.Model { // the checks were for the header's model
		writeFault(w, errOtherModel, correlation(r))
		return
	}
	e := a.engine
	defer d.admission.addChoices(call.Model, call.Choices)()
	defer d.power.wakelock.Hold()()
	ctx, cancel := withDeadline(r.Context(), r.Header.Get(tunnel.HeaderDeadline))
	defer cancel()
	// Not Trusted, for any caller: nothing from the network sets an engine's options.
	call.Caller, call.SharedCache, call.Spool, call.Holder = cacheOf(r), d.policy.Load().sharedCache, d.config.Spool, hubMember
	resp, err := e.Do(ctx, call)
	for _, other := range serving(d.offers.forHub(), call.Model, call.Endpoint) {
		if !errors.Is(err, engine.ErrUnreachable) || call.Form != nil {
			break
		}
		if other != e && other != a.engine {
			d.engineGone(err)
			e = other
			resp, err = e.Do(ctx, call)
		}
	}
	if err != nil {
		d.writeEngineFailure(ctx, w, r, e, call.Model, err)
		return
	}
	defer resp.Body.Close()
	d.engineRefused(e, call.Model, resp.StatusCode)
	*began = true
	if err := copyResponse(w, resp, call.Stream); err != nil {
		if ctx.Err() == nil {
			d.engineFailed(e, call.Model, err)
		}
		// The hub sees a reset of the stream and reports it to the caller.
		panic(http.ErrAbortHandler)
	}
}

// hubMember is the member of the spool that all calls of the hub count for, so that a
// hub cannot fill it.
const hubMember = "hub"

// readRequest reads a call's complete body into the spool and parses its head; release
// gives the body back. If that fails it writes the response and ok is false.
func (d *Daemon) readRequest(w http.ResponseWriter, r *http.Request, limit int64) (head dialect.Head, text []byte, release func(), ok bool) {
	body := d.config.Spool.Hold(spool.Holder{Member: hubMember}, r.ContentLength)
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		err = body.View(r.Context(), func(text []byte) (err error) {
			head, err = dialect.ReadHead(text)
			return err
		})
	}
	if err == nil {
		text, err = body.Load()
	}
	if err != nil {
		body.Close()
		refuseBody(w, r, err, fault.New(fault.RequestTooLarge, "the request is larger than %d MiB", limit>>20))
	}
	return head, text, body.Close, err == nil
}

// refuseBody responds to a call whose body could not be read; tooLarge is the fault of
// a body over the limit.
func refuseBody(w http.ResponseWriter, r *http.Request, err error, tooLarge *fault.Fault) {
	var f *fault.Fault
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		writeFault(w, tooLarge, correlation(r))
	case !errors.As(err, &f):
		panic(http.ErrAbortHandler) // the hub cancelled the call
	case f.Code == fault.CapacityFull: // the spool is full
		refuseCall(w, tunnel.RefusedBusy)
	default:
		writeFault(w, f, correlation(r))
	}
}

func refuseCall(w http.ResponseWriter, reason tunnel.Refusal) {
	w.Header().Set(tunnel.HeaderRefused, string(reason))
	w.WriteHeader(http.StatusServiceUnavailable)
}

// engineFor returns the engine for a call of the hub, or why this machine refuses the
// call, except for slots. Sharing hours bind others and not the owner; a pause binds
// both.
func (d *Daemon) engineFor(model fleet.ModelID, endpoint fleet.Endpoint, own bool, now time.Time) (*engine.Engine, Sharing, tunnel.Refusal) {
	sharing, hours := d.settings.current(now)
	candidates := serving(d.offers.forHub(), model, endpoint)
	switch {
	case len(candidates) == 0 || !d.shares(model):
		return nil, sharing, tunnel.RefusedUnknownModel
	case d.isPaused(sharing):
		return nil, sharing, tunnel.RefusedPaused
	case !own && !hours.Open(now):
		return nil, sharing, tunnel.RefusedHours
	}
	return candidates[0], sharing, ""
}

// reserve returns an engine for a call of the hub and takes a slot of it, or returns why
// this machine refuses the call.
func (d *Daemon) reserve(model fleet.ModelID, endpoint fleet.Endpoint, own bool, now time.Time) (*engine.Engine, func(), tunnel.Refusal) {
	e, sharing, refusal := d.engineFor(model, endpoint, own, now)
	if refusal != "" {
		return nil, nil, refusal
	}
	if modelOf(e, model, endpoint) == nil { // the engine's models changed after engineFor
		return nil, nil, tunnel.RefusedUnknownModel
	}
	free := 0 // of all engines that serve it: this one has the most
	for _, o := range serving(d.offers.forHub(), model, endpoint) {
		if m := modelOf(o, model, endpoint); m != nil {
			free += max(0, m.Slots-o.OtherCalls())
		}
	}
	if free <= 0 {
		return nil, nil, tunnel.RefusedBusy
	}
	release, ok := d.admission.admit(model, d.openSlots(sharing), free)
	if !ok {
		return nil, nil, tunnel.RefusedBusy
	}
	return e, release, ""
}

// withDeadline ends ctx when the hub cancels the call. A deadline in the past means
// that this machine's clock is ahead (docs/faults.md#38). It is ignored: the hub resets
// a cancelled call in any case.
func withDeadline(ctx context.Context, header string) (context.Context, context.CancelFunc) {
	deadline, err := time.Parse(time.RFC3339, header)
	if err != nil || !deadline.After(time.Now()) {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline)
}

// writeEngineFailure responds to a call for which the engine returned an error.
func (d *Daemon) writeEngineFailure(ctx context.Context, w http.ResponseWriter, r *http.Request, e *engine.Engine, model fleet.ModelID, err error) {
	var f *fault.Fault
	switch {
	case ctx.Err() != nil:
		panic(http.ErrAbortHandler) // the hub reads no response
	case errors.As(err, &f) && f.Code == fault.CapacityFull: // the spool is full
		refuseCall(w, tunnel.RefusedBusy)
	case errors.Is(err, engine.ErrUnreachable):
		// As an engine's own 503: the hub tries the next machine.
		d.engineGone(err)
		w.WriteHeader(http.StatusServiceUnavailable)
	case errors.As(err, &f) && f.Code == fault.ModelNotFound:
		refuseCall(w, tunnel.RefusedUnknownModel) // the engine was replaced after engineFor
	default:
		if codeOf(err) == fault.EngineError { // and not the caller's mistake
			d.engineFailed(e, model, err)
		}
		writeFault(w, fault.Of(err), correlation(r))
	}
}

// writeFault responds with a fault as an engine would. id is the call's correlation id;
// it may be empty.
func writeFault(w http.ResponseWriter, f *fault.Fault, id string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status())
	_, _ = w.Write(dialect.FaultBody(dialect.Chat, f, id)) // the only error is a closed connection
}

func correlation(r *http.Request) string { return r.Header.Get(tunnel.HeaderCorrelation) }

// copyResponse copies an engine's response to w: of its headers those of the content,
// a stream flushed at each read. The engine package bounds the body of an error.
func copyResponse(w http.ResponseWriter, resp *http.Response, stream bool) error {
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
	if err := copyBody(w, resp.Body, stream); err != nil {
		return err
	}
	for name := range resp.Trailer {
		h.Set(name, resp.Trailer.Get(name))
	}
	return nil
}

// chunks are the buffers of copyBody. Without the pool they are a third of what a call
// allocates.
var chunks = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// copyBody copies src to w, and flushes each read of a stream.
func copyBody(w http.ResponseWriter, src io.Reader, stream bool) error {
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
