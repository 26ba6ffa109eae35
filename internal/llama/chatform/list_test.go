package chatform

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/pull"
)

// listTemplates are the templates of the models that `kith pull` lists, and the thinking
// controls that change the prompt of each.
var listTemplates = map[string]struct{ template, controls string }{
	"qwen3-0.6b":        {"Qwen-Qwen3-0.6B", "off"},
	"qwen3-1.7b":        {"Qwen-Qwen3-0.6B", "off"},
	"qwen3-4b":          {"Qwen-Qwen3-0.6B", "off"},
	"qwen3-8b":          {"library-Qwen3-8B-Q8_0", "off"},
	"qwen3-14b":         {"Qwen-Qwen3-0.6B", "off"},
	"qwen3-30b":         {"Qwen-Qwen3-0.6B", "off"},
	"qwen3-coder-30b":   {"Qwen3-Coder", ""},
	"llama-3.2-3b":      {"meta-llama-Llama-3.2-3B-Instruct", ""},
	"gemma-3-4b":        {"google-gemma-3-it", ""},
	"gemma-3-12b":       {"google-gemma-3-it", ""},
	"gpt-oss-20b":       {"library-gpt-oss-20b-Q8_0", "off effort"},
	"mistral-small-24b": {"Mistral-Small-3.2-24B-Instruct-2506", ""},
}

// TestList derives what the list says of each model from its template.
func TestList(t *testing.T) {
	all := templates(t)
	for _, l := range pull.List() {
		of := listTemplates[l.Name]
		if of.template == "" && l.Tools == "" {
			continue // it is not for chat
		}
		source, ok := all[of.template]
		assert.Require(t, ok, l.Name, "has no template; run scripts/chat-templates.sh")
		tpl := inspected(t, source)
		f := tpl.form
		assert.Require(t, f.Problem == "", l.Name, f.Problem)
		assert.Equal(t, l.Tools, map[bool]string{false: "yes", true: "default"}[f.Default], l.Name+": tools")
		assert.Equal(t, l.Thinking, f.ThinkEnd != "", l.Name+": thinking")

		prompt := func(set map[string]any) string {
			c := &Conversation{Messages: []Message{{Role: "user", Content: "What is it?"}}, Variables: set, Answer: true}
			text, _, err := tpl.render(c)
			assert.OK(t, err, l.Name, set)
			return text
		}
		var controls []string
		for _, c := range []struct {
			name string
			set  map[string]any
		}{
			{"on", map[string]any{enableThinking: true}},
			{"off", map[string]any{enableThinking: false}},
			{"effort", map[string]any{enableThinking: true, reasoningEffort: "high"}},
			{"budget", map[string]any{enableThinking: true, thinkingBudget: 1024}},
		} {
			if prompt(c.set) != prompt(nil) {
				controls = append(controls, c.name)
			}
		}
		assert.Equal(t, strings.Join(controls, " "), of.controls, l.Name+": controls")
		if l.Thinking {
			tpl.checkReasoningBack(t, l.Name)
		}
	}
	for name := range listTemplates {
		assert.That(t, slices.ContainsFunc(pull.List(), func(l pull.Listed) bool { return l.Name == name }), name, "is not in the list")
	}
}

// checkReasoningBack checks that the template writes the reasoning of a call between its
// marks while the model works on the same question, and that a reader finds it there.
func (tpl *template) checkReasoningBack(t *testing.T, name string) {
	t.Helper()
	const reasoning = "It must be read first."
	c := agentTurn()
	c.Messages[2].Content, c.Messages[2].Reasoning = "", reasoning
	c.Messages[2].Calls, c.Messages = c.Messages[2].Calls[:1], c.Messages[:4]
	text, _, err := tpl.render(c)
	assert.OK(t, err, name)
	_, answer, found := strings.Cut(text, c.Messages[1].Content)
	assert.Require(t, found, name, text)
	begin := strings.Index(answer, tpl.form.ThinkBegin)
	assert.Require(t, begin >= 0, name, "writes no reasoning:", answer)
	got := readAnswer(tpl.form, ReaderOptions{Tools: agentTools}, answer[begin:], 3, "stop")
	assert.Equal(t, got.Reasoning, reasoning, name)
	assert.Equal(t, fmt.Sprint(len(got.Calls) > 0 && got.Calls[0].Name == "read_file"), "true", name, answer)
}
