package gateway

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// Each engine's refusal of a prompt that exceeds its context, with the engine's status,
// becomes context_length_exceeded, unless the status means that another machine is tried
// (spec/routing.md#what-the-engines-answer-becomes).
func TestEngineFaultOverContext(t *testing.T) {
	text := assert.Value(os.ReadFile("../dialect/testdata/overflow.txt"))(t)
	rows := 0
	for line := range strings.Lines(string(text)) {
		row := strings.SplitN(strings.TrimSuffix(line, "\n"), " | ", 4)
		if len(row) != 4 || row[0][0] == '#' {
			continue
		}
		rows++
		status, _ := strconv.Atoi(row[1])
		for _, status := range []int{status, 413, 422} { // some engines use these
			if f := EngineFault(status, []byte(row[3])); f == nil || f.Code != "context_length_exceeded" {
				t.Errorf("%s, as a %d: %v", row[0], status, f)
			}
		}
		if f := EngineFault(503, []byte(row[3])); f != nil {
			t.Errorf("%s, as a 503: %v", row[0], f)
		}
	}
	assert.That(t, rows >= 20, "only", rows, "rows were read")
}

// A prompt that is too long is reported in each dialect in the form that agents read:
// Claude Code reads the message, Codex only the code of response.failed.
func TestContextLengthExceeded(t *testing.T) {
	const message = "prompt is too long: 9412 tokens > 8192 maximum"
	const code = fault.Code("context_length_exceeded")
	h := New(hostedConfig(refuses(fault.New(code, message))))

	w, _ := do(h, ask("POST", "/v1/chat/completions", chatRequest))
	if got := checkFault(t, w, 400, code); got.Error.Message != message || got.Error.Param == nil || *got.Error.Param != "messages" {
		t.Errorf("chat: %s", w.Body)
	}
	w, _ = do(h, askMessages(messagesRequest))
	if got := checkEnvelope(t, w.Header(), w.Body.String(), "invalid_request_error", code); w.Code != 400 || got.Error.Message != message {
		t.Errorf("messages: %d %s", w.Code, w.Body)
	}
	w, _ = do(h, ask("POST", "/v1/responses", responsesRequest))
	if got := checkFault(t, w, 400, code); got.Error.Message != message || got.Error.Param == nil || *got.Error.Param != "input" {
		t.Errorf("responses: %s", w.Body)
	}
	w, aborted := do(h, ask("POST", "/v1/responses", responsesStream))
	failed := strings.LastIndex(w.Body.String(), "event: response.failed\n")
	if aborted || w.Code != 200 || w.Header().Get("Content-Type") != "text/event-stream" || failed < 0 ||
		!strings.Contains(w.Body.String()[failed:], `"status":"failed"`) ||
		!strings.Contains(w.Body.String()[failed:], `"error":{"code":"context_length_exceeded","message":"`+message+`"}`) {
		t.Errorf("responses, streamed: aborted %v, %d %s", aborted, w.Code, w.Body)
	}
	w, _ = do(h, ask("POST", "/v1/chat/completions", strings.Replace(chatRequest, "{", `{"stream":true,`, 1)))
	checkFault(t, w, 400, code)
}

// param names the field at fault, such as model for a model that does not exist;
// otherwise it is null, but always a string on the responses route
// (spec/api.md#error-param).
func TestParam(t *testing.T) {
	missing := New(hostedConfig(refuses(fault.New(fault.ModelNotFound, "no such model"))))
	full := New(hostedConfig(refuses(fault.New(fault.CapacityFull, "busy"))))
	for name, c := range map[string]struct {
		h          *Edge
		path, body string
		want       string
	}{
		"chat, the model":          {missing, "/v1/chat/completions", chatRequest, `"param":"model"`},
		"chat, no name can be":     {missing, "/v1/chat/completions", strings.Replace(chatRequest, `"m"`, `" m"`, 1), `"param":"model"`},
		"chat":                     {full, "/v1/chat/completions", chatRequest, `"param":null`},
		"embeddings, the model":    {missing, "/v1/embeddings", `{"model":"m","input":"x"}`, `"param":"model"`},
		"responses, the model":     {missing, "/v1/responses", responsesRequest, `"param":"model"`},
		"responses":                {full, "/v1/responses", responsesRequest, `"param":""`},
		"responses, streamed":      {full, "/v1/responses", responsesStream, `"param":""`},
		"responses, a lower route": {full, "/v1/responses/a/b/c", "", `"param":""`},
		"responses, no key":        {full, "/v1/responses", responsesRequest, `"param":""`},
	} {
		r := ask("POST", c.path, c.body)
		if strings.HasSuffix(name, "no key") {
			r.Header.Del("Authorization")
		}
		if w, _ := do(c.h, r); !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %s, want %s", name, w.Body, c.want)
		}
	}
	w, _ := do(missing, ask("GET", "/v1/models/other", ""))
	assert.Contains(t, w.Body.String(), `"param":"model"`, "a model of the list", w.Body)
}

// With truncation auto the call is retried with a shorter conversation until it fits,
// unary and streamed. Otherwise the caller gets the refusal (docs/dialects.md).
func TestTruncation(t *testing.T) {
	const input = `"input":[{"role":"user","content":"first first first first first first"},{"role":"assistant","content":"answer"},{"role":"user","content":"last"}]`
	var asked []string
	b := &backend{do: func(_ context.Context, call *Call) (*Answer, error) {
		_, body := call.Request()
		text := textOf(body)
		asked = append(asked, text)
		if strings.Contains(text, "first") {
			return nil, fault.New(fault.ContextLengthExceeded, "prompt is too long: 12 tokens > 10 maximum")
		}
		if call.Stream {
			return answer(io.NopCloser(strings.NewReader(`data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"))), nil
		}
		return answer(io.NopCloser(strings.NewReader(chatReply))), nil
	}}
	for _, stream := range []string{"false", "true"} {
		asked = nil
		w, _ := do(New(hostedConfig(b)), ask("POST", "/v1/responses", `{"model":"m","truncation":"auto","stream":`+stream+`,`+input+`}`))
		if w.Code != 200 || len(asked) != 2 || strings.Contains(asked[1], "first") || !strings.Contains(asked[1], "last") || !strings.Contains(w.Body.String(), `"status":"completed"`) ||
			!strings.Contains(w.Body.String(), `"truncation":"auto"`) {
			t.Errorf("stream %s: %d %q\n%s", stream, w.Code, asked, w.Body)
		}
	}
	asked = nil
	w, _ := do(New(hostedConfig(b)), ask("POST", "/v1/responses", `{"model":"m",`+input+`}`))
	if checkFault(t, w, 400, fault.ContextLengthExceeded); len(asked) != 1 {
		t.Errorf("asked %d times", len(asked))
	}
	w, _ = do(New(hostedConfig(b)), ask("POST", "/v1/responses", `{"model":"m","truncation":"middle",`+input+`}`))
	if got := checkFault(t, w, 400, fault.InvalidRequest); got.Error.Param == nil || *got.Error.Param != "truncation" {
		t.Errorf("%s", w.Body)
	}
}

// A chat call with the legacy functions is sent with tools and answered in its own form.
// The answer of a hub or a service that got the caller's body is passed through.
func TestChatForms(t *testing.T) {
	const body = `{"model":"m","functions":[{"name":"f"}],"messages":[{"role":"user","content":"x"}]}`
	const tools = `{"choices":[{"index":0,"message":{"content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`
	var asked string
	toBody := false
	b := &backend{do: func(_ context.Context, call *Call) (*Answer, error) {
		_, body, err := call.ForEngine(toBody)
		if err != nil {
			return nil, err
		}
		asked = textOf(body)
		said := tools
		if call.Stream {
			said = "data: " + strings.Replace(strings.Replace(tools, `"message"`, `"delta"`, 1), `{"id"`, `{"index":0,"id"`, 1) + "\n\ndata: [DONE]\n\n"
		}
		a := answer(io.NopCloser(strings.NewReader(said)))
		a.Untranslated = toBody
		return a, nil
	}}
	w, _ := do(New(hostedConfig(b)), ask("POST", "/v1/chat/completions", body))
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"function_call":{"name":"f","arguments":"{}"}`) || strings.Contains(w.Body.String(), "tool_calls") || !strings.Contains(asked, `"tools":[`) {
		t.Errorf("%d %s\nasked %s", w.Code, w.Body, asked)
	}
	w, aborted := do(New(hostedConfig(b)), ask("POST", "/v1/chat/completions", `{"stream":true,`+body[1:]))
	if aborted || !strings.Contains(w.Body.String(), `"function_call":{"name":"f","arguments":"{}"}`) || strings.Contains(w.Body.String(), "tool_calls") || !strings.HasSuffix(w.Body.String(), done) {
		t.Errorf("streamed: aborted %v, %s", aborted, w.Body)
	}
	const search = `{"model":"m","tools":[{"type":"web_search"}],"messages":[{"role":"user","content":"x"}]}`
	const option = `{"model":"m","web_search_options":{},"messages":[{"role":"user","content":"x"}]}`
	for _, c := range []Config{hostedConfig(b), localConfig(b)} {
		w, _ = do(New(c), ask("POST", "http://localhost:8701/v1/chat/completions", option))
		if got := checkFault(t, w, 400, fault.InvalidRequest); *got.Error.Param != "web_search_options" {
			t.Errorf("%s", w.Body)
		}
		w, _ = do(New(c), ask("POST", "http://localhost:8701/v1/chat/completions", search))
		if got := checkFault(t, w, 400, fault.InvalidRequest); !strings.Contains(got.Error.Message, `"web_search"`) || *got.Error.Param != "tools.0" {
			t.Errorf("%s", w.Body)
		}
	}
	toBody = true
	w, _ = do(New(localConfig(b)), ask("POST", "http://localhost:8701/v1/chat/completions", body))
	assert.That(t, w.Code == 200 && w.Body.String() == tools && asked == body, w.Code, w.Body)
	for _, body := range []string{search, option} {
		w, _ = do(New(localConfig(b)), ask("POST", "http://localhost:8701/v1/chat/completions", body))
		assert.That(t, w.Code == 200 && asked == body, "a service elsewhere", w.Code, w.Body)
	}
}
