package engine

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// surrogates joins surrogate pairs that an engine split over two chunks. An engine
// that escapes its text and cuts it between tokens writes the first surrogate of
// an emoji at the end of one text and the second at the beginning of the next. A
// surrogate that stays alone becomes U+FFFD.
type surrogates struct {
	held            map[textPlace]string // the escape at the end of a text
	object, created jsontext.Value       // of the last chunk that ended so
}

// textPlace identifies a text that continues from chunk to chunk.
type textPlace struct {
	choice int
	call   int    // of the choice; -1 if the text is not part of a call
	field  string // the last name of its path
}

// replacement is U+FFFD as a JSON escape.
const replacement = `\ufffd`

// numbered holds the numbers of the choices and calls of a chunk.
type numbered struct {
	Object  jsontext.Value `json:"object"`
	Created jsontext.Value `json:"created"`
	Choices []struct {
		Index  *int           `json:"index"`
		Finish jsontext.Value `json:"finish_reason"`
		Delta  struct {
			Calls []struct {
				Index *int `json:"index"`
			} `json:"tool_calls"`
		} `json:"delta"`
	} `json:"choices"`
}

// place returns the place of the text at path, or false if it does not continue.
func (n *numbered) place(path jsontext.Pointer) (textPlace, bool) {
	names := strings.Split(strings.TrimPrefix(string(path), "/"), "/")
	if len(names) < 4 || names[0] != "choices" || names[2] != "delta" {
		return textPlace{}, false
	}
	at, _ := strconv.Atoi(names[1])
	if at >= len(n.Choices) {
		return textPlace{}, false
	}
	p := textPlace{at, -1, names[len(names)-1]}
	choice := &n.Choices[at]
	if choice.Index != nil {
		p.choice = *choice.Index
	}
	if names[3] == "tool_calls" && len(names) > 4 {
		p.call, _ = strconv.Atoi(names[4])
		if p.call < len(choice.Delta.Calls) && choice.Delta.Calls[p.call].Index != nil {
			p.call = *choice.Delta.Calls[p.call].Index
		}
	}
	return p, true
}

// finished reports whether the chunk ends the choice.
func (n *numbered) finished(choice int) bool {
	for i := range n.Choices {
		c := &n.Choices[i]
		if c.Finish.Kind() == '"' && (c.Index == nil && i == choice || c.Index != nil && *c.Index == choice) {
			return true
		}
	}
	return false
}

// join adds the surrogates of earlier chunks to the chunk and removes those that
// the next chunk may complete. lost are chunks for the surrogates of choices that
// this chunk ends; they come before it. What is not JSON stays unchanged.
func (h *surrogates) join(chunk []byte) (joined []byte, lost [][]byte) {
	if len(h.held) == 0 && !hasLone(chunk) {
		return chunk, nil
	}
	var n numbered
	// Invalid UTF-8 includes lone surrogates.
	if err := json.Unmarshal(chunk, &n, jsontext.AllowInvalidUTF8(true)); err != nil {
		return chunk, nil
	}
	joined, err := eachText(chunk, func(path jsontext.Pointer, text []byte) []byte {
		p, goesOn := n.place(path)
		if !goesOn {
			return replaceLone(text)
		}
		text = append([]byte(h.held[p]), text...)
		delete(h.held, p)
		if end := trailing(text); end >= 0 && !n.finished(p.choice) && len(h.held) < maxChoices {
			if h.held == nil {
				h.held = map[textPlace]string{}
			}
			h.held[p], h.object, h.created = string(text[end:]), bytes.Clone(n.Object), bytes.Clone(n.Created)
			text = text[:end]
		}
		return replaceLone(text)
	})
	if err != nil {
		return chunk, nil
	}
	for p := range h.held {
		if n.finished(p.choice) {
			lost = append(lost, h.replaced(p))
		}
	}
	return joined, lost
}

// rest returns chunks for the surrogates that no chunk completed.
func (h *surrogates) rest() (lost [][]byte) {
	for p := range h.held {
		lost = append(lost, h.replaced(p))
	}
	return lost
}

// replaced returns a chunk with U+FFFD for a held surrogate.
func (h *surrogates) replaced(p textPlace) []byte {
	delete(h.held, p)
	type object = map[string]any
	delta := object{p.field: jsontext.Value(`"` + replacement + `"`)}
	if p.call >= 0 {
		type call struct {
			Index    int    `json:"index"`
			Function object `json:"function"`
		}
		delta = object{"tool_calls": []call{{p.call, delta}}}
	}
	type choice struct {
		Index  int    `json:"index"`
		Delta  object `json:"delta"`
		Finish any    `json:"finish_reason"`
	}
	chunk, _ := json.Marshal(struct { // all strings came from valid JSON
		Object  jsontext.Value `json:"object,omitzero"`
		Created jsontext.Value `json:"created,omitzero"`
		Choices []choice       `json:"choices"`
	}{h.object, h.created, []choice{{p.choice, delta, nil}}}, jsontext.PreserveRawStrings(true))
	return chunk
}

// replaceSurrogates returns the answer with U+FFFD for each lone surrogate.
func replaceSurrogates(answer []byte) []byte {
	if !hasLone(answer) {
		return answer
	}
	if texts, err := eachText(answer, func(_ jsontext.Pointer, text []byte) []byte { return replaceLone(text) }); err == nil {
		return texts
	}
	return answer
}

// eachText returns the JSON document with change applied to each string value, in
// its escaped form without the quotes.
func eachText(document []byte, change func(path jsontext.Pointer, text []byte) []byte) ([]byte, error) {
	out := make([]byte, 0, len(document)+len(replacement))
	dec := jsontext.NewDecoder(bytes.NewBuffer(document), jsontext.AllowInvalidUTF8(true))
	copied := 0
	for dec.PeekKind() != 0 || dec.StackDepth() > 0 {
		from := int(dec.InputOffset())
		token, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		if kind, length := dec.StackIndex(dec.StackDepth()); token.Kind() != '"' || kind == '{' && length%2 == 1 {
			continue
		}
		begin := from + bytes.IndexByte(document[from:], '"') + 1 // white space, a comma or a colon before it
		end := int(dec.InputOffset()) - 1
		out = append(out, document[copied:begin]...)
		out = append(out, change(dec.StackPointer(), document[begin:end])...)
		copied = end
	}
	return append(out, document[copied:]...), nil
}

// surrogate returns the code of the escape \uD800 to \uDFFF at the start of text,
// or 0.
func surrogate(text []byte) uint64 {
	if len(text) < len(replacement) || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	code, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil || code < 0xD800 || code > 0xDFFF {
		return 0
	}
	return code
}

// nextLone returns the index of the first lone surrogate in JSON from an index on,
// or -1.
func nextLone(text []byte, from int) int {
	for i := from; i < len(text); {
		n := bytes.IndexByte(text[i:], '\\')
		if n < 0 {
			break
		}
		i += n
		switch code := surrogate(text[i:]); {
		case code == 0:
			i += 2
		case code < 0xDC00 && surrogate(text[i+len(replacement):]) >= 0xDC00:
			i += 2 * len(replacement)
		default:
			return i
		}
	}
	return -1
}

// hasLone reports whether JSON has a lone surrogate.
func hasLone(text []byte) bool { return nextLone(text, 0) >= 0 }

// trailing returns the index of a first surrogate at the end of text, or -1.
func trailing(text []byte) int {
	for i := nextLone(text, 0); i >= 0; i = nextLone(text, i+len(replacement)) {
		if i == len(text)-len(replacement) && surrogate(text[i:]) < 0xDC00 {
			return i
		}
	}
	return -1
}

// replaceLone returns the text with U+FFFD for each lone surrogate.
func replaceLone(text []byte) []byte {
	i := nextLone(text, 0)
	if i < 0 {
		return text
	}
	text = bytes.Clone(text)
	for ; i >= 0; i = nextLone(text, i) {
		copy(text[i:], replacement)
	}
	return text
}
