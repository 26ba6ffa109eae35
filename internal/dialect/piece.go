package dialect

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// piece is what one chunk adds to an answer's first choice, as slices of the
// chunk itself. A nil piece is not interested.
type piece struct {
	document []byte
	done     bool // with the first choice: there is no second in this dialect

	text, thought, finish jsontext.Value
	stop                  jsontext.Value // the stop sequence, where the engine tells which
	calls                 []callPiece
}

// callPiece is a part of a tool call.
type callPiece struct {
	index               int64
	id, name, arguments jsontext.Value
}

// reset makes the piece ready for the next chunk.
func (p *piece) reset(document []byte) {
	if p != nil {
		*p = piece{document: document, calls: p.calls[:0]}
	}
}

// closeChoice is called behind each choice.
func (p *piece) closeChoice() {
	if p != nil {
		p.done = true
	}
}

// choice takes a member of a choice.
func (p *piece) choice(name []byte, value jsontext.Value) {
	if p.done || value.Kind() != '"' {
		return
	}
	switch string(name) {
	case "finish_reason":
		p.finish = value
	case "stop_reason": // vLLM's
		p.stop = value
	}
}

// delta takes a member of a choice's delta. A refusal is text like any other
// here; the reasoning has two names and is the same under both.
func (p *piece) delta(name []byte, value jsontext.Value) {
	if p.done || value.Kind() != '"' || len(value) == len(`""`) {
		return
	}
	switch string(name) {
	case "content", "refusal":
		p.text = value
	case "reasoning_content", "reasoning":
		p.thought = value
	}
}

// toolCalls reads the list of parts of tool calls that comes next in dec, and
// reports whether there are any.
func (p *piece) toolCalls(dec *jsontext.Decoder) (any bool, err error) {
	if _, err := dec.ReadToken(); err != nil {
		return false, err
	}
	for dec.PeekKind() != ']' {
		any = true
		if dec.PeekKind() != '{' {
			if _, err := dec.ReadValue(); err != nil {
				return any, err
			}
			continue
		}
		call, err := p.toolCall(dec)
		if err != nil {
			return any, err
		}
		if !p.done {
			p.calls = append(p.calls, call)
		}
	}
	_, err = dec.ReadToken()
	return any, err
}

func (p *piece) toolCall(dec *jsontext.Decoder) (call callPiece, err error) {
	value := func() (jsontext.Value, error) {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		end := dec.InputOffset()
		return p.document[end-int64(len(value)) : end], nil
	}
	text := func(into *jsontext.Value) error {
		value, err := value()
		if value.Kind() == '"' && len(value) > len(`""`) {
			*into = value
		}
		return err
	}
	err = members(dec, func(name []byte) error {
		switch string(name) {
		case "index":
			value, err := value()
			call.index, _ = strconv.ParseInt(string(value), 10, 64) // nonsense is the first
			return err
		case "id":
			return text(&call.id)
		case "function":
			if dec.PeekKind() == '{' {
				return members(dec, func(name []byte) error {
					switch string(name) {
					case "name":
						return text(&call.name)
					case "arguments":
						return text(&call.arguments)
					}
					return dec.SkipValue()
				})
			}
		}
		return dec.SkipValue()
	})
	return call, err
}
