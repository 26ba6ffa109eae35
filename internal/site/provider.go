package site

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json/v2"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// Provider is an OpenID provider that members may use to sign in.
type Provider struct {
	Issuer       string // its address, exactly as in its metadata; empty: no provider
	ClientID     string
	ClientSecret string // empty: the hub is a public client
	Name         string // on the button
}

// LogValue hides the secret from slog.
func (p Provider) LogValue() slog.Value { return slog.StringValue(p.Issuer) }

// backPath is the redirect URI that the provider sends browsers back to.
const backPath = "/signin/provider/back"

// Time limits of a sign-in at a provider.
const (
	providerWithin = 10 * time.Second // for each of its responses
	awayFor        = 10 * time.Minute // while the member is at the provider
	newcomerFor    = 30 * time.Minute // while a new member chooses a name
)

// provider is the configured provider. Its metadata is fetched on the first sign-in, so
// that a hub starts even if the provider is down.
type provider struct {
	Provider
	back   string // the redirect URI
	client *http.Client
	now    func() time.Time
	known  atomic.Pointer[known]
}

// known is the provider's metadata.
type known struct {
	oauth    *oauth2.Config
	verifier *oidc.IDTokenVerifier
}

// newProvider returns the provider, or nil if none is configured.
func newProvider(p Provider, base string, now func() time.Time) *provider {
	if p.Issuer == "" {
		return nil
	}
	client := &http.Client{Timeout: providerWithin, CheckRedirect: noSecretElsewhere}
	return &provider{Provider: p, back: base + backPath, client: client, now: now}
}

// noSecretElsewhere allows redirects only for GET. If the client followed a 307 from the
// token endpoint, it would send the hub's secret and the member's code to another server.
func noSecretElsewhere(to *http.Request, via []*http.Request) error {
	switch first := via[0]; {
	case first.Method != http.MethodGet:
		return fmt.Errorf("it points to %s, and the secret is sent only to the endpoint itself", to.URL.Host)
	case first.URL.Scheme == "https" && to.URL.Scheme != "https":
		return fmt.Errorf("it points to %s without TLS", to.URL.Host)
	case len(via) >= 10:
		return errors.New("too many redirects")
	}
	return nil
}

// name returns the text of its button, empty if there is no provider.
func (p *provider) name() string {
	if p == nil {
		return ""
	}
	return p.Name
}

// discover fetches the provider's metadata, and caches it after the first success.
func (p *provider) discover(ctx context.Context) (*known, error) {
	if k := p.known.Load(); k != nil {
		return k, nil
	}
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.Issuer)
	if err != nil {
		return nil, fault.New(fault.CascadeExhausted,
			"%s cannot be reached just now; try again shortly, or sign in in another way", p.Name).Because(err)
	}
	if token := found.Endpoint().TokenURL; strings.HasPrefix(p.Issuer, "https://") &&
		!strings.HasPrefix(token, "https://") {
		return nil, fault.New(fault.CascadeExhausted, "%s cannot be used: ask this hub's operator", p.Name).
			Because(fmt.Errorf("its token endpoint %q is not https, so the secret would not be encrypted", token))
	}
	k := &known{
		oauth: &oauth2.Config{
			ClientID: p.ClientID, ClientSecret: p.ClientSecret, Endpoint: found.Endpoint(), RedirectURL: p.back,
			Scopes: []string{oidc.ScopeOpenID, "profile"},
		},
		verifier: found.Verifier(&oidc.Config{ClientID: p.ClientID, Now: p.now}),
	}
	if p.ClientSecret == "" {
		k.oauth.Endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	p.known.Store(k)
	return k, nil
}

// away is the state that the session keeps while the member is at the provider.
type away struct {
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"` // PKCE
	Next     string `json:"next"`
	Invite   string `json:"invite"`
}

// newcomer is an account at the provider that is not bound to a member yet, while its
// owner chooses a name. It is kept in the browser's session.
type newcomer struct {
	Issuer  string    `json:"issuer"`
	Subject string    `json:"subject"`
	Shown   string    `json:"shown"`
	Invite  string    `json:"invite"`
	Next    string    `json:"next"`
	Until   time.Time `json:"until"`
}

// seeProvider handles POST /signin/provider next, invite: it sends a visitor to the
// provider.
func (s *Site) seeProvider(v *visit) (reply, error) {
	return s.sendOn(v, "", away{Next: s.localPath(v.form.Get("next")), Invite: v.form.Get("invite")})
}

// linkProvider handles POST /account/provider: it sends a member to the provider to bind
// an account there.
func (s *Site) linkProvider(v *visit) (reply, error) {
	if err := s.checkRecent(v); err != nil {
		return reply{}, err
	}
	return s.sendOn(v, v.me.ID, away{Next: "/account"})
}

func noProvider() error {
	return fault.New(fault.NotFound, "this hub has no sign-in provider")
}

// sendOn shows a page that links to the provider. It is not a redirect, because the
// content security policy allows no form to lead off the site.
func (s *Site) sendOn(v *visit, memberID string, going away) (reply, error) {
	if s.provider == nil {
		return reply{}, noProvider()
	}
	if err := s.slowDown(v); err != nil {
		return reply{}, err
	}
	k, err := s.provider.discover(v.Context())
	if err != nil {
		s.Log.Warn("cannot read the metadata of the OpenID provider", "issuer", s.provider.Issuer,
			"error", errors.Unwrap(err))
		return reply{}, err
	}
	state := rand.Text()
	going.Nonce, going.Verifier = rand.Text(), oauth2.GenerateVerifier()
	c := account.Ceremony{Kind: account.AtProvider, MemberID: memberID, Expires: s.DB.Now().UTC().Add(awayFor)}
	if err := s.remember(v.Context(), state, c, going); err != nil {
		return reply{}, err
	}
	s.sessions.Put(v.Context(), sessionState, state)
	to := k.oauth.AuthCodeURL(state, oidc.Nonce(going.Nonce), oauth2.S256ChallengeOption(going.Verifier))
	return reply{page: "leave", title: "Continue to " + s.provider.Name,
		data: map[string]string{"Name": s.provider.Name, "To": to}}, nil
}

// comeBack handles GET /signin/provider/back, to which the provider redirects the browser
// with a code. The state is valid once, and only in the browser that began the sign-in.
func (s *Site) comeBack(v *visit) (reply, error) {
	if s.provider == nil {
		return reply{}, noProvider()
	}
	query, began := v.URL.Query(), s.sessions.GetString(v.Context(), sessionState)
	stray := fault.New(fault.NotAllowed, "this sign-in did not start in this browser: start it again here")
	if state := query.Get("state"); began == "" || subtle.ConstantTimeCompare([]byte(state), []byte(began)) != 1 {
		return reply{}, stray
	}
	s.sessions.Remove(v.Context(), sessionState)
	var from away
	memberID, err := s.recall(v.Context(), began, account.AtProvider, &from)
	if errors.Is(err, account.ErrNotFound) || err == nil && memberID != "" && memberID != v.me.ID {
		return reply{}, stray
	}
	if err != nil {
		return reply{}, err
	}
	if why := query.Get("error"); why != "" {
		s.Log.Info("sign-in refused", "from", v.from, "how", "provider", "cause", plain(why, 60))
		return reply{}, fault.New(fault.NotAllowed, "%s did not sign you in: %q", s.provider.Name, plain(why, 60))
	}
	who, err := s.whoCame(v.Context(), query, from)
	if err != nil {
		return reply{}, err
	}
	if memberID != "" {
		return s.bind(v, who)
	}
	return s.signInAs(v, who, from)
}

// whoCame returns the account that the provider confirms with an ID token. It checks that
// the token is fresh and was issued for this hub and this sign-in.
func (s *Site) whoCame(ctx context.Context, query url.Values, from away) (who account.Identity, err error) {
	refuse := func(cause error) (account.Identity, error) {
		s.Log.Warn("the OpenID provider's answer was refused", "issuer", s.provider.Issuer, "cause", cause)
		return who, fault.New(fault.NotAllowed,
			"the answer of %s was not accepted; try again, or ask this hub's operator", s.provider.Name).Because(cause)
	}
	k, err := s.provider.discover(ctx)
	if err != nil {
		return who, err
	}
	if iss := query.Get("iss"); iss != "" && iss != s.provider.Issuer { // RFC 9207
		return refuse(errors.New("another issuer sent it"))
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, s.provider.client), providerWithin)
	defer cancel()
	token, err := k.oauth.Exchange(ctx, query.Get("code"), oauth2.VerifierOption(from.Verifier))
	if refusal := (*oauth2.RetrieveError)(nil); errors.As(err, &refusal) {
		return refuse(errors.New("it refused the code: " + plain(refusal.ErrorCode, 60))) // the full text is untrusted
	}
	if err != nil {
		s.Log.Warn("cannot redeem a code at the OpenID provider", "issuer", s.provider.Issuer, "error", err)
		return who, fault.New(fault.CascadeExhausted, "%s cannot be reached just now; try again shortly",
			s.provider.Name).Because(err)
	}
	raw, _ := token.Extra("id_token").(string)
	signed, err := k.verifier.Verify(ctx, raw)
	if err != nil {
		return refuse(err)
	}
	if subtle.ConstantTimeCompare([]byte(signed.Nonce), []byte(from.Nonce)) != 1 {
		return refuse(errors.New("the token belongs to another sign-in"))
	}
	if signed.Subject == "" || plain(signed.Subject, 255) != signed.Subject {
		return refuse(errors.New("the token has no valid account id"))
	}
	var forParty struct {
		Client string `json:"azp"`
	}
	if err := signed.Claims(&forParty); err != nil || forParty.Client != "" && forParty.Client != s.provider.ClientID {
		return refuse(errors.New("the token was made for another client")) // OpenID Connect Core 3.1.3.7
	}
	var says struct {
		Username string `json:"preferred_username"`
		Name     string `json:"name"`
	}
	_ = signed.Claims(&says) // only for display
	shown := cmp.Or(plain(says.Username, 100), plain(says.Name, 100))
	return account.Identity{Issuer: signed.Issuer, Subject: signed.Subject, Shown: shown}, nil
}

// bind adds the provider's account to the sign-in methods of the current member.
func (s *Site) bind(v *visit, who account.Identity) (reply, error) {
	who.ID, who.MemberID, who.Created = account.NewID("idn_"), v.me.ID, s.DB.Now().UTC().Truncate(time.Millisecond)
	if err := s.DB.AddIdentity(v.Context(), who); err != nil {
		return reply{}, api.Taken(err, "that account at %s is already linked to a member",
			s.provider.Name)
	}
	s.Log.Info("identity bound", "member", v.me.ID, "identity", who.ID)
	s.notice(v, "An account at "+line(s.provider.Name)+" was linked to yours and can sign you in: "+line(cmp.Or(who.Shown,
		who.Subject))+".")
	return reply{to: "/account", done: "Your account at " + s.provider.Name + " is linked: you can sign in with it."}, nil
}

// signInAs signs in the member bound to the provider's account. If there is none, the
// visitor may sign up as the operator's rule allows. A member is never matched by name or
// e-mail address.
func (s *Site) signInAs(v *visit, who account.Identity, from away) (reply, error) {
	bound, err := s.DB.Identity(v.Context(), who.Issuer, who.Subject)
	if errors.Is(err, account.ErrNotFound) {
		return s.greet(v, who, from)
	}
	if err != nil {
		return reply{}, err
	}
	member, err := s.DB.Member(v.Context(), bound.MemberID)
	if err != nil {
		return reply{}, err
	}
	if member.Disabled {
		return reply{}, disabled()
	}
	if err := s.begin(v, member, "provider"); err != nil {
		return reply{}, err
	}
	return reply{to: from.Next}, nil
}

func (s *Site) greet(v *visit, who account.Identity, from away) (reply, error) {
	if s.SignUp == SignUpClosed {
		return reply{}, fault.New(fault.NotAllowed, "no member here uses this account at %s, "+
			"and sign-up is closed. If you are a member, sign in the way you usually do and link it on your Account page", s.provider.Name)
	}
	text, err := json.Marshal(newcomer{who.Issuer, who.Subject, who.Shown, from.Invite, from.Next,
		s.DB.Now().Add(newcomerFor).UTC()})
	if err != nil {
		return reply{}, err
	}
	s.sessions.Put(v.Context(), sessionNewcomer, string(text))
	return reply{to: "/signup/provider"}, nil
}

// newcomer returns the account from the provider in this browser's session, or nil if
// there is none or it is too old.
func (s *Site) newcomer(v *visit) *newcomer {
	var n newcomer
	err := json.Unmarshal([]byte(s.sessions.GetString(v.Context(), sessionNewcomer)), &n)
	if err != nil || s.provider == nil || n.Issuer != s.provider.Issuer || s.DB.Now().After(n.Until) {
		return nil
	}
	return &n
}

// newcomerData is the content of the sign-up form for an account from the provider.
type newcomerData struct {
	signUpData
	Shown, Name string
}

// newcomerPage handles GET /signup/provider. A form that was sent too late gets the normal
// sign-up form, which begins again at the provider.
func (s *Site) newcomerPage(v *visit) (reply, error) {
	n := s.newcomer(v)
	if n == nil && v.Method == http.MethodPost {
		return s.signUpPage(v)
	}
	if n == nil {
		return reply{to: "/signin"}, nil
	}
	data := newcomerData{Shown: n.Shown, Name: v.form.Get("name")}
	data.Provider, data.Invite = s.provider.Name, cmp.Or(v.form.Get("invite"), n.Invite)
	data.Seen = s.seenInvite(v, data.Invite)
	if data.Name == "" && api.CheckChosenName(n.Shown) == nil {
		data.Name = n.Shown
	}
	return reply{page: "newcomer", title: "Sign up", data: data}, nil
}

// signUpByProvider handles POST /signup/provider name, invite: it creates a member
// without a password.
func (s *Site) signUpByProvider(v *visit) (reply, error) {
	if err := s.slowDown(v); err != nil {
		return reply{}, err
	}
	n := s.newcomer(v)
	if n == nil {
		return reply{}, fault.New(fault.NotAllowed, "that took too long: start again")
	}
	made, err := s.newMember(v)
	if err != nil {
		return reply{}, err
	}
	made.Identity = &account.Identity{
		ID: account.NewID("idn_"), MemberID: made.Member.ID, Issuer: n.Issuer, Subject: n.Subject, Shown: n.Shown,
		Created: made.Member.Created,
	}
	if _, err := s.DB.Identity(v.Context(), n.Issuer, n.Subject); err == nil {
		return reply{}, fault.New(fault.InvalidRequest, "that account at %s is already linked: sign in with it",
			s.provider.Name)
	}
	seen, _ := s.SeeInvite(v.Context(), api.InviteIn(v.form.Get("invite"))) // who invites, before the invite is used up
	if err := s.takeIn(v, made, "provider"); err != nil || n.Next != "/" {
		return reply{to: n.Next}, err
	}
	return s.invited(v, made.Member, seen.Owner, n.Next), nil
}

// unbind handles POST /account/provider/remove identity. It ends the member's other
// sessions.
func (s *Site) unbind(v *visit) (reply, error) {
	id := v.form.Get("identity")
	if err := s.DB.RemoveIdentity(v.Context(), v.me.ID, id, s.sessionID(v.Context())); err != nil {
		return reply{}, lastWay(api.NotFound(err, "you have no such linked account"))
	}
	s.Log.Info("identity removed", "member", v.me.ID, "identity", id)
	s.notice(v, "An account at a provider, which signed you in, was removed from yours.")
	return reply{to: "/account", done: "You can no longer sign in with it, and you are signed out everywhere else."}, nil
}
