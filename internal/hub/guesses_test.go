package hub

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
)

// TestGuesses: made-up secrets of one client reach the database a limited number of times,
// in every place that looks one up, and no other client and no known key is refused for it.
func TestGuesses(t *testing.T) {
	r := newRig(t, Config{})
	_, good := r.member("ann")
	synctest.Test(t, func(t *testing.T) {
		handler := r.Handler()
		ask := func(method, path, from, secret string) (status int, header http.Header) {
			body := ""
			if path == "/login" {
				body, secret = `{"token":"`+secret+`"}`, ""
			}
			q := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
			q.RemoteAddr = from
			if secret != "" {
				q.Header.Set("Authorization", "Bearer "+secret)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, q)
			return w.Code, w.Header()
		}
		made := func(kind credential.Kind) string { return credential.Mint(kind, "home").Reveal() }
		const here, next, other = "[2001:db8::1]:1", "[2001:db8::2]:1", "192.0.2.7:1"
		if status, _ := ask("GET", "/v1/models", here, good); status != 200 {
			t.Fatalf("a good key: %d", status)
		}
		time.Sleep(2 * cacheFor) // it has to be looked up again
		before := r.kept.lookups.Load()
		refused := 0
		for range 500 {
			status, header := ask("GET", "/v1/models", here, made(credential.APIKey))
			switch {
			case status == 429 && header.Get("Retry-After") != "":
				refused++
			case status != 401:
				t.Fatalf("a made-up key: %d", status)
			}
		}
		if looked := r.kept.lookups.Load() - before; looked != guessBurst || refused != 500-guessBurst {
			t.Errorf("500 made-up keys: %d look-ups, %d refused", looked, refused)
		}
		for _, c := range []struct {
			what, method, path, from, secret string
			want                             int
		}{
			{"a machine's credential", "GET", "/tunnel", here, made(credential.MachineKey), 429},
			{"a login token", "POST", "/login", here, made(credential.LoginToken), 429},
			{"the management API", "GET", "/api/keys", here, made(credential.APIKey), 429},
			{"another address of the same /64", "GET", "/v1/models", next, made(credential.APIKey), 429},
			{"another client", "GET", "/v1/models", other, made(credential.APIKey), 401},
			{"another client's login token", "POST", "/login", other, made(credential.LoginToken), 401},
			{"a key that was known", "GET", "/v1/models", here, good, 200},
			{"a mistyped key", "GET", "/v1/models", here, mistyped(good), 401},
		} {
			if status, _ := ask(c.method, c.path, c.from, c.secret); status != c.want {
				t.Errorf("%s: %d, not %d", c.what, status, c.want)
			}
		}
		// One wrong key, again and again, is looked up once in 5 s.
		wrong := made(credential.APIKey)
		before = r.kept.lookups.Load()
		for range 200 {
			if status, _ := ask("GET", "/v1/models", other, wrong); status != 401 {
				t.Fatalf("one wrong key again: %d", status)
			}
		}
		assert.Equal(t, r.kept.lookups.Load()-before, 1, "one wrong key was looked up")
		time.Sleep(guessEvery)
		if status, _ := ask("GET", "/v1/models", here, made(credential.APIKey)); status != 401 {
			t.Errorf("after the wait: %d", status)
		}
	})
}
