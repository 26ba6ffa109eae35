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

	streamed  bool
	output    []byte // the items that are whole, between commas
	items     int    // how many those are
	size      int    // bytes of text so far
	item      openItem
	finish    []byte // the finish reason, quoted
	usage     Usage
	completed time.Time
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
	r.out = appendOptional(r.out, "param", f.Param)
	r.raw(`,"error":`)
	r.out = appendChatError(r.out, f, id, true)
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
	if string(e.truncation) != `"auto"` { // nothing is ever cut here, but who asks is told what was asked
		e.truncation = nil
	}
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

// itemState is the item that is open.
type openItem struct {
	kind    itemKind // vendorItem: none is
	id      []byte   // quoted
	head    []byte   // a call's call_id, name and namespace, behind a comma each
	parts   []byte   // the parts that are whole, between commas
	number  int      // of the open part
	refusal bool     // the open part is one
	open    bool     // a part is open
	text    []byte   // of the open part, or a call's arguments: the inside of a string
	call    openCall
}

// maxAnswerText bounds the text of an answer, which is told four times at its
// end, in bytes as JSON writes it.
const maxAnswerText = 4 << 20

// grow takes text to the open part.
func (r *Response) grow(value jsontext.Value) error {
	if r.size += len(value); r.size > maxAnswerText {
		return nonsense("an answer of more than 4 MiB of text")
	}
	r.item.text = append(r.item.text, value[1:len(value)-1]...)
	return nil
}

// chunk satisfies eventWriter.
func (r *Response) chunk(p *piece) error {
	r.begin()
	if p.thought != nil {
		if err := r.say(reasoningItem, false, "response.reasoning_summary_text.delta", p.thought); err != nil {
			return err
		}
	}
	if p.text != nil {
		if err := r.say(messageItem, false, "response.output_text.delta", p.text); err != nil {
			return err
		}
	}
	if p.refusal != nil {
		if err := r.say(messageItem, true, "response.refusal.delta", p.refusal); err != nil {
			return err
		}
	}
	for i := range p.calls {
		if err := r.toolCall(&p.calls[i]); err != nil {
			return err
		}
	}
	if p.finish != nil {
		r.finish = append(r.finish[:0], p.finish...)
	}
	return nil
}

// end satisfies eventWriter. What the last event tells is not all known yet: it
// is Finish's.
func (r *Response) end(u Usage) error {
	r.begin()
	r.usage = u
	status := r.status()
	if r.items == 0 && r.item.kind == vendorItem && status == "completed" { // clients want an item
		r.open(messageItem, nil)
		r.openPart(false)
	}
	r.close(status)
	return nil
}

// begin writes the first events, once.
func (r *Response) begin() {
	if r.sequence > 0 || !r.streamed {
		return
	}
	for _, name := range [...]string{"response.created", "response.in_progress"} {
		r.event(name)
		r.raw(`,"response":`)
		r.out = r.appendObject(r.out, nil)
		r.raw("}\n\n")
	}
}

// event begins an event, up to the first member after its number.
func (r *Response) event(name string) {
	r.raw("event: ")
	r.raw(name)
	r.raw("\ndata: {\"type\":\"")
	r.raw(name)
	r.raw(`","sequence_number":`)
	r.out = strconv.AppendInt(r.out, int64(r.sequence), 10)
	r.sequence++
}

// place begins an event about the open item.
func (r *Response) place(name string) {
	r.event(name)
	r.raw(`,"item_id":`)
	r.out = append(r.out, r.item.id...)
	r.raw(`,"output_index":`)
	r.out = strconv.AppendInt(r.out, int64(r.items), 10)
}

// spot begins an event about the open part.
func (r *Response) spot(name string) {
	r.place(name)
	if r.item.kind == reasoningItem {
		r.raw(`,"summary_index":`)
	} else {
		r.raw(`,"content_index":`)
	}
	r.out = strconv.AppendInt(r.out, int64(r.item.number), 10)
}

// whole writes an event about the open item that tells it.
func (r *Response) whole(name, status string) {
	r.event(name)
	r.raw(`,"output_index":`)
	r.out = strconv.AppendInt(r.out, int64(r.items), 10)
	r.raw(`,"item":`)
	r.out = r.item.appendTo(r.out, status)
	r.raw("}\n\n")
}

// appendTo appends the item as it is now.
func (o *openItem) appendTo(dst []byte, status string) []byte {
	dst = append(dst, `{"id":`...)
	dst = append(dst, o.id...)
	switch o.kind {
	case reasoningItem:
		dst = append(dst, `,"type":"reasoning"`...)
	case callItem:
		dst = append(dst, `,"type":"function_call"`...)
	default:
		dst = append(dst, `,"type":"message","role":"assistant"`...)
	}
	dst = appendMember(dst, "status", status)
	switch o.kind {
	case reasoningItem:
		dst = append(append(dst, `,"summary":[`...), o.parts...)
		return append(dst, `]}`...)
	case callItem:
		dst = append(dst, o.head...)
		dst = append(append(dst, `,"arguments":"`...), o.text...)
		return append(dst, `"}`...)
	default:
		dst = append(append(dst, `,"content":[`...), o.parts...)
		return append(dst, `]}`...)
	}
}

// appendPart appends the open part as it is now.
func (o *openItem) appendPart(dst []byte) []byte {
	switch {
	case o.kind == reasoningItem:
		dst = append(append(dst, `{"type":"summary_text","text":"`...), o.text...)
		return append(dst, `"}`...)
	case o.refusal:
		dst = append(append(dst, `{"type":"refusal","refusal":"`...), o.text...)
		return append(dst, `"}`...)
	default:
		dst = append(append(dst, `{"type":"output_text","text":"`...), o.text...)
		return append(dst, `","annotations":[],"logprobs":[]}`...)
	}
}

// say adds text to a part of that kind, which it opens unless it is open.
func (r *Response) say(kind itemKind, refusal bool, event string, text jsontext.Value) error {
	o := &r.item
	if o.kind != kind {
		r.close("completed")
		r.open(kind, nil)
	}
	if !o.open || o.refusal != refusal {
		r.closePart()
		r.openPart(refusal)
	}
	r.spot(event)
	r.raw(`,"delta":`)
	r.out = append(r.out, text...)
	if kind == messageItem && !refusal {
		r.raw(`,"logprobs":[]`)
	}
	r.raw("}\n\n")
	return r.grow(text)
}

// open opens an item of that kind.
func (r *Response) open(kind itemKind, head []byte) {
	o := &r.item
	o.kind, o.number, o.open, o.refusal = kind, 0, false, false
	o.parts, o.text = o.parts[:0], o.text[:0]
	o.head = append(o.head[:0], head...)
	o.id = append(o.id[:0], '"')
	o.id = append(o.id, itemPrefixes[kind]...)
	o.id = append(o.id, r.own...)
	o.id = append(o.id, '_')
	o.id = append(strconv.AppendInt(o.id, int64(r.items), 10), '"')
	r.whole("response.output_item.added", "in_progress")
}

// openPart opens a part of the open item.
func (r *Response) openPart(refusal bool) {
	o := &r.item
	o.open, o.refusal, o.text = true, refusal, o.text[:0]
	r.aboutPart("added")
}

// aboutPart writes that the open part was added, or is done.
func (r *Response) aboutPart(what string) {
	if r.item.kind == reasoningItem {
		r.spot("response.reasoning_summary_part." + what)
	} else {
		r.spot("response.content_part." + what)
	}
	r.raw(`,"part":`)
	r.out = r.item.appendPart(r.out)
	r.raw("}\n\n")
}

// closePart ends the part that is open, if one is.
func (r *Response) closePart() {
	o := &r.item
	if !o.open {
		return
	}
	switch {
	case o.kind == reasoningItem:
		r.spot("response.reasoning_summary_text.done")
		r.tell(`,"text":"`, `"}`)
	case o.refusal:
		r.spot("response.refusal.done")
		r.tell(`,"refusal":"`, `"}`)
	default:
		r.spot("response.output_text.done")
		r.tell(`,"text":"`, `","logprobs":[]}`)
	}
	r.aboutPart("done")
	if len(o.parts) > 0 {
		o.parts = append(o.parts, ',')
	}
	o.parts = o.appendPart(o.parts)
	o.number++
	o.open = false
}

// tell ends an event with the text of the open part.
func (r *Response) tell(before, after string) {
	r.raw(before)
	r.out = append(r.out, r.item.text...)
	r.raw(after)
	r.raw("\n\n")
}

// close ends the item that is open, if one is.
func (r *Response) close(status string) {
	o := &r.item
	if o.kind == vendorItem {
		return
	}
	r.closePart()
	if o.kind == callItem {
		r.place("response.function_call_arguments.done")
		r.tell(`,"arguments":"`, `"}`)
	}
	r.whole("response.output_item.done", status)
	if r.items > 0 {
		r.output = append(r.output, ',')
	}
	r.output = o.appendTo(r.output, status)
	r.items++
	o.kind = vendorItem
	if !r.streamed { // nobody reads events
		r.out = r.out[:0]
	}
}

// toolCall takes a part of a tool call. A name begins a call, unless it is the
// name of the call that is open; parts of a call that is over have no place in
// this dialect.
func (r *Response) toolCall(c *callPiece) error {
	o := &r.item
	if open := o.kind == callItem && o.call.continues(c); !open {
		if c.name == nil {
			return nonsense("parts of tool calls out of order")
		}
		name, space, ok := r.request.called(c.name)
		if !ok {
			return nonsense("a call of a tool that the request does not allow")
		}
		r.close("completed")
		head := chatBody{}
		head.raw(`,"call_id":`)
		head.dst = appendCallID(head.dst, c.id, "call_"+r.own, r.items)
		head.member(`,"name":`, name)
		head.member(`,"namespace":`, space)
		r.open(callItem, head.dst)
		o.call.begin(c)
	}
	if c.arguments == nil {
		return nil
	}
	r.place("response.function_call_arguments.delta")
	r.raw(`,"delta":`)
	r.out = append(r.out, c.arguments...)
	r.raw("}\n\n")
	return r.grow(c.arguments)
}

// called is the tool that a machine calls so, as its caller knows it; ok is false
// where the caller allows no such call.
func (q *ResponsesRequest) called(name jsontext.Value) (own, space jsontext.Value, ok bool) {
	plain := unquote(name)
	own = name
	for i := range q.known {
		if t := &q.known[i]; bytes.Equal(unquote(t.name), plain) {
			own, space = t.own, t.space
			break
		}
	}
	return own, space, q.allows(unquote(own))
}
