package daemon

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// TestReload: the settings that can change do, for the hub and for programs here, and
// a running call continues.
func TestReload(t *testing.T) {
	first := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Slots: 2, Behaviour: enginetest.Behaviour{Fault: enginetest.Hang, After: 1}})
	second := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "other"}}})
	assert.OK(t, second.Start())
	t.Cleanup(func() { second.Close() })
	r, _, l := joined(t, Config{Sharing: Sharing{Hours: ""}}, first)
	firstFrame(t, l.served("/v1/chat/completions", chat(true)).Body)
	firstFrame(t, r.post("/v1/chat/completions", chat(true)).Body)

	next := Config{
		Discovery: engine.Config{Endpoints: []string{first.URL(), second.URL()}},
		Sharing:   Sharing{Hours: "Mon-Sun 00:00-24:00", Timezone: "UTC", Slots: 7},
		Models:    []fleet.ModelID{"other"}, Groups: []string{"lab"},
		Rate: gateway.Rate{PerSecond: 0.001, Burst: 1},
	}
	assert.OK(t, r.Reload(t.Context(), next))
	l.until("reloaded", func(ad tunnel.Advertisement) bool {
		return ad.Slots == 7 && ad.Hours == "Mon-Sun 00:00-24:00" && len(ad.Groups) == 1 && len(ad.Models) == 1 && ad.Models[0].ID == "other"
	})
	if s := r.Status(); len(s.Models) != 2 || s.Groups[0] != "lab" || s.Routed != 1 || s.Own != 1 {
		t.Errorf("after the reload: %+v", s)
	}
	r.post("/v1/chat/completions", strings.Replace(chat(false), "test-model", "other", 1)) // the one that the new rate allows
	if got := r.post("/v1/chat/completions", chat(false)); got.StatusCode != http.StatusTooManyRequests {
		t.Errorf("over the new rate: %d", got.StatusCode)
	}

	// No more for others: none begins, and the one that runs is left alone.
	next.Unshared = true
	assert.OK(t, r.Reload(t.Context(), next))
	l.until("closed", func(ad tunnel.Advertisement) bool { return ad.Paused })
	refused := l.served("/v1/chat/completions", strings.Replace(chat(false), "test-model", "other", 1))
	if got := tunnel.Refusal(refused.Header.Get(tunnel.HeaderRefused)); got != tunnel.RefusedPaused {
		t.Errorf("a call of the hub's was met with %q", got)
	}
	if c := first.Counts(); c.Cancelled != 0 {
		t.Errorf("calls were dropped: %+v", c)
	}

	// What cannot be is refused, and all stays.
	for _, bad := range []Config{{Sharing: Sharing{Hours: "never"}}, {Discovery: engine.Config{Endpoints: []string{"::"}}}} {
		if err := r.Reload(t.Context(), bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	if s := r.Status(); s.Sharing.Slots != 7 || len(s.Models) != 2 {
		t.Errorf("a refused reload changed %+v", s)
	}
}

// A tunnel that the configuration kept closed opens with it.
func TestReloadOpensTheLine(t *testing.T) {
	h := newHub(t)
	home := shortHome(t)
	h.signIn(home)
	r := run(t, Config{Home: home, Unshared: true})
	r.await("not shared", func(s Status) bool { return s.Tunnel.State == TunnelUnshared })
	assert.OK(t, r.Reload(t.Context(), Config{}))
	h.connected()
}

func TestReloadOverTheSocket(t *testing.T) {
	ask := func(r *rig) (int, string) {
		resp := post(t, r.socket(), "http://localhost/reload", "")
		return resp.StatusCode, read(t, resp.Body)
	}
	if status, text := ask(run(t, Config{})); status != 400 || !strings.Contains(text, `"this daemon was started without a configuration file"`) { // the command says what it cannot do
		t.Errorf("%d %s", status, text)
	}
	answer, trouble := ReloadResult{Applied: []string{"share.slots"}, Restart: []string{}}, error(nil)
	r := run(t, Config{ReloadConfig: func(context.Context) (ReloadResult, error) { return answer, trouble }})
	if status, text := ask(r); status != 200 || text != `{"applied":["share.slots"],"restart":[]}` {
		t.Errorf("%d %s", status, text)
	}
	trouble = errors.New("cannot use it")
	if status, text := ask(r); status != 400 || !strings.Contains(text, "cannot use it") {
		t.Errorf("%d %s", status, text)
	}
}
