package chatform

import (
	"cmp"
	"slices"
	"strings"
)

// Form is how a model writes its answers: reasoning, text and tool calls. inspect derives
// it from what the template renders.
//
// An answer with calls reads
//
//	Begin CallBegin … CallEnd Sep CallBegin … CallEnd End
//
// and a call, between CallBegin and CallEnd, depends on Kind:
//
//	json  Shape
//	tag   name NameEnd {arguments}
//	args  name NameEnd ArgBegin name ArgMid value ArgEnd ArgSep ArgBegin …
//
// The literals are exactly what the template writes, white space included. In them the
// characters Mark… are what differs from call to call.
type Form struct {
	// Default: the template writes no calls, so the tools are described in the system
	// message, and calls and results are text of messages.
	Default bool `json:"default,omitzero"`
	// Problem is why the model has no tools, in a sentence; "" if it has.
	Problem string `json:"problem,omitzero"`
	// ShowsTools: the template shows the tools to the model. If it does not, the system
	// message describes them.
	ShowsTools bool `json:"shows_tools,omitzero"`
	// WritesCalls: the template writes the calls of earlier answers. If it does not, they
	// are text of the messages.
	WritesCalls bool `json:"writes_calls,omitzero"`
	// Parallel: an answer may have several calls.
	Parallel bool `json:"parallel,omitzero"`

	Kind Kind `json:"kind,omitzero"`
	// Syntax names the reader of a form that the literals do not describe completely; "" if
	// they do.
	Syntax string `json:"syntax,omitzero"`

	Begin     string `json:"begin,omitzero"`
	End       string `json:"end,omitzero"`
	CallBegin string `json:"call_begin,omitzero"`
	CallEnd   string `json:"call_end,omitzero"`
	Sep       string `json:"sep,omitzero"`

	// Shape is a call of the kind json, with MarkName and MarkArguments for the values of
	// the name and the arguments. If the calls are an array, its brackets are in Begin and
	// End, and its commas in Sep.
	Shape         string   `json:"shape,omitzero"`
	NameIsKey     bool     `json:"name_is_key,omitzero"` // {name: arguments}
	NamePath      []string `json:"name_path,omitzero"`
	ArgumentsPath []string `json:"arguments_path,omitzero"`
	IDPath        []string `json:"id_path,omitzero"`

	NameEnd  string `json:"name_end,omitzero"`
	ArgBegin string `json:"arg_begin,omitzero"`
	// ArgMid is what is between the name and the value of an argument, by the type of the
	// value: string, number, boolean, null, object or array.
	ArgMid map[string]string `json:"arg_mid,omitzero"`
	ArgEnd string            `json:"arg_end,omitzero"`
	ArgSep string            `json:"arg_sep,omitzero"`
	// Python: values of arguments that are no strings are Python literals in the template.
	Python bool `json:"python,omitzero"`

	// ThinkBegin and ThinkEnd are the marks around reasoning, without white space; "" if
	// the model has none. ContentBegin and ContentEnd are those around text.
	ThinkBegin   string `json:"think_begin,omitzero"`
	ThinkEnd     string `json:"think_end,omitzero"`
	ContentBegin string `json:"content_begin,omitzero"`
	ContentEnd   string `json:"content_end,omitzero"`
	// TurnEnd and CallTurnEnd end an answer, without and with calls.
	TurnEnd     string `json:"turn_end,omitzero"`
	CallTurnEnd string `json:"call_turn_end,omitzero"`

	// What the template expects of a conversation.

	// Efforts are the values of reasoning_effort that the template takes, the least first; nil
	// if it has no such variable. OffEffort is the one for an answer without reasoning; "" to
	// leave it out. DefaultOff: the template asks for no reasoning unless an effort is set.
	Efforts    []string `json:"efforts,omitzero"`
	OffEffort  string   `json:"off_effort,omitzero"`
	DefaultOff bool     `json:"default_off,omitzero"`
	// TakesModeOff: the template does not refuse modeOff.
	TakesModeOff bool `json:"takes_mode_off,omitzero"`
	// ReasoningName is a second name of reasoning in messages, beside reasoning_content.
	ReasoningName string `json:"reasoning_name,omitzero"`
	// NoContentWithCalls: a message with reasoning and calls must have no content.
	NoContentWithCalls bool `json:"no_content_with_calls,omitzero"`
	// ContentParts: content is a list of parts.
	ContentParts bool `json:"content_parts,omitzero"`
	// TextArguments: the arguments of calls are text.
	TextArguments bool `json:"text_arguments,omitzero"`
	// NameInID: the template writes the id of a call in place of its name, which must be
	// functions.NAME:NUMBER.
	NameInID bool `json:"name_in_id,omitzero"`
	// ShortIDs: the ids of calls must be 9 letters and digits.
	ShortIDs bool `json:"short_ids,omitzero"`
}

// valueKinds are the keys of ArgMid.
var valueKinds = []string{"string", "number", "boolean", "null", "object", "array"}

// Kind is how calls are written; "" if the literals of the form do not describe it.
type Kind string

const (
	KindJSON Kind = "json" // a call is a JSON value
	KindTag  Kind = "tag"  // the name is in tags, the arguments are a JSON object
	KindArgs Kind = "args" // each argument is in tags
)

// The characters in literals for what differs from call to call.
const (
	MarkID        = "\x01" // the id of the call
	MarkCount     = "\x02" // a number
	MarkName      = "\x03" // the name of the tool
	MarkArgument  = "\x04" // the name of the argument
	MarkArguments = "\x05" // the arguments

	marks = MarkID + MarkCount + MarkName + MarkArgument + MarkArguments
	// white is the white space between literals.
	white = " \n\t\r"
)

// maxLiteral limits the literals of a form, in bytes.
const maxLiteral = 256

// defaultForm is how models are asked to write calls if their template does not.
func defaultForm() Form {
	return Form{
		Default: true, Parallel: true, Kind: KindJSON,
		CallBegin: "<tool_call>\n", CallEnd: "\n</tool_call>", Sep: "\n",
		Shape:    `{"name": ` + MarkName + `, "arguments": ` + MarkArguments + `}`,
		NamePath: []string{"name"}, ArgumentsPath: []string{"arguments"},
	}
}

// Tools reports whether the model can call tools.
func (f *Form) Tools() bool { return f.Kind != "" || f.Syntax != "" }

// Literals returns the literals of calls and the marks of reasoning and text. The bytes of
// control tokens that occur in them are needed to read an answer.
func (f *Form) Literals() []string {
	list := []string{
		f.Begin, f.CallBegin, f.CallEnd, f.Sep, f.End, f.Shape, f.NameEnd, f.ArgBegin, f.ArgEnd, f.ArgSep,
		f.ThinkBegin, f.ThinkEnd, f.ContentBegin, f.ContentEnd, f.TurnEnd, f.CallTurnEnd,
	}
	for _, mid := range f.ArgMid {
		list = append(list, mid)
	}
	list = append(list, syntaxes[f.Syntax].literals...)
	list = slices.DeleteFunc(list, func(s string) bool { return strings.Trim(s, white) == "" })
	slices.Sort(list)
	return slices.Compact(list)
}

// head returns what is before the name of the first call.
func (f *Form) head() string {
	if f.Kind != KindJSON {
		return f.Begin + f.CallBegin
	}
	shape, _, _ := strings.Cut(f.Shape, MarkName)
	return f.Begin + f.CallBegin + shape
}

// triggers returns the texts that may begin calls, as they are found in an answer: without
// white space at their ends. A certain one is only written to begin a call.
func (f *Form) triggers() (list []trigger) {
	add := func(literal string) {
		t := trigger{text: strings.Trim(beforeMarks(literal), white)}
		switch unit := firstUnit(t.text); {
		case len(t.text) > 3 && (t.text[0] == '<' || t.text[0] == '['):
			t.certain = true
			if firstTag(t.text) != "" && unit != f.TurnEnd && unit != f.CallTurnEnd {
				t.text = unit
			}
		case strings.ContainsAny(t.text, white):
			t.text = t.text[:strings.IndexAny(t.text, white)]
		}
		same := func(other trigger) bool { return other.text == t.text }
		if t.text != "" && !slices.ContainsFunc(list, same) {
			list = append(list, t)
		}
	}
	add(f.Begin + f.CallBegin)
	if strings.Trim(f.Begin, white) != "" {
		add(f.CallBegin)
	}
	add(f.lastTag())
	if tag := firstTag(f.Sep); tag != "" && tag != f.TurnEnd { // a call may follow text as it follows a call
		list = append(list, trigger{text: tag})
	}
	return list
}

// CallBegins returns the literals that the first call may begin with: the first one is the
// template's, and models leave out parts of it. They may be equal, or "".
func (f *Form) CallBegins() []string {
	return []string{f.Begin + f.CallBegin, f.CallBegin, f.lastTag(), f.Sep + f.CallBegin}
}

// beforeMarks returns what is before the first of the marks in a literal.
func beforeMarks(literal string) string {
	if i := strings.IndexAny(literal, marks); i >= 0 {
		return literal[:i]
	}
	return literal
}

// lastTag returns the second of two tags that begin a call, or "": models leave out the
// first.
func (f *Form) lastTag() string {
	i := max(strings.LastIndexAny(f.CallBegin, "<["), 0)
	if first := strings.Trim(f.CallBegin[:i], white); first == "" || firstTag(first) != first {
		return ""
	}
	return f.CallBegin[i:]
}

// trigger is a text that may begin calls.
type trigger struct {
	text    string
	certain bool
}

// firstTag returns the tag that s begins with, such as <call> or [CALL], or "".
func firstTag(s string) string {
	if s == "" || s[0] != '<' && s[0] != '[' {
		return ""
	}
	end := strings.IndexAny(s, ">]")
	if end < 3 || strings.ContainsAny(s[:end], `{"`+"\n") || strings.ContainsAny(s[1:end], "<[") {
		return ""
	}
	return s[:end+1]
}

// problem returns why no answer can be read with the form, or "".
func (f *Form) problem() string {
	for _, literal := range f.Literals() {
		if len(literal) > maxLiteral {
			return "the marks of its tool calls are too long"
		}
	}
	for _, t := range f.triggers() {
		if len(t.text) == 1 && (t.text >= "a" && t.text <= "z" || t.text >= "A" && t.text <= "Z") {
			return "its tool calls begin like text"
		}
	}
	if len(f.triggers()) == 0 && f.Kind != KindJSON {
		return "its tool calls begin like text"
	}
	return ""
}

// example returns how a call of a tool named function_name is written.
func (f *Form) example() string {
	if write := syntaxes[f.Syntax].write; write != nil {
		return write([]Call{{Name: "function_name", Arguments: `{"argument_name": "value"}`}})
	}
	call := f.Shape
	switch f.Kind {
	case KindTag:
		call = MarkName + f.NameEnd + MarkArguments
	case KindArgs:
		call = MarkName + f.NameEnd + f.ArgBegin + "argument_name" + f.ArgMid["string"] + "value" + f.ArgEnd
	}
	name := "function_name"
	if f.Kind == KindJSON {
		name = quote(name)
	}
	return strings.Trim(strings.NewReplacer(
		MarkID, "call_id", MarkCount, "0", MarkName, name, MarkArgument, "argument_name", MarkArguments, `{"argument_name": "value"}`,
	).Replace(f.Begin+f.CallBegin+call+f.CallEnd+f.End), white)
}

// longest sorts by length, the longest first.
func longest(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) }
