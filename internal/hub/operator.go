package hub

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/web"
)

// tokenLife is how long a login token may be redeemed.
const tokenLife = 24 * time.Hour

// Operator is the operator's API, served on the socket in the hub's data
// directory and nowhere else: whoever may open the socket is the operator.
func (h *Hub) Operator() http.Handler {
	mux := http.NewServeMux()
	for pattern, route := range map[string]struct {
		act   string // in the audit log; empty: it only reads
		serve func(context.Context, *http.Request) (any, error)
	}{
		"POST /members":                          {"create a member", h.createMember},
		"GET /members":                           {"", h.listMembers},
		"POST /members/{name}/disable":           {"disable a member", h.disableMember},
		"POST /members/{name}/link":              {"make a sign-in link", h.createLink},
		"GET /devices":                           {"", h.listGrants},
		"POST /devices/{code}/approve":           {"approve a device", h.approveGrant},
		"POST /keys":                             {"create a key", h.createKey},
		"GET /keys":                              {"", h.listKeys},
		"POST /keys/{id}/revoke":                 {"revoke a key", h.revokeKey},
		"POST /machines/token":                   {"make a login token", h.createToken},
		"GET /machines":                          {"", h.listMachines},
		"POST /machines/{id}/revoke":             {"revoke a machine", h.revokeMachine},
		"POST /shares":                           {"add a share", h.addShare},
		"DELETE /shares":                         {"end a share", h.removeShare},
		"POST /groups":                           {"create a group", h.createGroup},
		"POST /groups/{name}/invitations":        {"invite to a group", h.inviteToGroup},
		"DELETE /groups/{name}/members/{member}": {"remove from a group", h.removeFromGroup},
		"POST /backups":                          {"back up the database", h.backup},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			if route.act != "" {
				ctx = account.Acting(ctx, &account.Act{ID: account.NewID("act_"), At: time.Now().UTC(), What: route.act, Subject: subjectOf(r)})
			}
			answer, err := route.serve(ctx, r)
			if err != nil {
				f := fault.Of(err)
				id := writeProblem(w, f)
				if f.Code == fault.InternalError {
					h.log.Error("operator request failed", "id", id, "request", pattern, "error", err)
				}
				return
			}
			if r.Method != http.MethodGet {
				h.log.Info("operator act", "request", pattern, "path", r.URL.Path)
				h.live.Nudge()
			}
			writeJSON(w, http.StatusOK, answer)
		})
	}
	return h.guarded(mux.ServeHTTP)
}

// subjectOf is whom or what a request's path and query name; a body says more
// to the handler, which names it with about.
func subjectOf(r *http.Request) string {
	query := r.URL.Query()
	names := []string{r.PathValue("name"), r.PathValue("member"), r.PathValue("id"), r.PathValue("code"), query.Get("owner"), query.Get("with")}
	return strings.Join(slices.DeleteFunc(names, func(s string) bool { return s == "" }), ", ")
}

// about says whom or what the operator's act concerns.
func about(ctx context.Context, names ...string) {
	if act := account.ActOf(ctx); act != nil {
		act.Subject = strings.Join(names, ", ")
	}
}

// guarded answers a panic of the handler: it is a defect of this request only.
func (h *Hub) guarded(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				err := fault.Defect(v)
				id := writeProblem(w, fault.Of(err)) // in vain where an answer has begun
				h.log.Error("request failed", "id", id, "method", r.Method, "error", err)
			}
		}()
		handler(w, r)
	}
}

// MemberView is a member as the operator's API tells it.
type MemberView struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Operator bool      `json:"operator"`
	Disabled bool      `json:"disabled"`
	Created  time.Time `json:"created"`
}

func viewMember(m account.Member) MemberView {
	return MemberView{m.ID, m.Name, m.Operator, m.Disabled, m.Created}
}

func (h *Hub) createMember(ctx context.Context, r *http.Request) (any, error) {
	var ask struct {
		Name     string `json:"name"`
		Operator bool   `json:"operator"`
		Password string `json:"password"` // empty: the member cannot sign in with one
	}
	if f := readJSON(nil, r, &ask); f != nil {
		return nil, f
	}
	if f := web.CheckName(ask.Name); f != nil {
		return nil, f
	}
	about(ctx, ask.Name)
	now := time.Now().UTC()
	member := account.Member{ID: account.NewID("mem_"), Name: ask.Name, Operator: ask.Operator, Created: now}
	add := func() error { return h.records.CreateMember(ctx, member) }
	if ask.Password != "" {
		hash, err := h.site.HashPassword(ctx, ask.Name, ask.Password)
		if err != nil {
			return nil, err
		}
		add = func() error { return h.records.SignUp(ctx, account.SignUp{Member: member, Password: hash}, now) }
	}
	if err := add(); err != nil {
		return nil, h.taken(err, "a member named %q is there already", ask.Name)
	}
	return viewMember(member), nil
}

func (h *Hub) listMembers(ctx context.Context, _ *http.Request) (any, error) {
	members, err := h.records.Members(ctx)
	if err != nil {
		return nil, err
	}
	views := make([]MemberView, len(members))
	for i, m := range members {
		views[i] = viewMember(m)
	}
	return views, nil
}

func (h *Hub) disableMember(ctx context.Context, r *http.Request) (any, error) {
	member, err := h.member(ctx, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	if err := h.records.SetMemberDisabled(ctx, member.ID, true); err != nil {
		return nil, err
	}
	member.Disabled = true
	return viewMember(member), nil
}

// KeyView is an API key as the operator's API tells it; Secret only at creation.
type KeyView struct {
	ID       string     `json:"id"`
	Secret   string     `json:"secret,omitempty"`
	Member   string     `json:"member"`
	Name     string     `json:"name,omitempty"`
	Region   string     `json:"region"`
	Reach    string     `json:"reach"`
	LastFour string     `json:"last_four"`
	Created  time.Time  `json:"created"`
	LastUsed *time.Time `json:"last_used,omitempty"`
	Revoked  *time.Time `json:"revoked,omitempty"`
}

func viewKey(k account.Key, member, secret string) KeyView {
	return KeyView{k.ID, secret, member, k.Name, k.Region, string(k.Reach), k.LastFour, k.Created, orNil(k.LastUsed), orNil(k.Revoked)}
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (h *Hub) createKey(ctx context.Context, r *http.Request) (any, error) {
	var ask struct {
		Member string `json:"member"`
		Name   string `json:"name"`
		Region string `json:"region"`
		Reach  string `json:"reach"`
	}
	if f := readJSON(nil, r, &ask); f != nil {
		return nil, f
	}
	if ask.Region != "" && ask.Region != h.cfg.Region {
		return nil, fault.New(fault.InvalidRequest, "this hub serves region %q; a key of %q would be refused", h.cfg.Region, ask.Region).WithParam("region")
	}
	reach := account.Reach(ask.Reach)
	switch reach {
	case "":
		reach = account.ReachAll
	case account.ReachAll, account.ReachShared, account.ReachOwn:
	default:
		return nil, fault.New(fault.InvalidRequest, "reach is all, shared or own, not %q", ask.Reach).WithParam("reach")
	}
	member, err := h.member(ctx, ask.Member)
	if err != nil {
		return nil, err
	}
	about(ctx, member.Name, ask.Name)
	secret := credential.Mint(credential.APIKey, h.cfg.Region)
	key := account.Key{
		ID: account.NewID("key_"), MemberID: member.ID, Name: ask.Name, Region: h.cfg.Region, Reach: reach,
		Hash: secret.Hash(), LastFour: secret.LastFour(), Created: time.Now().UTC(),
	}
	if err := h.records.CreateKey(ctx, key); err != nil {
		return nil, err
	}
	return viewKey(key, member.Name, secret.Reveal()), nil
}

func (h *Hub) listKeys(ctx context.Context, r *http.Request) (any, error) {
	member, err := h.member(ctx, r.URL.Query().Get("member"))
	if err != nil {
		return nil, err
	}
	keys, err := h.records.Keys(ctx, member.ID)
	if err != nil {
		return nil, err
	}
	views := make([]KeyView, len(keys))
	for i, k := range keys {
		views[i] = viewKey(k, member.Name, "")
	}
	return views, nil
}

func (h *Hub) revokeKey(ctx context.Context, r *http.Request) (any, error) {
	id := r.PathValue("id")
	if err := h.records.RevokeKey(ctx, id, time.Now().UTC()); err != nil {
		return nil, h.missing(err, "no key has the id %q", id)
	}
	return map[string]string{"id": id, "state": "revoked"}, nil
}

func (h *Hub) createToken(ctx context.Context, r *http.Request) (any, error) {
	var ask struct {
		Member string `json:"member"`
		Name   string `json:"name"`
	}
	if f := readJSON(nil, r, &ask); f != nil {
		return nil, f
	}
	member, err := h.member(ctx, ask.Member)
	if err != nil {
		return nil, err
	}
	if f := web.CheckName(ask.Name); ask.Name != "" && f != nil {
		return nil, f
	}
	about(ctx, member.Name, ask.Name)
	secret := credential.Mint(credential.LoginToken, h.cfg.Region)
	now := time.Now().UTC()
	token := account.LoginToken{
		ID: account.NewID("tok_"), MemberID: member.ID, Name: ask.Name, Hash: secret.Hash(), Created: now, Expires: now.Add(tokenLife),
	}
	if err := h.records.CreateLoginToken(ctx, token); err != nil {
		return nil, err
	}
	return map[string]any{"id": token.ID, "token": secret.Reveal(), "member": member.Name, "name": ask.Name, "expires": token.Expires}, nil
}

// MachineView is a machine as the operator's API tells it.
type MachineView struct {
	ID       string     `json:"id"`
	Name     string     `json:"name"`
	Owner    string     `json:"owner"`
	Region   string     `json:"region"`
	Online   bool       `json:"online"`
	Created  time.Time  `json:"created"`
	LastSeen *time.Time `json:"last_seen,omitempty"`
	Revoked  *time.Time `json:"revoked,omitempty"`
}

func (h *Hub) listMachines(ctx context.Context, r *http.Request) (any, error) {
	members, err := h.records.Members(ctx)
	if err != nil {
		return nil, err
	}
	names := make(map[string]string, len(members))
	for _, m := range members {
		names[m.ID] = m.Name
	}
	owner := ""
	if name := r.URL.Query().Get("member"); name != "" {
		member, err := h.member(ctx, name)
		if err != nil {
			return nil, err
		}
		owner = member.ID
	}
	machines, err := h.records.Machines(ctx, owner)
	if err != nil {
		return nil, err
	}
	views := make([]MachineView, len(machines))
	for i, m := range machines {
		views[i] = MachineView{m.ID, m.Name, names[m.OwnerID], m.Region, h.online(m.ID), m.Created, orNil(m.LastSeen), orNil(m.Revoked)}
	}
	return views, nil
}

func (h *Hub) revokeMachine(ctx context.Context, r *http.Request) (any, error) {
	id := r.PathValue("id")
	if err := h.records.RevokeMachine(ctx, id, time.Now().UTC()); err != nil {
		return nil, h.missing(err, "no machine has the id %q", id)
	}
	return map[string]string{"id": id, "state": "revoked"}, nil
}

func (h *Hub) addShare(ctx context.Context, r *http.Request) (any, error) {
	var ask struct {
		Owner string `json:"owner"`
		With  string `json:"with"`
	}
	if f := readJSON(nil, r, &ask); f != nil {
		return nil, f
	}
	owner, err := h.member(ctx, ask.Owner)
	if err != nil {
		return nil, err
	}
	with, err := h.member(ctx, ask.With)
	if err != nil {
		return nil, err
	}
	if owner.ID == with.ID {
		return nil, fault.New(fault.InvalidRequest, "a member's own machines need no share")
	}
	about(ctx, owner.Name, with.Name)
	share := account.Share{ID: account.NewID("shr_"), OwnerID: owner.ID, MemberID: with.ID, Created: time.Now().UTC()}
	if err := h.records.AddShare(ctx, share); err != nil {
		return nil, h.taken(err, "%s shares with %s already", owner.Name, with.Name)
	}
	return map[string]string{"id": share.ID, "owner": owner.Name, "with": with.Name}, nil
}

func (h *Hub) removeShare(ctx context.Context, r *http.Request) (any, error) {
	owner, err := h.member(ctx, r.URL.Query().Get("owner"))
	if err != nil {
		return nil, err
	}
	with, err := h.member(ctx, r.URL.Query().Get("with"))
	if err != nil {
		return nil, err
	}
	if err := h.records.RemoveShare(ctx, owner.ID, with.ID); err != nil {
		return nil, h.missing(err, "%s does not share with %s", owner.Name, with.Name)
	}
	return map[string]string{"owner": owner.Name, "with": with.Name, "state": "ended"}, nil
}

func (h *Hub) createGroup(ctx context.Context, r *http.Request) (any, error) {
	var ask struct {
		Name  string `json:"name"`
		Kind  string `json:"kind"`
		Admin string `json:"admin"`
	}
	if f := readJSON(nil, r, &ask); f != nil {
		return nil, f
	}
	if f := web.CheckName(ask.Name); f != nil {
		return nil, f
	}
	kind := account.GroupKind(ask.Kind)
	if kind != account.GroupOrg && kind != account.GroupOpen {
		return nil, fault.New(fault.InvalidRequest, "a group's kind is org or open, not %q", ask.Kind).WithParam("kind")
	}
	admin, err := h.member(ctx, ask.Admin)
	if err != nil {
		return nil, err
	}
	about(ctx, ask.Name, admin.Name)
	group := account.Group{ID: account.NewID("grp_"), Name: ask.Name, Kind: kind, Created: time.Now().UTC()}
	if err := h.site.MakeGroupFor(ctx, group, admin); err != nil {
		return nil, h.taken(err, "a group named %q is there already", ask.Name)
	}
	return map[string]string{"id": group.ID, "name": group.Name, "kind": ask.Kind, "admin": admin.Name, "state": "invited"}, nil
}

// inviteToGroup is POST /groups/{name}/invitations of the operator's API. It puts
// no one into a group: the member accepts or declines, as an admin's invitation
// (decisions 1).
func (h *Hub) inviteToGroup(ctx context.Context, r *http.Request) (any, error) {
	var ask struct {
		Member string `json:"member"`
	}
	if f := readJSON(nil, r, &ask); f != nil {
		return nil, f
	}
	group, member, err := h.groupAndMember(ctx, r.PathValue("name"), ask.Member)
	if err != nil {
		return nil, err
	}
	if group.Kind != account.GroupOrg {
		return nil, fault.New(fault.InvalidRequest, "group %s is open: its members join it by themselves, with kith group join", group.Name)
	}
	about(ctx, group.Name, member.Name)
	if err := h.site.Invite(ctx, group.Name, account.GroupInvitation{GroupID: group.ID, MemberID: member.ID, Member: member.Name}); err != nil {
		return nil, h.taken(err, "%s is in %s already, or invited to it", member.Name, group.Name)
	}
	return map[string]string{"group": group.Name, "member": member.Name, "state": "invited"}, nil
}

func (h *Hub) removeFromGroup(ctx context.Context, r *http.Request) (any, error) {
	group, member, err := h.groupAndMember(ctx, r.PathValue("name"), r.PathValue("member"))
	if err != nil {
		return nil, err
	}
	if err := h.records.RemoveGroupMember(ctx, group.ID, member.ID); err != nil {
		return nil, h.missing(err, "%s is neither in %s nor invited to it", member.Name, group.Name)
	}
	return map[string]string{"group": group.Name, "member": member.Name, "state": "removed"}, nil
}

func (h *Hub) groupAndMember(ctx context.Context, group, member string) (account.Group, account.Member, error) {
	g, err := h.records.GroupByName(ctx, group)
	if err != nil {
		return g, account.Member{}, h.missing(err, "no group is named %q", group)
	}
	m, err := h.member(ctx, member)
	return g, m, err
}

func (h *Hub) member(ctx context.Context, name string) (account.Member, error) {
	member, err := h.records.MemberByName(ctx, name)
	if err != nil {
		return member, h.missing(err, "no member is named %q; kith admin member list shows who there is", name)
	}
	return member, nil
}

// missing and taken turn the store's two expected refusals into words for the
// operator; other errors pass and become internal_error.
func (h *Hub) missing(err error, format string, args ...any) error {
	if errors.Is(err, account.ErrNotFound) {
		return fault.New(fault.RouteNotFound, format, args...)
	}
	return err
}

func (h *Hub) taken(err error, format string, args ...any) error {
	if errors.Is(err, account.ErrExists) {
		return fault.New(fault.InvalidRequest, format, args...)
	}
	return err
}

func randomWord() string {
	var b [3]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// readJSON reads a small strict JSON body; members it does not know are refused.
func readJSON(w http.ResponseWriter, r *http.Request, into any) *fault.Fault {
	if err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, 64<<10), into, json.RejectUnknownMembers(true)); err != nil {
		return fault.New(fault.InvalidRequest, "cannot read the JSON body: %v", err)
	}
	return nil
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, answer) // the client is gone: nothing to add
}

// writeProblem tells a refusal outside the inference routes, with a correlation
// id as everywhere (S7.5), which it returns.
func writeProblem(w http.ResponseWriter, f *fault.Fault) (id string) {
	id = account.NewID("req_")
	w.Header().Set("X-Correlation-ID", id)
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(f.RetryAfter))
	}
	writeJSON(w, f.Status(), map[string]any{"error": map[string]any{
		"code": f.Code, "message": f.Message, "type": f.Type(), "correlation_id": id,
	}})
	return id
}
