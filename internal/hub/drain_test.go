package hub

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

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

// readerFunc is an empty body that calls a function when it is read.
type readerFunc func()

// Read satisfies io.Reader.
func (f readerFunc) Read([]byte) (int, error) { f(); return 0, io.EOF }
