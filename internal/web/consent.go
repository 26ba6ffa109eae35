package web

import (
	"context"
	"errors"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
)

// Invitation asks a member to join an org.
type Invitation struct {
	Member  string    `json:"member"` // who is invited
	By      string    `json:"by"`     // the admin who invites; empty: the hub's operator
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
}

func viewInvitation(i account.GroupInvitation) Invitation {
	return Invitation{i.Member, i.By, i.Created, i.Expires}
}

// isInvited lets those pass who are invited to the group, or in it.
func (a *API) isInvited(r *request) error {
	err := a.sees(r)
	if err == nil && r.group.Invited == nil && !r.group.In {
		err = fault.New(fault.InvalidRequest, "group %q is open: join it, there is nothing to accept or decline", r.group.Name)
	}
	return err
}

// Invite keeps an invitation of the member to a group, in the name of an admin or,
// with an empty ByID, of the hub's operator, and notifies the member by e-mail. An
// invitation that waits already stays as it is, with account.ErrExists.
func (a *API) Invite(ctx context.Context, group string, i account.GroupInvitation) error {
	return a.invite(ctx, group, i, func(i account.GroupInvitation) error { return a.Accounts.InviteToGroup(ctx, i) })
}

// MakeGroupFor makes a group of the operator's for a member, who is invited to be
// its first member and its admin, and is in it only after accepting (decisions 1).
func (a *API) MakeGroupFor(ctx context.Context, g account.Group, admin account.Member) error {
	invitation := account.GroupInvitation{GroupID: g.ID, MemberID: admin.ID, Member: admin.Name}
	return a.invite(ctx, g.Name, invitation, func(i account.GroupInvitation) error {
		g.Invited = []account.GroupInvitation{i}
		return a.Accounts.CreateGroup(ctx, g)
	})
}

// invite dates an invitation, has it kept, and notifies its member.
func (a *API) invite(ctx context.Context, group string, i account.GroupInvitation, keep func(account.GroupInvitation) error) error {
	i.Created = time.Now().UTC()
	i.Expires = i.Created.Add(account.InvitationLife)
	err := keep(i)
	if errors.Is(err, account.ErrTooMany) {
		return fault.New(fault.InvalidRequest, "at most %d invitations of one group, and %d to one member, may wait for an answer: withdraw one, or try again later",
			account.MaxGroupInvitations, account.MaxMemberInvitations).Because(err)
	}
	if err == nil {
		a.mailInvited(ctx, group, i)
	}
	return err
}

// inviteToGroup is POST /api/groups/{group}/invitations {"member"}. The member is
// in the group only after accepting (decisions 1).
func (a *API) inviteToGroup(r *request) (any, error) {
	ask, err := read[memberName](r)
	if err != nil {
		return nil, err
	}
	member, err := a.member(r.Context(), "member", ask.Member)
	if err != nil {
		return nil, err
	}
	for _, m := range r.group.Members {
		if m.Name == member.Name {
			return r.didTo(member.Name, "joined", nil)
		}
	}
	err = a.Invite(r.Context(), r.group.Name, account.GroupInvitation{
		GroupID: r.group.ID, MemberID: member.ID, ByID: r.me, Member: member.Name, By: r.caller.Name,
	})
	if errors.Is(err, account.ErrExists) { // one invitation waits, however often it is asked for
		err = nil
	}
	return r.didTo(member.Name, "invited", err)
}

// acceptGroup is POST /api/groups/{group}/accept.
func (a *API) acceptGroup(r *request) (any, error) {
	if r.group.In && r.group.Invited == nil {
		return r.did("joined", nil)
	}
	if err := a.Accounts.AcceptGroup(r.Context(), r.group.ID, r.me, time.Now()); err != nil {
		return nil, gone(r, err)
	}
	a.mailJoined(r.Context(), r.group, r.caller)
	return r.did("joined", nil)
}

// declineGroup is POST /api/groups/{group}/decline.
func (a *API) declineGroup(r *request) (any, error) {
	if r.group.In && r.group.Invited == nil {
		return nil, fault.New(fault.InvalidRequest, "you are in group %q already: leave it instead", r.group.Name)
	}
	if err := a.Accounts.DeclineGroup(r.Context(), r.group.ID, r.me, time.Now()); err != nil {
		return nil, gone(r, err)
	}
	return r.did("declined", nil)
}

// gone is the refusal for an invitation that ended while it was answered.
func gone(r *request, err error) error {
	return notFound(err, "no invitation to group %q waits for you: it was withdrawn, or answered", r.group.Name)
}

// Notice is something that concerns the caller's groups.
type Notice struct {
	Kind   string    `json:"kind"` // "invited": the caller, by member; "joined": member joined a group of the caller's
	Group  string    `json:"group"`
	Member string    `json:"member"` // empty: the hub's operator
	At     time.Time `json:"at"`
}

// mostNotices is how many joins one answer lists.
const mostNotices = 100

// listNotices is GET /api/notices: the invitations that wait for the caller, then
// the joins of the caller's groups that the caller has not marked as seen, the
// newest first.
func (a *API) listNotices(r *request) (any, error) {
	now := time.Now()
	groups, err := a.Accounts.SeenGroups(r.Context(), r.me, "", now)
	if err != nil {
		return nil, err
	}
	joins, err := a.Accounts.NewJoins(r.Context(), r.me, now, mostNotices)
	if err != nil {
		return nil, err
	}
	notices := []Notice{}
	for _, g := range groups {
		if g.Invited != nil {
			notices = append(notices, Notice{"invited", g.Name, g.Invited.By, g.Invited.Created})
		}
	}
	for _, j := range joins {
		notices = append(notices, Notice{"joined", j.Group, j.Member, j.At})
	}
	return listOf(notices), nil
}

// seenUntil is the body and the answer of POST /api/notices/seen.
type seenUntil struct {
	Until time.Time `json:"until"`
}

// seeNotices is POST /api/notices/seen {"until"}: the caller has seen the joins up
// to that time, which is that of the newest one listed, so that none that came
// later is missed. Invitations stay until they are answered.
func (a *API) seeNotices(r *request) (any, error) {
	ask, err := read[seenUntil](r)
	if err != nil {
		return nil, err
	}
	if ask.Until.UnixMilli() <= 0 || ask.Until.After(time.Now()) {
		return nil, fault.New(fault.InvalidRequest, "until is the time of the newest notice that was seen").WithParam("until")
	}
	return ask, a.Accounts.SeeJoins(r.Context(), r.me, ask.Until)
}
