package llama

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The limits for an untrusted schema. llama.cpp's grammar parser has crashed on deep and
// on large grammars.
const (
	maxSchemaBytes  = 64 << 10
	maxSchemaDepth  = 32
	maxGrammarRules = 1000
	maxGrammarBytes = 256 << 10
	// For all tools of a request: 128 tools with 10 properties each are 4,000 rules.
	maxToolRules        = 8192
	maxToolGrammarBytes = 1 << 20
	maxRepeat           = 64 // minItems, maxItems, minLength, maxLength
)

// jsonRules are the rules that every grammar uses. Text of the schema gets into a
// grammar only through literal, which escapes it.
const jsonRules = `value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" char* "\"" ws
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4})
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})? ws
integer ::= "-"? ("0" | [1-9] [0-9]{0,15}) ws
boolean ::= ("true" | "false") ws
null ::= "null" ws
ws ::= | " " | "\n" [ \t]{0,20}
`

// objectRules allow any JSON object, for response_format json_object.
const objectRules = "json ::= object\n"

// errUnsupportedSchema is wrapped by every error about a schema.
var (
	errUnsupportedSchema = errors.New("unsupported JSON schema")
	errLargeSchema       = fmt.Errorf("%w: it is too large", errUnsupportedSchema)
)

// schemaRules converts a JSON schema to GBNF rules, of which the rule json is for texts with
// the schema's structure; they need jsonRules. It supports type (also a list), properties,
// required, items, minItems, maxItems, minLength, maxLength, enum, const, anyOf, oneOf, an
// allOf of one, additionalProperties of a map, and $ref into $defs or definitions.
// Properties appear in the order of the schema, and others are not allowed. Keywords that
// restrict a value rather than the structure (pattern, format, minimum …) are ignored; an
// untrusted regular expression never reaches the engine.
func schemaRules(schema jsontext.Value) (string, error) {
	if len(schema) > maxSchemaBytes {
		return "", fmt.Errorf("%w: larger than %d bytes", errUnsupportedSchema, maxSchemaBytes)
	}
	c := &schemaConverter{prefix: "r", maxRules: maxGrammarRules, maxBytes: maxGrammarBytes}
	if err := c.document("json", schema); err != nil {
		return "", err
	}
	return c.out.String(), nil
}

// document writes the rule for a schema that references its own definitions.
func (c *schemaConverter) document(name string, schema jsontext.Value) error {
	if err := c.define(schema, name); err != nil {
		return err
	}
	body, err := c.convert(schema, 0)
	if err != nil {
		return err
	}
	return c.rule(name, body)
}

// define reads the definitions of a schema. name is the rule for the schema itself.
func (c *schemaConverter) define(schema jsontext.Value, name string) error {
	root, err := members(schema)
	if err != nil {
		return err
	}
	c.defs, c.refs = map[string]jsontext.Value{}, map[string]string{"#": name}
	for _, m := range root {
		if m.name != "$defs" && m.name != "definitions" {
			continue
		}
		defs, err := members(m.value)
		if err != nil {
			return err
		}
		for _, d := range defs {
			c.defs["#/"+m.name+"/"+d.name] = d.value
		}
	}
	return nil
}

// schemaConverter collects the rules of a grammar.
type schemaConverter struct {
	prefix             string // of the names of its rules
	maxRules, maxBytes int
	lenient            bool // a schema that cannot be converted allows any value

	out   bytes.Buffer
	rules int
	defs  map[string]jsontext.Value // by $ref
	refs  map[string]string         // $ref to the name of the rule
	// untils are the names of the rules of until, by their marks.
	untils map[string]string
}

// member is a member of a JSON object.
type member struct {
	name  string
	value jsontext.Value
}

// members returns the members of a JSON object in order. true equals {}.
func members(v jsontext.Value) ([]member, error) {
	if string(bytes.TrimSpace(v)) == "true" {
		return nil, nil
	}
	d := jsontext.NewDecoder(bytes.NewReader(v))
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return nil, fmt.Errorf("%w: a schema must be an object", errUnsupportedSchema)
	}
	var list []member
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, fmt.Errorf("%w: not JSON", errUnsupportedSchema)
		}
		text := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, fmt.Errorf("%w: not JSON", errUnsupportedSchema)
		}
		list = append(list, member{text, value.Clone()})
	}
	return list, nil
}

// schemaNode holds the supported members of a schema.
type schemaNode struct {
	types                []string
	properties           []member
	required             map[string]bool
	items, additional    jsontext.Value
	choices              []jsontext.Value // anyOf, oneOf, allOf of one
	literals             []jsontext.Value // enum, const
	ref                  string
	minItems, maxItems   int
	minLength, maxLength int
}

// unbounded means that maxItems or maxLength is missing.
const unbounded = -1

func parseSchema(v jsontext.Value) (*schemaNode, error) {
	list, err := members(v)
	if err != nil {
		return nil, err
	}
	n := &schemaNode{maxItems: unbounded, maxLength: unbounded, required: map[string]bool{}}
	for _, m := range list {
		if err := n.read(m); err != nil {
			return nil, fmt.Errorf("%w: cannot use %q: %w", errUnsupportedSchema, m.name, err)
		}
	}
	return n, nil
}

// read reads one member of a schema. It ignores keywords that only restrict a value.
func (n *schemaNode) read(m member) (err error) {
	switch m.name {
	case "type":
		if m.value.Kind() == '"' {
			n.types = make([]string, 1)
			return json.Unmarshal(m.value, &n.types[0])
		}
		return json.Unmarshal(m.value, &n.types)
	case "properties":
		n.properties, err = members(m.value)
		return err
	case "required":
		var names []string
		err = json.Unmarshal(m.value, &names)
		for _, name := range names {
			n.required[name] = true
		}
		return err
	case "items":
		n.items = m.value
	case "additionalProperties":
		n.additional = m.value
	case "enum":
		if err = json.Unmarshal(m.value, &n.literals); err == nil && len(n.literals) == 0 {
			return errors.New("it allows nothing")
		}
		return err
	case "const":
		n.literals = []jsontext.Value{m.value}
	case "anyOf", "oneOf", "allOf":
		if err = json.Unmarshal(m.value, &n.choices); err != nil {
			return err
		}
		if len(n.choices) == 0 || m.name == "allOf" && len(n.choices) > 1 {
			return errors.New("only a list of one is understood")
		}
	case "$ref":
		return json.Unmarshal(m.value, &n.ref)
	case "minItems":
		n.minItems, err = bound(m.value)
	case "maxItems":
		n.maxItems, err = bound(m.value)
	case "minLength":
		n.minLength, err = bound(m.value)
	case "maxLength":
		if n.maxLength, err = bound(m.value); errors.Is(err, errBound) {
			n.maxLength, err = unbounded, nil // a large limit is not enforced
		}
	case "not", "if", "then", "else", "patternProperties", "prefixItems", "contains", "dependentSchemas",
		"unevaluatedProperties", "$dynamicRef", "$recursiveRef":
		return errors.New("it is not understood; describe the structure with properties, items and anyOf")
	}
	return err
}

var errBound = fmt.Errorf("it must be a whole number from 0 to %d", maxRepeat)

// bound reads a repetition count.
func bound(v jsontext.Value) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimSpace(v)))
	if err != nil || n < 0 || n > maxRepeat {
		return 0, errBound
	}
	return n, nil
}

// rule writes a rule of the grammar.
func (c *schemaConverter) rule(name, body string) error {
	c.rules++
	if c.rules > c.maxRules || c.out.Len()+len(body) > c.maxBytes {
		return errLargeSchema
	}
	c.out.WriteString(name + " ::= " + body + "\n")
	return nil
}

// newRule writes body as a rule with a new name and returns the name.
func (c *schemaConverter) newRule(body string) (string, error) {
	name := c.prefix + strconv.Itoa(c.rules)
	return name, c.rule(name, body)
}

// convert returns the body of the rule for a schema.
func (c *schemaConverter) convert(v jsontext.Value, depth int) (string, error) {
	body, err := c.convertExactly(v, depth)
	if err != nil && c.lenient && !errors.Is(err, errLargeSchema) {
		return "value", nil
	}
	return body, err
}

func (c *schemaConverter) convertExactly(v jsontext.Value, depth int) (string, error) {
	if depth > maxSchemaDepth {
		return "", fmt.Errorf("%w: deeper than %d", errUnsupportedSchema, maxSchemaDepth)
	}
	if len(v) == 0 {
		return "value", nil
	}
	n, err := parseSchema(v)
	if err != nil {
		return "", err
	}
	switch {
	case n.ref != "":
		return c.reference(n.ref, depth)
	case len(n.literals) > 0:
		return literals(n.literals)
	case len(n.choices) > 0:
		return c.alternatives(n.choices, depth)
	case len(n.types) == 0 && len(n.properties) > 0:
		return c.object(n, depth)
	case len(n.types) == 0:
		return "value", nil
	}
	bodies := make([]string, len(n.types))
	for i, t := range n.types {
		if bodies[i], err = c.typed(n, t, depth); err != nil {
			return "", err
		}
	}
	if len(bodies) == 1 {
		return bodies[0], nil
	}
	return "(" + strings.Join(bodies, " | ") + ")", nil
}

func (c *schemaConverter) typed(n *schemaNode, kind string, depth int) (string, error) {
	switch kind {
	case "object":
		return c.object(n, depth)
	case "array":
		return c.array(n, depth)
	case "string":
		if n.minLength == 0 && n.maxLength == unbounded {
			return "string", nil
		}
		return `"\"" char` + repeat(n.minLength, n.maxLength) + ` "\"" ws`, nil
	case "number", "integer", "boolean", "null":
		return kind, nil
	}
	return "", fmt.Errorf("%w: no such type as %q", errUnsupportedSchema, kind)
}

// reference returns the name of the rule for a $ref. The name is assigned before the rule
// is written, so that a schema may refer to itself.
func (c *schemaConverter) reference(ref string, depth int) (string, error) {
	if name, ok := c.refs[ref]; ok {
		return name, nil
	}
	schema, ok := c.defs[ref]
	if !ok {
		return "", fmt.Errorf("%w: $ref %q is not in $defs", errUnsupportedSchema, ref)
	}
	name := c.prefix + "d" + strconv.Itoa(c.rules) + "-" + strconv.Itoa(len(c.refs))
	c.refs[ref] = name
	body, err := c.convert(schema, depth+1)
	if err != nil {
		return "", err
	}
	return name, c.rule(name, body)
}

func (c *schemaConverter) alternatives(choices []jsontext.Value, depth int) (string, error) {
	names := make([]string, len(choices))
	for i, choice := range choices {
		body, err := c.convert(choice, depth+1)
		if err != nil {
			return "", err
		}
		if names[i], err = c.newRule(body); err != nil {
			return "", err
		}
	}
	return "(" + strings.Join(names, " | ") + ")", nil
}

func (c *schemaConverter) array(n *schemaNode, depth int) (string, error) {
	if n.maxItems != unbounded && n.maxItems < n.minItems {
		return "", fmt.Errorf("%w: maxItems is less than minItems", errUnsupportedSchema)
	}
	body, err := c.convert(n.items, depth+1)
	if err != nil {
		return "", err
	}
	item, err := c.newRule(body)
	if err != nil {
		return "", err
	}
	if n.maxItems == 0 {
		return `"[" ws "]" ws`, nil
	}
	rest := n.maxItems
	if rest != unbounded {
		rest--
	}
	list := item + ` ("," ws ` + item + ")" + repeat(max(n.minItems-1, 0), rest)
	if n.minItems == 0 {
		list = "(" + list + ")?"
	}
	return `"[" ws ` + list + ` "]" ws`, nil
}

// repeat returns the GBNF suffix for a repetition count between from and to; to may be
// unbounded.
func repeat(from, to int) string {
	switch {
	case to != unbounded:
		return fmt.Sprintf("{%d,%d}", from, max(from, to))
	case from == 0:
		return "*"
	}
	return fmt.Sprintf("{%d,}", from)
}

// object returns the rule for an object with its properties in order.
func (c *schemaConverter) object(n *schemaNode, depth int) (string, error) {
	if len(n.properties) == 0 {
		if len(n.additional) == 0 || n.additional.Kind() == 't' {
			return "object", nil
		}
		if n.additional.Kind() == 'f' {
			return `"{" ws "}" ws`, nil
		}
		body, err := c.convert(n.additional, depth+1)
		if err != nil {
			return "", err
		}
		value, err := c.newRule(body)
		if err != nil {
			return "", err
		}
		return `"{" ws ( string ":" ws ` + value + ` ("," ws string ":" ws ` + value + `)* )? "}" ws`, nil
	}
	var list []listItem
	for _, p := range n.properties {
		body, err := c.convert(p.value, depth+1)
		if err != nil {
			return "", err
		}
		list = append(list, listItem{gbnf(string(quoted(p.name))) + ` ws ":" ws ` + body, n.required[p.name]})
	}
	body, err := c.list(list, `"," ws`)
	return `"{" ws ` + body + ` "}" ws`, err
}

// listItem is an item of a list, as the body of a rule.
type listItem struct {
	body     string
	required bool
}

// list returns the body of a rule for items in order, with separators between them, of
// which those that are not required may be missing. For the items from each one on there are
// two rules: one for use before any item was written, and one for use after an item. That
// way the separators are correct, while the size of the grammar is linear in the number of
// items.
func (c *schemaConverter) list(items []listItem, separator string) (string, error) {
	first, after := "", "" // the rules for the items after this one; "" if there are none
	for _, item := range slices.Backward(items) {
		body, err := c.newRule(item.body)
		if err != nil {
			return "", err
		}
		begin, then := body+" "+after, separator+" "+body+" "+after
		if !item.required {
			begin, then = orElse(begin, first), orElse(then, after)
		}
		if first, err = c.newRule(begin); err != nil {
			return "", err
		}
		if after, err = c.newRule(then); err != nil {
			return "", err
		}
	}
	return first, nil
}

// until returns the name of the rule for any text up to a mark and the mark, whose first
// occurrence ends it.
func (c *schemaConverter) until(mark string) (string, error) {
	if name, ok := c.untils[mark]; ok {
		return name, nil
	}
	runes := []rune(mark)
	if len(runes) == 0 {
		return "", fmt.Errorf("%w: text has no end", errUnsupportedSchema)
	}
	prefix := c.prefix + "u" + strconv.Itoa(c.rules) + "-"
	for known := range runes { // the state in which so many runes of the mark are read
		var alternatives []string
		class := ""
		for i, r := range runes {
			if slices.Contains(runes[:i], r) {
				continue
			}
			next := known + 1
			for read := append(slices.Clone(runes[:known]), r); next > 0 && !slices.Equal(read[len(read)-next:], runes[:next]); next-- {
			}
			switch {
			case next == len(runes):
				alternatives = append(alternatives, gbnf(string(r)))
			case next > 0:
				alternatives = append(alternatives, gbnf(string(r))+" "+prefix+strconv.Itoa(next))
			default:
				continue
			}
			class += fmt.Sprintf(`\U%08X`, r)
		}
		alternatives = append(alternatives, "[^"+class+"] "+prefix+"0")
		if err := c.rule(prefix+strconv.Itoa(known), strings.Join(alternatives, " | ")); err != nil {
			return "", err
		}
	}
	if c.untils == nil {
		c.untils = map[string]string{}
	}
	c.untils[mark] = prefix + "0"
	return prefix + "0", nil
}

// orElse allows body or the other rule, or nothing if there is no other rule.
func orElse(body, other string) string {
	if other == "" {
		return "(" + body + ")?"
	}
	return body + " | " + other
}

// literals allows any of the JSON values.
func literals(values []jsontext.Value) (string, error) {
	texts := make([]string, len(values))
	for i, v := range values {
		text, err := literal(v)
		if err != nil {
			return "", err
		}
		texts[i] = text
	}
	return "(" + strings.Join(texts, " | ") + ") ws", nil
}

// literal returns a JSON value as a GBNF string.
func literal(v jsontext.Value) (string, error) {
	v = v.Clone()
	if err := v.Compact(); err != nil {
		return "", fmt.Errorf("%w: not JSON", errUnsupportedSchema)
	}
	return gbnf(string(v)), nil
}

// gbnf returns text as a GBNF string. It escapes bytes with a meaning in GBNF.
func gbnf(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// quoted returns s as a JSON string.
func quoted(s string) []byte {
	b, _ := jsontext.AppendQuote(nil, s) // s comes from JSON, so it is UTF-8
	return b
}
