package dialect

import (
	"testing"

	"github.com/kith/kith/internal/fleet"
)

// TestOwnParam: what a machine blames in its chat body is named as in the caller's
// dialect.
func TestOwnParam(t *testing.T) {
	const messages = `{"model":"m","max_tokens":9,"system":"be brief","stop_sequences":["a","b"],"output_config":{"effort":"high"},
		"tools":[],"tool_choice":{"disable_parallel_tool_use":true},"thinking":{"type":"enabled","budget_tokens":5},"messages":[]}`
	const responses = `{"model":"m","max_output_tokens":9,"instructions":"be brief","top_logprobs":3,"include":[],"reasoning":{"effort":"high"},
		"text":{"format":{"type":"json_object"}},"input":[]}`
	const chat = `{"model":"m","messages":[{"role":"user"}],"stop":["messages"]}`
	for _, test := range []struct {
		of                fleet.Endpoint
		body, place, want string
		asItCame          bool
	}{
		{fleet.Messages, messages, "model", "model", false},
		{fleet.Messages, messages, "stop.1", "stop_sequences", false},
		{fleet.Messages, messages, "tools.0.function.name", "tools", false},
		{fleet.Messages, messages, "response_format.type", "output_config", false},
		{fleet.Messages, `{"output_config":{},"output_format":{}}`, "response_format.type", "output_format", false},
		{fleet.Messages, messages, "reasoning_effort", "output_config", false},
		{fleet.Messages, messages, "reasoning", "thinking", false},
		{fleet.Messages, messages, "parallel_tool_calls", "tool_choice", false},
		{fleet.Messages, messages, "messages.0.content", "messages", false},
		{fleet.Messages, messages, "nothing", "", false},
		{fleet.Messages, messages, "", "", false},
		{fleet.Messages, `{"model":`, "model", "", false},
		{fleet.Responses, responses, "max_tokens", "max_output_tokens", false},
		{fleet.Responses, responses, "top_logprobs", "top_logprobs", false},
		{fleet.Responses, responses, "logprobs", "include", false},
		{fleet.Responses, responses, "response_format.json_schema.name", "text", false},
		{fleet.Responses, responses, "reasoning_effort", "reasoning", false},
		{fleet.Responses, responses, "messages.1.content.0.text", "input", false},
		{fleet.Responses, `{"instructions":"x"}`, "messages.0", "instructions", false},
		{fleet.Responses, responses, "tools.0", "", false},
		{fleet.ChatCompletions, chat, "messages.0.content", "messages.0.content", true},
		{fleet.ChatCompletions, chat, "messages.0.\x1b[31m", "messages", true},
		{fleet.ChatCompletions, chat, "tools.0", "", true},
		{fleet.ChatCompletions, `{"functions":[]}`, "tools.0.function", "functions", false},
		{fleet.ChatCompletions, `{"tools":[]}`, "tools.0.function", "tools", false},
		{fleet.ChatCompletions, `{"function_call":"f"}`, "tool_choice.function.name", "function_call", false},
	} {
		if got := OwnParam([]byte(test.body), test.of, test.place, test.asItCame); got != test.want {
			t.Errorf("%s: %s is %q, not %q", test.of, test.place, got, test.want)
		}
	}
}
