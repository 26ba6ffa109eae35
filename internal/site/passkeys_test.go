package site

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
)

// authenticator is a software authenticator with one passkey. Tests can falsify its
// answers.
type authenticator struct {
	t      *testing.T
	key    *ecdsa.PrivateKey
	id     []byte
	handle []byte // whose passkey it is
	signs  uint32 // its counter, after the first use
	origin string
	party  string
	flags  byte // user present 1, verified 4
}

func newAuthenticator(t *testing.T, base string) *authenticator {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	return &authenticator{t: t, key: key, id: id, origin: base, party: must1(url.Parse(base)).Hostname(), flags: 1 | 4}
}

func b64(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

func (a *authenticator) clientData(kind, challenge string) []byte {
	return must1(json.Marshal(map[string]any{"type": kind, "challenge": challenge, "origin": a.origin, "crossOrigin": false}))
}

func (a *authenticator) data(more byte, rest []byte) []byte {
	party := sha256.Sum256([]byte(a.party))
	data := append(party[:], a.flags|more)
	return append(binary.BigEndian.AppendUint32(data, a.signs), rest...)
}

func (a *authenticator) answer(response map[string]string) string {
	return string(must1(json.Marshal(map[string]any{
		"id": b64(a.id), "rawId": b64(a.id), "type": "public-key", "response": response, "clientExtensionResults": map[string]any{},
	})))
}

// create answers navigator.credentials.create.
func (a *authenticator) create(challenge string) string {
	point := must1(a.key.PublicKey.Bytes()) // 4, x, y
	public := must1(cbor.Marshal(map[int]any{1: 2, 3: -7, -1: 1, -2: point[1:33], -3: point[33:]}))
	credential := binary.BigEndian.AppendUint16(make([]byte, 16), uint16(len(a.id)))
	credential = append(append(credential, a.id...), public...)
	object := must1(cbor.Marshal(map[string]any{"fmt": "none", "attStmt": map[string]any{}, "authData": a.data(0x40, credential)}))
	return a.answer(map[string]string{"clientDataJSON": b64(a.clientData("webauthn.create", challenge)), "attestationObject": b64(object)})
}

// get answers navigator.credentials.get and increases the counter.
func (a *authenticator) get(challenge string) string {
	a.signs++
	client, data := a.clientData("webauthn.get", challenge), a.data(0, nil)
	clientHash := sha256.Sum256(client)
	digest := sha256.Sum256(append(data[:len(data):len(data)], clientHash[:]...))
	signature, err := ecdsa.SignASN1(rand.Reader, a.key, digest[:])
	check(a.t, err)
	return a.answer(map[string]string{
		"clientDataJSON": b64(client), "authenticatorData": b64(data), "signature": b64(signature), "userHandle": b64(a.handle),
	})
}

// challenged is the challenge that the site sends to a script.
type challenged struct {
	PublicKey struct {
		Challenge        string
		Timeout          int
		RpID             string `json:"rpId"`
		UserVerification string `json:"userVerification"`
		Rp               struct{ ID, Name string }
		User             struct{ ID, Name string }
		Exclude          []struct{ ID string }                          `json:"excludeCredentials"`
		Selection        struct{ ResidentKey, UserVerification string } `json:"authenticatorSelection"`
	} `json:"publicKey"`
}

func (b *browser) challenge(path string, fields ...string) (asked challenged) {
	b.t.Helper()
	page := b.post(path, fields...).want(b.t, 200)
	check(b.t, json.Unmarshal([]byte(page.body), &asked, json.MatchCaseInsensitiveNames(true)))
	return asked
}

// enrol adds a passkey to the account of the browser.
func (b *browser) enrol(name string) *authenticator {
	b.t.Helper()
	a := newAuthenticator(b.t, b.web.URL)
	asked := b.challenge("/account/passkeys/begin").PublicKey
	a.handle = must1(base64.RawURLEncoding.DecodeString(asked.User.ID))
	b.post("/account/passkeys", "name", name, "answer", a.create(asked.Challenge)).goes(b.t, "/account")
	return a
}

// signInWith signs a browser in with a passkey.
func (b *browser) signInWith(a *authenticator) seen {
	b.t.Helper()
	b.site.limits = newLimits()
	return b.post("/signin/passkey", "next", "/machines", "answer", a.get(b.challenge("/signin/passkey/begin").PublicKey.Challenge))
}

func TestPasskeys(t *testing.T) { onEachStore(t, testPasskeys) }

func testPasskeys(t *testing.T, tn *town) {
	ada := tn.as("ada")
	ada.get("/account").want(t, 200, `data-passkey="/account/passkeys/begin"`, "passkey.js", "needs JavaScript")
	tn.browser().get("/signin?next=/machines").want(t, 200, `data-passkey="/signin/passkey/begin"`, "need JavaScript")
	asked := ada.challenge("/account/passkeys/begin").PublicKey
	if asked.Rp.ID != "localhost" || asked.User.Name != "ada" || asked.Selection.ResidentKey != "required" || asked.Selection.UserVerification != "required" || len(asked.Challenge) < 22 || asked.Timeout != 300_000 {
		t.Errorf("asked %+v", asked)
	}
	key := ada.enrol("my <b>phone")
	page := ada.get("/account").want(t, 200, "Passkey added", "my &lt;b&gt;phone", "used never")
	assert.Lacks(t, page.body, "<b>phone", "a passkey's name is mark-up")
	if known := ada.challenge("/account/passkeys/begin").PublicKey.Exclude; len(known) != 1 || known[0].ID != b64(key.id) {
		t.Errorf("the next one is told of %+v", known)
	}

	// Signing in without a name works repeatedly.
	b := tn.browser()
	if asked := b.challenge("/signin/passkey/begin").PublicKey; asked.RpID != "localhost" || asked.UserVerification != "required" {
		t.Errorf("asked %+v", asked)
	}
	b.signInWith(key).goes(t, "/machines")
	b.get("/sessions").want(t, 200, "passkey")
	b.post("/signout").goes(t, "/signin")
	b.signInWith(key).goes(t, "/machines")
	if used := must1(tn.db.Passkeys(t.Context(), tn.members["ada"].ID))[0]; used.Signs != 2 || used.Used.IsZero() {
		t.Errorf("kept %+v", used)
	}

	// A copy of the passkey, with a smaller counter, is refused, and so is a repeated
	// answer.
	key.signs--
	b.signInWith(key).want(t, 403, "not accepted")
	challenge := b.challenge("/signin/passkey/begin").PublicKey.Challenge
	once := key.get(challenge)
	tn.browser().post("/signin/passkey", "answer", once).goes(t, "/")
	tn.browser().post("/signin/passkey", "answer", once).want(t, 403)
	tn.browser().post("/signin/passkey", "answer", key.get(challenge)).want(t, 403)

	// A removed passkey does not sign in, and sessions that may have used it end. The
	// last sign-in method cannot be removed.
	id := must1(tn.db.Passkeys(t.Context(), tn.members["ada"].ID))[0].ID
	ada.post("/account/passkeys/remove", "passkey", id).want(t, 400, "set a password first")
	ada.post("/account/password", "password", aPassword).goes(t, "/account")
	b.signInWith(key).goes(t, "/machines")
	tn.as("bob").post("/account/passkeys/remove", "passkey", id).want(t, 404)
	ada.post("/account/passkeys/remove", "passkey", id).goes(t, "/account")
	b.get("/account").goes(t, "/signin?next=%2Faccount")
	ada.get("/account").want(t, 200, "Passkey removed")
	b.signInWith(key).want(t, 403)
}

// TestPasskeysRefused checks that all invalid answers get the same message and give no
// access.
func TestPasskeysRefused(t *testing.T) {
	tn := newTown(t, nil)
	ada, bob := tn.as("ada"), tn.as("bob")
	key, bobs := ada.enrol("phone"), bob.enrol("phone")
	var message string
	refused := func(name string, answer string) {
		t.Helper()
		tn.site.limits = newLimits()
		got := tn.browser().post("/signin/passkey", "answer", answer)
		if message == "" {
			message = problemIn(got.body)
		}
		if got.status != 403 || problemIn(got.body) != message || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d %s", name, got.status, problemIn(got.body))
		}
	}
	fresh := func() string {
		tn.site.limits = newLimits()
		return tn.browser().challenge("/signin/passkey/begin").PublicKey.Challenge
	}
	for name, spoil := range map[string]func(*authenticator){
		"another site":        func(a *authenticator) { a.origin = "https://evil.example" },
		"another port":        func(a *authenticator) { a.origin = "http://localhost:1" },
		"another party":       func(a *authenticator) { a.party = "evil.example" },
		"nobody verified":     func(a *authenticator) { a.flags = 1 },
		"nobody present":      func(a *authenticator) { a.flags = 4 },
		"another key":         func(a *authenticator) { a.key = newAuthenticator(t, tn.web.URL).key },
		"another member":      func(a *authenticator) { a.handle = bobs.handle },
		"no member":           func(a *authenticator) { a.handle = nil },
		"no such member":      func(a *authenticator) { a.handle = []byte("mem_\x00\xff") },
		"another credential":  func(a *authenticator) { a.id = []byte("nobody's") },
		"another's":           func(a *authenticator) { a.id = bobs.id },
		"a synced one of now": func(a *authenticator) { a.flags |= 8 },
	} {
		wrong := *key
		spoil(&wrong)
		refused(name, wrong.get(fresh()))
		key.signs = max(key.signs, wrong.signs)
	}
	refused("a challenge of its own", key.get(b64(make([]byte, 32))))
	refused("a challenge to make one", key.get(ada.challenge("/account/passkeys/begin").PublicKey.Challenge))
	refused("what makes one", key.create(fresh()))
	good := key.get(fresh())
	for i := 0; i < len(good); i += 37 {
		refused("a part", good[:i])
	}
	for _, nonsense := range []string{"", "null", "[]", `{"id":1}`, `{"id":"","rawId":"","type":"public-key","response":{}}`, strings.Repeat("[", 5000), "\x00\xff"} {
		refused("nonsense", nonsense)
	}
	check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["bob"].ID, true))
	forged := *bobs
	forged.key = key.key
	refused("another's answer in a disabled member's name", forged.get(fresh()))
	bobs.signs = max(bobs.signs, forged.signs)
	tn.browser().post("/signin/passkey", "answer", bobs.get(fresh())).want(t, 403, "this account is disabled")

	// The same for creating a passkey.
	begin := func() string { return ada.challenge("/account/passkeys/begin").PublicKey.Challenge }
	other := newAuthenticator(t, tn.web.URL)
	eve := tn.as("eve")
	eve.post("/account/passkeys", "answer", other.create(begin())).want(t, 400, "not added")
	ada.post("/account/passkeys", "answer", other.create(fresh())).want(t, 400, "not added")
	ada.post("/account/passkeys", "answer", key.create(begin())).want(t, 400, "already in use")
	eve.post("/account/passkeys", "answer", key.create(eve.challenge("/account/passkeys/begin").PublicKey.Challenge)).want(t, 400, "already in use")
	other.flags = 1
	ada.post("/account/passkeys", "answer", other.create(begin())).want(t, 400, "not added")
	other.flags, other.origin = 1|4, "https://evil.example"
	ada.post("/account/passkeys", "answer", other.create(begin())).want(t, 400, "not added")
	ada.post("/account/passkeys", "answer", "x").want(t, 400, "not added")
	if n := len(must1(tn.db.Passkeys(t.Context(), tn.members["ada"].ID))) + len(must1(tn.db.Passkeys(t.Context(), tn.members["eve"].ID))); n != 1 {
		t.Errorf("%d passkeys were made", n)
	}
}

// TestReplayedAssertions checks that none of 1,000 repeated answers is accepted.
func TestReplayedAssertions(t *testing.T) {
	tn := newTown(t, nil)
	key := tn.as("ada").enrol("phone")
	accepted := 0
	for range 100 {
		asked := must1(tn.site.signInChallenge(&visit{Request: must1(http.NewRequestWithContext(t.Context(), "POST", "/", nil)), from: "192.0.2.1"}))
		tn.site.limits = newLimits()
		answer := key.get(asked.Response.Challenge.String())
		assert.Value(tn.site.asserted(t.Context(), answer))(t)
		for range 10 {
			if _, err := tn.site.asserted(t.Context(), answer); err == nil {
				accepted++
			}
		}
	}
	assert.That(t, accepted <= 0, accepted, "of 1,000 were accepted")
}

// TestPasskeyTimes checks that a challenge is valid for five minutes, and that adding a
// passkey requires a recent sign-in or the password.
func TestPasskeyTimes(t *testing.T) {
	tn := newTown(t, nil)
	tn.as("ada").post("/account/password", "password", aPassword).goes(t, "/account")
	key := tn.as("bob").enrol("phone")
	synctest.Test(t, func(t *testing.T) {
		tn.site.limits, tn.site.Passwords = newLimits(), api.New(api.Config{}).Passwords
		time.Sleep(time.Until(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))) // later than all records in the store
		send := tn.inProcess("192.0.2.1")
		challenge := func(path string, fields ...string) (asked challenged) {
			check(t, json.Unmarshal([]byte(send(path, fields...).want(t, 200).body), &asked, json.MatchCaseInsensitiveNames(true)))
			return asked
		}
		late := key.get(challenge("/signin/passkey/begin").PublicKey.Challenge)
		time.Sleep(ceremonyLife)
		send("/signin/passkey", "answer", late).want(t, 403)
		in := key.get(challenge("/signin/passkey/begin").PublicKey.Challenge)
		time.Sleep(ceremonyLife - time.Second)
		bobs := setCookie(t, send("/signin/passkey", "answer", in).header, "kith")
		adas := setCookie(t, send("/signin", "name", "ada", "password", aPassword).header, "kith")
		begin := func(cookie string, fields ...string) int {
			return tn.inProcessAs("192.0.2.1", cookie)("/account/passkeys/begin", fields...).status
		}
		for _, cookie := range []string{adas, bobs} {
			assert.Equal(t, begin(cookie), 200, "just after the sign-in")
		}
		time.Sleep(recentFor)
		assert.Equal(t, begin(adas), 403, "without the password")
		assert.Equal(t, begin(adas, "old", aPassword), 200, "with the password")
		assert.Equal(t, begin(bobs, "old", aPassword), 403, "a while after a passkey")
		if got := tn.inProcessAs("192.0.2.1", bobs)("/account/password", "password", aPassword).status; got != 403 {
			t.Errorf("a password, a while after a passkey: %d", got)
		}
	})
}

// TestNoPasskeys checks that the site offers no passkeys if browsers would refuse them.
func TestNoPasskeys(t *testing.T) {
	for base, can := range map[string]bool{
		"https://hub.example.org": true, "https://hub.example.org:8443": true, "http://localhost:8700": true, "http://hub.localhost": true,
		"http://hub.example.org": false, "http://127.0.0.1:8700": false, "https://192.0.2.1": false, "https://[2001:db8::1]": false, "": false, "://": false,
	} {
		assert.Equal(t, newPasskeys(base) != nil, can, base)
	}
	tn := newTown(t, func(c *Config) { c.Base = "http://127.0.0.1:1" })
	ada := tn.as("ada")
	ada.get("/account").want(t, 200, "public_url")
	for _, path := range []string{"/signin/passkey/begin", "/signin/passkey", "/account/passkeys/begin", "/account/passkeys"} {
		ada.post(path).want(t, 400, "public_url")
	}
	if page := tn.browser().get("/signin"); strings.Contains(page.body, "passkey") {
		t.Error("passkeys are offered where there can be none")
	}
}

func TestPasskeysAreBounded(t *testing.T) {
	tn := newTown(t, nil)
	for i := range maxPasskeys {
		check(t, tn.db.AddPasskey(t.Context(), account.Passkey{ID: account.NewID("pky_"), MemberID: tn.members["ada"].ID, Name: "x", Credential: []byte{byte(i), 1}, PublicKey: []byte{1}, Created: time.Now()}))
	}
	tn.as("ada").post("/account/passkeys/begin").want(t, 400, "remove one first")
}

// TestPasskeyOfAnothersChallenge checks that a challenge from ada's page does not add a
// passkey to bob's account, and is used up by the attempt.
func TestPasskeyOfAnothersChallenge(t *testing.T) {
	tn := newTown(t, nil)
	ada, bob := tn.as("ada"), tn.as("bob")
	key := newAuthenticator(t, tn.web.URL)
	answer := key.create(ada.challenge("/account/passkeys/begin").PublicKey.Challenge)
	bob.post("/account/passkeys", "answer", answer).want(t, 400, "was not added")
	ada.post("/account/passkeys", "answer", answer).want(t, 400, "was not added")
	for _, name := range []string{"ada", "bob"} {
		if got := must1(tn.db.Passkeys(t.Context(), tn.members[name].ID)); len(got) > 0 {
			t.Errorf("%s has %+v", name, got)
		}
	}
}
