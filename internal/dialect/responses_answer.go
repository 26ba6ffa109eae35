package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"io"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// maxTurn is the largest turn that is stored, in bytes.
const maxTurn = 16 << 20

// Response builds one answer of the responses dialect: its items and, if streamed, their
// events. Create it with ResponsesRequest.Answer, pass it a unary chat answer (Unary) or
// a chat stream (Events), and end it with Finish or Fail.
type Response struct {
	outbox
	request *ResponsesRequest
	idBase  string // the part that all its ids share
	model   fleet.ModelID
	created int64
	stores  bool
	echo    echo

	streamed     bool
	output       []outputItem // the complete items
	size         int          // bytes of text so far
	item         openItem
	call         int64  // the index of the open tool call
	logprobs     []byte // for the next text, separated by commas
	logprobBytes int    // bytes of logprobs so far
	finish       []byte // the finish reason, quoted
	usage        Usage
	completed    time.Time
}

// Answer starts the answer to the request. idBase is the part that the ids of the
// response and of its items share. It must be unguessable, since the turn is encrypted
// with it. stores is whether the turn will be stored if possible.
func (q *ResponsesRequest) Answer(idBase string, created time.Time, stores bool) *Response {
	return &Response{
		request: q, idBase: idBase, model: q.Model, created: created.Unix(), stores: stores, echo: q.repeated(),
	}
}

// ID returns the response's id.
func (r *Response) ID() string { return "resp_" + r.idBase }

// Events returns a translator from a chat stream to the events of the response. Finish
// writes the last event.
func (r *Response) Events() *Events {
	r.streamed = true
	return &Events{outbox: &r.outbox, writer: r}
}

// Unary reads a unary chat answer and checks it as CheckUnary does. Errors are
// *fault.Fault.
func (r *Response) Unary(answer io.Reader) (Usage, error) {
	said, usage, err := readChatAnswer(answer)
	if err != nil {
		return Usage{}, err
	}
	if err := r.chunk(said); err != nil {
		return Usage{}, err
	}
	return usage, r.end(usage)
}

// Turn returns the turn to store, completed at now: the complete input, then the
// response. It returns nil if there is nothing to store.
func (r *Response) Turn(now time.Time) []byte {
	r.completed = now
	if !r.stores {
		return nil
	}
	var turn bytes.Buffer
	turn.Grow(len(r.request.body) + r.size + 4096)
	_ = json.MarshalWrite(&turn, struct { // writes to a Buffer cannot fail, and the values were read before
		Input    []jsontext.Value `json:"input"`
		Response *responseObject  `json:"response"`
	}{r.request.stored(r.idBase), r.object(nil)}, encoding)
	if turn.Len() > maxTurn {
		return nil
	}
	return turn.Bytes()
}

// Finish ends the answer; stored reports whether the turn was stored. It returns the last
// events of a stream, or else the response object.
func (r *Response) Finish(now time.Time, stored bool) []byte {
	r.completed, r.stores = now, stored
	if !r.streamed {
		return encode(r.object(nil))
	}
	r.compact()
	r.send(responseEvent{Type: "response." + r.status(), Response: r.object(nil)})
	r.raw("data: [DONE]\n\n")
	r.commit()
	return r.Next()
}

// Fail ends the answer with a failure and returns its last events: the error in the forms
// that both kinds of clients read, then the failed response. id is the correlation id.
func (r *Response) Fail(f *fault.Fault, id string) []byte {
	r.streamed, r.stores = true, false
	r.revert()
	r.compact()
	r.begin()
	r.responseError(f, id)
	r.send(responseEvent{Type: "response.failed", Response: r.object(f)})
	r.commit()
	return r.Next()
}

// responseError writes the error event of the responses dialect in the forms that both
// kinds of clients read.
func (o *outbox) responseError(f *fault.Fault, id string) {
	o.event("error", struct {
		Type    string     `json:"type"`
		Number  int        `json:"sequence_number"`
		Code    fault.Code `json:"code"`
		Message string     `json:"message"`
		Param   string     `json:"param"`
		Error   chatError  `json:"error"`
	}{"error", o.sequence, f.Code, f.Message, f.Param, newChatError(Responses, f, id, true)})
	o.sequence++
}

// status returns how the answer ended, from the engine's finish reason.
func (r *Response) status() string {
	switch string(r.finish) {
	case `"length"`, `"content_filter"`:
		return "incomplete"
	}
	return "completed"
}

// responseObject is an answer of the responses dialect. It has every member, as Open
// Responses requires.
type responseObject struct {
	ID          string         `json:"id"`
	Object      string         `json:"object"`
	CreatedAt   int64          `json:"created_at"`
	Status      string         `json:"status"`
	CompletedAt *int64         `json:"completed_at"`
	Error       *responseError `json:"error"`
	Incomplete  *incomplete    `json:"incomplete_details"`
	Model       fleet.ModelID  `json:"model"`
	Output      []outputItem   `json:"output"`
	Usage       *responseUsage `json:"usage"`
	Store       bool           `json:"store"`
	echo
}

type responseError struct {
	Code    fault.Code `json:"code"`
	Message string     `json:"message"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type responseUsage struct {
	In        int64 `json:"input_tokens"`
	InDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Out        int64 `json:"output_tokens"`
	OutDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int64 `json:"total_tokens"`
}

func (r *Response) object(failed *fault.Fault) *responseObject {
	o := &responseObject{
		ID: r.ID(), Object: "response", CreatedAt: r.created, Status: "in_progress", Model: r.model,
		Output: r.output, Store: r.stores, echo: r.echo,
	}
	switch {
	case failed != nil:
		o.Status, o.Error = "failed", &responseError{failed.Code, failed.Message}
		return o
	case r.completed.IsZero():
		return o
	}
	o.Usage = &responseUsage{In: r.usage.In, Out: r.usage.Out, Total: r.usage.In + r.usage.Out}
	o.Usage.InDetails.Cached, o.Usage.OutDetails.Reasoning = r.usage.Cached, r.usage.Reasoning
	switch o.Status = r.status(); {
	case o.Status == "completed":
		o.CompletedAt = new(r.completed.Unix())
	case string(r.finish) == `"length"`:
		o.Incomplete = &incomplete{"max_output_tokens"}
	default:
		o.Incomplete = &incomplete{"content_filter"}
	}
	return o
}

// repeated returns the members of the request that the response object repeats, with
// defaults for missing ones.
func (q *ResponsesRequest) repeated() echo {
	e := q.echo
	for _, member := range [...]struct {
		value    *jsontext.Value
		standard string
	}{
		{&e.Temperature, "1"}, {&e.TopP, "1"}, {&e.Presence, "0"}, {&e.Frequency, "0"}, {&e.TopLogprobs, "0"},
		{&e.Parallel, "true"}, {&e.ToolChoice, `"auto"`}, {&e.Text.Format, `{"type":"text"}`},
		{&e.Truncation, `"disabled"`}, {&e.Metadata, `{}`},
	} {
		*member.value = or(*member.value, member.standard)
	}
	switch string(e.Text.Verbosity) {
	case `"low"`, `"medium"`, `"high"`:
	default:
		e.Text.Verbosity = nil
	}
	tools := q.known
	if tools == nil {
		tools = q.tools
	}
	e.Tools = make([]responseTool, len(tools))
	for i := range tools {
		t := &tools[i]
		e.Tools[i] = responseTool{Type: "function", Name: or(t.callerName, string(t.name)), Description: t.description}
		if t.custom {
			e.Tools[i].Type, e.Tools[i].Format = "custom", or(t.format, `{"type":"text"}`)
			if t.callerDescription != nil {
				e.Tools[i].Description = t.callerDescription
			}
		} else {
			e.Tools[i].Parameters, e.Tools[i].Strict = or(t.schema, "null"), or(t.strict, "null")
		}
	}
	e.ServiceTier = "default"
	return e
}
