package llama

import (
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kith/kith/internal/llama/chatform"
)

// maxCalls is the maximum number of calls in one answer.
const maxCalls = 16

// blank is the white space before the mark of a call, which is not a part of it.
const blank = " \n\t\r"

// toolGrammar converts tools to GBNF rules for their calls in the form of a model.
type toolGrammar struct {
	schemaConverter
	form   *chatform.Form
	values argumentSyntax
}

// callRules returns GBNF rules for the calls of an answer: calls is for all of them, from
// the first mark to the end, as the template writes them; begun is also for calls that lack
// marks which models leave out. They need jsonRules. If the form cannot be written as a
// grammar, there are no rules.
//
// A schema that cannot be converted allows any value. If plain is true, or the schemas
// together are too large, the arguments of all tools may be any object.
func callRules(f *chatform.Form, tools []chatform.Tool, parallel, plain bool) string {
	if !f.Tools() || len(tools) == 0 {
		return ""
	}
	g := &toolGrammar{form: f}
	g.schemaConverter = schemaConverter{prefix: "t", lenient: true, maxRules: maxToolRules, maxBytes: maxToolGrammarBytes}
	var err error
	if g.values, err = g.argumentSyntax(); err != nil {
		return ""
	}
	var calls []string
	for _, tool := range tools {
		if plain {
			tool.Parameters = nil
		}
		rule, err := g.callRule(tool)
		if err != nil && !plain {
			return callRules(f, tools, parallel, true)
		}
		if err != nil {
			return ""
		}
		calls = append(calls, rule)
	}
	// begun returns the GBNF for a call after a literal, which may have the tool's name.
	begun := func(literal string) string {
		if !strings.Contains(literal, chatform.MarkName) {
			return g.literal(literal) + "call"
		}
		var list []string
		for i, tool := range tools {
			list = append(list, g.literalWith(literal, tool.Name, "")+calls[i])
		}
		return "(" + strings.Join(list, " | ") + ")"
	}
	begins, separator, end := f.CallBegins(), f.Sep+f.CallBegin, f.End
	switch f.Syntax {
	case "channels":
		begins, separator = []string{""}, ""
	case "python":
		begins, separator, end = []string{f.CallBegin + "["}, ", ", "]"+f.CallEnd
	}
	more := ""
	if parallel && f.Parallel {
		more = fmt.Sprintf("(%s){0,%d} ", begun(separator), maxCalls-1)
	}
	more += g.literal(end)
	var alternatives []string
	for _, begin := range begins {
		text := begun(strings.TrimLeft(begin, blank)) + " more"
		if !slices.Contains(alternatives, text) {
			alternatives = append(alternatives, text)
		}
	}
	return "calls ::= " + alternatives[0] + "\nbegun ::= " + strings.Join(alternatives, " | ") + "\nmore ::= " + more +
		"\ncall ::= " + strings.Join(calls, " | ") + "\n" + g.out.String()
}

// callRule writes the rule for a call of a tool, without CallBegin, and returns its name. If
// the schema is too large, the arguments may be any.
func (g *toolGrammar) callRule(tool chatform.Tool) (string, error) {
	size, rules := g.out.Len(), g.rules
	body, err := g.call(tool)
	if err != nil {
		g.out.Truncate(size)
		g.rules = rules
		clear(g.untils)
		tool.Parameters = nil
		if body, err = g.call(tool); err != nil {
			return "", err
		}
	}
	return g.newRule(body)
}

// call returns the body of the rule for a call of a tool, without CallBegin.
func (g *toolGrammar) call(tool chatform.Tool) (string, error) {
	f := g.form
	switch {
	case f.Syntax == "channels":
		arguments, err := g.jsonArguments(tool)
		to, kind := gbnf(" to=functions."+tool.Name), ` (" "? "<|constrain|>"? "json")? "<|message|>" `
		return `"<|start|>assistant"? ("<|channel|>" ("commentary" | "analysis") ` + to + " | " + to + ` "<|channel|>" ("commentary" | "analysis"))` +
			kind + arguments, err
	case f.Syntax == "quoted":
		arguments, err := g.arguments(tool)
		return gbnf(tool.Name+"{") + arguments + gbnf("}"+f.CallEnd), err
	case f.Syntax == "python":
		arguments, err := g.arguments(tool)
		return gbnf(tool.Name+"(") + arguments + gbnf(")"), err
	case f.Kind == chatform.KindArgs:
		arguments, err := g.arguments(tool)
		return gbnf(tool.Name) + g.literal(f.NameEnd) + arguments + g.literal(f.CallEnd), err
	}
	arguments, err := g.jsonArguments(tool)
	text := f.Shape + f.CallEnd
	if f.Kind == chatform.KindTag {
		text = chatform.MarkName + f.NameEnd + chatform.MarkArguments + f.CallEnd
	}
	return g.literalWith(text, tool.Name, arguments), err
}

// jsonArguments returns the name of the rule for the arguments of a tool as a JSON object.
func (g *toolGrammar) jsonArguments(tool chatform.Tool) (string, error) {
	if len(tool.Parameters) == 0 {
		return "object", nil
	}
	name := fmt.Sprintf("%sa%d", g.prefix, g.rules)
	return name, g.document(name, tool.Parameters)
}

// literal returns the GBNF for a literal of the form without a name and arguments.
func (g *toolGrammar) literal(text string) string { return g.literalWith(text, "", "") }

// literalWith returns the GBNF for a literal of the form, with the name of a tool and the
// rule for its arguments in place of the marks.
func (g *toolGrammar) literalWith(text, name, arguments string) string {
	var parts []string
	asJSON := g.form.Kind == chatform.KindJSON
	for text != "" {
		i := strings.IndexAny(text, chatform.MarkID+chatform.MarkCount+chatform.MarkName+chatform.MarkArguments)
		if i < 0 {
			i = len(text)
		}
		if i > 0 {
			parts, text = append(parts, gbnf(text[:i])), text[i:]
			continue
		}
		mark := text[:1]
		text = text[1:]
		switch {
		case mark == chatform.MarkName && asJSON:
			parts = append(parts, gbnf(string(quoted(name))))
		case mark == chatform.MarkName:
			parts = append(parts, gbnf(name))
		case mark == chatform.MarkArguments:
			parts = append(parts, arguments)
		case mark == chatform.MarkCount:
			parts = append(parts, "[0-9]{1,3}")
		case asJSON:
			parts = append(parts, `"\"" [a-zA-Z0-9_-]{1,40} "\""`)
		default:
			parts = append(parts, "[a-zA-Z0-9_-]{1,40}")
		}
	}
	if len(parts) == 0 {
		return ` "" ` // a rule must have a body
	}
	return " " + strings.Join(parts, " ") + " "
}

// argumentSyntax is how the arguments of a call are written if they are not a JSON object,
// as GBNF.
type argumentSyntax struct {
	separator string
	// around returns what is around the value of an argument of a type. No name is any.
	around func(name, kind string) (begin, end string)
	quote  func(s string) string // a given string
	types  map[string]string     // the values of each type, and with "" any; nil: JSON
	words  map[string]string     // how true, false and null are written; nil: as in JSON
	// text returns the rule for any string up to the end of the argument, if types is nil.
	text func(name string) (string, error)
}

// anyName is the GBNF for the name of an argument that the schema does not describe.
const anyName = "[a-zA-Z_] [a-zA-Z0-9_.-]{0,63}"

// arguments returns the GBNF for the arguments of a tool, in the order of its schema.
func (g *toolGrammar) arguments(tool chatform.Tool) (string, error) {
	root := &schemaNode{}
	if len(tool.Parameters) > 0 {
		if err := g.define(tool.Parameters, "object"); err != nil {
			return "", err
		}
		root = g.resolve(tool.Parameters)
	}
	if len(root.properties) == 0 {
		if root.additional.Kind() == 'f' || strings.Contains(g.form.ArgEnd, chatform.MarkArgument) {
			return "", nil
		}
		item, err := g.argument("", &schemaNode{})
		return "(" + item + " (" + g.values.separator + item + "){0,64})?", err
	}
	var items []listItem
	for _, p := range root.properties {
		if strings.ContainsAny(p.name, "<>\n:=") || p.name == "" {
			continue // no form can write it
		}
		body, err := g.argument(p.name, g.resolve(p.value))
		if err != nil {
			return "", err
		}
		items = append(items, listItem{body, root.required[p.name]})
	}
	return g.list(items, g.values.separator)
}

// resolve returns a schema that has no reference, or one that allows any value if it cannot
// be read.
func (g *toolGrammar) resolve(v jsontext.Value) *schemaNode {
	for range maxSchemaDepth {
		n, err := parseSchema(v)
		if err != nil {
			break
		}
		if n.ref == "" {
			return n
		}
		v = g.defs[n.ref]
	}
	return &schemaNode{}
}

// argument returns the GBNF for an argument: one alternative for each type of its value.
func (g *toolGrammar) argument(name string, n *schemaNode) (string, error) {
	var bodies []string
	add := func(body string) {
		if !slices.Contains(bodies, body) {
			bodies = append(bodies, body)
		}
	}
	addValue := func(kind, value string) {
		begin, end := g.values.around(name, kind)
		add(begin + value + end)
	}
	var visit func(n *schemaNode, depth int) error
	visit = func(n *schemaNode, depth int) error {
		for _, v := range n.literals {
			var text string
			if v.Kind() == '"' && json.Unmarshal(v, &text) == nil {
				addValue("string", g.values.quote(text))
			} else if body, err := literal(v); err == nil {
				addValue(typeOf(v), cmp.Or(g.values.words[string(v)], body))
			}
		}
		if len(n.literals) > 0 {
			return nil
		}
		if len(n.choices) > 0 && depth < maxSchemaDepth {
			for _, choice := range n.choices {
				if err := visit(g.resolve(choice), depth+1); err != nil {
					return err
				}
			}
			return nil
		}
		types := n.types
		if len(types) == 0 && len(n.properties) > 0 {
			types = []string{"object"}
		} else if len(types) == 0 {
			types = []string{""}
		}
		for _, kind := range types {
			if g.values.types != nil {
				addValue(kind, cmp.Or(g.values.types[kind], g.values.types[""]))
				continue
			}
			if kind == "string" || kind == "" {
				text, err := g.values.text(name)
				if err != nil {
					return err
				}
				begin, _ := g.values.around(name, "string")
				add(begin + text)
			}
			if kind == "" {
				addValue("object", "value")
			} else if kind != "string" {
				body, err := g.typed(n, kind, 1)
				if errors.Is(err, errLargeSchema) {
					return err
				}
				if err != nil {
					body = "value"
				}
				addValue(kind, body)
			}
		}
		return nil
	}
	err := visit(n, 0)
	return "(" + strings.Join(bodies, " | ") + ")", err
}

// typeOf returns the type of a JSON value.
func typeOf(v jsontext.Value) string {
	return map[jsontext.Kind]string{'"': "string", '0': "number", 't': "boolean", 'f': "boolean", '{': "object", '[': "array", 'n': "null"}[v.Kind()]
}

// argumentSyntax returns the syntax of the form's arguments, and writes its rules.
func (g *toolGrammar) argumentSyntax() (argumentSyntax, error) {
	named := func(between string) func(name, kind string) (begin, end string) {
		return func(name, _ string) (begin, end string) {
			if name == "" {
				return anyName + " " + gbnf(between), ""
			}
			return gbnf(name + between), ""
		}
	}
	switch g.form.Syntax {
	case "quoted":
		text, err := g.until(quoteMark)
		g.out.WriteString("text ::= " + gbnf(quoteMark) + " " + text + "\n" + quotedRules)
		return argumentSyntax{
			separator: `","`, around: named(":"), types: valueTypes(`("true" | "false")`, `"null"`),
			quote: func(s string) string { return gbnf(quoteMark + s + quoteMark) },
		}, err
	case "python":
		g.out.WriteString(pythonRules)
		return argumentSyntax{
			separator: `", "`, around: named("="), types: valueTypes(`("True" | "False")`, `"None"`),
			quote: func(s string) string { return gbnf(string(quoted(s))) },
			words: map[string]string{"true": `"True"`, "false": `"False"`, "null": `"None"`},
		}, nil
	}
	return g.taggedSyntax(), nil
}

// valueTypes are the types of values, with the rules text, list and dict.
func valueTypes(boolean, null string) map[string]string {
	return map[string]string{
		"string": "text", "number": "number", "integer": "integer", "boolean": boolean,
		"null": null, "array": "list", "object": "dict", "": "any",
	}
}

// taggedSyntax is the syntax of the kind args. A string is the text up to the first mark of
// its end.
func (g *toolGrammar) taggedSyntax() argumentSyntax {
	f := g.form
	named := func(literal, name string) string { return strings.ReplaceAll(literal, chatform.MarkArgument, name) }
	return argumentSyntax{
		separator: g.literal(f.ArgSep),
		quote:     gbnf,
		around: func(name, kind string) (begin, end string) {
			if kind == "integer" {
				kind = "number"
			}
			mid := cmp.Or(f.ArgMid[kind], f.ArgMid["string"])
			begin, end = g.literal(f.ArgBegin), gbnf(named(f.ArgEnd, name))
			if name == "" {
				return begin + anyName + " " + gbnf(mid), end
			}
			return begin + gbnf(name+mid), end
		},
		text: func(name string) (string, error) {
			end := named(f.ArgEnd, name)
			mark := strings.TrimRight(end, blank)
			text, err := g.until(strings.TrimLeft(mark, blank))
			return text + " " + gbnf(end[len(mark):]), err
		},
	}
}

// The mark around strings of the syntax quoted.
const quoteMark = `<|"|>`

// quotedRules and pythonRules are for values in the two syntaxes.
const (
	quotedRules = `any ::= text | list | dict | number | "true" | "false" | "null"
list ::= "[" (any ("," any)*)? "]"
dict ::= "{" (key ":" any ("," key ":" any)*)? "}"
key ::= [a-zA-Z_] [a-zA-Z0-9_.-]{0,63}
`
	pythonRules = `text ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\nrt'])* "\"" | "'" ([^'\\\x00-\x1F] | "\\" ["\\nrt'])* "'"
any ::= text | list | dict | number | "True" | "False" | "None"
list ::= "[" (any ("," " "? any)*)? "]"
dict ::= "{" (text ":" " "? any ("," " "? text ":" " "? any)*)? "}"
`
)

// answerGrammar returns the grammar of an answer that is decided from its start: after
// reasoning it is tool calls, or text in a format, whichever has rules; "" if neither has.
// tail is what the template writes after the last message.
func answerGrammar(f *chatform.Form, tail, calls, format string) string {
	c := &schemaConverter{prefix: "k", maxRules: maxGrammarRules, maxBytes: maxGrammarBytes}
	var answers []string
	if calls != "" {
		answers = append(answers, "[ \n]{0,2} calls")
	}
	if format != "" {
		answers = append(answers, optional(f.ContentBegin)+"json "+optional(f.ContentEnd))
	}
	if len(answers) == 0 {
		return ""
	}
	lead := ""
	if begin, end := f.Reasoning(tail); end != "" {
		reasoning, err := c.until(end)
		if err != nil {
			return ""
		}
		if lead = reasoning + " [ \n]{0,2} "; begin != "" {
			lead = "(" + gbnf(begin) + " " + lead + ")? "
		}
	}
	return "root ::= " + lead + "(" + strings.Join(answers, " | ") + ")\n" + c.out.String() + calls + format + jsonRules
}

// optional returns GBNF for a text that may be missing.
func optional(text string) string {
	if text == "" {
		return ""
	}
	return gbnf(text) + "? "
}

// constrain makes the grammar of calls decide the rest of the answer, once the model writes
// calls. since are the tokens of the answer so far, and held the bytes of their text that
// the reader does not have yet. If what the model wrote does not conform, there is no
// grammar, and it reports false.
func (j *job) constrain(v *vocab, calls func(plain bool) string, since []token, held int) bool {
	var written []token
	prefix, back := "", j.reader.Trigger()+held
	for i := len(since) - 1; i >= 0 && back > 0; i-- {
		piece := v.piece(since[i], true)
		written = append([]token{since[i]}, written...)
		if back -= len(piece); back < 0 {
			prefix = string(piece[:-back])
		}
	}
	if back > 0 { // the prompt begins the call
		tail := j.tail[max(len(j.tail)-back, 0):]
		begun, err := v.tokenize(tail, false, true)
		if err != nil {
			return false
		}
		written = append(begun, written...)
	}
	return j.decide(written, func(plain bool) string { return "root ::= " + gbnf(prefix) + " begun\n" + calls(plain) + jsonRules })
}
