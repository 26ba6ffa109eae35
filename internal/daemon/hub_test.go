package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// away is a daemon without engines that is signed in to a hub but keeps no
// tunnel to it.
func away(t *testing.T, answer http.HandlerFunc) (*rig, *fakeHub) {
	t.Helper()
	h := newHub(t)
	h.does(answer)
	home := shortHome(t)
	h.signIn(home)
	r := run(t, Config{Home: home, Unshared: true})
	r.await("signed in", func(s Status) bool { return s.Tunnel.SignedIn })
	return r, h
}

// refuseWith answers as a hub that refuses.
func refuseWith(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

const done = "data: [DONE]\n\n"

// sayFrames answers with these frames, each flushed.
func sayFrames(frames ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Kith-Route", "shared; machine=desk; owner=bob")
		for _, f := range frames {
			io.WriteString(w, f)
			w.(http.Flusher).Flush()
		}
	}
}

// A call that nothing here serves is sent to the hub: same path, same bytes, this
// machine's credential, the caller's own wait limit.
func TestHubServes(t *testing.T) {
	const answer = `{"id":"1","object":"chat.completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`
	r, h := away(t, refuseWith(200, answer, "X-Kith-Route", "shared; machine=desk; owner=bob"))
	req, err := http.NewRequest(http.MethodPost, r.base()+"/v1/chat/completions", strings.NewReader(chat(false)))
	assert.OK(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Prefer", "wait=7")
	req.Header.Set("Authorization", "Bearer whatever-the-client-insists-on")
	resp, err := http.DefaultClient.Do(req)
	assert.OK(t, err)
	defer resp.Body.Close()
	if text := read(t, resp.Body); resp.StatusCode != 200 || text != answer {
		t.Fatalf("status %d, body %s", resp.StatusCode, text)
	}
	assert.Equal(t, resp.Header.Get("X-Kith-Route"), "shared; machine=desk; owner=bob", "X-Kith-Route")
	asked := h.asked[0]
	if h.bodies[0] != chat(false) || asked.URL.Path != "/v1/chat/completions" {
		t.Errorf("the hub got %s %s", asked.URL.Path, h.bodies[0])
	}
	for name, want := range map[string]string{"Authorization": "Bearer kithm_here_secret", "Prefer": "wait=7", "Content-Type": "application/json"} {
		assert.Equal(t, asked.Header.Get(name), want, name)
	}
	// What the account reaches is not this daemon's list.
	assert.Equal(t, len(assert.Value(r.Models(t.Context(), fleet.Caller{}))(t)), 0, "models")
}

// What local calls reach through the hub is narrowed by the configuration, also by one that
// is read again, and for one call by its header.
func TestReachOfLocalCalls(t *testing.T) {
	r, h := away(t, refuseWith(200, `{"id":"1","object":"chat.completion","choices":[]}`))
	reach := func(word string) string {
		req, err := http.NewRequest(http.MethodPost, r.base()+"/v1/chat/completions", strings.NewReader(chat(false)))
		assert.OK(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Kith-Reach", word)
		resp, err := http.DefaultClient.Do(req)
		assert.OK(t, err)
		resp.Body.Close()
		return h.asked[len(h.asked)-1].Header.Get("X-Kith-Reach")
	}
	if got, one := reach("all"), reach("own"); got != "" || one != "own" {
		t.Errorf("without a limit: %q, and %q of a call to own", got, one)
	}
	c := r.config
	c.Reach = fleet.OwnAndShared
	assert.OK(t, r.Reload(t.Context(), c))
	if all, own := reach("all"), reach("own"); all != "shared" || own != "own" {
		t.Errorf("with the limit shared: %q of a call to all, %q of one to own", all, own)
	}
}

// The hub gets the command of kith that made a call, by the key of the closed list, and
// nothing else of what programs send as a key.
func TestProgramOfLocalCalls(t *testing.T) {
	r, h := away(t, refuseWith(200, `{"id":"1","object":"chat.completion","choices":[]}`))
	for key, want := range map[string][]string{"kith-run": {"run"}, "kith-launch": {"launch"}, "kith": nil, "kith-mine": nil} {
		req := assert.Value(http.NewRequest(http.MethodPost, r.base()+"/v1/chat/completions", strings.NewReader(chat(false))))(t)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Kith-Program", "made up")
		assert.Value(http.DefaultClient.Do(req))(t).Body.Close()
		assert.Equal(t, fmt.Sprint(h.asked[len(h.asked)-1].Header["Kith-Program"]), fmt.Sprint(want), key)
	}
}

// A stream of the hub passes unchanged, with its comments and the codes of its error
// frames.
func TestHubStreams(t *testing.T) {
	const chunk = `data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}]}` + "\n\n"
	r, h := away(t, sayFrames(": waiting 2 ahead, 41 s left\n\n", chunk, done))
	resp := r.post("/v1/chat/completions", chat(true))
	assert.Equal(t, read(t, resp.Body), ": waiting 2 ahead, 41 s left\n\n"+chunk+done)

	h.does(sayFrames(chunk, `data: {"error":{"code":"machine_offline","message":"it left","type":"server_error","details":{"reason":"wait_elapsed"}}}`+"\n\n"))
	resp = r.post("/v1/chat/completions", chat(true))
	text, _ := io.ReadAll(resp.Body) // the end is unclean
	for _, want := range []string{chunk, `"code":"machine_offline"`, "it left", `"reason":"wait_elapsed"`} {
		assert.Contains(t, string(text), want, "no", text)
	}
	assert.Lacks(t, string(text), "[DONE]", "an end mark after an error", text)
}

// A hub that dies during a response causes an error, never an end marker.
func TestHubDiesMidStream(t *testing.T) {
	const chunk = `data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}]}` + "\n\n"
	r, _ := away(t, func(w http.ResponseWriter, q *http.Request) {
		sayFrames(chunk)(w, q)
		panic(http.ErrAbortHandler)
	})
	text, _ := io.ReadAll(r.post("/v1/chat/completions", chat(true)).Body)
	if got := string(text); !strings.HasPrefix(got, chunk) || !strings.Contains(got, `"code":"CASCADE_EXHAUSTED"`) || strings.Contains(got, "[DONE]") {
		t.Errorf("got %s", got)
	}
}

// The hosted codes pass; what would mislead a local caller does not.
func TestHubRefusals(t *testing.T) {
	envelope := func(code, reason string) string {
		if reason != "" {
			reason = `,"reason":"` + reason + `"`
		}
		return fmt.Sprintf(`{"error":{"code":%q,"message":"so says the hub","type":"x","param":null,"correlation_id":"req_9"%s}}`, code, reason)
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   decodedFault // Message: a part of it
		header map[string]string
	}{
		"model_not_found":       {refuseWith(404, envelope("model_not_found", "")), decodedFault{404, "model_not_found", "so says the hub", ""}, nil},
		"NOT_IN_CIRCLE":         {refuseWith(403, envelope("NOT_IN_CIRCLE", "")), decodedFault{403, "NOT_IN_CIRCLE", "so says the hub", ""}, nil},
		"machine_offline":       {refuseWith(503, envelope("machine_offline", ""), "Retry-After", "7"), decodedFault{503, "machine_offline", "so says the hub", ""}, map[string]string{"Retry-After": "7"}},
		"wait_elapsed":          {refuseWith(503, envelope("CAPACITY_FULL", "wait_elapsed"), "Retry-After", "4"), decodedFault{503, "CAPACITY_FULL", "so says the hub", "wait_elapsed"}, map[string]string{"Retry-After": "4"}},
		"outside_sharing_hours": {refuseWith(503, envelope("outside_sharing_hours", ""), "X-Should-Retry", "false"), decodedFault{503, "outside_sharing_hours", "so says the hub", ""}, map[string]string{"X-Should-Retry": "false"}},
		"rate":                  {refuseWith(429, envelope("rate_limit_exceeded", ""), "Retry-After", "2"), decodedFault{429, "rate_limit_exceeded", "so says the hub", ""}, map[string]string{"Retry-After": "2"}},
		"invalid_request":       {refuseWith(400, envelope("invalid_request", "")), decodedFault{400, "invalid_request", "so says the hub", ""}, nil},
		"engine_error":          {refuseWith(502, envelope("engine_error", "")), decodedFault{502, "engine_error", "so says the hub", ""}, nil},

		"401":             {refuseWith(401, envelope("invalid_api_key", "")), decodedFault{503, "CASCADE_EXHAUSTED", "refuses this machine's credential", ""}, nil},
		"bare 401":        {refuseWith(401, "no"), decodedFault{503, "CASCADE_EXHAUSTED", "refuses this machine's credential", ""}, nil},
		"no such route":   {refuseWith(404, envelope("route_not_found", "")), decodedFault{503, "CASCADE_EXHAUSTED", "is not a kith hub's", ""}, nil},
		"a proxy's page":  {refuseWith(502, "<html>bad gateway</html>"), decodedFault{503, "CASCADE_EXHAUSTED", "status 502", ""}, nil},
		"a redirect":      {refuseWith(302, "", "Location", "https://evil.example/"), decodedFault{503, "CASCADE_EXHAUSTED", "status 302", ""}, nil},
		"an unknown code": {refuseWith(503, envelope("made_up", "")), decodedFault{503, "CASCADE_EXHAUSTED", "is not a kith hub's", ""}, nil},
		"goes away":       {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, decodedFault{503, "CASCADE_EXHAUSTED", "cannot be reached", ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := away(t, c.answer)
			resp := r.post("/v1/chat/completions", chat(false))
			got := faultIn(t, resp)
			assert.Contains(t, got.Message, c.want.Message, "message", "does not say")
			if got.Message = c.want.Message; got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			for name, want := range c.header {
				assert.Equal(t, resp.Header.Get(name), want, name)
			}
			assert.Lacks(t, r.log.String(), "kithm_", "the credential is in the log")
		})
	}
}

// The error names a hub that does not respond.
func TestHubDead(t *testing.T) {
	r, h := away(t, nil)
	h.Close()
	got := faultIn(t, r.post("/v1/chat/completions", chat(false)))
	if got.Status != 503 || got.Code != "CASCADE_EXHAUSTED" || !strings.Contains(got.Message, "cannot be reached") {
		t.Errorf("got %+v", got)
	}
}

// A call that a busy engine does not take is sent to the hub; if the hub knows no
// other machine, the error names the engine here.
func TestEngineThenHub(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Status: 503}})
	h := newHub(t)
	home := shortHome(t)
	h.signIn(home)
	r := run(t, Config{Home: home, Unshared: true}, e)
	r.await("signed in", func(s Status) bool { return s.Tunnel.SignedIn })

	h.does(refuseWith(200, `{"choices":[]}`))
	assert.Equal(t, read(t, r.post("/v1/chat/completions", chat(false)).Body), `{"choices":[]}`)
	h.does(refuseWith(404, `{"error":{"code":"model_not_found","message":"none"}}`))
	if got := faultIn(t, r.post("/v1/chat/completions", chat(false))); got.Code != string(fault.CapacityFull) {
		t.Errorf("got %+v", got)
	}
	// An engine that denies having the model denies it for this machine alone.
	e.Set(enginetest.Behaviour{Status: 404})
	h.does(refuseWith(200, `{"choices":[]}`))
	assert.Equal(t, read(t, r.post("/v1/chat/completions", chat(false)).Body), `{"choices":[]}`, "after a 404 here")
	// What is wrong with the request is wrong everywhere.
	before := len(h.asked)
	e.Set(enginetest.Behaviour{Status: 400})
	if got := faultIn(t, r.post("/v1/chat/completions", chat(false))); got.Code != string(fault.InvalidRequest) || len(h.asked) != before {
		t.Errorf("got %+v, and the hub was asked %d times", got, len(h.asked)-before)
	}
}

// Calls of the responses dialect are never sent to the hub: only an upstream serves
// them.
func TestResponsesStayHere(t *testing.T) {
	r, h := away(t, refuseWith(200, "{}"))
	_, err := r.Do(t.Context(), &gateway.Call{Endpoint: fleet.Responses, Model: "m", Wait: -1})
	if fault.Of(err).Code != fault.ModelNotFound || len(h.asked) != 0 {
		t.Errorf("%v, hub asked %d times", err, len(h.asked))
	}
}

// A caller that disconnects ends the call at the hub.
func TestHubCancelled(t *testing.T) {
	begun, left := make(chan struct{}), make(chan struct{})
	r, _ := away(t, func(w http.ResponseWriter, q *http.Request) {
		close(begun)
		<-q.Context().Done()
		close(left)
	})
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-begun
		leave()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base()+"/v1/chat/completions", strings.NewReader(chat(false)))
	assert.OK(t, err)
	req.Header.Set("Content-Type", "application/json")
	if _, err := http.DefaultClient.Do(req); err == nil {
		t.Fatal("answered")
	}
	soon, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-left:
	case <-soon.Done():
		t.Error("the hub computes on")
	}
}
