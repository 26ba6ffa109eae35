package daemon

import (
	"context"
	"encoding/json/v2"
	"errors"
	"net/http"
	"time"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

const (
	// maxCounts is how many prompts are counted concurrently for the hub, and the same
	// number for the owner. Counting uses no slot of an engine.
	maxCounts = 2
	// countTimeout bounds the counting of one prompt.
	countTimeout = 3 * time.Second
)

// serveTokenize counts the tokens of a chat call's body for the hub, if the machine would
// serve the call. It does not wait.
func (d *Daemon) serveTokenize(w http.ResponseWriter, r *http.Request, _ *bool) {
	if !d.hubCounts.TryAcquire(1) {
		refuseCall(w, tunnel.RefusedBusy)
		return
	}
	defer d.hubCounts.Release(1)
	model := fleet.ModelID(tunnel.CallModel(r.Header))
	e, _, refusal := d.engineFor(model, fleet.ChatCompletions, fromOwner(r), time.Now())
	if refusal == "" && d.admission.ownerOnly() {
		refusal = tunnel.RefusedBusy
	}
	if refusal != "" {
		refuseCall(w, refusal) // before the body is read
		return
	}
	head, text, release, ok := d.readRequest(w, r, tunnel.MaxTokenize)
	defer release()
	switch {
	case !ok:
		return
	case head.Model != model:
		writeFault(w, errOtherModel, correlation(r))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), countTimeout)
	defer cancel()
	tokens, err := e.Count(ctx,
		engine.Request{Endpoint: fleet.ChatCompletions, Model: head.Model, Body: text, Caller: d.cacheOf(r)})
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.MarshalWrite(w, tunnel.Tokens{Tokens: tokens}) // the only possible error is a closed connection
	case errors.Is(err, engine.ErrNoTokenizer):
		w.WriteHeader(http.StatusNotImplemented)
	case errors.As(err, new(*fault.Fault)):
		writeFault(w, fault.Of(err), correlation(r))
	default: // a call to the engine will show whether something is missing
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// count implements gateway.Config.Count for the local surface. An engine here counts, or
// an upstream with the messages dialect, or otherwise the hub.
func (d *Daemon) count(ctx context.Context, call *gateway.Call) (tokens int64, err error) {
	if !d.localCounts.TryAcquire(1) {
		return 0, nil
	}
	defer d.localCounts.Release(1)
	endpoint, body := call.Request()
	candidates := serving(d.offers.forOwner(), call.Model, endpoint)
	if len(candidates) == 0 {
		endpoint, body = fleet.Messages, call.Body
		candidates = serving(d.offers.forOwner(), call.Model, fleet.Messages)
	}
	if len(candidates) == 0 && len(serving(d.offers.forOwner(), call.Model, fleet.ChatCompletions)) > 0 {
		return 0, nil // no engine here can count this form of prompt: the caller estimates
	}
	if len(candidates) == 0 {
		hub := d.hubClient.Load()
		switch {
		case hub != nil && d.policy.Load().sealed.IsOn():
			return 0, nil // the count would carry the prompt in clear: the caller estimates
		case hub != nil:
			return hub.count(ctx, call)
		}
		return 0, modelNotServed(call.Model)
	}
	text, err := body.Load()
	if err == nil {
		tokens, err = candidates[0].Count(ctx,
			engine.Request{Endpoint: endpoint, Model: call.Model, Body: text, Header: call.Header, Trusted: true})
	}
	if err != nil {
		return 0, nil // the caller estimates
	}
	return tokens, nil
}
