package llama

import (
	"encoding/json/jsontext"
	"fmt"
	"strings"

	"github.com/kith/kith/internal/llama/chatform"
)

// maxCalls is the maximum number of calls in one answer.
const maxCalls = 16

// toolGrammar returns the GBNF rules for the calls of an answer, of which the rule calls is
// all from the first mark to the end; "" if the form cannot be written as a grammar.
func toolGrammar(f *chatform.Form, tools []chatform.Tool, parallel bool) string {
	if f.Syntax != "" || f.Kind != chatform.KindJSON && f.Kind != chatform.KindTag || len(tools) == 0 {
		return ""
	}
	c := &schemaConverter{maxRules: maxToolRules, maxBytes: maxToolGrammarBytes}
	var calls, first []string
	for i, tool := range tools {
		arguments := fmt.Sprintf("arguments%d", i)
		if err := c.tool(arguments, tool.Parameters); err != nil {
			return ""
		}
		call := f.CallBegin + f.Shape + f.CallEnd
		if f.Kind == chatform.KindTag {
			call = f.CallBegin + tool.Name + f.NameEnd + chatform.MarkArguments + f.CallEnd
		}
		calls = append(calls, callRule(call, tool.Name, arguments, f.Kind))
		first = append(first, callRule(strings.TrimLeft(call, blank), tool.Name, arguments, f.Kind))
	}
	root := "first"
	if begin := strings.TrimLeft(f.Begin, blank); begin != "" {
		root = gbnf(begin) + " call"
	}
	if parallel && f.Parallel {
		root += fmt.Sprintf(" (%s call){0,%d}", gbnf(f.Sep), maxCalls-1)
	}
	if f.End != "" {
		root += " " + gbnf(f.End)
	}
	return "calls ::= " + root + "\nfirst ::= " + strings.Join(first, " | ") + "\ncall ::= " + strings.Join(calls, " | ") + "\n" + c.out.String() + jsonRules
}

// blank is the white space before the mark of a call, which is not a part of it.
const blank = " \n\t\r"

// tool writes the rule for the arguments of a tool. A schema that cannot be converted
// allows any object.
func (c *schemaConverter) tool(name string, parameters jsontext.Value) error {
	c.defs, c.refs = map[string]jsontext.Value{}, map[string]string{"#": name}
	before, rules := c.out.String(), c.rules
	body, err := "object", error(nil)
	if len(parameters) > 0 {
		if body, err = c.document(parameters); err != nil {
			c.out.Reset()
			c.out.WriteString(before)
			c.rules, body = rules, "object"
		}
	}
	return c.rule(name, body)
}

// callRule returns the GBNF for a call: the text, with its marks replaced.
func callRule(text, name, arguments string, kind chatform.Kind) string {
	var parts []string
	for text != "" {
		i := strings.IndexAny(text, chatform.MarkID+chatform.MarkCount+chatform.MarkName+chatform.MarkArguments)
		if i < 0 {
			i = len(text)
		}
		if i > 0 {
			parts, text = append(parts, gbnf(text[:i])), text[i:]
			continue
		}
		mark, rest := text[:1], text[1:]
		text = rest
		switch mark {
		case chatform.MarkName:
			if kind == chatform.KindJSON {
				name = string(quoted(name))
			}
			parts = append(parts, gbnf(name))
		case chatform.MarkArguments:
			parts = append(parts, arguments)
		case chatform.MarkCount:
			parts = append(parts, "[0-9]{1,3}")
		default:
			id := "[a-zA-Z0-9_-]{1,40}"
			if kind == chatform.KindJSON {
				id = `"\"" ` + id + ` "\""`
			}
			parts = append(parts, id)
		}
	}
	return strings.Join(parts, " ")
}

// constrain makes the grammar of the job's tools decide the rest of the answer, once the
// model writes calls. since are the tokens of the answer so far, and held the bytes of
// their text that the reader does not have yet. If what the model wrote does not conform,
// there is no grammar.
func (j *job) constrain(v *vocab, since []token, held int) {
	rules := j.toolRules
	j.toolRules = ""
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
			return
		}
		written = append(begun, written...)
	}
	grammar := v.lib.llama_sampler_init_grammar(v.handle, "root ::= "+gbnf(prefix)+" calls\n"+rules, "root")
	if grammar == 0 {
		v.lib.errors.take()
		return
	}
	j.sampler.grammar = grammar
	for _, t := range written {
		if !j.sampler.allows(t) {
			v.lib.llama_sampler_free(grammar)
			j.sampler.grammar = 0
			return
		}
		v.lib.llama_sampler_accept(grammar, t)
	}
}
