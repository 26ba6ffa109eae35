package daemon

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

const question = `{"model":"test-model","messages":[{"role":"user","content":"one two three"}]}`

// A machine counts tokens for those whose calls it would serve, and refuses the others
// in the same way.
func TestTokenize(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	r, _, l := joined(t, Config{Sharing: Sharing{Timezone: "UTC"}}, e)
	ask := func(body string, caller string) (int, tunnel.Refusal, string) {
		t.Helper()
		resp := l.served(tunnel.PathTokenize, body, tunnel.HeaderCaller, caller)
		return resp.StatusCode, tunnel.Refusal(resp.Header.Get(tunnel.HeaderRefused)), read(t, resp.Body)
	}
	if status, refused, text := ask(question, "shared bob"); status != 200 || refused != "" || text != `{"tokens":5}` {
		t.Errorf("%d %s %s", status, refused, text)
	}
	// For another member's prompt the engine is asked to keep nothing; it runs nothing.
	if counts := e.Counts(); counts.Runs != 0 {
		t.Errorf("%+v", counts)
	}
	yes, no, shut := true, false, closedNow()
	for _, c := range []struct {
		what    string
		control fleet.Control
		body    string
		caller  string
		status  int
		refused tunnel.Refusal
	}{
		{"another model", fleet.Control{}, strings.Replace(question, "test-model", "none", 1), "own ada", 503, tunnel.RefusedUnknownModel},
		{"not JSON", fleet.Control{}, "{", "own ada", 400, ""},
		{"too large", fleet.Control{}, strings.Replace(question, "one", strings.Repeat("x", tunnel.MaxTokenize), 1), "own ada", 413, ""},
		{"a URL", fleet.Control{}, `{"model":"test-model","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://10.0.0.1/"}}]}]}`, "own ada", 400, ""},
		{"paused", fleet.Control{Paused: &yes}, question, "own ada", 503, tunnel.RefusedPaused},
		{"out of hours", fleet.Control{Paused: &no, Hours: &shut}, question, "shared bob", 503, tunnel.RefusedHours},
		{"out of hours, the owner", fleet.Control{}, question, "own ada", 200, ""},
	} {
		if c.control != (fleet.Control{}) {
			assert.OK(t, tunnel.SendControl(t.Context(), l, c.control))
		}
		if status, refused, text := ask(c.body, c.caller); status != c.status || refused != c.refused {
			t.Errorf("%s: %d %s %s", c.what, status, refused, text)
		}
	}

	// At most two at once; the owner's are counted separately.
	asked, hanging := make(chan struct{}, maxCounts), 0
	e.Script(func(enginetest.Call) enginetest.Behaviour { // one at a time
		if hanging == maxCounts {
			return enginetest.Behaviour{}
		}
		hanging++
		asked <- struct{}{}
		return enginetest.Behaviour{Fault: enginetest.Hang}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, maxCounts)
	for range maxCounts {
		go func() {
			resp, err := l.call(ctx, tunnel.PathTokenize, question, tunnel.HeaderCaller, "own ada")
			if err == nil {
				resp.Body.Close()
			}
			ended <- err
		}()
	}
	for range maxCounts {
		<-asked
	}
	if status, refused, _ := ask(question, "own ada"); status != 503 || refused != tunnel.RefusedBusy {
		t.Errorf("a third: %d %s", status, refused)
	}
	if status, text, estimate := r.countHere(question); status != 200 || text != `{"input_tokens":5}` || estimate {
		t.Errorf("the owner's: %d %s, estimate %v", status, text, estimate)
	}
	cancel()
	for range maxCounts {
		<-ended
	}
}

// An engine without a tokenizer gives a status of its own.
func TestTokenizeWithout(t *testing.T) {
	_, _, l := joined(t, Config{}, enginetest.New(enginetest.Ollama, enginetest.Options{}))
	assert.Equal(t, l.served(tunnel.PathTokenize, question).StatusCode, http.StatusNotImplemented, "status")
}

// While local calls use the engines nothing is counted for the hub, and a count has a
// timeout.
func TestTokenizeGivesWay(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(enginetest.VLLM, enginetest.Options{})
		d, l := falseTime(t, Config{Home: home, PowerPolicy: PowerPolicy{Yield: true}}, double)
		defer l.leave()
		ask := func() (status int, refused string, took time.Duration) {
			began := time.Now()
			resp := l.served(tunnel.PathTokenize, question)
			return resp.StatusCode, resp.Header.Get(tunnel.HeaderRefused), time.Since(began)
		}
		if status, refused, _ := ask(); status != 200 {
			t.Errorf("%d %s", status, refused)
		}
		double.Set(enginetest.Behaviour{Fault: enginetest.Hang})
		if status, refused, took := ask(); status != 503 || refused != "" || took != countTimeout {
			t.Errorf("an engine that hangs: %d %s after %v", status, refused, took)
		}
		double.Set(enginetest.Behaviour{})
		local(t, d, chat(false))
		if status, refused, _ := ask(); status != 503 || refused != string(tunnel.RefusedBusy) {
			t.Errorf("just after the owner's call: %d %s", status, refused)
		}
	})
}

// countHere asks the local surface how long a prompt is.
func (r *rig) countHere(body string) (status int, text string, estimate bool) {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodPost, r.base()+"/v1/messages/count_tokens", strings.NewReader(body))
	assert.OK(r.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Anthropic-Version", "2023-06-01")
	resp, err := http.DefaultClient.Do(req)
	assert.OK(r.t, err)
	defer resp.Body.Close()
	return resp.StatusCode, read(r.t, resp.Body), resp.Header.Get("X-Kith-Estimate") == "true"
}

// On the local surface an engine here counts, or an upstream of the messages
// dialect, which is given the bytes as they are.
func TestLocalCountTokens(t *testing.T) {
	here, there := enginetest.New(enginetest.VLLM, enginetest.Options{}), service(t, "big-model")
	deaf := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "deaf"}}})
	r := run(t, Config{Upstreams: []engine.UpstreamConfig{upstream(there, "messages")}}, here, deaf)
	r.await("listed", func(s Status) bool { return len(s.Models) == 3 })
	for model, want := range map[string]string{"test-model": `{"input_tokens":5}`, "big-model": `{"input_tokens":5}`, "deaf": ""} {
		status, text, estimate := r.countHere(strings.Replace(question, "test-model", model, 1))
		if status != 200 || estimate != (want == "") || want != "" && text != want {
			t.Errorf("%s: %d %s, estimate %v", model, status, text, estimate)
		}
	}
	// What no tokenizer can count is estimated, and the hub is not asked for a model of here.
	const picture = `{"model":"test-model","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0="}}]}]}`
	if status, text, estimate := r.countHere(picture); status != 200 || !estimate {
		t.Errorf("a picture: %d %s, estimate %v", status, text, estimate)
	}
	if status, text, _ := r.countHere(strings.Replace(question, "test-model", "none", 1)); status != 404 || !strings.Contains(text, `"code":"model_not_found"`) || !strings.Contains(text, `"type":"not_found_error"`) {
		t.Errorf("a model that nothing serves: %d %s", status, text)
	}
	if last := there.Last(); string(last.Body) != strings.Replace(question, "test-model", "big-model", 1) || last.Header.Get("X-Api-Key") != upstreamKey {
		t.Errorf("%s %v", last.Body, last.Header)
	}
	r.keyless()
}

// What nothing here serves is counted by the hub: its refusal of an unknown model is
// passed on, and after any other one the count is an estimate.
func TestHubCountsTokens(t *testing.T) {
	r, h := away(t, refuseWith(404, `{"type":"error","error":{"type":"not_found_error","code":"model_not_found","message":"none","param":"model"}}`))
	if status, text, _ := r.countHere(question); status != 404 || !strings.Contains(text, `"code":"model_not_found"`) {
		t.Errorf("an unknown model: %d %s", status, text)
	}
	h.does(refuseWith(200, `{"input_tokens":5}`))
	if status, text, estimate := r.countHere(question); status != 200 || text != `{"input_tokens":5}` || estimate {
		t.Errorf("a model of the hub's: %d %s, estimate %v", status, text, estimate)
	}
	h.mu.Lock()
	if last := len(h.asked) - 1; h.asked[last].URL.Path != "/v1/messages/count_tokens" || h.bodies[last] != question || h.asked[last].Header.Get("Authorization") != "Bearer kithm_here_secret" {
		t.Errorf("asked the hub at %s: %s", h.asked[last].URL.Path, h.bodies[last])
	}
	h.mu.Unlock()
	for name, answer := range map[string]http.HandlerFunc{
		"an estimate": refuseWith(200, `{"input_tokens":999}`, "X-Kith-Estimate", "true"),
		"a refusal":   refuseWith(503, `{"type":"error","error":{"code":"CASCADE_EXHAUSTED","message":"unknown just now"}}`),
		"nonsense":    refuseWith(200, `<html>`),
	} {
		h.does(answer)
		if status, text, estimate := r.countHere(question); status != 200 || !estimate || strings.Contains(text, "999") {
			t.Errorf("%s: %d %s, estimate %v", name, status, text, estimate)
		}
	}
	h.Close()
	if status, _, estimate := r.countHere(question); status != 200 || !estimate {
		t.Errorf("no hub: %d, estimate %v", status, estimate)
	}
}
