// Package web is what a member does with an account beside making calls: keys,
// sharing, groups, machines, usage. It is a JSON API, for the commands, and the
// site's pages, which ask the API's own handlers. Every object is looked up
// together with whose it is, and what is not the caller's cannot be told from
// what does not exist.
package web

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Config is what the API works with; all of it is needed.
type Config struct {
	Accounts Accounts
	// Region is the hub's, for the secrets minted here.
	Region string
	// Identify says who presents a secret; its errors are faults.
	Identify func(ctx context.Context, secret string) (Caller, error)
	// Snapshot is who is connected and who reaches whom just now.
	Snapshot func() *fleet.Snapshot
	// Models is what the caller reaches now.
	Models func(ctx context.Context, caller Caller) ([]Model, error)
	// Running is every call that a machine of this hub runs now.
	Running func() []Use
	// Queued is how many calls wait that the machine could take; of very many, at
	// least that many do.
	Queued func(*fleet.Machine) int
	// Control hands a connected machine a change of its owner's. The error is
	// ErrNotConnected, or says why the machine refused.
	Control func(ctx context.Context, machine fleet.MachineID, change Control) error
	// Changed is told after each write, so that it takes effect now.
	Changed func()
	// Admit takes a token of the caller's rate, or says when there is one: the
	// API and the inference routes have one rate together (decisions 4).
	Admit func(Caller) error
	// Miss is what the caller is told where the truth is f, which may say that a
	// model is out of reach: too many of those and it is another fault.
	Miss func(caller Caller, model fleet.ModelID, f *fault.Fault) *fault.Fault
	// Confirmed says that who shares with whom is known as it is now.
	Confirmed func(now time.Time) bool
	// Story is what the member may know of a past call; account.ErrNotFound
	// where that is nothing.
	Story func(ctx context.Context, callID, memberID string) (account.Story, error)
	Log   *slog.Logger
}

// ErrNotConnected is Config.Control's for a machine without a live tunnel.
var ErrNotConnected = errors.New("the machine is not connected")

// Accounts is what the API keeps and reads: *store.DB, whose methods say more.
// A look-up that finds nothing of the caller's is account.ErrNotFound, a clash
// account.ErrExists.
type Accounts interface {
	Member(ctx context.Context, id string) (account.Member, error)
	MemberByName(ctx context.Context, name string) (account.Member, error)
	CountMembers(context.Context) (all, disabled int, err error)
	MembersBefore(ctx context.Context, from account.Place, part string, most int) ([]account.Member, error)
	SetMemberDisabled(ctx context.Context, id string, disabled bool) error
	Acts(ctx context.Context, from account.Place, most int) ([]account.Act, error)
	LastBackup(context.Context) (account.Backup, error)

	SignUp(ctx context.Context, s account.SignUp, now time.Time) error
	Password(ctx context.Context, memberID string) (string, error)
	SetPassword(ctx context.Context, memberID, hash, keep string, now time.Time) error
	OperatorCanSignIn(ctx context.Context) (bool, error)
	PutRecoveryCodes(ctx context.Context, memberID string, hashes [][32]byte) error
	RecoveryCodes(ctx context.Context, memberID string) (int, error)
	Recover(ctx context.Context, memberID string, code [32]byte, hash string, now time.Time) error
	CreateLink(context.Context, account.Link) error
	Link(ctx context.Context, hash [32]byte, now time.Time) (account.Link, error)
	UseLink(ctx context.Context, hash [32]byte, now time.Time) (account.Member, error)

	AddPasskey(context.Context, account.Passkey) error
	Passkeys(ctx context.Context, memberID string) ([]account.Passkey, error)
	UsePasskey(ctx context.Context, id string, signs int64, now time.Time) error
	RemovePasskey(ctx context.Context, memberID, id, keep string) error
	AddIdentity(context.Context, account.Identity) error
	Identity(ctx context.Context, issuer, subject string) (account.Identity, error)
	Identities(ctx context.Context, memberID string) ([]account.Identity, error)
	RemoveIdentity(ctx context.Context, memberID, id, keep string) error
	Email(ctx context.Context, memberID string) (account.Email, error)
	AskEmail(context.Context, account.Email) error
	VerifyEmail(ctx context.Context, memberID string, hash [32]byte, now time.Time) (before account.Email, err error)
	RemoveEmail(ctx context.Context, memberID string) (before account.Email, err error)
	EmailsOf(ctx context.Context, address string, most int) ([]account.Email, error)
	BeginCeremony(ctx context.Context, c account.Ceremony, now time.Time) error
	TakeCeremony(ctx context.Context, hash [32]byte, kind account.CeremonyKind, now time.Time) (account.Ceremony, error)

	CreateSession(context.Context, account.Session) error
	TouchSession(context.Context, account.Session) error
	Session(ctx context.Context, id string, now time.Time) (account.Session, error)
	SessionsOf(ctx context.Context, memberID string, now time.Time) ([]account.Session, error)
	EndSession(ctx context.Context, id string) error
	EndSessionOf(ctx context.Context, memberID, id string) error
	EndSessionsOf(ctx context.Context, memberID, keep string) error

	Keys(ctx context.Context, memberID string) ([]account.Key, error)
	CreateKey(context.Context, account.Key) error
	RevokeOwnKey(ctx context.Context, memberID, id string, now time.Time) error

	CreateGrant(context.Context, account.Grant) error
	WaitingGrant(ctx context.Context, userCode string, now time.Time) (account.Grant, error)
	DecideGrant(ctx context.Context, userCode string, state account.GrantState, memberID string, now time.Time) (account.Grant, error)
	Grant(ctx context.Context, hash [32]byte) (account.Grant, error)
	RedeemGrant(ctx context.Context, hash [32]byte, m account.Machine, k account.Key, now time.Time) (account.Member, error)

	StoriesOf(ctx context.Context, memberID string, from account.Place, most int) ([]account.Story, error)

	NamedShares(ctx context.Context, memberID string) ([]account.NamedShare, error)
	PutShare(context.Context, account.Share, account.LimitChange) (account.Share, error)
	RemoveShare(ctx context.Context, ownerID, memberID string) error
	CreateInvite(context.Context, account.Invite) error
	Invites(ctx context.Context, ownerID string) ([]account.Invite, error)
	RevokeInvite(ctx context.Context, ownerID, id string, now time.Time) error
	AcceptInvite(ctx context.Context, hash [32]byte, share account.Share, now time.Time) (account.Share, account.Member, error)

	SeenGroups(ctx context.Context, viewerID, name string, now time.Time) ([]account.SeenGroup, error)
	CreateGroup(context.Context, account.Group) error
	EndGroup(ctx context.Context, adminID, groupID string) error
	JoinGroup(ctx context.Context, groupID, memberID string, now time.Time) error
	LeaveGroup(ctx context.Context, groupID, memberID string) error
	InviteToGroup(context.Context, account.GroupInvitation) error
	AcceptGroup(ctx context.Context, groupID, memberID string, now time.Time) error
	DeclineGroup(ctx context.Context, groupID, memberID string, now time.Time) error
	ExpelFromGroup(ctx context.Context, adminID, groupID, memberID string) error
	MakeAdmin(ctx context.Context, adminID, groupID, memberID string) error
	DropAdmin(ctx context.Context, adminID, groupID, memberID string) error

	PutGroupLimits(ctx context.Context, ownerID, groupID string, c account.LimitChange) (account.Limits, error)
	NewJoins(ctx context.Context, memberID string, now time.Time, most int) ([]account.GroupJoin, error)
	SeeJoins(ctx context.Context, memberID string, until time.Time) error
	CountNotices(ctx context.Context, memberID string, now time.Time) (int, error)
	AddressesOfGroup(ctx context.Context, groupID, joinedID string, most int) ([]account.Email, error)

	Machines(ctx context.Context, ownerID string) ([]account.Machine, error)
	CountMachines(context.Context) (int, error)
	MachinesBefore(ctx context.Context, from account.Place, part string, most int) ([]account.Kept, error)
	OwnMachine(ctx context.Context, ownerID, id string) (account.Machine, error)
	RevokeMachine(ctx context.Context, id string, now time.Time) error
	RenameMachine(ctx context.Context, ownerID, id, name string) error
	KeepOutOwn(ctx context.Context, ownerID, groupID, machineID string, out bool) error
	KeepOutOfAll(ctx context.Context, ownerID, machineID string, out bool) error

	DaysOfCaller(ctx context.Context, memberID string, since time.Time, take func(account.UsageDay)) error
	DaysOfOwner(ctx context.Context, ownerID string, since time.Time, take func(account.UsageDay)) error
}

// Caller is who asks: the member whose API key or machine credential was sent
// (decisions 5).
type Caller struct {
	Member  fleet.MemberID
	Name    string
	KeyID   string          // empty: a machine credential
	Narrow  fleet.Narrow    // of the key
	Machine fleet.MachineID // the one whose credential it is, else empty
}

// route is one line of the API: what is asked, who may, and what answers.
type route struct {
	method, path string
	may          func(*API, *request) error // nil: every member
	serve        func(*API, *request) (any, error)
}

// routes is the whole API. A segment in braces is any one segment; may finds
// the object that it names.
var routes = []route{
	{"GET", "/api/models", nil, (*API).models},

	{"GET", "/api/shares", nil, (*API).listShares},
	{"POST", "/api/shares", nil, (*API).putShare},
	{"DELETE", "/api/shares/{member}", nil, (*API).removeShare},
	{"GET", "/api/invites", nil, (*API).listInvites},
	{"POST", "/api/invites", nil, (*API).createInvite},
	{"POST", "/api/invites/accept", nil, (*API).acceptInvite},
	{"DELETE", "/api/invites/{invite}", nil, (*API).revokeInvite},

	{"GET", "/api/groups", nil, (*API).listGroups},
	{"POST", "/api/groups", nil, (*API).createGroup},
	{"DELETE", "/api/groups/{group}", (*API).isAdmin, (*API).endGroup},
	{"POST", "/api/groups/{group}/join", (*API).sees, (*API).joinGroup},
	{"POST", "/api/groups/{group}/leave", (*API).isIn, (*API).leaveGroup},
	{"POST", "/api/groups/{group}/limits", (*API).isIn, (*API).limitGroup},
	{"POST", "/api/groups/{group}/accept", (*API).isInvited, (*API).acceptGroup},
	{"POST", "/api/groups/{group}/decline", (*API).isInvited, (*API).declineGroup},
	{"POST", "/api/groups/{group}/invitations", (*API).runsOrg, (*API).inviteToGroup},
	{"DELETE", "/api/groups/{group}/members/{member}", (*API).runsOrg, (*API).removeFromGroup},
	{"POST", "/api/groups/{group}/admins", (*API).runsOrg, (*API).makeAdmin},
	{"DELETE", "/api/groups/{group}/admins/{member}", (*API).runsOrg, (*API).dropAdmin},

	{"GET", "/api/notices", nil, (*API).listNotices},
	{"POST", "/api/notices/seen", nil, (*API).seeNotices},

	{"GET", "/api/keys", nil, (*API).listKeys},
	{"DELETE", "/api/keys/{key}", nil, (*API).revokeKey},

	{"GET", "/api/machines", nil, (*API).listMachines},
	{"DELETE", "/api/machines/{machine}", (*API).owns, (*API).revokeMachine},
	{"POST", "/api/machines/{machine}/name", (*API).owns, (*API).renameMachine},
	{"POST", "/api/machines/{machine}/control", (*API).owns, (*API).controlMachine},
	{"POST", "/api/machines/{machine}/keep-out", (*API).owns, (*API).keepOut},

	{"GET", "/api/requests", nil, (*API).listStories},
	{"GET", "/api/why", nil, (*API).why},
	{"GET", "/api/why/{call}", nil, (*API).story},
	{"GET", "/api/usage", nil, (*API).usage},
}

// Bounds of a request's body: in bytes, and for how long it may come.
const (
	maxBody  = 64 << 10
	bodyTime = 10 * time.Second
)

// API serves the paths under /api/. Make it with New.
type API struct {
	Config
	// mailInvited and mailJoined notify members by e-mail; NewSite sets them.
	mailInvited func(ctx context.Context, group string, i account.GroupInvitation)
	mailJoined  func(ctx context.Context, group account.SeenGroup, joined Caller)
}

// New makes the API. It sends no e-mail unless NewSite makes pages over it.
func New(c Config) *API {
	return &API{
		Config:      c,
		mailInvited: func(context.Context, string, account.GroupInvitation) {},
		mailJoined:  func(context.Context, account.SeenGroup, Caller) {},
	}
}

// request is one request on its way through a route.
type request struct {
	*http.Request
	caller Caller
	me     string // the caller's member id, as the store knows it
	body   []byte
	values map[string]string // of the path's segments in braces

	// What the route's may found.
	group   account.SeenGroup
	machine account.Machine
}

// ServeHTTP answers a request in the order of decisions 4: path, method, key,
// rate, size, body.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := "req_" + uuid.Must(uuid.NewV7()).String()
	h := w.Header()
	h["X-Correlation-Id"], h["Request-Id"], h["X-Request-Id"] = []string{id}, []string{id}, []string{id}
	h.Set("Cache-Control", "no-store")
	if r.Method == http.MethodGet && r.URL.Path == openAPIPath {
		serveOpenAPI(w)
		return
	}
	body, late := readBody(w, r) // first: net/http would wait for it after the answer
	answer, err := a.answer(&request{Request: r, body: body}, h, late)
	if err == nil {
		writeJSON(w, http.StatusOK, answer)
		return
	}
	f := fault.Of(err)
	if f.Code == fault.InternalError {
		a.Log.Error("member request failed", "id", id, "method", r.Method, "error", err)
	}
	writeFault(w, f, id)
}

// answer finds the route, checks who asks, and asks it. A panic is a defect of
// this request only.
func (a *API) answer(r *request, h http.Header, late error) (answer any, err error) {
	defer func() {
		if v := recover(); v != nil {
			answer, err = nil, fault.Defect(v)
		}
	}()
	var found *route
	var methods []string
	for i := range routes {
		values, ok := match(routes[i].path, r.URL)
		if !ok {
			continue
		}
		methods = append(methods, routes[i].method)
		if routes[i].method == r.Method {
			found, r.values = &routes[i], values
		}
	}
	switch {
	case methods == nil:
		return nil, fault.New(fault.RouteNotFound, "there is no such path under /api/")
	case found == nil:
		allow := strings.Join(slices.Compact(methods), ", ")
		h.Set("Allow", allow)
		return nil, fault.New(fault.MethodNotAllowed, "this path takes %s", allow)
	}
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return nil, fault.New(fault.InvalidAPIKey, "no valid API key: send Authorization: Bearer with an API key or a machine's credential")
	}
	if r.caller, err = a.Identify(r.Context(), secret); err != nil {
		return nil, err
	}
	r.me = string(r.caller.Member)
	if err := a.Admit(r.caller); err != nil {
		return nil, err
	}
	if late != nil {
		return nil, late
	}
	return a.perform(found, r)
}

// perform serves a route for a caller who is known, if the caller may.
func (a *API) perform(found *route, r *request) (any, error) {
	if found.may != nil {
		if err := found.may(a, r); err != nil {
			return nil, err
		}
	}
	answer, err := found.serve(a, r)
	if err == nil && found.method != http.MethodGet {
		a.Log.Info("member act", "member", r.me, "method", found.method, "path", found.path)
		a.Changed()
	}
	return answer, err
}

// match reads a path against a route's, segment by segment as they were
// escaped: a name may hold any byte, and none of them makes another path.
func match(pattern string, u *url.URL) (map[string]string, bool) {
	want, got := strings.Split(pattern, "/"), strings.Split(u.EscapedPath(), "/")
	if len(want) != len(got) {
		return nil, false
	}
	values := map[string]string{}
	for i := range want {
		name, open := strings.CutPrefix(want[i], "{")
		if !open {
			if want[i] != got[i] {
				return nil, false
			}
			continue
		}
		value, err := url.PathUnescape(got[i])
		if err != nil || value == "" {
			return nil, false
		}
		values[strings.TrimSuffix(name, "}")] = value
	}
	return values, true
}

// notFound and taken turn the store's expected refusals into words for the caller;
// other errors pass. Nothing has a name that the store does not take.
func notFound(err error, format string, args ...any) error {
	if errors.Is(err, account.ErrNotFound) || errors.Is(err, account.ErrInvalid) {
		return fault.New(fault.NotFound, format, args...).Because(err)
	}
	return err
}

func taken(err error, format string, args ...any) error {
	if errors.Is(err, account.ErrExists) {
		return fault.New(fault.InvalidRequest, format, args...).Because(err)
	}
	return err
}

// member is the member of that name, which the request's member param gave.
func (a *API) member(ctx context.Context, param, name string) (account.Member, error) {
	m, err := a.Accounts.MemberByName(ctx, name)
	if err == nil && m.Disabled {
		err = account.ErrNotFound
	}
	if errors.Is(err, account.ErrNotFound) || errors.Is(err, account.ErrInvalid) {
		return m, fault.New(fault.NotFound, "no member is named %q: names are exact, in upper and lower case too", name).WithParam(param).Because(err)
	}
	return m, err
}
