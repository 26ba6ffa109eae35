package site

import (
	"cmp"
	"errors"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
)

// accountData is the content of /account.
type accountData struct {
	HasPassword bool
	NeedsOld    bool // changing the password requires the current one
	Recent      bool // the member signed in recently, so no password is required
	CodesLeft   int
	Codes       []string // just created; shown only once
	CanPasskeys bool     // passkeys can be bound to the site's address
	Passkeys    []account.Passkey
	Provider    string // name of the provider; empty: none
	Identities  []account.Identity
	CanMail     bool
	Email       account.Email
	Notices     []noticeChoice
}

func (s *Site) accountData(v *visit) (accountData, error) {
	has, err := s.hasPassword(v)
	if err != nil {
		return accountData{}, err
	}
	data := accountData{HasPassword: has, Recent: s.recent(v), CanPasskeys: s.passkeys != nil,
		Provider: s.provider.name(), CanMail: s.mail != nil}
	data.NeedsOld = data.HasPassword && s.sessions.GetString(v.Context(), sessionHow) != "link"
	var failed [5]error
	data.CodesLeft, failed[0] = s.DB.RecoveryCodes(v.Context(), v.me.ID)
	data.Passkeys, failed[1] = s.DB.Passkeys(v.Context(), v.me.ID)
	data.Identities, failed[2] = s.DB.Identities(v.Context(), v.me.ID)
	data.Email, failed[3] = s.emailOf(v.Context(), v.me.ID)
	data.Notices, failed[4] = s.noticeChoices(v)
	if !s.DB.Now().Before(data.Email.Expires) {
		data.Email.Asked = ""
	}
	return data, cmp.Or(failed[:]...)
}

// hasPassword reports whether the member has a password.
func (s *Site) hasPassword(v *visit) (bool, error) {
	_, err := s.DB.Password(v.Context(), v.me.ID)
	if errors.Is(err, account.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// recentFor is how long after a sign-in no password is required.
const recentFor = 10 * time.Minute

// recent reports whether the member signed in within recentFor.
func (s *Site) recent(v *visit) bool {
	since, err := time.Parse(time.RFC3339, s.sessions.GetString(v.Context(), sessionSince))
	return err == nil && s.DB.Now().Sub(since) < recentFor
}

// checkOld requires the current password again for a protected action. A member without a
// password must have signed in recently. A member who signed in by a link is exempt,
// because the password may be forgotten.
func (s *Site) checkOld(v *visit) error {
	if s.sessions.GetString(v.Context(), sessionHow) == "link" {
		return nil
	}
	return s.checkPassword(v)
}

// checkRecent requires the password before a sign-in method is added, unless the member
// signed in recently.
func (s *Site) checkRecent(v *visit) error {
	if s.recent(v) {
		return nil
	}
	return s.checkPassword(v)
}

func (s *Site) checkPassword(v *visit) error {
	if err := tooSoon(s.limits.confirms.Take(v.me.ID, time.Now())); err != nil {
		return err
	}
	hash, err := s.DB.Password(v.Context(), v.me.ID)
	if errors.Is(err, account.ErrNotFound) {
		if s.recent(v) {
			return nil
		}
		return fault.New(fault.NotAllowed, "you signed in too long ago for this: sign in again, then retry")
	}
	if err != nil {
		return err
	}
	fits, err := s.Passwords.Fits(v.Context(), v.form.Get("old"), hash)
	if err == nil && !fits {
		return fault.New(fault.NotAllowed, "the current password is wrong").WithParam("old")
	}
	return err
}

// changePassword handles POST /account/password. It ends the member's other sessions.
func (s *Site) changePassword(v *visit) (reply, error) {
	if err := s.checkOld(v); err != nil {
		return reply{}, err
	}
	hash, err := s.Passwords.Hash(v.Context(), v.me.Name, v.form.Get("password"))
	if err != nil {
		return reply{}, err
	}
	if err := s.DB.SetPassword(v.Context(), v.me.ID, hash, s.sessionID(v.Context()), s.DB.Now()); err != nil {
		return reply{}, err
	}
	s.sessions.Put(v.Context(), sessionHow, "password")
	s.rememberBrowser(v, v.me.ID)
	s.Log.Info("password changed", "member", v.me.ID)
	s.notice(v, "The password of your account was set.")
	return reply{to: "/account", done: "Password changed. You are signed out everywhere else."}, nil
}

// recoveryCodes is the number of codes in a set.
const recoveryCodes = 8

// makeCodes handles POST /account/codes: it replaces the recovery codes and shows the new
// ones once.
func (s *Site) makeCodes(v *visit) (reply, error) {
	if err := s.checkOld(v); err != nil {
		return reply{}, err
	}
	data, err := s.accountData(v) // first, so that codes are only created if they can be shown
	if err != nil {
		return reply{}, err
	}
	codes, hashes := make([]string, recoveryCodes), make([][32]byte, recoveryCodes)
	for i := range codes {
		codes[i] = credential.RecoveryCode()
		hashes[i] = credential.RecoveryHash(codes[i])
	}
	if err := s.DB.PutRecoveryCodes(v.Context(), v.me.ID, hashes); err != nil {
		return reply{}, err
	}
	s.Log.Info("recovery codes made", "member", v.me.ID)
	s.notice(v, "New recovery codes were created for your account; older ones no longer work.")
	data.Codes, data.CodesLeft = codes, len(codes)
	return reply{page: "account", title: "Account", data: data}, nil
}
