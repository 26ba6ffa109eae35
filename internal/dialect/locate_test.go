package dialect

import (
	"strings"
	"testing"
	"time"
)

// TestLocate: what a machine says is at fault in the chat body that it was sent is
// found in the body of the caller, by the names of the caller's dialect.
func TestLocate(t *testing.T) {
	const messages = `{"model":"m","max_tokens":9,"system":"be brief","stop_sequences":["a","b"],"temperature":1,
		"output_config":{"effort":"high","format":{"type":"json_schema","schema":{"properties":{"a.b/c":{"$ref":"http://x"}}}}},
		"tools":[{"type":"web_search_1","name":"w"},{"name":"f","input_schema":{"properties":{"x":{"$ref":"#y"}}}}],
		"thinking":{"type":"enabled","budget_tokens":5},
		"messages":[{"role":"user","content":"one"},{"role":"assistant","content":[{"type":"text","text":"two"},{"type":"tool_use","id":"t","name":"f","input":{"x":1}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"done"},{"type":"text","text":"three"},{"type":"image","source":{"type":"url","url":"http://x"}}]},
		{"role":"user","content":"four"}]}`
	const responses = `{"model":"m","max_output_tokens":9,"instructions":"be brief","top_logprobs":3,"reasoning":{"effort":"high"},
		"text":{"format":{"type":"json_schema","name":"n","schema":{"properties":{"x":{"$ref":"http://x"}}}}},
		"tools":[{"type":"function","name":"f","parameters":{"properties":{"x":{"$ref":"http://x"}}}}],
		"input":[{"role":"user","content":"one"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"done"},
		{"role":"user","content":[{"type":"input_text","text":"two"},{"type":"input_image","image_url":"http://x"}]}]}`
	_, chat, err := MessagesToChat([]byte(messages))
	if err != nil {
		t.Fatal(err)
	}
	q, err := ReadResponses([]byte(responses))
	if err != nil {
		t.Fatal(err)
	}
	asked, err := q.Chat()
	if err != nil {
		t.Fatal(err)
	}
	response := q.Answer("own", time.Now(), false)
	for _, test := range []struct{ place, wants string }{
		{place: "model", wants: "model"},
		{place: "max_tokens", wants: "max_tokens"},
		{place: "stop.1", wants: "stop_sequences.1"},
		{place: "tools.0.function.parameters.properties.x.$ref", wants: "tools.1.input_schema.properties.x.$ref"},
		{place: "tools.0.function.name", wants: "tools.1.name"},
		{place: "tools.0", wants: "tools.1"},
		{place: "response_format.json_schema.schema.properties.a.b~1c.$ref", wants: "output_config.format.schema.properties.a.b~1c.$ref"},
		{place: "response_format.type", wants: "output_config.format.type"},
		{place: "reasoning_effort", wants: "output_config.effort"},
		{place: "thinking", wants: "thinking"},
		{place: "messages.0.content", wants: "system"},
		{place: "messages.1.content", wants: "messages.0.content"},
		{place: "messages.2.tool_calls.0.function.arguments", wants: "messages.1.content.1.input"},
		{place: "messages.2.tool_calls.0.id", wants: "messages.1.content.1.id"},
		{place: "messages.3.content", wants: "messages.2.content.0.content"},
		{place: "messages.4.content.1.image_url.url", wants: "messages.2.content.2.source.url"},
		{place: "messages.4", wants: "messages"},
		{place: "messages.4.role", wants: "messages"},
		{place: "messages.9", wants: ""},
		{place: "nothing", wants: ""},
	} {
		if !HasMember(chat, test.place) && test.wants != "" {
			t.Errorf("%s is not in %s", test.place, chat)
		}
		if got := LocateMessages([]byte(messages), test.place); got != test.wants {
			t.Errorf("messages: %s is %q, not %q", test.place, got, test.wants)
		}
	}
	for place, wants := range map[string]string{
		"max_tokens":   "max_output_tokens",
		"top_logprobs": "top_logprobs",
		"logprobs":     "",
		"tools.0.function.parameters.properties.x.$ref":        "tools.0.parameters.properties.x.$ref",
		"response_format.json_schema.schema.properties.x.$ref": "text.format.schema.properties.x.$ref",
		"response_format.json_schema.name":                     "text.format.name",
		"messages.0.content":                                   "instructions",
		"messages.1.content":                                   "input.0.content",
		"messages.2.tool_calls.0.function.arguments":           "input.1.arguments",
		"messages.3.content":                                   "input.2.output",
		"messages.4.content.1.image_url.url":                   "input.3.content.1.image_url",
		"messages.4.content.0.text":                            "input.3.content.0.text",
	} {
		if !HasMember(asked, place) {
			t.Errorf("%s is not in %s", place, asked)
		}
		if got := response.Locate(place); got != wants {
			t.Errorf("responses: %s is %q, not %q", place, got, wants)
		}
	}
}

// To find what many parts of the body have in common takes two readings of the body, and not one for each part.
func TestCommonReadsTwice(t *testing.T) {
	body := []byte(`{"a":[` + strings.Repeat(`"x",`, 1000) + `"x"]}`)
	costs := func(parts int) float64 {
		first := len(`{"a":[`)
		if got := common(body, first, first+4*(parts-1)); got != "a" {
			t.Errorf("%d parts: %q", parts, got)
		}
		return testing.AllocsPerRun(5, func() { common(body, first, first+4*(parts-1)) })
	}
	if few, many := costs(10), costs(1000); many > 2*few {
		t.Errorf("1000 parts cost %v allocations, 10 cost %v", many, few)
	}
}
