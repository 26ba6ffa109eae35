package daemon

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// Do serves one call of the local surface: an engine here, then a configured
// upstream, then the hub if this machine is signed in, then model_not_found
// (decisions 6). The responses dialect only an upstream serves (S4); the messages
// dialect is asked in chat of what does not speak it (decisions 5).
func (d *Daemon) Do(ctx context.Context, call *gateway.Call) (*gateway.Answer, error) {
	var here *fault.Fault // why nothing here took it, in the words of the first
	for _, e := range firsts(d.able(call)) {
		answer, next, err := d.doHere(ctx, call, e)
		if !next {
			return answer, err
		}
		if here == nil {
			here = fault.Of(err)
		}
	}
	if why := d.board.whyNot(call.Model); here == nil && why != "" {
		here = fault.New(fault.ModelNotFound, "this machine cannot serve %q just now: %s", call.Model, why)
	}
	up := d.up.Load()
	switch {
	case here != nil && (up == nil || call.Endpoint == fleet.Responses):
		return nil, here
	case up == nil || call.Endpoint == fleet.Responses:
		return nil, d.nothing(call)
	}
	call.Trace.Attempts++
	answer, err := up.do(ctx, call)
	code := codeOf(err)
	if here != nil && (code == fault.ModelNotFound || code == fault.NotInCircle) {
		return nil, here // the hub knows no other machine; the cause is here
	}
	if code == fault.InvalidRequest && fault.Of(err).Param == "model" && d.board.speaks() {
		return nil, d.nothing(call) // no other machine offers speech, but this one does: it is the model that is unknown
	}
	return answer, err
}

// able are the engines and upstreams that serve the call, in order.
func (d *Daemon) able(call *gateway.Call) []*engine.Engine {
	return slices.DeleteFunc(d.board.own(), func(e *engine.Engine) bool {
		return modelOf(e, call.Model, call.Endpoint) == nil &&
			(call.Endpoint != fleet.Messages || modelOf(e, call.Model, fleet.ChatCompletions) == nil)
	})
}

// firsts are the first engine and the first upstream: a call that one engine
// cannot take now is not tried at all others.
func firsts(able []*engine.Engine) []*engine.Engine {
	var out []*engine.Engine
	for _, e := range able {
		if !slices.ContainsFunc(out, func(o *engine.Engine) bool { return o.IsUpstream() == e.IsUpstream() }) {
			out = append(out, e)
		}
	}
	return out
}

// codeOf is the code of err's fault; empty for nil.
func codeOf(err error) fault.Code {
	if f := fault.Of(err); f != nil {
		return f.Code
	}
	return ""
}

// doHere gives the call to an engine of this machine; next says that it did not
// start there and may go elsewhere. The owner's own calls are counted, never
// refused: they wait in the engine's queue.
func (d *Daemon) doHere(ctx context.Context, call *gateway.Call, e *engine.Engine) (answer *gateway.Answer, next bool, err error) {
	own := modelOf(e, call.Model, call.Endpoint) != nil && (call.Endpoint != fleet.ChatCompletions || e.IsUpstream())
	endpoint, asked, err := call.ForEngine(own)
	if err != nil {
		return nil, true, err
	}
	release := d.desk.enter(call.Model, call.Choices, !e.IsUpstream())
	defer func() {
		if answer == nil {
			release()
		}
	}()
	request := engine.Request{
		Endpoint: endpoint, Model: call.Model, Stream: call.Stream, Form: call.Form, Header: call.Header, Trusted: true, Spool: d.config.Spool,
	}
	if call.Form == nil {
		if request.Body, err = asked.Load(); err != nil {
			return nil, false, err
		}
	}
	call.Trace.Attempts++
	resp, err := e.Do(ctx, request)
	if err != nil {
		if errors.Is(err, engine.ErrUnreachable) {
			d.engineGone(e, err)
			return nil, true, unavailable(call, "%s, which runs %q here, cannot be reached; `kith status` says more", e.Name(), call.Model).Because(err)
		}
		code := codeOf(err)
		if code == fault.EngineError {
			d.engineFailed(e, call.Model, err)
		}
		return nil, code == fault.ModelNotFound, err
	}
	d.engineRefused(e, call.Model, resp.StatusCode)
	if resp.StatusCode == http.StatusOK {
		resp.Body = &body{ReadCloser: resp.Body, closed: release, broken: func(err error) error {
			if ctx.Err() == nil {
				d.engineFailed(e, call.Model, err)
			}
			return err
		}}
		return &gateway.Answer{Response: resp, Endpoint: endpoint, ToBody: own}, false, nil
	}
	defer resp.Body.Close()
	next, f := told(call, e, resp)
	return nil, next, f
}

// told is what an engine's status other than 200 means to the caller: the code
// that gateway.EngineFault has for it, in words for the engine's owner, who may
// know which engine it is and all that it says.
func told(call *gateway.Call, e *engine.Engine, resp *http.Response) (next bool, f *fault.Fault) {
	switch resp.StatusCode {
	case http.StatusNotFound:
		return true, fault.New(fault.ModelNotFound, "%s lists %q and does not have it loaded; load it there, or list the models again", e.Name(), call.Model)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true, unavailable(call, "%s, which runs %q here, is busy; try again", e.Name(), call.Model)
	}
	answer, _ := io.ReadAll(resp.Body) // bounded by the engine package; what came before a break is enough
	f = gateway.EngineFault(resp.StatusCode, answer)
	text := dialect.EngineText(answer)
	switch {
	case f.Code == fault.ContextLengthExceeded: // agents read its message
		return false, f
	case text == "":
		return false, fault.New(f.Code, "%s answered with status %d", e.Name(), resp.StatusCode).WithParam(f.Param)
	default:
		return false, fault.New(f.Code, "%s answered with status %d: %s", e.Name(), resp.StatusCode, text).WithParam(f.Param)
	}
}

// unavailable is row 11 of decisions 2 for a machine of the caller's own.
func unavailable(call *gateway.Call, format string, args ...any) *fault.Fault {
	if call.Endpoint.Family() == fleet.Chat {
		return fault.New(fault.CapacityFull, format, args...)
	}
	return fault.New(fault.CascadeExhausted, format, args...)
}

// nothing is why a call that neither an engine here nor the hub takes is refused.
func (d *Daemon) nothing(call *gateway.Call) *fault.Fault {
	switch {
	case call.Endpoint == fleet.Transcriptions && !d.board.speaks():
		return fault.New(fault.InvalidRequest, "no speech model is available here; configure an audio engine, or sign in with `kith login`").WithParam("model")
	case d.up.Load() == nil && len(d.board.own()) == 0 && d.board.servers == nil:
		return fault.New(fault.NoInferenceBackend, "no inference backend compiled in") // S7: exactly these words
	case call.Endpoint == fleet.Responses:
		return fault.New(fault.ModelNotFound, "no configured upstream serves %q for %s; use /v1/chat/completions", call.Model, call.Endpoint.Path())
	default:
		return unserved(call.Model)
	}
}

// unserved refuses a call for a model that nothing on this machine serves.
func unserved(model fleet.ModelID) *fault.Fault {
	return fault.New(fault.ModelNotFound, "nothing on this machine serves %q; GET /v1/models lists what does, `kith login` reaches more", model)
}

// Models lists what this daemon itself serves (S4): what the account reaches is
// the hub's to tell.
func (d *Daemon) Models(context.Context, gateway.Caller) ([]gateway.Model, error) {
	offers := d.board.offers(d.board.own())
	models := make([]gateway.Model, len(offers))
	for i, o := range offers {
		models[i] = gateway.Model{
			ID: fleet.ModelID(o.ID), ContextLength: o.ContextLength, Capabilities: o.Capabilities,
			Availability: gateway.Ready, Via: fleet.Own, Machines: 1, Created: d.started,
		}
	}
	return models, nil
}
