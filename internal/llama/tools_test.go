package llama

import (
	"bytes"
	"encoding/json/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// agentModel is the small model with a template that begins a call after a user's message,
// so that the grammar forces the rest of it, and asks what it knows after a result with
// the word heron.
func agentModel(t testing.TB) ModelFile {
	t.Helper()
	start := bytes.Index(tinyModel, []byte("{% for message in messages %}"))
	const length = 198
	template := `{% for m in messages %}{{ m.content }}
{% endfor %}{% if '<tools>' in messages[0].content %}<tool_call>
{"name": "read", "arguments": {"filePath": "note.txt"{% endif %}`
	assert.Require(t, len(template) <= length-4, len(template))
	template += "{#" + strings.Repeat(" ", length-len(template)-4) + "#}"
	path := filepath.Join(t.TempDir(), "agent.gguf")
	assert.OK(t, os.WriteFile(path, bytes.Replace(tinyModel, tinyModel[start:start+length], []byte(template), 1), 0o600))
	return ModelFile{ID: "agent", Path: path}
}

var readTool = object{"type": "function", "function": object{"name": "read", "description": "Reads a file.", "parameters": object{
	"type": "object", "properties": object{"filePath": object{"type": "string"}}, "required": []string{"filePath"},
}}}

// A model that begins a call completes it as the tool's schema demands, streamed or not.
func TestToolCall(t *testing.T) {
	e := startEngine(t, Config{Models: []ModelFile{agentModel(t)}})
	asked := ask("Read note.txt.", object{"model": "agent", "tools": []object{readTool}, "parallel_tool_calls": false, "max_tokens": 60})
	status, body := e.post("/v1/chat/completions", asked)
	var got struct {
		Choices []struct {
			Message struct {
				Content   *string    `json:"content"`
				ToolCalls []toolCall `json:"tool_calls"`
			} `json:"message"`
			FinishReason string `json:"finish_reason"`
		} `json:"choices"`
	}
	assert.OK(t, json.Unmarshal(body, &got))
	if status != 200 || len(got.Choices) != 1 || len(got.Choices[0].Message.ToolCalls) < 1 || got.Choices[0].FinishReason != "tool_calls" {
		t.Fatalf("%d %s", status, body)
	}
	call := got.Choices[0].Message.ToolCalls[0]
	if call.Function.Name != "read" || strings.ReplaceAll(call.Function.Arguments, " ", "") != `{"filePath":"note.txt"}` || call.ID == "" {
		t.Errorf("%s", body)
	}
}

// A streamed call comes as its head and pieces of its arguments.
func TestToolCallStreamed(t *testing.T) {
	e := startEngine(t, Config{Models: []ModelFile{agentModel(t)}})
	status, body := e.post("/v1/chat/completions", ask("Read note.txt.", object{"model": "agent", "tools": []object{readTool}, "parallel_tool_calls": false, "max_tokens": 60, "stream": true}))
	assert.Equal(t, status, 200)
	var name, arguments, finish string
	for line := range strings.SplitSeq(string(body), "\n") {
		var frame chunk
		data, ok := strings.CutPrefix(line, "data: {")
		if !ok || json.Unmarshal([]byte("{"+data), &frame) != nil {
			continue
		}
		for _, c := range frame.Choices {
			for _, call := range c.Delta.ToolCalls {
				if *call.Index == 0 {
					name += call.Function.Name
					arguments += call.Function.Arguments
				}
			}
			if c.FinishReason != nil {
				finish = *c.FinishReason
			}
		}
	}
	if name != "read" || strings.ReplaceAll(arguments, " ", "") != `{"filePath":"note.txt"}` || finish != "tool_calls" {
		t.Errorf("%q %q %q: %s", name, arguments, finish, body)
	}
}

// Tools that cannot be called are refused, with the member at fault.
func TestToolRefusals(t *testing.T) {
	const said = `"messages":[{"role":"user","content":"x"}]`
	for more, param := range map[string]string{
		`"tools":[{"type":"web_search"}]`:                         "tools.0",
		`"tools":[{"type":"function","function":{"name":"a b"}}]`: "tools.0.function.name",
		`"tools":[{"type":"function","function":{"name":"a","parameters":"` + strings.Repeat("x", maxToolSchema) + `"}}]`:       "tools.0.function.parameters",
		`"tools":[` + strings.TrimSuffix(strings.Repeat(`{"type":"function","function":{"name":"a"}},`, maxTools+1), ",") + `]`: "tools",
		`"tool_choice":"required"`: "tool_choice",
		`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[]}}`: "tool_choice",
	} {
		_, err := parseChat([]byte(`{"model":"m",` + said + `,` + more + `}`))
		status, answer := errorResponse(err)
		if err == nil || status != 400 || answer.Error.Param != param {
			t.Errorf("%.80s: %d %+v, want %q", more, status, answer, param)
		}
	}
	c := assert.Value(parseChat([]byte(`{"model":"m",` + said + `,"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"b"}}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"b"}}]}}}`)))(t)
	assert.Require(t, len(c.tools) == 1 && c.tools[0].Name == "b" && len(c.conversation.Tools) == 1, c.tools)
}
