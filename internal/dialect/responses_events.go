package dialect

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// openItem is the item of a response that is open.
type openItem struct {
	kind    itemKind // vendorItem: none is
	id      []byte   // quoted
	head    []byte   // a call's call_id, name and namespace, behind a comma each
	parts   []byte   // the parts that are whole, between commas
	number  int      // of the open part
	refusal bool     // the open part is one
	open    bool     // a part is open
	text    []byte   // of the open part, or a call's arguments: the inside of a string
	// logprobs are the open part's, between commas.
	logprobs []byte
	call     openCall
	input    []byte // of a custom call that is over: the inside of a string
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
	r.likely(p)
	if p.speaks() {
		if err := r.calls.end(r.toolCall); err != nil {
			return err
		}
	}
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
		if err := r.calls.take(&p.calls[i], r.toolCall); err != nil {
			return err
		}
	}
	if p.finish != nil {
		r.finish = append(r.finish[:0], p.finish...)
	}
	return nil
}

// likely takes the logprobs of a chunk, if the caller wants them: they go with the
// text that comes with them, or, where a token is only a part of a letter, next.
// Those of thoughts and of tool calls have no place in this dialect.
func (r *Response) likely(p *piece) {
	if p.text == nil && (p.thought != nil || p.refusal != nil || len(p.calls) > 0) {
		r.logprobs = r.logprobs[:0]
		return
	}
	if p.logprobs != nil && r.request.logprobs && r.likelihood < maxLogprobs {
		before := len(r.logprobs)
		r.logprobs = appendLogprobs(r.logprobs, p.logprobs, r.request.alternatives, maxLogprobs-r.likelihood)
		r.likelihood += len(r.logprobs) - before
	}
}

// end satisfies eventWriter. What the last event tells is not all known yet: it
// is Finish's.
func (r *Response) end(u Usage) error {
	r.begin()
	if err := r.calls.end(r.toolCall); err != nil {
		return err
	}
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
	case customItem:
		dst = append(dst, `,"type":"custom_tool_call"`...)
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
	case customItem:
		dst = append(dst, o.head...)
		dst = append(append(dst, `,"input":"`...), o.input...)
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
		dst = append(append(dst, `","annotations":[],"logprobs":[`...), o.logprobs...)
		return append(dst, `]}`...)
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
		r.raw(`,"logprobs":[`)
		r.out = append(r.out, r.logprobs...)
		r.raw(`]`)
		if len(o.logprobs) > 0 && len(r.logprobs) > 0 {
			o.logprobs = append(o.logprobs, ',')
		}
		o.logprobs, r.logprobs = append(o.logprobs, r.logprobs...), r.logprobs[:0]
	}
	r.raw("}\n\n")
	return r.grow(text)
}

// open opens an item of that kind.
func (r *Response) open(kind itemKind, head []byte) {
	o := &r.item
	o.kind, o.number, o.open, o.refusal = kind, 0, false, false
	o.parts, o.text, o.input = o.parts[:0], o.text[:0], o.input[:0]
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
	o.open, o.refusal, o.text, o.logprobs = true, refusal, o.text[:0], o.logprobs[:0]
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
		r.tell(`,"text":"`, `","logprobs":[`+string(o.logprobs)+`]}`)
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
	switch o.kind {
	case callItem:
		r.place("response.function_call_arguments.done")
		r.tell(`,"arguments":"`, `"}`)
	case customItem: // its input is known only now
		input := appendString(nil, customInput(unquote(append(append([]byte{'"'}, o.text...), '"'))))
		o.input = append(o.input[:0], input[1:len(input)-1]...)
		r.place("response.custom_tool_call_input.delta")
		r.raw(`,"delta":`)
		r.out = append(r.out, input...)
		r.raw("}\n\n")
		r.place("response.custom_tool_call_input.done")
		r.raw(`,"input":`)
		r.out = append(r.out, input...)
		r.raw("}\n\n")
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

// toolCall takes a part of a tool call that callQueue passes: of the one that is
// open, or the first of another.
func (r *Response) toolCall(c *callPiece) error {
	o := &r.item
	if open := (o.kind == callItem || o.kind == customItem) && o.call.continues(c); !open {
		tool, ok := r.request.called(c.name)
		if !ok {
			return nonsense("a call of a tool that the request does not allow")
		}
		r.close("completed")
		head := chatBody{}
		head.raw(`,"call_id":`)
		head.dst = appendCallID(head.dst, c.id, "call_"+r.own, r.items)
		head.member(`,"name":`, tool.own)
		head.member(`,"namespace":`, tool.space)
		kind := callItem
		if tool.custom {
			kind = customItem
		}
		r.open(kind, head.dst)
		o.call.begin(c)
	}
	switch {
	case c.arguments == nil:
		return nil
	case o.kind == customItem:
		return r.grow(c.arguments)
	}
	r.place("response.function_call_arguments.delta")
	r.raw(`,"delta":`)
	r.out = append(r.out, c.arguments...)
	r.raw("}\n\n")
	return r.grow(c.arguments)
}
