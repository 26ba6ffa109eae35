package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Group is a group as shown to a member. Only its members see who the other members are.
type Group struct {
	ID      string            `json:"-"`
	Name    string            `json:"name"`
	Kind    account.GroupKind `json:"kind"`
	In      bool              `json:"in"`
	Admin   bool              `json:"admin"`
	Size    int               `json:"size"`
	Members []GroupMember     `json:"members"`
	// Invited is the caller's pending invitation; null: none.
	Invited *Invitation `json:"invited"`
	// Invitations are the pending invitations of others. Only admins see them.
	Invitations []Invitation `json:"invitations"`
	KeptOut     []string     `json:"kept_out"` // names of the caller's machines that are excluded from this group
	// Machines are the machines that admins pinned or excluded; absent: none.
	Machines []GroupMachine `json:"machines,omitzero"`
	// Closed are the caller's machines that the group's members cannot reach for other
	// reasons.
	Closed []Closed `json:"closed"`
	// Limits are the caller's limits for all other members together, when they use the
	// caller's machines through this group. Absent: the caller is not in the group.
	Limits  *Limits   `json:"limits,omitzero"`
	Created time.Time `json:"created"`
}

// Closed is a machine that a group's members cannot reach for a reason unrelated to that
// group.
type Closed struct {
	Machine string `json:"machine"` // its name
	By      string `json:"by"`      // "all": excluded from every group; "configuration": [share] groups omits it
}

// GroupMember is a member of a group.
type GroupMember struct {
	Name  string `json:"name"`
	Admin bool   `json:"admin"`
}

func viewGroup(g account.SeenGroup) Group {
	v := Group{
		ID: g.ID, Name: g.Name, Kind: g.Kind, In: g.In, Admin: g.Admin, Size: g.Size, Created: g.Created, Closed: []Closed{},
		Members:     views(g.Members, func(m account.Fellow) GroupMember { return GroupMember(m) }),
		Invitations: views(g.Invitations, viewInvitation),
		KeptOut:     views(g.KeptOut, func(m account.Named) string { return m.Name }),
	}
	if g.Invited != nil {
		invited := viewInvitation(*g.Invited)
		v.Invited = &invited
	}
	for _, m := range g.Machines {
		v.Machines = append(v.Machines, GroupMachine{Owner: m.Owner, Machine: m.Machine, Rule: m.Rule})
	}
	if g.In {
		limits := viewLimits(g.Limits)
		v.Limits = &limits
	}
	return v
}

// groupSeen returns the group with the given name if the caller may see it.
func (a *API) groupSeen(ctx context.Context, c fleet.Caller, name string) (account.SeenGroup, error) {
	if name != "" {
		groups, err := a.DB.SeenGroups(ctx, string(c.Member), name, a.DB.Now())
		if err != nil && !isNotFound(err) {
			return account.SeenGroup{}, err
		}
		if len(groups) == 1 {
			return groups[0], nil
		}
	}
	return account.SeenGroup{}, fault.New(fault.NotFound, "no group named %.80q is open, and you are in none of that name", name)
}

// groupIn is groupSeen for actions of the group's members.
func (a *API) groupIn(ctx context.Context, c fleet.Caller, name string) (account.SeenGroup, error) {
	g, err := a.groupSeen(ctx, c, name)
	switch {
	case err != nil || g.In:
		return g, err
	case g.Invited != nil:
		return g, fault.New(fault.NotAllowed, "you are not in group %q: accept or decline its invitation first", g.Name)
	}
	return g, fault.New(fault.NotAllowed, "you are not in group %q; anyone can join it", g.Name)
}

// groupRun is groupIn for actions of the group's admins.
func (a *API) groupRun(ctx context.Context, c fleet.Caller, name string) (account.SeenGroup, error) {
	g, err := a.groupIn(ctx, c, name)
	if err == nil && !g.Admin {
		err = fault.New(fault.NotAllowed, "only an admin of group %q may do this", g.Name)
	}
	return g, err
}

// orgRun is groupRun for actions that exist only in an org. In an open group, members
// decide for themselves whether to belong to it.
func (a *API) orgRun(ctx context.Context, c fleet.Caller, name string) (account.SeenGroup, error) {
	g, err := a.groupRun(ctx, c, name)
	if err == nil && g.Kind != account.GroupOrg {
		err = fault.New(fault.InvalidRequest, "group %q is open: members join and leave it by themselves", g.Name)
	}
	return g, err
}

// listGroups lists the groups that the caller belongs to or is invited to, and all open
// groups.
func (a *API) listGroups(ctx context.Context, c fleet.Caller, _ None) (List[Group], error) {
	groups, err := a.DB.SeenGroups(ctx, string(c.Member), "", a.DB.Now())
	if err != nil {
		return List[Group]{}, err
	}
	machines, err := a.DB.Machines(ctx, string(c.Member))
	all, snapshot := views(groups, viewGroup), a.Snapshot()
	for i, g := range groups {
		if g.In {
			all[i].Closed = closed(g, machines, snapshot)
		}
	}
	return listOf(all), err
}

// closed lists the machines that are not excluded from the group but that its members
// still cannot reach.
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

// NewGroup is a group to create.
type NewGroup struct {
	Name string            `json:"name"`
	Kind account.GroupKind `json:"kind"`
}

// newGroup validates the name and kind of a new group, and returns the group.
func (a *API) newGroup(name string, kind account.GroupKind) (account.Group, error) {
	if f := CheckName(name); f != nil {
		return account.Group{}, f
	}
	if kind != account.GroupOrg && kind != account.GroupOpen {
		return account.Group{}, fault.New(fault.InvalidRequest, "a group's kind is org or open, not %.40q", kind).WithParam("kind")
	}
	return account.Group{ID: account.NewID("grp_"), Name: name, Kind: kind, Created: a.DB.Now().UTC()}, nil
}

// createGroup creates a group with the caller as its first member and admin.
func (a *API) createGroup(ctx context.Context, c fleet.Caller, in NewGroup) (Group, error) {
	if f := CheckChosenName(in.Name); f != nil {
		return Group{}, f
	}
	group, err := a.newGroup(in.Name, in.Kind)
	if err != nil {
		return Group{}, err
	}
	group.Members = []account.GroupMember{{MemberID: string(c.Member), Admin: true}}
	if err := a.DB.CreateGroup(ctx, group); err != nil {
		return Group{}, Taken(inTooManyGroups(err), "a group named %q already exists", in.Name)
	}
	made, err := a.groupSeen(ctx, c, in.Name)
	return viewGroup(made), err
}

// GroupName identifies a group.
type GroupName struct {
	Group string `json:"-" path:"group"`
}

// GroupMemberName identifies a group and a current or future member.
type GroupMemberName struct {
	Group  string `json:"-" path:"group"`
	Member string `json:"member" path:"member"`
}

// GroupAct is the result of an action on a group, and on a member if it concerns one.
type GroupAct struct {
	Group  string `json:"group"`
	Member string `json:"member"`
	State  string `json:"state"`
	Cut    int    `json:"cut,omitzero"` // running calls that end because of it
}

// done returns the answer for an action on a group's member, or the refusal for the
// store's error.
func (act GroupAct) done(err error) (GroupAct, error) {
	if errors.Is(err, account.ErrLastAdmin) {
		return GroupAct{}, fault.New(fault.InvalidRequest, "%q would be left without an admin: make another member one first", act.Group).Because(err)
	}
	if err != nil {
		return GroupAct{}, NotFound(err, "%.80q is not in group %q", act.Member, act.Group)
	}
	return act, nil
}

// endGroup deletes a group.
func (a *API) endGroup(ctx context.Context, c fleet.Caller, in GroupName) (GroupAct, error) {
	g, err := a.groupRun(ctx, c, in.Group)
	if err != nil {
		return GroupAct{}, err
	}
	cut := a.cut(endsWithGroup(g.ID))
	return GroupAct{g.Name, c.Name, "ended", cut}.done(a.DB.EndGroup(ctx, string(c.Member), g.ID))
}

// joinGroup makes the caller a member of an open group.
func (a *API) joinGroup(ctx context.Context, c fleet.Caller, in GroupName) (GroupAct, error) {
	g, err := a.groupSeen(ctx, c, in.Group)
	switch {
	case err != nil:
		return GroupAct{}, err
	case g.In:
	case g.Kind != account.GroupOpen: // the caller sees the group because of an invitation
		return GroupAct{}, fault.New(fault.NotAllowed, "group %q takes members by invitation: accept or decline yours", g.Name)
	default:
		if err = a.DB.JoinGroup(ctx, g.ID, string(c.Member), a.DB.Now()); err == nil {
			a.noteAccess(ctx, account.Notice{MemberID: string(c.Member), Subject: g.ID, Text: "You joined " + g.Name + "."})
		}
		if errors.Is(err, account.ErrExists) { // by a concurrent request
			err = nil
		}
	}
	return GroupAct{Group: g.Name, Member: c.Name, State: "joined"}.done(inTooManyGroups(err))
}

// inTooManyGroups returns err, or the refusal for a member with the maximum number of
// groups.
func inTooManyGroups(err error) error {
	if errors.Is(err, account.ErrTooMany) {
		return fault.New(fault.InvalidRequest, "you are in %d groups, the maximum: leave one first", account.MaxGroups).Because(err)
	}
	return err
}

// leaveGroup ends the caller's membership.
func (a *API) leaveGroup(ctx context.Context, c fleet.Caller, in GroupName) (GroupAct, error) {
	g, err := a.groupIn(ctx, c, in.Group)
	if err != nil {
		return GroupAct{}, err
	}
	cut := a.cut(endsWithGroup(g.ID, string(c.Member)))
	return GroupAct{g.Name, c.Name, "left", cut}.done(a.DB.LeaveGroup(ctx, g.ID, string(c.Member)))
}

// changeMember performs an admin's action on a member of an org.
func (a *API) changeMember(ctx context.Context, c fleet.Caller, in GroupMemberName, state string, change func(ctx context.Context, by, group, member string) error) (GroupAct, error) {
	g, err := a.orgRun(ctx, c, in.Group)
	if err != nil {
		return GroupAct{}, err
	}
	member, err := a.DB.MemberByName(ctx, in.Member)
	if err == nil {
		err = change(ctx, string(c.Member), g.ID, member.ID)
	}
	return GroupAct{Group: g.Name, Member: in.Member, State: state}.done(err)
}

// removeFromGroup removes a member from an org, or withdraws the member's invitation.
func (a *API) removeFromGroup(ctx context.Context, c fleet.Caller, in GroupMemberName) (GroupAct, error) {
	cut := 0
	act, err := a.changeMember(ctx, c, in, "removed", func(ctx context.Context, by, group, member string) error {
		cut = a.cut(endsWithGroup(group, member))
		return a.DB.ExpelFromGroup(ctx, by, group, member)
	})
	act.Cut = cut
	return act, err
}

// makeAdmin makes a member of an org an additional admin.
func (a *API) makeAdmin(ctx context.Context, c fleet.Caller, in GroupMemberName) (GroupAct, error) {
	return a.changeMember(ctx, c, in, "admin", a.DB.MakeAdmin)
}

// dropAdmin removes the role of admin from a member of an org, who remains a member.
func (a *API) dropAdmin(ctx context.Context, c fleet.Caller, in GroupMemberName) (GroupAct, error) {
	return a.changeMember(ctx, c, in, "member", a.DB.DropAdmin)
}

// GroupMachine is the decision of a group's admins about a member's machine.
type GroupMachine struct {
	Group   string `json:"-" path:"group"`
	Owner   string `json:"owner"`
	Machine string `json:"machine"` // its name
	// Rule is "pinned" (the machine counts as established), "excluded" (the group cannot
	// use it) or "none".
	Rule account.MachineRule `json:"rule"`
}

// setGroupMachine pins or excludes a member's machine in a group, or removes either, on
// behalf of an admin. The machine's owner is notified of a change.
func (a *API) setGroupMachine(ctx context.Context, c fleet.Caller, in GroupMachine) (GroupMachine, error) {
	switch in.Rule {
	case account.NoRule, account.MachinePinned, account.MachineExcluded:
	default:
		return in, fault.New(fault.InvalidRequest, "a machine is pinned, excluded or none, not %.40q", in.Rule).WithParam("rule")
	}
	g, err := a.groupRun(ctx, c, in.Group)
	if err != nil {
		return in, err
	}
	owner, err := a.memberNamed(ctx, "owner", in.Owner)
	if err != nil {
		return in, err
	}
	machines, err := a.DB.Machines(ctx, owner.ID)
	if err != nil {
		return in, err
	}
	i := slices.IndexFunc(machines, func(m account.Machine) bool { return m.Name == in.Machine && m.Revoked.IsZero() })
	err = account.ErrNotFound
	if i >= 0 {
		err = a.DB.SetGroupMachine(ctx, string(c.Member), g.ID, machines[i].ID, in.Rule)
	}
	if err != nil {
		return in, NotFound(err, "%s has no machine %.80q in group %q", owner.Name, in.Machine, g.Name)
	}
	before := account.NoRule
	for _, m := range g.Machines {
		if m.Owner == owner.Name && m.Machine == in.Machine {
			before = m.Rule
		}
	}
	if in.Rule != before {
		what, text := string(in.Rule), ruleTexts[in.Rule]
		if in.Rule == account.NoRule {
			what, text = "not "+string(before), ruleEnds[before]
		}
		a.noteAccess(ctx, account.Notice{
			MemberID: owner.ID, Subject: strings.Join([]string{g.ID, machines[i].ID, what}, " "), Text: "An admin of " + g.Name + fmt.Sprintf(text, in.Machine),
		})
	}
	return in, nil
}

// ruleTexts describe in notices what a group's admin did to a machine, and ruleEnds what
// was removed.
var (
	ruleTexts = map[account.MachineRule]string{
		account.MachinePinned:   " pinned your machine %s: it is used there before new machines.",
		account.MachineExcluded: " excluded your machine %s: its members can no longer use it through the group.",
	}
	ruleEnds = map[account.MachineRule]string{
		account.MachinePinned:   " no longer pins your machine %s: it is used there by what it has served.",
		account.MachineExcluded: " no longer excludes your machine %s: its members can use it through the group.",
	}
)
