package daemon

import (
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

const upstreamKey = "sk-canary-0123456789abcdef"

// service starts a double of a service elsewhere that wants upstreamKey.
func service(t *testing.T, models ...string) *enginetest.Engine {
	t.Helper()
	o := enginetest.Options{Key: upstreamKey}
	for _, id := range models {
		o.Models = append(o.Models, enginetest.Model{ID: id})
	}
	e := enginetest.New(enginetest.Service, o)
	assert.OK(t, e.Listen(enginetest.FreeAddress()))
	t.Cleanup(func() { e.Close() })
	return e
}

func upstream(e *enginetest.Engine, dialect string) engine.UpstreamConfig {
	return engine.UpstreamConfig{Name: "theirs", URL: e.URL() + "/v1", Dialect: dialect, Key: upstreamKey}
}

func (r *rig) listed() []string {
	var ids []string
	for _, m := range r.Status().Models {
		ids = append(ids, string(m))
	}
	return ids
}

// keyless fails if the key is anywhere it must not be.
func (r *rig) keyless(texts ...string) {
	r.t.Helper()
	status := assert.Value(json.Marshal(r.Status()))(r.t)
	ad, _ := r.advertise()
	config := fmt.Sprintf("%v %+v %#v", r.config, r.config, r.config)
	for _, text := range append(texts, string(status), r.log.String(), fmt.Sprintf("%+v", ad), config) {
		assert.Lacks(r.t, text, "canary", "the key is in")
	}
}

// The bytes of the responses and messages dialects pass unchanged both ways,
// with the owner's key and the usage read.
func TestUpstreamNative(t *testing.T) {
	for _, c := range []struct {
		dialect, path, whole string
		events               []string
		in, out              int
	}{
		{"chat", "/v1/responses", enginetest.Response, enginetest.ResponseStream, 11, 3},
		{"responses", "/v1/responses", enginetest.Response, enginetest.ResponseStream, 11, 3},
		{"messages", "/v1/messages", enginetest.Message, enginetest.MessageStream, 11, 3},
	} {
		t.Run(c.dialect, func(t *testing.T) {
			e := service(t, "big-model")
			r := run(t, Config{Upstreams: []engine.UpstreamConfig{upstream(e, c.dialect)}})
			r.await("listed", func(s Status) bool { return slices.Contains(s.Models, "big-model") })
			for _, stream := range []bool{false, true} {
				body := fmt.Sprintf(`{ "model":"big-model",  "stream":%v, "tools":[{"type":"web_search"}], "max_tokens":5e2, "input":"hi" }`, stream)
				req := assert.Value(http.NewRequest(http.MethodPost, r.base()+c.path, strings.NewReader(body)))(t)
				for name, value := range map[string]string{
					"Content-Type": "application/json", "Anthropic-Version": "2023-06-01", "Anthropic-Beta": "tools-1",
					"X-Api-Key": "the-callers-own", "Authorization": "Bearer the-callers-own", "Cookie": "a=b",
				} {
					req.Header.Set(name, value)
				}
				resp := assert.Value(http.DefaultClient.Do(req))(t)
				got, want := read(t, resp.Body), c.whole
				resp.Body.Close()
				if stream {
					want = strings.Join(c.events, "")
				}
				if diff := cmp.Diff(want, got); resp.StatusCode != 200 || diff != "" {
					t.Fatalf("status %d\n%s", resp.StatusCode, diff)
				}
				last := e.Last()
				assert.Equal(t, string(last.Body), body, "sent up", last.Body)
				wantKey, version, beta := "Bearer "+upstreamKey, "", ""
				if c.dialect == "messages" {
					wantKey, version, beta = "", "2023-06-01", "tools-1"
					assert.Equal(t, last.Header.Get("X-Api-Key"), upstreamKey, "the key is not in x-api-key")
				}
				if h := last.Header; h.Get("Authorization") != wantKey || h.Get("Anthropic-Version") != version || h.Get("Anthropic-Beta") != beta || h.Get("Cookie") != "" {
					t.Errorf("sent up: %v", h)
				}
			}
			if want := fmt.Sprintf("tokens_in=%d tokens_out=%d", c.in, c.out); strings.Count(r.log.String(), want) != 2 {
				t.Errorf("the log does not say %s twice:\n%s", want, r.log)
			}
			r.keyless()
		})
	}
}

// A stream of the responses dialect may end with the end mark, in the same piece as its
// last event or in another. One that breaks off ends as a hosted one does: an error with
// all members that clients look for, then response.failed.
func TestUpstreamResponsesEnds(t *testing.T) {
	e := service(t, "big-model")
	r := run(t, Config{Upstreams: []engine.UpstreamConfig{upstream(e, "responses")}})
	r.await("listed", func(s Status) bool { return slices.Contains(s.Models, "big-model") })
	ask := func(raw ...string) string {
		t.Helper()
		e.Set(enginetest.Behaviour{Raw: raw})
		resp := r.post("/v1/responses", `{"model":"big-model","stream":true,"input":"hi"}`)
		text, _ := io.ReadAll(resp.Body) // a broken one ends uncleanly
		return string(text)
	}
	all, done := enginetest.ResponseStream, "data: [DONE]\n\n"
	last := len(all) - 1
	for _, raw := range [][]string{append(slices.Clone(all), done), append(slices.Clone(all[:last]), all[last]+done)} {
		assert.Equal(t, ask(raw...), strings.Join(all, "")+done)
	}
	got := ask(all[:last]...)
	rest, ok := strings.CutPrefix(got, strings.Join(all[:last], ""))
	assert.Require(t, ok, got)
	for _, has := range []string{
		`event: error` + "\n" + `data: {"type":"error","sequence_number":`, `"code":"engine_error"`, `"error":{"code":"engine_error"`,
		"event: response.failed\n", `"status":"failed"`, `"type":"response.failed"`,
	} {
		assert.Contains(t, rest, has, "is not in")
	}
	if strings.Contains(rest, "[DONE]") || strings.Contains(rest, "response.completed") {
		t.Errorf("a good end: %s", rest)
	}
}

// Chat and embeddings go to an upstream after the engines here.
func TestUpstreamAfterEnginesHere(t *testing.T) {
	here := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "both"}}})
	e := service(t, "both", "theirs-only", "text-embedding-9")
	r := run(t, Config{Upstreams: []engine.UpstreamConfig{upstream(e, "chat")}}, here)
	r.await("listed", func(s Status) bool { return len(s.Models) == 3 })
	ask := func(path, model string) (int, string) {
		resp := r.post(path, fmt.Sprintf(`{"model":%q,"max_tokens":9,"input":"hi","messages":[{"role":"user","content":"hi there"}]}`, model))
		return resp.StatusCode, read(t, resp.Body)
	}
	for _, c := range []struct {
		path, model string
		status      int
		served      *enginetest.Engine
	}{
		{"/v1/chat/completions", "both", 200, here},
		{"/v1/chat/completions", "theirs-only", 200, e},
		{"/v1/embeddings", "text-embedding-9", 200, e},
		{"/v1/embeddings", "theirs-only", 404, nil},
		{"/v1/responses", "both", 200, e},
		{"/v1/messages", "both", 200, here},
		{"/v1/messages", "theirs-only", 200, e},
		{"/v1/messages", "text-embedding-9", 404, nil},
	} {
		before := map[*enginetest.Engine]int{here: here.Counts().Runs, e: e.Counts().Runs}
		status, text := ask(c.path, c.model)
		if status != c.status || status == 404 && !strings.Contains(text, string(fault.ModelNotFound)) {
			t.Errorf("%s of %s: %d %s", c.path, c.model, status, text)
		}
		for _, engine := range []*enginetest.Engine{here, e} {
			want := before[engine]
			if engine == c.served {
				want++
			}
			assert.Equal(t, engine.Counts().Runs, want, c.path, "of", c.model, "ran elsewhere than it should")
		}
	}
	// An engine here that is busy or gone: the upstream serves its models too.
	here.Set(enginetest.Behaviour{Status: http.StatusServiceUnavailable})
	if status, text := ask("/v1/chat/completions", "both"); status != 200 {
		t.Errorf("busy here: %d %s", status, text)
	}
	r.keyless()
}

// A local model is not served in the responses dialect, nor one that only the
// hub knows.
func TestResponsesAreForUpstreamsOnly(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	r := run(t, Config{}, e)
	for _, stream := range []string{"true", "false"} {
		resp := r.post("/v1/responses", `{"model":"test-model","input":"hi","stream":`+stream+`}`)
		if text := read(t, resp.Body); resp.StatusCode != 404 || !strings.Contains(text, `"model_not_found"`) {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
	}
	assert.Equal(t, e.Counts().Runs, 0, "the engine ran")
}

// Others see an upstream only where its owner shares it, and then through the
// allow-list, in the chat dialect.
func TestUpstreamSharing(t *testing.T) {
	e := service(t, "big-model", "text-embedding-9")
	for _, share := range []bool{false, true} {
		c := upstream(e, "chat")
		c.Share, c.Models = share, []fleet.ModelID{"big-model", "text-embedding-9"}
		r := run(t, Config{Upstreams: []engine.UpstreamConfig{c}})
		ad, _ := r.advertise()
		var offered []string
		for _, m := range ad.Models {
			offered = append(offered, fmt.Sprint(m.ID, m.Families, m.Endpoints, m.Slots, m.Engine))
		}
		var want []string
		if share {
			want = []string{"big-model[chat] [/v1/chat/completions] 4upstream", "text-embedding-9[embeddings] [/v1/embeddings] 4upstream"}
		}
		assert.Same(t, offered, want, "share", share)
		before := e.Counts().Runs
		for path, served := range map[string]bool{"/v1/chat/completions": share, "/v1/responses": false, "/v1/messages": false} {
			w := httptest.NewRecorder()
			q := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{"model":"big-model","web_search_options":{},"messages":[{"role":"user","content":"hi"}]}`))
			q.Header.Set(tunnel.HeaderCaller, "shared bob")
			q.Header.Set(tunnel.HeaderModel, "big-model")
			r.machineHandler().ServeHTTP(w, q)
			if refused := w.Header().Get(tunnel.HeaderRefused); (w.Code == 200) != served || !served && refused != string(tunnel.RefusedUnknownModel) {
				t.Errorf("share %v, %s: %d %q", share, path, w.Code, refused)
			}
		}
		if share != (e.Counts().Runs > before) {
			t.Errorf("share %v: %d runs", share, e.Counts().Runs-before)
		}
		if body := string(e.Last().Body); share && strings.Contains(body, "web_search_options") {
			t.Errorf("a other member's option went up: %s", body)
		}
		r.keyless()
		r.end()
	}
}

// Whatever a service does, the key stays secret and the caller gets a fault.
func TestUpstreamGoesWrong(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	quotes := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error":{"message":"you sent %s","code":"x"}}`, r.Header.Get("Authorization"))
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		status int
		code   fault.Code
	}{
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
		}, 502, fault.EngineError},
		"400 quoting": {quotes(400), 400, fault.InvalidRequest},
		"401 quoting": {quotes(401), 502, fault.EngineError},
		"403 quoting": {quotes(403), 502, fault.EngineError},
		"401 in part": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(401)
			_, _ = io.WriteString(w, `{"error":{"message":"wrong key: sk-canary-0123******cdef"}}`)
		}, 502, fault.EngineError},
		"404":         {quotes(404), 404, fault.ModelNotFound},
		"429":         {quotes(429), 503, fault.CapacityFull},
		"500 quoting": {quotes(500), 502, fault.EngineError},
		"zipped": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(400)
			_, _ = io.WriteString(w, "no gzip")
		}, 400, fault.InvalidRequest},
		"no JSON": {func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "<html>") }, 502, fault.EngineError},
		"an error": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"type":"error","error":{"message":"no"}}`)
		}, 502, fault.EngineError},
		"breaks": {func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, 502, fault.EngineError},
		"breaks late": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "99")
			_, _ = io.WriteString(w, "{")
		}, 502, fault.EngineError},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(c.answer)
			server.Config.ErrorLog = nil
			server.Start()
			defer server.Close()
			r := run(t, Config{Upstreams: []engine.UpstreamConfig{{Name: "theirs", URL: server.URL + "/v1", Dialect: "chat", Key: upstreamKey, Models: []fleet.ModelID{"big-model"}}}})
			resp := r.post("/v1/responses", `{"model":"big-model","input":"hi"}`)
			text := read(t, resp.Body)
			if resp.StatusCode != c.status || !strings.Contains(text, string(c.code)) {
				t.Errorf("%d %s", resp.StatusCode, text)
			}
			r.keyless(text)
		})
	}
	assert.Equal(t, elsewhere.Load(), 0, "a redirect was followed")
}

// A stream that breaks off or is malformed ends with the dialect's own error event and
// without an end marker.
func TestUpstreamStreamsGoWrong(t *testing.T) {
	for _, c := range []struct{ dialect, path, end string }{
		{"responses", "/v1/responses", "response.completed"},
		{"messages", "/v1/messages", "message_stop"},
	} {
		for name, b := range map[string]enginetest.Behaviour{
			"cut":     {Fault: enginetest.Cut, After: 2},
			"garbage": {Raw: []string{"event: x\ndata: {\"type\":\"x\"}\n\n", "data: {\"type\":\n\n"}},
			"error":   {Raw: []string{"event: x\ndata: {\"type\":\"x\"}\n\n", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"}},
			"done":    {Raw: []string{"event: x\ndata: {\"type\":\"x\"}\n\n", "data: [DONE]\n\n"}},
		} {
			t.Run(c.dialect+" "+name, func(t *testing.T) {
				e := service(t, "big-model")
				e.Set(b)
				config := upstream(e, c.dialect)
				config.Models = []fleet.ModelID{"big-model"}
				r := run(t, Config{Upstreams: []engine.UpstreamConfig{config}})
				req, _ := http.NewRequest(http.MethodPost, r.base()+c.path, strings.NewReader(`{"model":"big-model","stream":true}`))
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Anthropic-Version", "2023-06-01")
				resp := assert.Value(http.DefaultClient.Do(req))(t)
				defer resp.Body.Close()
				text, _ := io.ReadAll(resp.Body) // it is cut after the error
				if !strings.Contains(string(text), "event: error\ndata: {\"type\":\"error\",") || !strings.Contains(string(text), "engine_error") ||
					strings.Contains(string(text), c.end) || strings.Contains(string(text), "[DONE]") {
					t.Errorf("%d %s", resp.StatusCode, text)
				}
			})
		}
	}
}

// A service that refuses the key, or lists nothing, is not offered; status says
// why, and it is offered again later.
func TestUpstreamListing(t *testing.T) {
	e := service(t, "big-model")
	wrong := upstream(e, "chat")
	wrong.Key = "sk-canary-wrong"
	r := run(t, Config{Upstreams: []engine.UpstreamConfig{wrong}})
	r.await("refused", func(s Status) bool { return strings.Contains(s.Engines[len(s.Engines)-1].Why, "refuses the key") })
	assert.Equal(t, len(r.listed()), 0, "listed", r.listed())
	r.keyless()

	address := strings.TrimPrefix(e.URL(), "http://")
	e.Close()
	r = run(t, Config{Upstreams: []engine.UpstreamConfig{upstream(e, "chat")}})
	r.await("away", func(s Status) bool { return s.Engines[len(s.Engines)-1].Why == "nothing listens there" })
	assert.OK(t, e.Listen(address))
	r.checkUpstreams(t.Context())
	if got := r.listed(); !slices.Equal(got, []string{"big-model"}) {
		t.Errorf("after it came back: %v", got)
	}
}

// TestReloadLooksAtUpstreams: a reload does not wait for the minute in which an upstream
// that failed is asked again.
func TestReloadLooksAtUpstreams(t *testing.T) {
	e := service(t, "big-model")
	address := strings.TrimPrefix(e.URL(), "http://")
	e.Close()
	r := run(t, Config{Upstreams: []engine.UpstreamConfig{upstream(e, "chat")}})
	r.await("away", func(s Status) bool { return s.Engines[len(s.Engines)-1].Why == "nothing listens there" })
	assert.OK(t, e.Listen(address))
	began := time.Now()
	assert.OK(t, r.Reload(t.Context(), Config{}))
	r.await("back", func(s Status) bool { return s.Engines[len(s.Engines)-1].Models == 1 })
	if took := time.Since(began); took > upstreamRetryInterval/2 {
		t.Errorf("back after %v", took)
	}
}

// A server without a trusted certificate gets no key.
func TestUpstreamCertificate(t *testing.T) {
	var calls atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	defer server.Close()
	r := run(t, Config{Upstreams: []engine.UpstreamConfig{{Name: "theirs", URL: server.URL + "/v1", Dialect: "chat", Key: upstreamKey, Models: []fleet.ModelID{"m"}}}})
	resp := r.post("/v1/chat/completions", strings.Replace(chat(false), "test-model", "m", 1))
	if text := read(t, resp.Body); resp.StatusCode != 503 || calls.Load() != 0 {
		t.Errorf("%d %s, %d calls", resp.StatusCode, text, calls.Load())
	}
	r.keyless()
}
