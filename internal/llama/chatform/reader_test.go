package chatform

import (
	"encoding/json/v2"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// The forms of three kinds, as templates have them.
var (
	jsonForm = Form{
		WritesCalls: true, Parallel: true, Kind: KindJSON, CallBegin: "<tool_call>\n", CallEnd: "\n</tool_call>", Sep: "\n",
		Shape:    `{"name": ` + MarkName + `, "arguments": ` + MarkArguments + `}`,
		NamePath: []string{"name"}, ArgumentsPath: []string{"arguments"},
		ThinkBegin: "<think>", ThinkEnd: "</think>", TurnEnd: "<|im_end|>",
	}
	tagForm  = Form{WritesCalls: true, Parallel: true, Kind: KindTag, CallBegin: "[TOOL_CALLS]", NameEnd: "[ARGS]"}
	argsForm = Form{
		WritesCalls: true, Parallel: true, Kind: KindArgs, CallBegin: "<tool_call>\n<function=", CallEnd: "</function>\n</tool_call>", Sep: "\n",
		NameEnd: ">\n", ArgBegin: "<parameter=", ArgEnd: "\n</parameter>\n",
		ArgMid:     map[string]string{"string": ">\n", "number": ">\n", "boolean": ">\n", "null": ">\n", "object": ">\n", "array": ">\n"},
		ThinkBegin: "<think>", ThinkEnd: "</think>",
	}
)

// show returns events as text: r is reasoning, t text, c a call, and a its arguments.
func show(events []Event) string {
	var list []string
	for _, e := range events {
		list = append(list, fmt.Sprintf("%c %q", "rtca"[e.Kind], e.Name+e.Text))
	}
	return strings.Join(list, ", ")
}

// TestPassesEarly writes answers in pieces. Each is followed by what is reported at once.
func TestPassesEarly(t *testing.T) {
	o := ReaderOptions{Tools: agentTools}
	for _, test := range []struct {
		name   string
		form   *Form
		pieces []string
		end    string
	}{
		{"text", &jsonForm, []string{
			"Hello", `t "Hello"`,
			" world\n", `t " world"`,
			"\nIt <", `t "\n\nIt"`,
			"b> is", `t " <b> is"`,
		}, ""},
		{"reasoning and text", &jsonForm, []string{
			"<thi", ``,
			"nk>\nLet me", `r "Let me"`,
			" see\n", `r " see"`,
			"</think>\n\nYes", `t "Yes"`,
		}, ""},
		{"a JSON call", &jsonForm, []string{
			"I read.\n<tool_", `t "I read."`,
			"call>\n{\"name\": \"read_file", ``,
			`", "arguments": {"pa`, `c "read_file", a "{\"pa"`,
			`th": "a"}`, `a "th\": \"a\"}"`,
			"}\n</tool_call>\n", ``,
			`<tool_call>{"name": "run", "arguments": {`, `c "run", a "{"`,
			"}}</tool_call>", `a "}"`,
		}, ""},
		{"a call in tags", &tagForm, []string{
			"[TOOL_CALLS]read_file", ``,
			"_lines[ARGS]", `c "read_file_lines"`,
			`{"path":`, `a "{\"path\":"`,
			`"x"}`, `a "\"x\"}"`,
		}, ""},
		{"arguments in tags", &argsForm, []string{
			"<tool_call>\n<function=write_file>", ``,
			"\n<parameter=path>\na.go\n</para", `c "write_file", a "{\"path\":\"a.go"`,
			"meter>\n<parameter=content>\n", `a "\",\"content\":"`,
			"x := \"1\"\n</parameter", `a "\"x := \\\"1\\\""`,
			"> is no end\n", `a "\\n</parameter> is no end"`,
			"</parameter>\n</function>", `a "\"}"`,
		}, ""},
		{"other types", &argsForm, []string{
			"<tool_call><function=read_file>\n<parameter=limit>1", `c "read_file", a "{\"limit\":"`,
			"0</parameter></function></tool_call>", `a "10}"`,
		}, ""},
		{"no call", &jsonForm, []string{
			"<tool_call>\n{\"name\": \"other\"", `t "<tool_call>\n{\"name\": \"other\""`,
			" <tool_call> is a mark", `t " <tool_call> is a mark"`,
		}, ""},
		{"a call within reasoning", &jsonForm, []string{
			"<think>I call <tool_call>{\"name\": \"run\", \"arguments\": {}}</tool_call>", `r "I call"`,
			" or not</think>No", `r " <tool_call>{\"name\": \"run\", \"arguments\": {}}</tool_call> or not", t "No"`,
		}, ""},
		{"a call that ends the reasoning", &jsonForm, []string{
			"<think>I call <tool_call>{\"name\": \"run\", \"arguments\": {}}", `r "I call"`,
		}, `c "run", a "{}"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := test.form.NewReader(o)
			for i := 0; i < len(test.pieces); i += 2 {
				if got := show(r.Write(test.pieces[i])); got != test.pieces[i+1] {
					t.Errorf("%q\n got %s\nwant %s", test.pieces[i], got, test.pieces[i+1])
				}
			}
			if got := show(r.Close("stop")); got != test.end {
				t.Errorf("at the end\n got %s\nwant %s", got, test.end)
			}
		})
	}
}

// TestInCall follows the beginning of calls, from which on a grammar applies.
func TestInCall(t *testing.T) {
	llama := jsonForm
	llama.CallBegin, llama.CallEnd, llama.Sep = "", "", ""
	list := llama
	list.Begin, list.Sep, list.End = "[", ", ", "]"
	for _, test := range []struct {
		name          string
		form          *Form
		prompt, write string
		trigger       string // what is written since the calls began; "" if none have
	}{
		{"text", &jsonForm, "", "Hello <tool", ""},
		{"a mark", &jsonForm, "", "Hello <tool_call>", "<tool_call>"},
		{"a name", &jsonForm, "", "Hello\n<tool_call>\n{\"name\": \"re", "<tool_call>\n{\"name\": \"re"},
		{"an unknown name", &jsonForm, "", "Hello\n<tool_call>\n{\"name\": \"ru\"", ""},
		{"the second mark alone", &argsForm, "", "<function=", "<function="},
		{"the second of two calls", &tagForm, "", `[TOOL_CALLS]run[ARGS]{}[TOOL_CALLS]run`, `[TOOL_CALLS]run[ARGS]{}[TOOL_CALLS]run`},
		{"text after a call", &tagForm, "", `[TOOL_CALLS]run[ARGS]{} Done`, ""},
		{"no mark", &llama, "", ` {"name": "`, `{"name": "`},
		{"JSON that is no call", &llama, "", ` {"name": "Bob"`, ""},
		{"JSON in text", &llama, "", `So {"name": "run"`, ""},
		{"a bracket is no mark", &list, "", "See [", ""},
		{"after a long text", &jsonForm, "", strings.Repeat("long text ", 2000) + "<tool_call>", "<tool_call>"},
		{"long arguments", &tagForm, "", `[TOOL_CALLS]run[ARGS]{"command": "` + strings.Repeat("long text ", 2000), `[TOOL_CALLS]run[ARGS]{"command": "` + strings.Repeat("long text ", 2000)},
		{"reasoning", &jsonForm, "", "<think><tool_call>", ""},
		{"the prompt begins a call", &jsonForm, "<|im_start|>assistant\n<tool_call>\n{\"name\": \"run\", \"arguments\": {", "", "<tool_call>\n{\"name\": \"run\", \"arguments\": {"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := test.form.NewReader(ReaderOptions{Tools: agentTools, Prompt: test.prompt})
			for rest := test.write; rest != ""; rest = rest[min(len(rest), 100):] {
				r.Write(rest[:min(len(rest), 100)])
			}
			trigger := ""
			if r.InCall() {
				all := test.prompt + test.write
				trigger = all[len(all)-r.Trigger():]
			}
			if trigger != test.trigger {
				t.Errorf("the calls begin with %q; want %q", trigger, test.trigger)
			}
			r.Close("stop")
		})
	}
}

// TestAnswers reads answers that differ from what the template writes.
func TestAnswers(t *testing.T) {
	keys := argsForm
	keys.CallBegin, keys.NameEnd = "<tool_call>", ""
	many := strings.Repeat("[TOOL_CALLS]run[ARGS]{}", maxCalls+1)
	for _, test := range []struct {
		name                   string
		form                   *Form
		prompt, answer, reason string
		want                   result
	}{
		{"a call that the prompt begins", &jsonForm, "<|im_start|>assistant\n<tool_call>\n{\"name\": \"run\", \"arguments\": {\"command\": \"ls\"", "}}\n</tool_call>", "stop",
			result{Calls: []Call{{"", "run", `{"command": "ls"}`}}}},
		{"another call that the prompt begins", &tagForm, "[/INST][TOOL_CALLS]run", `[ARGS]{}`, "stop", result{Calls: []Call{{"", "run", `{}`}}}},
		{"no call although the prompt begins one", &tagForm, "[TOOL_CALLS]", "Hello", "stop", result{Text: "Hello"}},
		{"reasoning that the prompt begins", &jsonForm, "<|im_start|>assistant\n<think>\n", "Hm</think>Yes", "stop", result{Reasoning: "Hm", Text: "Yes"}},
		{"reasoning that the prompt ends", &jsonForm, "<think>\n\n</think>\n\n", "Yes", "stop", result{Text: "Yes"}},
		{"an earlier message opens reasoning", &jsonForm, "<think>a</think> b", "Yes", "stop", result{Text: "Yes"}},
		{"no reasoning but its end", &jsonForm, "", "</think>\nYes", "stop", result{Text: "Yes"}},
		{"cut before the name", &jsonForm, "", "I read.\n<tool_call>\n{\"na", "length", result{Text: "I read."}},
		{"a mark as text", &jsonForm, "", "It is <tool_call>", "stop", result{Text: "It is <tool_call>"}},
		{"cut in JSON arguments", &jsonForm, "", `<tool_call>{"name": "run", "arguments": {"command": "l`, "length", result{Calls: []Call{{"", "run", `{"command": "l`}}}},
		{"cut before the arguments", &tagForm, "", `[TOOL_CALLS]run[ARGS]`, "length", result{Calls: []Call{{"", "run", ""}}}},
		{"cut in a string", &argsForm, "", "<tool_call>\n<function=run>\n<parameter=command>\nls", "length", result{Calls: []Call{{"", "run", `{"command":"ls`}}}},
		{"cut between arguments", &argsForm, "", "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n", "length", result{Calls: []Call{{"", "run", `{"command":"ls"`}}}},
		{"ended between arguments", &argsForm, "", "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n", "stop", result{Calls: []Call{{"", "run", `{"command":"ls"}`}}}},
		{"without the end of the call", &argsForm, "", "<function=run>\n<parameter=command>\nls\n</parameter>\n</tool_call>", "stop", result{Calls: []Call{{"", "run", `{"command":"ls"}`}}}},
		{"a call that reasoning mentions", &jsonForm, "", `<think>I can <tool_call>{"name": "run"}</tool_call> so`, "length", result{Reasoning: `I can <tool_call>{"name": "run"}</tool_call> so`}},
		{"an end that is not complete", &jsonForm, "", `<tool_call>{"name": "run"}</tool_c`, "stop", result{Calls: []Call{{"", "run", `{}`}}}},
		{"a longer name", &keys, "", "<tool_call>runs</function>", "stop", result{Text: "<tool_call>runs</function>"}},
		{"an argument that the schema lacks", &argsForm, "", "<function=run>\n<parameter=x>\n5\n</parameter>\n</function>", "stop", result{Calls: []Call{{"", "run", `{"x":5}`}}}},
		{"text after a call", &jsonForm, "", `<tool_call>{"name": "run"}</tool_call> Done.`, "stop", result{Text: "Done.", Calls: []Call{{"", "run", `{}`}}}},
		{"arguments before the name", &jsonForm, "", `<tool_call>{"arguments": {"command": "ls"}, "name": "run"}</tool_call>`, "stop", result{Calls: []Call{{"", "run", `{"command": "ls"}`}}}},
		{"another name of arguments", &jsonForm, "", `<tool_call>{"name": "run", "parameters": {"command": "ls"}}</tool_call>`, "stop", result{Calls: []Call{{"", "run", `{"command": "ls"}`}}}},
		{"arguments as text", &jsonForm, "", `<tool_call>{"name": "run", "arguments": "{\"command\": \"ls\"}"}</tool_call>`, "stop", result{Calls: []Call{{"", "run", `{"command": "ls"}`}}}},
		{"no arguments", &tagForm, "", `[TOOL_CALLS]run[ARGS]`, "stop", result{Calls: []Call{{"", "run", `{}`}}}},
		{"a line break in a JSON string", &jsonForm, "", "<tool_call>{\"name\": \"run\", \"arguments\": {\"command\": \"a\nb\"}}</tool_call>", "stop", result{Calls: []Call{{"", "run", `{"command": "a\nb"}`}}}},
		{"too many calls", &tagForm, "", many, "stop", result{Text: "[TOOL_CALLS]run[ARGS]{}", Calls: slicesRepeat(Call{"", "run", "{}"}, maxCalls)}},
		{"the end of the turn as text", &jsonForm, "", "Hello<|im_end|>\n", "stop", result{Text: "Hello"}},
		{"the end of a turn within text", &jsonForm, "", "Hello<|im_end|> there", "stop", result{Text: "Hello<|im_end|> there"}},
		{"Python literals", &argsForm, "", "<function=run>\n<parameter=env>\n{'A': \"it's\", 'B': None}\n</parameter>\n<parameter=background>\nTrue\n</parameter>\n</function>", "stop",
			result{Calls: []Call{{"", "run", `{"env":{"A": "it's", "B": null},"background":true}`}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := ReaderOptions{Tools: agentTools, Prompt: test.prompt}
			for _, n := range []int{1, 2, 7, len(test.answer)} {
				if got := readAnswer(test.form, o, test.answer, n, test.reason); !reflect.DeepEqual(got, test.want) {
					t.Fatalf("in pieces of %d\n got %q\nwant %q", n, got, test.want)
				}
			}
		})
	}
}

func slicesRepeat[T any](v T, n int) (list []T) {
	for range n {
		list = append(list, v)
	}
	return list
}

// TestNoTools reads an answer to a call without tools: nothing is a call.
func TestNoTools(t *testing.T) {
	answer := "<think>Hm</think><tool_call>\n{\"name\": \"run\", \"arguments\": {}}\n</tool_call>"
	if got := readAnswer(&jsonForm, ReaderOptions{}, answer, 3, "stop"); got.Reasoning != "Hm" || got.Text != answer[len("<think>Hm</think>"):] || got.Calls != nil {
		t.Errorf("%q", got)
	}
}

// TestManyArguments limits the arguments of a call.
func TestManyArguments(t *testing.T) {
	answer := `[TOOL_CALLS]run[ARGS]{"command":"` + strings.Repeat("x", 2*maxArguments) + `"}`
	got := readAnswer(&tagForm, ReaderOptions{Tools: agentTools}, answer, 1000, "stop")
	if n := len(got.Calls[0].Arguments); n > maxArguments || n < maxArguments-1000 {
		t.Errorf("the arguments have %d bytes", n)
	}
}

// TestSyntaxes reads answers in syntaxes of their own.
func TestSyntaxes(t *testing.T) {
	o := ReaderOptions{Tools: agentTools}
	tags := func(s string) string { return strings.ReplaceAll(s, "~", nestedMark) }
	for _, test := range []struct {
		name, syntax, answer string
		want                 result
	}{
		{"strings within a list", "python", `<|tool_call_start|>[run(command='it's, 'x', y', list=["a", 'b'], env={'a': "b"}), run()]<|tool_call_end|> Done`,
			result{Text: "Done", Calls: []Call{{"", "run", `{"command":"it's, 'x', y","list":["a", "b"],"env":{"a": "b"}}`}, {"", "run", "{}"}}}},
		{"escaped strings", "python", `<|tool_call_start|>[run(command="a\n\"b\"")]<|tool_call_end|>`, result{Calls: []Call{{"", "run", `{"command":"a\n\"b\""}`}}}},
		{"an unknown function", "python", `<|tool_call_start|>[other()]<|tool_call_end|>`, result{Text: `<|tool_call_start|>[other()]<|tool_call_end|>`}},
		{"tags of the same name", "nested", tags(`~<tool_call>~<invoke name="run">~<env>~<a>~<a>1~</a>~</a>~</env>~</invoke>~</tool_call>`),
			result{Calls: []Call{{"", "run", `{"env":{"a":{"a":1}}}`}}}},
		{"items", "nested", tags(`~<tool_call>~<invoke name="run">~<list>~<item>a~</item>~<item>~<b>2~</b>~</item>~</list>~<env>~</env>~</invoke>~</tool_call>`),
			result{Calls: []Call{{"", "run", `{"list":["a",{"b":2}],"env":{}}`}}}},
		{"no items", "nested", tags(`~<tool_call>~<invoke name="run">~<list>~</list>~</invoke>~</tool_call>`), result{Calls: []Call{{"", "run", `{"list":[]}`}}}},
		{"no tags", "nested", tags(`~<tool_call>~<invoke name="run">~<env>{"a": 1}~</env>~</invoke>~</tool_call>`), result{Calls: []Call{{"", "run", `{"env":{"a": 1}}`}}}},
		{"quoted values", "quoted", `<|tool_call>call:run{command:<|"|>a "b",{c}<|"|>,list:[1,None,<|"|>x<|"|>],env:{k:<|"|>v<|"|>},background:True}<tool_call|>`,
			result{Calls: []Call{{"", "run", `{"command":"a \"b\",{c}","list":[1,null,"x"],"env":{"k":"v"},"background":true}`}}}},
		{"cut in a quoted value", "quoted", `<|tool_call>call:run{command:<|"|>ls`, result{Calls: []Call{{"", "run", `{"command":"ls`}}}},
		{"Python arguments", "recipients", "run\n{'command': 'it\\'s', 'background': True}>>>all\nDone", result{Text: "Done", Calls: []Call{{"", "run", `{"command": "it's", "background": true}`}}}},
		{"text without a recipient", "recipients", "Hello >> you", result{Text: "Hello >> you"}},
		{"channels", "channels", "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.run <|constrain|>json<|message|>{}<|call|>",
			result{Reasoning: "Hm", Calls: []Call{{"", "run", "{}"}}}},
		{"a message to no tool", "channels", "<|channel|>commentary to=browser.open<|message|>{\"a\": 1}<|end|><|start|>assistant<|channel|>final<|message|>Yes", result{Text: "Yes"}},
		{"text without a channel", "channels", "Hello", result{Text: "Hello"}},
		{"a header without a message", "channels", "<|start|>assistant<|channel|>final", result{Text: "<|start|>assistant<|channel|>final"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &Form{Syntax: test.syntax, WritesCalls: true}
			syntaxes[test.syntax].set(f)
			if got := readPieces(t, f, o, test.answer); !reflect.DeepEqual(got, test.want) {
				t.Errorf("\n got %q\nwant %q", got, test.want)
			}
		})
	}
}

// TestTypes converts values by their schemas.
func TestTypes(t *testing.T) {
	s := newSchema([]byte(`{"type":"object","$defs":{"name":{"type":"string"},"loop":{"anyOf":[{"$ref":"#/$defs/loop"},{"$ref":"#"}]}},"properties":{
		"text":{"type":"string"},"maybe":{"type":["string","null"]},"number":{"type":"integer"},"any":{},"enum":{"enum":["a","b"]},
		"union":{"anyOf":[{"type":"integer"},{"type":"string"}]},"ref":{"$ref":"#/$defs/name"},"loop":{"$ref":"#/$defs/loop"},"const":{"const":7},"list":{"type":"array"}}}`))
	for _, test := range []struct{ name, raw, want string }{
		{"text", "5", `"5"`}, {"text", `"x"`, `"\"x\""`},
		{"maybe", "null", "null"}, {"maybe", "5", `"5"`}, {"maybe", "a b", `"a b"`},
		{"number", "5", "5"}, {"number", " 5\n", "5"}, {"number", "five", `"five"`},
		{"any", "5", "5"}, {"any", "five", `"five"`}, {"any", "True", "true"}, {"any", "[1, 2]", "[1, 2]"},
		{"enum", "a", `"a"`}, {"enum", "5", `"5"`},
		{"union", "5", "5"}, {"union", "5 dollars", `"5 dollars"`},
		{"ref", "5", `"5"`}, {"const", "7", "7"}, {"loop", `{"a":1}`, `{"a":1}`},
		{"list", "['a', (1, None)]", `["a", [1, null]]`}, {"missing", "5", "5"},
	} {
		if got := convert(test.raw, s.property(test.name).types()); got != test.want {
			t.Errorf("%s: %q is %s, want %s", test.name, test.raw, got, test.want)
		}
	}
}

// TestFormJSON writes forms as JSON and reads them.
func TestFormJSON(t *testing.T) {
	for _, f := range []*Form{&jsonForm, &tagForm, &argsForm, {Problem: "none"}} {
		b, err := json.Marshal(f)
		var got Form
		if err == nil {
			err = json.Unmarshal(b, &got)
		}
		if err != nil || !reflect.DeepEqual(&got, f) {
			t.Errorf("%s: %v", b, err)
		}
	}
}

func BenchmarkInspect(b *testing.B) {
	all := templates(b)
	for _, name := range []string{"Qwen-Qwen3-0.6B", "Qwen3-Coder", "openai-gpt-oss-120b", "google-gemma-4-31B-it", "meetkai-functionary-medium-v3.2", "Kimi-K3"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				inspected(b, all[name])
			}
		})
	}
}

// BenchmarkReader reads answers of 64 KiB in pieces of 4 bytes.
func BenchmarkReader(b *testing.B) {
	text := strings.Repeat("a word <b> or \"two\"\n", 64<<10/20)
	for name, answer := range map[string]string{
		"text": text,
		"args": "<tool_call>\n<function=write_file>\n<parameter=content>\n" + text + "\n</parameter>\n</function>\n</tool_call>",
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(answer)))
			for b.Loop() {
				r := argsForm.NewReader(ReaderOptions{Tools: agentTools})
				for i := 0; i < len(answer); i += 4 {
					r.Write(answer[i:min(i+4, len(answer))])
				}
				r.Close("stop")
			}
		})
	}
}

// A defect of a reader costs its answer: what was read before is reported, and then why no
// more is read.
func TestReaderFails(t *testing.T) {
	syntaxes["defect"] = syntax{read: func(r *Reader, _ ReaderOptions) {
		r.until(EventText, []string{"<"})
		_ = r.buf[len(r.buf):][r.pos]
	}}
	defer delete(syntaxes, "defect")
	r := (&Form{Syntax: "defect"}).NewReader(ReaderOptions{})
	assert.Equal(t, len(r.Write("one")), 1)
	assert.OK(t, r.Err())
	assert.Equal(t, len(r.Write("two<three")), 1)
	assert.Fails(t, r.Err(), "index out of range [6] with length 0 at reader_test.go:")
	assert.Equal(t, len(r.Write("four"))+len(r.Close("stop")), 0)
}
