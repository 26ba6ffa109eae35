package chatform

import (
	"maps"
	"slices"
	"strings"
)

// syntax is a way to write answers that the literals of a form do not describe.
type syntax struct {
	marks    [][]string    // the template has all of one list, or they are control tokens
	set      func(f *Form) // sets what is derived for other forms
	derived  bool          // the form is derived if the template writes calls
	literals []string      // further ones
	within   []string      // marks of reasoning within text, which is left out
	// read reads an answer, and calls reads calls from their trigger on; each may be nil.
	read  func(r *Reader, o ReaderOptions)
	calls func(r *Reader)
	// convert returns the JSON of an argument, and write the text of calls for a template
	// that does not write them; each may be nil.
	convert func(raw string, s schema) string
	write   func(calls []Call) string
}

// syntaxes are the syntaxes by name.
var syntaxes = map[string]syntax{
	"channels": {
		marks: [][]string{{"<|channel|>", "<|message|>", "functions."}},
		set: func(f *Form) {
			f.Kind, f.CallBegin, f.NameEnd = KindTag, "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"
			f.TurnEnd, f.CallTurnEnd = "<|return|>", "<|call|>"
			f.ThinkBegin, f.ThinkEnd = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
			f.ContentBegin = "<|channel|>final<|message|>"
		},
		literals: []string{"<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"},
		read:     (*Reader).readChannels,
	},
	"recipients": {
		marks: [][]string{{">>>${recipient}"}},
		set: func(f *Form) {
			f.Kind, f.Parallel, f.TextArguments = KindTag, true, true
			f.NameEnd, f.Sep = "\n", ">>>"
			f.ContentBegin = "all\n"
		},
		read: (*Reader).readRecipients,
	},
	"quoted": {
		marks: [][]string{{"<|tool_call>call:"}},
		set: func(f *Form) {
			f.Parallel, f.CallBegin, f.CallEnd = true, "<|tool_call>call:", "<tool_call|>"
			f.ThinkBegin, f.ThinkEnd = "<|channel>thought", "<channel|>"
			f.TurnEnd, f.CallTurnEnd = "<turn|>", "<|tool_response>"
		},
		literals: []string{quoteMark},
		within:   []string{"<|channel>thought", "<channel|>", "<|channel>"},
		calls:    (*Reader).readQuoted,
	},
	"python": {
		marks:   [][]string{{"<|tool_call_start|>"}, {"<|tool_list_start|>"}},
		derived: true,
		set: func(f *Form) {
			f.Parallel, f.CallBegin, f.CallEnd = true, "<|tool_call_start|>", "<|tool_call_end|>"
			f.ThinkBegin, f.ThinkEnd = "<think>", "</think>"
		},
		calls: (*Reader).readPython,
		write: writePython,
	},
	"nested": {
		marks: [][]string{{nestedMark, "<item>"}},
		set: func(f *Form) {
			*f = Form{
				Syntax: f.Syntax, WritesCalls: f.WritesCalls, ShowsTools: f.ShowsTools, ContentParts: f.ContentParts, Kind: KindArgs, Parallel: true,
				Begin: nestedMark + "<tool_call>\n", End: nestedMark + "</tool_call>",
				CallBegin: nestedMark + `<invoke name="`, NameEnd: `">`, CallEnd: nestedMark + "</invoke>\n",
				ArgBegin: nestedMark + "<", ArgEnd: nestedMark + "</" + MarkArgument + ">",
				ThinkBegin: "<mm:think>", ThinkEnd: "</mm:think>", TurnEnd: "[e~[",
			}
			f.ArgMid = map[string]string{}
			for _, kind := range valueKinds {
				f.ArgMid[kind] = ">"
			}
		},
		convert: convertNested,
	},
}

// syntax returns the name of the template's syntax, or "" if its literals describe it.
func (t *template) syntax() string {
	for _, name := range slices.Sorted(maps.Keys(syntaxes)) {
		s := syntaxes[name]
		missing := func(mark string) bool {
			return !strings.Contains(t.source.Text, mark) && !strings.Contains(t.source.WithTools, mark) && !slices.Contains(t.source.Control, mark)
		}
		if slices.ContainsFunc(s.marks, func(list []string) bool { return !slices.ContainsFunc(list, missing) }) {
			return name
		}
	}
	return ""
}
