package gateway

import (
	"encoding/json/v2"
	"testing"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// TestMembersAtFault: a machine names the member at fault in the chat body that it
// received; the caller reads the corresponding name from its own request, in param and in
// the message. A member that is not in the request is never in param.
func TestMembersAtFault(t *testing.T) {
	const picture = "messages.0.content.1.image_url.url"
	for name, test := range map[string]struct {
		path, body, place, param string
	}{
		"chat":              {"/v1/chat/completions", `{"model":"m","n":9,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"http://x"}}]}]}`, picture, picture},
		"chat, functions":   {"/v1/chat/completions", `{"model":"m","functions":[{"name":"f","parameters":{"$ref":"x"}}],"messages":[]}`, "tools.0.function.parameters.$ref", "functions"},
		"chat, function":    {"/v1/chat/completions", `{"model":"m","functions":[{"name":"f"}],"function_call":{"name":"f"},"messages":[]}`, "tool_choice.function.name", "function_call"},
		"chat, allowed":     {"/v1/chat/completions", `{"model":"m","tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]}},"messages":[]}`, "tools.0.function.name", "tools"},
		"chat, one allowed": {"/v1/chat/completions", `{"model":"m","tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]}},"messages":[]}`, "tools.0", "tools"},
		"chat, short":       {"/v1/chat/completions", `{"model":"m","n":9,"messages":[]}`, "n", "n"},
		"chat, not there":   {"/v1/chat/completions", chatRequest, "secret.7", ""},
		"chat, its list":    {"/v1/chat/completions", `{"model":"m","messages":[]}`, "messages.7.secret", "messages.7.secret"},
		"messages":          {"/v1/messages", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"url","url":"http://x"}}]}]}`, picture, "messages"},
		"messages, nowhere": {"/v1/messages", messagesRequest, "tools.3", ""},
		"responses":         {"/v1/responses", `{"model":"m","max_output_tokens":9,"input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"http://x"}]}]}`, picture, "input"},
		"responses, limit":  {"/v1/responses", `{"model":"m","max_output_tokens":9,"input":"a"}`, "max_tokens", "max_output_tokens"},
	} {
		for i := range 4 {
			body, config := test.body, hostedConfig
			if i%2 == 1 {
				body = `{"stream":true,` + body[1:]
			}
			if i > 1 {
				config = localConfig
			}
			if i > 1 && test.path == "/v1/responses" { // there it is only for upstreams
				continue
			}
			// As a daemon writes it and the hub reads it.
			document := dialect.FaultBody(dialect.Chat, fault.New(fault.InvalidRequest, "%s: this is not taken", test.place).WithParam(test.place), "id")
			w, _ := do(New(config(refuses(EngineFault(400, document)))), ask("POST", "http://localhost:8701"+test.path, body, "Anthropic-Version", "2023-06-01"))
			var got struct {
				Error struct{ Code, Message, Param string }
			}
			if err := json.Unmarshal(w.Body.Bytes(), &got, json.MatchCaseInsensitiveNames(true)); err != nil || w.Code != 400 {
				t.Fatalf("%s: %d %s: %v", name, w.Code, w.Body, err)
			}
			said := test.param
			if said == "" {
				said = test.place
			}
			if got.Error.Code != "invalid_request" || got.Error.Param != test.param || got.Error.Message != "the machine refused the request: "+said+": this is not taken" {
				t.Errorf("%s: %s, want %s", name, w.Body, test.param)
			}
		}
	}
}
