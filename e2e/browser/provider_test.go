package browser_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// TestProvider: a person comes from an OpenID provider on another site, chooses a
// name, and is signed in by it again: with scripts and without.
func TestProvider(t *testing.T) {
	t.Parallel()
	browser := chromium(t, nil)
	for name, scripts := range map[string]bool{"scripts": true, "no scripts": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			listen := enginetest.FreeAddress()
			s := newStageWith(t, listen, fmt.Sprintf("[hub]\npublic_url = \"http://%s\"\n[site.oidc]\nissuer = %q\nclient_id = \"kith\"\nname = \"Example\"\n",
				strings.Replace(listen, "127.0.0.1", "localhost", 1), p.URL))
			b := newTab(t, browser, s.base, scripts)
			b.open(s.first)
			b.send("#sign-up", "#name", "op", "#password", "correct horse battery")
			b.open("/access/invites")
			b.send("#create-invite")
			link := b.text("#link")
			b.open("/account")
			b.see("Link your Example account")
			if scripts {
				b.inspect("account-provider")
			}
			b.send("form[action='/signout'] button")
			b.open("/signin")
			if scripts {
				b.inspect("signin-provider")
			}
			b.open(link)
			run(b, clickOn("#use-provider"))
			s.until("the browser is about to leave", p.held.Load)
			b.see("Continue to Example")
			if scripts {
				b.inspect("leave")
			}
			run(b, clickOn("#leave"))
			b.backAt(s, "/signup/provider")
			b.see("You signed in at Example as zoe")
			if scripts {
				b.inspect("newcomer")
			}
			b.send("#sign-up")
			b.see("Hello, zoe")
			b.send("form[action='/signout'] button")
			b.open("/signin?next=/sessions")
			b.goAndCome(s, "/sessions")
			b.see("provider")
			for _, wrong := range b.wrong {
				assert.That(t, strings.HasPrefix(wrong, "it loads "+p.URL), wrong)
			}
		})
	}
}

// goAndCome presses the provider's button, and waits until the browser is back.
func (b *tab) goAndCome(s *stage, path string) {
	b.t.Helper()
	run(b, clickOn("#use-provider"))
	b.backAt(s, path)
}

func (b *tab) backAt(s *stage, path string) {
	b.t.Helper()
	s.until("the browser is at "+path, func() bool { return b.at() == s.base+path && b.text("h1") != "" })
}

// vouching is an OpenID provider at which zoe is signed in. The first time it is
// asked, the browser stays where it is.
type vouching struct {
	*httptest.Server
	held atomic.Bool
}

func newProvider(t *testing.T) *vouching {
	t.Helper()
	key := assert.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	p := &vouching{}
	tell := func(w http.ResponseWriter, answer any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		tell(w, map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		tell(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "RS256", Use: "sig"}}})
	})
	mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		if p.held.CompareAndSwap(false, true) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		asked := r.URL.Query()
		http.Redirect(w, r, asked.Get("redirect_uri")+"?"+url.Values{"code": {asked.Get("nonce")}, "state": {asked.Get("state")}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil)
		if err != nil {
			t.Error(err)
			return
		}
		claims, _ := json.Marshal(map[string]any{
			"iss": p.URL, "sub": "1", "aud": "kith", "nonce": r.FormValue("code"), "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix(), "preferred_username": "zoe",
		})
		signed, err := signer.Sign(claims)
		if err != nil {
			t.Error(err)
			return
		}
		token, _ := signed.CompactSerialize()
		tell(w, map[string]string{"access_token": "x", "token_type": "Bearer", "id_token": token})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}
