package hub

import (
	"context"
	"io"
	"math"
	"net/http"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// count is the number of tokens of the call's prompt by the tokenizer of a machine;
// 0: none counted it. A model that nothing serves is refused as in a call
// (decisions 5). Of the machines that a call would be tried on now it asks, best
// first, only the caller's own and those shared with the caller: a count is worth
// no prompt to a machine that any member may bring into a group. No slot is taken,
// nothing waited for, and no machine is asked twice.
func (h *Hub) count(ctx context.Context, call *gateway.Call) (tokens int64, err error) {
	ask := askOf(call)
	decision := h.route(&ask)
	if f := decision.Fault; f != nil && f.Code == fault.ModelNotFound {
		return 0, f
	}
	if ask.Narrow == fleet.Everything {
		ask.Narrow = fleet.OwnAndShared
		decision = h.route(&ask)
	}
	for _, c := range decision.Candidates {
		if tokens = h.countOn(ctx, call, c); tokens > 0 || ctx.Err() != nil {
			break
		}
	}
	return tokens, nil
}

// countOn asks one machine. Daemons before version 5 of the tunnel do not have
// the route.
func (h *Hub) countOn(ctx context.Context, call *gateway.Call, c fleet.Candidate) (tokens int64) {
	endpoint, asked := call.Request()
	line, _, ok := h.live.Line(c.Machine.ID)
	if !ok || endpoint != fleet.ChatCompletions || asked.Len() > tunnel.MaxTokenize {
		return 0
	}
	request, sent := h.request(ctx, call, c, tunnel.PathTokenize)
	response, err := line.RoundTrip(request)
	trace := &call.Trace
	trace.Tries = append(trace.Tries, gateway.Attempt{Machine: c.Machine, Class: c.Class, Prompt: err == nil && response.StatusCode == http.StatusOK || sent.seal()})
	trace.Route = routeOf(trace.Tries)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return counted(response)
}

// maxCount bounds a machine's answer to a count, in bytes.
const maxCount = 1 << 10

// counted reads a machine's answer to a count; 0: it has none that could be.
func counted(response *http.Response) (tokens int64) {
	var answer tunnel.Tokens
	if response.StatusCode != http.StatusOK || json.UnmarshalRead(io.LimitReader(response.Body, maxCount), &answer) != nil ||
		answer.Tokens < 0 || answer.Tokens > math.MaxInt32 {
		return 0
	}
	return answer.Tokens
}
