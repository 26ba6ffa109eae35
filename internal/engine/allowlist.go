package engine

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// The allow-list defines which members of an untrusted body reach an engine. It describes
// JSON that is copied value by value in one pass. Members that are not in it are omitted;
// those in it with invalid values are refused or clamped. It contains no options of
// engines (n_predict, grammar, id_slot, …) and nothing that an engine could treat as an
// address or a file (spec/api.md#allow-list).

// The limits for an untrusted call.
const (
	maxMessages    = dialect.MaxMessages
	maxParts       = 1024                // in a message
	maxMedia       = dialect.MaxPictures // images and sounds
	maxTools       = 512
	maxStops       = 16
	maxBiases      = 512
	maxInputs      = 2048 // in an embeddings call
	maxInputTokens = 64 << 10
	maxName        = 256
	maxStop        = 1024
	maxAnswers     = 4 // n
	maxSchemaDepth = 32
	maxSchemaNodes = 16 << 10 // in all schemas of a call
	maxRepeats     = 1000     // for minItems, maxLength and similar keywords
)

// shape describes an allowed value.
type shape struct {
	kinds string // the allowed JSON kinds, from { [ " 0 t f n
	copy  func(c *copier) error
}

// members are the shapes of an object's members.
type members map[string]shape

var chatMembers = members{
	"messages":            list(maxMessages, object(message)),
	"tools":               list(maxTools, object(tool)),
	"tool_choice":         either(oneOf("none", "auto", "required"), object(toolChoice)),
	"parallel_tool_calls": boolean,
	"response_format":     object(responseFormat),
	"temperature":         number(0, 2),
	"top_p":               number(0, 1),
	"min_p":               number(0, 1),
	"top_k":               integer(0, 1000),
	"presence_penalty":    number(-2, 2),
	"frequency_penalty":   number(-2, 2),
	"repetition_penalty":  number(0.5, 2),
	"n":                   scalar("0", (*copier).answers),
	"seed":                scalar("0", (*copier).seed),
	"stop":                either(text(maxStop), list(maxStops, text(maxStop))), // without the empty ones: see rebuild.stops
	"logit_bias":          {"{", (*copier).biases},
	"logprobs":            boolean,
	"top_logprobs":        integer(0, 20),
}

var embeddingMembers = members{
	"input":      {`"[`, (*copier).input},
	"dimensions": integer(1, 64<<10),
}

var message = members{
	"role":              scalar(`"`, (*copier).role),
	"content":           either(either(either(text(0), null), list(maxParts, object(part))), shape{"{", (*copier).quoted}),
	"name":              text(maxName),
	"tool_calls":        list(maxTools, object(toolCall)),
	"tool_call_id":      text(maxCallID),
	"reasoning_content": text(0),
	"reasoning":         text(0),
	"refusal":           text(0),
}

var part = members{
	"type":        oneOf("text", "image_url", "input_audio", "refusal"),
	"text":        text(0),
	"refusal":     text(0),
	"image_url":   either(object(members{"url": image, "detail": scalar(`"`, (*copier).detail)}), shape{`"`, (*copier).bareImage}),
	"input_audio": object(members{"data": scalar(`"`, (*copier).sound), "format": oneOf("wav", "mp3")}),
}

var toolCall = members{
	"id":       text(maxCallID),
	"type":     oneOf("function"),
	"index":    integer(0, maxTools),
	"function": object(members{"name": text(maxName), "arguments": {`"{n`, (*copier).arguments}}),
}

var tool = members{
	"type": oneOf("function"),
	"function": object(members{
		"name": text(maxName), "description": text(0), "strict": boolean, "parameters": schema,
	}),
}

var toolChoice = members{
	"type":     oneOf("function"),
	"function": object(members{"name": text(maxName)}),
}

var responseFormat = members{
	"type": oneOf("text", "json_object", "json_schema"),
	"json_schema": object(members{
		"name": text(maxName), "description": text(0), "strict": boolean, "schema": schema,
	}),
}

var (
	boolean = shape{"tf", (*copier).raw}
	null    = shape{"n", (*copier).raw}
	image   = scalar(`"`, (*copier).image)
	schema  = shape{"{", func(c *copier) error { return c.schema(0) }}
)

// copier copies an untrusted body, or the messages and tools of a trusted one. It omits
// and refuses nothing of the latter.
type copier struct {
	trusted   bool
	developer bool // the engine has different roles for developer and system messages
	dec       *jsontext.Decoder
	out       writer
	at        jsontext.Pointer // position of the value that dec reads
	media     int              // images and sounds so far
	nodes     int              // schema nodes so far

	inputs int  // number of inputs to embed
	tokens bool // an input consists of token numbers
}

// bracket copies the beginning or the end of an object or a list.
func (c *copier) bracket() error {
	t, err := c.dec.ReadToken()
	if err != nil {
		return err
	}
	switch b := byte(t.Kind()); b {
	case '{', '[':
		c.out.open(b)
	default:
		c.out.close(b)
	}
	return nil
}

// refuse returns a fault at the current value.
func (c *copier) refuse(format string, args ...any) error {
	return refuseAt(c.pointer(), format, args...)
}

// tooMany returns the fault for a list with more than most elements.
func (c *copier) tooMany(most int) error {
	return refuseAt(c.pointer().Parent(), "more than %d are not taken in one call; send fewer", most)
}

// refuseAt returns a fault whose parameter is the value at the given position.
func refuseAt(at jsontext.Pointer, format string, args ...any) error {
	where := strings.ReplaceAll(strings.TrimPrefix(string(at), "/"), "/", ".")
	return fault.New(fault.InvalidRequest, "%s: %s", where, fmt.Sprintf(format, args...)).WithParam(where)
}

// one copies or omits the value of the member with the given name. It omits null unless
// the member's shape allows it.
func (m members) one(c *copier, name string) error {
	s, ok := m[name]
	kind := c.dec.PeekKind()
	if !ok && !c.trusted || kind == 'n' && !s.takes(kind) {
		return c.dec.SkipValue()
	}
	if (name == "tools" || name == "tool_calls") && kind == '[' { // treat an empty list as absent
		list, err := c.dec.ReadValue()
		if err != nil || len(bytes.TrimSpace(list[1:len(list)-1])) == 0 {
			return err
		}
		return c.again(name, bytes.Clone(list), s)
	}
	c.out.name(name)
	if !ok {
		return c.raw()
	}
	return s.put(c)
}

// again copies a value that was already read, as the member with the given name.
func (c *copier) again(name string, value jsontext.Value, s shape) error {
	c.out.name(name)
	outer, at := c.dec, c.at
	c.dec, c.at = jsontext.NewDecoder(bytes.NewBuffer(value)), c.pointer()
	err := s.put(c)
	c.dec, c.at = outer, at
	return err
}

// pointer returns the position of the current value in the body.
func (c *copier) pointer() jsontext.Pointer { return c.at + c.dec.StackPointer() }

// raw copies the next value unchanged.
func (c *copier) raw() error {
	value, err := c.dec.ReadValue()
	c.out.value(value)
	return err
}

// quoted copies the next value as a string that contains its JSON.
func (c *copier) quoted() error {
	value, err := c.dec.ReadValue()
	c.out.value(jsontext.Value(quoted(string(value))))
	return err
}

func (s shape) takes(kind jsontext.Kind) bool { return strings.IndexByte(s.kinds, byte(kind)) >= 0 }

// put copies the next value, or refuses its kind.
func (s shape) put(c *copier) error {
	if kind := c.dec.PeekKind(); !s.takes(kind) {
		if c.trusted {
			return c.raw()
		}
		if _, err := c.dec.ReadValue(); err != nil {
			return err
		}
		return c.refuse("this cannot be %s", kind)
	}
	return s.copy(c)
}

// members copies an object. member copies or omits each of its members.
func (c *copier) members(member func(name string) error) error {
	if err := c.bracket(); err != nil {
		return err
	}
	for c.dec.PeekKind() != '}' {
		name, err := c.dec.ReadToken()
		if err != nil {
			return err
		}
		if err := member(name.String()); err != nil {
			return err
		}
	}
	return c.bracket()
}

func object(m members) shape {
	return shape{"{", func(c *copier) error {
		return c.members(func(name string) error { return m.one(c, name) })
	}}
}

// list allows an array with at most the given number of elements.
func list(most int, of shape) shape {
	return shape{"[", func(c *copier) error {
		if err := c.bracket(); err != nil {
			return err
		}
		for n := 0; c.dec.PeekKind() != ']'; n++ {
			if n == most && !c.trusted {
				return c.tooMany(most)
			}
			if err := of.put(c); err != nil {
				return err
			}
		}
		return c.bracket()
	}}
}

// either allows everything that a or b allows.
func either(a, b shape) shape {
	return shape{a.kinds + b.kinds, func(c *copier) error {
		if a.takes(c.dec.PeekKind()) {
			return a.put(c)
		}
		return b.put(c)
	}}
}

// scalar allows values of the given kinds; change may replace or refuse them.
func scalar(kinds string, change func(c *copier, v jsontext.Value) (jsontext.Value, error)) shape {
	return shape{kinds, func(c *copier) error {
		value, err := c.dec.ReadValue()
		if err != nil {
			return err
		}
		changed, err := change(c, value)
		if err != nil && !c.trusted {
			return err
		}
		if err == nil {
			value = changed
		}
		c.out.value(value)
		return nil
	}}
}

// text allows a string of at most the given number of bytes; 0 means no limit.
func text(most int) shape {
	return scalar(`"`, func(c *copier, v jsontext.Value) (_ jsontext.Value, err error) {
		if most > 0 && len(decoded(v)) > most {
			err = c.refuse("longer than %d bytes is not taken", most)
		}
		return v, err
	})
}

// oneOf allows one of the given strings.
func oneOf(words ...string) shape {
	return scalar(`"`, func(c *copier, v jsontext.Value) (_ jsontext.Value, err error) {
		if !slices.Contains(words, string(decoded(v))) {
			err = c.refuse("this must be one of %s", strings.Join(words, ", "))
		}
		return v, err
	})
}

// number clamps a number to the range from lo to hi.
func number(lo, hi float64) shape {
	return scalar("0", func(_ *copier, v jsontext.Value) (jsontext.Value, error) {
		n, _ := strconv.ParseFloat(string(v), 64) // infinite if out of range
		return strconv.AppendFloat(nil, min(max(n, lo), hi), 'g', -1, 64), nil
	})
}

// integer clamps an integer to the range from lo to hi.
func integer(lo, hi int64) shape {
	return scalar("0", func(c *copier, v jsontext.Value) (jsontext.Value, error) {
		if c.trusted {
			return v, nil
		}
		n, _ := strconv.ParseFloat(string(v), 64) // infinite if out of range
		if n != math.Trunc(n) {
			return v, c.refuse("this must be a whole number")
		}
		return strconv.AppendInt(nil, int64(min(max(n, float64(lo)), float64(hi))), 10), nil
	})
}

// answers copies n. It refuses a number out of range, because fewer answers would not
// fulfill the request.
func (c *copier) answers(v jsontext.Value) (_ jsontext.Value, err error) {
	n, wrong := strconv.ParseInt(string(dialect.Integral(v)), 10, 64)
	if wrong != nil || n < 1 || n > maxAnswers {
		err = c.refuse("this must be a whole number from 1 to %d", maxAnswers)
	}
	return strconv.AppendInt(nil, n, 10), err
}

// role copies the role of a message. Few chat templates support developer.
func (c *copier) role(v jsontext.Value) (_ jsontext.Value, err error) {
	switch string(decoded(v)) {
	case "developer":
		if !c.developer {
			return jsontext.Value(`"system"`), nil
		}
	case "system", "user", "assistant", "tool", "function":
	default:
		err = c.refuse("this must be one of system, developer, user, assistant, tool, function")
	}
	return v, err
}

// arguments copies the arguments of an earlier call as a string with a JSON object,
// because chat templates parse it. Text that is not an object becomes the only member of
// one.
func (c *copier) arguments() error {
	value, err := c.dec.ReadValue()
	if err != nil {
		return err
	}
	text := bytes.TrimSpace(decoded(value))
	if len(text) == 0 || string(text) == "null" {
		text = []byte("{}")
	}
	if !isObject(text) {
		text = []byte(`{"_raw":` + quoted(string(text)) + `}`)
	}
	c.out.value(jsontext.Value(quoted(string(text))))
	return nil
}

// detail copies the level of detail for a picture.
func (c *copier) detail(v jsontext.Value) (jsontext.Value, error) {
	switch string(decoded(v)) {
	case "auto", "low", "high":
		return v, nil
	case "original":
		return jsontext.Value(`"high"`), nil
	}
	return jsontext.Value(`"auto"`), nil
}

// seed copies a seed of any size and sign. Engines accept 31 bits, so others are hashed:
// different seeds stay different, and none becomes the value for "random", like -1 for
// llama.cpp.
func (c *copier) seed(v jsontext.Value) (jsontext.Value, error) {
	text := string(dialect.Integral(v))
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		signed, err := strconv.ParseInt(text, 10, 64)
		if n = uint64(signed); err != nil { // longer, or not an integer
			hash := fnv.New64a()
			hash.Write([]byte(text))
			n = hash.Sum64()
		}
	}
	if n > math.MaxInt32 {
		n = n * 0x9e3779b97f4a7c15 >> 33 // Fibonacci hashing, because the upper bits depend on all
	}
	return strconv.AppendUint(nil, n, 10), nil
}

// biases copies logit_bias: token numbers and their weights.
func (c *copier) biases() error {
	n := 0
	return c.members(func(token string) error {
		if n++; n > maxBiases || len(token) > 9 || strings.Trim(token, "0123456789") != "" {
			return c.refuse("only up to %d token numbers are taken", maxBiases)
		}
		c.out.name(token)
		return number(-100, 100).put(c)
	})
}

// image copies a data: URL with an image.
func (c *copier) image(v jsontext.Value) (jsontext.Value, error) {
	url := string(decoded(v))
	head, data, _ := strings.Cut(url, ",")
	kind, parameters, _ := strings.Cut(strings.ToLower(strings.TrimSpace(head)), ";")
	switch kind {
	case "data:image/png", "data:image/jpeg", "data:image/jpg", "data:image/webp", "data:image/gif":
		if !strings.HasSuffix(parameters, "base64") {
			break
		}
		data, err := c.medium(data)
		if strings.HasPrefix(url, kind+";base64,"+data) {
			return v, err
		}
		return jsontext.Value(quoted(kind + ";base64," + data)), err
	}
	return v, c.refuse("pictures are taken as data: URLs only (png, jpeg, webp or gif, base64)")
}

// bareImage copies an image URL that is not in an object, and adds the object.
func (c *copier) bareImage() error {
	c.out.open('{')
	c.out.name("url")
	err := image.put(c)
	c.out.close('}')
	return err
}

// sound copies a base64 audio clip.
func (c *copier) sound(v jsontext.Value) (jsontext.Value, error) {
	data, err := c.medium(string(decoded(v)))
	return jsontext.Value(quoted(data)), err
}

// otherBase64 converts the URL alphabet to the standard one and removes white space.
var otherBase64 = strings.NewReplacer("-", "+", "_", "/", "\r", "", "\n", "", " ", "", "\t", "")

// medium counts an image or a sound and returns its data in standard base64. It refuses
// other characters, which occur in a film's list of frames or in an address.
func (c *copier) medium(data string) (string, error) {
	if c.media++; c.media > maxMedia {
		return data, c.refuse("more than %d pictures and sounds are not taken in one call; send fewer", maxMedia)
	}
	if strings.ContainsAny(data, "-_ \r\n\t") || len(data)%4 != 0 {
		data = strings.TrimRight(otherBase64.Replace(data), "=")
		data += strings.Repeat("=", -len(data)&3)
	}
	bare := strings.TrimRight(data, "=")
	for i := range len(bare) {
		b := bare[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '+' || b == '/') {
			return data, c.refuse("this is not base64")
		}
	}
	return data, nil
}

// schema copies a JSON schema without the keywords that crash engines: patterns (their
// regular-expression parsers overflow), large repetitions, references to other documents,
// deep nesting. Without them the schema only allows more.
func (c *copier) schema(depth int) error {
	if c.trusted {
		return c.raw()
	}
	if depth > maxSchemaDepth {
		return c.refuse("schemas deeper than %d are not taken", maxSchemaDepth)
	}
	if c.nodes++; c.nodes > maxSchemaNodes {
		return c.refuse("schemas of more than %d parts are not taken", maxSchemaNodes)
	}
	switch c.dec.PeekKind() {
	case '[':
		return list(maxSchemaNodes, inSchema(func(c *copier) error { return c.schema(depth + 1) })).copy(c)
	case '{':
	default:
		return c.raw()
	}
	return c.members(func(name string) error { return c.keyword(name, depth+1) })
}

// inSchema allows a value of any kind.
func inSchema(copy func(c *copier) error) shape { return shape{"{[\"0tfn", copy} }

// keyword copies one member of a schema.
func (c *copier) keyword(name string, depth int) error {
	kind := c.dec.PeekKind()
	inside := inSchema(func(c *copier) error { return c.schema(depth) })
	switch name {
	case "$schema", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$comment", "pattern", "patternProperties", "contentMediaType", "contentEncoding":
		return c.dec.SkipValue()
	case "$ref":
		inside = scalar(`"`, (*copier).ref)
	case "properties", "$defs", "definitions", "dependentSchemas":
		inside = shape{"{", func(c *copier) error { return c.named(depth) }}
	case "enum", "const", "default", "examples":
		inside = inSchema(func(c *copier) error { return c.data(depth) })
	case "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties":
		value, err := c.dec.ReadValue()
		if err != nil {
			return err
		}
		if n := atoi(value); kind != '0' || n < 0 || n > maxRepeats || n == 0 && string(value) != "0" {
			return nil
		}
		c.out.name(name)
		c.out.value(value)
		return nil
	}
	c.out.name(name)
	return inside.put(c)
}

// named copies an object of schemas under arbitrary names.
func (c *copier) named(depth int) error {
	return c.members(func(name string) error {
		c.out.name(name)
		return c.schema(depth + 1)
	})
}

// ref copies a reference, which must point into the schema itself.
func (c *copier) ref(v jsontext.Value) (_ jsontext.Value, err error) {
	if to := string(decoded(v)); !strings.HasPrefix(to, "#") || len(to) > 4*maxName {
		err = c.refuse("a schema may refer to itself only, as in #/$defs/name")
	}
	return v, err
}

// data copies an example or a constant of a schema.
func (c *copier) data(depth int) error {
	value, err := c.dec.ReadValue()
	if err != nil {
		return err
	}
	deep, level := 0, 0
	for _, b := range value { // an upper bound, because brackets in strings count, too
		switch b {
		case '{', '[':
			level++
			deep = max(deep, level)
		case '}', ']':
			level--
		}
	}
	if c.nodes += len(value) / 16; depth+deep > maxSchemaDepth || c.nodes > maxSchemaNodes {
		return c.refuse("values this deep or long are not taken in a schema")
	}
	c.out.value(value)
	return nil
}
