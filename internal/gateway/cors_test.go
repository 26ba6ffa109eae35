package gateway

import (
	"encoding/json/v2"
	"net/http/httptest"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// A web application that the operator named may call with a key but never with a cookie.
// All other pages are treated as before.
func TestCORS(t *testing.T) {
	const app = "https://app.example"
	c := hostedConfig(answers(chatAnswer))
	plain := New(c)
	c.Origins = []string{app}
	h := New(c)
	preflight := func(h *Edge, path, origin string) *httptest.ResponseRecorder {
		r := ask("OPTIONS", path, "", "Authorization", "", "Origin", origin,
			"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type,x-stainless-os")
		w, _ := do(h, r)
		return w
	}
	w := preflight(h, "/v1/chat/completions", app)
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin": app, "Access-Control-Allow-Methods": "POST", "Vary": "Origin",
		"Access-Control-Allow-Headers": "authorization,content-type,x-stainless-os", "Access-Control-Allow-Credentials": "",
	} {
		if got := w.Header().Get(name); w.Code != 204 || got != want {
			t.Errorf("preflight: %d, %s: %q, want %q", w.Code, name, got, want)
		}
	}
	for name, w := range map[string]*httptest.ResponseRecorder{
		"another page":    preflight(h, "/v1/chat/completions", "https://evil.example"),
		"a prefix":        preflight(h, "/v1/chat/completions", app+".evil.example"),
		"null":            preflight(h, "/v1/chat/completions", "null"),
		"no route of it":  preflight(h, "/", app),
		"none configured": preflight(plain, "/v1/chat/completions", app),
	} {
		if w.Code != 405 || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
	}
	for name, c := range map[string]struct {
		fields []string
		status int
	}{
		"a call":           {[]string{"Origin", app}, 200},
		"a wrong key":      {[]string{"Origin", app, "Authorization", "Bearer x"}, 401},
		"a cookie, no key": {[]string{"Origin", app, "Authorization", "", "Cookie", "kith=x"}, 401},
	} {
		w, _ := do(h, ask("POST", "/v1/chat/completions", chatRequest, c.fields...))
		if w.Code != c.status || w.Header().Get("Access-Control-Allow-Origin") != app || w.Header().Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
		for _, name := range []string{"X-Correlation-ID", "Retry-After", "X-Kith-Route"} {
			assert.Contains(t, w.Header().Get("Access-Control-Expose-Headers"), name, "is not exposed")
		}
	}
	refused := httptest.NewRecorder()
	if h.Refuse(refused, ask("POST", "/v1/chat/completions", chatRequest, "Origin", app), fault.New(fault.RateLimitExceeded, "too many")); refused.Header().Get("Access-Control-Allow-Origin") != app {
		t.Errorf("refused before it is read: %d %v", refused.Code, refused.Header())
	}
	if w, _ := do(h, ask("POST", "/v1/chat/completions", chatRequest)); w.Code != 200 || w.Header().Get("Access-Control-Allow-Origin") != "" || w.Header().Get("Vary") != "Origin" {
		t.Errorf("a program: %d %v", w.Code, w.Header())
	}
}

// Clients that are not browsers get the answer to GET / without a key, on both surfaces.
func TestGreetingWithoutABrowser(t *testing.T) {
	hosted, local := hostedConfig(answers(chatAnswer)), localConfig(answers(chatAnswer))
	hosted.Base, hosted.Version, local.Base, local.Version = "https://hub.example", "1.2.3", "http://localhost:8701", "1.2.3"
	for base, h := range map[string]*Edge{"https://hub.example": New(hosted), "http://localhost:8701": New(local)} {
		r := ask("GET", "/", "", "Authorization", "")
		r.Host = "localhost:8701"
		w, _ := do(h, r)
		var got map[string]string
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || w.Header().Get("Content-Type") != "application/json" ||
			got["name"] != "kith" || got["version"] != "1.2.3" || got["base_url"] != base+"/v1" || got["messages_base"] != base {
			t.Errorf("GET /: %d %s (%v)", w.Code, w.Body, err)
		}
		r = ask("HEAD", "/", "", "Authorization", "")
		r.Host = "localhost:8701"
		if w, _ := do(h, r); w.Code != 200 || w.Body.Len() > 0 || w.Header().Get("X-Correlation-ID") == "" {
			t.Errorf("HEAD /: %d %s", w.Code, w.Body)
		}
		r = ask("POST", "/", "{}", "Authorization", "")
		r.Host = "localhost:8701"
		w, _ = do(h, r)
		checkFault(t, w, 405, fault.MethodNotAllowed)
	}
	r := ask("GET", "/", "", "Origin", "https://evil.example")
	r.Host = "localhost:8701"
	w, _ := do(New(local), r)
	checkFault(t, w, 403, fault.ForbiddenOrigin)
}
