// Package site is the members' pages, as HTML: sign-in, sessions and passkeys, and
// a table of pages that do the routes of package api by their Go types. Open pages
// are kept up to date. Where a device or a browser's script asks, it answers JSON.
package site

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-webauthn/webauthn/webauthn"
	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/mail"
)

// SignUp says who may make an account.
type SignUp string

// Who may make an account: everyone, those with a member's invite, or no one. The
// link to a new hub's first account works in any case.
const (
	SignUpOpen   SignUp = "open"
	SignUpInvite SignUp = "invite"
	SignUpClosed SignUp = "closed"
)

// Config is what the pages work with beside the API.
type Config struct {
	// Base is the address members see, without a slash at the end. Where it
	// begins with https, cookies and browsers are held to it.
	Base string
	// SignUp is the operator's rule; empty: SignUpInvite.
	SignUp SignUp
	// Provider is where members may sign in, too.
	Provider Provider
	// Mail is how e-mail to members is sent.
	Mail Mail
	// FirstMade is called when the link to the first operator's account was used.
	// May be nil.
	FirstMade func()
	// Try makes a short live call with an API key, as a client would; where model
	// is empty it takes the first that would be served.
	Try func(ctx context.Context, secret string, model fleet.ModelID) Trial
	// Call serves a request to a hosted route, as a client's, in the name of a
	// caller who is known by a session.
	Call func(w http.ResponseWriter, r *http.Request, caller api.Caller)
	// Health is how the hub's parts are, for its operator.
	Health func(context.Context) []Part
	// Limits are those in force, for its operator.
	Limits []Limit
}

// Part is one part of a hub, and how it is.
type Part struct {
	Name string
	Good bool
	Text string // in words
}

// Limit is one limit of a hub.
type Limit struct{ Name, Value string }

// Trial is what a live call came to.
type Trial struct {
	Model   fleet.ModelID
	Status  int    // HTTP
	Code    string // of a refusal
	Message string // of a refusal, or the beginning of the answer
	Route   string // X-Kith-Route: whose machine answered
	Took    time.Duration
}

// Site serves the members' pages. Make it with New, then Run it.
type Site struct {
	*api.API
	Config
	pages    []page
	mux      api.Mux // of the pages
	secure   bool
	sessions *scs.SessionManager
	cross    *http.CrossOriginProtection
	look     look
	limits   limits
	passkeys *webauthn.WebAuthn // nil: the address is none that passkeys can be bound to
	provider *provider          // nil: none is configured
	mail     *mail.Sender       // nil: none is sent
	lookups  chan lookup        // of addresses to recover an account by
	live     live
}

// New makes the site over an API, to which it lends its address and its mail.
func New(a *api.API, c Config) *Site {
	if c.SignUp == "" {
		c.SignUp = SignUpInvite
	}
	s := &Site{API: a, Config: c, secure: strings.HasPrefix(c.Base, "https://"), cross: http.NewCrossOriginProtection()}
	s.pages = sitePages()
	for i := range s.pages {
		s.mux.Handle(s.pages[i].method, s.pages[i].path, s.handler(&s.pages[i]))
	}
	s.sessions = newSessions(sessionStore{a}, s.secure)
	s.sessions.ErrorFunc = func(w http.ResponseWriter, _ *http.Request, err error) {
		s.Log.Error("cannot keep a session", "error", err)
		http.Error(w, "the service could not read its database just now; try again shortly", http.StatusServiceUnavailable)
	}
	s.look, s.limits, s.live = newLook(), newLimits(), newLive()
	s.passkeys, s.provider = newPasskeys(c.Base), newProvider(c.Provider, c.Base)
	s.mail, s.lookups = mail.New(c.Mail, a.Log), make(chan lookup, mostLookups)
	a.Base = c.Base
	a.Notify = api.Notify{Invited: s.mailInvitation, Joined: s.mailJoin, LinkMade: s.noticeOfLink}
	return s
}

// Run keeps open pages up to date, and sends mail, until ctx ends.
func (s *Site) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.keepLive(ctx) })
	group.Go(func() error { return s.runMail(ctx) })
	return group.Wait()
}

// access says who may see a page.
type access uint8

const (
	anyone access = iota
	members
	operators // for all others there is no such page
)

// page is one line of the site: what is asked, who may, and what answers.
type page struct {
	method, path string
	may          access
	serve        func(*Site, *visit) (reply, error)
	// again is the page that shows what was wrong with a POST; empty: an error
	// page of its own.
	again string
}

// sitePages is the complete site. No path holds what a person named.
func sitePages() []page { return slices.Concat(signInPages(), memberPages()) }

// signInPages are those of signing in, and of what a member signs in with.
func signInPages() []page {
	return []page{
		{"GET", "/", anyone, (*Site).home, ""},

		{"GET", "/signin", anyone, (*Site).signInPage, ""},
		{"POST", "/signin", anyone, (*Site).signIn, "/signin"},
		{"POST", "/signin/passkey/begin", anyone, (*Site).beginSignIn, ""},
		{"POST", "/signin/passkey", anyone, (*Site).signInByPasskey, "/signin"},
		{"POST", "/signin/provider", anyone, (*Site).seeProvider, "/signin"},
		{"GET", backPath, anyone, (*Site).comeBack, ""},
		{"GET", "/signup/provider", anyone, (*Site).newcomerPage, ""},
		{"POST", "/signup/provider", anyone, (*Site).signUpByProvider, "/signup/provider"},
		{"POST", "/signout", anyone, (*Site).signOut, ""},
		{"GET", "/signup", anyone, (*Site).signUpPage, ""},
		{"POST", "/signup", anyone, (*Site).signUp, "/signup"},
		{"GET", "/recover", anyone, (*Site).recoverPage, ""},
		{"POST", "/recover", anyone, (*Site).recover, "/recover"},
		{"POST", "/recover/mail", anyone, (*Site).recoverByMail, "/recover"},
		{"GET", "/welcome/{code}", anyone, (*Site).welcomePage, ""},
		{"POST", "/welcome", anyone, (*Site).welcome, ""},
		{"GET", "/invite/{code}", anyone, (*Site).invitePage, ""},

		{"GET", "/account", members, (*Site).accountPage, ""},
		{"POST", "/account/password", members, (*Site).changePassword, "/account"},
		{"POST", "/account/codes", members, (*Site).makeCodes, "/account"},
		{"POST", "/account/passkeys/begin", members, (*Site).beginPasskey, ""},
		{"POST", "/account/passkeys", members, (*Site).addPasskey, "/account"},
		{"POST", "/account/passkeys/remove", members, (*Site).removePasskey, "/account"},
		{"POST", "/account/provider", members, (*Site).linkProvider, "/account"},
		{"POST", "/account/provider/remove", members, (*Site).unbind, "/account"},
		{"POST", "/account/email", members, (*Site).askEmail, "/account"},
		{"GET", "/account/email/{code}", members, (*Site).emailPage, ""},
		{"POST", "/account/email/verify", members, (*Site).verifyEmail, "/account"},
		{"POST", "/account/email/remove", members, (*Site).removeEmail, "/account"},
		{"GET", "/sessions", members, (*Site).sessionsPage, ""},
		{"POST", "/sessions/end", members, (*Site).endSession, "/sessions"},
	}
}

// memberPages are what members and operators use.
func memberPages() []page {
	return []page{
		{"GET", "/applications", members, (*Site).applications, ""},
		{"POST", "/applications", members, (*Site).createKey, "/applications"},
		{"POST", "/applications/test", members, (*Site).testKey, "/applications"},
		{"POST", "/applications/revoke", members, (*Site).endKey, "/applications"},

		{"GET", "/device", members, (*Site).devicePage, ""},
		{"POST", "/device", members, (*Site).showDevice, "/device"},
		{"POST", "/device/decide", members, (*Site).decideDevice, "/device"},

		{"GET", "/machines", members, (*Site).machinesPage, ""},
		{"GET", livePath + "machines", members, liveStream("/machines", machinesScene), ""},
		{"POST", "/machines/pause", members, (*Site).pauseMachine, "/machines"},
		{"POST", "/machines/resume", members, (*Site).resumeMachine, "/machines"},
		{"POST", "/machines/hours", members, (*Site).setHours, "/machines"},
		{"POST", "/machines/slots", members, (*Site).setSlots, "/machines"},
		{"POST", "/machines/rename", members, (*Site).rename, "/machines"},
		{"POST", "/machines/revoke", members, (*Site).endMachine, "/machines"},
		{"POST", "/machines/keep-out", members, (*Site).keepMachineOut, "/machines"},

		{"GET", "/sharing", members, (*Site).sharingPage, ""},
		{"GET", livePath + "sharing", members, liveStream("/sharing", sharingScene), ""},
		{"POST", "/sharing/share", members, (*Site).share, "/sharing"},
		{"POST", "/sharing/limits", members, (*Site).limitShare, "/sharing"},
		{"POST", "/sharing/end", members, (*Site).endShare, "/sharing"},
		{"POST", "/sharing/invite", members, (*Site).makeInvite, "/sharing"},
		{"POST", "/sharing/revoke", members, (*Site).endInvite, "/sharing"},
		{"POST", "/sharing/accept", members, (*Site).accept, "/sharing"},

		{"GET", "/groups", members, (*Site).groupsPage, ""},
		{"POST", "/groups/create", members, (*Site).makeGroup, "/groups"},
		{"POST", "/groups/join", members, (*Site).join, "/groups"},
		{"POST", "/groups/leave", members, (*Site).leave, "/groups"},
		{"POST", "/groups/limit", members, (*Site).limitGroup, "/groups"},
		{"POST", "/groups/end", members, (*Site).dissolve, "/groups"},
		{"POST", "/groups/accept", members, (*Site).acceptGroup, "/groups"},
		{"POST", "/groups/decline", members, (*Site).declineGroup, "/groups"},
		{"POST", "/groups/invite", members, (*Site).inviteMember, "/groups"},
		{"POST", "/groups/withdraw", members, (*Site).withdraw, "/groups"},
		{"POST", "/groups/seen", members, (*Site).seeNotices, "/groups"},
		{"POST", "/groups/remove", members, (*Site).removeMember, "/groups"},
		{"POST", "/groups/admin", members, (*Site).promote, "/groups"},
		{"POST", "/groups/demote", members, (*Site).demote, "/groups"},

		{"GET", "/try", members, (*Site).tryPage, ""},
		{"POST", "/try", members, (*Site).tryOnce, "/try"},
		{"POST", "/try/stream", members, (*Site).tryLive, ""},

		{"GET", operatorPath, operators, (*Site).operatorPage, ""},
		{"GET", operatorPath + "/members", operators, (*Site).membersPage, ""},
		{"POST", operatorPath + "/members/disable", operators, (*Site).disableMember, operatorPath + "/members"},
		{"POST", operatorPath + "/members/enable", operators, (*Site).enableMember, operatorPath + "/members"},
		{"POST", operatorPath + "/members/link", operators, (*Site).linkMember, operatorPath + "/members"},
		{"GET", operatorPath + "/machines", operators, (*Site).allMachines, ""},
		{"GET", operatorPath + "/audit", operators, (*Site).auditPage, ""},

		{"GET", "/models", members, (*Site).modelsPage, ""},
		{"GET", livePath + "models", members, liveStream("/models", modelsScene), ""},
		{"GET", "/usage", members, (*Site).usagePage, ""},
		{"GET", "/usage.csv", members, (*Site).usageCSV, ""},
		{"GET", "/api", anyone, (*Site).apiPage, ""},
		{"GET", "/requests", members, (*Site).requestsPage, ""},
		{"GET", "/requests/{call}", members, (*Site).requestPage, ""},
	}
}

// Serves reports whether a request is the site's to answer: it is for a page or
// its parts, or it is a browser's for nothing that there is. A HEAD of / is for
// the hosted routes, and so is whatever begins as they do.
func (s *Site) Serves(r *http.Request) bool {
	path := r.URL.Path
	browser := r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
	if path == "/" {
		return browser
	}
	if strings.HasPrefix(path, staticPath) || path == devicePath+"/code" || path == devicePath+"/token" {
		return true
	}
	return s.mux.Allowed(r.URL) != nil || browser && path != "/v1" && !strings.HasPrefix(path, "/v1/")
}

// visit is one request of a browser on its way through a page.
type visit struct {
	*http.Request
	page   *page       // nil: there is none
	id     string      // correlation
	from   string      // the visitor's address
	header http.Header // of the answer
	form   url.Values
	me     account.Member // ID empty: the visitor is not signed in
}

// SiteKey begins the KeyID of a caller who is known by a session; the member's id
// follows. No key's id begins so.
const SiteKey = "site of "

// caller is the member as the API knows those who ask. All of a member's
// browsers have one rate together.
func (v *visit) caller() api.Caller {
	return api.Caller{Member: fleet.MemberID(v.me.ID), Name: v.me.Name, KeyID: SiteKey + v.me.ID}
}

// reply is what a page's handler decided: a page, or where to go next.
type reply struct {
	page  string // the template's name
	title string
	data  any
	to    string // a path of this site, instead of a page
	done  string // with to: what was done, shown on the page that follows
	file  *download
	// write answers in the page's place, whatever else the reply says.
	write func(http.ResponseWriter)
}

// download is a reply that is no page.
type download struct {
	name, kind string
	body       []byte
}

// ServeHTTP serves a request that Serves takes.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Correlation-ID", account.NewID("req_"))
	s.secureHeaders(w.Header())
	if rest, ok := strings.CutPrefix(r.URL.Path, staticPath); ok {
		s.look.serveStatic(w, r, rest)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case r.URL.Path == devicePath+"/code", r.URL.Path == devicePath+"/token":
		body, late := api.ReadBody(w, r)
		s.serveGrant(w, r, body, late)
	case slices.Contains(s.mux.Allowed(r.URL), r.Method):
		s.mux.ServeHTTP(w, r)
	default:
		s.handler(nil).ServeHTTP(w, r)
	}
}

// handler serves a page; nil: none fits the request.
func (s *Site) handler(p *page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, late := api.ReadBody(w, r)
		answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v := &visit{Request: r, page: p, id: w.Header().Get("X-Correlation-ID"), from: addressOf(r), header: w.Header()}
			out, err := s.visit(v, body, late)
			s.answerWith(w, v, out, err)
		})
		if strings.HasPrefix(r.URL.Path, livePath) {
			s.loadOnly(answer).ServeHTTP(w, r)
			return
		}
		s.sessions.LoadAndSave(answer).ServeHTTP(w, r)
	})
}

// loadOnly has a session read and not kept: an open page keeps no one signed in.
func (s *Site) loadOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := ""
		if cookie, err := r.Cookie(s.sessions.Cookie.Name); err == nil {
			token = cookie.Value
		}
		ctx, err := s.sessions.Load(r.Context(), token)
		if err != nil {
			s.sessions.ErrorFunc(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// secureHeaders are on every answer of the site.
func (s *Site) secureHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=()")
	if s.secure {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}

// visit finds the page, checks who asks and that it was this site that did, and
// serves it. A refused POST is answered with the page that it came from, and a panic is
// a defect of this request only.
func (s *Site) visit(v *visit, body []byte, late error) (out reply, err error) {
	defer func() {
		switch panicked := recover(); panicked {
		case nil:
		case http.ErrAbortHandler: // the browser left in the middle of a call
			panic(panicked)
		default:
			out, err = reply{}, fault.Defect(panicked)
		}
	}()
	allowed := s.mux.Allowed(v.URL)
	if v.me, err = s.whoIs(v.Context()); err != nil {
		return reply{}, err
	}
	switch {
	case allowed == nil, strings.HasPrefix(v.URL.Path, operatorPath) && !v.me.Operator:
		return reply{}, fault.New(fault.RouteNotFound, "there is no such page")
	case v.page == nil:
		allow := strings.Join(allowed, ", ")
		v.header.Set("Allow", allow)
		return reply{}, fault.New(fault.MethodNotAllowed, "this page takes %s", allow)
	}
	if err := s.cross.Check(v.Request); err != nil {
		return reply{}, fault.New(fault.ForbiddenOrigin, "another site sent this request, so nothing was done; do it from the page here").Because(err)
	}
	if late != nil {
		return reply{}, late
	}
	if v.form, err = formOf(v.Request, body); err != nil {
		return reply{}, err
	}
	if v.page.may == members && v.me.ID == "" {
		return reply{to: "/signin?" + url.Values{"next": {nextOf(v.URL, v.page)}}.Encode()}, nil
	}
	if v.me.ID != "" {
		if err := s.Admit(v.caller()); err != nil {
			return reply{}, err
		}
	}
	out, err = v.page.serve(s, v)
	if err != nil && v.page.again != "" {
		return s.showAgain(v, v.page.again, err)
	}
	return out, err
}

// showAgain is the page that a refused POST came from, with the refusal on it.
func (s *Site) showAgain(v *visit, path string, refused error) (reply, error) {
	if fault.Of(refused).Code == fault.InternalError {
		return reply{}, refused
	}
	i := slices.IndexFunc(s.pages, func(p page) bool { return p.method == http.MethodGet && p.path == path })
	out, err := s.pages[i].serve(s, v)
	if err != nil {
		return reply{}, refused
	}
	return out, refused
}

// formOf is the form that was posted; a GET has none.
func formOf(r *http.Request, body []byte) (url.Values, error) {
	if r.Method == http.MethodGet {
		return url.Values{}, nil
	}
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if len(body) > 0 && !strings.EqualFold(strings.TrimSpace(kind), "application/x-www-form-urlencoded") {
		return nil, fault.New(fault.InvalidRequest, "a page's form comes as application/x-www-form-urlencoded")
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, fault.New(fault.InvalidRequest, "cannot read the form").Because(err)
	}
	return form, nil
}

// nextOf is where a visitor who has to sign in first wanted to go.
func nextOf(u *url.URL, found *page) string {
	if found.method == http.MethodGet {
		return u.RequestURI()
	}
	return found.again
}

// localPath is a page of this site as sign-in may go on to, else "/": nothing
// that a link says leads off the site.
func (s *Site) localPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Host != "" || u.Scheme != "" || u.Opaque != "" || !strings.HasPrefix(next, "/") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	if !slices.Contains(s.mux.Allowed(u), http.MethodGet) {
		return "/"
	}
	return u.RequestURI()
}

// call does a route of the API for the member who is signed in.
func call[In, Out any](s *Site, v *visit, route api.Route[In, Out], in In) (Out, error) {
	if _, err := json.Marshal(in); err != nil { // as it would be refused in a request
		var none Out
		return none, fault.New(fault.InvalidRequest, "the form holds text that is not UTF-8").Because(err)
	}
	return route.Do(v.Context(), s.API, v.caller(), in)
}

// did is call where the answer does not matter: the reply says what was done.
func did[In, Out any](s *Site, v *visit, done reply, route api.Route[In, Out], in In) (reply, error) {
	_, err := call(s, v, route, in)
	return done, err
}

// whoIs is the member whose browser asks; none where the visitor is not signed in, or
// the member is disabled.
func (s *Site) whoIs(ctx context.Context) (account.Member, error) {
	id := s.sessions.GetString(ctx, sessionMember)
	if id == "" {
		return account.Member{}, nil
	}
	member, err := s.DB.Member(ctx, id)
	switch {
	case errors.Is(err, account.ErrNotFound) || err == nil && member.Disabled:
		return account.Member{}, nil
	case err != nil:
		return account.Member{}, fault.New(fault.CascadeExhausted, "the service could not read its database just now; try again shortly").Because(err)
	}
	return member, nil
}

// sessionID is the id under which this browser's session is kept.
func (s *Site) sessionID(ctx context.Context) string {
	hash := hashOf(s.sessions.Token(ctx))
	return base64.RawURLEncoding.EncodeToString(hash[:])
}
