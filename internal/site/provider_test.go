package site

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json/v2"
	"html"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
)

// idp is an OpenID provider with one signed-in account. Tests can falsify its answers.
type idp struct {
	t      *testing.T
	server *httptest.Server
	key    *rsa.PrivateKey

	mu      sync.Mutex
	down    bool
	moved   string                     // where its token endpoint redirects to with 307
	asked   int                        // number of requests for its metadata
	subject string                     // the signed-in account
	name    string                     // the account's display name
	codes   map[string]url.Values      // issued codes, with the parameters of their requests
	spoil   func(map[string]any)       // changes a token's claims
	sign    func(claims []byte) string // replaces the correct signature
}

const clientID, clientSecret = "kith at home", "s3cret/+ &"

func newIDP(t *testing.T) *idp {
	t.Helper()
	p := &idp{t: t, subject: "1", name: "ada", codes: map[string]url.Values{}}
	p.key = must1(rsa.GenerateKey(rand.Reader, 2048))
	p.sign = func(claims []byte) string { return p.signed("RS256", p.key, claims) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked++
		if p.down {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		api.WriteJSON(w, 200, map[string]any{
			"issuer": p.server.URL, "authorization_endpoint": p.server.URL + "/authorize", "token_endpoint": p.server.URL + "/token",
			"jwks_uri": p.server.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"},
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		api.WriteJSON(w, 200, map[string]any{"keys": []map[string]string{{
			"kty": "RSA", "kid": "k1", "alg": "RS256", "use": "sig", "n": b64(p.key.N.Bytes()), "e": b64(big.NewInt(int64(p.key.E)).Bytes()),
		}}})
	})
	mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, p.agree(r.URL.Query()), http.StatusFound)
	})
	mux.HandleFunc("POST /token", p.token)
	p.server = httptest.NewServer(mux)
	t.Cleanup(p.server.Close)
	return p
}

// signed returns a token with the claims. The key is an *rsa.PrivateKey for RS256, or the
// secret for HS256.
func (p *idp) signed(algorithm string, key any, claims []byte) string {
	text := b64([]byte(`{"alg":"`+algorithm+`","kid":"k1"}`)) + "." + b64(claims)
	if secret, ok := key.(string); ok {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(text))
		return text + "." + b64(mac.Sum(nil))
	}
	sum := sha256.Sum256([]byte(text))
	return text + "." + b64(must1(rsa.SignPKCS1v15(rand.Reader, key.(*rsa.PrivateKey), crypto.SHA256, sum[:])))
}

// agree returns where the provider sends the browser after the user agreed.
func (p *idp) agree(asked url.Values) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if asked.Get("response_type") != "code" || asked.Get("client_id") != clientID || asked.Get("code_challenge_method") != "S256" || !strings.Contains(asked.Get("scope"), "openid") {
		p.t.Errorf("asked %v", asked)
	}
	for _, name := range []string{"state", "nonce", "code_challenge"} {
		assert.That(p.t, len(asked.Get(name)) >= 26, name, asked.Get(name))
	}
	code := rand.Text()
	p.codes[code] = asked
	return asked.Get("redirect_uri") + "?" + url.Values{"code": {code}, "state": {asked.Get("state")}}.Encode()
}

func (p *idp) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moved != "" {
		http.Redirect(w, r, p.moved, http.StatusTemporaryRedirect)
		return
	}
	id, secret, _ := r.BasicAuth()
	id, _ = url.QueryUnescape(id)
	secret, _ = url.QueryUnescape(secret)
	asked, good := p.codes[r.FormValue("code")]
	delete(p.codes, r.FormValue("code"))
	proof := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if !good || id != clientID || secret != clientSecret || b64(proof[:]) != asked.Get("code_challenge") || r.FormValue("redirect_uri") != asked.Get("redirect_uri") {
		api.WriteJSON(w, 400, map[string]string{"error": "invalid_grant", "error_description": "canary-description"})
		return
	}
	claims := map[string]any{
		"iss": p.server.URL, "sub": p.subject, "aud": clientID, "nonce": asked.Get("nonce"), "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix(),
		"preferred_username": p.name, "email": "ada@example.org", "email_verified": true,
	}
	if p.spoil != nil {
		p.spoil(claims)
	}
	api.WriteJSON(w, 200, map[string]any{"access_token": "x", "token_type": "Bearer", "id_token": p.sign(must1(json.Marshal(claims)))})
}

// at signs an account in at the provider.
func (p *idp) at(subject, name string) *idp {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subject, p.name = subject, name
	return p
}

func (p *idp) town(w *world, rule SignUp) *town {
	return townOf(p.t, w, func(c *Config) {
		c.SignUp, c.Provider = rule, Provider{Issuer: p.server.URL, ClientID: clientID, ClientSecret: clientSecret, Name: "Example <ID>"}
	})
}

// leaves sends a form that leads to the provider, and returns the URL there.
func (b *browser) leaves(path string, fields ...string) string {
	b.t.Helper()
	page := b.post(path, fields...).want(b.t, 200, `http-equiv="refresh"`, "Continue to Example &lt;ID&gt;")
	found := regexp.MustCompile(`<a href="([^"]+)" id="leave"`).FindStringSubmatch(page.body)
	if found == nil || !strings.Contains(page.body, `content="0; url=`+found[1]+`"`) {
		b.t.Fatalf("no way on: %s", page.body)
	}
	return html.UnescapeString(found[1])
}

// through continues to the provider and comes back.
func (b *browser) through(p *idp, path string, fields ...string) seen {
	b.t.Helper()
	b.site.limits = newLimits()
	there := must1(url.Parse(b.leaves(path, fields...)))
	return b.back(p.agree(there.Query()))
}

func (b *browser) back(to string) seen {
	b.t.Helper()
	return b.get(strings.TrimPrefix(to, b.web.URL))
}

func TestProvider(t *testing.T) {
	p := newIDP(t)
	onEachStore(t, func(t *testing.T, w *town) { testProvider(t, p, p.town(w.world, SignUpOpen)) })
}

func testProvider(t *testing.T, p *idp, tn *town) {
	// The account is not bound yet, even if a member has the same name and address. A
	// provider's claims never give access to an existing account.
	zoe := tn.browser()
	zoe.get("/signin").want(t, 200, "Sign in with Example &lt;ID&gt;")
	zoe.through(p.at("z", "ada"), "/signin/provider", "next", "/machines").goes(t, "/signup/provider")
	zoe.get("/signup/provider").want(t, 200, `value="ada"`)
	zoe.post("/signup/provider", "name", "ada").want(t, 400, "choose another one")
	zoe.post("/signup/provider", "name", "zoe").goes(t, "/machines")
	zoe.get("/account").want(t, 200, "zoe", p.server.URL)
	zoe.post("/signout").goes(t, "/signin")
	zoe.through(p, "/signin/provider", "next", "https://evil.example/").goes(t, "/")
	zoe.get("/sessions").want(t, 200, "provider")
	// After signing up, the visitor cannot return to this step.
	zoe.get("/signup/provider").goes(t, "/signin")

	// A member binds an account. It then signs in that member, whatever its name.
	ada := tn.as("ada")
	ada.through(p.at("a", "whoever"), "/account/provider").goes(t, "/account")
	ada.get("/account").want(t, 200, "is linked: you can sign in with it", "whoever")
	other := tn.browser()
	other.through(p.at("a", "somebody else"), "/signin/provider").goes(t, "/")
	other.get("/").want(t, 200, "Hello, ada")
	tn.as("bob").through(p, "/account/provider").want(t, 400, "is already linked to a member")
	ada.through(p, "/account/provider").want(t, 400, "is already linked to a member")

	// After it is removed it is not bound to a member, and its sessions end. The last
	// sign-in method cannot be removed.
	mine := must1(tn.db.Identities(t.Context(), tn.members["ada"].ID))[0].ID
	tn.as("bob").post("/account/provider/remove", "identity", mine).want(t, 404)
	ada.post("/account/provider/remove", "identity", mine).want(t, 400, "set a password first")
	ada.post("/account/password", "password", aPassword).goes(t, "/account")
	other.through(p, "/signin/provider").goes(t, "/")
	ada.post("/account/provider/remove", "identity", mine).goes(t, "/account")
	other.get("/account").goes(t, "/signin?next=%2Faccount")
	other.through(p, "/signin/provider").goes(t, "/signup/provider")

	// A disabled member cannot sign in with it.
	check(t, tn.db.SetMemberDisabled(t.Context(), memberID(t, tn, "zoe"), true))
	tn.browser().through(p.at("z", "zoe"), "/signin/provider").want(t, 403, "disabled")
}

// TestProviderRules checks that the operator's rule also applies to sign-ups from a
// provider.
func TestProviderRules(t *testing.T) {
	p, w := newIDP(t), newWorld(t)
	invite := good[api.Invite](w, "ada", "POST", "/api/invites", `{"uses":1}`).Code
	closed, invited := p.town(w, SignUpClosed), p.town(w, SignUpInvite)
	no := closed.browser()
	no.through(p.at("1", "zoe"), "/signin/provider").want(t, 403, "sign-up is closed")
	no.get("/signup/provider").goes(t, "/signin")
	no.post("/signup/provider", "name", "zoe").want(t, 403)

	zoe := invited.browser()
	zoe.through(p, "/signin/provider").goes(t, "/signup/provider")
	zoe.post("/signup/provider", "name", "zoe").want(t, 403, "an invite is needed")
	zoe.post("/signup/provider", "name", "zoe", "invite", "x").want(t, 404)
	zoe.get("/invite/"+invite).want(t, 200, "Sign up with Example")
	zoe.through(p, "/signin/provider", "invite", invite).goes(t, "/signup/provider")
	zoe.get("/signup/provider").want(t, 200, `value="`+invite+`"`, `value="zoe"`)
	late := invited.browser()
	late.through(p, "/signin/provider").goes(t, "/signup/provider")
	zoe.post("/signup/provider", "name", "zoe", "invite", invite).goes(t, "/")
	zoe.get("/access/for-you").want(t, 200, `<th scope="row">ada</th>`)
	late.post("/signup/provider", "name", "zoe2", "invite", invite).want(t, 400, "is already linked")
	tn := invited.browser()
	tn.through(p.at("2", "yan"), "/signin/provider").goes(t, "/signup/provider")
	tn.post("/signup/provider", "name", "yan", "invite", invite).want(t, 404)
	closed.browser().through(p.at("1", "zoe"), "/signin/provider").goes(t, "/") // members can still sign in

	// An invite leads to a chat, unless a page asked for the sign-in.
	more := good[api.Invite](w, "ada", "POST", "/api/invites", `{"uses":2}`).Code
	w.models = []api.Model{{ID: "tiny", Availability: "ready", Via: "shared", Owner: "ada", Chat: true}}
	for name, to := range map[string]string{"xia": "/try?model=tiny", "wes": "/usage"} {
		next := map[string]string{"wes": "/usage"}[name]
		b := invited.browser()
		b.through(p.at(name, name), "/signin/provider", "invite", more, "next", next).goes(t, "/signup/provider")
		b.post("/signup/provider", "name", name, "invite", more).goes(t, to)
	}
}

// TestProviderRefused checks that an answer of the provider is valid once, only in the
// browser that began the sign-in, and only if it is signed for this hub.
func TestProviderRefused(t *testing.T) {
	p, w := newIDP(t), newWorld(t)
	tn := p.town(w, SignUpOpen)
	var log strings.Builder
	tn.site.Log = slog.New(slog.NewTextHandler(&log, nil))
	ada, bob := tn.as("ada"), tn.as("bob")
	ada.through(p, "/account/provider").goes(t, "/account")

	way := func(b *browser, path string) string {
		tn.site.limits = newLimits()
		return p.agree(must1(url.Parse(b.leaves(path))).Query())
	}
	// Used in another browser, twice, or in a browser that did not begin a sign-in.
	one, two := tn.browser(), tn.browser()
	to := way(one, "/signin/provider")
	two.back(to).want(t, 403, "did not start in this browser")
	way(two, "/signin/provider")
	two.back(to).want(t, 403, "did not start in this browser")
	one.get(backPath+"?state=x").want(t, 403)
	one.back(to).goes(t, "/")
	one.back(to).want(t, 403, "did not start in this browser")
	// What ada began binds nothing to the member who signed in afterwards.
	to = way(ada, "/account/provider")
	ada.post("/signout").goes(t, "/signin")
	ada.back(to).want(t, 403)
	over := tn.as("ada")
	to = way(over, "/account/provider")
	link := tn.link(tn.members["bob"].ID)
	over.post("/welcome", "link", strings.TrimPrefix(link, "/welcome/")).goes(t, "/")
	over.back(to).want(t, 403)
	// If bob is tricked into opening the link, nothing is bound to him.
	to = way(one, "/account/provider")
	bob.back(to).want(t, 403)
	bob.get(strings.Replace(to[len(tn.web.URL):], "state=", "state=&x=", 1)).want(t, 403)
	if all := must1(tn.db.Identities(t.Context(), tn.members["bob"].ID)); len(all) > 0 {
		t.Errorf("bob is bound to %+v", all)
	}
	// The user refuses, or the code is wrong.
	to = way(one, "/signin/provider")
	one.back(regexp.MustCompile(`code=\w+`).ReplaceAllString(to, "error=access_denied%3Cb%3E")).want(t, 403, "access_denied&lt;b&gt;")
	to = way(one, "/signin/provider")
	one.back(regexp.MustCompile(`code=\w+`).ReplaceAllString(to, "code=stolen")).want(t, 403, "not accepted")
	to = way(one, "/signin/provider")
	one.back(to+"&iss=https%3A%2F%2Fevil.example").want(t, 403, "not accepted")

	stranger := must1(rsa.GenerateKey(rand.Reader, 2048))
	good := p.sign
	for name, wrong := range map[string]func(){
		"another issuer": func() { p.spoil = func(c map[string]any) { c["iss"] = "https://evil.example" } },
		"another hub":    func() { p.spoil = func(c map[string]any) { c["aud"] = "other" } },
		"another party":  func() { p.spoil = func(c map[string]any) { c["azp"] = "other" } },
		"two audiences, another party": func() {
			p.spoil = func(c map[string]any) { c["aud"], c["azp"] = []string{clientID, "other"}, "other" }
		},
		"a party of another kind": func() { p.spoil = func(c map[string]any) { c["azp"] = 1 } },
		"another nonce":           func() { p.spoil = func(c map[string]any) { c["nonce"] = "n" } },
		"no nonce":                func() { p.spoil = func(c map[string]any) { delete(c, "nonce") } },
		"expired":                 func() { p.spoil = func(c map[string]any) { c["exp"] = time.Now().Add(-time.Hour).Unix() } },
		"nobody":                  func() { p.spoil = func(c map[string]any) { c["sub"] = "" } },
		"too long":                func() { p.spoil = func(c map[string]any) { c["sub"] = strings.Repeat("x", 256) } },
		"another key":             func() { p.sign = func(c []byte) string { return p.signed("RS256", stranger, c) } },
		"the secret": func() {
			p.sign = func(c []byte) string { return p.signed("HS256", strings.Repeat(clientSecret, 4), c) }
		},
		"not signed":       func() { p.sign = func(c []byte) string { return b64([]byte(`{"alg":"none"}`)) + "." + b64(c) + "." } },
		"nothing":          func() { p.sign = func([]byte) string { return "" } },
		"changed after it": func() { p.sign = func(c []byte) string { s := good(c); return s[:len(s)-6] + "AAAAAA" } },
	} {
		p.spoil, p.sign = nil, good
		wrong()
		b := tn.browser()
		got := b.back(way(b, "/signin/provider"))
		if got.status != 403 || !strings.Contains(got.body, "not accepted") {
			t.Errorf("%s: %d %s", name, got.status, problemIn(got.body))
		}
		b.get("/account").goes(t, "/signin?next=%2Faccount")
	}
	p.spoil, p.sign = nil, good
	for _, secret := range []string{clientSecret, "canary-description"} {
		assert.Lacks(t, log.String(), secret, "the log holds")
	}
	// A subject that no database can store, and names with HTML in them.
	b := tn.browser()
	b.through(p.at("a\x00b", `"><script>alert(1)</script>`), "/signin/provider").want(t, 403, "not accepted")
	for _, name := range hostile()[:40] {
		b = tn.browser()
		b.through(p.at("h", name), "/signin/provider").goes(t, "/signup/provider")
		inert(t, name, b.get("/signup/provider"))
	}
}

// TestProviderMoved checks that the secret and the code are not sent to another server.
func TestProviderMoved(t *testing.T) {
	asked := make(chan string, 10)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Method + r.URL.Path }))
	defer other.Close()
	p := newIDP(t)
	tn := p.town(newWorld(t), SignUpOpen)
	p.moved = other.URL + "/token"
	tn.browser().through(p, "/signin/provider").want(t, 503, "cannot be reached just now")
	if len(asked) > 0 {
		t.Errorf("the other server got %s", <-asked)
	}
	// A GET without a secret may be redirected, but not to plain HTTP.
	for address, want := range map[string]bool{"https://id.example/new": true, "http://id.example/new": false} {
		to := httptest.NewRequest("GET", address, nil)
		err := noSecretElsewhere(to, []*http.Request{httptest.NewRequest("GET", "https://id.example/old", nil)})
		assert.Equal(t, (err == nil), want, "to", address, err)
	}
}

// TestProviderDown checks that an unreachable provider prevents neither the start nor
// other sign-in methods, and is used as soon as it is back.
func TestProviderDown(t *testing.T) {
	p := newIDP(t)
	p.down = true
	tn := p.town(newWorld(t), SignUpOpen)
	assert.That(t, p.asked <= 0, "it was asked before anybody went there")
	b := tn.browser()
	got := b.post("/signin/provider").want(t, 503, "cannot be reached", "Sign in")
	assert.That(t, got.header.Get("Retry-After") != "", "no Retry-After")
	b.post("/signup", "name", "zoe", "password", aPassword).goes(t, "/")
	p.down = false
	for range 3 {
		b.through(p, "/account/provider")
	}
	assert.Equal(t, p.asked, 2, "it was asked about itself")
	p.server.Close()
	away := tn.browser()
	there := must1(url.Parse(away.leaves("/signin/provider")))
	away.get(backPath+"?code=x&state="+there.Query().Get("state")).want(t, 503, "cannot be reached")

	none := newTown(t, nil)
	none.browser().post("/signin/provider").want(t, 404, "no sign-in provider")
	none.browser().get(backPath).want(t, 404, "no sign-in provider")
	if page := none.browser().get("/signin"); strings.Contains(page.body, "/signin/provider") {
		t.Error("a provider is offered where there is none")
	}
}

// TestProviderTimes checks that a member who is away too long has to begin again, both at
// the provider and when choosing a name, and that binding requires a recent sign-in or
// the password.
func TestProviderTimes(t *testing.T) {
	p := newIDP(t)
	tn := p.town(newWorld(t), SignUpOpen)
	ada, zoe, late := tn.as("ada"), tn.browser(), tn.browser()
	zoe.through(p.at("z", "zoe"), "/signin/provider").goes(t, "/signup/provider")
	to := p.agree(must1(url.Parse(late.leaves("/signin/provider"))).Query())
	cookie := func(b *browser) string {
		c := b.session()
		return c.Name + "=" + c.Value
	}
	synctest.Test(t, func(t *testing.T) {
		tn.site.limits = newLimits()
		ask := func(method, path, cookie string) *httptest.ResponseRecorder {
			r, w := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
			r.Header.Set("Cookie", cookie)
			tn.site.ServeHTTP(w, r)
			return w
		}
		began := must1(tn.db.SessionsOf(t.Context(), tn.members["ada"].ID, time.Now()))[0].Created
		time.Sleep(time.Until(began.Add(awayFor + time.Minute))) // sessions use the real time
		assert.Equal(t, ask("GET", strings.TrimPrefix(to, tn.web.URL), cookie(late)).Code, 403, "back after a while")
		if got := tn.inProcessAs("192.0.2.1", cookie(ada))("/account/provider"); got.status != 403 || !strings.Contains(got.body, "sign in again") {
			t.Errorf("binding a while after the sign-in: %d", got.status)
		}
		assert.Equal(t, ask("GET", "/signup/provider", cookie(zoe)).Code, 200, "choosing a name in time")
		time.Sleep(newcomerFor)
		assert.Equal(t, ask("GET", "/signup/provider", cookie(zoe)).Code, 303, "choosing a name late")
	})
}

// TestProviderSecret checks that printing a configuration never prints its secret.
func TestProviderSecret(t *testing.T) {
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "provider", Provider{Issuer: "https://id.example", ClientSecret: clientSecret})
	if !strings.Contains(log.String(), "id.example") || strings.Contains(log.String(), "s3cret") {
		t.Error(log.String())
	}
}
