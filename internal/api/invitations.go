package api

import (
	"context"
	"errors"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Invitation asks a member to join an org.
type Invitation struct {
	Member  string    `json:"member"` // the invited member
	By      string    `json:"by"`     // the inviting admin; empty: the hub's operator
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
}

func viewInvitation(i account.GroupInvitation) Invitation {
	return Invitation{i.Member, i.By, i.Created, i.Expires}
}

// invite sets the dates of an invitation to a group and calls keep to store it. An empty
// ByID stands for the hub's operator. If there is already a pending invitation it is
// unchanged, and the error is account.ErrExists.
func (a *API) invite(i account.GroupInvitation, keep func(account.GroupInvitation) error) error {
	i.Created = a.DB.Now().UTC()
	i.Expires = i.Created.Add(account.InvitationLife)
	err := keep(i)
	full := func(format string, args ...any) error {
		return fault.New(fault.InvalidRequest, format, args...).Because(err)
	}
	switch {
	case errors.Is(err, account.ErrGroupInvitations):
		return full("this group has %d unanswered invitations, the maximum: withdraw one, or wait for answers", account.MaxGroupInvitations)
	case errors.Is(err, account.ErrInvitationsByOne):
		return full("%q has the maximum of unanswered invitations from you: withdraw one, or ask them to answer; an admin that they do not share with may have %d",
			i.Member, account.MaxByOneUnknown)
	case errors.Is(err, account.ErrMemberInvitations):
		return full("%q has %d unanswered invitations, the maximum: ask them to answer some", i.Member, account.MaxMemberInvitations)
	case errors.Is(err, account.ErrUnknownInviters):
		return full("%q has %d unanswered invitations from admins they do not share with, the maximum: ask them to answer some, or to share with you first",
			i.Member, account.MaxUnknown)
	}
	return err
}

// inviteToGroup invites a member to an org. The member joins only by accepting.
func (a *API) inviteToGroup(ctx context.Context, c fleet.Caller, in GroupMemberName) (GroupAct, error) {
	g, err := a.orgRun(ctx, c, in.Group)
	if err != nil {
		return GroupAct{}, err
	}
	member, err := a.memberNamed(ctx, "member", in.Member)
	if err != nil {
		return GroupAct{}, err
	}
	for _, m := range g.Members {
		if m.Name == member.Name {
			return GroupAct{Group: g.Name, Member: member.Name, State: "joined"}, nil
		}
	}
	invitation := account.GroupInvitation{GroupID: g.ID, MemberID: member.ID, ByID: string(c.Member), Member: member.Name, By: c.Name}
	err = a.invite(invitation, func(i account.GroupInvitation) error { return a.DB.InviteToGroup(ctx, i) })
	if errors.Is(err, account.ErrExists) { // repeated requests leave a single invitation
		err = nil
	}
	return GroupAct{Group: g.Name, Member: member.Name, State: "invited"}.done(err)
}

// invitedTo returns the group if the caller belongs to it or is invited to it.
func (a *API) invitedTo(ctx context.Context, c fleet.Caller, name string) (account.SeenGroup, error) {
	g, err := a.groupSeen(ctx, c, name)
	if err == nil && g.Invited == nil && !g.In {
		err = fault.New(fault.InvalidRequest, "group %q is open: join it, there is nothing to accept or decline", g.Name)
	}
	return g, err
}

// acceptGroup accepts the caller's invitation.
func (a *API) acceptGroup(ctx context.Context, c fleet.Caller, in GroupName) (GroupAct, error) {
	g, err := a.invitedTo(ctx, c, in.Group)
	if err != nil {
		return GroupAct{}, err
	}
	if !g.In || g.Invited != nil {
		if err := a.DB.AcceptGroup(ctx, g.ID, string(c.Member), a.DB.Now()); err != nil {
			return GroupAct{}, noInvitation(inTooManyGroups(err), g)
		}
		a.noteAccess(ctx, account.Notice{MemberID: string(c.Member), Subject: g.ID, Text: "You joined " + g.Name + "."})
	}
	return GroupAct{Group: g.Name, Member: c.Name, State: "joined"}, nil
}

// declineGroup declines the caller's invitation.
func (a *API) declineGroup(ctx context.Context, c fleet.Caller, in GroupName) (GroupAct, error) {
	g, err := a.invitedTo(ctx, c, in.Group)
	switch {
	case err != nil:
		return GroupAct{}, err
	case g.In && g.Invited == nil:
		return GroupAct{}, fault.New(fault.InvalidRequest, "you are in group %q already: leave it instead", g.Name)
	}
	err = a.DB.DeclineGroup(ctx, g.ID, string(c.Member), a.DB.Now())
	return GroupAct{Group: g.Name, Member: c.Name, State: "declined"}, noInvitation(err, g)
}

// noInvitation returns the refusal for an invitation that ended while it was being
// answered.
func noInvitation(err error, g account.SeenGroup) error {
	return NotFound(err, "no invitation to group %q waits for you: it was withdrawn, or answered", g.Name)
}
