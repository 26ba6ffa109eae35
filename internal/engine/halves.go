package engine

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// halves joins the halves of characters that an engine split over two chunks of a
// stream: one that escapes its text, and cuts it between tokens, writes the first
// surrogate of an emoji at the end of one text and the second at the beginning of
// the next. A half that stays alone becomes U+FFFD. The zero halves holds none.
type halves struct {
	held            map[textPlace]string // the escape that ended a text, by where it was
	object, created jsontext.Value       // of the last chunk that left one
}

// A textPlace is where in a stream text goes on from chunk to chunk.
type textPlace struct {
	choice int
	call   int    // of the choice; -1: it is no text of a call
	field  string // the last name of its path
}

// replacement is U+FFFD, as it is written instead of a half that is alone.
const replacement = `\ufffd`

// A numbered chunk has what says to which places its texts belong.
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

// place is where the text at the path belongs; false: nothing goes on there.
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

// join returns the chunk with the halves of the chunks before it, and without
// those that the next may complete. lost are chunks for the halves of choices
// that this one ends: they come before it. What is not JSON stays as it is.
func (h *halves) join(chunk []byte) (joined []byte, lost [][]byte) {
	if len(h.held) == 0 && !loneHalf(chunk) {
		return chunk, nil
	}
	var n numbered
	// The texts themselves are not read, but they are in the way.
	if err := json.Unmarshal(chunk, &n, jsontext.AllowInvalidUTF8(true)); err != nil {
		return chunk, nil
	}
	joined, err := eachText(chunk, func(path jsontext.Pointer, text []byte) []byte {
		p, goesOn := n.place(path)
		if !goesOn {
			return replaceHalves(text)
		}
		text = append([]byte(h.held[p]), text...)
		delete(h.held, p)
		if end := lastHalf(text); end >= 0 && !n.finished(p.choice) && len(h.held) < maxChoices {
			if h.held == nil {
				h.held = map[textPlace]string{}
			}
			h.held[p], h.object, h.created = string(text[end:]), bytes.Clone(n.Object), bytes.Clone(n.Created)
			text = text[:end]
		}
		return replaceHalves(text)
	})
	if err != nil {
		return chunk, nil
	}
	for p := range h.held {
		if n.finished(p.choice) {
			lost = append(lost, h.alone(p))
		}
	}
	return joined, lost
}

// rest are chunks for the halves that no chunk completed.
func (h *halves) rest() (lost [][]byte) {
	for p := range h.held {
		lost = append(lost, h.alone(p))
	}
	return lost
}

// alone is a chunk that says U+FFFD where a half was held.
func (h *halves) alone(p textPlace) []byte {
	delete(h.held, p)
	delta := fmt.Sprintf(`{"%s":"%s"}`, p.field, replacement)
	if p.call >= 0 {
		delta = fmt.Sprintf(`{"tool_calls":[{"index":%d,"function":%s}]}`, p.call, delta)
	}
	head := ""
	if h.object != nil {
		head += `"object":` + string(h.object) + `,`
	}
	if h.created != nil {
		head += `"created":` + string(h.created) + `,`
	}
	return fmt.Appendf(nil, `{%s"choices":[{"index":%d,"delta":%s,"finish_reason":null}]}`, head, p.choice, delta)
}

// wholeTexts is an answer whose halves of characters, which nothing can complete,
// are U+FFFD.
func wholeTexts(answer []byte) []byte {
	if !loneHalf(answer) {
		return answer
	}
	if texts, err := eachText(answer, func(_ jsontext.Pointer, text []byte) []byte { return replaceHalves(text) }); err == nil {
		return texts
	}
	return answer
}

// eachText is a JSON document, each of whose strings that is no member's name is
// what change makes of it: the inside of the string, as it is written.
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

// surrogate is the code of the escape \uD800 to \uDFFF at the start of text; 0: it
// is none.
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

// nextHalf is where the first half of a character without its other is, from a
// place in JSON on; -1: there is none.
func nextHalf(text []byte, from int) int {
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

// loneHalf reports whether JSON has half a character somewhere.
func loneHalf(text []byte) bool { return nextHalf(text, 0) >= 0 }

// lastHalf is where the text ends with the first half of a character; -1: it does
// not.
func lastHalf(text []byte) int {
	for i := nextHalf(text, 0); i >= 0; i = nextHalf(text, i+len(replacement)) {
		if i == len(text)-len(replacement) && surrogate(text[i:]) < 0xDC00 {
			return i
		}
	}
	return -1
}

// replaceHalves is the text with U+FFFD for each half of a character.
func replaceHalves(text []byte) []byte {
	i := nextHalf(text, 0)
	if i < 0 {
		return text
	}
	text = bytes.Clone(text)
	for ; i >= 0; i = nextHalf(text, i) {
		copy(text[i:], replacement)
	}
	return text
}
