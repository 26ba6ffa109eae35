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
	"github.com/kith/kith/internal/tunnel"
)

// The hub is notified within seconds of slots that other programs take and give back, in
// false time.
func TestSlotsOfOtherProgramsReachTheHub(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		others := enginetest.New(enginetest.LlamaCpp, enginetest.Options{
			Slots: 1, Models: []enginetest.Model{{ID: "theirs"}}, Behaviour: enginetest.Behaviour{Fault: enginetest.Hang, After: 1},
		})
		discovery := engine.Config{Endpoints: []string{"http://127.0.0.1:8080"}, Transport: others.Transport()}
		_, l := falseTime(t, Config{Home: home, Discovery: discovery}, enginetest.New(enginetest.Plain, enginetest.Options{}))
		begin := func() (end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:8080/v1/chat/completions", strings.NewReader(strings.Replace(chat(true), "test-model", "theirs", 1)))
			resp := assert.Value(others.Transport().RoundTrip(req))(t)
			return func() {
				cancel()
				resp.Body.Close()
				synctest.Wait()
			}
		}
		busy := func(what string, want bool, within time.Duration) {
			t.Helper()
			began := time.Now()
			l.until(what, func(ad tunnel.Advertisement) bool {
				m := ad.Models[1]
				return m.ID == "theirs" && (m.Local > 0 && m.Local >= m.Slots && ad.Local > 0) == want && (m.Free == 0) == want
			})
			if took := time.Since(began); took > within {
				t.Errorf("%s: notified after %v", what, took)
			}
		}
		one, two := begin(), begin()
		busy("the engine is in use", true, discoveryInterval+minDiscoveryInterval)
		one()
		two()
		busy("its slots are free", false, busyDiscoveryInterval+time.Second)
	})
}
