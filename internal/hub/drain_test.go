package hub

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// TestDrainCountsSite: the calls of the site's pages keep a hub that drains as others do.
func TestDrainCountsSite(t *testing.T) {
	h := newRig(t, Config{})
	_, secret := h.member("ada")
	for name, call := range map[string]http.HandlerFunc{
		"a client":        h.Handler().ServeHTTP,
		"the chat":        func(w http.ResponseWriter, r *http.Request) { h.site.Call(w, r, fleet.Caller{Name: "ada", KeyID: "k"}) },
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

// TestDrainWaitsForOneMoreCall: a hub that drains ends lastCall after its last call,
// however short that was, so that a connection that is open can carry one more.
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
		time.Sleep(lastCall - drainCheck/2)
		begin()() // between two looks
		start := time.Now()
		<-drained
		if waited := time.Since(start); waited < lastCall || waited > lastCall+drainCheck {
			t.Errorf("it ended %v after its last call", waited)
		}
	})
}

// TestDrainEndsCalls: a hub that ends its calls waits while they end one after another,
// but not for one that never does, and not for long.
func TestDrainEndsCalls(t *testing.T) {
	const slow = 3 * lastFrames / 4
	for _, test := range []struct {
		slow, left int
		took       time.Duration
	}{{2, 1, 2*slow + lastFrames}, {20, 21 - int(allFrames/slow), allFrames}} {
		synctest.Test(t, func(t *testing.T) {
			h := newRig(t, Config{})
			stuck := make(chan struct{})
			defer synctest.Wait()
			defer close(stuck)
			for i := range test.slow {
				go h.drain.counted(func(http.ResponseWriter, *http.Request) {
					select {
					case <-time.After(time.Duration(i+1) * slow):
					case <-stuck:
					}
				})(nil, nil)
			}
			go h.drain.counted(func(http.ResponseWriter, *http.Request) { <-stuck })(nil, nil)
			synctest.Wait()
			now, cancel := context.WithCancel(t.Context())
			cancel()
			began := time.Now()
			h.Drain(now, func() {})
			if took := time.Since(began); h.Calls() != test.left || took < test.took || took > test.took+2*drainCheck {
				t.Errorf("%d calls were left after %v, want %d after %v", h.Calls(), took, test.left, test.took)
			}
		})
	}
}

// readerFunc is an empty body that calls a function when it is read.
type readerFunc func()

// Read satisfies io.Reader.
func (f readerFunc) Read([]byte) (int, error) { f(); return 0, io.EOF }
