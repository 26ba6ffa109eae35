package dialect

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fleet"
)

// signature signs thinking blocks. Clients want one and send it back; nobody
// here reads it, since every model reads the thoughts of every other.
const signature = `"kith"`

// PingEvent is the heartbeat of a stream in the messages dialect.
const PingEvent = "event: ping\ndata: {\"type\":\"ping\"}\n\n"

// AppendMessage appends a whole chat answer as a message of that id to dst. It
// checks the answer as CheckUnary does; errors are *fault.Fault.
func AppendMessage(dst, answer []byte, id string, model fleet.ModelID) ([]byte, Usage, error) {
	chat, usage, err := readChatAnswer(answer)
	if err != nil {
		return dst, Usage{}, err
	}
	choice := &chat.Choices[0]
	finish := jsontext.Value(nil)
	if choice.Finish != nil {
		finish = appendString(nil, *choice.Finish)
	}
	dst = appendMessageHead(dst, id, model)
	blocks := len(dst)
	block := func(start string) {
		if len(dst) > blocks {
			dst = append(dst, ',')
		}
		dst = append(dst, start...)
	}
	said := &choice.Message
	if thought := said.thought(); thought != "" {
		block(`{"type":"thinking","thinking":`)
		dst = append(appendString(dst, thought), `,"signature":`+signature+`}`...)
	}
	for _, text := range []*string{said.Content, said.Refusal} {
		if text != nil && *text != "" {
			block(`{"type":"text","text":`)
			dst = append(appendString(dst, *text), '}')
		}
	}
	called := false
	for i, call := range said.ToolCalls {
		input := bytes.TrimSpace([]byte(call.Function.Arguments))
		if !isArguments(input) {
			if string(finish) == `"length"` { // cut off: nothing that could be run
				continue
			}
			return dst, Usage{}, badArguments()
		}
		called = true
		block(`{"type":"tool_use","id":`)
		dst = appendCallID(dst, appendString(nil, call.ID), "toolu_"+id, i)
		dst = appendMember(dst, "name", call.Function.Name)
		dst = append(dst, `,"input":`...)
		if len(input) == 0 {
			input = []byte(`{}`)
		}
		dst = append(append(dst, input...), '}')
	}
	dst = append(dst, `],`...)
	dst = appendStop(dst, finish, choice.Stop, called)
	dst = append(dst, `,"usage":`...)
	return append(appendUsage(dst, usage), '}'), usage, nil
}

// appendMessageHead begins a message, up to the inside of its content.
func appendMessageHead(dst []byte, id string, model fleet.ModelID) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, id)
	dst = append(dst, `,"type":"message","role":"assistant"`...)
	dst = appendMember(dst, "model", string(model))
	return append(dst, `,"content":[`...)
}

// isArguments reports whether text is the arguments of a tool call: one strict
// JSON object, or nothing.
func isArguments(text []byte) bool {
	text = bytes.TrimSpace(text)
	return len(text) == 0 || text[0] == '{' && jsontext.Value(text).IsValid()
}

func badArguments() error {
	return nonsense("a tool call whose arguments are not a JSON object")
}

// appendStop appends the members stop_reason and stop_sequence.
func appendStop(dst []byte, finish, stop jsontext.Value, called bool) []byte {
	reason := "end_turn"
	switch {
	case string(finish) == `"length"`:
		reason = "max_tokens"
	case string(finish) == `"content_filter"`:
		reason = "refusal"
	case called:
		reason = "tool_use"
	case stop.Kind() == '"':
		dst = append(dst, `"stop_reason":"stop_sequence","stop_sequence":`...)
		return append(dst, stop...)
	}
	dst = append(dst, `"stop_reason":"`...)
	dst = append(dst, reason...)
	return append(dst, `","stop_sequence":null`...)
}

// appendUsage appends a usage object; in this dialect the cached part of the
// input is told beside the rest of it.
func appendUsage(dst []byte, u Usage) []byte {
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, u.In-u.Cached, 10)
	dst = append(dst, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	dst = strconv.AppendInt(dst, u.Cached, 10)
	dst = append(dst, `,"output_tokens":`...)
	dst = strconv.AppendInt(dst, u.Out, 10)
	return append(dst, '}')
}

// messageEvents writes the events of the messages dialect: one message_start,
// blocks that never overlap, and only where the end mark was seen a
// message_delta and message_stop.
type messageEvents struct {
	*outbox
	id    string
	model fleet.ModelID

	begun bool
	kind  blockKind // of the block that is open; otherBlock: none is
	index int       // of the block that is open, or comes next

	calls         callQueue
	call          openCall
	arguments     []byte // of the open tool call so far
	called        bool
	finish, reach []byte // the finish reason and the stop sequence, quoted
}

// NewMessageEvents makes the events of a message of that id.
func NewMessageEvents(id string, model fleet.ModelID) *Events {
	out := new(outbox)
	return &Events{outbox: out, writer: &messageEvents{outbox: out, id: id, model: model}}
}

// chunk satisfies eventWriter. A refusal is text like any other here.
func (e *messageEvents) chunk(p *piece) error {
	e.begin()
	if p.speaks() {
		if err := e.calls.end(e.toolCall); err != nil {
			return err
		}
	}
	if p.thought != nil {
		if err := e.open(thinkingBlock); err != nil {
			return err
		}
		e.delta(`thinking_delta","thinking":`, p.thought)
	}
	for _, text := range [...]jsontext.Value{p.text, p.refusal} {
		if text == nil {
			continue
		}
		if err := e.open(textBlock); err != nil {
			return err
		}
		e.delta(`text_delta","text":`, text)
	}
	for i := range p.calls {
		if err := e.calls.take(&p.calls[i], e.toolCall); err != nil {
			return err
		}
	}
	if p.finish != nil {
		e.finish = append(e.finish[:0], p.finish...)
	}
	if p.stop != nil {
		e.reach = append(e.reach[:0], p.stop...)
	}
	return nil
}

// end satisfies eventWriter. The input's tokens are told only here: no engine
// tells them sooner.
func (e *messageEvents) end(u Usage) error {
	e.begin()
	if err := e.calls.end(e.toolCall); err != nil {
		return err
	}
	if err := e.close(); err != nil {
		return err
	}
	e.event("message_delta")
	e.raw(`,"delta":{`)
	e.out = appendStop(e.out, e.finish, e.reach, e.called)
	e.raw(`},"usage":`)
	e.out = appendUsage(e.out, u)
	e.raw("}\n\n")
	e.event("message_stop")
	e.raw("}\n\n")
	return nil
}

// event begins an event, up to the first member after its type.
func (e *messageEvents) event(name string) {
	e.raw("event: ")
	e.raw(name)
	e.raw("\ndata: {\"type\":\"")
	e.raw(name)
	e.raw(`"`)
}

// numbered begins an event of the block that is open.
func (e *messageEvents) numbered(name string) {
	e.event(name)
	e.raw(`,"index":`)
	e.out = strconv.AppendInt(e.out, int64(e.index), 10)
}

// begin writes message_start, once.
func (e *messageEvents) begin() {
	if e.begun {
		return
	}
	e.begun = true
	e.event("message_start")
	e.raw(`,"message":`)
	e.out = appendMessageHead(e.out, e.id, e.model)
	e.raw(`],"stop_reason":null,"stop_sequence":null,"usage":`)
	e.out = appendUsage(e.out, Usage{})
	e.raw("}}\n\n")
}

// delta writes content_block_delta with a value as it came.
func (e *messageEvents) delta(kind string, value jsontext.Value) {
	e.numbered("content_block_delta")
	e.raw(`,"delta":{"type":"`)
	e.raw(kind)
	e.out = append(e.out, value...)
	e.raw("}}\n\n")
}

// open opens a block of text or thinking unless one is open.
func (e *messageEvents) open(kind blockKind) error {
	if e.kind == kind {
		return nil
	}
	if err := e.close(); err != nil {
		return err
	}
	e.kind = kind
	e.numbered("content_block_start")
	if kind == thinkingBlock {
		e.raw(`,"content_block":{"type":"thinking","thinking":"","signature":""}}` + "\n\n")
	} else {
		e.raw(`,"content_block":{"type":"text","text":""}}` + "\n\n")
	}
	return nil
}

// close closes the block that is open, if one is. A tool call has to be whole
// by then, unless the answer was cut off at its limit.
func (e *messageEvents) close() error {
	switch e.kind {
	case otherBlock:
		return nil
	case thinkingBlock:
		e.delta(`signature_delta","signature":`, jsontext.Value(signature))
	case toolUseBlock:
		if string(e.finish) != `"length"` && !isArguments(e.arguments) {
			return badArguments()
		}
	}
	e.numbered("content_block_stop")
	e.raw("}\n\n")
	e.kind = otherBlock
	e.index++
	return nil
}

// toolCall takes a part of a tool call that callQueue passes: of the one that is
// open, or the first of another.
func (e *messageEvents) toolCall(c *callPiece) error {
	if e.kind != toolUseBlock || !e.call.continues(c) {
		if err := e.close(); err != nil {
			return err
		}
		e.kind, e.called = toolUseBlock, true
		e.call.begin(c)
		e.arguments = e.arguments[:0]
		e.numbered("content_block_start")
		e.raw(`,"content_block":{"type":"tool_use","id":`)
		e.out = appendCallID(e.out, c.id, "toolu_"+e.id, e.index)
		e.raw(`,"name":`)
		e.out = append(e.out, c.name...)
		e.raw(`,"input":{}}}` + "\n\n")
	}
	if c.arguments == nil {
		return nil
	}
	e.delta(`input_json_delta","partial_json":`, c.arguments)
	var err error
	e.arguments, err = jsontext.AppendUnquote(e.arguments, c.arguments)
	return err
}
