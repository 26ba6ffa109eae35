package site

import (
	"cmp"
	"encoding/json/v2"
	"errors"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// slowDown limits sign-ins and sign-ups by address.
func (s *Site) slowDown(v *visit) error {
	return tooSoon(s.limits.fromAddress.Take(network(v.from), time.Now()))
}

// slowGuesses limits attempts at passwords: by address, then by address and name, then by
// name alone. In this order, an address that has used up its own limit does not use up
// those of others. A browser that the member signed in with before has a separate limit,
// which guesses from elsewhere cannot use up. hash is the hash of the member's password;
// empty means that there is none.
func (s *Site) slowGuesses(v *visit, name, memberID, hash string) error {
	name = strings.ToLower(name) // one member, however the name is written
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
	return fault.New(fault.RateLimitExceeded, "too many attempts; try again in %d s", seconds).WithRetryAfter(seconds)
}

// guess counts the lookup of a code against its address, and refuses it after too many
// unknown codes. The caller must call looked with the error of the lookup.
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

// signInData is the content of the sign-in form.
type signInData struct {
	Next        string
	CanPasskeys bool   // passkeys can be bound to the site's address
	Provider    string // name of the provider; empty: none
	Empty       bool   // the hub has no account yet
}

func (s *Site) signInData(v *visit) (signInData, error) {
	next := cmp.Or(v.URL.Query().Get("next"), v.form.Get("next"))
	return signInData{s.localPath(next), s.passkeys != nil, s.provider.name(), !s.hasMembers(v)}, nil
}

// disabled returns the refusal of a sign-in to a disabled account. Only a visitor who proved
// to be its member may get it.
func disabled() *fault.Fault {
	return fault.New(fault.NotAllowed, "this account is disabled: ask this hub's operator")
}

// signIn handles POST /signin. An unknown name and a wrong password get the same message
// and take the same work, also if the member is disabled.
func (s *Site) signIn(v *visit) (reply, error) {
	name, password := strings.TrimSpace(v.form.Get("name")), v.form.Get("password")
	wrong := fault.New(fault.NotAllowed, "the name or the password is wrong").WithParam("password")
	member, err := s.DB.MemberWhoTypes(v.Context(), name)
	hash := ""
	if err == nil {
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
	if member.Disabled {
		s.Log.Info("sign-in refused", "from", v.from, "cause", "disabled")
		return reply{}, disabled()
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

// signUpData is the content of the sign-up form.
type signUpData struct {
	Invite string          // code of the invite that the visitor followed; may be empty
	Seen   *api.SeenInvite // what the invite offers; nil: not known
	Link   string          // code of a link to the first operator's account; may be empty
	// Provider is the name of the provider for signing up instead; empty means none.
	Provider string
	Empty    bool // the hub has no account yet
}

// SignIn returns the URL where an existing member with an invite signs in to accept it.
func (d signUpData) SignIn() string { return signInForInvite(d.Invite) }

func signInForInvite(code string) string {
	return "/signin?" + url.Values{"next": {"/invite/" + url.PathEscape(api.InviteIn(code))}}.Encode()
}

// signUpPage handles GET /signup, and shows a refused sign-up again.
func (s *Site) signUpPage(v *visit) (reply, error) {
	data := signUpData{Invite: v.form.Get("invite"), Link: v.form.Get("link"), Provider: s.provider.name(),
		Empty: !s.hasMembers(v)}
	title := "Sign up"
	if data.Seen = s.seenInvite(v, data.Invite); data.Seen != nil {
		title = invitedTitle
	}
	return reply{page: "signup", title: title, data: data}, nil
}

// seenInvite returns what the invite of a refused form offers, or nil if it is not open.
func (s *Site) seenInvite(v *visit, text string) *api.SeenInvite {
	if text == "" {
		return nil
	}
	looked, err := s.guess(v.from)
	if err != nil {
		return nil
	}
	seen, err := s.SeeInvite(v.Context(), api.InviteIn(text))
	looked(err)
	if err != nil || seen.State != "open" {
		return nil
	}
	return &seen
}

// signUp handles POST /signup. It creates a member with a password and signs the member
// in. The page of the invite answers a visitor who is signed in, as by another tab, and
// an invite that is not open, as it names who can give another.
func (s *Site) signUp(v *visit) (reply, error) {
	if err := s.slowDown(v); err != nil {
		return reply{}, err
	}
	code := api.InviteIn(v.form.Get("invite"))
	seen, noInvite := s.SeeInvite(v.Context(), code) // before the invite is used up
	if code != "" && (v.me.ID != "" || noInvite == nil && seen.State != "open") {
		return reply{to: "/invite/" + url.PathEscape(code)}, nil
	}
	made, err := s.newMember(v)
	if err != nil {
		return reply{}, err
	}
	if made.Password, err = s.Passwords.Hash(v.Context(), made.Member.Name, v.form.Get("password")); err != nil {
		return reply{}, err
	}
	if err := s.takeIn(v, made, "sign-up"); err != nil {
		return reply{}, err
	}
	return s.invited(v, made.Member, seen.Owner, "/"), nil
}

// invited returns where a member goes after accepting an owner's invite: to a chat with the
// owner's best model that is ready, else to another page. Without an owner there was no
// invite.
func (s *Site) invited(v *visit, m account.Member, owner, otherwise string) reply {
	if owner == "" {
		return reply{to: otherwise}
	}
	models, err := s.Models(v.Context(), fleet.Caller{Member: fleet.MemberID(m.ID), Name: m.Name})
	models = slices.DeleteFunc(slices.Clone(models), func(m api.Model) bool { return m.Owner != owner || m.Availability != "ready" })
	first := api.FirstChoice(models)
	if err != nil || first == nil { // the page says what is missing
		return reply{to: otherwise, done: owner + " shares their machines with you."}
	}
	return reply{to: "/try?" + url.Values{"model": {string(first.ID)}}.Encode(),
		done: owner + " shares their machines with you. What you write here runs on them, and " + owner + " could read it."}
}

// newMember returns the sign-up that the form asks for, if it is allowed.
func (s *Site) newMember(v *visit) (made account.SignUp, err error) {
	name := strings.TrimSpace(v.form.Get("name"))
	if f := api.CheckName(name); f != nil {
		return made, f
	}
	made.Member = account.Member{ID: account.NewID("mem_"), Name: name,
		Created: s.DB.Now().UTC().Truncate(time.Millisecond)}
	if err := s.letIn(v, &made); err != nil || made.Member.Operator {
		return made, err
	}
	if f := api.CheckChosenName(name); f != nil {
		return made, f
	}
	return made, nil
}

// takeIn creates the member and signs the member in.
func (s *Site) takeIn(v *visit, made account.SignUp, how string) error {
	err := s.DB.SignUp(v.Context(), made, made.Member.Created)
	switch {
	case errors.Is(err, account.ErrLooksTaken):
		return api.Taken(err, "")
	case errors.Is(err, account.ErrExists):
		return fault.New(fault.InvalidRequest, "the name %q is taken: choose another one",
			made.Member.Name).WithParam("name")
	case errors.Is(err, account.ErrNotFound):
		return fault.New(fault.NotFound,
			"the invite or link is wrong, used up, expired or revoked; ask for another").WithParam("invite")
	case err != nil:
		return err
	}
	s.Log.Info("member signed up", "member", made.Member.ID, "operator", made.Member.Operator,
		"invited", made.Invite != nil, "how", how)
	s.Changed(v.Context())
	if made.Link != nil && s.FirstMade != nil {
		s.FirstMade()
	}
	return s.begin(v, made.Member, how)
}

// letIn checks what allows the visitor to sign up: a link, an invite, or the operator's
// rule.
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
			return fault.New(fault.NotFound, "the invite is incomplete or wrong: copy all of it").WithParam("invite")
		}
		made.Invite = &hash
	case s.SignUp == SignUpInvite:
		return fault.New(fault.NotAllowed,
			"an invite is needed to sign up here; ask a member for one").WithParam("invite")
	}
	return nil
}

func deadLink() *fault.Fault {
	return fault.New(fault.NotFound, "the link was used, has expired or is incomplete; ask for another")
}

// welcomePage handles GET /welcome/{code}, the page behind a one-time link. Only its form
// uses up the link, so that link previews do not.
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

// welcome handles POST /welcome. It signs the link's member in, once.
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

const invitedTitle = "You are invited"

// inviteData is the content of an invite's page for a signed-in member, and for everyone if
// the invite is not open.
type inviteData struct {
	Code string
	Seen api.SeenInvite
}

// SignIn returns the sign-in URL for a member who accepted the invite.
func (d inviteData) SignIn() string { return signInForInvite(d.Code) }

// invitePage handles GET /invite/{code}. A signed-in member can accept the invite; other
// visitors can sign up with it. A member who has a share of its owner already is redirected
// as after accepting it.
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
	if accepted, err := s.sharesAlready(v, seen.Owner); err != nil || accepted {
		return s.invited(v, v.me, seen.Owner, forYouPath), err
	}
	page := reply{page: "invite", title: invitedTitle, data: inviteData{code, seen}}
	switch {
	case seen.State != "open":
		page.title = "Invite"
		return page, fault.New(fault.NotFound,
			"the invite of %s is %s: ask %s for another", seen.Owner, seen.State, seen.Owner)
	case v.me.Name == seen.Owner:
		return reply{to: invitesPath, done: "This is your own invite: send its link to the person you want to share with."}, nil
	case v.me.ID == "":
		page.page, page.data = "signup", signUpData{Invite: code, Seen: &seen, Provider: s.provider.name()}
	}
	return page, nil
}

// sharesAlready reports whether a member's machines are shared with the visitor.
func (s *Site) sharesAlready(v *visit, owner string) (bool, error) {
	if v.me.ID == "" {
		return false, nil
	}
	shares, err := call(s, v, api.ListShares, api.None{})
	return slices.ContainsFunc(shares.Data, func(sh api.Share) bool { return usable(sh) && sh.Owner == owner }), err
}

// recoverData is the content of /recover.
type recoverData struct {
	CanMail bool
	Mailed  bool // the request was taken; a link is sent if a member has the typed address
}

func (s *Site) recoverData(*visit) (recoverData, error) {
	return recoverData{CanMail: s.mail != nil}, nil
}

// slowRecovery limits recoveries by address, then by address and name. They are counted
// apart from attempts at passwords. There is no limit by name alone: recovery codes and
// mailed links cannot be guessed, and such a limit would let others lock a member out.
func (s *Site) slowRecovery(v *visit, name string) error {
	now, from := time.Now(), network(v.from)
	if err := tooSoon(s.limits.recoverFrom.Take(from, now)); err != nil || name == "" || len(name) > api.MaxName {
		return err
	}
	return tooSoon(s.limits.recoverOf.Take(from+" "+strings.ToLower(name), now))
}

// recover handles POST /recover. It sets a new password for a member who gives a recovery
// code instead of the old one.
func (s *Site) recover(v *visit) (reply, error) {
	name, password := strings.TrimSpace(v.form.Get("name")), v.form.Get("password")
	if err := s.slowRecovery(v, name); err != nil {
		return reply{}, err
	}
	hash, err := s.Passwords.Hash(v.Context(), name, password) // first: the same work for every name
	if err != nil {
		return reply{}, err
	}
	wrong := fault.New(fault.NotAllowed, "the name or the recovery code is wrong; a code works once").WithParam("code")
	member, err := s.DB.MemberWhoTypes(v.Context(), name)
	if errors.Is(err, account.ErrNotFound) || errors.Is(err, account.ErrInvalid) {
		return reply{}, wrong
	}
	if err != nil {
		return reply{}, err
	}
	err = s.DB.Recover(v.Context(), member.ID, credential.RecoveryHash(v.form.Get("code")), hash, s.DB.Now())
	switch {
	case errors.Is(err, account.ErrNotFound):
		return reply{}, wrong
	case errors.Is(err, account.ErrInvalid):
		return reply{}, disabled()
	case err != nil:
		return reply{}, err
	}
	if err := s.begin(v, member, "recovery"); err != nil {
		return reply{}, err
	}
	s.notice(v, "A recovery code was used to sign in to your account, and to set another password.")
	return reply{to: "/account", done: "Password changed. You are signed out everywhere else."}, nil
}

// sessionView is a session as its member sees it.
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
		_ = json.Unmarshal(k.Data, &data) // a session that cannot be decoded can still be ended
		views[i] = sessionView{k.ID, k.ID == this, data.Values[sessionFrom], data.Values[sessionAgent],
			data.Values[sessionHow], k.Created, k.Seen}
	}
	return views, err
}

// endSession handles POST /sessions/end: it ends one of the member's sessions, or all
// others.
func (s *Site) endSession(v *visit) (reply, error) {
	if v.form.Get("all") != "" {
		err := s.DB.EndSessionsOf(v.Context(), v.me.ID, s.sessionID(v.Context()))
		return reply{to: "/sessions", done: "You are signed out everywhere else."}, err
	}
	id := v.form.Get("session")
	if id == s.sessionID(v.Context()) {
		return s.signOut(v)
	}
	if err := s.DB.EndSessionOf(v.Context(), v.me.ID, id); err != nil {
		return reply{}, api.NotFound(err, "that session has ended already")
	}
	return reply{to: "/sessions", done: "Session ended."}, nil
}

// inviteLink returns the URL for an invite's code.
func (s *Site) inviteLink(code string) string { return s.Base + "/invite/" + url.PathEscape(code) }
