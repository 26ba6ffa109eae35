package llama

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	engines "github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
)

// thoughtful is a template that begins reasoning if it is enabled, and asks what the small
// model knows if the reasoning of an earlier answer has the word heron.
const thoughtful = `{% set ns = namespace(back=false) %}{% for m in messages %}{% if 'heron' in (m.reasoning_content or '') %}{% set ns.back = true %}{% endif %}{% endfor %}
{%- if ns.back %}<|im_start|>user
What is 7+5?<|im_end|>
{% else %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% endif %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}`

// A caller of each dialect switches reasoning on and off, gets it apart from the answer, and
// sends it back in a form that reaches the template.
func TestReasoningInDialects(t *testing.T) {
	e := startEngine(t, Config{Models: []ModelFile{templateModel(t, "thinker", thoughtful)}})
	builtin := engines.Builtin("kith", e.Transport(), engines.BuiltinState{Models: []engines.Model{{
		ID: "thinker", Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, Slots: 1,
	}}})
	// complete returns the chat answer to a chat request as a hub sends it.
	complete := func(body []byte) []byte {
		t.Helper()
		res := assert.Value(builtin.Do(t.Context(), engines.Request{Endpoint: fleet.ChatCompletions, Model: "thinker", Body: body}))(t)
		defer res.Body.Close()
		answer := assert.Value(io.ReadAll(res.Body))(t)
		assert.Require(t, res.StatusCode == http.StatusOK, res.StatusCode, answer)
		return answer
	}
	type caller struct {
		ask       func(body string) string // returns the answer
		on, off   []string                 // controls
		reasoning string                   // the beginning of it in an answer
		history   []string                 // messages with reasoning
	}
	callers := map[string]caller{
		"chat": {
			ask: func(members string) string {
				return string(complete([]byte(`{"model":"thinker","temperature":0,"max_tokens":16,` + members + `}`)))
			},
			on:        []string{`"reasoning_effort":"low"`, `"reasoning":{"max_tokens":100}`, `"thinking":{"type":"enabled"}`, `"chat_template_kwargs":{"thinking":true}`},
			off:       []string{``, `"reasoning_effort":"none"`, `"reasoning":{"enabled":false}`, `"thinking":{"type":"disabled"}`, `"chat_template_kwargs":{"enable_thinking":false}`},
			reasoning: `"reasoning_content":"`,
			history: []string{
				`"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"a heron"},{"role":"user","content":"c"}]`,
				`"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"reasoning":"a heron"},{"role":"user","content":"c"}]`,
			},
		},
		"messages": {
			ask: func(members string) string {
				_, body, err := dialect.MessagesToChat([]byte(`{"model":"thinker","temperature":0,"max_tokens":16,` + members + `}`))
				assert.OK(t, err)
				answer, _, err := dialect.MessageAnswer(bytes.NewReader(complete(body)), "msg", "thinker")
				assert.OK(t, err)
				return string(answer)
			},
			on:        []string{`"thinking":{"type":"enabled","budget_tokens":1024}`, `"output_config":{"effort":"high"}`},
			off:       []string{``, `"thinking":{"type":"disabled"}`},
			reasoning: `{"type":"thinking","thinking":"`,
			history: []string{
				`"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"a heron","signature":"x"},{"type":"text","text":"b"}]},{"role":"user","content":"c"}]`,
				`"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"a heron","signature":"x"},{"type":"tool_use","id":"t1","name":"read","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"c"}]}]`,
			},
		},
		"responses": {
			ask: func(members string) string {
				q := assert.Value(dialect.ReadResponses([]byte(`{"model":"thinker","temperature":0,"max_output_tokens":16,` + members + `}`)))(t)
				assert.OK(t, q.Resolve(nil))
				made := q.Answer("x", time.Now(), false)
				assert.Value(made.Unary(bytes.NewReader(complete(assert.Value(q.Chat())(t)))))(t)
				return string(made.Finish(time.Now(), false))
			},
			on:        []string{`"reasoning":{"effort":"medium"}`, `"reasoning":{"max_tokens":100}`},
			off:       []string{``, `"reasoning":{"effort":"none"}`},
			reasoning: `"type":"reasoning"`,
			history: []string{
				`"input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"a heron"}]},{"type":"message","role":"assistant","content":"b"},{"role":"user","content":"c"}]`,
				`"input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"a heron"}]},{"type":"function_call","call_id":"t1","name":"read","arguments":"{}"},{"type":"function_call_output","call_id":"t1","output":"c"}]`,
			},
		},
	}
	const question = `[{"role":"user","content":"What is 7+5?"}]`
	for name, c := range callers {
		said := `"messages":` + question
		if name == "responses" {
			said = `"input":` + question
		}
		for _, control := range c.on {
			assert.Contains(t, c.ask(control+","+said), c.reasoning, name, control)
		}
		for _, control := range c.off {
			if control != "" {
				control += ","
			}
			answer := c.ask(control + said)
			assert.Lacks(t, answer, c.reasoning, name, control)
			assert.Contains(t, answer, "7 + 5 = 12.", name, control)
		}
		for _, history := range c.history {
			assert.Contains(t, c.ask(history), "7 + 5 = 12.", name, history)
		}
	}
}
