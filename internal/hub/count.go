package hub

import (
	"context"
	"io"
	"math"
	"net/http"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// count is the number of tokens of the call's prompt, as a machine's tokenizer
// tells it; false: none does (decisions 5). Only machines are asked that the law
// would try the call on now, best first: what a caller may not use for a chat
// counts nothing for it. No slot is taken, nothing waited for, and no machine is
// asked twice.
func (h *Hub) count(ctx context.Context, call *gateway.Call) (tokens int64, told bool) {
	ask := askOf(call)
	for _, c := range h.route(&ask).Candidates {
		if tokens, told = h.countOn(ctx, call, c); told {
			call.Trace.Route = routeHeader(c)
			return tokens, true
		}
		if ctx.Err() != nil {
			break
		}
	}
	return 0, false
}

// countOn asks one machine. Daemons before version 5 of the tunnel do not have
// the route.
func (h *Hub) countOn(ctx context.Context, call *gateway.Call, c fleet.Candidate) (tokens int64, told bool) {
	endpoint, asked := call.RequestFor(c.Offer.Endpoints)
	line, _, ok := h.live.Line(c.Machine.ID)
	if !ok || endpoint != fleet.ChatCompletions || asked.Len() > tunnel.MaxTokenize {
		return 0, false
	}
	r := h.request(ctx, call, c, tunnel.PathTokenize)
	call.Attach(r, asked)
	response, err := line.RoundTrip(r)
	if err != nil {
		return 0, false
	}
	defer response.Body.Close()
	return counted(response)
}

// maxCount bounds a machine's answer to a count, in bytes.
const maxCount = 1 << 10

// counted reads a machine's answer to a count; false: it tells none that could be.
func counted(response *http.Response) (tokens int64, told bool) {
	var answer tunnel.Tokens
	if response.StatusCode != http.StatusOK || json.UnmarshalRead(io.LimitReader(response.Body, maxCount), &answer) != nil {
		return 0, false
	}
	return answer.Tokens, answer.Tokens > 0 && answer.Tokens <= math.MaxInt32
}
