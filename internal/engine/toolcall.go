package engine

import (
	"bytes"
	"crypto/rand"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/dialect"
)

// Limits of what is kept of the tool calls of a stream.
const (
	maxChoices = 64
	maxCalls   = 1024 // of one choice
)

// toolState is a tool call of a stream so far. Engines number the calls or do not,
// send the name once or in each part, give every call the number 0, or omit ids.
// Clients join the parts by number and concatenate the names.
type toolState struct {
	id     string // the engine's, or a new one if it sent none
	number int    // the engine's, or -1
	named  bool   // the name was passed on
}

// toolCalls rewrites the list of tool calls; an empty one is omitted.
func (m *normalizer) toolCalls(name []byte, choice int) (called bool, err error) {
	if m.dec.PeekKind() != '[' {
		return false, m.dec.SkipValue()
	}
	start := len(m.out)
	m.putName(name)
	if err := m.array(func(int) error {
		value, err := m.dec.ReadValue()
		if err != nil {
			return err
		}
		called = true
		return m.toolCall(bytes.Clone(value), choice)
	}); err != nil {
		return false, err
	}
	if !called {
		m.out = m.out[:start]
	}
	return called, nil
}

// toolCall writes a call or, in a stream, a part of one.
func (m *normalizer) toolCall(value jsontext.Value, choice int) error {
	var call struct {
		ID       jsontext.Value `json:"id"`
		Index    jsontext.Value `json:"index"`
		Function struct {
			Name jsontext.Value `json:"name"`
		} `json:"function"`
	}
	if err := json.Unmarshal(value, &call); err != nil {
		return err
	}
	id, name, number := textIn(call.ID), textIn(call.Function.Name), -1
	if call.Index.Kind() == '0' {
		number = atoi(call.Index)
	}
	at, begins, part := 0, true, &toolState{id: id}
	if m.stream {
		at, begins = m.locate(choice, id, number, name != "")
		part = &m.calls[choice][at]
	}
	if part.id == "" {
		part.id = m.newID("call_")
	}
	m.out = append(m.out, '{')
	if m.stream {
		m.put([]byte("index"), strconv.AppendInt(nil, int64(at), 10))
	}
	if begins {
		m.put([]byte("id"), []byte(quoted(part.id)))
		m.put([]byte("type"), []byte(`"function"`))
	}
	err := eachMember(value, func(member []byte, v jsontext.Value) error {
		switch string(member) {
		case "index", "id", "type":
			return nil
		case "function":
			if v.Kind() != '{' {
				return nil
			}
			m.putName(member)
			return m.function(v, begins, part)
		}
		m.put(member, v)
		return nil
	})
	m.out = append(m.out, '}')
	return err
}

// function writes the function of a call: its name once, and its arguments as a
// string that holds JSON.
func (m *normalizer) function(value jsontext.Value, begins bool, part *toolState) error {
	m.out = append(m.out, '{')
	argued := false
	err := eachMember(value, func(member []byte, v jsontext.Value) (err error) {
		switch string(member) {
		case "name":
			if textIn(v) == "" || part.named {
				return nil
			}
			part.named = true
		case "arguments":
			if v.Kind() == 'n' {
				return nil
			}
			argued = true
			if v.Kind() != '"' {
				if v, err = jsontext.AppendQuote(nil, v); err != nil {
					return err
				}
			}
		}
		m.put(member, v)
		return nil
	})
	switch {
	case argued || !begins:
	case m.stream:
		m.put([]byte("arguments"), []byte(`""`))
	default:
		m.put([]byte("arguments"), []byte(`"{}"`))
	}
	m.out = append(m.out, '}')
	return err
}

// locate returns the position of the call that a part belongs to; begins reports
// that the part is its first.
func (m *normalizer) locate(choice int, id string, number int, named bool) (at int, begins bool) {
	for len(m.calls) <= choice {
		m.calls = append(m.calls, nil)
	}
	calls := m.calls[choice]
	at = -1
	for i := len(calls) - 1; i >= 0 && at < 0; i-- {
		switch c := &calls[i]; {
		case id != "" && c.id == id,
			id == "" && number >= 0 && c.number == number,
			id == "" && number < 0 && !(named && c.named):
			at = i
		case id == "" && number < 0: // belongs to the newest call, or begins one
			i = 0
		}
	}
	if at >= 0 || len(calls) == maxCalls {
		return max(at, 0), false
	}
	m.calls[choice] = append(calls, toolState{id: id, number: number})
	return len(calls), true
}

// newID returns an id for an answer or a tool call without one.
func (m *normalizer) newID(prefix string) string {
	if m.ids != nil {
		return prefix + m.ids()
	}
	return prefix + rand.Text()
}

// textIn returns the text of a JSON string, or "" for another value.
func textIn(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	text, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(text)
}

// eachMember calls do with each member of the object.
func eachMember(object jsontext.Value, do func(name []byte, value jsontext.Value) error) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(object))
	return dialect.Members(dec, func(name []byte) error {
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		return do(name, value)
	})
}

// finishes maps the finish reasons of some engines to those of the dialect.
var finishes = map[string]string{
	`"eos"`: `"stop"`, `"eos_token"`: `"stop"`, `"end_turn"`: `"stop"`, `"stop_sequence"`: `"stop"`, `"complete"`: `"stop"`,
	`"max_tokens"`: `"length"`, `"max_length"`: `"length"`, `"limit"`: `"length"`,
}

// finish returns the finish reason of a choice in the dialect's words.
func finish(reason []byte, called bool) []byte {
	if known, ok := finishes[string(reason)]; ok {
		reason = []byte(known)
	}
	switch {
	case called && string(reason) == `"stop"`:
		return []byte(`"tool_calls"`)
	case reason == nil:
		return []byte("null")
	}
	return reason
}
