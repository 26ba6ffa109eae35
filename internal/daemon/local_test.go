package daemon

import (
	"context"
	"encoding/json/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// A local call is served by the engine here with its complete body.
func TestLocalCall(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	r := run(t, Config{}, e)

	resp := r.post("/v1/chat/completions", strings.Replace(chat(false), "{", `{"n_probs":3,`, 1))
	if text := read(t, resp.Body); resp.StatusCode != 200 || !strings.Contains(text, "one two three") {
		t.Fatalf("status %d, body %s", resp.StatusCode, text)
	}
	assert.That(t, resp.Header.Get("X-Correlation-ID") != "", "no correlation id")
	assert.Contains(t, string(e.Last().Body), `"n_probs":3`, "the owner's own field did not reach the engine")

	resp = r.post("/v1/chat/completions", chat(true))
	if text := read(t, resp.Body); resp.StatusCode != 200 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Fatalf("status %d, body %s", resp.StatusCode, text)
	}
	if _, own := r.admission.running(""); own != 0 {
		t.Errorf("%d local calls are still counted", own)
	}
}

// What each failure of an engine means to a local caller who is not signed in.
func TestLocalEngineFailures(t *testing.T) {
	for name, c := range map[string]struct {
		behaviour enginetest.Behaviour
		status    int
		code      fault.Code
		says      string
	}{
		"400":      {enginetest.Behaviour{Status: 400}, 400, fault.InvalidRequest, "an error that was asked for"},
		"422":      {enginetest.Behaviour{Status: 422}, 400, fault.InvalidRequest, "an_engine_code"},
		"401":      {enginetest.Behaviour{Status: 401}, 502, fault.EngineError, "401"},
		"403":      {enginetest.Behaviour{Status: 403}, 502, fault.EngineError, "403"},
		"404":      {enginetest.Behaviour{Status: 404}, 404, fault.ModelNotFound, "has not loaded it"},
		"429":      {enginetest.Behaviour{Status: 429}, 503, fault.CapacityFull, "busy"},
		"503":      {enginetest.Behaviour{Status: 503}, 503, fault.CapacityFull, "busy"},
		"500":      {enginetest.Behaviour{Status: 500}, 502, fault.EngineError, "500"},
		"dies":     {enginetest.Behaviour{Fault: enginetest.Die}, 502, fault.EngineError, "cut off"},
		"nonsense": {enginetest.Behaviour{Answer: "<html>"}, 502, fault.EngineError, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, Config{}, enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: c.behaviour}))
			got := faultIn(t, r.post("/v1/chat/completions", chat(false)))
			if got.Status != c.status || got.Code != string(c.code) || !strings.Contains(got.Message, c.says) {
				t.Errorf("got %+v, want %d %s that says %q", got, c.status, c.code, c.says)
			}
			if _, own := r.admission.running(""); own != 0 {
				t.Errorf("%d local calls are still counted", own)
			}
		})
	}
}

// An engine that cannot be reached gives the family's code for a busy machine.
func TestLocalEngineUnreachable(t *testing.T) {
	models := []engine.Model{
		{ID: "test-model", Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, Slots: 1},
		{ID: "vectors", Families: []fleet.Family{fleet.Embeddings}, Endpoints: []fleet.Endpoint{fleet.EmbeddingsEndpoint}, Slots: 1},
	}
	r := run(t, Config{Own: []*engine.Engine{engine.Builtin("kith", noWay{}, engine.BuiltinState{Models: models})}})
	if got := faultIn(t, r.post("/v1/chat/completions", chat(false))); got.Status != 503 || got.Code != string(fault.CapacityFull) {
		t.Errorf("chat: %+v", got)
	}
	if got := faultIn(t, r.post("/v1/embeddings", `{"model":"vectors","input":"x"}`)); got.Status != 503 || got.Code != string(fault.CascadeExhausted) {
		t.Errorf("embeddings: %+v", got)
	}
}

// A stream that breaks ends in an error frame and without an end mark.
func TestLocalStreamBreaks(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Fault: enginetest.Die, After: 1}})
	r := run(t, Config{}, e)
	resp := r.post("/v1/chat/completions", chat(true))
	text := make([]byte, 1<<16)
	n := 0
	for {
		m, err := resp.Body.Read(text[n:])
		if n += m; err != nil {
			break // an unclean end is what HTTP itself says of it
		}
	}
	if got := string(text[:n]); !strings.Contains(got, `"code":"engine_error"`) || strings.Contains(got, "[DONE]") {
		t.Errorf("got %s", got)
	}
	r.await("idle", func(s Status) bool { return s.Own == 0 })
}

// Nothing at all: the words of a build without an engine are part of the contract.
func TestNothingToServe(t *testing.T) {
	r := run(t, Config{})
	for _, path := range []string{"/v1/chat/completions", "/v1/embeddings", "/v1/responses"} {
		if got := faultIn(t, r.post(path, `{"model":"m","input":"x","messages":[]}`)); got.Status != 404 || got.Code != "model_not_found" {
			t.Errorf("%s with an engine that has no model: %+v", path, got)
		}
	}
	r = run(t, Config{NoBackend: true})
	got := faultIn(t, r.post("/v1/chat/completions", chat(false)))
	if want := (decodedFault{503, "no_inference_backend", "no inference backend compiled in", ""}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	resp := assert.Value(http.Get(r.base() + "/v1/models"))(t)
	defer resp.Body.Close()
	if text := read(t, resp.Body); resp.StatusCode != 200 || !strings.Contains(text, `"data":[]`) {
		t.Errorf("models: %d %s", resp.StatusCode, text)
	}
}

// The errors for what nothing here serves and is not sent to a hub, by endpoint.
func TestNotFoundHere(t *testing.T) {
	r := run(t, Config{}, enginetest.New(enginetest.Plain, enginetest.Options{}))
	for endpoint, want := range map[fleet.Endpoint]fault.Code{
		fleet.ChatCompletions:    fault.ModelNotFound,
		fleet.EmbeddingsEndpoint: fault.ModelNotFound,
		fleet.Responses:          fault.ModelNotFound,
		fleet.Transcriptions:     fault.InvalidRequest,
	} {
		_, err := r.Do(t.Context(), &gateway.Call{Endpoint: endpoint, Model: "other"})
		if got := fault.Of(err); got.Code != want {
			t.Errorf("%s: got %v, want %s", endpoint, got, want)
		}
	}
	// A local model is not served for responses either.
	if _, err := r.Do(t.Context(), &gateway.Call{Endpoint: fleet.Responses, Model: "test-model"}); fault.Of(err).Code != fault.ModelNotFound {
		t.Errorf("responses for a local model: %v", err)
	}
}

// The listing is what this daemon serves, ids verbatim, each once, whichever
// engine has it; the built-in engine goes before those found.
func TestLocalModels(t *testing.T) {
	found := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Models: []enginetest.Model{{ID: "org/Model:7b"}}})
	inner := enginetest.New(enginetest.Plain, enginetest.Options{Models: []enginetest.Model{{ID: "tiny"}, {ID: "org/Model:7b"}}})
	model := func(id fleet.ModelID) engine.Model {
		return engine.Model{ID: id, Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, ContextLength: 256, Slots: 1}
	}
	r := run(t, Config{Own: []*engine.Engine{builtinOf(inner, model("tiny"), model("org/Model:7b"))}}, found)
	models := assert.Value(r.Models(t.Context(), fleet.Caller{}))(t)
	if len(models) != 2 || models[0].ID != "org/Model:7b" || models[1].ID != "tiny" || models[0].Via != fleet.Own {
		t.Errorf("got %+v", models)
	}
	read(t, r.post("/v1/chat/completions", strings.Replace(chat(false), "test-model", "org/Model:7b", 1)).Body)
	if inner.Counts().Runs != 1 || found.Counts().Runs != 0 {
		t.Errorf("built-in ran %d, found ran %d", inner.Counts().Runs, found.Counts().Runs)
	}
	if s := r.Status(); len(s.Engines) != 2 || s.Engines[0].Kind != "builtin" && s.Engines[0].Name != "built-in" {
		t.Errorf("status names %+v", s.Engines)
	}
}

// A built-in engine that takes its time to start is served once it is there.
func TestBuiltinComesLater(t *testing.T) {
	inner := enginetest.New(enginetest.Plain, enginetest.Options{Models: []enginetest.Model{{ID: "tiny"}}})
	r := run(t, Config{}, enginetest.New(enginetest.LlamaCpp, enginetest.Options{Models: []enginetest.Model{{ID: "found"}}}))
	changed := r.offers.watch()
	r.OfferOwn([]*engine.Engine{builtinOf(inner, engine.Model{ID: "tiny", Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, Slots: 1})})
	<-changed // what the tunnel waits for, too
	read(t, r.post("/v1/chat/completions", strings.Replace(chat(false), "test-model", "tiny", 1)).Body)
	if models, err := r.Models(t.Context(), fleet.Caller{}); err != nil || len(models) != 2 || inner.Counts().Runs != 1 {
		t.Errorf("%+v %v; the built-in engine ran %d", models, err, inner.Counts().Runs)
	}
}

// While the built-in engine starts, its models are not listed, and a call of one is refused
// with a code that clients try again. A model that it does not have is not found.
func TestBuiltinStarts(t *testing.T) {
	why := "the built-in engine is starting"
	r := run(t, Config{Own: []*engine.Engine{engine.Starting("kith", []fleet.ModelID{"tiny", "small"}, func() string { return why })}})
	if models, err := r.Models(t.Context(), fleet.Caller{}); err != nil || len(models) > 0 {
		t.Errorf("it lists %v (%v)", models, err)
	}
	for _, model := range []string{"tiny", "small"} {
		want := decodedFault{503, "CAPACITY_FULL", strconv.Quote(model) + " is not served yet: " + why + "; try again", ""}
		answer := r.post("/v1/chat/completions", strings.Replace(chat(false), "test-model", model, 1))
		if got := faultIn(t, answer); got != want || answer.Header.Get("Retry-After") == "" {
			t.Errorf("got %+v, Retry-After %q; want %+v", got, answer.Header.Get("Retry-After"), want)
		}
	}
	if got := faultIn(t, r.post("/v1/chat/completions", chat(false))); got.Code != "model_not_found" {
		t.Errorf("another model: %+v", got)
	}
	if got := faultIn(t, r.post("/v1/embeddings", `{"model":"tiny","input":"x"}`)); got.Status != 503 || got.Code != "CASCADE_EXHAUSTED" {
		t.Errorf("embeddings: %+v", got)
	}
	if got := faultIn(t, r.post("/v1/messages", `{"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"x"}]}`)); got.Status != 503 {
		t.Errorf("messages: %+v", got)
	}
	if got := faultIn(t, r.post("/v1/responses", `{"model":"tiny","input":"x"}`)); got.Status != 404 || !strings.Contains(got.Message, "/v1/chat/completions") {
		t.Errorf("responses, which it does not serve: %+v", got)
	}
	want := []EngineStatus{{Place: "http://builtin", Kind: "builtin", Name: "kith", Models: 2, Why: why}}
	assert.Same(t, r.Status().Engines, want)
}

// The owner's calls go beyond the slots into the engine's own queue, are
// counted as local load, and end at the engine within 2 s of the caller's disconnect.
func TestLocalLoadAndCancel(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Slots: 1, Behaviour: enginetest.Behaviour{Fault: enginetest.Hang, After: 1}})
	r := run(t, Config{}, e)
	ctx, leave := context.WithCancel(t.Context())
	for range 3 {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base()+"/v1/chat/completions", strings.NewReader(chat(true)))
		assert.OK(t, err)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		assert.OK(t, err)
		defer resp.Body.Close()
		firstFrame(t, resp.Body)
	}
	if s := r.Status(); s.Own != 3 || s.Slots != 1 {
		t.Errorf("%d own calls of %d slots, want 3 of 1", s.Own, s.Slots)
	}
	if ad, _ := r.advertise(); ad.Local != 3 || ad.Free != 0 || ad.Models[0].Local != 3 || ad.Models[0].Free != 0 {
		t.Errorf("advertised %+v", ad)
	}
	leave()
	soon, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := e.Wait(soon, func(c enginetest.Counts) bool { return c.Cancelled == 3 }); err != nil {
		t.Errorf("the engine computes on: %+v", e.Counts())
	}
	r.await("idle", func(s Status) bool { return s.Own == 0 })
}

// Web pages are kept off every path.
func TestGuard(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{})
	r := run(t, Config{}, e)
	for name, set := range map[string]func(*http.Request){
		"a foreign origin": func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		"a rebound name":   func(r *http.Request) { r.Host = "evil.example" },
		"another port":     func(r *http.Request) { r.Host = "127.0.0.1:1" },
		"a page's image":   func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
	} {
		req, err := http.NewRequest(http.MethodPost, r.base()+"/v1/chat/completions", strings.NewReader(chat(false)))
		assert.OK(t, err)
		req.Header.Set("Content-Type", "application/json")
		set(req)
		resp, err := http.DefaultClient.Do(req)
		assert.OK(t, err)
		if got := faultIn(t, resp); got.Code != string(fault.ForbiddenOrigin) {
			t.Errorf("%s: %+v", name, got)
		}
		resp.Body.Close()
	}
	assert.Equal(t, e.Counts().Runs, 0, "the engine ran")
}

// One bucket for all routes.
func TestRate(t *testing.T) {
	r := run(t, Config{Rate: gateway.Rate{PerSecond: 0.001, Burst: 2}})
	for range 2 {
		r.post("/v1/chat/completions", chat(false))
	}
	resp := r.post("/v1/completions", "{}")
	if got := faultIn(t, resp); got.Status != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("got %+v, Retry-After %q", got, resp.Header.Get("Retry-After"))
	}
}

// Nothing of a prompt or an answer is in the log.
func TestLogHoldsNoContent(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{})
	r := run(t, Config{}, e)
	for _, status := range []int{0, 400, 500, 503, 404} {
		e.Set(enginetest.Behaviour{Status: status, Text: "canaryanswer"})
		body, err := json.Marshal(map[string]any{"model": "test-model", "messages": []any{map[string]any{"role": "user", "content": "canaryprompt"}}})
		assert.OK(t, err)
		read(t, r.post("/v1/chat/completions", string(body)).Body)
	}
	r.end()
	if text := r.log.String(); strings.Contains(text, "canary") || !strings.Contains(text, "test-model") {
		t.Errorf("the log: %s", text)
	}
}
