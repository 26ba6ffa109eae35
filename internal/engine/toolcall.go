package engine

import (
	"bytes"
	"crypto/rand"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of what is remembered of one stream's tool calls.
const (
	maxChoices = 64
	maxCalls   = 1024 // of one choice
)

// A toolState is one call of a stream, as far as it was told. Engines number
// calls or do not, name them once or in each part, give every one the number 0,
// leave out ids: readers put the parts together by number and add up names.
type toolState struct {
	id     string // the engine's, or ours where it gave none
	number int    // the engine's own; -1: none
	named  bool   // its name was passed on
}

// toolCalls writes the member of that name; an empty list is left out.
func (m *mender) toolCalls(name []byte, choice int) (called bool, err error) {
	if m.dec.PeekKind() != '[' {
		return false, m.dec.SkipValue()
	}
	start := len(m.out)
	m.name(name)
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

// toolCall writes one call, or in a stream one part of one.
func (m *mender) toolCall(value jsontext.Value, choice int) error {
	var told struct {
		ID       jsontext.Value `json:"id"`
		Index    jsontext.Value `json:"index"`
		Function struct {
			Name jsontext.Value `json:"name"`
		} `json:"function"`
	}
	if err := json.Unmarshal(value, &told); err != nil {
		return err
	}
	id, name, number := textIn(told.ID), textIn(told.Function.Name), -1
	if told.Index.Kind() == '0' {
		number = atoi(told.Index)
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
	err := eachMember(value, func(member string, v jsontext.Value) error {
		switch member {
		case "index", "id", "type":
			return nil
		case "function":
			if v.Kind() != '{' {
				return nil
			}
			m.name([]byte(member))
			return m.function(v, begins, part)
		}
		m.put([]byte(member), v)
		return nil
	})
	m.out = append(m.out, '}')
	return err
}

// function writes a call's function: the name once, and arguments as text that
// holds JSON, never the JSON itself.
func (m *mender) function(value jsontext.Value, begins bool, part *toolState) error {
	m.out = append(m.out, '{')
	argued := false
	err := eachMember(value, func(member string, v jsontext.Value) (err error) {
		switch member {
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
		m.put([]byte(member), v)
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

// locate is the place of the call that a part of a stream belongs to; begins
// says that it is its first.
func (m *mender) locate(choice int, id string, number int, named bool) (at int, begins bool) {
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
		case id == "" && number < 0: // a part without either belongs to the newest, or begins
			i = 0
		}
	}
	if at >= 0 || len(calls) == maxCalls {
		return max(at, 0), false
	}
	m.calls[choice] = append(calls, toolState{id: id, number: number})
	return len(calls), true
}

// newID is an id for what its engine gave none; callers answer a tool call by it.
func (m *mender) newID(prefix string) string {
	if m.ids != nil {
		return prefix + m.ids()
	}
	return prefix + rand.Text()
}

// textIn is the text of a JSON string; empty for anything else.
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
func eachMember(object jsontext.Value, do func(name string, value jsontext.Value) error) error {
	dec := jsontext.NewDecoder(bytes.NewReader(object))
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		text := name.String()
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if err := do(text, value); err != nil {
			return err
		}
	}
	return nil
}

// finishes are reasons to finish in the words of some engines, and the
// dialect's.
var finishes = map[string]string{
	`"eos"`: `"stop"`, `"eos_token"`: `"stop"`, `"end_turn"`: `"stop"`, `"stop_sequence"`: `"stop"`, `"complete"`: `"stop"`,
	`"max_tokens"`: `"length"`, `"max_length"`: `"length"`, `"limit"`: `"length"`,
}

// finish is the reason a choice finished as callers know it.
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
