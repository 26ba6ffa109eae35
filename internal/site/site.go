// Package site serves the members' pages as HTML: sign-in, sessions and passkeys, and a
// table of pages that call the routes of package api as Go functions. Open pages are
// updated live. Devices and the pages' scripts get JSON.
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

// SignUp is the rule for who may create an account.
type SignUp string

// Accounts may be created by everyone, by people with a member's invite, or by no one.
// The link to a new hub's first account works under every rule.
const (
	SignUpOpen   SignUp = "open"
	SignUpInvite SignUp = "invite"
	SignUpClosed SignUp = "closed"
)

// Config holds what the pages need beside the API.
type Config struct {
	// Base is the address that members see, without a slash at the end. If it begins with
	// https, cookies are Secure and browsers are required to use https.
	Base string
	// SignUp is the operator's rule. If empty, it is SignUpInvite.
	SignUp SignUp
	// Provider is an OpenID provider that members may use to sign in.
	Provider Provider
	// Mail configures e-mail to members.
	Mail Mail
	// FirstMade is called after the first operator's account is created by its link. It
	// may be nil.
	FirstMade func()
	// Edge serves the hosted routes to clients.
	Edge http.Handler
	// Call serves a request to a hosted route like one from a client, on behalf of a
	// caller who is identified by a session.
	Call func(w http.ResponseWriter, r *http.Request, caller fleet.Caller)
	// Health returns the state of the hub's parts, for its operator.
	Health func(context.Context) []Part
	// Limits returns the limits that are in force now, for the hub's operator.
	Limits func() []Limit
	// BusyClients returns the clients whose connections or requests are close to the limit
	// for one client, for the hub's operator.
	BusyClients func() []BusyClient
}

// Part is one part of a hub, and its state.
type Part struct {
	Name string
	Good bool
	Text string // for people
}

// Limit is one limit of a hub.
type Limit struct{ Name, Value string }

// BusyClient is a client that is close to a limit.
type BusyClient struct {
	Client, What string // its address or network; connections or requests
	Held, Limit  int
}

// Site serves the members' pages. Make it with New, then Run it.
type Site struct {
	*api.API
	Config
	DB       Store // in the place of the API's
	pages    []page
	mux      api.Mux // of the pages
	secure   bool
	sessions *scs.SessionManager
	cross    *http.CrossOriginProtection
	limits   limits
	passkeys *webauthn.WebAuthn // nil: passkeys cannot be bound to the address
	provider *provider          // nil: none is configured
	mail     *mail.Sender       // nil: no e-mail is sent
	lookups  chan lookup        // requests to find the account for an e-mail address
	live     live
}

// New returns a site over an API. It sets the API's Base and LinkMade.
func New(a *api.API, c Config) *Site {
	if c.SignUp == "" {
		c.SignUp = SignUpInvite
	}
	s := &Site{API: a, Config: c, DB: a.DB, secure: strings.HasPrefix(c.Base, "https://"),
		cross: http.NewCrossOriginProtection()}
	s.pages = sitePages()
	for i := range s.pages {
		s.mux.Handle(s.pages[i].method, s.pages[i].path, s.handler(&s.pages[i]))
	}
	s.sessions = newSessions(sessionStore{db: s.DB}, s.secure)
	s.sessions.ErrorFunc = func(w http.ResponseWriter, _ *http.Request, err error) {
		s.Log.Error("cannot keep a session", "error", err)
		http.Error(w, "the service could not read its database just now; try again shortly",
			http.StatusServiceUnavailable)
	}
	s.limits, s.live = newLimits(), newLive()
	s.passkeys, s.provider = newPasskeys(c.Base), newProvider(c.Provider, c.Base, s.DB.Now)
	s.mail, s.lookups = mail.New(c.Mail, a.Log), make(chan lookup, mostLookups)
	a.Base = c.Base
	a.LinkMade = s.noticeOfLink
	return s
}

// Run updates open pages, records notices for members and sends mail, until ctx ends.
func (s *Site) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.keepLive(ctx) })
	group.Go(func() error { return s.runMail(ctx) })
	group.Go(func() error { return s.runNotices(ctx) })
	return group.Wait()
}

// Serves reports whether the site handles a request: one for a page or for its files, or
// a browser's request for an unknown path. The hosted routes handle HEAD /, all paths
// that begin like theirs, and /models from clients whose base URL lacks /v1.
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

// visit is one request of a browser, while a page handles it.
type visit struct {
	*http.Request
	page   *page       // nil: there is no such page
	id     string      // correlation id
	from   string      // the visitor's address
	came   time.Time   // when the request arrived, by the store's clock
	header http.Header // of the response
	form   url.Values
	me     account.Member // ID is empty if the visitor is not signed in
}

// caller returns the member as a caller of the API. All browsers of a member share one
// rate limit.
func (v *visit) caller() fleet.Caller {
	return fleet.Caller{Member: fleet.MemberID(v.me.ID), Name: v.me.Name, KeyID: api.SiteKey + v.me.ID}
}

// reply is the result of a page's handler: a page to render, or a redirect.
type reply struct {
	page  string // the template's name
	title string
	data  any
	to    string // a path of this site to redirect to, instead of a page
	done  string // with to: the confirmation message on the next page
	// write, if set, writes the response, and the other fields are ignored.
	write func(http.ResponseWriter)
}

// ServeHTTP handles the requests that Serves accepts.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := []string{account.NewID("req_")}
	// spec/api.md#correlation-id
	w.Header()["X-Correlation-Id"], w.Header()["Request-Id"], w.Header()["X-Request-Id"] = id, id, id
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

// handler returns the handler of a page; p is nil if no page matches the request.
func (s *Site) handler(p *page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body []byte
		var late error
		if p == nil || !p.raw {
			body, late = api.ReadBody(w, r)
		}
		answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v := &visit{Request: r, page: p, id: w.Header().Get("X-Correlation-ID"), from: addressOf(r),
				came: s.DB.Now(), header: w.Header()}
			out, err := s.visit(v, body, late)
			s.answerWith(w, v, out, err)
		})
		if strings.HasPrefix(r.URL.Path, livePath) || r.Method == http.MethodGet && r.Header.Get(refreshHeader) != "" {
			s.loadOnly(answer).ServeHTTP(w, r)
			return
		}
		s.sessions.LoadAndSave(answer).ServeHTTP(w, r)
	})
}

// loadOnly loads the session without storing it again, so that an open page does not keep its
// member signed in, and does not undo what a form stores at the same time.
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

// secureHeaders sets the headers that every response of the site has.
func (s *Site) secureHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; "+
		"font-src 'self'; connect-src 'self'; "+
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

// visit identifies the visitor, checks that a form came from this site, and runs the
// page's handler. If a POST is refused, the response is the page with the form. A panic
// fails only this request.
func (s *Site) visit(v *visit, body []byte, late error) (out reply, err error) {
	defer func() {
		switch panicked := recover(); panicked {
		case nil:
		case http.ErrAbortHandler: // the browser disconnected during a call
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
		return reply{}, fault.New(fault.RouteNotFound, "there is no such page: check the address for a typo")
	case v.page == nil && v.Method == http.MethodGet && !strings.HasPrefix(v.URL.Path, devicePath+"/"):
		v.page = &page{path: v.URL.Path}
		if i := slices.IndexFunc(s.pages, func(p page) bool { return p.path == v.URL.Path }); i >= 0 {
			v.page = &s.pages[i]
		}
		if s.pageWith(v.page) != nil {
			return reply{to: s.placeOf(v)}, nil // the browser reloaded the answer to a form
		}
		return reply{to: "/"}, nil
	case v.page == nil:
		allow := strings.Join(allowed, ", ")
		v.header.Set("Allow", allow)
		return reply{}, fault.New(fault.MethodNotAllowed, "this page accepts %s", allow)
	}
	if err := s.cross.Check(v.Request); err != nil {
		return reply{}, fault.New(fault.ForbiddenOrigin,
			"this request came from another site, so nothing was done; do it on this hub's own page").Because(err)
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

// pageWith returns the page that contains the form: the page that the form names, or the
// page at its path, or the nearest one above. It returns nil if there is none.
func (s *Site) pageWith(form *page) *page {
	for at := cmp.Or(form.on, form.path); at != "/"; at = path.Dir(at) {
		if i := slices.IndexFunc(s.pages,
			func(p page) bool { return p.method == http.MethodGet && p.path == at && !p.asks }); i >= 0 {
			return &s.pages[i]
		}
	}
	return nil
}

// placeOf returns the path of the page with the form that was sent.
func (s *Site) placeOf(v *visit) string {
	at := s.pageWith(v.page).path
	if machine := v.form.Get("machine"); at == machinePath && machine != "" {
		return machineAddress(machine, machineTab(v))
	} else if at == machinePath {
		return path.Dir(at)
	}
	if group := v.form.Get("group"); at == groupPath && group != "" {
		return groupAddress(group)
	} else if at == groupPath {
		return groupsPath
	}
	return at
}

// formOf returns the posted form. A GET has none.
func formOf(r *http.Request, body []byte) (url.Values, error) {
	if r.Method == http.MethodGet {
		return url.Values{}, nil
	}
	if len(body) > 0 && !hasType(r, "application/x-www-form-urlencoded") {
		return nil, fault.New(fault.InvalidRequest, "send the form as application/x-www-form-urlencoded")
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, fault.New(fault.InvalidRequest, "cannot read the form").Because(err)
	}
	return form, nil
}

// hasType reports whether a request's body has that media type.
func hasType(r *http.Request, want string) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), want)
}

// localPath returns next if it is a page of this site that sign-in may redirect to, else
// "/". A link can never lead off the site.
func (s *Site) localPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Host != "" || u.Scheme != "" || u.Opaque != "" || !strings.HasPrefix(next, "/") ||
		strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	if !slices.Contains(s.mux.Allowed(u), http.MethodGet) {
		return "/"
	}
	return u.RequestURI()
}

// whoIs returns the member who sent the request. It returns the zero Member if the
// visitor is not signed in or the member is disabled.
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
		return account.Member{}, fault.New(fault.CascadeExhausted,
			"the service could not read its database just now; try again shortly").Because(err)
	}
	return member, nil
}

// sessionID returns the id of this browser's session in the store.
func (s *Site) sessionID(ctx context.Context) string {
	hash := hashOf(s.sessions.Token(ctx))
	return base64.RawURLEncoding.EncodeToString(hash[:])
}
