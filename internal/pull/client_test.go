package pull

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestPublicClient reaches the owner's model hub wherever it is, and nothing else of this
// machine, neither directly nor by a redirect or a name.
func TestPublicClient(t *testing.T) {
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		t.Error("a request came into the machine's network")
	}))
	defer inside.Close()
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.FormValue("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
		}
	}))
	defer hub.Close()
	port := inside.URL[strings.LastIndex(inside.URL, ":"):]
	s := &Source{Endpoint: hub.URL, Public: true, Client: NewPublicClient(hub.URL)}
	defer s.Client.CloseIdleConnections()
	get := func(address string) error {
		response, err := s.do(assert.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil))(t))
		if err == nil {
			response.Body.Close()
		}
		return err
	}
	assert.OK(t, get(hub.URL+"/ann/words"))
	for _, address := range []string{inside.URL, "http://localhost" + port, hub.URL + "?to=" + url.QueryEscape(inside.URL)} {
		assert.Is(t, get(address), errPrivate, address)
	}
	// A name that is looked up: the check is of the address that the connection is made to.
	assert.Is(t, get("http://LOCALHOST."+port), errPrivate, "a name of this machine")

	// With a proxy the proxy decides about names; addresses are checked here.
	asked := ""
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked = r.URL.String() }))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	s.Client = NewPublicClient(hub.URL)
	assert.OK(t, get("http://files.test/w.gguf"))
	assert.Equal(t, asked, "http://files.test/w.gguf", "asked of the proxy")
	assert.Is(t, get("http://10.0.0.1/w.gguf"), errPrivate, "an address behind the proxy")
}
