package engine

import (
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// The allow-list of decisions 5: what of a stranger's body an engine may see.
// It is a description of JSON, copied value by value in one pass; what it does
// not name is left out, what it names and does not fit is refused or clamped.
// Switches of engines (n_predict, grammar, id_slot, …) are not in it, nor is
// anything an engine could take for an address or a file.

// Bounds of a stranger's call.
const (
	mostMessages    = dialect.MostMessages
	mostParts       = 1024                 // of one message
	mostMedia       = dialect.MostPictures // and sounds, of one call
	mostTools       = 512
	mostStops       = 16
	mostBiases      = 512
	mostInputs      = 2048 // of an embeddings call
	mostInputTokens = 64 << 10
	longestName     = 256
	longestStop     = 1024
	mostAnswers     = 4 // n
	mostSchemaDepth = 32
	mostSchemaNodes = 16 << 10 // of all the schemas of a call
	mostRepeats     = 1000     // of minItems, maxLength and their like
)

// A shape is what may stand at one place.
type shape struct {
	kinds string // the JSON kinds allowed there: { [ " 0 t f n
	copy  func(c *copier) error
}

// members are the shapes of an object's members.
type members map[string]shape

var chatMembers = members{
	"messages":            list(mostMessages, object(message)),
	"tools":               list(mostTools, object(tool)),
	"tool_choice":         either(word("none", "auto", "required"), object(toolChoice)),
	"parallel_tool_calls": truth,
	"response_format":     object(responseFormat),
	"temperature":         number(0, 2),
	"top_p":               number(0, 1),
	"min_p":               number(0, 1),
	"top_k":               whole(0, 1000),
	"presence_penalty":    number(-2, 2),
	"frequency_penalty":   number(-2, 2),
	"repetition_penalty":  number(0.5, 2),
	"n":                   {"0", (*copier).answers},
	"seed":                {"0", (*copier).seed},
	"stop":                either(text(longestStop), list(mostStops, text(longestStop))),
	"logit_bias":          {"{", (*copier).biases},
	"logprobs":            truth,
	"top_logprobs":        whole(0, 20),
}

var embeddingMembers = members{
	"input":      {`"[`, (*copier).input},
	"dimensions": whole(1, 64<<10),
}

var message = members{
	"role":              word("system", "developer", "user", "assistant", "tool", "function"),
	"content":           either(either(text(0), null), list(mostParts, object(part))),
	"name":              text(longestName),
	"tool_calls":        list(mostTools, object(toolCall)),
	"tool_call_id":      text(longestName),
	"reasoning_content": text(0),
	"reasoning":         text(0),
	"refusal":           text(0),
}

var part = members{
	"type":        word("text", "image_url", "input_audio", "refusal"),
	"text":        text(0),
	"refusal":     text(0),
	"image_url":   either(object(members{"url": image, "detail": word("auto", "low", "high")}), shape{`"`, (*copier).bareImage}),
	"input_audio": object(members{"data": {`"`, (*copier).sound}, "format": word("wav", "mp3")}),
}

var toolCall = members{
	"id":       text(longestName),
	"type":     word("function"),
	"index":    whole(0, mostTools),
	"function": object(members{"name": text(longestName), "arguments": text(0)}),
}

var tool = members{
	"type": word("function"),
	"function": object(members{
		"name": text(longestName), "description": text(0), "strict": truth, "parameters": schema,
	}),
}

var toolChoice = members{
	"type":     word("function"),
	"function": object(members{"name": text(longestName)}),
}

var responseFormat = members{
	"type": word("text", "json_object", "json_schema"),
	"json_schema": object(members{
		"name": text(longestName), "description": text(0), "strict": truth, "schema": schema,
	}),
}

var (
	truth  = shape{"tf", (*copier).token}
	null   = shape{"n", (*copier).token}
	image  = shape{`"`, (*copier).image}
	schema = shape{"{", func(c *copier) error { return c.schema(0) }}
)

// copier carries a body from the caller's JSON to the engine's.
type copier struct {
	dec   *jsontext.Decoder
	enc   *jsontext.Encoder
	media int // pictures and sounds so far
	nodes int // of schemas so far

	inputs int  // to embed
	tokens bool // in numbers
}

// token copies one token.
func (c *copier) token() error {
	t, err := c.dec.ReadToken()
	if err != nil {
		return err
	}
	return c.enc.WriteToken(t)
}

// refuse is a fault at the value that was just read or is next.
func (c *copier) refuse(format string, args ...any) error {
	where := strings.ReplaceAll(strings.TrimPrefix(string(c.dec.StackPointer()), "/"), "/", ".")
	return fault.New(fault.InvalidRequest, where+": "+format, args...).WithParam(where)
}

// tooMany is the fault of the list that is read, which has more than most elements.
func (c *copier) tooMany(most int) error {
	where := strings.ReplaceAll(strings.TrimPrefix(string(c.dec.StackPointer().Parent()), "/"), "/", ".")
	return fault.New(fault.InvalidRequest, "%s: more than %d are not taken in one call; send fewer", where, most).WithParam(where)
}

// one copies the value of the member called name, or leaves it out. Null says
// nothing where it is not a value of its own.
func (m members) one(c *copier, name string) error {
	s, ok := m[name]
	kind := c.dec.PeekKind()
	if !ok || kind == 'n' && !s.takes(kind) {
		return c.dec.SkipValue()
	}
	if err := c.enc.WriteToken(jsontext.String(name)); err != nil {
		return err
	}
	return s.put(c)
}

func (s shape) takes(kind jsontext.Kind) bool { return strings.IndexByte(s.kinds, byte(kind)) >= 0 }

// put copies the next value if it is of a kind that s takes.
func (s shape) put(c *copier) error {
	if kind := c.dec.PeekKind(); !s.takes(kind) {
		if _, err := c.dec.ReadValue(); err != nil {
			return err
		}
		return c.refuse("this cannot be %s", kind)
	}
	return s.copy(c)
}

// object is an object of these members.
func object(m members) shape {
	return shape{"{", func(c *copier) error {
		if err := c.token(); err != nil {
			return err
		}
		for c.dec.PeekKind() != '}' {
			name, err := c.dec.ReadToken()
			if err != nil {
				return err
			}
			if err := m.one(c, name.String()); err != nil {
				return err
			}
		}
		return c.token()
	}}
}

// list is an array of at most that many.
func list(most int, of shape) shape {
	return shape{"[", func(c *copier) error {
		if err := c.token(); err != nil {
			return err
		}
		for n := 0; c.dec.PeekKind() != ']'; n++ {
			if n == most {
				return c.tooMany(most)
			}
			if err := of.put(c); err != nil {
				return err
			}
		}
		return c.token()
	}}
}

// either is a or, for the kinds a does not take, b.
func either(a, b shape) shape {
	return shape{a.kinds + b.kinds, func(c *copier) error {
		if a.takes(c.dec.PeekKind()) {
			return a.put(c)
		}
		return b.put(c)
	}}
}

// text is a string of at most so many bytes; 0: as long as a body may be.
func text(most int) shape {
	return shape{`"`, func(c *copier) error {
		t, err := c.dec.ReadToken()
		if err != nil {
			return err
		}
		if most > 0 && len(t.String()) > most {
			return c.refuse("longer than %d bytes is not taken", most)
		}
		return c.enc.WriteToken(t)
	}}
}

// word is one of these strings.
func word(words ...string) shape {
	return shape{`"`, func(c *copier) error {
		t, err := c.dec.ReadToken()
		if err != nil {
			return err
		}
		if !slices.Contains(words, t.String()) {
			return c.refuse("this must be one of %s", strings.Join(words, ", "))
		}
		return c.enc.WriteToken(t)
	}}
}

// number is clamped to lo and hi.
func number(lo, hi float64) shape {
	return shape{"0", func(c *copier) error {
		t, err := c.dec.ReadToken()
		if err != nil {
			return err
		}
		n, _ := t.Float() // out of range is infinite, and clamped
		return c.enc.WriteToken(jsontext.Float(min(max(n, lo), hi)))
	}}
}

// whole is a whole number, clamped to lo and hi.
func whole(lo, hi int64) shape {
	return shape{"0", func(c *copier) error {
		t, err := c.dec.ReadToken()
		if err != nil {
			return err
		}
		n, _ := t.Int() // truncated and saturated
		return c.enc.WriteToken(jsontext.Int(min(max(n, lo), hi)))
	}}
}

// answers is n. Fewer answers than were asked for would be no answer to the
// request, so a number out of bounds is refused.
func (c *copier) answers() error {
	t, err := c.dec.ReadToken()
	if err != nil {
		return err
	}
	if n, err := strconv.ParseInt(t.String(), 10, 64); err != nil || n < 1 || n > mostAnswers {
		return c.refuse("this must be a whole number from 1 to %d", mostAnswers)
	}
	return c.enc.WriteToken(t)
}

// seed is a number of any size and sign. What is not within the 31 bits that every
// engine takes is hashed into them, so that seeds that differ stay different and
// none asks an engine for a random one, as -1 asks llama.cpp.
func (c *copier) seed() error {
	t, err := c.dec.ReadToken()
	if err != nil {
		return err
	}
	text := t.String()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		signed, err := strconv.ParseInt(text, 10, 64)
		if n = uint64(signed); err != nil { // longer, or no whole number
			hash := fnv.New64a()
			hash.Write([]byte(text))
			n = hash.Sum64()
		}
	}
	if n > math.MaxInt32 {
		n = n * 0x9e3779b97f4a7c15 >> 33 // Fibonacci hashing: the upper bits depend on all
	}
	return c.enc.WriteToken(jsontext.Uint(n))
}

// biases is logit_bias: token numbers with a weight each.
func (c *copier) biases() error {
	if err := c.token(); err != nil {
		return err
	}
	for n := 0; c.dec.PeekKind() != '}'; n++ {
		name, err := c.dec.ReadToken()
		if err != nil {
			return err
		}
		token := name.String()
		if n == mostBiases || len(token) > 9 || strings.Trim(token, "0123456789") != "" {
			return c.refuse("only up to %d token numbers are taken", mostBiases)
		}
		if err := c.enc.WriteToken(jsontext.String(token)); err != nil {
			return err
		}
		if err := number(-100, 100).put(c); err != nil {
			return err
		}
	}
	return c.token()
}

// image is a picture's address, which has to be the picture itself.
func (c *copier) image() error {
	t, err := c.dec.ReadToken()
	if err != nil {
		return err
	}
	url := t.String()
	head, data, _ := strings.Cut(url, ",")
	switch head {
	case "data:image/png;base64", "data:image/jpeg;base64", "data:image/jpg;base64", "data:image/webp;base64", "data:image/gif;base64":
	default:
		return c.refuse("pictures are taken as data: URLs only (png, jpeg, webp or gif, base64)")
	}
	if err := c.medium(data); err != nil {
		return err
	}
	return c.enc.WriteToken(jsontext.String(url))
}

// bareImage is a picture without the object around it, which it is given.
func (c *copier) bareImage() error {
	if err := c.enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	if err := c.enc.WriteToken(jsontext.String("url")); err != nil {
		return err
	}
	if err := c.image(); err != nil {
		return err
	}
	return c.enc.WriteToken(jsontext.EndObject)
}

// sound is the base64 of an audio clip.
func (c *copier) sound() error {
	t, err := c.dec.ReadToken()
	if err != nil {
		return err
	}
	data := t.String()
	if err := c.medium(data); err != nil {
		return err
	}
	return c.enc.WriteToken(jsontext.String(data))
}

// medium checks that data is base64 and nothing else: one picture, not the
// thousand frames of a film, and no address.
func (c *copier) medium(data string) error {
	if c.media++; c.media > mostMedia {
		return c.refuse("more than %d pictures and sounds are not taken in one call; send fewer", mostMedia)
	}
	data = strings.TrimRight(data, "=")
	for i := range len(data) {
		b := data[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '+' || b == '/') {
			return c.refuse("this is not base64")
		}
	}
	return nil
}

// schema copies a JSON schema without what has broken engines: patterns
// (crashes in the regular-expression readers), huge repetitions, references to
// anywhere else, depth. What is left out only widens what the schema allows.
func (c *copier) schema(depth int) error {
	if depth > mostSchemaDepth {
		return c.refuse("schemas deeper than %d are not taken", mostSchemaDepth)
	}
	if c.nodes++; c.nodes > mostSchemaNodes {
		return c.refuse("schemas of more than %d parts are not taken", mostSchemaNodes)
	}
	switch c.dec.PeekKind() {
	case '[':
		return list(mostSchemaNodes, shape{"{[\"0tfn", func(c *copier) error { return c.schema(depth + 1) }}).copy(c)
	case '{':
	default:
		return c.token()
	}
	if err := c.token(); err != nil {
		return err
	}
	for c.dec.PeekKind() != '}' {
		name, err := c.dec.ReadToken()
		if err != nil {
			return err
		}
		if err := c.keyword(name.String(), depth+1); err != nil {
			return err
		}
	}
	return c.token()
}

// keyword copies one member of a schema.
func (c *copier) keyword(name string, depth int) error {
	kind := c.dec.PeekKind()
	inside := shape{"{[\"0tfn", func(c *copier) error { return c.schema(depth) }}
	switch name {
	case "$schema", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$comment", "pattern", "patternProperties", "contentMediaType", "contentEncoding":
		return c.dec.SkipValue()
	case "$ref":
		inside = shape{`"`, (*copier).ref}
	case "properties", "$defs", "definitions", "dependentSchemas":
		inside = shape{"{", func(c *copier) error { return c.named(depth) }}
	case "enum", "const", "default", "examples":
		inside = shape{"{[\"0tfn", func(c *copier) error { return c.data(depth) }}
	case "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties":
		value, err := c.dec.ReadValue()
		if err != nil {
			return err
		}
		if n := atoi(value); kind != '0' || n < 0 || n > mostRepeats || n == 0 && string(value) != "0" {
			return nil
		}
		if err := c.enc.WriteToken(jsontext.String(name)); err != nil {
			return err
		}
		return c.enc.WriteValue(value)
	}
	if err := c.enc.WriteToken(jsontext.String(name)); err != nil {
		return err
	}
	return inside.put(c)
}

// named copies an object whose members are schemas under names of the
// caller's choice.
func (c *copier) named(depth int) error {
	if err := c.token(); err != nil {
		return err
	}
	for c.dec.PeekKind() != '}' {
		if err := c.token(); err != nil {
			return err
		}
		if err := c.schema(depth + 1); err != nil {
			return err
		}
	}
	return c.token()
}

// ref copies a reference, which has to stay inside the schema.
func (c *copier) ref() error {
	t, err := c.dec.ReadToken()
	if err != nil {
		return err
	}
	to := t.String()
	if !strings.HasPrefix(to, "#") || len(to) > 4*longestName {
		return c.refuse("a schema may refer to itself only, as in #/$defs/name")
	}
	return c.enc.WriteToken(jsontext.String(to))
}

// data copies a value that is no schema but an example or a choice.
func (c *copier) data(depth int) error {
	value, err := c.dec.ReadValue()
	if err != nil {
		return err
	}
	deep, level := 0, 0
	for _, b := range value { // an upper bound: brackets inside strings count too
		switch b {
		case '{', '[':
			level++
			deep = max(deep, level)
		case '}', ']':
			level--
		}
	}
	if c.nodes += len(value) / 16; depth+deep > mostSchemaDepth || c.nodes > mostSchemaNodes {
		return c.refuse("values this deep or long are not taken in a schema")
	}
	return c.enc.WriteValue(value)
}
