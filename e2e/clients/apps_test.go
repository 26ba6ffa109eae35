package clients_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// appRequests are requests of the forms in which the programs of docs/apps.md send them.
var appRequests = map[string]string{
	"Open WebUI": `{"stream": true, "model": "tiny", "messages": [{"role": "user", "content": "What is the capital of France?"}],
		"stream_options": {"include_usage": true}, "user": {"name": "ada", "role": "admin"}, "metadata": {"chat_id": "1"}}`,
	// The date comes as the result of a tool that no message called.
	"Home Assistant": `{"model": "tiny", "temperature": 0, "parallel_tool_calls": false, "stream": true, "messages": [
		{"role": "system", "content": "You are a voice assistant for Home Assistant."},
		{"role": "tool", "tool_call_id": "injected_content", "content": "The current date and time is: Saturday"},
		{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}],
		"tools": [{"type": "function", "function": {"name": "HassTurnOn", "description": "Turns on a device",
			"parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": []}}}]}`,
	"Zed": `{"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}],
		"stream": true, "stream_options": {"include_usage": true}, "max_completion_tokens": 100, "stop": [], "temperature": 0,
		"tool_choice": null, "parallel_tool_calls": null, "tools": [], "reasoning_effort": null}`,
	"n8n": `{"model": "tiny", "temperature": 0, "stream": false, "messages": [
		{"role": "system", "content": "You are a helpful assistant"}, {"role": "user", "content": "What is the capital of France?"}],
		"tools": [{"type": "function", "function": {"name": "calculator", "description": "Computes", "strict": false,
			"parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "additionalProperties": false, "$schema": "http://json-schema.org/draft-07/schema#"}}}]}`,
	"Cursor, Ask": `{"model": "tiny", "temperature": 0, "user": "x", "stream": true, "stream_options": {"include_usage": true},
		"messages": [{"role": "system", "content": "You are a coding assistant."}, {"role": "user", "content": "What is the capital of France?"}]}`,
}

// cursorAgent is a request of the responses dialect at the address of chat.
const cursorAgent = `{"model": "tiny", "stream": true, "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
	"tools": [{"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}}]}`

// TestApps sends the requests of programs at the hub, with the settings of docs/apps.md.
func TestApps(t *testing.T) {
	t.Parallel()
	n := dev(t)
	base, model := zedSettings(t)
	assert.Equal(t, base, "https://hub.example/v1")
	assert.Equal(t, model, "llama3")
	status, models := n.asApp(t, http.MethodGet, "/models", "")
	assert.That(t, status == http.StatusOK && strings.Contains(models, `"id":"tiny"`), status, models)
	for app, body := range appRequests {
		t.Run(app, func(t *testing.T) {
			status, answer := n.asApp(t, http.MethodPost, "/chat/completions", body)
			assert.That(t, status == http.StatusOK && strings.Contains(answer, "capital"), status, answer)
			assert.Equal(t, strings.HasSuffix(answer, "data: [DONE]\n\n"), strings.Contains(body, `"stream": true`), "the end of a stream")
		})
	}
	status, answer := n.asApp(t, http.MethodPost, "/chat/completions", cursorAgent)
	assert.That(t, status == http.StatusBadRequest && strings.Contains(answer, `"code":"invalid_request"`), status, answer)
}

// asApp makes a request with the key, and returns the answer.
func (n network) asApp(t *testing.T, method, path, body string) (status int, answer string) {
	t.Helper()
	req := assert.Value(http.NewRequestWithContext(t.Context(), method, n.Hub+path, strings.NewReader(body)))(t)
	req.Header.Set("Authorization", "Bearer "+n.APIKey)
	req.Header.Set("Content-Type", "application/json")
	res := assert.Value(http.DefaultClient.Do(req))(t)
	defer res.Body.Close()
	return res.StatusCode, string(assert.Value(io.ReadAll(res.Body))(t))
}

// zedSettings returns the address and the model in the page's settings of Zed, which it
// reads as Zed does: at these places, with a number as the context.
func zedSettings(t *testing.T) (base, model string) {
	t.Helper()
	page := assert.Value(os.ReadFile("../../docs/apps.md"))(t)
	block := regexp.MustCompile("(?s)```json\n(.*?)```").FindSubmatch(page)
	assert.Require(t, block != nil, "docs/apps.md has no settings of Zed")
	var settings struct {
		LanguageModels struct {
			OpenAICompatible map[string]struct {
				APIURL          string `json:"api_url"`
				AvailableModels []struct {
					Name         string          `json:"name"`
					MaxTokens    int             `json:"max_tokens"`
					Capabilities map[string]bool `json:"capabilities"`
				} `json:"available_models"`
			} `json:"openai_compatible"`
		} `json:"language_models"`
	}
	decoder := json.NewDecoder(strings.NewReader(string(block[1])))
	decoder.DisallowUnknownFields()
	assert.OK(t, decoder.Decode(&settings))
	kith := settings.LanguageModels.OpenAICompatible["kith"] // its key is KITH_API_KEY
	assert.Require(t, len(kith.AvailableModels) == 1 && kith.AvailableModels[0].MaxTokens > 0, "models", kith)
	return kith.APIURL, kith.AvailableModels[0].Name
}
