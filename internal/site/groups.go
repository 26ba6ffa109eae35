package site

import (
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// groupsData is what /groups shows.
type groupsData struct {
	Invited []api.Group // which the member may accept or decline
	Groups  []api.Group // the others
	Joins   []api.Notice
	Newest  string // the time of the newest of Joins
}

func (s *Site) groupsPage(v *visit) (reply, error) {
	groups, err := call(s, v, api.ListGroups, api.None{})
	if err != nil {
		return reply{}, err
	}
	notices, err := call(s, v, api.ListNotices, api.None{})
	var data groupsData
	for _, g := range groups.Data {
		if g.Invited != nil {
			data.Invited = append(data.Invited, g)
		} else {
			data.Groups = append(data.Groups, g)
		}
	}
	for _, n := range notices.Data {
		if n.Kind == "joined" {
			data.Joins = append(data.Joins, n)
		}
	}
	if len(data.Joins) > 0 {
		data.Newest = data.Joins[0].At.Format(time.RFC3339Nano)
	}
	return reply{page: "groups", title: "Groups", data: data}, err
}

// The group, or the group and the member, that a form of /groups names.
func (v *visit) group() api.GroupName { return api.GroupName{Group: v.form.Get("group")} }

func (v *visit) groupMember() api.GroupMemberName {
	return api.GroupMemberName{Group: v.form.Get("group"), Member: strings.TrimSpace(v.form.Get("member"))}
}

func (s *Site) makeGroup(v *visit) (reply, error) {
	in := api.NewGroup{Name: strings.TrimSpace(v.form.Get("name")), Kind: account.GroupKind(v.form.Get("kind"))}
	return did(s, v, reply{to: "/groups", done: "The group is there, and you are its admin."}, api.CreateGroup, in)
}

func (s *Site) join(v *visit) (reply, error) {
	return did(s, v, reply{to: "/groups", done: "You are in the group."}, api.JoinGroup, v.group())
}

func (s *Site) leave(v *visit) (reply, error) {
	act, err := call(s, v, api.LeaveGroup, v.group())
	return reply{to: "/groups", done: "You left " + act.Group + ": neither side reaches the other's machines through it. " + cutWords(act.Cut)}, err
}

// limitGroup is POST /groups/limit group, and all the member's limits for it.
func (s *Site) limitGroup(v *visit) (reply, error) {
	limits, err := v.limits(true)
	if err != nil {
		return reply{}, err
	}
	made, err := call(s, v, api.LimitGroup, api.GroupLimitChange{Group: v.form.Get("group"), LimitChange: limits})
	return reply{to: "/groups", done: "These are now your limits for " + made.Group + "." + afterLimits(made.Cut, made.Warnings)}, err
}

func (s *Site) dissolve(v *visit) (reply, error) {
	act, err := call(s, v, api.EndGroup, v.group())
	return reply{to: "/groups", done: "The group " + act.Group + " has ended: no member reaches machines through it. " + cutWords(act.Cut)}, err
}

func (s *Site) acceptGroup(v *visit) (reply, error) {
	return did(s, v, reply{to: "/groups", done: "You are in the group: its members reach your machines, and you reach theirs."}, api.AcceptGroup, v.group())
}

func (s *Site) declineGroup(v *visit) (reply, error) {
	return did(s, v, reply{to: "/groups", done: "Declined: nothing is shared."}, api.DeclineGroup, v.group())
}

func (s *Site) inviteMember(v *visit) (reply, error) {
	act, err := call(s, v, api.InviteToGroup, v.groupMember())
	done := act.Member + " is invited, and is in the group after accepting."
	if act.State == "joined" {
		done = act.Member + " is in the group already."
	}
	return reply{to: "/groups", done: done}, err
}

// withdraw ends a member's invitation.
func (s *Site) withdraw(v *visit) (reply, error) {
	act, err := call(s, v, api.RemoveFromGroup, v.groupMember())
	return reply{to: "/groups", done: "The invitation of " + act.Member + " is withdrawn."}, err
}

func (s *Site) removeMember(v *visit) (reply, error) {
	act, err := call(s, v, api.RemoveFromGroup, v.groupMember())
	return reply{to: "/groups", done: "Removed. " + cutWords(act.Cut)}, err
}

func (s *Site) promote(v *visit) (reply, error) {
	return did(s, v, reply{to: "/groups", done: "There is another admin."}, api.MakeAdmin, v.groupMember())
}

func (s *Site) demote(v *visit) (reply, error) {
	return did(s, v, reply{to: "/groups", done: "That member is no admin any more, and stays in the group."}, api.DropAdmin, v.groupMember())
}

// seeNotices is POST /groups/seen until.
func (s *Site) seeNotices(v *visit) (reply, error) {
	until, err := time.Parse(time.RFC3339Nano, v.form.Get("until"))
	if err != nil {
		return reply{}, fault.New(fault.InvalidRequest, "the form does not say up to when").WithParam("until")
	}
	return did(s, v, reply{to: "/groups", done: "Marked as seen."}, api.SeeNotices, api.SeenUntil{Until: until})
}
