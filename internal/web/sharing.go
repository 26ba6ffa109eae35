package web

import (
	"errors"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
)

// Bounds of what an invite may say.
const (
	maxUses    = 1000
	maxLife    = 365 * 24 * time.Hour
	aDay       = 24 * time.Hour
	inviteLife = 7 * aDay
)

// Share is a share as either side sees it. Its limits are the owner's
// (decisions 1).
type Share struct {
	ID      string `json:"id"`
	Owner   string `json:"owner"`
	With    string `json:"with"`
	OwnerID string `json:"-"`
	WithID  string `json:"-"`
	// Direction is "given" to its owner, "received" to the other.
	Direction string `json:"direction"`
	Limits
	Created time.Time `json:"created"`
	// Of the change that the answer is to: calls that run and end with it, and the
	// models in it that no machine of the owner offers.
	Cut      int      `json:"cut,omitzero"`
	Warnings []string `json:"warnings,omitzero"`
}

func (r *request) share(s account.NamedShare) Share {
	view := Share{
		ID: s.ID, Owner: s.Owner, With: s.Member, OwnerID: s.OwnerID, WithID: s.MemberID, Direction: "received", Created: s.Created,
		Limits: viewLimits(s.Limits),
	}
	if s.OwnerID == r.me {
		view.Direction = "given"
	}
	return view
}

// listShares is GET /api/shares: those of the caller's machines, and those with
// the caller.
func (a *API) listShares(r *request) (any, error) {
	shares, err := a.Accounts.NamedShares(r.Context(), r.me)
	if err != nil {
		return nil, err
	}
	views := make([]Share, len(shares))
	for i, s := range shares {
		views[i] = r.share(s)
	}
	return listOf(views), nil
}

// newShare is the body of POST /api/shares.
type newShare struct {
	With string `json:"with"`
	limitChange
}

// putShare is POST /api/shares: the caller's machines, for a member. Of a share
// that is there already it changes the limits that the body names.
func (a *API) putShare(r *request) (any, error) {
	ask, err := read[newShare](r)
	if err != nil {
		return nil, err
	}
	to, err := ask.check()
	if err != nil {
		return nil, err
	}
	with, err := a.member(r.Context(), "with", ask.With)
	if err != nil {
		return nil, err
	}
	if with.ID == r.me {
		return nil, fault.New(fault.InvalidRequest, "your own machines are yours already: share them with another member").WithParam("with")
	}
	made, err := a.Accounts.PutShare(r.Context(), account.Share{ID: account.NewID("shr_"), OwnerID: r.me, MemberID: with.ID, Created: time.Now().UTC()}, to)
	if err != nil {
		return nil, err
	}
	view := r.share(account.NamedShare{Share: made, Owner: r.caller.Name, Member: with.Name})
	view.Cut, view.Warnings = a.cut(endsWithLimits(r.me, with.ID, made.Models)), a.warnings(r, to)
	return view, nil
}

// endedShare says that a share is over.
type endedShare struct {
	Owner string `json:"owner"`
	With  string `json:"with"`
	State string `json:"state"`
	Cut   int    `json:"cut,omitzero"` // calls that ran and end with it
}

// removeShare is DELETE /api/shares/{member}: the caller no longer shares with
// that member, disabled or not.
func (a *API) removeShare(r *request) (any, error) {
	name := r.values["member"]
	with, err := a.Accounts.MemberByName(r.Context(), name)
	cut := 0
	if err == nil {
		cut = a.cut(endsWithShare(r.me, with.ID))
		err = a.Accounts.RemoveShare(r.Context(), r.me, with.ID)
	}
	if err != nil {
		return nil, notFound(err, "you do not share with %q", name)
	}
	return endedShare{r.caller.Name, with.Name, "ended", cut}, nil
}

// Invite is an invite as its owner is told of it.
type Invite struct {
	ID string `json:"id"`
	// Code is told once, when the invite is made.
	Code     string    `json:"code,omitzero"`
	LastFour string    `json:"last_four"`
	State    string    `json:"state"` // "open", "used up", "expired" or "revoked"
	Uses     int       `json:"uses"`
	Used     int       `json:"used"`
	Limits             // of the shares it makes
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires"`
	Warnings []string  `json:"warnings,omitzero"` // of models that no machine of the owner offers
}

func viewInvite(i account.Invite, code string, now time.Time) Invite {
	v := Invite{ID: i.ID, Code: code, LastFour: i.LastFour, State: "open", Uses: i.Uses, Used: i.Used, Limits: viewLimits(i.Limits), Created: i.Created, Expires: i.Expires}
	switch {
	case !i.Revoked.IsZero():
		v.State = "revoked"
	case i.Used >= i.Uses:
		v.State = "used up"
	case !i.Expires.After(now):
		v.State = "expired"
	}
	return v
}

// newInvite is the body of POST /api/invites; it may be left out.
type newInvite struct {
	Uses        int    `json:"uses,omitzero"`    // 0: one
	Expires     string `json:"expires,omitzero"` // empty: after 7 days
	limitChange        // of no limits
}

// createInvite is POST /api/invites {"uses","expires"} and the limits of a share:
// a code that shares the caller's machines with whoever accepts it. expires is a
// time from now, like "7d" or "12h".
func (a *API) createInvite(r *request) (any, error) {
	ask := newInvite{Uses: 1}
	if len(r.body) > 0 {
		given, err := read[newInvite](r)
		if err != nil {
			return nil, err
		}
		if given.Uses == 0 {
			given.Uses = ask.Uses
		}
		ask = given
	}
	to, err := ask.check()
	if err != nil {
		return nil, err
	}
	if ask.Uses < 1 || ask.Uses > maxUses {
		return nil, fault.New(fault.InvalidRequest, "an invite has 1 to %d uses", maxUses).WithParam("uses")
	}
	life, err := parseLife(ask.Expires)
	if err != nil {
		return nil, err
	}
	code, now := credential.Mint(credential.InviteCode, a.Region), time.Now().UTC().Truncate(time.Millisecond)
	made := account.Invite{
		ID: account.NewID("inv_"), OwnerID: r.me, Hash: code.Hash(), LastFour: code.LastFour(),
		Uses: ask.Uses, Limits: to.Of(account.Limits{}), Created: now, Expires: now.Add(life),
	}
	if err := a.Accounts.CreateInvite(r.Context(), made); err != nil {
		return nil, err
	}
	view := viewInvite(made, code.Reveal(), now)
	view.Warnings = a.warnings(r, to)
	return view, nil
}

// parseLife reads how long an invite lives; days are written as in "7d".
func parseLife(text string) (time.Duration, error) {
	if text == "" {
		return inviteLife, nil
	}
	unit := text
	days, whole := strings.CutSuffix(text, "d")
	if whole {
		unit = days + "h"
	}
	life, err := time.ParseDuration(unit)
	if whole {
		life *= 24
	}
	if err != nil || life < time.Minute || life > maxLife {
		return 0, fault.New(fault.InvalidRequest, "expires is a time from a minute to 365 days, like 7d or 12h, not %.40q", text).WithParam("expires")
	}
	return life, nil
}

// listInvites is GET /api/invites: the caller's own.
func (a *API) listInvites(r *request) (any, error) {
	invites, err := a.Accounts.Invites(r.Context(), r.me)
	if err != nil {
		return nil, err
	}
	views, now := make([]Invite, len(invites)), time.Now()
	for i, invite := range invites {
		views[i] = viewInvite(invite, "", now)
	}
	return listOf(views), nil
}

// revokeInvite is DELETE /api/invites/{invite}. Shares that it made stay.
func (a *API) revokeInvite(r *request) (any, error) {
	id := r.values["invite"]
	if err := a.Accounts.RevokeInvite(r.Context(), r.me, id, time.Now().UTC()); err != nil {
		return nil, notFound(err, "you have no open invite with the id %.80q", id)
	}
	return revoked{id, "revoked"}, nil
}

// inviteCode is the body of POST /api/invites/accept.
type inviteCode struct {
	Code string `json:"code"`
}

// accepted says what an invite brought. ID and the limits are absent where its
// maker shares with the caller already: that share and its limits stay as they
// are, whatever the invite's are, and the invite is not used.
type accepted struct {
	ID    string `json:"id,omitzero"`
	Owner string `json:"owner"`
	With  string `json:"with"`
	State string `json:"state"` // "accepted" or "shared already"
	*Limits
}

// acceptInvite is POST /api/invites/accept {"code"}: whoever made the code
// shares with the caller from here on. A code accepted before by the caller is
// accepted again, at no use: an answer may have been lost.
func (a *API) acceptInvite(r *request) (any, error) {
	ask, err := read[inviteCode](r)
	if err != nil {
		return nil, err
	}
	dead := fault.New(fault.NotFound, "the invite is wrong, used up, expired or revoked; ask for another").WithParam("code")
	code, err := credential.Parse(strings.TrimSpace(ask.Code))
	if err != nil || code.Kind() != credential.InviteCode || code.Region() != a.Region {
		return nil, dead
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	share := account.Share{ID: account.NewID("shr_"), MemberID: r.me, Created: now}
	share, owner, err := a.Accounts.AcceptInvite(r.Context(), code.Hash(), share, now)
	switch {
	case errors.Is(err, account.ErrNotFound):
		return nil, dead
	case errors.Is(err, account.ErrOwn):
		return nil, fault.New(fault.InvalidRequest, "the invite is your own: give its code to who is to use your machines").WithParam("code")
	case errors.Is(err, account.ErrExists):
		return accepted{Owner: owner.Name, With: r.caller.Name, State: "shared already"}, nil
	case err != nil:
		return nil, err
	}
	limits := viewLimits(share.Limits)
	return accepted{share.ID, owner.Name, r.caller.Name, "accepted", &limits}, nil
}
