package site

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fleet"
)

// TestPagesOfOthers requests every page as another member, with ada's ids in the forms.
// Nothing of hers is shown, and nothing changes.
func TestPagesOfOthers(t *testing.T) { onEachStore(t, testPagesOfOthers) }

func testPagesOfOthers(t *testing.T, tn *town) {
	tn.history()
	ctx := t.Context()
	good[anything](tn.world, "ada", "POST", "/api/shares", `{"with":"bob","models":["secret-model"]}`)
	invite := good[api.Invite](tn.world, "ada", "POST", "/api/invites", "")
	good[anything](tn.world, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	tn.intoGroup("lab", "bob")
	pat := account.Member{ID: account.NewID("mem_"), Name: "pat-invited", Created: time.Now()}
	check(t, tn.db.CreateMember(ctx, pat))
	good[anything](tn.world, "ada", "POST", "/api/groups/lab/invitations", `{"member":"pat-invited"}`)
	key := account.Key{ID: account.NewID("key_"), MemberID: tn.members["ada"].ID, Name: "adas-key", Region: "home", Reach: account.ReachAll, Hash: [32]byte{2}, Created: time.Now()}
	check(t, tn.db.CreateKey(ctx, key))
	ada := tn.as("ada")
	ada.post("/account/password", "password", aPassword).goes(t, "/account")
	ada.enrol("adas-phone")
	passkeys := must1(tn.db.Passkeys(ctx, tn.members["ada"].ID))
	adas, key0 := ada.challenge("/account/passkeys/begin").PublicKey, newAuthenticator(t, tn.web.URL)
	identity := account.Identity{ID: account.NewID("idn_"), MemberID: tn.members["ada"].ID, Issuer: "https://id.example", Subject: "adas-subject", Shown: "adas-shown", Created: time.Now()}
	check(t, tn.db.AddIdentity(ctx, identity))
	sessions, err := tn.db.SessionsOf(ctx, tn.members["ada"].ID, time.Now())
	check(t, err)
	tn.posts(t)
	email := account.Email{MemberID: tn.members["ada"].ID, Asked: "adas@mail.example", Hash: [32]byte{3}, Expires: time.Now().Add(time.Hour)}
	check(t, tn.db.AskEmail(ctx, email))
	must1(tn.db.VerifyEmail(ctx, email.MemberID, email.Hash, time.Now()))
	proof := credential.Mint(credential.LinkCode, "home")
	email.Asked, email.Hash = "adas-other@mail.example", proof.Hash()
	check(t, tn.db.AskEmail(ctx, email))
	eve := tn.as("eve")
	check(t, tn.db.SaveTraces(ctx, []account.Trace{{CallID: "req_adas", MemberID: tn.members["ada"].ID, Started: time.Now(), Model: "secret-model"}}, time.Now()))

	everything := func() []any {
		all := []any{tn.adas()}
		s, err := tn.db.SessionsOf(ctx, tn.members["ada"].ID, time.Now())
		check(t, err)
		for i := range s {
			s[i].Seen, s[i].Expires, s[i].Data = time.Time{}, time.Time{}, nil
		}
		hash, err := tn.db.Password(ctx, tn.members["ada"].ID)
		check(t, err)
		return append(all, s, hash, must1(tn.db.Passkeys(ctx, tn.members["ada"].ID)), must1(tn.db.Identities(ctx, tn.members["ada"].ID)), must1(tn.db.Email(ctx, tn.members["ada"].ID)))
	}
	check(t, tn.db.AddNotices(ctx, []account.Notice{{MemberID: tn.members["ada"].ID, Kind: account.NoticeOffline, Text: "adas-notice"}}, time.Now()))
	before := everything()
	forms := map[string][]string{
		"/signin": {"name", "ada", "password", "wrong password"}, "/signup": {"name", "ada", "password", aPassword},
		"/recover":          {"name", "ada", "code", "aaaa-bbbb-cccc-dddd", "password", aPassword},
		"/welcome":          {"link", credential.Mint(credential.LinkCode, "home").Reveal()},
		"/account/password": {"old", "x", "password", aPassword}, "/account/codes": {"old", "x"},
		"/signin/passkey/begin": nil, "/signin/passkey": {"answer", "{}"},
		"/signin/provider": nil, "/signup/provider": {"name", "ada"}, "/account/provider": nil, "/account/provider/remove": {"identity", identity.ID},
		"/recover/mail": {"address", "eves@mail.example"}, "/account/email": {"address", "eves@mail.example"}, "/account/email/verify": {"code", proof.Reveal()}, "/account/email/remove": nil,
		"/account/passkeys/begin": nil, "/account/passkeys": {"answer", key0.create(adas.Challenge)}, "/account/passkeys/remove": {"passkey", passkeys[0].ID},
		"/sessions/end": {"session", sessions[0].ID},
		"/applications": {"name", "eves", "reach", "all"}, "/applications/test": {"secret", credential.Mint(credential.APIKey, "home").Reveal()},
		"/applications/limit": {"key", key.ID, "per_day", "1"}, "/applications/revoke": {"key", key.ID}, "/applications/roll": {"key", key.ID},
		"/device": {"code", "BCDF-GHJK"}, "/device/decide": {"code", "BCDF-GHJK", "decision", "approve"},
		"/machines/pause": {"machine", tn.machine.ID}, "/machines/resume": {"machine", tn.machine.ID}, "/machines/hours": {"machine", tn.machine.ID}, "/machines/slots": {"machine", tn.machine.ID, "slots", "1"},
		"/machines/rename": {"machine", tn.machine.ID, "name", "mine"}, "/machines/revoke": {"machine", tn.machine.ID},
		"/machines/show": {"machine", tn.machine.ID, "shown", "yes"}, "/machines/keep-out": {"machine", tn.machine.ID}, "/machines/files": {"machine", tn.machine.ID, "act", "remove", "model", "words"},
		"/try": {"ask", "hello"}, "/try/stream": {"ask", "hello"}, // without a model: eve's own call would not show a secret
		"/sharing/share": {"with", "eve"}, "/sharing/limits": {"with", "eve"}, "/sharing/end": {"with", "ada"}, "/sharing/invite": {"uses", "x"}, "/sharing/revoke": {"invite", invite.ID},
		"/sharing/accept": {"code", invite.ID},
		"/theme":          {"theme", "dark"},
		"/groups/create":  {"name", "lab", "kind", "org"}, "/groups/join": {"group", "lab"}, "/groups/leave": {"group", "lab"}, "/groups/end": {"group", "lab"}, "/groups/limit": {"group", "lab", "per_day", "1"},
		"/groups/accept": {"group", "lab"}, "/groups/decline": {"group", "lab"}, "/groups/invite": {"group", "lab", "member", "eve"}, "/groups/withdraw": {"group", "lab", "member", "pat-invited"},
		"/notices/seen": {"until", time.Now().Format(time.RFC3339)}, "/account/notices": {"kind", "nonsense"},
		"/groups/remove": {"group", "lab", "member", "bob"}, "/groups/admin": {"group", "lab", "member", "eve"}, "/groups/demote": {"group", "lab", "member", "ada"},
		"/groups/machine": {"group", "lab", "owner", "ada", "machine", "box", "rule", "excluded"},
	}
	paths := map[string]string{
		"/welcome/{code}": "/welcome/" + credential.Mint(credential.LinkCode, "home").Reveal(), "/invite/{code}": "/invite/" + invite.ID,
		"/requests/{call}": "/requests/req_1", machinePath: "/machines/" + tn.machine.ID, livePath + "machines/{machine}": livePath + "machines/" + tn.machine.ID, "/account/email/{code}": "/account/email/" + proof.Reveal(),
	}
	forms["/operator/members"], forms["/operator/drain"] = []string{"name", "eves"}, []string{"name", "a"}
	for _, act := range []string{"disable", "enable", "link", "role"} {
		forms["/operator/members/"+act] = []string{"member", tn.members["ada"].ID}
	}
	welcome := map[string]bool{"/applications": true, "/signin/passkey/begin": true, "/account/passkeys/begin": true, "/recover/mail": true, "/account/email": true, "/account/email/remove": true, "/notices/seen": true, "/theme": true} // what eve may do
	for _, p := range sitePages() {
		if p.path == "/signout" {
			continue
		}
		path := p.path
		if other, ok := paths[path]; ok {
			path = other
		}
		fields, known := forms[p.path]
		if p.method == "POST" && !known {
			t.Errorf("POST %s: say here what a stranger sends", p.path)
			continue
		}
		form := url.Values{}
		for i := 0; i < len(fields); i += 2 {
			form.Set(fields[i], fields[i+1])
		}
		got := eve.do(p.method, path, form)
		if p.method == "POST" && !welcome[p.path] && p.path != "/account/password" && p.path != "/account/codes" && got.status < 400 {
			t.Errorf("POST %s as eve: %d", p.path, got.status)
		}
		for _, secret := range []string{"secret-model", "story-model", "usage-model", tn.machine.ID, invite.Code, key.ID, "adas-key", sessions[0].ID, passkeys[0].ID, "adas-phone", "adas-notice", identity.ID, "adas@mail", "adas-other", "adas-subject", "adas-shown", "pat-invited", b64(passkeys[0].Credential)} {
			if strings.Contains(got.body, secret) && !strings.Contains(path+form.Encode(), url.QueryEscape(secret)) { // not just what eve sent
				t.Errorf("%s %s tells eve of ada's %s", p.method, p.path, secret)
			}
		}
		if diff := cmp.Diff(before, everything(), cmp.AllowUnexported(response{})); diff != "" {
			t.Fatalf("%s %s changed what is ada's:\n%s", p.method, p.path, diff)
		}
	}
	assert.That(t, len(tn.controls)+len(tn.acts) == 0, "a stranger changed ada's machine", tn.controls)
	ada.get("/account").want(t, 200)
}

// TestWhoMay checks that a visitor who is not signed in only gets to the sign-in, with
// any key, and that requests from other sites are refused.
func TestWhoMay(t *testing.T) {
	tn := newTown(t, nil)
	visitor, ada := tn.browser(), tn.as("ada")
	visitor.header.Set("Authorization", "Bearer ada")
	visitor.header.Set("X-Api-Key", "ada")
	for _, p := range sitePages() {
		if p.may == operators {
			for _, b := range []*browser{visitor, ada} {
				if got := b.do(p.method, p.path, url.Values{"member": {tn.members["bob"].ID}}); got.status != 404 || !strings.Contains(got.body, "no such page") {
					t.Errorf("%s %s of no operator: %d", p.method, p.path, got.status)
				}
			}
			continue
		}
		if p.may == members {
			got := visitor.do(p.method, p.path, url.Values{"machine": {tn.machine.ID}})
			if got.status != 303 || !strings.HasPrefix(got.header.Get("Location"), "/signin?next=") {
				t.Errorf("%s %s without a session: %d to %q", p.method, p.path, got.status, got.header.Get("Location"))
			}
		}
		if p.method != "POST" {
			continue
		}
		for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
			ada.header = http.Header{name: {value}}
			if got := ada.do("POST", p.path, url.Values{"machine": {tn.machine.ID}}); got.status != 403 || !strings.Contains(got.body, "another site") {
				t.Errorf("POST %s with %s %s: %d", p.path, name, value, got.status)
			}
		}
	}
	ada.header = http.Header{}
	// A session is not a key: the API does not accept it.
	assert.Equal(t, ada.get("/machines").status, 200, "after all that")
	r := httptest.NewRequest("GET", "/api/machines", nil)
	for _, c := range ada.client.Jar.Cookies(must1(url.Parse(tn.web.URL))) {
		r.AddCookie(c)
	}
	rec := httptest.NewRecorder()
	tn.api.ServeHTTP(rec, r)
	assert.Equal(t, rec.Code, 401, "the API took a session")
	// The site does not serve paths that are not its pages.
	for path, accept := range map[string]string{"/v1/models": "text/html", "/v1": "text/html", "/nothing": "*/*", "/": "*/*"} {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Accept", accept)
		assert.That(t, !tn.site.Serves(r), "GET", path, "for", accept, "is the site's")
	}
}

func must1[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestHeaders(t *testing.T) {
	tn := newTown(t, nil)
	tls := newTown(t, func(c *Config) { c.Base = "https://hub.example.org" })
	for _, path := range []string{"/", "/signin", "/machines", "/nothing", "/device/code", "/static/none"} {
		plain, secure := tn.browser().get(path), tls.browser().get(path)
		csp := plain.header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "base-uri 'none'", "frame-ancestors 'none'", "form-action 'self'"} {
			assert.Contains(t, csp, part, path, "the policy lacks")
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") || strings.Contains(csp, "*") {
			t.Errorf("%s: the policy has an exception: %s", path, csp)
		}
		if plain.header.Get("Strict-Transport-Security") != "" || secure.header.Get("Strict-Transport-Security") == "" {
			t.Errorf("%s: HSTS is for https alone", path)
		}
		if plain.header.Get("Referrer-Policy") != "same-origin" || plain.header.Get("X-Content-Type-Options") != "nosniff" || plain.header.Get("X-Correlation-Id") == "" {
			t.Errorf("%s: %v", path, plain.header)
		}
		if !strings.HasPrefix(path, "/static/") && !strings.Contains(plain.header.Get("Cache-Control"), "no-store") {
			t.Errorf("%s may be kept: %v", path, plain.header)
		}
	}
	for _, town := range []*town{tn, tls} {
		b := town.browser()
		got := b.post("/signup", "name", "zoe", "password", aPassword)
		for name, site := range map[string]string{"kith": "Lax", "kith-browser": "Strict"} {
			if town == tls {
				name = "__Host-" + name
			}
			cookie := ""
			for _, c := range got.header.Values("Set-Cookie") {
				if strings.HasPrefix(c, name+"=") {
					cookie = c
				}
			}
			for _, part := range []string{"HttpOnly", "SameSite=" + site, "Path=/"} {
				assert.Contains(t, cookie, part, "the cookie lacks")
			}
			if town == tls && !strings.Contains(cookie, "Secure") || strings.Contains(cookie, "Domain") {
				t.Errorf("over TLS the cookie is %s", cookie)
			}
		}
	}
	// Static files have their hash in the path, and no page has inline scripts or styles.
	page := tn.browser().get("/signin").body
	for _, name := range []string{"tokens.css", "app.css", "app.js"} {
		path := assetPaths()[name]
		assert.Contains(t, page, `"`+path+`"`, "the page does not name", path)
		if got := tn.browser().get(path); got.status != 200 || !strings.Contains(got.header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v", path, got.status, got.header)
		}
	}
}

// hostile are names and ids that a member might choose.
func hostile() []string {
	base := []string{
		`<script>alert(1)</script>`, `"><script>alert(1)</script>`, `'><img src=x onerror=alert(1)>`, `<svg/onload=alert(1)>`, `</title><script>alert(1)</script>`,
		`javascript:alert(1)`, `" onmouseover="alert(1)`, `' onfocus='alert(1)' autofocus='`, `{{.Me.ID}}`, `{{template "layout"}}`, `${7*7}`, `<%= 7*7 %>`,
		`</textarea><script>alert(1)</script>`, `</select><script>alert(1)</script>`, `--><script>alert(1)</script>`, `]]><script>alert(1)</script>`,
		`<iframe srcdoc="<script>alert(1)</script>">`, `<a href=javascript:alert(1)>x</a>`, `<math><mi//xlink:href="data:x,<script>alert(1)</script>">`,
		`\u003cscript\u003ealert(1)\u003c/script\u003e`, `&lt;script&gt;alert(1)&lt;/script&gt;`, `%3Cscript%3Ealert(1)%3C/script%3E`, "<script\n>alert(1)</script\n>",
		`<ScRiPt>alert(1)</sCrIpT>`, `<base href="//evil.example/">`, `<meta http-equiv=refresh content="0;url=//evil.example">`, `<form action=//evil.example>`,
		`hx-on:load="alert(1)"`, `" hx-get="//evil.example" hx-trigger="load" x="`, `../../etc/passwd`, `..`, `.`, `//evil.example`, `/\evil.example`, `%2e%2e%2f`,
		`a b`, `a"b'c`, `a&b=c`, `a?b#c`, `a;b`, "a`b", `a\b`, `=HYPERLINK("//evil.example")`, `+1`, `-1`, `@SUM(1)`, `' OR 1=1 --`, `"; DROP TABLE members; --`,
		"\u202eabc", "a\u200bb", "\ufeffx", "é", "e\u0301", "Ω≈ç√", "田中さん", "👩‍👩‍👧‍👦", "ﷺ", strings.Repeat("A", 200), strings.Repeat("é", 90),
	}
	var all []string
	for i, s := range base {
		if testing.Short() && i%3 != 0 {
			continue
		}
		all = append(all, s, "x"+s+"y")
	}
	return all
}

// TestHostileNames checks that all names of machines, models and calls, and everything
// that was typed, are text on the pages.
func TestHostileNames(t *testing.T) {
	names := hostile()
	assert.Require(t, len(names) >= 100 || testing.Short(), "only", len(names))
	tn := newTown(t, nil)
	tn.posts(t)
	ada := tn.as("ada")
	ada.post("/account/password", "password", aPassword).goes(t, "/account")
	for i, name := range names {
		key := account.Passkey{ID: account.NewID("pky_"), MemberID: tn.members["ada"].ID, Name: name, Credential: []byte(name), PublicKey: []byte{1}, Created: time.Now()}
		identity := account.Identity{ID: account.NewID("idn_"), MemberID: key.MemberID, Issuer: name, Subject: name, Shown: name, Created: time.Now()}
		check(t, tn.db.AddPasskey(t.Context(), key))
		check(t, tn.db.AddIdentity(t.Context(), identity))
		inert(t, name, ada.get("/account"))
		ada.post("/account/passkeys/remove", "passkey", key.ID).goes(t, "/account")
		ada.post("/account/provider/remove", "identity", identity.ID).goes(t, "/account")
		check(t, tn.db.RenameMachine(t.Context(), tn.members["ada"].ID, tn.machine.ID, name))
		tn.snapshot = tn.snapshot.WithMachine(&fleet.Machine{
			ID: fleet.MachineID(tn.machine.ID), Owner: fleet.MemberID(tn.machine.OwnerID), OwnerName: name, Name: name, Online: true,
			Offers: []fleet.Offer{{ID: fleet.ModelID(name), Families: fleet.Families(fleet.Chat)}},
		})
		call := fmt.Sprintf("req_h%d", i)
		check(t, tn.db.SaveTraces(t.Context(), []account.Trace{{
			CallID: call, MemberID: tn.members["ada"].ID, Started: time.Now(), Mine: true, Caller: name, Model: name, Endpoint: name, Code: name, Status: 500,
			Tries: []account.Attempt{{Machine: name, Owner: name, Via: name, Outcome: name}},
		}}, time.Now()))
		check(t, tn.db.RecordUsage(t.Context(), []account.Usage{{CallID: call, Attempt: 1, Started: time.Now(), MemberID: tn.members["ada"].ID, Model: name, Code: name}}))
		ada.header.Set("User-Agent", strings.Map(func(r rune) rune {
			if r < ' ' {
				return ' '
			}
			return r
		}, name))
		q := url.QueryEscape(name)
		for _, page := range []seen{
			ada.get("/machines"), ada.get("/models?model=" + q), ada.get("/usage?days=" + q), ada.get("/requests/" + call),
			ada.get("/requests/" + url.PathEscape(name)), ada.get("/requests?before=" + q), tn.browser().get("/signin?next=" + q), tn.browser().get("/invite/" + url.PathEscape(name)),
			ada.post("/sharing/share", "with", name, "models", name, "hours", name, "concurrent", name),
			ada.post("/try", "model", name, "said", name, "said", name, "ask", name), ada.get("/try?model=" + q),
			ada.post("/groups/leave", "group", name), ada.post("/applications", "name", name, "reach", name), ada.post("/device", "code", name),
			ada.post("/account/email", "address", name), ada.post("/account/email/verify", "code", name), ada.get("/account/email/" + url.PathEscape(name)),
			tn.browser().post("/recover/mail", "address", name),
		} {
			inert(t, name, page)
		}
	}
	for _, path := range []string{"/usage", "/requests", "/sessions"} {
		inert(t, path, ada.get(path))
	}
	for _, line := range strings.Split(ada.get("/usage.csv").body, "\n") {
		for cell := range strings.SplitSeq(line, ",") {
			if strings.HasPrefix(cell, "=") || strings.HasPrefix(cell, "+") || strings.HasPrefix(cell, "@") || strings.HasPrefix(cell, `"=`) {
				t.Errorf("a formula in the CSV: %s", line)
			}
		}
	}
}

// inert checks that a page has no markup except its own.
func inert(t *testing.T, name string, page seen) {
	t.Helper()
	_, low, _ := strings.Cut(strings.ToLower(page.body), "<body>")
	for _, bad := range []string{"<script>", "<script\n", "<img", "<svg/", "<iframe", "<base", "<math", "<meta http", `href="javascript`, `href="//`, `action="//`, `" onmouseover="`, `' onfocus='`, `" hx-get="//`} {
		if strings.Contains(low, bad) {
			at := strings.Index(low, bad)
			t.Fatalf("%q: the page holds %q: …%s…", name, bad, page.body[max(0, at-80):min(len(page.body), at+80)])
		}
	}
	if to := page.header.Get("Location"); to != "" && (strings.HasPrefix(to, "//") || strings.Contains(to, "evil")) {
		t.Fatalf("%q: leads to %s", name, to)
	}
	assert.Require(t, page.status < 500 || page.status == 503, name, page.status)
}

func TestNextStaysHere(t *testing.T) {
	tn := newTown(t, nil)
	for next, want := range map[string]string{
		"/device": "/device", "/models?model=a%20b": "/models?model=a%20b", "": "/", "https://evil.example/": "/", "//evil.example": "/", "/\\evil.example": "/",
		"/%5cevil.example": "/", "javascript:alert(1)": "/", "/nothing": "/", "/signout": "/", "device": "/", "/device\r\nX: y": "/", "///evil.example": "/",
	} {
		assert.Equal(t, tn.site.localPath(next), want, next, "leads to")
	}
}
