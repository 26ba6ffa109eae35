package engine

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
)

// An engine of one thread answers nothing else during a stream. It keeps its models: during
// a call of ours, and, as busy, while another program uses it. A refused connection
// withdraws them, as does silence for busyLimit; then its return is looked for soon.
func TestEngineOfOneThread(t *testing.T) {
	t.Parallel()
	double := enginetest.New(enginetest.Plain, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}})
	var thread sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		thread.Lock()
		defer thread.Unlock()
		double.ServeHTTP(w, r)
	}))
	defer server.Close()
	f := finder(t, Config{Endpoints: []string{server.URL}})
	offered := func(what string, want bool, others int) {
		t.Helper()
		for range 3 {
			f.ProbeAgain(t.Context())
			if got := len(f.Engines()) == 1; got != want || f.Report()[0].Others != others {
				t.Errorf("%s: offered %v, %d calls of others, want %v, %d", what, got, f.Report()[0].Others, want, others)
			}
		}
	}
	offered("idle", true, 0)

	double.Set(enginetest.Behaviour{Fault: enginetest.Hang, After: 1})
	e := f.Engines()[0]
	resp, err := e.Do(t.Context(), Request{
		Endpoint: fleet.ChatCompletions, Model: "m", Stream: true, Body: []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`),
	})
	assert.OK(t, err)
	_, _ = io.ReadFull(resp.Body, make([]byte, 1))
	offered("during a call of ours", true, 0)
	resp.Body.Close()
	double.Set(enginetest.Behaviour{})

	thread.Lock() // another program's call
	offered("used by another program", true, 1)
	f.addresses[0].answeredAt = time.Now().Add(-busyLimit)
	f.ProbeAgain(t.Context())
	offered("silent for long", false, 0)
	assert.That(t, f.Restarting(), "its return is not looked for")
	thread.Unlock()
	offered("back", true, 0)
	assert.That(t, !f.Restarting(), "it is back, and looked for")

	server.Close()
	f.ProbeAgain(t.Context())
	offered("ended", false, 0)
	if why := f.Report()[0].Why; !strings.Contains(why, NothingListens) || !f.Restarting() {
		t.Errorf("ended: %s; looked for: %v", why, f.Restarting())
	}
}
