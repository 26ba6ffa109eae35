package engine

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"slices"

	"github.com/kith/kith/internal/fault"
)

// The limits for the tool calls of a choice.
const (
	maxCalls = 1024
	maxHeld  = 4 << 20 // bytes of arguments, and of text that waits for the end of a call
)

// calls joins the parts of a choice's tool calls (spec/engine-answers.md#calls). Engines
// may not number the calls, change the ids, repeat names and arguments, or interleave
// parts of several calls. The result is a sequence of calls: each one is complete before
// the next starts and has a unique id.
type calls struct {
	all   []*call
	open  int // index of the first call that is not completely written
	bytes int
}

type call struct {
	id     string // the engine's, or ""
	number int    // the engine's, or -1
	name   string
	rest   []byte // members that the dialect does not have, unchanged

	text      joiner    // decodes the arguments
	arguments []byte    // so far
	joined    []byte    // all parts joined, if they repeat each other
	shape     callShape // how the arguments arrive
	nesting   nesting   // of the arguments
	written   int       // bytes of the arguments that were written
	begun     bool      // its first part was written
	again     bool      // another call has the same id and may be identical
	closed    bool      // there are no further parts
	dropped   bool      // it duplicates another call, or is empty
}

// callShape is how the arguments of a call arrive.
type callShape uint8

const (
	oneSoFar  callShape = iota // in one part so far
	inPieces                   // each part continues the previous one
	repeating                  // each part repeats the previous ones
)

// sentCall is a tool call, or a part of one, as an engine sends it.
type sentCall struct {
	Index    jsontext.Value `json:"index"`
	ID       jsontext.Value `json:"id"`
	Type     jsontext.Value `json:"type"`
	Function sentFunction   `json:"function"`
	Rest     jsontext.Value `json:",embed"`
}

type sentFunction struct {
	Name      jsontext.Value `json:"name"`
	Arguments jsontext.Value `json:"arguments"`
	Rest      jsontext.Value `json:",embed"`
}

// callPart is a part of a call with decoded values.
type callPart struct {
	id, name  string
	number    int
	arguments jsontext.Value // not decoded: that depends on the previous parts
	last      bool           // it arrived with the finish reason
}

// beginning returns the arguments of the part without leading space.
func (p *callPart) beginning() []byte {
	return bytes.TrimLeft(decoded(p.arguments), " \t\r\n")
}

// decoded returns the text of a JSON string, nothing for null, and other values
// unchanged.
func decoded(v jsontext.Value) []byte {
	switch v.Kind() {
	case '"':
		text, _ := jsontext.AppendUnquote(nil, v) // an error only reports incomplete surrogates
		return text
	case 'n', 0:
		return nil
	}
	return v
}

// take assigns a part to its call.
func (s *calls) take(sent *sentCall, last bool) error {
	p := callPart{id: textIn(sent.ID), name: textIn(sent.Function.Name), number: -1, arguments: sent.Function.Arguments, last: last}
	if n, ok := count(sent.Index); ok {
		p.number = int(n)
	}
	c := s.find(&p)
	if c == nil {
		if p.name == "" && p.id == "" && len(p.beginning()) == 0 {
			return nil // an empty part
		}
		if len(s.all) == maxCalls {
			return fault.New(fault.EngineError, "the engine sent more than %d tool calls", maxCalls)
		}
		c = &call{id: p.id, number: p.number, rest: membersOf(sent.Rest)}
		c.again = p.id != "" && slices.ContainsFunc(s.all, func(o *call) bool { return o.id == p.id })
		s.all = append(s.all, c)
	}
	if c.name == "" {
		c.name = p.name
	}
	s.bytes += len(p.arguments)
	if s.bytes > maxHeld {
		return fault.New(fault.EngineError, "the engine sent tool calls of more than %d MiB", maxHeld>>20)
	}
	return c.add(p.arguments)
}

// find returns the call that the part belongs to, or nil if the part starts a new one
// (spec/engine-answers.md#call-parts).
func (s *calls) find(p *callPart) *call {
	newest := func(match func(c *call) bool) *call {
		for _, c := range slices.Backward(s.all) {
			if match(c) {
				return c
			}
		}
		return nil
	}
	first := p.beginning()
	continues := len(first) > 0 && first[0] != '{' && string(first) != "null" // it cannot be the start of arguments
	c := newest(func(c *call) bool { return p.id != "" && c.id == p.id && (p.number < 0 || p.number == c.number) })
	if c == nil {
		c = newest(func(c *call) bool { return p.number >= 0 && p.number == c.number })
	}
	if c == nil && (p.name == "" || continues) {
		c = newest(func(c *call) bool { return p.id != "" && c.id == p.id })
	}
	if c == nil && (p.name == "" || continues) {
		c = newest(func(c *call) bool { return p.name == "" || c.name == p.name && !c.over() })
	}
	switch {
	case c == nil || p.name == "" || c.name == "":
		return c
	case !c.over():
		if continues || c.name == p.name {
			return c
		}
	case c.name == p.name && c.repeatedBy(first) && (p.id != "" && p.id == c.id || p.id == "" && p.last):
		return c
	}
	return nil
}

// repeatedBy reports whether a text repeats the complete arguments, possibly with more.
func (c *call) repeatedBy(again []byte) bool {
	return len(again) > 0 && bytes.HasPrefix(again, bytes.TrimRight(c.arguments, "}]\" \t\r\n"))
}

func (c *call) add(sent jsontext.Value) error {
	more := sent
	if sent.Kind() == '"' {
		more = c.text.take(sent)
	}
	more = decoded(more)
	again := c.shape != inPieces && len(c.arguments) > 0 && (bytes.HasPrefix(more, c.arguments) || c.over() && len(more) > 0 && more[0] == '{')
	switch {
	case len(more) == 0:
	case c.closed:
		if text := bytes.TrimSpace(more); len(text) > 0 && !bytes.Equal(text, bytes.TrimSpace(c.arguments)) {
			return fault.New(fault.EngineError, "the engine sent more after the arguments of a tool call")
		}
	case again:
		if c.shape == oneSoFar {
			c.joined = bytes.Clone(c.arguments)
		}
		c.shape, c.joined, c.arguments = repeating, append(c.joined, more...), bytes.Clone(more)
		c.nesting = nesting{}
		c.nesting.read(c.arguments)
	case c.over() && (len(bytes.TrimSpace(more)) == 0 || bytes.Equal(bytes.TrimSpace(more), bytes.TrimSpace(c.arguments))):
		// the same arguments again, or trailing space
	case c.over():
		return fault.New(fault.EngineError, "the engine sent more after the arguments of a tool call")
	default:
		if len(c.arguments) > 0 && c.shape == oneSoFar {
			c.shape = inPieces
		}
		c.arguments = append(c.arguments, more...)
		c.nesting.read(more)
	}
	return nil
}

// over reports whether the arguments are a complete value.
func (c *call) over() bool {
	return c.nesting.over() || string(bytes.TrimSpace(c.arguments)) == "null"
}

// openCall reports whether a call will definitely get more parts.
func (s *calls) openCall() bool {
	return slices.ContainsFunc(s.all[s.open:], func(c *call) bool { return !c.over() })
}

// complete finalizes the arguments at the end of the call. It drops the call if it
// duplicates another one or is empty.
func (s *calls) complete(c *call) {
	c.closed = true
	if c.shape == repeating && !isObject(c.arguments) && isObject(c.joined) {
		c.arguments = c.joined // it was not a repetition
	}
	c.arguments = append(c.arguments, decoded(c.text.rest())...)
	if text := bytes.TrimSpace(c.arguments); c.written == 0 && (len(text) == 0 || string(text) == "null") {
		c.arguments = []byte("{}")
	}
	c.dropped = c.name == "" && string(c.arguments) == "{}"
	for _, o := range s.all {
		if o == c {
			break
		}
		c.dropped = c.dropped || c.again && o.id == c.id && o.name == c.name && bytes.Equal(bytes.TrimSpace(o.arguments), bytes.TrimSpace(c.arguments))
	}
}

func isObject(text []byte) bool {
	var object map[string]jsontext.Value
	return json.Unmarshal(text, &object, jsontext.AllowDuplicateNames(true)) == nil && object != nil
}

// nesting tracks a JSON object, part by part, until its end.
type nesting struct {
	depth            int
	began            bool
	quoted, escaping bool
}

// over reports whether the object has ended.
func (n *nesting) over() bool { return n.began && n.depth == 0 }

func (n *nesting) read(part []byte) {
	for _, b := range part {
		switch {
		case n.escaping:
			n.escaping = false
		case n.quoted && b == '\\':
			n.escaping = true
		case b == '"':
			n.quoted = !n.quoted
		case n.quoted:
		case b == '{', b == '[':
			n.began = true
			n.depth++
		case b == '}', b == ']':
			n.depth--
		}
	}
}

// textIn returns the text of a JSON string, or "" for another value.
func textIn(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	return string(decoded(clean(v)))
}
