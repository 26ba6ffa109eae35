package site

import (
	"cmp"
	"context"
	"encoding/json/v2"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/webauthn"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// Limits for passkeys.
const (
	ceremonyLife = 5 * time.Minute // lifetime of a challenge
	maxPasskeys  = 20              // number for one member
)

// newPasskeys returns the site as a relying party. It returns nil if browsers would
// refuse to bind a passkey to its address because the host is not a name or does not use
// TLS.
func newPasskeys(base string) *webauthn.WebAuthn {
	u, err := url.Parse(base)
	if err != nil {
		return nil
	}
	here := u.Hostname() == "localhost" || strings.HasSuffix(u.Hostname(), ".localhost")
	if u.Scheme != "https" && !here {
		return nil
	}
	discoverable := true
	party, err := webauthn.New(&webauthn.Config{
		RPID: u.Hostname(), RPDisplayName: "kith at " + u.Host, RPOrigins: []string{u.Scheme + "://" + u.Host},
		AttestationPreference: protocol.PreferNoAttestation,
		AuthenticatorSelection: protocol.AuthenticatorSelection{
			RequireResidentKey: &discoverable, ResidentKey: protocol.ResidentKeyRequirementRequired,
			UserVerification: protocol.VerificationRequired,
		},
		Timeouts: webauthn.TimeoutsConfig{
			Login:        webauthn.TimeoutConfig{Timeout: ceremonyLife},
			Registration: webauthn.TimeoutConfig{Timeout: ceremonyLife},
		},
		// Some password managers send extensions that were not requested. None of them is
		// used.
		ExtensionsUnsolicitedOutputPolicy: protocol.UnsolicitedOutputPolicyIgnore,
	})
	if err != nil {
		return nil // the host is not a name
	}
	return party
}

// holder adapts a member to webauthn.
type holder struct {
	account.Member
	passkeys []account.Passkey
}

// WebAuthnID satisfies webauthn.User. Authenticators store it and send it back when the
// visitor did not type a name.
func (h holder) WebAuthnID() []byte { return []byte(h.ID) }

// WebAuthnName satisfies webauthn.User.
func (h holder) WebAuthnName() string { return h.Name }

// WebAuthnDisplayName satisfies webauthn.User.
func (h holder) WebAuthnDisplayName() string { return h.Name }

// WebAuthnCredentials satisfies webauthn.User.
func (h holder) WebAuthnCredentials() []webauthn.Credential {
	all := make([]webauthn.Credential, len(h.passkeys))
	for i, p := range h.passkeys {
		all[i] = webauthn.Credential{
			ID: p.Credential, PublicKey: p.PublicKey, Flags: webauthn.CredentialFlags{BackupEligible: p.Synced},
			Authenticator: webauthn.Authenticator{SignCount: uint32(p.Signs)},
		}
	}
	return all
}

func (s *Site) holder(ctx context.Context, m account.Member) (holder, error) {
	passkeys, err := s.DB.Passkeys(ctx, m.ID)
	return holder{m, passkeys}, err
}

// remember stores a challenge's purpose and data until the browser answers it, once, or
// the ceremony expires.
func (s *Site) remember(ctx context.Context, challenge string, c account.Ceremony, data any) (err error) {
	if c.Data, err = json.Marshal(data); err != nil {
		return fault.New(fault.InvalidRequest, "the form holds text that is not UTF-8").Because(err)
	}
	c.Hash = hashOf(challenge)
	return s.DB.BeginCeremony(ctx, c, s.DB.Now().UTC())
}

// recall decodes the stored data of an answered challenge into data. It returns
// account.ErrNotFound if the challenge is unknown, was for another purpose, or has
// expired.
func (s *Site) recall(ctx context.Context, challenge string, kind account.CeremonyKind,
	data any) (memberID string, err error) {
	c, err := s.DB.TakeCeremony(ctx, hashOf(challenge), kind, s.DB.Now())
	if err != nil {
		return "", err
	}
	return c.MemberID, json.Unmarshal(c.Data, data)
}

// passkeyCeremony returns a new ceremony of the member.
func (s *Site) passkeyCeremony(kind account.CeremonyKind, memberID string) account.Ceremony {
	return account.Ceremony{Kind: kind, MemberID: memberID, Expires: s.DB.Now().UTC().Add(ceremonyLife)}
}

func (s *Site) canPasskeys() error {
	if s.passkeys == nil {
		return fault.New(fault.InvalidRequest, "passkeys need a hub with an https:// address: "+
			"its operator can set one as public_url")
	}
	return nil
}

// signInChallenge handles POST /signin/passkey/begin: a challenge for any passkey,
// without a name.
func (s *Site) signInChallenge(v *visit) (*protocol.CredentialAssertion, error) {
	if err := s.canPasskeys(); err != nil {
		return nil, err
	}
	if err := s.slowDown(v); err != nil {
		return nil, err
	}
	options, session, err := s.passkeys.BeginDiscoverableLogin()
	if err != nil {
		return nil, err
	}
	return options, s.remember(v.Context(), session.Challenge, s.passkeyCeremony(account.UsePasskey, ""), session)
}

// signInByPasskey handles POST /signin/passkey. All invalid answers get the same message.
func (s *Site) signInByPasskey(v *visit) (reply, error) {
	if err := s.canPasskeys(); err != nil {
		return reply{}, err
	}
	if err := s.slowDown(v); err != nil {
		return reply{}, err
	}
	member, err := s.asserted(v.Context(), v.form.Get("answer"))
	if f := (*fault.Fault)(nil); errors.As(err, &f) && f.Code == fault.NotAllowed {
		s.Log.Info("sign-in refused", "from", v.from, "how", "passkey", "cause", errors.Unwrap(f))
	}
	if err != nil {
		return reply{}, err
	}
	if err := s.begin(v, member, "passkey"); err != nil {
		return reply{}, err
	}
	return reply{to: s.localPath(v.form.Get("next"))}, nil
}

// asserted returns the member whose passkey signed the answer. The answer must be the
// first to one of our challenges.
func (s *Site) asserted(ctx context.Context, text string) (account.Member, error) {
	refuse := func(cause error) (account.Member, error) {
		return account.Member{}, fault.New(fault.NotAllowed,
			"the passkey was not accepted: it may have been removed, or the page waited too long; "+
				"try again, or sign in with the password").Because(cause)
	}
	answer, err := protocol.ParseCredentialRequestResponseBytes([]byte(text))
	if err != nil {
		return refuse(err)
	}
	var session webauthn.SessionData
	_, err = s.recall(ctx, answer.Response.CollectedClientData.Challenge, account.UsePasskey, &session)
	if errors.Is(err, account.ErrNotFound) {
		return refuse(err)
	}
	if err != nil {
		return account.Member{}, err
	}
	member, err := s.DB.Member(ctx, string(answer.Response.UserHandle))
	if errors.Is(err, account.ErrNotFound) || errors.Is(err, account.ErrInvalid) {
		return refuse(account.ErrNotFound)
	}
	if err != nil {
		return account.Member{}, err
	}
	whose, err := s.holder(ctx, member)
	if err != nil {
		return account.Member{}, err
	}
	known := func([]byte, []byte) (webauthn.User, error) { return whose, nil }
	_, used, err := s.passkeys.ValidatePasskeyLogin(known, session, answer)
	if err != nil {
		return refuse(err)
	}
	if member.Disabled {
		return account.Member{}, disabled()
	}
	for _, p := range whose.passkeys {
		if string(p.Credential) != string(used.ID) {
			continue
		}
		err := s.DB.UsePasskey(ctx, p.ID, int64(answer.Response.AuthenticatorData.Counter), s.DB.Now().UTC())
		if errors.Is(err, account.ErrNotFound) { // or it was just removed
			s.Log.Warn("a passkey's counter did not grow: it may have been copied", "member", member.ID,
				"passkey", p.ID)
			return refuse(err)
		}
		return member, err
	}
	return refuse(account.ErrNotFound)
}

// newPasskeyChallenge handles POST /account/passkeys/begin: a challenge for a new passkey
// of the member. It requires a recent sign-in or the password.
func (s *Site) newPasskeyChallenge(v *visit) (*protocol.CredentialCreation, error) {
	if err := s.canPasskeys(); err != nil {
		return nil, err
	}
	if err := s.checkRecent(v); err != nil {
		return nil, err
	}
	whose, err := s.holder(v.Context(), v.me)
	if err != nil {
		return nil, err
	}
	if len(whose.passkeys) >= maxPasskeys {
		return nil, fault.New(fault.InvalidRequest,
			"you have %d passkeys, the maximum for one account: remove one first", maxPasskeys)
	}
	options, session, err := s.passkeys.BeginRegistration(whose,
		webauthn.WithExclusions(webauthn.Credentials(whose.WebAuthnCredentials()).CredentialDescriptors()))
	if err != nil {
		return nil, err
	}
	return options, s.remember(v.Context(), session.Challenge, s.passkeyCeremony(account.AddPasskey, v.me.ID), session)
}

// addPasskey handles POST /account/passkeys name, answer.
func (s *Site) addPasskey(v *visit) (reply, error) {
	if err := s.canPasskeys(); err != nil {
		return reply{}, err
	}
	refuse := func(cause error) (reply, error) {
		return reply{}, fault.New(fault.InvalidRequest, "the passkey was not added: the page waited too long, "+
			"or this device cannot create one; try again").Because(cause)
	}
	answer, err := protocol.ParseCredentialCreationResponseBytes([]byte(v.form.Get("answer")))
	if err != nil {
		return refuse(err)
	}
	var session webauthn.SessionData
	memberID, err := s.recall(v.Context(), answer.Response.CollectedClientData.Challenge, account.AddPasskey, &session)
	if errors.Is(err, account.ErrNotFound) || err == nil && memberID != v.me.ID {
		return refuse(account.ErrNotFound)
	}
	if err != nil {
		return reply{}, err
	}
	made, err := s.passkeys.CreateCredential(holder{Member: v.me}, session, answer)
	if err != nil {
		return refuse(err)
	}
	p := account.Passkey{
		ID: account.NewID("pky_"), MemberID: v.me.ID, Name: cmp.Or(plain(v.form.Get("name"), 64), "Passkey"),
		Credential: made.ID, PublicKey: made.PublicKey, Synced: made.Flags.BackupEligible,
		Signs:   int64(made.Authenticator.SignCount),
		Created: s.DB.Now().UTC().Truncate(time.Millisecond),
	}
	if err := s.DB.AddPasskey(v.Context(), p); err != nil {
		return reply{}, api.Taken(err, "that passkey is already in use")
	}
	s.Log.Info("passkey added", "member", v.me.ID, "passkey", p.ID)
	s.notice(v, "A passkey was added to your account: "+line(p.Name)+".")
	return reply{to: "/account", done: "Passkey added. It signs you in without a name or a password."}, nil
}

// removePasskey handles POST /account/passkeys/remove. It ends the member's other
// sessions.
func (s *Site) removePasskey(v *visit) (reply, error) {
	err := s.DB.RemovePasskey(v.Context(), v.me.ID, v.form.Get("passkey"), s.sessionID(v.Context()))
	if err != nil {
		return reply{}, lastWay(api.NotFound(err, "you have no such passkey"))
	}
	s.Log.Info("passkey removed", "member", v.me.ID, "passkey", v.form.Get("passkey"))
	s.notice(v, "A passkey was removed from your account.")
	return reply{to: "/account",
		done: "Passkey removed. You are signed out everywhere else. Delete it on the device too."}, nil
}

// lastWay explains what to do if an action would remove the last sign-in method.
func lastWay(err error) error {
	if errors.Is(err, account.ErrLastWay) {
		return fault.New(fault.InvalidRequest, "this is your only way to sign in: set a password first").Because(err)
	}
	return err
}
