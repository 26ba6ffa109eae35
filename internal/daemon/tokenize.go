package daemon

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

const (
	// countersAtOnce is how many prompts are counted at the same time for others,
	// and as many for the owner here: no slot of the engines is held for it, and
	// they run their calls meanwhile.
	countersAtOnce = 2
	// countLimit is how long an engine may count one.
	countLimit = 3 * time.Second
)

// counters are the places of those who count, as many as its room.
type counters chan struct{}

// enter takes a place, given back by leave; false: none is free.
func (c counters) enter() (leave func(), ok bool) {
	select {
	case c <- struct{}{}:
		return func() { <-c }, true
	default:
		return nil, false
	}
}

// serveTokenize counts the tokens of a chat call's body for the hub (decisions
// 8), for whom the machine would serve that call, and at once or not at all.
func (d *Daemon) serveTokenize(w http.ResponseWriter, r *http.Request, _ *bool) {
	leave, ok := d.routedCounts.enter()
	if !ok {
		turnAway(w, tunnel.RefusedBusy)
		return
	}
	defer leave()
	var e *engine.Engine
	able := func(model fleet.ModelID) bool {
		var refusal tunnel.Refusal
		e, _, refusal = d.engineFor(model, fleet.ChatCompletions, classOf(r) == fleet.Own.String(), time.Now())
		if refusal == "" && d.desk.owners() {
			refusal = tunnel.RefusedBusy
		}
		if refusal != "" {
			turnAway(w, refusal)
		}
		return refusal == ""
	}
	if named, ok := tunnel.CallModel(r.Header); ok && !able(fleet.ModelID(named)) {
		return // before any of the body is read
	}
	head, body, ok := d.readRequest(w, r, tunnel.MaxTokenize)
	if !ok {
		return
	}
	defer body.Close()
	if !able(head.Model) {
		return
	}
	text, err := body.Load()
	if err != nil { // no room for it
		turnAway(w, tunnel.RefusedBusy)
		return
	}
	_, caller, _ := strings.Cut(r.Header.Get(tunnel.HeaderCaller), " ")
	ctx, cancel := context.WithTimeout(r.Context(), countLimit)
	defer cancel()
	tokens, err := e.Count(ctx, engine.Request{Endpoint: fleet.ChatCompletions, Model: head.Model, Body: text, Caller: caller})
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.MarshalWrite(w, tunnel.Tokens{Tokens: tokens}) // the hub left: nobody to tell
	case errors.Is(err, engine.ErrNoTokenizer):
		w.WriteHeader(http.StatusNotImplemented)
	case errors.As(err, new(*fault.Fault)):
		tellHub(w, r, fault.Of(err))
	default: // it is not known what the engine lacks just now; calls will find out
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// count is gateway.Config's, of the local surface: an engine here counts, or an
// upstream that speaks the messages dialect.
func (d *Daemon) count(ctx context.Context, call *gateway.Call) (tokens int64, err error) {
	leave, ok := d.localCounts.enter()
	if !ok {
		return 0, nil
	}
	defer leave()
	request := engine.Request{Model: call.Model, Header: call.Header, Trusted: true}
	endpoint, body := call.Request()
	able := serving(d.board.own(), call.Model, endpoint)
	if len(able) == 0 {
		endpoint, body = fleet.Messages, call.Body
		able = serving(d.board.own(), call.Model, fleet.Messages)
	}
	switch {
	case len(able) > 0:
		request.Endpoint = endpoint
		if request.Body, err = body.Load(); err != nil {
			return 0, nil // an estimate will do
		}
		if tokens, err = able[0].Count(ctx, request); err != nil {
			return 0, nil // an estimate will do
		}
		return tokens, nil
	case d.up.Load() == nil: // where the hub may have it, a call finds out
		return 0, unserved(call.Model).WithParam("model")
	default:
		return 0, nil
	}
}
