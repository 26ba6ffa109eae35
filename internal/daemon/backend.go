package daemon

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// Do implements gateway.Backend for the local surface. It tries, in this order:
//
//  1. the first engine of this machine that serves the model;
//  2. the first upstream that does;
//  3. the hub, if this machine is signed in: to other machines, sealed for them if
//     Config.Sealed is set.
//
// Otherwise it returns model_not_found. Only an upstream serves the responses dialect.
// Calls in the messages dialect are translated to chat for engines without that dialect.
func (d *Daemon) Do(ctx context.Context, call *gateway.Call) (*gateway.Answer, error) {
	d.setSealed(call, sealed.NotSent)
	var here *fault.Fault // why the first engine or upstream did not accept the call
	answered := false     // an engine has answered that it cannot serve the call: the others are not tried
	for _, e := range serving(d.offers.forOwner(), call.Model, call.Endpoint) {
		if answered && !e.IsUpstream() {
			continue
		}
		answer, next, err := d.tryEngine(ctx, call, e)
		answered = answered || !errors.Is(err, engine.ErrUnreachable)
		if !next {
			return answer, err
		}
		if here == nil {
			here = fault.Of(err)
		}
	}
	if here == nil {
		here = d.whyNot(call)
	}
	hub := d.hubClient.Load()
	switch notForHub := hub == nil || call.Endpoint == fleet.Responses; {
	case notForHub && here != nil:
		return nil, here
	case notForHub:
		return nil, d.noBackend(call)
	}
	call.Trace.Attempts++
	answer, err := hub.remote(ctx, call)
	code := codeOf(err)
	if here != nil && (code == fault.ModelNotFound || code == fault.NotInCircle) {
		return nil, here // no machine of the hub has the model either: the local cause is more helpful
	}
	if code == fault.InvalidRequest && fault.Of(err).Param == "model" && d.offers.hasSpeech() {
		// No machine of the hub has a speech model, but this one does: the model is unknown.
		return nil, d.noBackend(call)
	}
	return answer, err
}

// codeOf returns the code of err's fault, or "" for nil.
func codeOf(err error) fault.Code {
	if f := fault.Of(err); f != nil {
		return f.Code
	}
	return ""
}

// tryEngine sends the call to an engine or upstream. next reports that the call did not
// start there and the next one can be tried. Local calls are counted but never refused:
// they wait in the engine's queue.
func (d *Daemon) tryEngine(ctx context.Context, call *gateway.Call,
	e *engine.Engine) (answer *gateway.Answer, next bool, err error) {
	native := modelOf(e, call.Model, call.Endpoint) != nil && (call.Endpoint != fleet.ChatCompletions || e.IsUpstream())
	endpoint, body, err := call.ForEngine(native)
	if err != nil {
		return nil, true, err
	}
	release := d.admission.startLocal(call.Model, call.Choices, !e.IsUpstream())
	defer func() {
		if answer == nil {
			release()
		}
	}()
	request := engine.Request{
		Endpoint: endpoint, Model: call.Model, Stream: call.Stream, Form: call.Form, Header: call.Header, Trusted: true,
		Spool: d.config.Spool,
	}
	if call.Form == nil {
		if request.Body, err = body.Load(); err != nil {
			return nil, false, err
		}
	}
	call.Trace.Attempts++
	if d.setSealed(call, sealed.Here); e.IsUpstream() {
		d.setSealed(call, sealed.Upstream)
	}
	resp, err := e.Do(ctx, request)
	if err != nil {
		if errors.Is(err, engine.ErrUnreachable) {
			d.engineGone(err)
			return nil, true, unavailable(call, "%s, which runs %q here, cannot be reached; `kith status` says more",
				e.Name(), call.Model).Because(err)
		}
		code := codeOf(err)
		if code == fault.EngineError {
			d.engineFailed(e, call.Model, err)
		}
		return nil, code == fault.ModelNotFound, err
	}
	d.engineRefused(e, call.Model, resp.StatusCode)
	if resp.StatusCode == http.StatusOK {
		held := engine.Held(resp)
		resp.Body = &responseBody{ReadCloser: resp.Body, onClose: release, onError: func(err error) error {
			if ctx.Err() == nil {
				d.engineFailed(e, call.Model, err)
			}
			return err
		}}
		return &gateway.Answer{Response: resp, Endpoint: endpoint, Held: held, Untranslated: native}, false, nil
	}
	defer resp.Body.Close()
	next, f := engineFault(call, e, resp)
	return nil, next, f
}

// engineFault returns the fault for an engine's response with a status other than 200.
// The code is that of gateway.EngineFault. The text is for the engine's owner, who may
// see which engine it is and what it reported.
func engineFault(call *gateway.Call, e *engine.Engine, resp *http.Response) (next bool, f *fault.Fault) {
	switch resp.StatusCode {
	case http.StatusNotFound:
		return true, fault.New(fault.ModelNotFound,
			"%s lists %q but has not loaded it; load it there, or list the models again", e.Name(), call.Model)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true, unavailable(call, "%s, which runs %q here, is busy; try again", e.Name(), call.Model)
	}
	answer, _ := io.ReadAll(resp.Body) // bounded by the engine package; an incomplete text is sufficient
	f = gateway.EngineFault(resp.StatusCode, answer)
	text := dialect.EngineText(answer)
	switch {
	case f.Code == fault.ContextLengthExceeded: // agents parse its message
		return false, f
	case text == "":
		return false, fault.New(f.Code, "%s answered with status %d", e.Name(), resp.StatusCode).WithParam(f.Param)
	default:
		return false, fault.New(f.Code, "%s answered with status %d: %s", e.Name(), resp.StatusCode,
			text).WithParam(f.Param)
	}
}

// unavailable returns the fault if a machine of the caller's own cannot serve the model
// now.
func unavailable(call *gateway.Call, format string, args ...any) *fault.Fault {
	if call.Endpoint.Family() == fleet.Chat {
		return fault.New(fault.CapacityFull, format, args...)
	}
	return fault.New(fault.CascadeExhausted, format, args...)
}

// whyNot returns the fault for a model that an engine run by kith has but cannot serve
// now. It returns nil if an engine can serve it or none has it (spec/api.md#starting).
func (d *Daemon) whyNot(call *gateway.Call) *fault.Fault {
	for _, e := range *d.offers.own.Load() {
		why := e.Problems()[call.Model]
		switch {
		case why == "":
			continue
		case e.IsStarting() && (call.Endpoint == fleet.Responses || call.Endpoint == fleet.Transcriptions):
			continue // these models never serve it
		case e.IsStarting():
			return unavailable(call, "%q is not served yet: %s; try again", call.Model, why)
		}
		return fault.New(fault.ModelNotFound, "this machine cannot serve %q now: %s", call.Model, why)
	}
	return nil
}

// noBackend returns the fault for a call that nothing here serves and that the hub does
// not accept.
func (d *Daemon) noBackend(call *gateway.Call) *fault.Fault {
	switch {
	case call.Endpoint == fleet.Transcriptions && !d.offers.hasSpeech():
		return fault.New(fault.InvalidRequest, "no speech model is available here; configure an audio engine, "+
			"or sign in with `kith login`").WithParam("model")
	case d.config.NoBackend && d.hubClient.Load() == nil && len(d.offers.forOwner()) == 0 &&
		len(*d.offers.own.Load()) == 0:
		return fault.New(fault.NoInferenceBackend, "no inference backend compiled in") // the contract's exact text
	case call.Endpoint == fleet.Responses:
		return fault.New(fault.ModelNotFound, "no configured upstream serves %q for %s; use /v1/chat/completions",
			call.Model, call.Endpoint.Path())
	}
	for _, e := range d.offers.forOwner() {
		for _, m := range e.Models() {
			if m.ID == call.Model && len(m.Endpoints) > 0 && m.Endpoints[0].Family() != call.Endpoint.Family() {
				return fleet.OtherCalls(m.ID, call.Endpoint.Family(), m.Endpoints[0])
			}
		}
	}
	return modelNotServed(call.Model)
}

// modelNotServed returns the fault for a model that nothing on this machine serves.
func modelNotServed(model fleet.ModelID) *fault.Fault {
	return fault.New(fault.ModelNotFound,
		"nothing on this machine serves %q; GET /v1/models lists what does, `kith login` reaches more", model)
}

// Models implements gateway.Backend. It returns the models that this daemon serves
// itself; the hub lists the models that the account can reach.
func (d *Daemon) Models(context.Context, fleet.Caller) ([]gateway.Model, error) {
	offers := d.offers.models(d.offers.forOwner())
	models := make([]gateway.Model, len(offers))
	for i, o := range offers {
		models[i] = gateway.Model{
			ID: fleet.ModelID(o.ID), ContextLength: o.ContextLength, Capabilities: o.Capabilities,
			Availability: gateway.Ready, Via: fleet.Own, Machines: 1, Created: d.started,
			Facts: o.ModelFacts,
		}
	}
	return models, nil
}
