package gateway

import (
	"context"
	"encoding/json/v2"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

const (
	messagesRequest = `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"canary"}]}`
	messagesStream  = `{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"canary"}]}`
	chatReply       = `{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":3}}`
)

// askMessages returns a request in the messages dialect with a valid key.
func askMessages(body string, headers ...string) *http.Request {
	return ask("POST", "/v1/messages", body, append([]string{"Authorization", "", "X-Api-Key", goodKey, "Anthropic-Version", "2023-06-01"}, headers...)...)
}

// envelope is a fault as a caller of the messages dialect receives it.
type envelope struct {
	Type  string `json:"type"`
	Error struct {
		Type          string `json:"type"`
		Code          string `json:"code"`
		Message       string `json:"message"`
		Param         string `json:"param"`
		CorrelationID string `json:"correlation_id"`
		Reason        string `json:"reason"`
		Details       struct {
			Code   string `json:"error_code"`
			Reason string `json:"reason"`
		} `json:"details"`
	} `json:"error"`
	RequestID string `json:"request_id"`
}

// checkEnvelope checks everything that every refusal of the dialect must have.
func checkEnvelope(t *testing.T, h http.Header, body string, kind string, code fault.Code) envelope {
	t.Helper()
	var got envelope
	assert.OK(t, json.Unmarshal([]byte(body), &got), body)
	id := h.Get("X-Correlation-ID")
	if got.Type != "error" || got.Error.Type != kind || got.Error.Code != string(code) || got.Error.Details.Code != string(code) || got.Error.Message == "" {
		t.Errorf("want %s %s: %s", kind, code, body)
	}
	if id == "" || got.RequestID != id || got.Error.CorrelationID != id || h.Get("Request-Id") != id || h.Get("X-Request-Id") != id {
		t.Errorf("ids differ: %v, %s", h, body)
	}
	return got
}

func TestMessagesRefusals(t *testing.T) {
	c := hostedConfig(answers(chatReply))
	c.Limits.Body = 200
	h := New(c)
	long := `{"model":"m","x":"` + strings.Repeat("x", 300) + `"}`
	for name, c := range map[string]struct {
		r      *http.Request
		status int
		kind   string
		code   fault.Code
		param  string
	}{
		"no key":            {askMessages(messagesRequest, "X-Api-Key", ""), 401, "authentication_error", fault.InvalidAPIKey, ""},
		"wrong key":         {askMessages(messagesRequest, "X-Api-Key", "", "X-Api-Key", "kith_x"), 401, "authentication_error", fault.InvalidAPIKey, ""},
		"two keys":          {askMessages(messagesRequest, "Authorization", "Bearer kith_x"), 401, "authentication_error", fault.InvalidAPIKey, ""},
		"no version":        {askMessages(messagesRequest, "Anthropic-Version", ""), 400, "invalid_request_error", fault.InvalidRequest, "anthropic-version"},
		"malformed version": {askMessages(messagesRequest, "Anthropic-Version", "", "Anthropic-Version", "2023-6-1"), 400, "invalid_request_error", fault.InvalidRequest, "anthropic-version"},
		"two in one line":   {askMessages(messagesRequest, "Anthropic-Version", "", "Anthropic-Version", "2023-06-01, 2026-10-21"), 400, "invalid_request_error", fault.InvalidRequest, "anthropic-version"},
		"two versions":      {askMessages(messagesRequest, "Anthropic-Version", "2026-10-21"), 400, "invalid_request_error", fault.InvalidRequest, "anthropic-version"},
		"no version, count": {ask("POST", "/v1/messages/count_tokens", messagesRequest), 400, "invalid_request_error", fault.InvalidRequest, "anthropic-version"},
		"key comes first":   {askMessages(messagesRequest, "X-Api-Key", "", "Anthropic-Version", ""), 401, "authentication_error", fault.InvalidAPIKey, ""},
		"method":            {ask("GET", "/v1/messages", ""), 405, "invalid_request_error", fault.MethodNotAllowed, ""},
		"no path":           {ask("POST", "/v1/messages/batches", messagesRequest), 404, "not_found_error", fault.RouteNotFound, ""},
		"v1 doubled":        {ask("POST", "/v1/v1/messages", messagesRequest, "Anthropic-Version", "2023-06-01"), 404, "not_found_error", fault.RouteNotFound, ""},
		"too large":         {askMessages(long), 413, "request_too_large", fault.RequestTooLarge, ""},
		"encoding":          {askMessages(messagesRequest, "Content-Encoding", "gzip"), 415, "invalid_request_error", fault.UnsupportedEncoding, ""},
		"broken JSON":       {askMessages(`{"model":`), 400, "invalid_request_error", fault.InvalidRequest, ""},
		"no max_tokens":     {askMessages(chatRequest), 400, "invalid_request_error", fault.InvalidRequest, "max_tokens"},
		"bad block":         {askMessages(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text"}]}]}`), 400, "invalid_request_error", fault.InvalidRequest, "messages.0.content.0"},
		"impossible model":  {askMessages(strings.Replace(messagesRequest, `"m"`, `"a\u0000b"`, 1)), 404, "not_found_error", fault.ModelNotFound, "model"},
		"count: no body":    {ask("POST", "/v1/messages/count_tokens", "", "Anthropic-Version", "2023-06-01"), 400, "invalid_request_error", fault.InvalidRequest, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := do(h, c.r)
			got := checkEnvelope(t, w.Result().Header, w.Body.String(), c.kind, c.code)
			if w.Code != c.status || got.Error.Param != c.param {
				t.Errorf("%d, param %q: %s", w.Code, got.Error.Param, w.Body)
			}
		})
	}
}

// On the local surface the backend gets the body and the headers of the dialect, for
// services that speak it, and the translation for those that do not. An answer in the
// dialect is passed through. The version header is optional.
func TestMessagesOnTheLocalSurface(t *testing.T) {
	var got *Call
	var sent, engineText string
	var engineAt fleet.Endpoint
	var engineBody *spool.Bytes
	var engineErr error
	backend := &backend{do: func(_ context.Context, call *Call) (*Answer, error) {
		got, sent = call, textOf(call.Body)
		engineAt, engineBody, engineErr = call.ForEngine(false)
		if engineErr == nil {
			engineText = textOf(engineBody)
		}
		if at, body, err := call.ForEngine(true); at != fleet.Messages || err != nil || body != call.Body {
			t.Errorf("for who speaks it: %v %v", at, err)
		}
		a := answer(io.NopCloser(strings.NewReader(`{"type":"message",  "usage":{"input_tokens":2,"output_tokens":3}}`)))
		a.Endpoint = fleet.Messages
		return a, nil
	}}
	w, _ := do(New(localConfig(backend)), ask("POST", "http://localhost:8701/v1/messages", messagesRequest, "Anthropic-Version", "2023-06-01", "Anthropic-Beta", "b", "X-Api-Key", "k"))
	if w.Code != 200 || w.Body.String() != `{"type":"message",  "usage":{"input_tokens":2,"output_tokens":3}}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	want := http.Header{"Anthropic-Version": {"2023-06-01"}, "Anthropic-Beta": {"b"}}
	if diff := cmp.Diff(want, got.Header); diff != "" || sent != messagesRequest {
		t.Errorf("%s\n%s", diff, sent)
	}
	for _, headers := range [][]string{nil, {"Anthropic-Version", "latest"}} {
		if w, _ = do(New(localConfig(backend)), ask("POST", "http://localhost:8701/v1/messages", messagesRequest, headers...)); w.Code != 200 {
			t.Errorf("with %v: %d %s", headers, w.Code, w.Body)
		}
	}
	if engineAt != fleet.ChatCompletions || engineErr != nil || !strings.Contains(engineText, `"content":"canary"`) {
		t.Errorf("for an engine: %v %s %v", engineAt, engineText, engineErr)
	}
	const file = `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"aaaa"}}]}]}`
	w, _ = do(New(localConfig(backend)), ask("POST", "http://localhost:8701/v1/messages", file))
	if w.Code != 200 || fault.Of(engineErr).Code != fault.InvalidRequest || sent != file {
		t.Errorf("what chat cannot hold: %d %s, %v", w.Code, w.Body, engineErr)
	}
}

// Every fault has the dialect's error type for its status.
func TestMessagesFaultsOfTheBackend(t *testing.T) {
	kinds := map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 405: "invalid_request_error",
		412: "invalid_request_error", 413: "request_too_large", 415: "invalid_request_error", 421: "invalid_request_error", 429: "rate_limit_error", 500: "api_error", 501: "api_error", 502: "api_error", 503: "api_error", 504: "timeout_error",
	}
	for code, status := range fault.Codes() {
		kind := kinds[status]
		if code == fault.CapacityFull {
			kind = "overloaded_error"
		}
		w, _ := do(New(hostedConfig(refuses(fault.New(code, "why").AfterWait()))), askMessages(messagesRequest))
		got := checkEnvelope(t, w.Result().Header, w.Body.String(), kind, code)
		_, err := strconv.Atoi(w.Header().Get("Retry-After"))
		if w.Code != status || (status == 429 || status == 503) != (err == nil) || got.Error.Reason != fault.WaitElapsed || got.Error.Details.Reason != fault.WaitElapsed {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	}
}

func TestMessagesUnary(t *testing.T) {
	var call *Call
	var out Outcome
	c := hostedConfig(&backend{do: func(_ context.Context, asked *Call) (*Answer, error) {
		call = asked
		asked.Trace.Route = "own; machine=box; owner=ann"
		// A machine gets chat, regardless of what else it claims to support.
		endpoint, body := asked.Request()
		text := textOf(body)
		if _, err := dialect.ReadHead([]byte(text)); endpoint != fleet.ChatCompletions || err != nil || !strings.Contains(text, `"messages":[{"role":"user","content":"canary"}]`) {
			t.Errorf("%s %s %v", endpoint, text, err)
		}
		return answer(io.NopCloser(strings.NewReader(chatReply))), nil
	}})
	c.Finished = func(_ *Call, o Outcome) { out = o }
	h := New(c)
	for _, r := range []*http.Request{
		askMessages(messagesRequest),
		ask("POST", "/v1/messages?beta=true", messagesRequest, "Anthropic-Version", "2026-10-21", "Anthropic-Beta", "unknown-2030-01-01,b", "X-Api-Key", goodKey),
	} {
		w, aborted := do(h, r)
		id := strings.TrimPrefix(w.Header().Get("Request-Id"), "req_")
		want := `{"id":"msg_` + id + `","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Hello"}],"stop_reason":"end_turn","stop_sequence":null,` +
			`"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":3}}`
		if w.Code != 200 || w.Body.String() != want || aborted || w.Header().Get("Content-Length") != strconv.Itoa(len(want)) ||
			w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Kith-Route") == "" {
			t.Errorf("%d %v\n%s\n%s", w.Code, w.Header(), w.Body, want)
		}
	}
	assert.That(t, call.Endpoint == fleet.Messages && call.Model == "m", call)
	if out.TokensIn != 2 || out.TokensOut != 3 || !out.Reported || out.Status != 200 || out.Code != "" {
		t.Errorf("%+v", out)
	}
	other := Call{Endpoint: fleet.EmbeddingsEndpoint, Body: new(spool.Bytes)}
	if endpoint, body := other.Request(); endpoint != fleet.EmbeddingsEndpoint || body != other.Body {
		t.Errorf("%s %v", endpoint, body)
	}
	w, _ := do(New(hostedConfig(answers("<html>"))), askMessages(messagesRequest))
	checkEnvelope(t, w.Result().Header, w.Body.String(), "api_error", fault.EngineError)
}

// A translation may be longer than the body limit, but only by translationRoom.
func TestMessagesTranslationTooLong(t *testing.T) {
	c := hostedConfig(answers(chatReply))
	c.Limits.Body, c.Spool = translationRoom+1<<20, files(t)
	input := strings.Repeat(`\"`, int(translationRoom+c.Limits.Body)/4) // each of which becomes four bytes
	body := `{"model":"m","max_tokens":9,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"x":["` + input + `"]}}]}]}`
	w, _ := do(New(c), askMessages(body))
	checkEnvelope(t, w.Result().Header, w.Body.String(), "request_too_large", fault.RequestTooLarge)
}

func TestCountTokens(t *testing.T) {
	called := false
	h := New(hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) { called = true; return nil, nil }}))
	w, _ := do(h, ask("POST", "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"How long is this?"}]}`, "Anthropic-Version", "2023-06-01"))
	var count struct {
		InputTokens int `json:"input_tokens"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &count); err != nil || w.Code != 200 || count.InputTokens < 4 || count.InputTokens > 20 || called || w.Header().Get("X-Kith-Estimate") != "true" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	w, _ = do(h, ask("POST", "/v1/messages/count_tokens", strings.Replace(messagesRequest, `"m"`, `" m"`, 1), "Anthropic-Version", "2023-06-01"))
	checkEnvelope(t, w.Header(), w.Body.String(), "not_found_error", fault.ModelNotFound)
}

// If a machine never answers a count, the caller waits three seconds and gets an
// estimate.
func TestCountGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := hostedConfig(answers(chatReply))
		c.Count = func(ctx context.Context, _ *Call) (int64, error) { <-ctx.Done(); return 0, nil }
		began := time.Now()
		w, _ := do(New(c), ask("POST", "/v1/messages/count_tokens", messagesRequest, "Anthropic-Version", "2023-06-01"))
		if took := time.Since(began); took != 3*time.Second || w.Code != 200 || w.Header().Get("X-Kith-Estimate") != "true" {
			t.Errorf("after %v: %d %v", took, w.Code, w.Header())
		}
	})
}

// A key that requests counts without pause gets only some of them from machines.
func TestCountRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := hostedConfig(answers(chatReply))
		asked := 0
		c.Count = func(context.Context, *Call) (int64, error) { asked++; return 7, nil }
		h := New(c)
		count := func(n int) (estimates int) {
			for range n {
				w, _ := do(h, ask("POST", "/v1/messages/count_tokens", messagesRequest, "Anthropic-Version", "2023-06-01"))
				assert.Require(t, w.Code == 200, w.Code, w.Body)
				if w.Header().Get("X-Kith-Estimate") == "true" {
					estimates++
				}
			}
			return estimates
		}
		if estimates := count(100); estimates != 40 || asked != 60 {
			t.Errorf("of 100 at once %d were estimates and %d asked for", estimates, asked)
		}
		time.Sleep(3 * time.Second) // in the synctest bubble
		if estimates := count(5); estimates != 2 || asked != 63 {
			t.Errorf("of 5 after 3 s %d were estimates, %d asked for in all", estimates, asked)
		}
	})
}

// If there is no memory for another call, no body is read, not even that of a count.
func TestNoRoom(t *testing.T) {
	c := hostedConfig(answers(chatReply))
	c.Spool = noRoom()
	h := New(c)
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/messages/count_tokens"} {
		r := ask("POST", path, "", "Anthropic-Version", "2023-06-01")
		r.Body, r.ContentLength = io.NopCloser(iotest.ErrReader(errors.New("it was read"))), 20<<20
		if w, _ := do(h, r); w.Code != 503 || !strings.Contains(w.Body.String(), "CAPACITY_FULL") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	c.Spool = nil
	if w, _ := do(New(c), ask("POST", "/v1/messages/count_tokens", messagesRequest, "Anthropic-Version", "2023-06-01")); w.Code != 200 {
		t.Errorf("with room: %d %s", w.Code, w.Body)
	}
}

// playMessages serves a streamed messages call and returns the tape.
func playMessages(c Config) (w *tape, aborted bool) {
	w = newTape()
	return w, serveTo(New(c), w, askMessages(messagesStream))
}

// Pings are sent while a call waits, and while its machine sends only what has no
// translation in this dialect. Everything else is translated as it arrives.
func TestMessagesStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hidden := `data: {"choices":[{"index":0,"delta":{}}]}` + "\n\n"
		lines := []line{{time.Second, frame, nil}, {time.Second, hidden, nil}, {8 * time.Second, hidden, nil}, {8 * time.Second, frame[:20], nil}, {time.Second, frame[20:] + done, io.EOF}}
		var out Outcome
		c := hostedConfig(sends(7*time.Second, lines...))
		c.Finished = func(_ *Call, o Outcome) { out = o }
		w, aborted := playMessages(c)
		var got []string
		for _, note := range w.notes {
			at, what, _ := strings.Cut(note, " ")
			for part := range strings.SplitSeq(strings.TrimSpace(what), "\n\n") {
				name, _, _ := strings.Cut(part, "\n")
				got = append(got, at+" "+name)
			}
		}
		want := []string{
			"5 status 200", "5 event: ping", "5 flush",
			"8 : shared; machine=box; owner=ann", "8 event: message_start", "8 event: content_block_start", "8 event: content_block_delta", "8 flush",
			"18 event: ping", "18 flush",
			"26 event: content_block_delta", "26 event: content_block_stop", "26 event: message_delta", "26 event: message_stop", "26 flush",
		}
		if aborted || strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("aborted %v\n%q\n%q", aborted, got, want)
		}
		if w.header.Get("Content-Type") != "text/event-stream" || strings.Contains(w.text.String(), "[DONE]") || strings.Contains(w.text.String(), "choices") {
			t.Errorf("%v %s", w.header, w.text.String())
		}
		assert.That(t, out.Code == "" && out.TokensOut == 2 && out.FirstByte == 8*time.Second, out)
	})
}

// A stream that fails ends with an error event, without a message_stop.
func TestMessagesStreamFails(t *testing.T) {
	cases := brokenStreams()
	first := cases["broken tool"]
	first.b = sends(0, line{0, `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}}]}` + "\n\n" + done, nil})
	cases["broken tool, first"] = first
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, aborted := playMessages(hostedConfig(c.b))
				text := w.text.String()
				if w.status != 200 { // nothing had been sent, so the status is the real one
					checkEnvelope(t, w.header, text, c.kind, c.code)
					return
				}
				last := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
				data, ok := strings.CutPrefix(last[len(last)-1], "event: error\ndata: ")
				if !ok || !aborted || strings.Contains(text, "message_stop") || strings.Contains(text, "[DONE]") {
					t.Errorf("aborted %v: %s", aborted, text)
				}
				got := checkEnvelope(t, w.header, data, c.kind, c.code)
				assert.Equal(t, (got.Error.Details.Reason == fault.WaitElapsed), (c.code == fault.CapacityFull), data)
			})
		})
	}
}

// Proxies repeat headers: the same version twice counts as one.
func TestSameVersionTwice(t *testing.T) {
	for _, header := range []http.Header{
		{"Anthropic-Version": {"2023-06-01", "2023-06-01"}}, {"Anthropic-Version": {"2023-06-01, 2023-06-01"}}, {"Anthropic-Version": {" 2023-06-01 "}},
	} {
		if err := checkVersion(header); err != nil {
			t.Errorf("%v: %v", header, err)
		}
	}
}
