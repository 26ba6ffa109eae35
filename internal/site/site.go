// Package site is the members' pages, as HTML: sign-in, sessions and passkeys, and
// a table of pages that do the routes of package api by their Go types. Open pages
// are kept up to date. Where a device or a browser's script asks, it answers JSON.
package site

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/alexedwards/scs/v2"
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
	// Edge serves the hosted routes to clients.
	Edge http.Handler
	// Call serves a request to a hosted route, as a client's, in the name of a
	// caller who is known by a session.
	Call func(w http.ResponseWriter, r *http.Request, caller api.Caller)
	// Health is how the hub's parts are, for its operator.
	Health func(context.Context) []Part
	// Limits are those in force now, for its operator.
	Limits func() []Limit
	// Near are the clients that hold nearly as many connections or requests as one may,
	// for its operator.
	Near func() []Near
}

// Part is one part of a hub, and how it is.
type Part struct {
	Name string
	Good bool
	Text string // in words
}

// Limit is one limit of a hub.
type Limit struct{ Name, Value string }

// Near is a client that is near a limit.
type Near struct {
	Client, What string // its address or network; connections or requests
	Held, Limit  int
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
	s.sessions = newSessions(sessionStore{api: a}, s.secure)
	s.sessions.ErrorFunc = func(w http.ResponseWriter, _ *http.Request, err error) {
		s.Log.Error("cannot keep a session", "error", err)
		http.Error(w, "the service could not read its database just now; try again shortly", http.StatusServiceUnavailable)
	}
	s.limits, s.live = newLimits(), newLive()
	s.passkeys, s.provider = newPasskeys(c.Base), newProvider(c.Provider, c.Base, a.DB.Now)
	s.mail, s.lookups = mail.New(c.Mail, a.Log), make(chan lookup, mostLookups)
	a.Base = c.Base
	a.LinkMade = s.noticeOfLink
	return s
}

// Run keeps open pages up to date, notes what members are to know, and sends mail, until
// ctx ends.
func (s *Site) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.keepLive(ctx) })
	group.Go(func() error { return s.runMail(ctx) })
	group.Go(func() error { return s.runNotices(ctx) })
	return group.Wait()
}

// Serves reports whether a request is the site's to answer: it is for a page or
// its parts, or it is a browser's for nothing that there is. A HEAD of / is for
// the hosted routes, and so is whatever begins as they do, and a client's /models whose
// base URL lacks /v1.
func (s *Site) Serves(r *http.Request) bool {
	at := r.URL.Path
	browser := r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
	if at == "/" {
		return browser
	}
	if at == "/models" && !browser && (r.Header.Get("Authorization") != "" || r.Header.Get("X-Api-Key") != "") {
		return false
	}
	if strings.HasPrefix(at, staticPath) || at == devicePath+"/code" || at == devicePath+"/token" {
		return true
	}
	return s.mux.Allowed(r.URL) != nil || browser && at != "/v1" && !strings.HasPrefix(at, "/v1/")
}

// visit is one request of a browser on its way through a page.
type visit struct {
	*http.Request
	page   *page       // nil: there is none
	id     string      // correlation
	from   string      // the visitor's address
	came   time.Time   // by the store's clock
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
	// write answers in the page's place, whatever else the reply says.
	write func(http.ResponseWriter)
}

// ServeHTTP serves a request that Serves takes.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := []string{account.NewID("req_")}
	w.Header()["X-Correlation-Id"], w.Header()["Request-Id"], w.Header()["X-Request-Id"] = id, id, id // spec/api.md#correlation-id
	s.secureHeaders(w.Header())
	if strings.HasPrefix(r.URL.Path, staticPath) {
		serveStatic(w, r)
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
		var body []byte
		var late error
		if p == nil || !p.raw {
			body, late = api.ReadBody(w, r)
		}
		answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v := &visit{Request: r, page: p, id: w.Header().Get("X-Correlation-ID"), from: addressOf(r), came: s.DB.Now(), header: w.Header()}
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
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "+
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
	case v.page == nil && v.Method == http.MethodGet && !strings.HasPrefix(v.URL.Path, devicePath+"/"):
		v.page = &page{path: v.URL.Path}
		if i := slices.IndexFunc(s.pages, func(p page) bool { return p.path == v.URL.Path }); i >= 0 {
			v.page = &s.pages[i]
		}
		if s.pageWith(v.page) != nil {
			return reply{to: s.placeOf(v)}, nil // a reload of what a form answered
		}
		return reply{to: "/"}, nil
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
		next := v.URL.RequestURI()
		if v.page.method == http.MethodPost {
			next = s.placeOf(v)
		}
		return reply{to: "/signin?" + url.Values{"next": {next}}.Encode()}, nil
	}
	if v.me.ID != "" {
		if err := s.Admit(v.caller()); err != nil {
			return reply{}, err
		}
	}
	out, err = v.page.serve(s, v)
	if err == nil || v.page.method == http.MethodGet {
		return out, err
	}
	if on := s.pageWith(v.page); on != nil && fault.Of(err).Code != fault.InternalError {
		if shown, failed := on.serve(s, v); failed == nil {
			return shown, err
		}
	}
	return reply{}, err
}

// pageWith returns the page that has the form: the one that it names, or the one at its
// path, or the nearest above it; nil: none.
func (s *Site) pageWith(form *page) *page {
	for at := cmp.Or(form.on, form.path); at != "/"; at = path.Dir(at) {
		if i := slices.IndexFunc(s.pages, func(p page) bool { return p.method == http.MethodGet && p.path == at && !p.asks }); i >= 0 {
			return &s.pages[i]
		}
	}
	return nil
}

// placeOf is the path of the page that has the form that was sent.
func (s *Site) placeOf(v *visit) string {
	at := s.pageWith(v.page).path
	if machine := v.form.Get("machine"); at == machinePath && machine != "" {
		return strings.Replace(at, "{machine}", url.PathEscape(machine), 1)
	} else if at == machinePath {
		return path.Dir(at)
	}
	return at
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
