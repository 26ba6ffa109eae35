package web

import (
	"errors"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Group is a group as a member sees it: only those who are in it see who is.
type Group struct {
	Name    string            `json:"name"`
	Kind    account.GroupKind `json:"kind"`
	In      bool              `json:"in"`
	Admin   bool              `json:"admin"`
	Size    int               `json:"size"`
	Members []GroupMember     `json:"members"`
	// Invited is the invitation that the caller may accept or decline; null: none.
	Invited *Invitation `json:"invited"`
	// Invitations are those of others that wait for an answer; its admins see them.
	Invitations []Invitation `json:"invitations"`
	KeptOut     []string     `json:"kept_out"` // names of the caller's machines that are kept out of this one
	// Closed are those of the caller's other machines that its members do not
	// reach either.
	Closed []Closed `json:"closed"`
	// Limits are the caller's own: what all other members together may call on the
	// caller's machines by this group. Absent: the caller is not in it.
	Limits  *Limits   `json:"limits,omitzero"`
	Created time.Time `json:"created"`
}

// Closed is a machine that a group's members do not reach for a reason beyond
// that group.
type Closed struct {
	Machine string `json:"machine"` // its name
	By      string `json:"by"`      // "all": kept out of every group; "configuration": its [share] groups leave this one out
}

// GroupMember is a member of a group.
type GroupMember struct {
	Name  string `json:"name"`
	Admin bool   `json:"admin"`
}

func viewGroup(g account.SeenGroup) Group {
	v := Group{
		Name: g.Name, Kind: g.Kind, In: g.In, Admin: g.Admin, Size: g.Size, Created: g.Created,
		Members: []GroupMember{}, Invitations: []Invitation{}, KeptOut: []string{}, Closed: []Closed{},
	}
	if g.Invited != nil {
		invited := viewInvitation(*g.Invited)
		v.Invited = &invited
	}
	for _, i := range g.Invitations {
		v.Invitations = append(v.Invitations, viewInvitation(i))
	}
	for _, m := range g.Members {
		v.Members = append(v.Members, GroupMember(m))
	}
	for _, m := range g.KeptOut {
		v.KeptOut = append(v.KeptOut, m.Name)
	}
	if g.In {
		limits := viewLimits(g.Limits)
		v.Limits = &limits
	}
	return v
}

// group finds the group of that name among those the caller may see.
func (a *API) group(r *request, name string) (account.SeenGroup, error) {
	if name != "" {
		groups, err := a.Accounts.SeenGroups(r.Context(), r.me, name, time.Now())
		if err != nil && !errors.Is(err, account.ErrNotFound) && !errors.Is(err, account.ErrInvalid) { // nothing has a name that the store does not take
			return account.SeenGroup{}, err
		}
		if len(groups) == 1 {
			return groups[0], nil
		}
	}
	return account.SeenGroup{}, fault.New(fault.NotFound, "no group named %.80q is open, and you are in none of that name", name)
}

// sees lets those pass who may see the group in the path.
func (a *API) sees(r *request) (err error) {
	r.group, err = a.group(r, r.values["group"])
	return err
}

// isIn lets the group's members pass.
func (a *API) isIn(r *request) error {
	err := a.sees(r)
	switch {
	case err != nil || r.group.In:
		return err
	case r.group.Invited != nil:
		return fault.New(fault.NotAllowed, "you are not in group %q: accept or decline its invitation first", r.group.Name)
	}
	return fault.New(fault.NotAllowed, "you are not in group %q; anyone can join it", r.group.Name)
}

// isAdmin lets the group's admins pass.
func (a *API) isAdmin(r *request) error {
	err := a.isIn(r)
	if err == nil && !r.group.Admin {
		err = fault.New(fault.NotAllowed, "only an admin of group %q may do this", r.group.Name)
	}
	return err
}

// runsOrg lets an org's admins pass: who is in an open group is nobody's
// decision but each member's own.
func (a *API) runsOrg(r *request) error {
	err := a.isAdmin(r)
	if err == nil && r.group.Kind != account.GroupOrg {
		err = fault.New(fault.InvalidRequest, "group %q is open: members join and leave it by themselves", r.group.Name)
	}
	return err
}

// listGroups is GET /api/groups: those the caller is in or invited to, and all
// open ones.
func (a *API) listGroups(r *request) (any, error) {
	groups, err := a.Accounts.SeenGroups(r.Context(), r.me, "", time.Now())
	if err != nil {
		return nil, err
	}
	machines, err := a.Accounts.Machines(r.Context(), r.me)
	if err != nil {
		return nil, err
	}
	views, snapshot := make([]Group, len(groups)), a.Snapshot()
	for i, g := range groups {
		views[i] = viewGroup(g)
		if g.In {
			views[i].Closed = closed(g, machines, snapshot)
		}
	}
	return listOf(views), nil
}

// closed lists the machines that are not kept out of the group and that its
// members do not reach all the same.
func closed(g account.SeenGroup, machines []account.Machine, snapshot *fleet.Snapshot) []Closed {
	out := []Closed{}
	for _, m := range machines {
		if !m.Revoked.IsZero() || slices.ContainsFunc(g.KeptOut, func(k account.Named) bool { return k.ID == m.ID }) {
			continue
		}
		live := snapshot.Machine(fleet.MachineID(m.ID))
		switch {
		case m.KeptOut:
			out = append(out, Closed{m.Name, "all"})
		case live != nil && live.Groups != nil && !slices.Contains(live.Groups, g.Name):
			out = append(out, Closed{m.Name, "configuration"})
		}
	}
	return out
}

// newGroup is the body of POST /api/groups.
type newGroup struct {
	Name string            `json:"name"`
	Kind account.GroupKind `json:"kind"`
}

// createGroup is POST /api/groups {"name","kind"}; the caller is its first
// member and admin.
func (a *API) createGroup(r *request) (any, error) {
	ask, err := read[newGroup](r)
	if err != nil {
		return nil, err
	}
	if f := CheckName(ask.Name); f != nil {
		return nil, f
	}
	if ask.Kind != account.GroupOrg && ask.Kind != account.GroupOpen {
		return nil, fault.New(fault.InvalidRequest, "a group's kind is org or open, not %.40q", ask.Kind).WithParam("kind")
	}
	group := account.Group{
		ID: account.NewID("grp_"), Name: ask.Name, Kind: ask.Kind, Created: time.Now().UTC(),
		Members: []account.GroupMember{{MemberID: r.me, Admin: true}},
	}
	if err := a.Accounts.CreateGroup(r.Context(), group); err != nil {
		return nil, taken(err, "a group named %q is there already", ask.Name)
	}
	made, err := a.group(r, ask.Name)
	return viewGroup(made), err
}

// endGroup is DELETE /api/groups/{group}.
func (a *API) endGroup(r *request) (any, error) {
	cut := a.cut(endsWithGroup(r.group.ID))
	return r.ended("ended", r.caller.Name, cut, a.Accounts.EndGroup(r.Context(), r.me, r.group.ID))
}

// joinGroup is POST /api/groups/{group}/join.
func (a *API) joinGroup(r *request) (any, error) {
	switch {
	case r.group.In:
		return r.did("joined", nil)
	case r.group.Kind != account.GroupOpen: // the caller sees it by an invitation
		return nil, fault.New(fault.NotAllowed, "group %q takes members by invitation: accept or decline yours", r.group.Name)
	}
	err := a.Accounts.JoinGroup(r.Context(), r.group.ID, r.me, time.Now())
	if errors.Is(err, account.ErrExists) { // by another request, just now
		return r.did("joined", nil)
	}
	if err == nil {
		a.mailJoined(r.Context(), r.group, r.caller)
	}
	return r.did("joined", err)
}

// leaveGroup is POST /api/groups/{group}/leave.
func (a *API) leaveGroup(r *request) (any, error) {
	cut := a.cut(endsWithGroup(r.group.ID, r.me))
	return r.ended("left", r.caller.Name, cut, a.Accounts.LeaveGroup(r.Context(), r.group.ID, r.me))
}

// memberName is the body of what is done to one member.
type memberName struct {
	Member string `json:"member"`
}

// removeFromGroup is DELETE /api/groups/{group}/members/{member}: the member is
// taken out, or the member's invitation is withdrawn.
func (a *API) removeFromGroup(r *request) (any, error) {
	name := r.values["member"]
	member, err := a.Accounts.MemberByName(r.Context(), name)
	cut := 0
	if err == nil {
		cut = a.cut(endsWithGroup(r.group.ID, member.ID))
		err = a.Accounts.ExpelFromGroup(r.Context(), r.me, r.group.ID, member.ID)
	}
	return r.ended("removed", name, cut, err)
}

// makeAdmin is POST /api/groups/{group}/admins {"member"}.
func (a *API) makeAdmin(r *request) (any, error) {
	ask, err := read[memberName](r)
	if err != nil {
		return nil, err
	}
	member, err := a.Accounts.MemberByName(r.Context(), ask.Member)
	if err == nil {
		err = a.Accounts.MakeAdmin(r.Context(), r.me, r.group.ID, member.ID)
	}
	return r.didTo(ask.Member, "admin", err)
}

// dropAdmin is DELETE /api/groups/{group}/admins/{member}: the member stays in it.
func (a *API) dropAdmin(r *request) (any, error) {
	name := r.values["member"]
	member, err := a.Accounts.MemberByName(r.Context(), name)
	if err == nil {
		err = a.Accounts.DropAdmin(r.Context(), r.me, r.group.ID, member.ID)
	}
	return r.didTo(name, "member", err)
}

// groupAct says what was done to a group, and to whom.
type groupAct struct {
	Group  string `json:"group"`
	Member string `json:"member"`
	State  string `json:"state"`
	Cut    int    `json:"cut,omitzero"` // calls that ran and end with it
}

// ended is didTo for what may have cut calls.
func (r *request) ended(state, member string, cut int, err error) (any, error) {
	act, err := r.didTo(member, state, err)
	if err == nil {
		act.Cut = cut
	}
	return act, err
}

// did answers what the caller did about itself and the group.
func (r *request) did(state string, err error) (any, error) {
	return r.didTo(r.caller.Name, state, err)
}

func (r *request) didTo(member, state string, err error) (groupAct, error) {
	if errors.Is(err, account.ErrLastAdmin) {
		return groupAct{}, fault.New(fault.InvalidRequest, "%q would be left without an admin: make another member one first", r.group.Name).Because(err)
	}
	if err != nil {
		return groupAct{}, notFound(err, "%.80q is not in group %q", member, r.group.Name)
	}
	return groupAct{Group: r.group.Name, Member: member, State: state}, nil
}

// CheckName holds what a member, machine or group may be called: 1 to 64
// letters, digits or any of "-_. ", no space at an end; nil if it may.
func CheckName(name string) *fault.Fault {
	ok := name != "" && len(name) <= 64 && utf8.ValidString(name) && name[0] != ' ' && name[len(name)-1] != ' '
	for _, c := range name {
		ok = ok && (unicode.IsLetter(c) || unicode.IsDigit(c) || c == '-' || c == '_' || c == '.' || c == ' ')
	}
	if !ok {
		return fault.New(fault.InvalidRequest, "a name is 1 to 64 bytes of letters, digits, spaces inside, or any of - _ .; this is not: %.80q", name).WithParam("name")
	}
	return nil
}
