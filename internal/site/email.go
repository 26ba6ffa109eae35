package site

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/mail"
)

// Mail configures how the site sends e-mail. The zero Mail sends none.
type Mail = mail.Config

// MailTLS is how the connection to the mail server is secured.
type MailTLS = mail.TLS

// Limits for e-mail.
const (
	verifyFor   = 24 * time.Hour   // lifetime of a link that verifies an address
	recoverFor  = 30 * time.Minute // lifetime of a link that signs in
	mostLookups = 64               // addresses that wait to be looked up
	mostSharing = 5                // members with the same address who get a mail
)

// lookup is an e-mail address that a visitor typed to recover an account.
type lookup struct{ address, from string }

// runMail sends the site's mail until ctx ends.
func (s *Site) runMail(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.mail.Run(ctx) })
	group.Go(func() error {
		for {
			select {
			case l := <-s.lookups:
				s.mailLinks(ctx, l)
			case <-ctx.Done():
				return nil
			}
		}
	})
	return group.Wait()
}

// MailPart returns the state of sending mail. It returns false if the site sends none.
func (s *Site) MailPart() (Part, bool) {
	if s.mail == nil {
		return Part{}, false
	}
	last, why := s.mail.Health()
	switch {
	case why != "":
		return Part{Name: "Mail", Text: "last failure " + moment(last) + ": " + why}, true
	case last.IsZero():
		return Part{Name: "Mail", Good: true, Text: "nothing sent since the start"}, true
	}
	return Part{Name: "Mail", Good: true, Text: "last sent " + moment(last)}, true
}

func (s *Site) canMail() error {
	if s.mail == nil {
		return fault.New(fault.NotFound, "this hub sends no mail")
	}
	return nil
}

// emailOf returns the member's address, or the zero Email if there is none.
func (s *Site) emailOf(ctx context.Context, memberID string) (account.Email, error) {
	e, err := s.DB.Email(ctx, memberID)
	if errors.Is(err, account.ErrNotFound) {
		return account.Email{}, nil
	}
	return e, err
}

// askEmail handles POST /account/email address. It mails a link that proves that the
// address belongs to the member. If another member has the same address, the result is
// the same, so the member does not learn of it.
func (s *Site) askEmail(v *visit) (reply, error) {
	if err := s.canMail(); err != nil {
		return reply{}, err
	}
	if err := s.checkRecent(v); err != nil {
		return reply{}, err
	}
	address, ok := mail.Address(v.form.Get("address"))
	if !ok {
		return reply{}, fault.New(fault.InvalidRequest, "an e-mail address is like ada@example.org; "+
			"a domain in another script is written as xn--…").WithParam("address")
	}
	kept, err := s.emailOf(v.Context(), v.me.ID)
	if err != nil {
		return reply{}, err
	}
	if strings.EqualFold(kept.Address, address) {
		return reply{}, fault.New(fault.InvalidRequest, "this is your address already").WithParam("address")
	}
	now := s.DB.Now().UTC()
	if err := tooSoon(s.limits.verifiers.Take(v.me.ID, now)); err != nil {
		return reply{}, err
	}
	code := mintLink(s.Region)
	asked := account.Email{MemberID: v.me.ID, Asked: address, Hash: code.Hash(), Expires: now.Add(verifyFor)}
	if err := s.DB.AskEmail(v.Context(), asked); err != nil {
		return reply{}, err
	}
	s.Log.Info("e-mail address asked for", "member", v.me.ID)
	// Too many mails to one address are dropped silently. An error would reveal that
	// another member entered it.
	if s.limits.verified.Take(strings.ToLower(address), now) > 0 {
		s.Log.Warn("mail not sent: too many to one address", "member", v.me.ID)
	} else {
		s.mail.Send(mail.Message{MemberID: v.me.ID, To: address, Subject: "kith: is this your address?",
			Until: time.Now().Add(verifyFor), Text: fmt.Sprintf(
				"A member at\n%s\ngave this address as theirs. If that was you, "+
					"open this link in a browser where you are signed in:\n\n%s\n\n"+
					"It works once, until %s. "+
					"If it was not you, do nothing:\nno one can use your address without the link.\n",
				s.Base, s.Base+"/account/email/"+code.Reveal(), complete(asked.Expires))})
	}
	return reply{to: "/account", done: "A link was sent to " + address +
		". Open it within a day, in a browser where you are signed in. One address gets only a few an hour."}, nil
}

// deadProof is the error for a link that is not valid.
func deadProof() *fault.Fault {
	return fault.New(fault.NotFound, "the link was used, has expired, is incomplete or belongs to another account: "+
		"request another on your Account page")
}

// emailData is the content of the page behind a mailed link. Only its form uses up the
// link, so that link previews do not.
type emailData struct{ Address, Code string }

func (s *Site) emailData(v *visit) (emailData, error) {
	text := v.PathValue("code")
	hash, ok := s.CodeHash(text, credential.LinkCode)
	kept, err := s.emailOf(v.Context(), v.me.ID)
	if err == nil && (!ok || kept.Asked == "" || subtle.ConstantTimeCompare(hash[:], kept.Hash[:]) != 1 ||
		!s.DB.Now().Before(kept.Expires)) {
		err = deadProof()
	}
	return emailData{kept.Asked, text}, err
}

// verifyEmail handles POST /account/email/verify code. It makes the address the member's,
// and notifies the previous address.
func (s *Site) verifyEmail(v *visit) (reply, error) {
	hash, ok := s.CodeHash(v.form.Get("code"), credential.LinkCode)
	if !ok {
		return reply{}, deadProof()
	}
	before, err := s.DB.VerifyEmail(v.Context(), v.me.ID, hash, s.DB.Now())
	if err != nil {
		return reply{}, api.NotFound(err, "%s", deadProof().Message)
	}
	s.Log.Info("e-mail address verified", "member", v.me.ID)
	s.noticeTo(before.Address, v, "Your account now has another e-mail address instead of this one.")
	return reply{to: "/account", done: "Your e-mail address is set."}, nil
}

// removeEmail handles POST /account/email/remove.
func (s *Site) removeEmail(v *visit) (reply, error) {
	if err := s.checkRecent(v); err != nil {
		return reply{}, err
	}
	before, err := s.DB.RemoveEmail(v.Context(), v.me.ID)
	if err != nil {
		return reply{}, api.NotFound(err, "you have no e-mail address here")
	}
	s.Log.Info("e-mail address removed", "member", v.me.ID)
	s.noticeTo(before.Address, v,
		"This e-mail address was removed from your account: you get no more mail here.")
	return reply{to: "/account", done: "The e-mail address is removed."}, nil
}

// recoverByMail handles POST /recover/mail address. It queues the address and looks up
// its members later, so that neither the response nor its timing shows whether there are
// any.
func (s *Site) recoverByMail(v *visit) (reply, error) {
	if err := s.canMail(); err != nil {
		return reply{}, err
	}
	if err := s.slowRecovery(v, ""); err != nil {
		return reply{}, err
	}
	address, ok := mail.Address(v.form.Get("address"))
	if !ok {
		return reply{}, fault.New(fault.InvalidRequest,
			"an e-mail address is like ada@example.org").WithParam("address")
	}
	if err := tooSoon(s.limits.recoveries.Take(strings.ToLower(address), time.Now())); err != nil {
		return reply{}, err
	}
	select {
	case s.lookups <- lookup{address, v.from}:
	default:
		s.Log.Warn("mail lost: too many recoveries wait to be looked up", "from", v.from)
	}
	return reply{page: "recover", title: "Recover your account", data: recoverData{CanMail: true, Mailed: true}}, nil
}

// mailLinks sends a link to every member with the address. It uses the address as the
// member verified it, not as the visitor typed it.
func (s *Site) mailLinks(ctx context.Context, l lookup) {
	found, err := s.DB.EmailsOf(ctx, l.address, mostSharing)
	if err != nil {
		s.Log.Error("cannot recover an account by mail", "error", err)
	}
	for _, e := range found {
		if err := s.mailLink(ctx, e, l.from); err != nil {
			s.Log.Error("cannot recover an account by mail", "member", e.MemberID, "error", err)
		}
	}
}

func (s *Site) mailLink(ctx context.Context, e account.Email, from string) error {
	member, err := s.DB.Member(ctx, e.MemberID)
	if err != nil || member.Disabled {
		return err
	}
	secret, now := mintLink(s.Region), s.DB.Now().UTC()
	link := account.Link{Hash: secret.Hash(), MemberID: member.ID, Created: now, Expires: now.Add(recoverFor),
		Mailed: true}
	if err := s.DB.CreateLink(ctx, link); err != nil {
		return err
	}
	s.Log.Info("recovery link made", "member", member.ID, "from", from)
	s.mail.Send(mail.Message{MemberID: member.ID, To: e.Address, Subject: "kith: a link to sign in",
		Until: time.Now().Add(recoverFor), Text: fmt.Sprintf(
			"Someone at the network address %s asked for a link that signs %s in at\n%s\n\nThis link works once, "+
				"until %s;\nearlier links no longer work:\n\n%s\n\n"+
				"Then set a new password on your Account page. "+
				"If it was not you, do nothing:\nno one else was sent this link.\n",
			from, line(member.Name), s.Base, complete(link.Expires), s.Base+"/welcome/"+secret.Reveal())})
	return nil
}

// mailAddress returns the member's address for notices, or "" if there is none.
func (s *Site) mailAddress(ctx context.Context, memberID string) string {
	if s.mail == nil {
		return ""
	}
	kept, err := s.emailOf(ctx, memberID)
	if err != nil {
		s.Log.Error("cannot notify a member by mail", "member", memberID, "error", err)
	}
	return kept.Address
}

// notice mails the member about a change to the account, if the member has an address.
func (s *Site) notice(v *visit, what string) {
	s.noticeTo(s.mailAddress(v.Context(), v.me.ID), v, what)
}

// noticeTo is like notice, for a given address. An empty address gets none.
func (s *Site) noticeTo(address string, v *visit, what string) {
	s.sendNotice(address, v.me, what+" It was done from the network address "+v.from+".")
}

// noticeOfLink mails the member that the hub's operator created a link that signs in to
// the account.
func (s *Site) noticeOfLink(ctx context.Context, memberID string) {
	if member, err := s.DB.Member(ctx, memberID); err == nil { // the link works even if this fails
		s.sendNotice(s.mailAddress(ctx, memberID), member,
			"The operator of this hub made a link that signs in to your account, once, within a day.")
	}
}

// sendNotice sends a notice, unless the address is empty.
func (s *Site) sendNotice(address string, m account.Member, what string) {
	if address == "" {
		return
	}
	s.mail.Send(mail.Message{MemberID: m.ID, To: address, Subject: "kith: a change to your account", Text: fmt.Sprintf(
		"Hello %s,\n\non %s, at %s:\n%s\n\nIf that was you, or you asked for it, there is nothing to do. "+
			"If not, sign in, end the other\nsessions (%s) and set a new password (%s), or ask the hub's operator.\n",
		line(m.Name), complete(s.DB.Now()), s.Base, what, s.Base+"/sessions", s.Base+"/account")})
}

// line prepares text that a member chose for an e-mail. It puts it on one line and
// removes invisible characters and those that reverse the text after them.
func line(text string) string {
	return plain(strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, text), 200)
}
