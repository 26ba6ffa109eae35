package gateway

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// translationRoom is how much larger than the body limit a translation to chat may be.
// Machines accept at most the sum of both.
const translationRoom = 8 << 20

// checkVersion requires one version header of the messages dialect, with any date
// (spec/api.md#check-version).
func checkVersion(h http.Header) error {
	var values []string
	for _, line := range h[dialect.VersionHeader] {
		for value := range strings.SplitSeq(line, ",") {
			values = append(values, strings.TrimSpace(value))
		}
	}
	if values = slices.Compact(values); len(values) == 1 { // proxies repeat headers
		if _, err := time.Parse(time.DateOnly, values[0]); err == nil {
			return nil
		}
	}
	return fault.New(fault.InvalidRequest, "send the header anthropic-version with a date, as in 2023-06-01").WithParam("anthropic-version")
}

// ownHeaders returns the headers that are specific to the messages dialect.
func ownHeaders(h http.Header) http.Header {
	own := http.Header{}
	for _, name := range []string{dialect.VersionHeader, "Anthropic-Beta"} {
		if values := h[name]; values != nil {
			own[name] = values
		}
	}
	return own
}

// translate translates the body of a messages call to chat.
func (x *exchange) translate(body []byte) (dialect.Head, []byte, error) {
	head, chat, err := dialect.MessagesToChat(body)
	if err == nil && int64(len(chat)) > x.tuning.Body+translationRoom {
		err = tooLargeForMachines()
	}
	return head, chat, err
}

func tooLargeForMachines() error {
	return fault.New(fault.RequestTooLarge, "the body is too large for the machines behind this service: send less")
}

// messageID returns the id of the message that answers the call.
func (x *exchange) messageID() string { return "msg_" + strings.TrimPrefix(x.id, "req_") }

// countLimit is the time limit of a token count.
const countLimit = 3 * time.Second

// countRate limits how often a key's token counts may be sent to machines. An agent
// counts all its tools at once, but rarely. Counts are not subtracted from a share's
// daily calls, so nothing else limits this work. Above the rate, counts are estimates.
var countRate = Rate{PerSecond: 1, Burst: 60}

// countTokens serves POST /v1/messages/count_tokens. It answers with the count of a
// tokenizer, or with an estimate that is marked as one (spec/api.md#count-tokens).
func (x *exchange) countTokens() error {
	call := x.newCall(fleet.Messages)
	call.Header = ownHeaders(x.r.Header)
	defer call.close()
	var count dialect.Count
	var err error
	if call.Body, err = x.readBody(); err != nil {
		return err
	}
	err = call.Body.View(x.r.Context(), func(body []byte) (err error) {
		count, err = dialect.CountMessages(body)
		return err
	})
	if err != nil {
		return x.faultOf(x.r.Context(), err)
	}
	if count.Chat != nil {
		if call.chat, err = x.keep(count.Chat); err != nil {
			return err
		}
		count.Chat = nil
	}
	call.Model = count.Model
	tokens, err := x.tokenize(call)
	if err != nil {
		return err
	}
	if tokens == 0 {
		tokens = count.Estimate
		x.w.Header()["X-Kith-Estimate"] = []string{"true"}
	}
	return x.writeJSON(struct {
		InputTokens int64 `json:"input_tokens"`
	}{tokens})
}

// tokenize returns the number of tokens of the call's prompt, 0 if no tokenizer counted
// them. The call is routed but not served: it does not wait and is not recorded.
func (x *exchange) tokenize(call *Call) (tokens int64, err error) {
	if !call.Model.Valid() { // no machine can offer it
		return 0, impossibleModel()
	}
	if x.g.cfg.Count == nil {
		return 0, nil
	}
	if x.g.surface == hosted && x.g.counts.take(bucketOf(x.caller), x.arrived) != nil {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), countLimit)
	defer cancel()
	tokens, err = x.g.cfg.Count(ctx, call)
	if f := fault.Of(err); f != nil && x.g.surface == hosted {
		err = x.g.Miss(x.caller, call.Model, f)
	}
	setRoute(x.w.Header(), call)
	return tokens, err
}
