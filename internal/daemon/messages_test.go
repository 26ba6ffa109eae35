package daemon

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
)

// claude is what a coding agent of the messages dialect sends.
func claude(model string, stream bool) string {
	body := `{"model":"` + model + `","max_tokens":64,"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"one two three","cache_control":{"type":"ephemeral"}}]}]}`
	if stream {
		return strings.Replace(body, "{", `{"stream":true,`, 1)
	}
	return body
}

// An engine here serves the messages dialect by translation, without a hub and
// without a version header.
func TestLocalMessages(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	r := run(t, Config{}, e)
	resp := r.post("/v1/messages", claude("test-model", false))
	text := read(t, resp.Body)
	for _, part := range []string{`"type":"message"`, `{"type":"text","text":"one two three"}`, `"stop_reason":"end_turn"`, `"model":"test-model"`} {
		if resp.StatusCode != 200 || !strings.Contains(text, part) {
			t.Fatalf("%d %s lacks %s", resp.StatusCode, text, part)
		}
	}
	if last := e.Last(); last.Path != "/v1/chat/completions" || !strings.Contains(string(last.Body), `"content":"be brief"`) {
		t.Errorf("asked at %s: %s", last.Path, last.Body)
	}
	resp = r.post("/v1/messages?beta=true", claude("test-model", true))
	text = read(t, resp.Body)
	for _, part := range []string{"event: message_start\n", `"type":"text_delta"`, "event: message_stop\n"} {
		if resp.StatusCode != 200 || !strings.Contains(text, part) {
			t.Fatalf("%d %s lacks %s", resp.StatusCode, text, part)
		}
	}
	if _, own := r.admission.running(""); own != 0 {
		t.Errorf("%d local calls are still counted", own)
	}
	// The thinking controls are those of this dialect, not of chat.
	for _, control := range []string{`"thinking":{"type":"between_tools"}`, `"reasoning_effort":"any"`} {
		resp = r.post("/v1/messages", strings.Replace(claude("test-model", false), "{", "{"+control+",", 1))
		if text := read(t, resp.Body); resp.StatusCode != 200 {
			t.Errorf("%s: %d %s", control, resp.StatusCode, text)
		}
	}
	resp = r.post("/v1/messages", claude("other", false))
	if text := read(t, resp.Body); resp.StatusCode != 404 || !strings.Contains(text, `"not_found_error","code":"model_not_found"`) {
		t.Errorf("a model that is not here: %d %s", resp.StatusCode, text)
	}
	resp = r.post("/v1/messages", strings.Replace(claude("test-model", false), `"max_tokens":64,`, "", 1))
	if text := read(t, resp.Body); resp.StatusCode != 400 || !strings.Contains(text, `"param":"max_tokens"`) {
		t.Errorf("without max_tokens: %d %s", resp.StatusCode, text)
	}
}

// After the engines here a call of the messages dialect goes to an upstream, to
// one of the chat dialect translated, and then to the hub unchanged.
func TestLocalMessagesGoOn(t *testing.T) {
	const answer = `{"id":"msg_1","type":"message","role":"assistant","model":"far","content":[],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":2}}`
	h := newHub(t)
	h.does(refuseWith(200, answer, "X-Kith-Route", "shared; machine=desk; owner=bob"))
	home := shortHome(t)
	h.signIn(home)
	there := service(t, "elsewhere")
	r := run(t, Config{Home: home, Unshared: true, Upstreams: []engine.UpstreamConfig{upstream(there, "chat")}},
		enginetest.New(enginetest.Plain, enginetest.Options{}))
	r.await("ready", func(s Status) bool { return s.Tunnel.SignedIn && len(s.Models) == 2 })

	resp := r.post("/v1/messages", claude("elsewhere", false))
	if text := read(t, resp.Body); resp.StatusCode != 200 || !strings.Contains(text, `"type":"message"`) || !strings.Contains(there.Last().Path, "chat/completions") {
		t.Errorf("an upstream of the chat dialect: %d %s, asked at %s", resp.StatusCode, text, there.Last().Path)
	}
	resp = r.post("/v1/messages", claude("far", false))
	if text := read(t, resp.Body); resp.StatusCode != 200 || text != answer || resp.Header.Get("X-Kith-Route") == "" {
		t.Errorf("the hub: %d %s", resp.StatusCode, text)
	}
	h.mu.Lock()
	asked, body := h.asked[len(h.asked)-1], h.bodies[len(h.bodies)-1]
	h.mu.Unlock()
	if asked.URL.Path != "/v1/messages" || body != claude("far", false) || asked.Header.Get("Anthropic-Version") != "2023-06-01" {
		t.Errorf("asked the hub at %s with %v: %s", asked.URL.Path, asked.Header, body)
	}
	h.does(refuseWith(503, `{"type":"error","error":{"type":"overloaded_error","code":"CAPACITY_FULL","message":"all busy","correlation_id":"req_1","reason":"wait_elapsed","details":{"error_code":"CAPACITY_FULL","reason":"wait_elapsed"}},"request_id":"req_1"}`))
	resp = r.post("/v1/messages", claude("far", false))
	if got := faultIn(t, resp); got.Status != 503 || got.Code != string(fault.CapacityFull) || got.Reason != "wait_elapsed" {
		t.Errorf("the hub is full: %+v", got)
	}
	h.does(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":1,\"output_tokens\":0}}}\n\n"+
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
	})
	resp = r.post("/v1/messages", claude("far", true))
	if text := read(t, resp.Body); resp.StatusCode != 200 || !strings.HasSuffix(text, "data: {\"type\":\"message_stop\"}\n\n") || !strings.Contains(text, "event: ping") {
		t.Errorf("the hub streams: %d %s", resp.StatusCode, text)
	}
}

// A prompt over the context is reported in the words on which agents compact, in each
// dialect.
func TestLocalPromptTooLong(t *testing.T) {
	const engineSays = `{"error":{"code":400,"message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9412,"n_ctx":8192}}`
	r := run(t, Config{}, enginetest.New(enginetest.LlamaCpp, enginetest.Options{Behaviour: enginetest.Behaviour{Status: 400, Answer: engineSays}}))
	for path, body := range map[string]string{
		"/v1/chat/completions": chat(false), "/v1/chat/completions?streamed": chat(true),
		"/v1/messages": claude("test-model", false), "/v1/messages?streamed": claude("test-model", true),
	} {
		if got := faultIn(t, r.post(path, body)); got != (decodedFault{400, "context_length_exceeded", "prompt is too long: 9412 tokens > 8192 maximum", ""}) {
			t.Errorf("%s: %+v", path, got)
		}
	}
}
