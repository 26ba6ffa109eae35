package chatform

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// scenario is a conversation as a chat request has it.
type scenario struct {
	Messages []struct {
		Role       string
		Content    string
		Reasoning  string `json:"reasoning_content"`
		Name       string
		ToolCallID string `json:"tool_call_id"`
		ToolCalls  []struct {
			ID       string
			Function struct {
				Name      string
				Arguments jsontext.Value
			}
		} `json:"tool_calls"`
	}
	Tools    []jsontext.Value
	Thinking *bool `json:"enable_thinking"`
}

func (s *scenario) conversation() *Conversation {
	c := &Conversation{Tools: s.Tools, Answer: true}
	if s.Thinking != nil {
		c.Variables = map[string]any{"enable_thinking": *s.Thinking}
	}
	for _, m := range s.Messages {
		message := Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, CallID: m.ToolCallID, Name: m.Name}
		for _, call := range m.ToolCalls {
			arguments := string(call.Function.Arguments)
			if call.Function.Arguments.Kind() == '"' {
				text, _ := jsontext.AppendUnquote(nil, arguments)
				arguments = string(text)
			}
			message.Calls = append(message.Calls, Call{call.ID, call.Function.Name, arguments})
		}
		c.Messages = append(c.Messages, message)
	}
	return c
}

// unlike are the templates that render otherwise than Jinja2.
var unlike = map[string]string{
	"library-Mistral-Medium-3.5-128B-GGUF": "it writes yesterday's date",
	"meetkai-functionary-medium-v3.1":      "Jinja2's tojson escapes HTML in the tools, where transformers' does not",
}

// TestGolden renders conversations as Jinja2 does.
func TestGolden(t *testing.T) {
	raw, err := os.ReadFile(folder + "/golden.json")
	if err != nil {
		t.Fatalf("%v; run scripts/chat-templates.sh", err)
	}
	var golden struct {
		Scenarios map[string]*scenario
		Templates map[string]map[string]string
	}
	if err := json.Unmarshal(raw, &golden, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	count := 0
	for name, source := range templates(t) {
		tpl, err := compile(source)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for scenario, want := range golden.Templates[name] {
			tpl.form.TextArguments = scenario == "text arguments"
			got, _, err := tpl.renderOnce(golden.Scenarios[scenario].conversation())
			for _, layout := range []string{"2006-01-02", "02 Jan 2006", "January 02, 2006"} {
				day := time.Date(2001, 2, 3, 0, 0, 0, 0, time.UTC).Format(layout)
				got = strings.ReplaceAll(got, time.Now().Format(layout), day)
			}
			if count++; err == nil && got != want && unlike[name] == "" {
				i := 0
				for i < min(len(got), len(want)) && got[i] == want[i] {
					i++
				}
				t.Errorf("%s, %s: after %q\n got %.100q\nwant %.100q", name, scenario, got[max(i-40, 0):i], got[i:], want[i:])
			} else if err != nil {
				t.Errorf("%s, %s: %v", name, scenario, err)
			}
		}
	}
	if count < 800 {
		t.Errorf("only %d renderings were compared", count)
	}
}

// TestWhiteSpace renders white space around tags as Jinja2 does.
func TestWhiteSpace(t *testing.T) {
	for text, want := range map[string]string{
		"a\n\n{% if true %}{%- if true %}b{% endif %}{% endif %}": "a\n\nb",
		"a {% if true %}{{- 'y' }}{% endif %}":                    "a y",
		"a {{ 'x' }}{{- 'y' }}":                                   "a xy",
		"a {{ 'x' }}{#- c #}y":                                    "a xy",
		"a {# c #}{%- if true %}b{% endif %}":                     "a b",
		"a {%- if true -%} b {%- endif -%} c":                     "abc",
		"{{ 'x' }}\n":                                             "x",
		"x\n\n":                                                   "x\n",
		"x\r\n":                                                   "x",
	} {
		got, _, err := assert.Value(compile(Source{Text: text}))(t).renderOnce(&Conversation{})
		assert.OK(t, err)
		assert.Equal(t, got, want, text)
	}
}
