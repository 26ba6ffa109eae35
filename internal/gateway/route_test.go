package gateway

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// A failed call names the machines that received its prompt, like a served one: in the
// header, or in a comment if the headers had been sent.
func TestRefusalsNameWhoGotThePrompt(t *testing.T) {
	const route = "group; machine=trap; owner=eve, own; machine=box; owner=ann"
	refuses := func(after time.Duration, route string) *backend {
		return &backend{do: func(_ context.Context, call *Call) (*Answer, error) {
			time.Sleep(after)
			call.Trace.Route = route
			return nil, fault.New(fault.CapacityFull, "every machine that was tried was busy")
		}}
	}
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"m","messages":[],"stream":`,
		"/v1/messages":         `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"stream":`,
		"/v1/responses":        `{"model":"m","input":"x","store":false,"stream":`,
	} {
		for _, stream := range []string{"false", "true"} {
			w, _ := do(New(hostedConfig(refuses(0, route))), ask("POST", path, body+stream+"}", "Anthropic-Version", "2023-06-01"))
			if got := w.Header().Get("X-Kith-Route"); w.Code != 503 || got != route {
				t.Errorf("%s, stream %s: %d, route %q", path, stream, w.Code, got)
			}
		}
		synctest.Test(t, func(t *testing.T) {
			w, _ := do(New(hostedConfig(refuses(6*time.Second, route))), ask("POST", path, body+"true}", "Anthropic-Version", "2023-06-01"))
			comment := strings.Index(w.Body.String(), ": "+route+"\n\n")
			if failed := strings.Index(w.Body.String(), "CAPACITY_FULL"); w.Code != 200 || comment < 0 || failed < comment || w.Header().Get("X-Kith-Route") != "" {
				t.Errorf("%s, after the headers: %d %v\n%s", path, w.Code, w.Header(), w.Body)
			}
		})
	}
	if w, _ := do(New(hostedConfig(refuses(0, ""))), ask("POST", "/v1/chat/completions", `{"model":"m","messages":[]}`)); w.Header()["X-Kith-Route"] != nil {
		t.Errorf("none was given it: %v", w.Header())
	}
}

// Answers and refusals of the local surface show whether the call was sealed: in the header,
// or in a comment if the headers had been sent.
func TestSealedIsShown(t *testing.T) {
	after := func(wait time.Duration) *backend {
		return &backend{do: func(_ context.Context, call *Call) (*Answer, error) {
			time.Sleep(wait)
			call.Trace.Sealed = "yes"
			return nil, fault.New(fault.CapacityFull, "busy")
		}}
	}
	body := `{"model":"m","messages":[],"stream":`
	for _, stream := range []string{"false", "true"} {
		w, _ := do(New(hostedConfig(after(0))), ask("POST", "/v1/chat/completions", body+stream+"}"))
		assert.That(t, w.Code == 503 && w.Header().Get("X-Kith-Sealed") == "yes", w.Header())
	}
	synctest.Test(t, func(t *testing.T) {
		w, _ := do(New(hostedConfig(after(6*time.Second))), ask("POST", "/v1/chat/completions", body+"true}"))
		assert.That(t, strings.Count(w.Body.String(), ": sealed=yes\n\n") == 1 && w.Header()["X-Kith-Sealed"] == nil, w.Body)
	})

	// So do refusals of what never was a call.
	c := localConfig(after(0))
	c.Guard, c.Limits.Body, c.Unsent = nil, 100, func() string { return "no; reason=not_sent" }
	edge := New(c)
	for status, body := range map[int]string{400: `{`, 404: `{"model":" m","messages":[]}`, 413: strings.Repeat(" ", 101)} {
		w, _ := do(edge, ask("POST", "/v1/chat/completions", body, "Authorization", ""))
		assert.That(t, w.Code == status && w.Header().Get("X-Kith-Sealed") == "no; reason=not_sent", status, w.Code, w.Header())
	}
	w, _ := do(edge, ask("GET", "/v1/models/m", "", "Authorization", ""))
	assert.That(t, w.Header()["X-Kith-Sealed"] == nil, w.Header())
}

// A stream that broke off has already named the machine that has the prompt, once.
func TestABrokenStreamNamesWhoGotThePromptOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for wait, want := range map[time.Duration]int{0: 0, 6 * time.Second: 1} { // a header; a comment
			w, _ := play(t, hostedConfig(sends(wait, line{time.Second, frame, nil}, line{2 * time.Second, "", fault.New(fault.MachineOffline, "gone")})))
			text := strings.Join(w.notes, "|")
			if n := strings.Count(text, ": shared; machine=box"); n != want || (w.header.Get("X-Kith-Route") == "") != (want == 1) || !strings.Contains(text, "machine_offline") {
				t.Errorf("after %s: %d comments, header %v\n%s", wait, n, w.header, text)
			}
		}
	})
}
