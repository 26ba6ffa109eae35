package dialect

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json"
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
	var chat struct {
		Error   jsontext.Value `json:"error"`
		Choices []struct {
			Message struct {
				Content          *string `json:"content"`
				Refusal          *string `json:"refusal"`
				ReasoningContent *string `json:"reasoning_content"`
				Reasoning        *string `json:"reasoning"`
				ToolCalls        []struct {
					ID       string `json:"id"`
					Function struct {
						Name      string `json:"name"`
						Arguments string `json:"arguments"`
					} `json:"function"`
				} `json:"tool_calls"`
			} `json:"message"`
			Finish *string        `json:"finish_reason"`
			Stop   jsontext.Value `json:"stop_reason"`
		} `json:"choices"`
		Usage jsontext.Value `json:"usage"`
	}
	err := json.Unmarshal(answer, &chat)
	switch {
	case chat.Error != nil && chat.Error.Kind() != 'n':
		return dst, Usage{}, engineSays(answer)
	case err != nil || len(chat.Choices) == 0:
		return dst, Usage{}, nonsense("something that is not a chat answer")
	}
	var usage Usage
	if chat.Usage.Kind() == '{' {
		usage = readUsage(chat.Usage)
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
	for _, thought := range []*string{said.ReasoningContent, said.Reasoning} {
		if thought != nil && *thought != "" {
			block(`{"type":"thinking","thinking":`)
			dst = append(appendString(dst, *thought), `,"signature":`+signature+`}`...)
			break
		}
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
		dst = appendCallID(dst, appendString(nil, call.ID), id, i)
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

// appendCallID appends a tool call's id, or one made for the call of that
// number where its engine gave none.
func appendCallID(dst []byte, id jsontext.Value, message string, number int) []byte {
	if len(id) > len(`""`) {
		return append(dst, id...)
	}
	return appendString(dst, "toolu_"+message+"_"+strconv.Itoa(number))
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

// Events turns the chunks of a chat stream into the events of the messages
// dialect, in one pass and as they come. It is the Events of a Stream, which
// drives it. Its events are whole and in order: one message_start, blocks that
// never overlap, and only where the end mark was seen a message_delta and
// message_stop.
type Events struct {
	ID    string // of the message
	Model fleet.ModelID

	piece piece
	out   []byte // events
	whole int    // of out: events whose frame was taken
	taken int    // of out: events that Next gave

	begun bool
	kind  blockKind // of the block that is open; otherBlock: none is
	index int       // of the block that is open, or comes next

	call          int64 // the open tool call's index
	callID        []byte
	arguments     []byte // of the open tool call so far
	called        bool
	finish, reach []byte // the finish reason and the stop sequence, quoted
}

// Next is the events of what was taken since the last Next; they are good until
// the next Take.
func (e *Events) Next() []byte {
	events := e.out[e.taken:e.whole]
	e.taken = e.whole
	return events
}

// commit makes the events of a frame good: its blank line was seen.
func (e *Events) commit() {
	if e != nil {
		e.whole = len(e.out)
	}
}

// compact forgets the events that were given.
func (e *Events) compact() {
	if e.taken > 0 {
		e.out = append(e.out[:0], e.out[e.taken:]...)
		e.whole, e.taken = e.whole-e.taken, 0
	}
}

// chunk turns the chunk that was just read into events.
func (e *Events) chunk() error {
	if e == nil {
		return nil
	}
	e.compact()
	e.begin()
	p := &e.piece
	if p.thought != nil {
		if err := e.open(thinkingBlock); err != nil {
			return err
		}
		e.delta(`thinking_delta","thinking":`, p.thought)
	}
	if p.text != nil {
		if err := e.open(textBlock); err != nil {
			return err
		}
		e.delta(`text_delta","text":`, p.text)
	}
	for i := range p.calls {
		if err := e.toolCall(&p.calls[i]); err != nil {
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

// end turns the end mark into the last events. The input's tokens are told only
// here: no engine tells them sooner.
func (e *Events) end(u Usage) error {
	if e == nil {
		return nil
	}
	e.compact()
	e.begin()
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

func (e *Events) raw(text string) { e.out = append(e.out, text...) }

// event begins an event, up to the first member after its type.
func (e *Events) event(name string) {
	e.raw("event: ")
	e.raw(name)
	e.raw("\ndata: {\"type\":\"")
	e.raw(name)
	e.raw(`"`)
}

// numbered begins an event of the block that is open.
func (e *Events) numbered(name string) {
	e.event(name)
	e.raw(`,"index":`)
	e.out = strconv.AppendInt(e.out, int64(e.index), 10)
}

// begin writes message_start, once.
func (e *Events) begin() {
	if e.begun {
		return
	}
	e.begun = true
	e.event("message_start")
	e.raw(`,"message":`)
	e.out = appendMessageHead(e.out, e.ID, e.Model)
	e.raw(`],"stop_reason":null,"stop_sequence":null,"usage":`)
	e.out = appendUsage(e.out, Usage{})
	e.raw("}}\n\n")
}

// delta writes content_block_delta with a value as it came.
func (e *Events) delta(kind string, value jsontext.Value) {
	e.numbered("content_block_delta")
	e.raw(`,"delta":{"type":"`)
	e.raw(kind)
	e.out = append(e.out, value...)
	e.raw("}}\n\n")
}

// open opens a block of text or thinking unless one is open.
func (e *Events) open(kind blockKind) error {
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
func (e *Events) close() error {
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

// toolCall takes a part of a tool call. A name begins a call, unless it is the
// name of the call that is open; parts of a call that is over have no place in
// this dialect.
func (e *Events) toolCall(c *callPiece) error {
	open := e.kind == toolUseBlock && c.index == e.call && (c.id == nil || bytes.Equal(c.id, e.callID))
	switch {
	case !open && c.name == nil:
		return nonsense("parts of tool calls out of order")
	case !open:
		if err := e.close(); err != nil {
			return err
		}
		e.kind, e.call, e.called = toolUseBlock, c.index, true
		e.callID = append(e.callID[:0], c.id...)
		e.arguments = e.arguments[:0]
		e.numbered("content_block_start")
		e.raw(`,"content_block":{"type":"tool_use","id":`)
		e.out = appendCallID(e.out, c.id, e.ID, e.index)
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
