package dialect

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A machine is asked in the chat dialect and names the member at fault in the
// body that it was sent. The functions of this file find what the caller wrote
// there, for the caller's own dialect. A place is written as everywhere in faults:
// names and indexes with dots between them.

// maxParam bounds the place that a machine may name, in bytes.
const maxParam = 256

// EngineParam is the member that an error document says is at fault; empty if it
// names none. It is a machine's word: HasMember reports whether it is in a body.
func EngineParam(document []byte) string {
	var body struct {
		Error struct {
			Param string `json:"param"`
		} `json:"error"`
	}
	if json.Unmarshal(document, &body) != nil || len(body.Error.Param) > maxParam {
		return ""
	}
	return body.Error.Param
}

// HasMember reports whether the place is in the body.
func HasMember(body []byte, place string) bool {
	_, _, ok := spanOf(body, place)
	return ok
}

// LocateMessages is the place in a body of the messages dialect that became the
// place in its translation to chat; empty where nothing of the caller's did.
func LocateMessages(body []byte, place string) string {
	q, err := readMessages(body)
	if err != nil {
		return ""
	}
	return q.locate(place, messagesPlaces)
}

// Locate is the place in the request's body that became the place in its
// translation to chat; empty where nothing of the caller's did.
func (r *Response) Locate(place string) string {
	a := r.request.asked
	if a.choice.kind == "none" {
		a.tools = nil // as in Chat
	}
	return a.locate(place, responsesPlaces)
}

// places are the members of a chat body that a translation rewrites, with
// their places in the caller's dialect; the first that is there is meant.
type places []struct{ chat, own string }

var messagesPlaces = places{
	{"response_format.json_schema.schema", "output_config.format.schema"}, {"response_format.json_schema.schema", "output_format.schema"},
	{"response_format", "output_config.format"}, {"response_format", "output_format"},
	{"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"}, {"reasoning", "thinking"},
}

var responsesPlaces = places{
	{"response_format.json_schema.schema", "text.format.schema"}, {"response_format.json_schema", "text.format"}, {"response_format", "text.format"},
	{"reasoning_effort", "reasoning.effort"}, {"thinking", "reasoning"}, {"logprobs", "include"},
}

// locate is the place in the body of what the translation has at the place.
func (q *asked) locate(place string, known places) string {
	c := chatBody{origins: &origins{body: q.body}}
	if c.write(q) != nil {
		return ""
	}
	begin, end, ok := spanOf(c.dst, place)
	if !ok {
		return ""
	}
	if own := c.origins.within(begin, end); own != "" {
		return own
	}
	for _, p := range known {
		if rest, found := strings.CutPrefix(place, p.chat); found && (rest == "" || rest[0] == '.') {
			for _, own := range []string{p.own + rest, p.own} {
				if HasMember(q.body, own) {
					return own
				}
			}
		}
	}
	first, _, _ := strings.Cut(place, ".")
	switch {
	case HasMember(q.body, first):
		return first
	case first == "messages" && HasMember(q.body, q.talk):
		return q.talk
	}
	return ""
}

// origins are the parts of the caller's body that a translation is put together
// from.
type origins struct {
	body  []byte
	parts []origin
}

// An origin is a part of the caller's body: where it is in the translation, where
// it was, and its length.
type origin struct{ at, from, length int }

// note takes down that a value of the caller's is written at a place; one that is
// no part of the body itself is none.
func (o *origins) note(at int, value []byte) {
	from := cap(o.body) - cap(value) // both end where their array does
	if len(value) == 0 || from < 0 || from+len(value) > len(o.body) || &o.body[from] != &value[0] {
		return
	}
	o.parts = append(o.parts, origin{at, from, len(value)})
}

// within is the place in the caller's body that all of a span of the translation
// came from; empty if none of it did, or it came from all over. What all of it has
// in common, the first and the last of it have.
func (o *origins) within(begin, end int) string {
	first, last := len(o.body), -1
	for _, p := range o.parts {
		if p.at+p.length <= begin || p.at >= end {
			continue
		}
		from := p.from + max(begin-p.at, 0)
		first, last = min(first, from), max(last, from)
	}
	if last < 0 {
		return ""
	}
	place, other := placeAt(o.body, first), placeAt(o.body, last)
	same := 0
	for same < min(len(place), len(other)) && place[same] == other[same] {
		same++
	}
	return strings.Join(place[:same], ".")
}

// placeAt are the names and indexes that lead to the value at an offset of a body
// that was read before.
func placeAt(body []byte, offset int) []string {
	dec := jsontext.NewDecoder(bytes.NewBuffer(body))
	for {
		if _, err := dec.ReadToken(); err != nil {
			return nil
		}
		if dec.InputOffset() > int64(offset) {
			return strings.Split(strings.TrimPrefix(string(dec.StackPointer()), "/"), "/")
		}
	}
}

// pointerEscapes is how a JSON pointer writes a member's name.
var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// spanOf is where in a document the value at a place begins and ends.
func spanOf(document []byte, place string) (begin, end int, ok bool) {
	begin, end, left := follow(jsontext.NewDecoder(bytes.NewBuffer(document)), place)
	return begin, end, left == 0 && end > begin
}

// DeepestMember is the place, or the most of its beginning that is in the body;
// empty where nothing of it is.
func DeepestMember(body []byte, place string) string {
	_, _, left := follow(jsontext.NewDecoder(bytes.NewBuffer(body)), place)
	return strings.TrimSuffix(place[:len(place)-left], ".")
}

// follow reads the next value and goes as far into it as the place leads: it returns
// where what it comes to begins and ends, and how many bytes of the place are left.
// A name may hold dots: the first way that leads to the end of the place is taken,
// else the one that leads farthest. Each byte is read once, whatever the place.
func follow(dec *jsontext.Decoder, place string) (begin, end, left int) {
	left = len(place)
	kind := dec.PeekKind()
	if place == "" || kind != '{' && kind != '[' {
		value, err := dec.ReadValue()
		if err != nil {
			return 0, 0, left
		}
		end = int(dec.InputOffset())
		return end - len(value), end, left
	}
	if _, err := dec.ReadToken(); err != nil {
		return 0, 0, left
	}
	for i := 0; !slices.Contains([]jsontext.Kind{0, '}', ']'}, dec.PeekKind()); i++ {
		name := strconv.Itoa(i)
		if kind == '{' {
			token, err := dec.ReadToken()
			if err != nil {
				return begin, end, left
			}
			name = pointerEscapes.Replace(token.String())
		}
		rest, led := strings.CutPrefix(place, name)
		if !led || rest != "" && rest[0] != '.' {
			if dec.SkipValue() != nil {
				return begin, end, left
			}
			continue
		}
		from, to, more := follow(dec, strings.TrimPrefix(rest, "."))
		if to > from && more < left {
			begin, end, left = from, to, more
		}
		if left == 0 {
			return begin, end, 0
		}
	}
	_, _ = dec.ReadToken() // its end; where it is broken, so is what follows
	if end == 0 {          // nothing of the place is in it: it is as far as this goes
		end = int(dec.InputOffset())
	}
	return begin, end, left
}
