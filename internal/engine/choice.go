package engine

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"regexp"
	"strconv"

	"github.com/kith/kith/internal/fault"
)

// choice is the state of one choice of an answer.
type choice struct {
	index     int
	number    int64 // assigned by the engine
	begun     bool  // its role was written
	texts     [textKinds]choiceText
	calls     calls
	called    int    // number of calls that were written
	finish    string // the reason, or ""
	toolCalls []byte // the calls of a document, between commas
	rest      []byte // members of a document's message that the dialect does not have
	extra     []byte // the same for the choice
	logprobs  logprobs
}

// The texts of a choice, in output order.
const (
	thought = iota
	content
	refusal
	textKinds
)

// choiceText is a text of a choice, in the form of the inside of a JSON string.
type choiceText struct {
	joiner
	waiting []byte // arrived during a tool call
	whole   []byte // of a document
	said    bool   // there is a text, although it may be empty
}

// delta is a part of a choice that is written at once.
type delta struct {
	texts       [textKinds]jsontext.Value
	calls       []byte // parts of calls, separated by commas
	rest, extra []byte // other members of the message and of the choice
	logprobs    jsontext.Value
	finish      string
}

func (d *delta) hasText() bool {
	return d.texts[thought] != nil || d.texts[content] != nil || d.texts[refusal] != nil
}

func (d *delta) empty() bool {
	return !d.hasText() && len(d.rest) == 0 && len(d.extra) == 0 && d.logprobs.Kind() != '{'
}

func (m *normalizer) takeChoice(c *choice, sent *sentChoice) error {
	reason, err := finishReason(sent)
	if err != nil {
		return err
	}
	message := cmp.Or(sent.Delta, sent.Message)
	if message == nil {
		if m.isObject {
			return fault.New(fault.EngineError, "the engine sent a choice without a message")
		}
		message = new(sentMessage)
	}
	texts, err := message.texts()
	if err != nil {
		return err
	}
	d := delta{rest: membersOf(message.Rest), extra: membersOf(sent.Rest), logprobs: sent.Logprobs}
	for i, t := range texts {
		if t != nil {
			d.texts[i] = c.texts[i].take(t)
		}
	}
	if m.want.hide {
		d.texts[thought] = nil
	} else if message.Details != nil {
		d.rest = appendList(d.rest, append([]byte(`"reasoning_details":`), message.Details...))
	}
	if c.hold(&d); d.hasText() { // no call is open
		if err := m.advance(c, true); err != nil {
			return err
		}
	}
	before := m.frames
	if !d.empty() {
		m.write(c, &d)
	}
	parts, err := message.calls()
	if err != nil {
		return err
	}
	for i := range parts {
		if err = c.calls.take(&parts[i], reason != ""); err == nil {
			err = m.advance(c, false)
		}
		if err != nil {
			return err
		}
	}
	if reason != "" && c.finish == "" {
		c.finish = reason
		return m.close(c)
	}
	if m.frames == before { // keep the connection alive: the content waits
		m.write(c, &delta{})
	}
	return nil
}

// finishes are the engines' words for the reasons to finish, tried in this order
// (spec/engine-answers.md#finish). Those in the first entry mean failure.
var finishes = []struct {
	words  *regexp.Regexp
	reason string
}{
	{regexp.MustCompile(`(?i)err|abort|cancel|fail|time_?out|interrupt|resource|disconnect|preempt|rate`), ""},
	{regexp.MustCompile(`(?i)len|max|limit`), "length"},
	{regexp.MustCompile(`(?i)tool|func`), "tool_calls"},
	{regexp.MustCompile(`(?i)filter|safety|refus|block|prohib|recit`), "content_filter"},
	{regexp.MustCompile(`(?i)stop|eo[st]|end|done|complete|finish|success`), "stop"},
}

// finishReason returns the dialect's word for the reason of a choice, or "".
func finishReason(sent *sentChoice) (string, error) {
	if sent.Error.Kind() == '{' || sent.Error.Kind() == '"' {
		return "", &sentError{[]byte(`{"error":` + string(sent.Error) + `}`)}
	}
	reason := textIn(sent.Finish)
	if reason == "" {
		return "", nil
	}
	for _, f := range finishes {
		if f.words.MatchString(reason) {
			if f.reason == "" {
				break
			}
			return f.reason, nil
		}
	}
	return "", fault.New(fault.EngineError, "the engine ended its answer with the reason %q", reason)
}

// texts returns the texts of a message as JSON strings, or nil.
func (s *sentMessage) texts() (texts [textKinds]jsontext.Value, err error) {
	for _, t := range [...]jsontext.Value{s.Thought, s.Reasoning, s.Thinking} {
		if t.Kind() == '"' && len(t) > len(texts[thought]) {
			texts[thought] = t
		}
	}
	if s.Refusal.Kind() == '"' {
		texts[refusal] = s.Refusal
	}
	switch s.Content.Kind() {
	case 'n', 0:
	case '"':
		texts[content] = s.Content
	default:
		said, thoughts, err := partTexts(s.Content)
		if err != nil {
			return texts, err
		}
		if texts[thought] == nil && len(thoughts) > 0 {
			texts[thought] = jsontext.Value(quoted(string(thoughts)))
		}
		if len(said) > 0 || texts[thought] == nil {
			texts[content] = jsontext.Value(quoted(string(said)))
		}
	}
	return texts, nil
}

// partTexts returns the text and the reasoning in content that is a list of parts.
func partTexts(list jsontext.Value) (said, thoughts []byte, err error) {
	var parts []jsontext.Value
	if json.Unmarshal(list, &parts, lenient) != nil {
		return nil, nil, notChat("content that is not text", list)
	}
	for _, value := range parts {
		var part struct {
			Type     string         `json:"type"`
			Text     jsontext.Value `json:"text"`
			Thinking jsontext.Value `json:"thinking"`
		}
		if value.Kind() == '"' {
			part.Text = value
		} else if json.Unmarshal(value, &part, lenient) != nil {
			return nil, nil, notChat("content that is not text", value)
		}
		if part.Thinking.Kind() == '[' {
			inside, _, err := partTexts(part.Thinking)
			if err != nil {
				return nil, nil, err
			}
			thoughts = append(thoughts, inside...)
		}
		thoughts = append(thoughts, textIn(part.Thinking)...)
		if part.Type == "reasoning" || part.Type == "thinking" {
			thoughts = append(thoughts, textIn(part.Text)...)
		} else {
			said = append(said, textIn(part.Text)...)
		}
	}
	return said, thoughts, nil
}

func (s *sentMessage) calls() (parts []sentCall, err error) {
	switch list := s.ToolCalls; {
	case s.Call != nil: // the older format
		return []sentCall{{Function: *s.Call}}, nil
	case list.Kind() == '{':
		parts = make([]sentCall, 1)
		err = json.Unmarshal(list, &parts[0], lenient)
	case list != nil:
		err = json.Unmarshal(list, &parts, lenient)
	}
	if err != nil {
		return nil, notChat("tool calls that cannot be read", s.ToolCalls)
	}
	return parts, nil
}

// hold keeps texts that arrive during a tool call, and space after a call, because no
// call may be interrupted (spec/engine-answers.md#call-order).
func (c *choice) hold(d *delta) {
	if len(c.calls.all) == 0 {
		return
	}
	for i := range d.texts {
		if d.texts[i] == nil {
			continue
		}
		t := &c.texts[i]
		t.waiting = append(t.waiting, inner(d.texts[i])...)
		d.texts[i] = nil
		if !c.calls.openCall() {
			d.texts[i] = t.release()
		}
	}
}

// release returns the waiting text as a JSON string, or nil if it only consists of space.
func (t *choiceText) release() jsontext.Value {
	value := stringOf(t.waiting)
	if len(bytes.TrimSpace(decoded(value))) == 0 {
		return nil
	}
	t.waiting = nil
	return value
}

// advance writes what can be written of a choice's calls: the parts of the first
// incomplete call, or of all calls at the end.
func (m *normalizer) advance(c *choice, all bool) error {
	for s := &c.calls; s.open < len(s.all); {
		call := s.all[s.open]
		over := all || call.over() && s.open+1 < len(s.all)
		if !over && (call.shape != inPieces || call.name == "" || call.again || !m.stream) {
			return nil // it is not yet known
		}
		if over {
			s.open++
			if s.complete(call); call.dropped {
				continue
			}
			if call.name == "" {
				return fault.New(fault.EngineError, "the engine sent a tool call without a name")
			}
		}
		if part := m.part(c, call); part != nil {
			m.write(c, &delta{calls: part})
		}
		if !over {
			return nil
		}
	}
	return nil
}

// close writes the rest of a choice except its finish reason.
func (m *normalizer) close(c *choice) error {
	if err := m.advance(c, true); err != nil {
		return err
	}
	var d delta
	for i := range c.texts {
		t := &c.texts[i]
		t.waiting = append(t.waiting, inner(t.rest())...)
		d.texts[i] = t.release()
	}
	if m.want.hide {
		d.texts[thought] = nil
	}
	if d.hasText() {
		m.write(c, &d)
	}
	return nil
}

// part returns the unwritten part of a call, or nil.
func (m *normalizer) part(c *choice, call *call) []byte {
	text := call.arguments[call.written:]
	if call.begun && len(text) == 0 {
		return nil
	}
	call.written = len(call.arguments)
	out := []byte{'{'}
	if m.stream {
		at := c.called
		if call.begun {
			at--
		}
		out = append(strconv.AppendInt(append(out, `"index":`...), int64(at), 10), ',')
	}
	if call.begun {
		return append(append(append(out, `"function":{"arguments":`...), quoted(string(text))...), "}}"...)
	}
	call.begun = true
	c.called++
	id := call.id
	if id == "" || len(id) > maxCallID || call.again {
		id = m.newID("call_")
	}
	out = append(append(out, `"id":`...), quoted(id)...)
	out = append(append(out, `,"type":"function","function":{"name":`...), quoted(call.name)...)
	out = append(append(append(out, `,"arguments":`...), quoted(string(text))...), '}')
	return append(appendMembers(out, call.rest), '}')
}

// maxCallID is the maximum length of a tool call's id, in bytes.
const maxCallID = 4096
