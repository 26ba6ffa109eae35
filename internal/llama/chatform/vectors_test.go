package chatform

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"os"
	"strings"
	"testing"
)

// vector is an answer of a model and what it means, from the tests of llama.cpp.
type vector struct {
	Template string
	Line     int // in tests/test-chat.cpp
	Answer   string
	Tools    []jsontext.Value
	Thinking bool
	Expect   struct {
		Content, Reasoning string
		Calls              [][3]string // name, arguments, id or ""
	}
}

func toolsOf(tb testing.TB, list []jsontext.Value) (tools []Tool) {
	for _, v := range list {
		var tool struct {
			Function struct {
				Name       string
				Parameters jsontext.Value
			}
		}
		if err := json.Unmarshal(v, &tool, json.MatchCaseInsensitiveNames(true)); err != nil {
			tb.Fatal(err)
		}
		tools = append(tools, Tool(tool.Function))
	}
	return tools
}

// TestVectors reads what models wrote.
func TestVectors(t *testing.T) {
	raw, err := os.ReadFile(folder + "/vectors.json")
	if err != nil {
		t.Fatalf("%v; run scripts/chat-templates.sh", err)
	}
	var vectors []vector
	if err := json.Unmarshal(raw, &vectors, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	sources, forms := templates(t), map[string]*template{}
	for _, v := range vectors {
		if forms[v.Template] == nil {
			forms[v.Template] = inspected(t, sources[v.Template])
		}
		t.Run(fmt.Sprintf("%s/%d", v.Template, v.Line), func(t *testing.T) {
			tpl := forms[v.Template]
			c := &Conversation{
				Messages: []Message{{Role: "user", Content: "Hey there!"}}, Tools: v.Tools, Answer: true,
				Variables: map[string]any{"enable_thinking": v.Thinking},
			}
			prompt, hidden, err := tpl.render(c)
			if err != nil {
				t.Fatal(err)
			}
			o := ReaderOptions{Tools: toolsOf(t, v.Tools), Prompt: tpl.tail(c, prompt, hidden)}
			got := readPieces(t, tpl.form, o, v.Answer)
			if f := tpl.form; strings.HasPrefix(v.Expect.Reasoning, f.ThinkBegin) && !strings.ContainsAny(f.ThinkBegin, "<[") {
				v.Expect.Reasoning = strings.TrimPrefix(v.Expect.Reasoning, f.ThinkBegin) // llama.cpp reports what the prompt says, too
			}
			ok := strings.TrimSpace(got.Text) == strings.TrimSpace(v.Expect.Content) &&
				strings.TrimSpace(got.Reasoning) == strings.TrimSpace(v.Expect.Reasoning) && len(got.Calls) == len(v.Expect.Calls)
			for i := range got.Calls {
				if !ok {
					break
				}
				want := v.Expect.Calls[i]
				ok = got.Calls[i].Name == want[0] && sameJSON(got.Calls[i].Arguments, want[1]) && (want[2] == "" || got.Calls[i].ID == want[2])
			}
			if !ok {
				t.Errorf("prompt %q\nanswer %q\n got %q\nwant %q", o.Prompt, v.Answer, got, v.Expect)
			}
		})
	}
}
