package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"slices"
	"strconv"
	"strings"
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
	begin, end, left := follow(jsontext.NewDecoder(bytes.NewBuffer(body)), place)
	return left == 0 && end > begin
}

// LocateMessages is the place in a body of the messages dialect that became the
// place in its translation to chat; empty where nothing of the caller's did.
func LocateMessages(body []byte, place string) string {
	q, err := readMessages(body)
	if err != nil {
		return ""
	}
	return q.locate(place, messagesRewordings)
}

// Locate is the place in the request's body that became the place in its
// translation to chat; empty where nothing of the caller's did.
func (r *Response) Locate(place string) string {
	return r.request.chosen().locate(place, responsesRewordings)
}

// rewording is a member of a chat body that a translation words itself, with its place in the caller's dialect.
type rewording struct{ chat, own string }

// Of several rewordings of one member, the first that is in the caller's body is meant.
var messagesRewordings = []rewording{
	{"thinking", "thinking"}, {"response_format", "output_config.format"}, {"response_format", "output_format"},
	{"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"}, {"reasoning", "thinking"},
}

var responsesRewordings = []rewording{
	{"response_format", "text.format"}, {"reasoning_effort", "reasoning.effort"}, {"thinking", "reasoning"}, {"logprobs", "include"},
}

// locate is the place in the body of what the translation has at the place.
func (q *request) locate(place string, known []rewording) string {
	chat, _, err := newChatRequest(q)
	if err != nil {
		return ""
	}
	document, err := json.Marshal(chat, encoding, offsets(q.body))
	if err != nil {
		return ""
	}
	begin, end, left := follow(jsontext.NewDecoder(bytes.NewBuffer(document)), place)
	if end <= begin {
		return ""
	}
	found := numbersIn(document[begin:end])
	switch {
	case left > 0 && len(found) == 1: // in a value of the caller's
		own := strings.Join(placeAt(q.body, found[0]), ".") + "." + place[len(place)-left:]
		if !HasMember(q.body, own) {
			own = ""
		}
		return own
	case left > 0:
		return ""
	case len(found) > 0 && !slices.ContainsFunc(known, func(p rewording) bool { return p.chat == place }):
		if own := common(q.body, slices.Min(found), slices.Max(found)); own != "" {
			return own
		}
	}
	for _, p := range known {
		if rest, led := strings.CutPrefix(place, p.chat); led && (rest == "" || rest[0] == '.') {
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
	case first == "messages" && HasMember(q.body, q.turnsMember):
		return q.turnsMember
	}
	return ""
}

// offsets has json write each value as its offset in the body, from which it was taken, and what is no part of the body
// as null. The numbers of such a document then say where in the body its parts come from.
func offsets(body []byte) json.Options {
	write := func(enc *jsontext.Encoder, value []byte) error {
		from := cap(body) - cap(value) // both end where their array does
		if len(value) == 0 || from < 0 || from+len(value) > len(body) || &body[from] != &value[0] {
			return enc.WriteToken(jsontext.Null)
		}
		return enc.WriteToken(jsontext.Int(int64(from)))
	}
	return json.WithMarshalers(json.JoinMarshalers(
		json.MarshalToFunc(func(enc *jsontext.Encoder, v jsontext.Value) error { return write(enc, v) }),
		json.MarshalToFunc(func(enc *jsontext.Encoder, v quotedJSON) error { return write(enc, v) }),
		json.MarshalToFunc(func(enc *jsontext.Encoder, p prose) error { return json.MarshalEncode(enc, p.texts) }),
	))
}

func numbersIn(document []byte) (numbers []int) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(document))
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return numbers
		}
		if token.Kind() == '0' {
			n, _ := token.Int()
			numbers = append(numbers, int(n))
		}
	}
}

// common is the place that the values at two offsets of the body have in common; empty where that is all of it. What
// lies between the two is in that place too.
func common(body []byte, first, last int) string {
	place, other := placeAt(body, first), placeAt(body, last)
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
