package gateway

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

const (
	goodKey     = "kith_test_good"
	chatRequest = `{"model":"m","messages":[{"role":"user","content":"canary"}]}`
	chatAnswer  = `{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3}}`
)

// backend is a Backend made from functions.
type backend struct {
	do     func(context.Context, *Call) (*Answer, error)
	models []Model
	fault  error // of Models
}

func (b *backend) Do(ctx context.Context, call *Call) (*Answer, error)   { return b.do(ctx, call) }
func (b *backend) Models(context.Context, fleet.Caller) ([]Model, error) { return b.models, b.fault }

// answers returns a Backend that answers every call with body.
func answers(body string) *backend {
	return &backend{do: func(context.Context, *Call) (*Answer, error) {
		return answer(io.NopCloser(strings.NewReader(body))), nil
	}}
}

// refuses returns a Backend that refuses every call.
func refuses(err error) *backend {
	return &backend{do: func(context.Context, *Call) (*Answer, error) { return nil, err }}
}

func answer(body io.ReadCloser) *Answer {
	return &Answer{Response: &http.Response{StatusCode: 200, Body: body, ContentLength: -1}}
}

// textOf returns the held bytes.
func textOf(b *spool.Bytes) string {
	var text strings.Builder
	_, _ = b.WriteTo(&text) // it never fails
	return text.String()
}

// padded returns a body of that many bytes: text followed by spaces. They are generated
// while reading, because filling large memory is slow under the race detector.
func padded(text string, length int) io.Reader {
	return io.MultiReader(strings.NewReader(text), io.LimitReader(spaces{}, int64(length-len(text))))
}

// spaces is an endless body of spaces.
type spaces struct{}

var someSpaces = strings.Repeat(" ", 64<<10)

func (spaces) Read(p []byte) (n int, err error) {
	for n < len(p) {
		n += copy(p[n:], someSpaces)
	}
	return n, nil
}

// files returns a spool with a directory, like a hub's, so that a large body does not
// grow in memory.
func files(t *testing.T) *spool.Spool {
	t.Helper()
	s := assert.Value(spool.Open(t.TempDir(), spool.Limits{Memory: 8 << 20}))(t)
	return s
}

// noRoom returns a full spool.
func noRoom() *spool.Spool {
	s, _ := spool.Open("", spool.Limits{Memory: 1})
	return s
}

// keys is an Identify that knows one key.
func keys(_ context.Context, secret string) (fleet.Caller, error) {
	switch secret {
	case goodKey:
		return fleet.Caller{Member: "mem_1", Name: "ann", KeyID: "key_1"}, nil
	case "kith_test_unsure":
		return fleet.Caller{}, fault.New(fault.CascadeExhausted, "cannot confirm the key just now")
	default:
		return fleet.Caller{}, fault.New(fault.InvalidAPIKey, "%s", RefusedKey("").Message)
	}
}

func hostedConfig(b Backend) Config {
	return Config{Backend: b, Identify: keys, Log: slog.New(slog.DiscardHandler)}
}

func localConfig(b Backend) Config {
	return Config{Backend: b, Guard: &Guard{Port: 8701}, Log: slog.New(slog.DiscardHandler)}
}

// ask returns a request with a valid key and JSON content. Headers are pairs of name and
// value; an empty value removes the header.
func ask(method, target, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+goodKey)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		} else {
			r.Header.Add(headers[i], headers[i+1])
		}
	}
	return r
}

// do serves r and returns the answer, even if it was aborted.
func do(h http.Handler, r *http.Request) (w *httptest.ResponseRecorder, aborted bool) {
	w = httptest.NewRecorder()
	return w, serveTo(h, w, r)
}

// serveTo serves r to w, and reports whether the answer was aborted.
func serveTo(h http.Handler, w http.ResponseWriter, r *http.Request) (aborted bool) {
	defer func() {
		if v := recover(); v == http.ErrAbortHandler {
			aborted = true
		} else if v != nil {
			panic(v)
		}
	}()
	h.ServeHTTP(w, r)
	return false
}

// told is a fault as a caller of the chat dialect receives it.
type told struct {
	Error struct {
		Code          string  `json:"code"`
		Message       string  `json:"message"`
		Type          string  `json:"type"`
		Param         *string `json:"param"`
		CorrelationID string  `json:"correlation_id"`
		Reason        string  `json:"reason"`
		Details       struct {
			Reason string `json:"reason"`
		} `json:"details"`
	} `json:"error"`
}

// checkFault checks everything that every refusal must have.
func checkFault(t *testing.T, w *httptest.ResponseRecorder, status int, code fault.Code) told {
	t.Helper()
	var got told
	assert.OK(t, json.Unmarshal(w.Body.Bytes(), &got), "body", w.Body)
	h := w.Result().Header
	id := h.Get("X-Correlation-ID")
	if w.Code != status || got.Error.Code != string(code) {
		t.Errorf("%d %s, want %d %s (%s)", w.Code, got.Error.Code, status, code, w.Body)
	}
	if want := fault.New(code, "").Type(); got.Error.Type != want {
		t.Errorf("type %s, want %s", got.Error.Type, want)
	}
	if id == "" || got.Error.CorrelationID != id || h.Get("Request-Id") != id || h.Get("X-Request-Id") != id {
		t.Errorf("correlation ids differ: %v, body %q", h, got.Error.CorrelationID)
	}
	if h.Get("Content-Type") != "application/json" || got.Error.Message == "" {
		t.Errorf("content type %q, message %q", h.Get("Content-Type"), got.Error.Message)
	}
	retry, err := strconv.Atoi(h.Get("Retry-After"))
	if again := status == 429 || status == 503; again != (err == nil) || again && (retry < 1 || retry > 30) {
		t.Errorf("Retry-After %q on %d", h.Get("Retry-After"), status)
	}
	return got
}

func TestRefusalsOfTheHostedEdge(t *testing.T) {
	h := New(hostedConfig(answers(chatAnswer)))
	for name, c := range map[string]struct {
		r      *http.Request
		status int
		code   fault.Code
		says   string
	}{
		"no path":            {ask("POST", "/v1/nothing", chatRequest), 404, fault.RouteNotFound, "base URL"},
		"v1 missing":         {ask("POST", "/chat/completions", chatRequest), 404, fault.RouteNotFound, "/v1/chat/completions"},
		"v1 doubled":         {ask("POST", "/v1/v1/chat/completions", chatRequest), 404, fault.RouteNotFound, "/v1/chat/completions"},
		"trailing slash":     {ask("POST", "/v1/chat/completions/", chatRequest), 404, fault.RouteNotFound, "/v1/chat/completions"},
		"doubled slash":      {ask("POST", "//v1/chat/completions", chatRequest), 404, fault.RouteNotFound, "/v1/chat/completions"},
		"other case":         {ask("POST", "/V1/Chat/completions", chatRequest), 404, fault.RouteNotFound, "/v1/chat/completions"},
		"prefix":             {ask("POST", "/openai/v1/embeddings", chatRequest), 404, fault.RouteNotFound, "/v1/embeddings"},
		"models, v1 missing": {ask("GET", "/models", ""), 404, fault.RouteNotFound, "/v1/models"},
		"model, v1 doubled":  {ask("GET", "/v1/v1/models/a/b", ""), 404, fault.RouteNotFound, "/v1/models/{id}"},
		"models/":            {ask("GET", "/v1/models/", ""), 404, fault.RouteNotFound, "/v1/models;"},
		"base":               {ask("GET", "/v1", ""), 404, fault.RouteNotFound, "base URL"},
		"no path, no key":    {ask("POST", "/v2/x", chatRequest, "Authorization", ""), 404, fault.RouteNotFound, ""},
		"method":             {ask("GET", "/v1/chat/completions", ""), 405, fault.MethodNotAllowed, "POST"},
		"method, no key":     {ask("DELETE", "/v1/models", "", "Authorization", ""), 405, fault.MethodNotAllowed, "GET"},
		"preflight":          {ask("OPTIONS", "/v1/chat/completions", ""), 405, fault.MethodNotAllowed, "POST"},
		"no key":             {ask("POST", "/v1/chat/completions", chatRequest, "Authorization", ""), 401, fault.InvalidAPIKey, "create one at Keys (/applications)"},
		"wrong key":          {ask("POST", "/v1/chat/completions", chatRequest, "Authorization", "", "Authorization", "Bearer kith_x"), 401, fault.InvalidAPIKey, "create one at Keys (/applications)"},
		"two keys":           {ask("POST", "/v1/chat/completions", chatRequest, "X-Api-Key", "kith_x"), 401, fault.InvalidAPIKey, "create one at Keys (/applications)"},
		"two keys, one good": {ask("GET", "/v1/models", "", "Authorization", "", "Authorization", "Bearer kith_x", "X-Api-Key", goodKey), 401, fault.InvalidAPIKey, ""},
		"two bearers":        {ask("POST", "/v1/chat/completions", chatRequest, "Authorization", "Bearer kith_x"), 401, fault.InvalidAPIKey, "create one at Keys (/applications)"},
		"basic":              {ask("POST", "/v1/chat/completions", chatRequest, "Authorization", "", "Authorization", "Basic abc"), 401, fault.InvalidAPIKey, ""},
		"x-api-key on chat":  {ask("POST", "/v1/chat/completions", chatRequest, "Authorization", "", "X-Api-Key", goodKey), 401, fault.InvalidAPIKey, ""},
		"unsure":             {ask("POST", "/v1/chat/completions", chatRequest, "Authorization", "", "Authorization", "Bearer kith_test_unsure"), 503, fault.CascadeExhausted, "confirm"},
		"completions":        {ask("POST", "/v1/completions", chatRequest), 501, fault.NotImplemented, "/v1/chat/completions"},
		"completions no key": {ask("POST", "/v1/completions", chatRequest, "Authorization", ""), 401, fault.InvalidAPIKey, ""},
		"encoding":           {ask("POST", "/v1/chat/completions", chatRequest, "Content-Encoding", "gzip"), 415, fault.UnsupportedEncoding, "Content-Encoding"},
		"broken JSON":        {ask("POST", "/v1/chat/completions", `{"model":`), 400, fault.InvalidRequest, "JSON"},
		"empty":              {ask("POST", "/v1/chat/completions", ``), 400, fault.InvalidRequest, "empty"},
		"duplicate model":    {ask("POST", "/v1/embeddings", `{"model":"a","model":"b"}`), 400, fault.InvalidRequest, "twice"},
		"bad effort":         {ask("POST", "/v1/chat/completions", `{"model":"a","reasoning_effort":"x"}`), 400, fault.InvalidRequest, "reasoning_effort"},
		"impossible model":   {ask("POST", "/v1/chat/completions", `{"model":"a\u0000b"}`), 404, fault.ModelNotFound, "/v1/models"},
		"unknown model":      {ask("GET", "/v1/models/none", ""), 404, fault.ModelNotFound, "/v1/models"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := do(h, c.r)
			if got := checkFault(t, w, c.status, c.code); !strings.Contains(got.Error.Message, c.says) {
				t.Errorf("message %q lacks %q", got.Error.Message, c.says)
			}
			header := w.Result().Header
			if (header.Get("Allow") != "") != (c.status == 405) || (header.Get("Www-Authenticate") != "") != (c.status == 401) ||
				(header.Get("X-Should-Retry") == "false") != (c.status == 501) {
				t.Errorf("headers %v", header)
			}
		})
	}
	one, _ := do(h, ask("POST", "/v1/chat/completions", chatRequest, "Authorization", ""))
	two, _ := do(h, ask("POST", "/v1/chat/completions", chatRequest, "Authorization", "", "Authorization", "Bearer kith_x"))
	hide := func(w *httptest.ResponseRecorder) string {
		return strings.ReplaceAll(w.Body.String(), w.Header().Get("X-Correlation-ID"), "")
	}
	assert.Equal(t, hide(one), hide(two), "a missing and a wrong key are told apart", one.Body, two.Body)
}

// Every fault of the table is answered with its status and code in both envelopes,
// regardless of what caused it.
func TestFaultsOfTheBackend(t *testing.T) {
	for code, status := range fault.Codes() {
		t.Run(string(code), func(t *testing.T) {
			h := New(hostedConfig(refuses(errors.Join(errors.New("inside"), fault.New(code, "why, and what next")))))
			w, aborted := do(h, ask("POST", "/v1/chat/completions", chatRequest))
			got := checkFault(t, w, status, code)
			assert.That(t, got.Error.Message == "why, and what next" && !aborted, w.Body, "aborted", aborted)
		})
	}
	t.Run("after a wait", func(t *testing.T) {
		w, _ := do(New(hostedConfig(refuses(fault.New(fault.CapacityFull, "busy").AfterWait()))), ask("POST", "/v1/chat/completions", chatRequest))
		if got := checkFault(t, w, 503, fault.CapacityFull); got.Error.Reason != fault.WaitElapsed {
			t.Errorf("%s", w.Body)
		}
	})
	t.Run("no retry", func(t *testing.T) {
		w, _ := do(New(hostedConfig(refuses(fault.New(fault.CascadeExhausted, "no").WithNoRetry()))), ask("POST", "/v1/chat/completions", chatRequest))
		assert.Equal(t, w.Header().Get("X-Should-Retry"), "false", w.Header())
	})
	t.Run("not a fault", func(t *testing.T) {
		w, _ := do(New(hostedConfig(refuses(errors.New("the secret inside")))), ask("POST", "/v1/chat/completions", chatRequest))
		checkFault(t, w, 500, fault.InternalError)
		assert.Lacks(t, w.Body.String(), "secret", w.Body)
	})
	t.Run("panic", func(t *testing.T) {
		b := &backend{do: func(context.Context, *Call) (*Answer, error) { panic("the secret inside") }}
		var log bytes.Buffer
		c := hostedConfig(b)
		c.Log = slog.New(slog.NewJSONHandler(&log, nil))
		w, aborted := do(New(c), ask("POST", "/v1/chat/completions", chatRequest))
		checkFault(t, w, 500, fault.InternalError)
		if aborted || strings.Contains(w.Body.String()+log.String(), "secret") || !strings.Contains(log.String(), "panic (string)") {
			t.Errorf("%s\n%s", w.Body, log.String())
		}
	})
	t.Run("retry after", func(t *testing.T) {
		seen := map[string]bool{}
		h := New(hostedConfig(refuses(fault.New(fault.CapacityFull, "busy"))))
		for range 300 {
			w, _ := do(h, ask("POST", "/v1/chat/completions", chatRequest))
			seen[w.Header().Get("Retry-After")] = true
		}
		if len(seen) != 3 || !seen["4"] || !seen["5"] || !seen["6"] {
			t.Errorf("back-offs %v, want 5 s give or take 20 %%", seen)
		}
	})
}

func TestEnvelopeFollowsRouteAndVersion(t *testing.T) {
	h := New(hostedConfig(answers(chatAnswer)))
	version := []string{"Anthropic-Version", "2023-06-01"}
	for _, c := range []struct {
		r        *http.Request
		messages bool
	}{
		{ask("GET", "/v1/models/x", "", version...), true},
		{ask("GET", "/v1/models/x", ""), false},
		{ask("GET", "/nowhere", "", version...), true},
		{ask("GET", "/nowhere", ""), false},
		{ask("POST", "/v1/messages", chatRequest), true},
		{ask("POST", "/v1/messages/count_tokens", chatRequest), true},
		{ask("GET", "/v1/chat/completions", "", version...), false},
	} {
		w, _ := do(h, c.r)
		if got := strings.HasPrefix(w.Body.String(), `{"type":"error","error":{"type":"`); got != c.messages {
			t.Errorf("%s %s: %s", c.r.Method, c.r.URL, w.Body)
		}
		assert.Contains(t, w.Body.String(), w.Header().Get("X-Correlation-ID"), "no correlation id", w.Body)
	}
}

// The message of a fault is kept unless messages of its code may quote the call.
func TestOutcomeMessage(t *testing.T) {
	for code := range fault.Codes() {
		var out Outcome
		c := hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) { return nil, fault.New(code, "the cause") }})
		c.Finished = func(_ *Call, o Outcome) { out = o }
		do(New(c), ask("POST", "/v1/chat/completions", chatRequest))
		want := "the cause"
		if code == fault.InvalidRequest || code == fault.EngineError || code.Quotes() {
			want = ""
		}
		assert.That(t, out.Code == string(code) && out.Message == want, code, out)
	}
	assert.That(t, !fault.ContextLengthExceeded.Quotes() && !fault.CapacityFull.Quotes(), "a message of states and numbers is not kept")
}

func TestUnary(t *testing.T) {
	var call *Call
	var sent string
	b := &backend{do: func(_ context.Context, c *Call) (*Answer, error) {
		call, sent = c, textOf(c.Body)
		c.Trace = Trace{Machine: "mch_1", Attempts: 1, Route: "own; machine=box\r\nX: y; owner=ann"}
		return answer(io.NopCloser(strings.NewReader(chatAnswer))), nil
	}}
	var log bytes.Buffer
	var out Outcome
	c := hostedConfig(b)
	c.Log = slog.New(slog.NewJSONHandler(&log, nil))
	c.Finished = func(_ *Call, o Outcome) { out = o }
	h := New(c)
	w, aborted := do(h, ask("POST", "/v1/chat/completions", chatRequest, "Prefer", "respond-async, wait=7", "X-Correlation-ID", "mine"))
	assert.That(t, w.Code == 200 && w.Body.String() == chatAnswer && !aborted, w.Code, w.Body)
	header := w.Header()
	if header.Get("Content-Length") != strconv.Itoa(len(chatAnswer)) || header.Get("Content-Type") != "application/json" ||
		header.Get("X-Kith-Route") != "own; machine=box  X: y; owner=ann" {
		t.Errorf("%v", header)
	}
	if call.ID != header.Get("X-Correlation-ID") || call.ID == "mine" || sent != chatRequest || call.Model != "m" || call.Stream ||
		call.Caller.KeyID != "key_1" || call.Wait != 7*time.Second || call.Endpoint != fleet.ChatCompletions {
		t.Errorf("%+v", call)
	}
	call.Waiting(1, time.Second) // never nil
	if out.Status != 200 || out.Code != "" || out.TokensIn != 2 || out.TokensOut != 3 || !out.Reported || out.FirstByte <= 0 || out.Duration < out.FirstByte {
		t.Errorf("%+v", out)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || strings.Contains(log.String(), "canary") ||
		!strings.Contains(log.String(), `"endpoint":"/v1/chat/completions"`) || !strings.Contains(log.String(), `"machine":"mch_1"`) {
		t.Errorf("log:\n%s", log.String())
	}
	assert.Lacks(t, log.String(), goodKey, "the log holds a key")

	w, _ = do(h, ask("POST", "/v1/embeddings", `{"model":"m","stream":true,"input":"x"}`))
	if w.Code != 200 || call.Stream || call.Endpoint != fleet.EmbeddingsEndpoint || call.Wait >= 0 {
		t.Errorf("%d %+v", w.Code, call)
	}
}

func TestUnaryAnswersThatAreNone(t *testing.T) {
	broken := func(err error) *backend {
		return &backend{do: func(context.Context, *Call) (*Answer, error) {
			return answer(io.NopCloser(io.MultiReader(strings.NewReader(chatAnswer[:20]), &failing{err}))), nil
		}}
	}
	for name, c := range map[string]struct {
		b    *backend
		code fault.Code
	}{
		"nonsense": {answers("<html>"), fault.EngineError},
		"error":    {answers(`{"error":{"message":"x"}}`), fault.EngineError},
		"too long": {answers(`{"a":"` + strings.Repeat("x", 8<<20) + `"}`), fault.EngineError},
		"cut":      {broken(io.ErrUnexpectedEOF), fault.EngineError},
		"gone":     {broken(fault.New(fault.MachineOffline, "gone")), fault.MachineOffline},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := do(New(hostedConfig(c.b)), ask("POST", "/v1/chat/completions", chatRequest))
			checkFault(t, w, fault.New(c.code, "").Status(), c.code)
		})
	}
}

// failing is a reader that fails.
type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// Paths are compared as received: only an id may be percent-encoded.
func TestEncodedPaths(t *testing.T) {
	h := New(hostedConfig(&backend{}))
	for _, path := range []string{"/v1/chat%2Fcompletions", "/v1/%63hat/completions", "/v1%2Fchat/completions", "/%761/embeddings", "/v1/responses/compact", "/v1/responses/input_tokens", "/v1/responses/a/cancel"} {
		if w, _ := do(h, ask("POST", path, `{"model":"m","messages":[]}`)); w.Code != 404 || !strings.Contains(w.Body.String(), `"route_not_found"`) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestModels(t *testing.T) {
	b := &backend{models: []Model{
		{ID: "a", Availability: Ready, Via: fleet.Own, Machines: 2, Created: time.Unix(1_700_000_000, 0), ContextLength: 4096, Capabilities: []string{"tools"}},
		{ID: "hf.co/org/b:Q4", Availability: Busy, Via: fleet.Shared},
		{ID: "z", Availability: OutsideHours, Via: fleet.Grouped},
	}}
	h := New(hostedConfig(b))
	const entry = `{"id":"a","object":"model","created":1700000000,"owned_by":"kith","context_length":4096,"capabilities":["tools"],"availability":"ready","via":"own","machines":2}`
	w, _ := do(h, ask("GET", "/v1/models", ""))
	if !strings.HasPrefix(w.Body.String(), `{"object":"list","data":[`+entry+`,{"id":"hf.co/org/b:Q4"`) || w.Code != 200 || w.Header().Get("X-Correlation-ID") == "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, path := range []string{"/v1/models/hf.co/org/b:Q4", "/v1/models/hf.co%2Forg%2Fb%3AQ4"} {
		if w, _ := do(h, ask("GET", path, "", "Authorization", "", "X-Api-Key", goodKey)); w.Code != 200 || !strings.Contains(w.Body.String(), `"id":"hf.co/org/b:Q4"`) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w, _ := do(h, ask("GET", "/v1/models", "", "X-Api-Key", goodKey)); w.Code != 200 {
		t.Errorf("the same key twice: %d", w.Code)
	}
	for query, want := range map[string]string{
		"":                                    "a hf.co/org/b:Q4 z false a z",
		"limit=2":                             "a hf.co/org/b:Q4 true a hf.co/org/b:Q4",
		"limit=2&after_id=":                   "a hf.co/org/b:Q4 true a hf.co/org/b:Q4",
		"limit=2&after_id=hf.co%2Forg%2Fb:Q4": "z false z z",
		"after_id=c":                          "hf.co/org/b:Q4 z false hf.co/org/b:Q4 z",
		"after_id=z":                          "false  ",
		"before_id=z&limit=1":                 "hf.co/org/b:Q4 true hf.co/org/b:Q4 hf.co/org/b:Q4",
	} {
		w, _ := do(h, ask("GET", "/v1/models?"+query, "", "Anthropic-Version", "2026-10-21"))
		var page struct {
			Data []struct {
				Type, ID, DisplayName string
				CreatedAt             time.Time `json:"created_at"`
			} `json:"data"`
			HasMore bool   `json:"has_more"`
			First   string `json:"first_id"`
			Last    string `json:"last_id"`
		}
		assert.OK(t, json.Unmarshal(w.Body.Bytes(), &page, json.MatchCaseInsensitiveNames(true)))
		got := ""
		for _, m := range page.Data {
			got += m.ID + " "
		}
		if got += strconv.FormatBool(page.HasMore) + " " + page.First + " " + page.Last; got != want {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
	}
	w, _ = do(h, ask("GET", "/v1/models?limit=0", "", "Anthropic-Version", "x"))
	assert.Equal(t, w.Code, 400, "limit=0")
	w, _ = do(New(hostedConfig(&backend{fault: fault.New(fault.CascadeExhausted, "x")})), ask("GET", "/v1/models", ""))
	checkFault(t, w, 503, fault.CascadeExhausted)
	w, _ = do(New(hostedConfig(&backend{})), ask("GET", "/v1/models", ""))
	assert.Equal(t, w.Body.String(), `{"object":"list","data":[]}`, w.Body)
	w, _ = do(New(hostedConfig(&backend{})), ask("GET", "/v1/models", "", "Anthropic-Version", "x"))
	assert.Equal(t, w.Body.String(), `{"data":[],"has_more":false,"first_id":null,"last_id":null}`, w.Body)
}

func TestPreferredWait(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": -1, "wait=0": 0, "wait=10": 10 * time.Second, "handling=lenient, WAIT = \"3\"": 3 * time.Second,
		"wait=-1": -1, "wait=x": -1, "wait": -1, "wait=99999999999": -1,
	} {
		assert.Equal(t, preferredWait(http.Header{"Prefer": {value}}), want, value)
	}
}

// The id of a model is compared byte for byte. It is never trimmed, case-folded or
// completed on its way to the machines.
func TestModelIDsAreExact(t *testing.T) {
	var asked []fleet.ModelID
	h := New(hostedConfig(&backend{models: []Model{{ID: "m"}, {ID: "org/a b:8b"}}, do: func(_ context.Context, call *Call) (*Answer, error) {
		asked = append(asked, call.Model)
		return nil, fault.New(fault.ModelNotFound, "nobody has it")
	}}))
	for id, reaches := range map[string]bool{
		"m": true, "M": true, "m:latest": true, "org/a b:8b": true, "org/a  b:8b": true, "/m": true, "m/": true, "\u00e9": true, "e\u0301": true,
		" m": false, "m ": false, "\u00a0m": false, "m\u2003": false, "m\t": false, " ": false,
	} {
		asked = nil
		body, err := json.Marshal(map[string]any{"model": id, "input": "x", "max_tokens": 1, "messages": []map[string]string{{"role": "user", "content": "x"}}})
		assert.OK(t, err)
		for _, path := range []string{"/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"} {
			w, _ := do(h, ask("POST", path, string(body), "Anthropic-Version", "2023-06-01"))
			if w.Code != 404 || !strings.Contains(w.Body.String(), "model_not_found") || !reaches && !strings.Contains(w.Body.String(), "no space at either end") {
				t.Errorf("%s %q: %d %s", path, id, w.Code, w.Body)
			}
		}
		if reaches && (len(asked) != 4 || slices.ContainsFunc(asked, func(got fleet.ModelID) bool { return string(got) != id })) || !reaches && len(asked) > 0 {
			t.Errorf("%q: the machines were asked for %q", id, asked)
		}
	}
	for path, status := range map[string]int{"m": 200, "org%2Fa%20b:8b": 200, "m%20": 404, "%20m": 404, "M": 404} {
		if w, _ := do(h, ask("GET", "/v1/models/"+path, "")); w.Code != status {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// The caller has the complete answer before the records are written: in this test
// Finished waits until the caller has read it.
func TestAnswerBeforeBooks(t *testing.T) {
	read, finished := make(chan struct{}), make(chan struct{})
	c := hostedConfig(answers(chatAnswer))
	c.Finished = func(*Call, Outcome) {
		defer close(finished)
		select {
		case <-read:
		case <-time.After(2 * time.Minute):
			t.Error("the answer waits for the books")
		}
	}
	server := httptest.NewServer(New(c))
	defer server.Close()
	r := ask("POST", server.URL+"/v1/chat/completions", chatRequest)
	r.RequestURI = ""
	answer := assert.Value(server.Client().Do(r))(t)
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); string(body) != chatAnswer || err != nil {
		t.Errorf("%q, %v", body, err)
	}
	close(read)
	<-finished
}

// X-Kith-Reach narrows the reach of one call on both surfaces and never widens that of a
// key.
func TestReachOfACall(t *testing.T) {
	for _, c := range []struct {
		key   fleet.KeyReach
		words []string
		want  fleet.KeyReach
	}{
		{fleet.Everything, nil, fleet.Everything},
		{fleet.Everything, []string{"all"}, fleet.Everything},
		{fleet.Everything, []string{"shared"}, fleet.OwnAndShared},
		{fleet.Everything, []string{"own"}, fleet.OwnOnly},
		{fleet.OwnAndShared, []string{"all"}, fleet.OwnAndShared},
		{fleet.OwnOnly, []string{"shared"}, fleet.OwnOnly},
		{fleet.Everything, []string{"all", "own", "shared"}, fleet.OwnOnly}, // the narrowest of several
	} {
		got := fleet.KeyReach(99)
		b := &backend{do: func(_ context.Context, call *Call) (*Answer, error) {
			got = call.Caller.Reach
			return nil, fault.New(fault.CapacityFull, "enough")
		}}
		config := hostedConfig(b)
		identify := config.Identify
		config.Identify = func(ctx context.Context, secret string) (fleet.Caller, error) {
			caller, err := identify(ctx, secret)
			caller.Reach = c.key
			return caller, err
		}
		r := ask("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}]}`)
		if r.Header[HeaderReach] = c.words; len(c.words) == 0 {
			delete(r.Header, HeaderReach)
		}
		if do(New(config), r); got != c.want {
			t.Errorf("%v with %q: %v, want %v", c.key, c.words, got, c.want)
		}
	}
	for _, words := range [][]string{{"group"}, {""}, {"own", "OWN"}, {"own, all"}} {
		r := ask("POST", "/v1/chat/completions", `{"model":"m","messages":[]}`)
		r.Header[HeaderReach] = words
		w, _ := do(New(hostedConfig(&backend{})), r)
		if w.Code != 400 || !strings.Contains(w.Body.String(), "X-Kith-Reach must be own, shared or all") {
			t.Errorf("%q: %d %s", words, w.Code, w.Body)
		}
	}
}

// The program of a call is that of a closed list: on the local surface by its key, at the
// hub by the header of a daemon, which no other caller may set.
func TestProgramOfACall(t *testing.T) {
	got := fleet.Program("none yet")
	b := &backend{do: func(_ context.Context, call *Call) (*Answer, error) {
		got = call.Caller.Program
		return nil, fault.New(fault.CapacityFull, "enough")
	}}
	const body = `{"model":"m","messages":[{"role":"user","content":"x"}]}`
	here := New(localConfig(b))
	for secret, want := range map[string]fleet.Program{
		LocalKey(fleet.ProgramRun): "run", LocalKey(fleet.ProgramLaunch): "launch", "kith": "", "run": "", "kith-": "", "kith-other": "", "kith-run ": "run",
	} {
		do(here, ask("POST", "http://localhost:8701/v1/chat/completions", body, "Authorization", "", "Authorization", "Bearer "+secret, HeaderProgram, "launch"))
		assert.Equal(t, got, want, secret)
	}
	do(here, ask("POST", "http://localhost:8701/v1/messages", body, "Authorization", "", "X-Api-Key", "kith-launch"))
	assert.Equal(t, got, fleet.ProgramLaunch, "x-api-key")

	config := hostedConfig(b)
	machine := fleet.MachineID("")
	config.Identify = func(ctx context.Context, secret string) (fleet.Caller, error) {
		caller, err := keys(ctx, secret)
		if caller.Machine = machine; machine != "" {
			caller.KeyID = ""
		}
		return caller, err
	}
	hub := New(config)
	program := func(name string) fleet.Program {
		got = "none yet"
		do(hub, ask("POST", "/v1/chat/completions", body, HeaderProgram, name))
		return got
	}
	assert.Equal(t, program("run"), "", "a key's")
	machine = "mch_1"
	for name, want := range map[string]fleet.Program{"run": "run", "launch": "launch", "": "", "Run": "", "run launch": "", "my own": ""} {
		assert.Equal(t, program(name), want, name)
	}
	do(hub, ask("POST", "/v1/chat/completions", body, HeaderProgram, "my own", HeaderProgram, "run"))
	assert.Equal(t, got, "", "the second of two")
	hub.ServeAs(httptest.NewRecorder(), ask("POST", "/v1/chat/completions", body, HeaderProgram, "run"), fleet.Caller{Member: "mem_1", KeyID: "site of mem_1"})
	assert.Equal(t, got, "", "the site's")
}
