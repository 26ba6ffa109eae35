package site

import (
	"cmp"
	"encoding/json/v2"
	"errors"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
)

// slowDown refuses a sign-in or a sign-up that comes too soon after others from its
// address.
func (s *Site) slowDown(v *visit) error {
	return tooSoon(s.limits.fromAddress.Take(network(v.from), time.Now()))
}

// slowGuesses refuses a password for a name that comes too soon after others: from
// the address, from the address for that name, and for that name from wherever, in
// this order, so that one address that goes on and on uses up nothing of the
// others'. A browser that the name's member signed in with before has an allowance
// of its own, which guesses from elsewhere do not touch. The hash is of the
// member's password; empty: there is none.
func (s *Site) slowGuesses(v *visit, name, memberID, hash string) error {
	now := time.Now()
	if browser, known := s.knownBrowser(v, memberID, hash); known {
		return tooSoon(s.limits.ofBrowser.Take(browser, now))
	}
	if err := s.slowDown(v); err != nil || len(name) > api.MaxName {
		return err
	}
	if err := tooSoon(s.limits.guesses.Take(network(v.from)+" "+name, now)); err != nil {
		return err
	}
	return tooSoon(s.limits.ofName.Take(name, now))
}

func tooSoon(wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	seconds := int(math.Ceil(wait.Seconds()))
	return fault.New(fault.RateLimitExceeded, "that was tried too often; try again in %d s", seconds).WithRetryAfter(seconds)
}

// guess counts the look-up of a code for the address that it comes from, or refuses it
// after too many that were not known. The caller calls looked with the look-up's error.
func (s *Site) guess(address string) (looked func(error), err error) {
	from := network(address)
	if err := tooSoon(s.limits.codes.Take(from, time.Now())); err != nil {
		return nil, err
	}
	return func(err error) {
		if err == nil || !errors.Is(err, account.ErrNotFound) && fault.Of(err).Code != fault.NotFound {
			s.limits.codes.Give(from, time.Now())
		}
	}, nil
}

// signInData is what the sign-in form shows.
type signInData struct {
	Next        string
	CanPasskeys bool   // the site has an address that passkeys can be bound to
	Provider    string // the name of the one to sign in at; empty: none
	Empty       bool   // the hub has no account yet
}

func (s *Site) signInData(v *visit) (signInData, error) {
	next := cmp.Or(v.URL.Query().Get("next"), v.form.Get("next"))
	return signInData{s.localPath(next), s.passkeys != nil, s.provider.name(), !s.hasMembers(v)}, nil
}

// signIn is POST /signin. One message, and one amount of work, for a name that
// is not there and a password that is wrong.
func (s *Site) signIn(v *visit) (reply, error) {
	name, password := strings.TrimSpace(v.form.Get("name")), v.form.Get("password")
	wrong := fault.New(fault.NotAllowed, "the name or the password is wrong").WithParam("password")
	member, err := s.DB.MemberByName(v.Context(), name)
	hash := ""
	if err == nil && !member.Disabled {
		hash, err = s.DB.Password(v.Context(), member.ID)
	}
	if err != nil && !errors.Is(err, account.ErrNotFound) && !errors.Is(err, account.ErrInvalid) {
		return reply{}, err
	}
	if err := s.slowGuesses(v, name, member.ID, hash); err != nil {
		return reply{}, err
	}
	if len(password) > api.MaxPassword {
		return reply{}, wrong
	}
	known := hash != ""
	if !known {
		hash = api.NoPassword
	}
	fits, err := s.Passwords.Fits(v.Context(), password, hash)
	if err != nil {
		return reply{}, err
	}
	if !fits || !known {
		s.Log.Info("sign-in refused", "from", v.from)
		return reply{}, wrong
	}
	if err := s.begin(v, member, "password"); err != nil {
		return reply{}, err
	}
	return reply{to: s.localPath(v.form.Get("next"))}, nil
}

func (s *Site) signOut(v *visit) (reply, error) {
	if err := s.sessions.Destroy(v.Context()); err != nil {
		return reply{}, err
	}
	v.me = account.Member{}
	return reply{to: "/signin"}, nil
}

// signUpData is what the sign-up form shows.
type signUpData struct {
	Invite string          // its code, where the visitor came by one
	Seen   *api.SeenInvite // what it offers; nil: not looked up
	Link   string          // the same of a link to the first operator's account
	// Provider is the name of the one to sign up at instead; empty: none.
	Provider string
	Empty    bool // the hub has no account yet
}

// SignIn is where a member who came by an invite signs in, and then accepts it.
func (d signUpData) SignIn() string {
	return "/signin?" + url.Values{"next": {"/invite/" + url.PathEscape(d.Invite)}}.Encode()
}

func (s *Site) signUpData(v *visit) (signUpData, error) {
	return signUpData{Invite: v.form.Get("invite"), Link: v.form.Get("link"), Provider: s.provider.name(), Empty: !s.hasMembers(v)}, nil
}

// signUp is POST /signup: a new member with a password, who is then signed in.
func (s *Site) signUp(v *visit) (reply, error) {
	if err := s.slowDown(v); err != nil {
		return reply{}, err
	}
	made, err := s.newMember(v)
	if err != nil {
		return reply{}, err
	}
	if made.Password, err = s.Passwords.Hash(v.Context(), made.Member.Name, v.form.Get("password")); err != nil {
		return reply{}, err
	}
	seen, _ := s.SeeInvite(v.Context(), api.InviteIn(v.form.Get("invite"))) // who invites, before it is used up
	return reply{to: "/", done: welcomed(seen)}, s.takeIn(v, made, "sign-up")
}

// welcomed says what a new member got by an invite; without one, nothing.
func welcomed(seen api.SeenInvite) string {
	if seen.Owner == "" {
		return ""
	}
	return seen.Owner + " shares their machines with you now."
}

// newMember is who the form says would sign up, if they may.
func (s *Site) newMember(v *visit) (made account.SignUp, err error) {
	name := strings.TrimSpace(v.form.Get("name"))
	if f := api.CheckName(name); f != nil {
		return made, f
	}
	made.Member = account.Member{ID: account.NewID("mem_"), Name: name, Created: s.DB.Now().UTC().Truncate(time.Millisecond)}
	if err := s.letIn(v, &made); err != nil || made.Member.Operator {
		return made, err
	}
	if f := api.CheckChosenName(name); f != nil {
		return made, f
	}
	return made, nil
}

// takeIn makes the member, and signs them in.
func (s *Site) takeIn(v *visit, made account.SignUp, how string) error {
	err := s.DB.SignUp(v.Context(), made, made.Member.Created)
	switch {
	case errors.Is(err, account.ErrLooksTaken):
		return api.Taken(err, "")
	case errors.Is(err, account.ErrExists):
		return fault.New(fault.InvalidRequest, "a member is called %q already: choose another name", made.Member.Name).WithParam("name")
	case errors.Is(err, account.ErrNotFound):
		return fault.New(fault.NotFound, "the invite or link is wrong, used up, expired or revoked; ask for another").WithParam("invite")
	case err != nil:
		return err
	}
	s.Log.Info("member signed up", "member", made.Member.ID, "operator", made.Member.Operator, "invited", made.Invite != nil, "how", how)
	s.Changed(v.Context())
	if made.Link != nil && s.FirstMade != nil {
		s.FirstMade()
	}
	return s.begin(v, made.Member, how)
}

// letIn finds what lets a visitor sign up: a link, an invite, or
// that anybody may.
func (s *Site) letIn(v *visit, made *account.SignUp) error {
	if text := v.form.Get("link"); text != "" {
		hash, ok := s.CodeHash(text, credential.LinkCode)
		there, err := s.DB.OperatorCanSignIn(v.Context())
		switch {
		case err != nil:
			return err
		case !ok || there:
			return deadLink()
		}
		made.Link, made.Member.Operator = &hash, true
		return nil
	}
	text := strings.TrimSpace(v.form.Get("invite"))
	switch {
	case s.SignUp == SignUpClosed:
		return fault.New(fault.NotAllowed, "sign-up is closed; ask the hub's operator for an account")
	case text != "":
		hash, ok := s.CodeHash(api.InviteIn(text), credential.InviteCode)
		if !ok {
			return fault.New(fault.NotFound, "the invite is wrong; copy all of it").WithParam("invite")
		}
		made.Invite = &hash
	case s.SignUp == SignUpInvite:
		return fault.New(fault.NotAllowed, "an invite is needed to sign up here; ask a member for one").WithParam("invite")
	}
	return nil
}

func deadLink() *fault.Fault {
	return fault.New(fault.NotFound, "the link was used, is too old, or is not complete; ask for another")
}

// welcomePage is GET /welcome/{code}: what a one-time link leads to. Only the
// form on it uses the link up, so that no preview of it does.
func (s *Site) welcomePage(v *visit) (reply, error) {
	text := v.PathValue("code")
	hash, ok := s.CodeHash(text, credential.LinkCode)
	if !ok {
		return reply{}, deadLink()
	}
	looked, err := s.guess(v.from)
	if err != nil {
		return reply{}, err
	}
	link, err := s.DB.Link(v.Context(), hash, s.DB.Now())
	looked(err)
	if err != nil {
		return reply{}, api.NotFound(err, "%s", deadLink().Message)
	}
	if link.MemberID == "" {
		return reply{page: "signup", title: "The first account", data: signUpData{Link: text}}, nil
	}
	member, err := s.DB.Member(v.Context(), link.MemberID)
	if err != nil {
		return reply{}, err
	}
	return reply{page: "welcome", title: "Welcome", data: map[string]string{"Name": member.Name, "Link": text}}, nil
}

// welcome is POST /welcome: the link signs its member in, once.
func (s *Site) welcome(v *visit) (reply, error) {
	if err := s.slowDown(v); err != nil {
		return reply{}, err
	}
	hash, ok := s.CodeHash(v.form.Get("link"), credential.LinkCode)
	if !ok {
		return reply{}, deadLink()
	}
	member, err := s.DB.UseLink(v.Context(), hash, s.DB.Now())
	if err != nil {
		return reply{}, api.NotFound(err, "%s", deadLink().Message)
	}
	if err := s.begin(v, member, "link"); err != nil {
		return reply{}, err
	}
	return reply{to: "/"}, nil
}

// inviteData is what an invite's page shows to who is signed in.
type inviteData struct {
	Code string
	Seen api.SeenInvite
}

// invitePage is GET /invite/{code}: who is signed in accepts it there, who is not
// signs up with it.
func (s *Site) invitePage(v *visit) (reply, error) {
	code := v.PathValue("code")
	looked, err := s.guess(v.from)
	if err != nil {
		return reply{}, err
	}
	seen, err := s.SeeInvite(v.Context(), code)
	looked(err)
	if err != nil {
		return reply{}, err
	}
	if seen.State != "open" {
		return reply{}, fault.New(fault.NotFound, "the invite of %s is %s: ask %s for another; if you accepted it, what it gives is at /access", seen.Owner, seen.State, seen.Owner)
	}
	if v.me.ID != "" {
		return reply{page: "invite", title: "An invite", data: inviteData{code, seen}}, nil
	}
	return reply{page: "signup", title: "You are invited", data: signUpData{Invite: code, Seen: &seen, Provider: s.provider.name()}}, nil
}

// recoverData is what /recover shows.
type recoverData struct {
	CanMail bool
	Mailed  bool // a link was, if a member has the address that was typed
}

func (s *Site) recoverData(*visit) (recoverData, error) {
	return recoverData{CanMail: s.mail != nil}, nil
}

// slowRecovery refuses a recovery that comes too soon after others from its address,
// or from there for that name. Guesses at passwords do not count here. Nothing is
// counted for a name alone: a recovery code and a mailed link cannot be guessed, and
// the count would be one more way to keep a member out.
func (s *Site) slowRecovery(v *visit, name string) error {
	now, from := time.Now(), network(v.from)
	if err := tooSoon(s.limits.recoverFrom.Take(from, now)); err != nil || name == "" || len(name) > api.MaxName {
		return err
	}
	return tooSoon(s.limits.recoverOf.Take(from+" "+name, now))
}

// recover is POST /recover: a recovery code, in place of the password, sets
// another one.
func (s *Site) recover(v *visit) (reply, error) {
	name, password := strings.TrimSpace(v.form.Get("name")), v.form.Get("password")
	if err := s.slowRecovery(v, name); err != nil {
		return reply{}, err
	}
	hash, err := s.Passwords.Hash(v.Context(), name, password) // before the look-up: one amount of work
	if err != nil {
		return reply{}, err
	}
	wrong := fault.New(fault.NotAllowed, "the name or the recovery code is wrong; a code works once").WithParam("code")
	member, err := s.DB.MemberByName(v.Context(), name)
	if errors.Is(err, account.ErrNotFound) || errors.Is(err, account.ErrInvalid) || err == nil && member.Disabled {
		return reply{}, wrong
	}
	if err != nil {
		return reply{}, err
	}
	err = s.DB.Recover(v.Context(), member.ID, credential.RecoveryHash(v.form.Get("code")), hash, s.DB.Now())
	if errors.Is(err, account.ErrNotFound) {
		return reply{}, wrong
	}
	if err != nil {
		return reply{}, err
	}
	if err := s.begin(v, member, "recovery"); err != nil {
		return reply{}, err
	}
	s.notice(v, "A recovery code was used to sign in to your account, and to set another password.")
	return reply{to: "/account", done: "The password is changed, and every other session ended."}, nil
}

// sessionView is one session as its member sees it.
type sessionView struct {
	ID            string
	This          bool
	From, Agent   string
	How           string
	Created, Seen time.Time
}

func (s *Site) sessionsData(v *visit) ([]sessionView, error) {
	kept, err := s.DB.SessionsOf(v.Context(), v.me.ID, s.DB.Now())
	this := s.sessionID(v.Context())
	views := make([]sessionView, len(kept))
	for i, k := range kept {
		var data sessionData
		_ = json.Unmarshal(k.Data, &data) // one that cannot be read can still be ended
		views[i] = sessionView{k.ID, k.ID == this, data.Values[sessionFrom], data.Values[sessionAgent], data.Values[sessionHow], k.Created, k.Seen}
	}
	return views, err
}

// endSession is POST /sessions/end: one of the member's, or all others.
func (s *Site) endSession(v *visit) (reply, error) {
	if v.form.Get("all") != "" {
		err := s.DB.EndSessionsOf(v.Context(), v.me.ID, s.sessionID(v.Context()))
		return reply{to: "/sessions", done: "Every other session ended."}, err
	}
	id := v.form.Get("session")
	if id == s.sessionID(v.Context()) {
		return s.signOut(v)
	}
	if err := s.DB.EndSessionOf(v.Context(), v.me.ID, id); err != nil {
		return reply{}, api.NotFound(err, "that session has ended already")
	}
	return reply{to: "/sessions", done: "The session ended."}, nil
}

// inviteLink is where an invite's code leads.
func (s *Site) inviteLink(code string) string { return s.Base + "/invite/" + url.PathEscape(code) }
