package chatform

import (
	"encoding/json/jsontext"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// folder has the chat templates of llama.cpp's tests, what Jinja2 renders with them, and
// answers of models with what they mean: scripts/chat-templates.sh makes it.
const folder = "../../../build/templates"

// templates returns the templates by name.
func templates(tb testing.TB) map[string]Source {
	tb.Helper()
	files, _ := filepath.Glob(folder + "/*.jinja")
	if len(files) == 0 {
		tb.Fatalf("%s has no chat templates; run scripts/chat-templates.sh", folder)
	}
	list := map[string]Source{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		list[strings.TrimSuffix(filepath.Base(file), ".jinja")] = Source{Text: string(text), BOS: "<BOS>", EOS: "<EOS>"}
	}
	return list
}

// inspected returns a template with its form.
func inspected(tb testing.TB, s Source) *template {
	tb.Helper()
	t, err := compile(s)
	if err == nil {
		err = t.inspect()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// result is what an answer means.
type result struct {
	Reasoning, Text string
	Calls           []Call
}

func (r *result) add(events []Event) {
	for _, e := range events {
		switch e.Kind {
		case EventReasoning:
			r.Reasoning += e.Text
		case EventText:
			r.Text += e.Text
		case EventCall:
			if e.Index != len(r.Calls) {
				panic(fmt.Sprintf("call %d has the index %d", len(r.Calls), e.Index))
			}
			r.Calls = append(r.Calls, Call{ID: e.ID, Name: e.Name})
		case EventArguments:
			r.Calls[e.Index].Arguments += e.Text
		}
	}
}

// readAnswer reads an answer in pieces of n bytes, or of random sizes if n is 0.
func readAnswer(f *Form, o ReaderOptions, answer string, n int, reason string) (r result) {
	reader := f.NewReader(o)
	for rest := answer; rest != ""; {
		size := n
		if n == 0 {
			size = 1 + rand.IntN(20)
		}
		size = min(size, len(rest))
		r.add(reader.Write(rest[:size]))
		rest = rest[size:]
	}
	r.add(reader.Close(reason))
	return r
}

// readPieces reads an answer at once and in pieces, which must mean the same.
func readPieces(t *testing.T, f *Form, o ReaderOptions, answer string) result {
	t.Helper()
	whole := readAnswer(f, o, answer, max(len(answer), 1), "stop")
	for _, n := range []int{1, 3, 5, 0} {
		if got := readAnswer(f, o, answer, n, "stop"); fmt.Sprint(got) != fmt.Sprint(whole) {
			t.Errorf("in pieces of %d bytes:\n got %q\nwant %q", n, got, whole)
		}
	}
	return whole
}

// sameJSON reports whether two texts are the same JSON value.
func sameJSON(a, b string) bool {
	v, w := jsontext.Value(a), jsontext.Value(b)
	return v.Canonicalize() == nil && w.Canonicalize() == nil && string(v) == string(w)
}

func schemaOf(properties string) jsontext.Value {
	return jsontext.Value(`{"type":"object","properties":{` + properties + `}}`)
}

// agentTools are tools as coding agents have them.
var agentTools = []Tool{
	{"read_file", schemaOf(`"path":{"type":"string","description":"d"},"limit":{"type":"integer","description":"d"}`)},
	{"read_file_lines", schemaOf(`"path":{"type":"string","description":"d"}`)},
	{"run", schemaOf(`"command":{"type":"string","description":"d"},"timeout":{"type":"number","description":"d"},` +
		`"env":{"type":"object","description":"d"},"background":{"type":"boolean","description":"d"},"list":{"type":"array","description":"d"}`)},
	{"write_file", schemaOf(`"path":{"type":"string","description":"d"},"content":{"type":"string","description":"d"}`)},
}

// chatTools returns tools as a chat request has them.
func chatTools(tools []Tool) (list []jsontext.Value) {
	for _, t := range tools {
		list = append(list, jsontext.Value(`{"type":"function","function":{"name":`+quote(t.Name)+`,"description":"d","parameters":`+string(t.Parameters)+`}}`))
	}
	return list
}

// writtenAnswer is an answer that templates write.
type writtenAnswer struct {
	name, text, reasoning string
	calls                 []Call
}

var writtenAnswers = []writtenAnswer{
	{"one call", "", "", []Call{{"abcdef123", "read_file", `{"path":"src/main.go","limit":20}`}}},
	{"all types", "", "", []Call{{"abcdef123", "run", `{"command":"go test ./... && echo 'fertig <ü>' | grep \"x\" {y}","timeout":2.5,"env":{"HOME":"/root","A":"it's"},"background":false,"list":["a",{"b":true},-3]}`}}},
	{"null", "", "", []Call{{"abcdef123", "run", `{"command":"ls","list":[null]}`}}},
	{"no arguments", "", "", []Call{{"abcdef123", "run", `{}`}}},
	{"lines", "", "", []Call{{"abcdef123", "write_file", `{"path":"a.go","content":"package a\n\n\tfunc f() {\n\t}\n"}`}}},
	{"texts like numbers", "", "", []Call{{"abcdef123", "write_file", `{"path":"20","content":"true"}`}}},
	{"text like JSON", "", "", []Call{{"abcdef123", "write_file", `{"path":"x.json","content":"{\"a\": [1, 2]}"}`}}},
	{"two calls", "", "", []Call{{"abcdef123", "read_file", `{"path":"a","limit":1}`}, {"ghijkl456", "run", `{"command":"ls","background":true}`}}},
	{"one tool twice", "", "", []Call{{"abcdef123", "read_file", `{"path":"a"}`}, {"ghijkl456", "read_file", `{"path":"b"}`}}},
	{"text and a call", "I shall read it.", "", []Call{{"abcdef123", "read_file_lines", `{"path":"a"}`}}},
	{"reasoning and a call", "", "It must be read first.", []Call{{"abcdef123", "read_file_lines", `{"path":"a"}`}}},
	{"text", "It prints hi.", "", nil},
	{"reasoning and text", "It prints hi.", "Let me see: hi.", nil},
}

// TestForms reads back what each template writes.
func TestForms(t *testing.T) {
	all := templates(t)
	for _, name := range sorted(all) {
		t.Run(name, func(t *testing.T) {
			tpl := inspected(t, all[name])
			if tpl.form.Problem != "" {
				t.Fatal(tpl.form.Problem)
			}
			for _, a := range writtenAnswers {
				t.Run(a.name, func(t *testing.T) { tpl.readBack(t, a) })
			}
		})
	}
}

// readBack reads what the template writes for an answer. What the template leaves out, such
// as reasoning, is not expected.
func (tpl *template) readBack(t *testing.T, a writtenAnswer) {
	f := tpl.form
	if len(a.calls) > 1 && !f.Parallel {
		return
	}
	user := Message{Role: "user", Content: "What does it do?"}
	m := Message{Role: "assistant", Content: a.text, Reasoning: a.reasoning, Calls: a.calls}
	var rendered []string // what follows the user's message: the prompt, nothing, the answer
	for _, c := range []Conversation{{Messages: []Message{user}, Answer: true}, {Messages: []Message{user}}, {Messages: []Message{user, m}}} {
		c.Tools = chatTools(agentTools)
		text, _, err := tpl.render(&c)
		if err != nil {
			t.Fatal(err)
		}
		rendered = append(rendered, text[strings.LastIndex(text, user.Content)+len(user.Content):])
	}
	prompt, text := rendered[0], rendered[2]
	begin := head(text, prompt)
	o := ReaderOptions{Tools: agentTools, Prompt: prompt[:begin]}
	if a.reasoning != "" && strings.Contains(text, a.reasoning) && !strings.Contains(text, f.ThinkBegin) {
		o.Prompt = prompt // it begins the reasoning
	}
	text = text[begin:]
	text = text[:len(text)-tail(text, rendered[1])] // some templates end each prompt with the same text
	for _, end := range []string{f.TurnEnd, f.CallTurnEnd} {
		if !strings.HasPrefix(f.head(), end) {
			text, _, _ = strings.Cut(text, end) // the model ends there
		}
	}
	got, want := readPieces(t, f, o, text), result{}
	if a.calls != nil && strings.Contains(text, a.calls[0].Name) {
		want.Calls = a.calls
	}
	if strings.Contains(text, a.text) {
		want.Text = a.text
	}
	if strings.Contains(text, a.reasoning) {
		want.Reasoning = a.reasoning
	}
	if f.ThinkEnd != "" && strings.HasSuffix(strings.TrimRight(o.Prompt, white), f.ThinkBegin) && !strings.Contains(text, f.ThinkEnd) {
		got.Text, got.Reasoning = got.Reasoning, "" // the template does not end what the prompt begins
	}
	if f.Syntax == "channels" && got.Calls != nil { // the template writes either as reasoning
		got.Text, got.Reasoning = got.Text+got.Reasoning, ""
		want.Text, want.Reasoning = want.Text+want.Reasoning, ""
	}
	ok := len(got.Calls) == len(want.Calls) && strings.TrimSpace(got.Text) == want.Text && strings.TrimSpace(got.Reasoning) == want.Reasoning
	if a.name == "null" && !strings.Contains(text, "null") && !strings.Contains(text, "None") {
		return
	}
	for i := range got.Calls {
		ok = ok && got.Calls[i].Name == want.Calls[i].Name && sameJSON(got.Calls[i].Arguments, want.Calls[i].Arguments)
	}
	if !ok {
		t.Errorf("prompt %q\nanswer %q\n got %q\nwant %q", o.Prompt, text, got, want)
	}
}

func sorted[T any](m map[string]T) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// write writes calls with the literals of a form. arguments is what the template writes for
// those of KindJSON and KindTag.
func (f *Form) write(calls []Call, arguments string) string {
	var list []string
	for i, c := range calls {
		id, name, text := c.ID, c.Name, f.Shape
		switch f.Kind {
		case KindJSON:
			id, name = quote(id), quote(name)
		case KindTag:
			text = MarkName + f.NameEnd + MarkArguments
		case KindArgs:
			text = MarkName + f.NameEnd + f.ArgBegin + "path" + f.ArgMid["string"] + "a.go" + f.ArgEnd
		}
		values := strings.NewReplacer(MarkID, id, MarkCount, fmt.Sprint(i), MarkName, name, MarkArgument, "path", MarkArguments, arguments)
		list = append(list, values.Replace(f.CallBegin+text+f.CallEnd))
	}
	return f.Begin + strings.Join(list, f.Sep) + f.End
}

// TestLiterals writes calls with the literals of each form, as the template does, byte by
// byte. A grammar of these literals lets a model write what it was trained on.
func TestLiterals(t *testing.T) {
	all := templates(t)
	for _, name := range sorted(all) {
		tpl := inspected(t, all[name])
		f := tpl.form
		if f.Default || f.Syntax != "" {
			continue
		}
		calls := []Call{{"abcdef123", "read_file", `{"path":"a.go"}`}, {"ghijkl456", "write_file", `{"path":"a.go"}`}}
		if !f.Parallel {
			calls = calls[:1]
		}
		for n := range calls {
			m := Message{Role: "assistant", Calls: calls[:n+1]}
			text, _, err := tpl.render(&Conversation{Messages: []Message{{Role: "user", Content: "hi"}, m}, Tools: chatTools(agentTools)})
			if err != nil {
				t.Fatal(err)
			}
			// Some templates count calls from 1, or write their numbers as ids.
			counted := strings.NewReplacer(`index="1"`, `index="2"`, `index="0"`, `index="1"`, `"abcdef123"`, `"0"`, `"ghijkl456"`, `"1"`)
			written := func(arguments string) bool {
				want := f.write(calls[:n+1], arguments)
				return strings.Contains(text, want) || strings.Contains(text, counted.Replace(want))
			}
			if !slices.ContainsFunc([]string{`{"path": "a.go"}`, "{\n            \"path\": \"a.go\"\n        }"}, written) {
				t.Errorf("%s: %q is not in %q", name, f.write(calls[:n+1], `{"path": "a.go"}`), text[max(len(text)-600, 0):])
			}
		}
	}
}

// BenchmarkRender renders a long conversation of an agent: 400 messages, 30 tools.
func BenchmarkRender(b *testing.B) {
	all := templates(b)
	c := &Conversation{Answer: true}
	for i := range 30 {
		c.Tools = append(c.Tools, []byte(fmt.Sprintf(`{"type":"function","function":{"name":"tool%d","description":%q,"parameters":{"type":"object","properties":{"path":{"type":"string","description":"A path."},"lines":{"type":"integer"}},"required":["path"]}}}`, i, strings.Repeat("Does something useful. ", 20))))
	}
	for i := range 100 {
		id := fmt.Sprintf("call_%d", i)
		c.Messages = append(c.Messages,
			Message{Role: "user", Content: strings.Repeat("Read the file. ", 20)},
			Message{Role: "assistant", Calls: []Call{{id, "tool1", `{"path":"a/b.go","lines":40}`}}},
			Message{Role: "tool", CallID: id, Name: "tool1", Content: strings.Repeat("line of code\n", 80)},
			Message{Role: "assistant", Content: "It is done."})
	}
	for _, name := range []string{"Qwen-Qwen3-0.6B", "Qwen3-Coder", "openai-gpt-oss-120b", "google-gemma-4-31B-it"} {
		b.Run(name, func(b *testing.B) {
			tpl := inspected(b, all[name])
			for b.Loop() {
				if _, _, err := tpl.render(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
