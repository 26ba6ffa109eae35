package site

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/mail"
	"github.com/kith/kith/internal/mail/mailtest"
)

// letters are the e-mails that a town's site sends.
type letters struct {
	t      *testing.T
	server *mailtest.Server
	stop   func() // stops sending, after which the log can be read
}

// posts makes the site send mail from now on.
func (tn *town) posts(t *testing.T) *letters {
	t.Helper()
	return tn.postsTo(t, mailtest.Start(t, "none"))
}

// postsTo is like posts with an existing server: in a bubble, one from outside.
func (tn *town) postsTo(t *testing.T, server *mailtest.Server) *letters {
	t.Helper()
	l := &letters{t: t, server: server}
	tn.site.mail = mail.New(Mail{Host: "127.0.0.1", Port: l.server.Port(), From: "kith@hub.example", TLS: mail.NoTLS}, tn.site.Log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- tn.site.runMail(ctx) }()
	stopped := false
	l.stop = func() {
		if cancel(); !stopped {
			stopped = true
			check(t, <-ended)
		}
	}
	t.Cleanup(l.stop)
	return l
}

// next returns the next e-mail, which must have that address and contain that text.
func (l *letters) next(to string, says ...string) mailtest.Message {
	l.t.Helper()
	select {
	case got := <-l.server.Messages:
		assert.Require(l.t, got.To == to, "a letter to", got.To, to, got.Text)
		for _, text := range says {
			assert.Require(l.t, strings.Contains(got.Text, text), "the letter does not say", text, got.Text)
		}
		return got
	case <-time.After(2 * time.Minute):
		l.t.Fatal("no letter came to " + to)
		panic("unreachable")
	}
}

// nextOfAny returns the next e-mail to any address.
func (l *letters) nextOfAny() mailtest.Message {
	l.t.Helper()
	select {
	case got := <-l.server.Messages:
		return got
	case <-time.After(2 * time.Minute):
		l.t.Fatal("no e-mail came")
		panic("unreachable")
	}
}

// none checks that the test has looked at all e-mails. A new one comes after all others.
func (l *letters) none(tn *town) {
	l.t.Helper()
	tn.site.mail.Send(mail.Message{To: "last@example.org", Subject: "last"})
	l.next("last@example.org")
}

var codeIn = regexp.MustCompile(`kithl_home_[0-9A-Za-z]+`)

// linkIn returns the path of the link in an e-mail, and its code.
func (tn *town) linkIn(l mailtest.Message) (path, code string) {
	tn.t.Helper()
	code = codeIn.FindString(l.Text)
	_, rest, _ := strings.Cut(l.Text, tn.web.URL+"/")
	for !strings.Contains(strings.SplitN(rest, "\n", 2)[0], code) && rest != "" {
		_, rest, _ = strings.Cut(rest, tn.web.URL+"/")
	}
	if path, _, _ = strings.Cut("/"+rest, "\n"); code == "" || !strings.HasSuffix(path, code) {
		tn.t.Fatalf("no link in %s", l.Text)
	}
	return path, code
}

// verify gives the member an address in the way a member does.
func (b *browser) verify(l *letters, address string) {
	b.t.Helper()
	b.post("/account/email", "address", address).goes(b.t, "/account")
	path, code := b.linkIn(l.next(address, "gave this address as theirs"))
	b.get(path).want(b.t, 200, address)
	b.post("/account/email/verify", "code", code).goes(b.t, "/account")
}

func TestEmail(t *testing.T) { onEachStore(t, testEmail) }

func testEmail(t *testing.T, tn *town) {
	post := tn.posts(t)
	ada, eve, op := tn.as("ada"), tn.as("eve"), tn.operator()
	ada.get("/account").want(t, 200, "E-mail address", "Anyone who can read your mail")
	ada.post("/account/email", "address", " Ada@Example.org ").goes(t, "/account")
	ada.get("/account").want(t, 200, "A link was sent to Ada@Example.org", "Open it within a day")
	first := post.next("Ada@Example.org", "gave this address as theirs")
	path, code := tn.linkIn(first)
	if strings.Contains(strings.ReplaceAll(first.Text, code, ""), "ada") || first.Header.Get("Subject") != "kith: is this your address?" {
		t.Errorf("whoever has the address is told of ada: %s", first.Text)
	}
	tn.browser().get(path).goes(t, "/signin?"+url.Values{"next": {path}}.Encode())
	tn.browser().get("/welcome/"+code).want(t, 404)
	tn.browser().post("/welcome", "link", code).want(t, 404)
	eve.get(path).want(t, 404)
	eve.post("/account/email/verify", "code", code).want(t, 404)
	ada.get(path).want(t, 200, "Ada@Example.org", `value="`+code+`"`)
	ada.get(path).want(t, 200) // a GET uses nothing up
	ada.post("/account/email/verify", "code", code).goes(t, "/account")
	ada.get("/account").want(t, 200, "Your e-mail address is set", `id="email">Ada@Example.org<`)
	ada.post("/account/email/verify", "code", code).want(t, 404, "the link was used")
	ada.get(path).want(t, 404)
	ada.post("/account/email", "address", "ada@EXAMPLE.org").want(t, 400, "your address already")

	// Other members do not see it, or learn that it is in use.
	for _, page := range []seen{op.get("/operator/members"), op.get("/operator/audit"), eve.get("/access"), eve.get("/account")} {
		assert.Lacks(t, strings.ToLower(page.want(t, 200).body), "ada@example.org", "somebody else is told of it")
	}
	eve.verify(post, "ada@example.org")
	post.none(tn)

	// Only the newest link works, and the previous address is notified.
	ada.post("/account/email", "address", "new@example.org").goes(t, "/account")
	_, stale := tn.linkIn(post.next("new@example.org"))
	ada.verify(post, "newer@example.org")
	post.next("Ada@Example.org", "Hello ada", "Your account now has another e-mail address", "127.0.0.1")
	ada.post("/account/email/verify", "code", stale).want(t, 404)
	ada.post("/account/email/remove").goes(t, "/account")
	post.next("newer@example.org", "was removed")
	ada.post("/account/email/remove").want(t, 404)
	if page := ada.get("/account").want(t, 200); strings.Contains(page.body, "example.org") {
		t.Error("it is not gone")
	}
	if e := must1(tn.site.emailOf(t.Context(), tn.members["eve"].ID)); e.Address != "ada@example.org" {
		t.Errorf("eve has %+v", e)
	}
	post.none(tn)
	post.stop()
	if log := tn.log.String(); strings.Contains(strings.ToLower(log), "example.org") || codeIn.MatchString(log) || !strings.Contains(log, `msg="mail sent" member=mem_`) {
		t.Error("the log tells of an address or a link")
	}
}

// TestEmailWantsSignIn checks that adding an address, which is a sign-in method, requires
// a recent sign-in or the password.
func TestEmailWantsSignIn(t *testing.T) {
	tn := newTown(t, nil)
	post := tn.posts(t)
	ada := tn.as("ada")
	ada.post("/account/password", "password", aPassword).goes(t, "/account")
	cookie := cookieOf(ada)
	synctest.Test(t, func(t *testing.T) {
		tn.site.limits, tn.site.Passwords = newLimits(), api.New(api.Config{}).Passwords
		time.Sleep(time.Until(time.Now().AddDate(30, 0, 0))) // long after the real time; the session is made to last
		sessions := must1(tn.db.SessionsOf(t.Context(), tn.members["ada"].ID, time.Time{}))
		for _, k := range sessions {
			k.Seen, k.Expires = time.Now(), time.Now().Add(time.Hour)
			_, values, err := sessionCodec{}.Decode(k.Data)
			check(t, err)
			delete(values, sessionKept)
			k.Data = must1(sessionCodec{}.Encode(k.Expires, values))
			check(t, tn.db.TouchSession(t.Context(), k))
		}
		as := tn.inProcessAs("192.0.2.1", cookie)
		as("/account/email", "address", "ada@example.org").want(t, 403)
		as("/account/email/remove").want(t, 403)
		as("/account/email", "address", "ada@example.org", "old", "wrong").want(t, 403)
		as("/account/email", "address", "ada@example.org", "old", aPassword).goes(t, "/account")
		as("/account/email/remove", "old", aPassword).goes(t, "/account")
	})
	post.stop()
}

func cookieOf(b *browser) string {
	var all []string
	for _, c := range b.client.Jar.Cookies(must1(url.Parse(b.web.URL))) {
		all = append(all, c.String())
	}
	return strings.Join(all, "; ")
}

func TestRecoverByMail(t *testing.T) { onEachStore(t, testRecoverByMail) }

func testRecoverByMail(t *testing.T, tn *town) {
	post := tn.posts(t)
	ada, bob, eve := tn.as("ada"), tn.as("bob"), tn.as("eve")
	ada.post("/account/password", "password", aPassword).goes(t, "/account")
	ada.verify(post, "ada@example.org")
	eve.verify(post, "eve@example.org")
	bob.post("/account/email", "address", "bob@example.org").goes(t, "/account") // and did not verify it
	post.next("bob@example.org")
	check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["eve"].ID, true))

	// The response does not depend on whether a member has the address.
	ask := func(address string) mailtest.Message {
		t.Helper()
		tn.browser().post("/recover/mail", "address", address).want(t, 200, "If a member here has this address")
		return post.next("ada@example.org", "signs ada in", "127.0.0.1")
	}
	var first seen
	for i, address := range []string{"ada@example.org", "nobody@example.org", "eve@example.org", "bob@example.org"} {
		got := tn.browser().post("/recover/mail", "address", address).want(t, 200)
		if got.header.Get("X-Correlation-Id") == "" || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %v", address, got.header)
		}
		for _, name := range []string{"X-Correlation-Id", "X-Request-Id", "Request-Id"} {
			got.header.Del(name)
		}
		got.header.Del("Date")
		got.body = strings.ReplaceAll(got.body, address, "ADDRESS")
		got.header.Del("Content-Length") // the page contains the address as it was typed
		if i == 0 {
			first = got
		} else if diff := cmp.Diff(first, got, cmp.AllowUnexported(seen{})); diff != "" {
			t.Errorf("%s is answered otherwise:\n%s", address, diff)
		}
	}
	_, old := tn.linkIn(post.next("ada@example.org"))
	letter := ask("ADA@example.org")
	assert.Equal(t, letter.Header.Get("Subject"), "kith: a link to sign in", letter.Header)

	// The link signs in once and requires no password. A GET does not use it up.
	path, code := tn.linkIn(letter)
	b := tn.browser()
	b.post("/welcome", "link", old).want(t, 404)
	b.get(path).want(t, 200, "Sign in as ada")
	b.post("/account/email/verify", "code", code).goes(t, "/signin?next=%2Faccount")
	b.post("/welcome", "link", code).goes(t, "/")
	tn.browser().post("/welcome", "link", code).want(t, 404)
	tn.browser().get(path).want(t, 404)
	tn.browser().post("/signin", "name", "ada", "password", aPassword).goes(t, "/") // not changed yet
	b.get("/sessions").want(t, 200, "link")
	b.post("/account/password", "password", "another good one").goes(t, "/account")
	post.next("ada@example.org", "password of your account was set")
	ada.get("/account").goes(t, "/signin?next=%2Faccount")

	// Changing the password ends links that were mailed before.
	tn.site.limits = newLimits()
	_, code = tn.linkIn(ask("ada@example.org"))
	b.post("/account/password", "old", "another good one", "password", aPassword).goes(t, "/account")
	post.next("ada@example.org", "password of your account was set")
	tn.browser().post("/welcome", "link", code).want(t, 404)

	// Two members with the same address each get a link. A disabled one gets none.
	bob.verify(post, "ada@example.org")
	tn.browser().post("/recover/mail", "address", "ada@example.org").want(t, 200)
	post.next("ada@example.org", "signs ada in")
	_, code = tn.linkIn(post.next("ada@example.org", "signs bob in"))
	check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["bob"].ID, true))
	tn.browser().post("/welcome", "link", code).want(t, 404)
	post.none(tn)
	post.stop()
	if log := tn.log.String(); strings.Contains(log, "example.org") || codeIn.MatchString(log) {
		t.Error("the log tells of an address or a link")
	}
}

// TestMailedLinksExpire checks that each link works until it expires.
func TestMailedLinksExpire(t *testing.T) {
	tn := newTown(t, nil)
	ctx, ada, server := t.Context(), tn.members["ada"].ID, mailtest.Start(t, "none")
	synctest.Test(t, func(t *testing.T) {
		tn.site.limits, tn.site.lookups = newLimits(), make(chan lookup, mostLookups)
		sent := tn.postsTo(t, server)
		defer sent.stop()
		at := time.Now()
		check(t, tn.db.AskEmail(ctx, account.Email{MemberID: ada, Asked: "ada@example.org", Hash: [32]byte{1}, Expires: at.Add(time.Hour)}))
		must1(tn.db.VerifyEmail(ctx, ada, [32]byte{1}, at))
		one := tn.inProcess("192.0.2.1")
		one("/recover/mail", "address", "ada@example.org").want(t, 200)
		_, code := tn.linkIn(sent.next("ada@example.org", complete(time.Now().Add(recoverFor))))
		time.Sleep(recoverFor - time.Second)
		one("/welcome", "link", code).goes(t, "/")
		one("/recover/mail", "address", "ada@example.org").want(t, 200)
		_, code = tn.linkIn(sent.next("ada@example.org"))
		time.Sleep(recoverFor)
		one("/welcome", "link", code).want(t, 404)

		verify := func(wait time.Duration) seen {
			one("/recover/mail", "address", "ada@example.org").want(t, 200)
			_, link := tn.linkIn(sent.next("ada@example.org"))
			cookie := setCookie(t, one("/welcome", "link", link).header, "kith")
			me := tn.inProcessAs("192.0.2.1", cookie)
			me("/account/email", "address", "new@example.org").goes(t, "/account")
			_, code := tn.linkIn(sent.next("new@example.org"))
			for ; wait > time.Hour; wait -= time.Hour { // this keeps the session alive
				time.Sleep(time.Hour)
				me("/account/email", "address", "-").want(t, 403)
			}
			time.Sleep(wait)
			return me("/account/email/verify", "code", code)
		}
		verify(verifyFor).want(t, 404)
		verify(verifyFor-time.Second).goes(t, "/account")
	})
}

// TestMailLimits checks that e-mails are limited by member, by network and by address,
// and that dropping one because of another member is not visible.
func TestMailLimits(t *testing.T) {
	tn := newTown(t, nil)
	tn.site.limits.recoverFrom.Every = time.Hour // none is allowed again during the test
	post := tn.posts(t)
	ada, eve := tn.as("ada"), tn.as("eve")
	began := time.Now()
	for i := range 5 {
		ada.post("/account/email", "address", fmt.Sprintf("ada%d@example.org", i)).goes(t, "/account")
		post.next(fmt.Sprintf("ada%d@example.org", i))
	}
	got := ada.post("/account/email", "address", "ada6@example.org").want(t, 429).header.Get("Retry-After")
	took := int(time.Since(began).Seconds()) + 1
	if wait, err := strconv.Atoi(got); err != nil || wait > 600 || wait < 600-took {
		t.Errorf("wait %q, %d s after the first", got, took)
	}
	for i := range 4 {
		eve.post("/account/email", "address", "VICTIM@example.org").goes(t, "/account")
		eve.get("/account").want(t, 200, "A link was sent to VICTIM@example.org. Open it within a day", "A link was sent to VICTIM@example.org. The address is used")
		if i < 3 {
			post.next("VICTIM@example.org")
		}
	}
	post.none(tn)
	for _, address := range []string{"x@example.org", "X@example.org", "x@Example.org"} {
		tn.browser().post("/recover/mail", "address", address).want(t, 200)
	}
	tn.browser().post("/recover/mail", "address", "x@example.org").want(t, 429, "too many attempts")
	one := tn.inProcess("192.0.2.7")
	for i := range 20 {
		one("/recover/mail", "address", fmt.Sprintf("y%d@example.org", i)).want(t, 200)
	}
	one("/recover/mail", "address", "z@example.org").want(t, 429)
	tn.inProcess("192.0.2.8")("/recover/mail", "address", "z@example.org").want(t, 200)
}

// TestMailServerAway checks that, whatever the mail server does, pages do not wait for it
// and actions succeed.
func TestMailServerAway(t *testing.T) {
	for name, away := range map[string]func(*letters, *town){
		"silent":  func(l *letters, _ *town) { l.server.Misbehave("", "silence") },
		"refuses": func(l *letters, _ *town) { l.server.Misbehave("RCPT", "550 no ada@example.org here") },
		"busy":    func(l *letters, _ *town) { l.server.Misbehave("MAIL", "421 later") },
		"down": func(l *letters, tn *town) {
			l.stop()
			tn.site.mail = mail.New(Mail{Host: "127.0.0.1", Port: 1, From: "kith@hub.example", TLS: mail.NoTLS}, tn.site.Log)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tn := newTown(t, nil)
			post := tn.posts(t)
			ada := tn.as("ada")
			ada.verify(post, "ada@example.org")
			away(post, tn)
			page := func(act func()) { // one attempt to mail takes 30 s, and a page never that long
				t.Helper()
				began := time.Now()
				if act(); time.Since(began) > 25*time.Second {
					t.Errorf("a page took %s", time.Since(began))
				}
			}
			page(func() { ada.post("/account/password", "password", aPassword).goes(t, "/account") })
			page(func() { ada.post("/account/email", "address", "new@example.org").goes(t, "/account") })
			for i := range mostLookups + 10 { // more than can wait
				page(func() {
					tn.inProcess(fmt.Sprintf("192.0.2.%d", i))("/recover/mail", "address", fmt.Sprintf("ada%d@example.org", i)).want(t, 200)
				})
			}
			page(func() { tn.browser().post("/signin", "name", "ada", "password", aPassword).goes(t, "/") })
			post.stop()
			assert.Lacks(t, tn.log.String(), "example.org", "the log tells of an address")
		})
	}
}

// TestNotices checks that the member is notified of each change to the account, and that
// nothing that a member chose gets into a header.
func TestNotices(t *testing.T) {
	p := newIDP(t)
	tn := p.town(newWorld(t), SignUpOpen)
	post := tn.posts(t)
	odd := account.Member{ID: account.NewID("mem_"), Name: "zoe\r\nBcc: eve@example.org\r\n\r\n\u202egnihton", Created: time.Now()}
	check(t, tn.db.CreateMember(t.Context(), odd))
	link := tn.link(odd.ID)
	zoe := tn.browser()
	zoe.post("/welcome", "link", strings.TrimPrefix(link, "/welcome/")).goes(t, "/")
	zoe.verify(post, "zoe@example.org")
	told := func(says string) {
		t.Helper()
		got := post.next("zoe@example.org", "Hello zoe  Bcc: eve@example.org", says)
		if got.Header.Get("Bcc") != "" || strings.Contains(got.Head, "eve@") || strings.Contains(got.Text, "\u202e") || got.From != "kith@hub.example" ||
			got.Header.Get("Subject") != "kith: a change to your account" || strings.Contains(got.Text, "\nBcc") || !strings.Contains(got.Text, tn.web.URL+"/sessions") {
			t.Errorf("the letter is %s\n\n%s", got.Head, got.Text)
		}
		assert.That(t, !codeIn.MatchString(got.Text), "a notice holds a secret")
	}
	zoe.post("/account/password", "password", aPassword).goes(t, "/account")
	told("The password of your account was set. It was done from the network address 127.0.0.1.")
	zoe.post("/account/codes", "old", aPassword).want(t, 200)
	told("New recovery codes were created")
	zoe.enrol("my <phone>\r\nBcc: eve@example.org\u2028x")
	told("A passkey was added to your account: my <phone>  Bcc: eve@example.org x.")
	zoe.post("/account/passkeys/remove", "passkey", must1(tn.db.Passkeys(t.Context(), odd.ID))[0].ID).goes(t, "/account")
	told("A passkey was removed")
	zoe.through(p.at("z", "z\r\n@there"), "/account/provider").goes(t, "/account")
	told("was linked to yours and can sign you in: z  @there.")
	zoe.post("/account/provider/remove", "identity", must1(tn.db.Identities(t.Context(), odd.ID))[0].ID).goes(t, "/account")
	told("was removed from yours")
	tn.link(odd.ID)
	told("The operator of this hub made a link")
	d := tn.ask4("scope", "machine", "name", "box2", "client", "a test")
	zoe.post("/device", "code", d.user).want(t, 200)
	zoe.post("/device/decide", "code", d.user, "decision", "approve").want(t, 200)
	told("A machine was approved, with the name box2")

	// Also of recovery with a code.
	ada := tn.as("ada")
	ada.verify(post, "ada@example.org")
	page := ada.post("/account/codes").want(t, 200)
	post.next("ada@example.org", "New recovery codes")
	tn.browser().post("/recover", "name", "ada", "code", strings.Fields(textOf(t, page, "codes"))[0], "password", aPassword).goes(t, "/account")
	post.next("ada@example.org", "A recovery code was used")

	// But not of what was refused.
	ada = tn.as("ada")
	post.next("ada@example.org", "The operator of this hub made a link") // NewLink is an operator's action
	ada.post("/account/passkeys/remove", "passkey", "pky_none").want(t, 404)
	ada.post("/account/password", "password", "short").want(t, 400)
	post.none(tn)
}

// TestBadAddresses checks that anything but a plain address is refused, and nothing is
// sent.
func TestBadAddresses(t *testing.T) {
	tn := newTown(t, nil)
	post := tn.posts(t)
	ada := tn.as("ada")
	for _, bad := range []string{"", "ada", "ada@example.org\r\nBcc: eve@example.org", "a@example.org, b@example.org", "Ada <ada@example.org>", "adа@example.org", "ada@example.org\x00", strings.Repeat("a", 300) + "@example.org"} {
		ada.post("/account/email", "address", bad).want(t, 400, "an e-mail address is like")
		ada.post("/recover/mail", "address", bad).want(t, 400, "an e-mail address is like")
		tn.site.limits = newLimits()
	}
	post.none(tn)
}

// TestNoMail checks that without a mail server no page offers mail.
func TestNoMail(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	for path, form := range map[string][]string{"/account/email": {"address", "ada@example.org"}, "/recover/mail": {"address", "ada@example.org"}} {
		ada.post(path, form...).want(t, http.StatusNotFound, "this hub sends no mail")
	}
	for _, path := range []string{"/account", "/recover"} {
		if page := ada.get(path).want(t, 200); strings.Contains(page.body, "mail") {
			t.Errorf("%s offers mail", path)
		}
	}
	if _, sends := tn.site.MailPart(); sends {
		t.Error("it has a state of its mail")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check(t, tn.site.runMail(ctx))
}
