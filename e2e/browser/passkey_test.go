package browser_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/webauthn"
	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// TestPasskey: a member adds a passkey, signs in by it without a name, twice, and
// removes it, after which it opens nothing. Without scripts the pages say that
// passkeys need them.
func TestPasskey(t *testing.T) {
	t.Parallel()
	browser := chromium(t, nil)
	s := stageAt(t, enginetest.FreeAddress())
	b := newTab(t, browser, s.base, true)
	b.authenticator()
	b.open(s.first)
	b.send("#sign-up", "#name", "op", "#password", "correct horse battery")
	b.open("/account")
	b.inspect("account-passkeys")
	b.send("#add-passkey", "#passkey-name", "this laptop")
	b.see("Passkey added")
	b.see("this laptop")
	b.inspect("account-passkey")

	for range 2 {
		b.send("form[action='/signout'] button")
		b.open("/signin?next=/sessions")
		b.inspect("signin-passkey")
		b.send("#use-passkey")
		b.see("passkey")
		assert.Equal(t, b.at(), s.base+"/sessions", "the sign-in leads to")
	}
	b.open("/account")
	b.send("#passkeys form button")
	b.see("Passkey removed")
	b.send("form[action='/signout'] button")
	b.open("/signin")
	b.leads(403, clickOn("#use-passkey"))
	b.see("was not accepted")
	b.send("#sign-in", "#name", "op", "#password", "correct horse battery")
	b.see("Hello, op")
	b.quiet()

	plain := newTab(t, browser, s.base, false)
	plain.open("/signin")
	plain.see("Passkeys need JavaScript")
	plain.send("#sign-in", "#name", "op", "#password", "correct horse battery")
	plain.open("/account")
	plain.see("Adding a passkey needs JavaScript")
	plain.quiet()
}

// authenticator gives the tab one of its own, whose owner is always there.
func (b *tab) authenticator() {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, webauthn.Enable, webauthn.EnableParams{})
	if err == nil {
		_, err = chromedp.Call(b.ctx, webauthn.AddVirtualAuthenticator, webauthn.AddVirtualAuthenticatorParams{Options: &webauthn.VirtualAuthenticatorOptions{
			Protocol: webauthn.AuthenticatorProtocolCtap2, Transport: webauthn.AuthenticatorTransportInternal,
			HasResidentKey: true, HasUserVerification: true, IsUserVerified: true, AutomaticPresenceSimulation: true,
		}})
	}
	assert.OK(b.t, err)
}

// stageAt is a stage whose hub has a name, as passkeys need, and listens there.
func stageAt(t *testing.T, listen string, models ...string) *stage {
	t.Helper()
	named := strings.Replace(listen, "127.0.0.1", "localhost", 1)
	return newStageWith(t, listen, fmt.Sprintf("[hub]\npublic_url = \"http://%s\"\n", named), models...)
}
