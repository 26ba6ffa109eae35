package dialect

import (
	"bytes"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// maxTurn bounds a turn that is kept, in bytes; a longer one is not.
const maxTurn = 16 << 20

// Response is one answer of the responses dialect while it is made: its items, the
// object that tells them, and, streamed, the events that come to that object.
// Make it with ResponsesRequest.Answer, then feed it either a whole chat answer
// (Whole) or a chat stream (Events), and end it with Finish; or with Fail.
type Response struct {
	outbox
	request *ResponsesRequest
	own     string // what all its ids have in common
	model   fleet.ModelID
	created int64
	stores  bool
	echo    []byte // the members that never change, each behind its comma

	streamed   bool
	output     []byte // the items that are whole, between commas
	items      int    // how many those are
	size       int    // bytes of text so far
	item       openItem
	calls      callQueue
	logprobs   []byte // of what was not told yet, between commas
	likelihood int    // bytes of logprobs so far
	finish     []byte // the finish reason, quoted
	usage      Usage
	completed  time.Time
}

// Answer begins the answer to the request, made at that time. own is the part
// that its id and those of its items have in common; it has to be unguessable,
// since a turn is sealed under it. stores says that its turn will be kept if it
// can be.
func (q *ResponsesRequest) Answer(own string, created time.Time, stores bool) *Response {
	return &Response{
		request: q, own: own, model: q.Model, created: created.Unix(), stores: stores, echo: q.repeat(),
	}
}

// ID is the response's id.
func (r *Response) ID() string { return "resp_" + r.own }

// Events makes the events of the response out of a chat stream. The last of them
// is for Finish to write.
func (r *Response) Events() *Events {
	r.streamed = true
	return &Events{outbox: &r.outbox, writer: r}
}

// Whole takes a whole chat answer, checked as CheckUnary does; errors are
// *fault.Fault.
func (r *Response) Whole(answer []byte) (Usage, error) {
	chat, usage, err := readChatAnswer(answer)
	if err != nil {
		return Usage{}, err
	}
	choice := &chat.Choices[0]
	said := &choice.Message
	var p piece
	quoted := func(text *string) jsontext.Value {
		if text == nil || *text == "" {
			return nil
		}
		return appendString(nil, *text)
	}
	thought := said.thought()
	p.logprobs = choice.Logprobs
	p.thought, p.text, p.refusal, p.finish = quoted(&thought), quoted(said.Content), quoted(said.Refusal), quoted(choice.Finish)
	for i := range said.ToolCalls {
		call := &said.ToolCalls[i]
		p.calls = append(p.calls, callPiece{
			index: int64(i), id: quoted(&call.ID), name: quoted(&call.Function.Name), arguments: quoted(&call.Function.Arguments),
		})
	}
	if err := r.chunk(&p); err != nil {
		return Usage{}, err
	}
	return usage, r.end(usage)
}

// Turn is the turn as it is to be kept, completed at that time: the whole input,
// then the response. It is nil where there is nothing to keep.
func (r *Response) Turn(now time.Time) []byte {
	r.completed = now
	if !r.stores {
		return nil
	}
	turn := append(make([]byte, 0, len(r.request.body)+len(r.output)+len(r.echo)+1024), `{"input":[`...)
	turn = r.request.appendItems(turn, r.own)
	turn = append(turn, `],"response":`...)
	turn = append(r.appendObject(turn, nil), '}')
	if len(turn) > maxTurn {
		return nil
	}
	return turn
}

// Finish ends the answer; stored says whether the turn was kept. Streamed, it
// gives the last events, else the response object.
func (r *Response) Finish(now time.Time, stored bool) []byte {
	r.completed, r.stores = now, stored
	if !r.streamed {
		return r.appendObject(nil, nil)
	}
	r.compact()
	status := r.status()
	r.event("response." + status)
	r.raw(`,"response":`)
	r.out = r.appendObject(r.out, nil)
	r.raw("}\n\ndata: [DONE]\n\n")
	r.commit()
	return r.Next()
}

// Fail ends the answer in a failure, whose last events it gives: the error as
// both camps of clients read it, then the response that failed. id is the
// correlation id.
func (r *Response) Fail(f *fault.Fault, id string) []byte {
	r.streamed = true
	r.revert()
	r.compact()
	r.begin()
	r.event("error")
	r.out = appendMember(r.out, "code", string(f.Code))
	r.out = appendMember(r.out, "message", f.Message)
	r.out = appendMember(r.out, "param", f.Param)
	r.raw(`,"error":`)
	r.out = appendChatError(r.out, Responses, f, id, true)
	r.raw("}\n\n")
	r.event("response.failed")
	r.raw(`,"response":`)
	r.stores = false
	r.out = r.appendObject(r.out, f)
	r.raw("}\n\n")
	r.commit()
	return r.Next()
}

// status is how the answer ended, by the engine's finish reason.
func (r *Response) status() string {
	switch string(r.finish) {
	case `"length"`, `"content_filter"`:
		return "incomplete"
	}
	return "completed"
}

// appendObject appends the response object as it is now.
func (r *Response) appendObject(dst []byte, failed *fault.Fault) []byte {
	status := "in_progress"
	switch {
	case failed != nil:
		status = "failed"
	case !r.completed.IsZero():
		status = r.status()
	}
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, r.ID())
	dst = append(dst, `,"object":"response","created_at":`...)
	dst = strconv.AppendInt(dst, r.created, 10)
	dst = append(dst, `,"status":"`...)
	dst = append(dst, status...)
	dst = append(dst, `","completed_at":`...)
	if status == "completed" {
		dst = strconv.AppendInt(dst, r.completed.Unix(), 10)
	} else {
		dst = append(dst, `null`...)
	}
	dst = append(dst, `,"error":`...)
	if failed != nil {
		dst = append(dst, `{"code":`...)
		dst = appendString(dst, string(failed.Code))
		dst = append(appendMember(dst, "message", failed.Message), '}')
	} else {
		dst = append(dst, `null`...)
	}
	dst = append(dst, `,"incomplete_details":`...)
	switch {
	case status != "incomplete":
		dst = append(dst, `null`...)
	case string(r.finish) == `"length"`:
		dst = append(dst, `{"reason":"max_output_tokens"}`...)
	default:
		dst = append(dst, `{"reason":"content_filter"}`...)
	}
	dst = appendMember(dst, "model", string(r.model))
	dst = append(dst, `,"output":[`...)
	dst = append(dst, r.output...)
	dst = append(dst, `],"usage":`...)
	if status == "completed" || status == "incomplete" {
		dst = appendResponseUsage(dst, r.usage)
	} else {
		dst = append(dst, `null`...)
	}
	dst = append(dst, `,"store":`...)
	dst = strconv.AppendBool(dst, r.stores)
	dst = append(dst, r.echo...)
	return append(dst, '}')
}

// appendResponseUsage appends a usage object.
func appendResponseUsage(dst []byte, u Usage) []byte {
	number := func(name string, n int64) {
		dst = append(dst, name...)
		dst = strconv.AppendInt(dst, n, 10)
	}
	number(`{"input_tokens":`, u.In)
	number(`,"input_tokens_details":{"cached_tokens":`, u.Cached)
	number(`},"output_tokens":`, u.Out)
	number(`,"output_tokens_details":{"reasoning_tokens":`, u.Thought)
	number(`},"total_tokens":`, u.In+u.Out)
	return append(dst, '}')
}

// repeat is the members of the response object that repeat the request or never
// change, each behind a comma; every one of them is there, as Open Responses wants
// it.
func (q *ResponsesRequest) repeat() []byte {
	e := &q.echo
	c := chatBody{}
	set := func(name string, value jsontext.Value, none string) { c.put(`,"`+name+`":`, or(value, none), ``) }
	set("instructions", e.instructions, "null")
	if c.raw(`,"previous_response_id":`); q.previous != "" {
		c.dst = appendString(c.dst, q.previous)
	} else {
		c.raw(`null`)
	}
	set("max_output_tokens", e.maxOutput, "null")
	set("max_tool_calls", e.maxToolCalls, "null")
	set("temperature", e.temperature, "1")
	set("top_p", e.topP, "1")
	set("presence_penalty", e.presence, "0")
	set("frequency_penalty", e.frequency, "0")
	set("top_logprobs", e.topLogprobs, "0")
	set("parallel_tool_calls", e.parallel, "true")
	set("tool_choice", e.choice, `"auto"`)
	c.raw(`,"tools":[`)
	tools := q.known
	if tools == nil {
		tools = q.tools
	}
	for i := range tools {
		t := &tools[i]
		c.comma()
		if t.custom {
			description := t.description
			if t.described != nil {
				description = t.described
			}
			c.put(`{"type":"custom","name":`, or(t.own, string(t.name)), ``)
			c.put(`,"description":`, or(description, "null"), ``)
			c.put(`,"format":`, or(t.format, `{"type":"text"}`), `}`)
			continue
		}
		c.put(`{"type":"function","name":`, or(t.own, string(t.name)), ``)
		c.put(`,"description":`, or(t.description, "null"), ``)
		c.put(`,"parameters":`, or(t.schema, "null"), ``)
		c.put(`,"strict":`, or(t.strict, "null"), `}`)
	}
	c.raw(`],"text":{"format":`)
	c.put(``, or(e.format, `{"type":"text"}`), ``)
	switch string(e.verbosity) {
	case `"low"`, `"medium"`, `"high"`:
		c.put(`,"verbosity":`, e.verbosity, ``)
	}
	c.put(`},"reasoning":{"effort":`, or(e.effort, "null"), ``)
	c.put(`,"summary":`, or(e.summary, "null"), `}`)
	set("truncation", e.truncation, `"disabled"`)
	set("metadata", e.metadata, `{}`)
	set("user", e.user, "null")
	set("safety_identifier", e.safety, "null")
	set("prompt_cache_key", e.cacheKey, "null")
	c.raw(`,"service_tier":"default","background":false`)
	if bytes.ContainsAny(c.dst, "\r\n") { // the caller's own; they would break an event
		c.dst[0] = '{'
		object := jsontext.Value(append(c.dst, '}'))
		_ = object.Compact() // it was read before
		c.dst = object[:len(object)-1]
		c.dst[0] = ','
	}
	return c.dst
}
