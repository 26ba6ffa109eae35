package daemon

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/tunnel"
)

// maxRequest bounds the body of a call of the hub, in bytes: the hub's own limit, plus
// what the translation to chat can add.
const maxRequest = 40 << 20

// machineHandler returns the handler for the hub's calls. A response without Kith-Refused
// is the engine's. These calls are served here or refused: they are never sent back to
// the hub.
func (d *Daemon) machineHandler() http.Handler {
	mux := http.NewServeMux()
	for _, endpoint := range []fleet.Endpoint{fleet.ChatCompletions, fleet.EmbeddingsEndpoint, fleet.Responses,
		fleet.Messages} {
		mux.HandleFunc("POST "+endpoint.Path(), d.isolate(func(w http.ResponseWriter, r *http.Request, began *bool) {
			d.serveJSON(w, r, began, endpoint)
		}))
	}
	mux.HandleFunc("POST "+tunnel.PathSealed, d.isolate(d.serveSealed))
	mux.HandleFunc("GET "+tunnel.PathSeal, d.serveSeal)
	mux.HandleFunc("POST "+fleet.Transcriptions.Path(), d.isolate(d.serveTranscription))
	mux.HandleFunc("POST "+tunnel.PathTokenize, d.isolate(d.serveTokenize))
	return mux
}

// isolate recovers a panic of serve, so that only one request fails. began reports
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

// serveJSON serves a call of the hub with a JSON body.
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
	stream := head.Stream && endpoint != fleet.EmbeddingsEndpoint // embeddings are not streamed
	d.serveCall(w, r, began, a, engine.Request{
		Endpoint: endpoint, Model: head.Model, Stream: stream, Choices: head.Choices, Body: text, Caller: d.cacheOf(r),
	})
}

// admittedCall is the engine and the slot of a call.
type admittedCall struct {
	engine  *engine.Engine
	model   fleet.ModelID
	release func() // of the slot
}

// admitHead admits a call of the hub based on its header, before the body is read. The
// hub may wait for that before it sends the body. ok is false if the call was refused.
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

// endWithin is how long a call waits for another call of the hub to end
// (spec/tunnel.md#refused-busy). The hub counts its calls: if they hold all slots, the
// hub has cancelled one that has not ended here yet.
const endWithin = 200 * time.Millisecond

// awaitEnd calls reserve again whenever a call of the hub ends, for at most endWithin and
// only while the hub's calls are the reason why the machine is busy.
func (d *Daemon) awaitEnd(ctx context.Context,
	reserve func() (*engine.Engine, func(), tunnel.Refusal)) (*engine.Engine, func(), tunnel.Refusal) {
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

// fromOwner reports whether a call of the hub was made by this machine's owner.
func fromOwner(r *http.Request) bool {
	class, _, _ := strings.Cut(r.Header.Get(tunnel.HeaderCaller), " ")
	return class == fleet.Own.String()
}

// cacheOf returns the name of the caller's prompt cache, which only this machine can
// make. It is "" for this machine's owner, whose local calls use the same cache. If calls
// must be sealed, the hub's word is not enough for that.
func (d *Daemon) cacheOf(r *http.Request) string {
	if fromOwner(r) && d.policy.Load().sealed != sealed.Require {
		return ""
	}
	return d.cacheName(r.Header.Get(tunnel.HeaderCache))
}

// cacheName returns the name of a prompt cache for a caller's name of it.
func (d *Daemon) cacheName(of string) string {
	mac := hmac.New(sha256.New, []byte(d.config.CacheKey))
	mac.Write([]byte(of))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

var errOtherModel = fault.New(fault.InvalidRequest,
	"the model of the request differs from that of its header").WithParam("model")

// serveCall sends a call of the hub to its engine and copies the response. *began is true
// from the first byte on. call.Caller is the name of its prompt cache. The caller releases
// a.
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
	// Trusted is never set here: no caller from the network may set an engine's options.
	call.SharedCache, call.Spool, call.Holder = d.policy.Load().sharedCache, d.config.Spool, hubMember
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
		// The hub detects the reset of the stream and reports it to the caller.
		panic(http.ErrAbortHandler)
	}
}

// hubMember is the spool's member for all calls of the hub together, so that they cannot
// fill the spool.
const hubMember = "hub"

// readRequest reads the complete body of a call into the spool and parses its head;
// release frees the body. If it fails, it writes the response and ok is false.
func (d *Daemon) readRequest(w http.ResponseWriter, r *http.Request,
	limit int64) (head dialect.Head, text []byte, release func(), ok bool) {
	if text, release, ok = d.readBody(w, r, limit); !ok {
		return head, nil, release, false
	}
	head, err := dialect.ScanHead(text) // the engine checks the rest
	if err != nil {
		refuseBody(w, r, err, nil)
	}
	return head, text, release, err == nil
}

// readBody reads the complete body of a call into the spool; release frees it. If it fails,
// it writes the response and ok is false.
func (d *Daemon) readBody(w http.ResponseWriter, r *http.Request,
	limit int64) (text []byte, release func(), ok bool) {
	body := d.config.Spool.Hold(spool.Holder{Member: hubMember}, r.ContentLength)
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		text, err = body.Load()
	}
	if err != nil {
		body.Close()
		refuseBody(w, r, err, fault.New(fault.RequestTooLarge, "the request exceeds %d MiB", limit>>20))
	}
	return text, body.Close, err == nil
}

// refuseBody responds to a call whose body could not be read. tooLarge is the fault for a
// body over the limit.
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
// call; it does not check slots. Sharing hours do not apply to the owner, but a pause
// does.
func (d *Daemon) engineFor(model fleet.ModelID, endpoint fleet.Endpoint, own bool,
	now time.Time) (*engine.Engine, Sharing, tunnel.Refusal) {
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

// reserve reserves a slot of an engine for a call of the hub, or returns why this machine
// refuses the call.
func (d *Daemon) reserve(model fleet.ModelID, endpoint fleet.Endpoint, own bool,
	now time.Time) (*engine.Engine, func(), tunnel.Refusal) {
	e, sharing, refusal := d.engineFor(model, endpoint, own, now)
	if refusal != "" {
		return nil, nil, refusal
	}
	if modelOf(e, model, endpoint) == nil { // the engine's models changed in the meantime
		return nil, nil, tunnel.RefusedUnknownModel
	}
	free := 0 // free slots of all engines with the model; this engine has the most
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

// withDeadline ends ctx at the time when the hub cancels the call. A deadline in the past
// means that this machine's clock is ahead (docs/faults.md#38). It is ignored, because
// the hub resets a cancelled call anyway.
func withDeadline(ctx context.Context, header string) (context.Context, context.CancelFunc) {
	deadline, err := time.Parse(time.RFC3339, header)
	if err != nil || !deadline.After(time.Now()) {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline)
}

// writeEngineFailure responds to a call that failed with an error of the engine.
func (d *Daemon) writeEngineFailure(ctx context.Context, w http.ResponseWriter, r *http.Request, e *engine.Engine,
	model fleet.ModelID, err error) {
	var f *fault.Fault
	switch {
	case ctx.Err() != nil:
		panic(http.ErrAbortHandler) // the hub does not read the response
	case errors.As(err, &f) && f.Code == fault.CapacityFull: // the spool is full
		refuseCall(w, tunnel.RefusedBusy)
	case errors.Is(err, engine.ErrUnreachable):
		// Like an engine's own 503: the hub tries the next machine.
		d.engineGone(err)
		w.WriteHeader(http.StatusServiceUnavailable)
	case errors.As(err, &f) && f.Code == fault.ModelNotFound:
		refuseCall(w, tunnel.RefusedUnknownModel) // the engine was replaced in the meantime
	default:
		if codeOf(err) == fault.EngineError { // not the caller's mistake
			d.engineFailed(e, model, err)
		}
		writeFault(w, fault.Of(err), correlation(r))
	}
}

// writeFault responds with a fault in the format of an engine. id is the call's
// correlation id; it may be empty.
func writeFault(w http.ResponseWriter, f *fault.Fault, id string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status())
	_, _ = w.Write(dialect.FaultBody(dialect.Chat, f, id)) // the only possible error is a closed connection
}

func correlation(r *http.Request) string { return r.Header.Get(tunnel.HeaderCorrelation) }

// copyResponse copies an engine's response to w, with the headers about its content only.
// It flushes each read of a stream. The engine package bounds the body of an error.
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

// chunks are buffers for copyBody. Without the pool they would be a third of a call's
// allocations.
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
