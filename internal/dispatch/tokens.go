package dispatch

import (
	"context"
	"encoding/json/v2"
	"io"
	"math"
	"net/http"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// Count returns the number of tokens of the call's prompt, counted by the tokenizer of a
// machine; 0 if none counted it. A model that no machine serves is refused as in Do.
// Count reserves no slot and does not wait (spec/api.md#count-tokens). It tries the
// candidates of the call, best first, but no machine that is reached through a group,
// because a count does not justify sending the prompt to a machine of any member. ctx
// limits the time of all attempts together. Counts are not recorded.
func (d *Dispatcher) Count(ctx context.Context, call *gateway.Call) (tokens int64, err error) {
	query := queryOf(call)
	decision := d.route(&query)
	if f := decision.Fault; f != nil && f.Code == fault.ModelNotFound {
		return 0, f
	}
	if query.Reach == fleet.Everything {
		query.Reach = fleet.OwnAndShared
		decision = d.route(&query)
	}
	for _, c := range decision.Candidates {
		if tokens = d.countOn(ctx, call, c); tokens > 0 || ctx.Err() != nil {
			break
		}
	}
	return tokens, nil
}

// countOn counts the tokens on one machine.
func (d *Dispatcher) countOn(ctx context.Context, call *gateway.Call, c fleet.Candidate) (tokens int64) {
	endpoint, content := call.Request()
	line, ok := d.line(call, c, "")
	if !ok || endpoint != fleet.ChatCompletions || content.Len() > tunnel.MaxTokenize {
		return 0
	}
	request, body := d.request(ctx, call, c, tunnel.PathTokenize)
	response, err := line.RoundTrip(request)
	trace := &call.Trace
	prompt := err == nil && response.StatusCode == http.StatusOK
	if !prompt {
		prompt = body.stop()
	}
	trace.Tries = append(trace.Tries, gateway.Attempt{Machine: c.Machine, Class: c.Class, Prompt: prompt})
	trace.Route = routeHeader(trace.Tries)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return readCount(response)
}

// maxCount is the maximum size of a machine's answer to a count, in bytes.
const maxCount = 1 << 10

// readCount parses a machine's answer to a count. It returns 0 if the answer is invalid.
func readCount(response *http.Response) (tokens int64) {
	var answer tunnel.Tokens
	if response.StatusCode != http.StatusOK || json.UnmarshalRead(io.LimitReader(response.Body, maxCount), &answer) != nil ||
		answer.Tokens < 0 || answer.Tokens > math.MaxInt32 {
		return 0
	}
	return answer.Tokens
}
