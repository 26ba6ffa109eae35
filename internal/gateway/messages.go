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
	return fault.New(fault.InvalidRequest,
		"send the header anthropic-version with a date, as in 2023-06-01").WithParam("anthropic-version")
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
func (r *request) translate(body []byte) (dialect.Head, []byte, error) {
	head, chat, err := dialect.MessagesToChat(body)
	if err == nil && int64(len(chat)) > r.tuning.Body+translationRoom {
		err = tooLargeForMachines()
	}
	return head, chat, err
}

func tooLargeForMachines() error {
	return fault.New(fault.RequestTooLarge, "the body is too large for the machines behind this service: send less")
}

// countLimit is the time limit of a token count.
const countLimit = 3 * time.Second

// countRate limits how often a key's token counts may be sent to machines. An agent
// counts all its tools at once, but rarely. Counts are not subtracted from a share's
// daily calls, so nothing else limits this work. Above the rate, counts are estimates.
var countRate = Rate{PerSecond: 1, Burst: 60}

// countTokens serves POST /v1/messages/count_tokens. It answers with the count of a
// tokenizer, or with an estimate that is marked as one (spec/api.md#count-tokens).
func (r *request) countTokens() error {
	call := r.newCall(fleet.Messages)
	call.Header = ownHeaders(r.Header)
	defer call.close()
	var count dialect.Count
	var err error
	if call.Body, err = r.readBody(); err != nil {
		return err
	}
	err = call.Body.View(r.Context(), func(body []byte) (err error) {
		count, err = dialect.CountMessages(body)
		return err
	})
	if err != nil {
		return r.faultOf(r.Context(), err)
	}
	if count.Chat != nil {
		if call.chat, err = r.keep(count.Chat); err != nil {
			return err
		}
		count.Chat = nil
	}
	call.Model = count.Model
	tokens, err := r.tokenize(call)
	if err != nil {
		return err
	}
	if tokens == 0 {
		tokens = count.Estimate
		r.reply.Header()["X-Kith-Estimate"] = []string{"true"}
	}
	return r.writeJSON(struct {
		InputTokens int64 `json:"input_tokens"`
	}{tokens})
}

// tokenize returns the number of tokens of the call's prompt, 0 if no tokenizer counted
// them. The call is routed but not served: it does not wait and is not recorded.
func (r *request) tokenize(call *Call) (tokens int64, err error) {
	if !call.Model.Valid() { // no machine can offer it
		return 0, impossibleModel()
	}
	if r.edge.cfg.Count == nil {
		return 0, nil
	}
	if r.edge.surface == hosted && r.edge.counts.take(bucketOf(r.caller), r.arrived) != nil {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), countLimit)
	defer cancel()
	tokens, err = r.edge.cfg.Count(ctx, call)
	if f := fault.Of(err); f != nil && r.edge.surface == hosted {
		err = r.edge.Miss(r.caller, call.Model, f)
	}
	r.reply.setRoute(call)
	return tokens, err
}
