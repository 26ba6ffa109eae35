package daemon

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/tunnel"
)

const question = `{"model":"test-model","messages":[{"role":"user","content":"one two three"}]}`

// A machine counts for whom it would serve, and says why not as it does there.
func TestTokenize(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	_, _, l := joined(t, Config{}, e)
	ask := func(body string, caller string) (int, tunnel.Refusal, string) {
		t.Helper()
		resp := l.served(tunnel.PathTokenize, body, tunnel.HeaderCaller, caller)
		return resp.StatusCode, tunnel.Refusal(resp.Header.Get(tunnel.HeaderRefused)), read(t, resp.Body)
	}
	if status, refused, text := ask(question, "shared bob"); status != 200 || refused != "" || text != `{"tokens":5}` {
		t.Errorf("%d %s %s", status, refused, text)
	}
	// For a stranger's prompt the engine is told to keep nothing; it runs nothing.
	if counts := e.Counts(); counts.Runs != 0 {
		t.Errorf("%+v", counts)
	}
	yes, no, shut := true, false, closedNow()
	for _, c := range []struct {
		what    string
		control tunnel.Control
		body    string
		caller  string
		status  int
		refused tunnel.Refusal
	}{
		{"another model", tunnel.Control{}, strings.Replace(question, "test-model", "none", 1), "own ada", 503, tunnel.RefusedUnknownModel},
		{"not JSON", tunnel.Control{}, "{", "own ada", 400, ""},
		{"too large", tunnel.Control{}, strings.Replace(question, "one", strings.Repeat("x", tunnel.MaxTokenize), 1), "own ada", 413, ""},
		{"a URL", tunnel.Control{}, `{"model":"test-model","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://10.0.0.1/"}}]}]}`, "own ada", 400, ""},
		{"paused", tunnel.Control{Paused: &yes}, question, "own ada", 503, tunnel.RefusedPaused},
		{"out of hours", tunnel.Control{Paused: &no, Hours: &shut}, question, "shared bob", 503, tunnel.RefusedHours},
		{"out of hours, the owner", tunnel.Control{}, question, "own ada", 200, ""},
	} {
		if c.control != (tunnel.Control{}) {
			if err := l.Control(t.Context(), c.control); err != nil {
				t.Fatal(err)
			}
		}
		if status, refused, text := ask(c.body, c.caller); status != c.status || refused != c.refused {
			t.Errorf("%s: %d %s %s", c.what, status, refused, text)
		}
	}

	// Two at once, and no more.
	asked := make(chan struct{}, countersAtOnce+1)
	e.Script(func(enginetest.Call) enginetest.Behaviour {
		asked <- struct{}{}
		return enginetest.Behaviour{Fault: enginetest.Hang}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, countersAtOnce)
	for range countersAtOnce {
		go func() {
			resp, err := l.call(ctx, tunnel.PathTokenize, question, tunnel.HeaderCaller, "own ada")
			if err == nil {
				resp.Body.Close()
			}
			ended <- err
		}()
	}
	for range countersAtOnce {
		<-asked
	}
	if status, refused, _ := ask(question, "own ada"); status != 503 || refused != tunnel.RefusedBusy {
		t.Errorf("a third: %d %s", status, refused)
	}
	cancel()
	for range countersAtOnce {
		<-ended
	}
}

// An engine without a tokenizer is said to have none, by an answer that no
// daemon gives that has never heard of the route.
func TestTokenizeWithout(t *testing.T) {
	_, _, l := joined(t, Config{}, enginetest.New(enginetest.Ollama, enginetest.Options{}))
	if resp := l.served(tunnel.PathTokenize, question); resp.StatusCode != http.StatusNotImplemented {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// On the local surface an engine here counts, or an upstream of the messages
// dialect, which is given the bytes as they are.
func TestLocalCountTokens(t *testing.T) {
	here, there := enginetest.New(enginetest.VLLM, enginetest.Options{}), service(t, "big-model")
	deaf := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "deaf"}}})
	r := run(t, Config{Upstreams: []engine.UpstreamConfig{upstream(there, "messages")}}, here, deaf)
	r.await("listed", func(s Status) bool { return len(s.Models) == 3 })
	for model, want := range map[string]string{"test-model": `{"input_tokens":5}`, "big-model": `{"input_tokens":5}`, "deaf": "", "none": ""} {
		body := strings.Replace(question, "test-model", model, 1)
		req, err := http.NewRequest(http.MethodPost, r.base()+"/v1/messages/count_tokens", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Anthropic-Version", "2023-06-01")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text := read(t, resp.Body)
		resp.Body.Close()
		estimate := resp.Header.Get("X-Kith-Estimate") == "true"
		if resp.StatusCode != 200 || estimate != (want == "") || want != "" && text != want {
			t.Errorf("%s: %d %s, estimate %v", model, resp.StatusCode, text, estimate)
		}
	}
	if last := there.Last(); string(last.Body) != strings.Replace(question, "test-model", "big-model", 1) || last.Header.Get("X-Api-Key") != upstreamKey {
		t.Errorf("%s %v", last.Body, last.Header)
	}
	r.keyless()
}
