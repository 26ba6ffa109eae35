package hub

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/api"
)

// TestDrainCountsSite: the calls of the site's pages keep a hub that drains as others do.
func TestDrainCountsSite(t *testing.T) {
	h := newRig(t, Config{})
	_, secret := h.member("ada")
	for name, call := range map[string]http.HandlerFunc{
		"a client":        h.Handler().ServeHTTP,
		"the chat":        func(w http.ResponseWriter, r *http.Request) { h.site.Call(w, r, api.Caller{Name: "ada", KeyID: "k"}) },
		"a test of a key": h.site.Edge.ServeHTTP,
	} {
		counted := 0
		r := httptest.NewRequest("POST", "/v1/chat/completions", readerFunc(func() { counted = h.Calls() }))
		r.Header.Set("Authorization", "Bearer "+secret)
		r.Header.Set("Content-Type", "application/json")
		call(httptest.NewRecorder(), r)
		if counted != 1 || h.Calls() != 0 {
			t.Errorf("%s: %d calls while it is read, %d afterwards", name, counted, h.Calls())
		}
	}
}

// TestDrainWaitsForOneMoreCall: a hub that drains ends lastCall after its last call, so
// that a connection that is open can carry one more.
func TestDrainWaitsForOneMoreCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRig(t, Config{})
		begin := func() (end func()) {
			over := make(chan struct{})
			go h.drain.counted(func(http.ResponseWriter, *http.Request) { <-over })(nil, nil)
			synctest.Wait()
			return func() { close(over); synctest.Wait() }
		}
		end, drained := begin(), make(chan struct{})
		go func() { h.Drain(t.Context(), func() {}); close(drained) }()
		for range 3 {
			time.Sleep(time.Minute)
			end()
			time.Sleep(lastCall - 2*drainCheck)
			end = begin()
		}
		time.Sleep(time.Minute)
		end()
		start := time.Now()
		<-drained
		if waited := time.Since(start); waited < lastCall-drainCheck || waited > lastCall+drainCheck {
			t.Errorf("it ended %v after its last call", waited)
		}
	})
}

// readerFunc is an empty body that calls a function when it is read.
type readerFunc func()

// Read satisfies io.Reader.
func (f readerFunc) Read([]byte) (int, error) { f(); return 0, io.EOF }
