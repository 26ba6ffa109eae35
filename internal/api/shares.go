package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// The limits for an invite.
const (
	maxUses    = 1000
	maxLife    = 365 * 24 * time.Hour
	inviteLife = 7 * 24 * time.Hour
)

// Share is a share as shown to either member. The limits are set by its owner.
type Share struct {
	ID      string `json:"id"`
	Owner   string `json:"owner"`
	With    string `json:"with"`
	OwnerID string `json:"-"`
	WithID  string `json:"-"`
	// Direction is "given" for the owner and "received" for the other member.
	Direction string `json:"direction"`
	Limits
	Created time.Time `json:"created"`
	// Disabled reports that one of the two members is disabled, so that the share is not
	// used.
	Disabled bool `json:"disabled,omitzero"`
	// For an answer to a change: the running calls that end because of it, and the models
	// that no machine of the owner offers.
	Cut      int      `json:"cut,omitzero"`
	Warnings []string `json:"warnings,omitzero"`
}

func viewShare(s account.NamedShare, c fleet.Caller) Share {
	view := Share{
		ID: s.ID, Owner: s.Owner, With: s.Member, OwnerID: s.OwnerID, WithID: s.MemberID, Direction: "received", Created: s.Created,
		Limits: viewLimits(s.Limits), Disabled: s.Disabled,
	}
	if s.OwnerID == string(c.Member) {
		view.Direction = "given"
	}
	return view
}

// listShares lists the shares from and with the caller.
func (a *API) listShares(ctx context.Context, c fleet.Caller, _ None) (List[Share], error) {
	shares, err := a.DB.NamedShares(ctx, string(c.Member))
	return listOf(views(shares, func(s account.NamedShare) Share { return viewShare(s, c) })), err
}

// NewShare is a share to create or change.
type NewShare struct {
	With string `json:"with"` // a member's name
	LimitChange
}

// putShare shares the caller's machines with a member. If the share exists, it changes
// the limits that the request contains.
func (a *API) putShare(ctx context.Context, c fleet.Caller, in NewShare) (Share, error) {
	to, err := in.check()
	if err != nil {
		return Share{}, err
	}
	with, err := a.memberNamed(ctx, "with", in.With)
	if err != nil {
		return Share{}, err
	}
	if with.ID == string(c.Member) {
		return Share{}, fault.New(fault.InvalidRequest, "your own machines are yours already: share them with another member").WithParam("with")
	}
	id := account.NewID("shr_")
	made, err := a.DB.PutShare(ctx, account.Share{ID: id, OwnerID: string(c.Member), MemberID: with.ID, Created: a.DB.Now().UTC()}, to)
	if err != nil {
		return Share{}, err
	}
	if made.ID == id { // otherwise the share already existed and keeps its other limits
		a.noteShare(ctx, account.Named{ID: string(c.Member), Name: c.Name}, account.Named{ID: with.ID, Name: with.Name}, "")
	}
	view := viewShare(account.NamedShare{Share: made, Owner: c.Name, Member: with.Name}, c)
	view.Cut, view.Warnings = a.cut(endsWithLimits(string(c.Member), with.ID, made.Models)), a.warnings(c, to)
	return view, nil
}

// MemberName identifies a member.
type MemberName struct {
	Member string `json:"-" path:"member"`
}

// EndedShare is the result of ending a share.
type EndedShare struct {
	Owner string `json:"owner"`
	With  string `json:"with"`
	State string `json:"state"`
	Cut   int    `json:"cut,omitzero"` // running calls that end because of it
}

// endShare ends the caller's share with a member, even if the member is disabled.
func (a *API) endShare(ctx context.Context, c fleet.Caller, in MemberName) (EndedShare, error) {
	with, err := a.DB.MemberByName(ctx, in.Member)
	cut := 0
	if err == nil {
		cut = a.cut(endsWithShare(string(c.Member), with.ID))
		err = a.DB.RemoveShare(ctx, string(c.Member), with.ID)
	}
	return EndedShare{c.Name, with.Name, "ended", cut}, NotFound(err, "you do not share with %q", in.Member)
}

// Invite is an invite as shown to its owner.
type Invite struct {
	ID string `json:"id"`
	// Code is only set when the invite is created.
	Code     string    `json:"code,omitzero"`
	LastFour string    `json:"last_four"`
	State    string    `json:"state"` // "open", "used up", "expired" or "revoked"
	Uses     int       `json:"uses"`
	Used     int       `json:"used"`
	Limits             // of the shares that it creates
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires"`
	Warnings []string  `json:"warnings,omitzero"` // about models that no machine of the owner offers
}

func viewInvite(i account.Invite, now time.Time) Invite {
	v := Invite{ID: i.ID, LastFour: i.LastFour, State: "open", Uses: i.Uses, Used: i.Used, Limits: viewLimits(i.Limits), Created: i.Created, Expires: i.Expires}
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

// NewInvite is an invite to create.
type NewInvite struct {
	Uses        int    `json:"uses,omitzero"`    // 0: one
	Expires     string `json:"expires,omitzero"` // time from now, like "7d" or "12h"; empty: 7 days
	LimitChange        // relative to no limits
}

// createInvite creates a code that shares the caller's machines with the members who
// accept it.
func (a *API) createInvite(ctx context.Context, c fleet.Caller, in NewInvite) (Invite, error) {
	to, err := in.check()
	if err != nil {
		return Invite{}, err
	}
	if in.Uses == 0 {
		in.Uses = 1
	}
	if in.Uses < 1 || in.Uses > maxUses {
		return Invite{}, fault.New(fault.InvalidRequest, "an invite has 1 to %d uses", maxUses).WithParam("uses")
	}
	life := inviteLife
	if in.Expires != "" {
		var err error
		if life, err = parseLife(in.Expires); err != nil {
			return Invite{}, err
		}
	}
	code, now := credential.Mint(credential.InviteCode, a.Region), a.DB.Now().UTC().Truncate(time.Millisecond)
	made := account.Invite{
		ID: account.NewID("inv_"), OwnerID: string(c.Member), Hash: code.Hash(), LastFour: code.LastFour(),
		Uses: in.Uses, Limits: to.Of(account.Limits{}), Created: now, Expires: now.Add(life),
	}
	err = a.DB.CreateInvite(ctx, made)
	if errors.Is(err, account.ErrTooMany) {
		err = fault.New(fault.InvalidRequest, "you have %d open invites, the maximum: revoke one first", account.MaxInvites).Because(err)
	}
	if err != nil {
		return Invite{}, err
	}
	view := viewInvite(made, now)
	view.Code, view.Warnings = code.Reveal(), a.warnings(c, to)
	return view, nil
}

// parseLife parses how long an invite is valid. Days are written like "7d".
func parseLife(text string) (time.Duration, error) {
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

// listInvites lists the caller's invites.
func (a *API) listInvites(ctx context.Context, c fleet.Caller, _ None) (List[Invite], error) {
	invites, err := a.DB.Invites(ctx, string(c.Member))
	now := a.DB.Now()
	return listOf(views(invites, func(i account.Invite) Invite { return viewInvite(i, now) })), err
}

// InviteID identifies an invite.
type InviteID struct {
	Invite string `json:"-" path:"invite"`
}

// revokeInvite revokes an invite. The shares that it created stay.
func (a *API) revokeInvite(ctx context.Context, c fleet.Caller, in InviteID) (Revoked, error) {
	if err := a.DB.RevokeInvite(ctx, string(c.Member), in.Invite, a.DB.Now().UTC()); err != nil {
		return Revoked{}, NotFound(err, "you have no open invite with the id %.80q", in.Invite)
	}
	return Revoked{in.Invite, "revoked"}, nil
}

// SeenInvite is an invite as shown to the holder of its code, before it is accepted.
type SeenInvite struct {
	Owner  string
	Models []string // models of the owner's machines that the invite includes, sorted
	Limits Limits
	State  string // the same as Invite's
}

// SeeInvite returns the contents of an invite without using it.
func (a *API) SeeInvite(ctx context.Context, code string) (SeenInvite, error) {
	dead := deadInvite()
	hash, ok := a.CodeHash(code, credential.InviteCode)
	if !ok {
		return SeenInvite{}, dead
	}
	found, owner, err := a.DB.Invite(ctx, hash)
	if err != nil {
		return SeenInvite{}, NotFound(err, "%s", dead.Message)
	}
	seen := SeenInvite{Owner: owner, Limits: viewLimits(found.Limits), State: viewInvite(found, a.DB.Now()).State}
	for m := range a.Snapshot().Reach(fleet.MemberID(found.OwnerID), fleet.OwnOnly) {
		for _, o := range m.Offers {
			if !leavesOut(found.Models, o.ID) {
				seen.Models = append(seen.Models, string(o.ID))
			}
		}
	}
	slices.Sort(seen.Models)
	seen.Models = slices.Compact(seen.Models)
	return seen, nil
}

func deadInvite() *fault.Fault {
	return fault.New(fault.NotFound, "the invite is wrong, used up, expired or revoked; ask for another").WithParam("code")
}

// InviteCode is an invite's secret.
type InviteCode struct {
	Code string `json:"code"`
}

// InviteIn returns the code in a text that is either the code or an invite's link.
func InviteIn(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndex(text, "/")+1:]
}

// Accepted is the result of accepting an invite. If its owner already shares with the
// caller, ID and the limits are absent: the existing share and its limits stay unchanged,
// and the invite is not used.
type Accepted struct {
	ID    string `json:"id,omitzero"`
	Owner string `json:"owner"`
	// OwnerID is for the key of an invite's link (spec/sealed.md#invites).
	OwnerID string `json:"owner_id"`
	With    string `json:"with"`
	State   string `json:"state"` // "accepted" or "shared already"
	*Limits
}

// acceptInvite creates an invite's share. If the caller has already accepted the code and
// the share still exists, it succeeds again without using the invite, because the first
// answer may have been lost. Once the share has ended, only its owner can create a new
// one.
func (a *API) acceptInvite(ctx context.Context, c fleet.Caller, in InviteCode) (Accepted, error) {
	dead := deadInvite()
	hash, ok := a.CodeHash(in.Code, credential.InviteCode)
	if !ok {
		return Accepted{}, dead
	}
	now := a.DB.Now().UTC().Truncate(time.Millisecond)
	share := account.Share{ID: account.NewID("shr_"), MemberID: string(c.Member), Created: now}
	share, owner, err := a.DB.AcceptInvite(ctx, hash, share, now)
	switch {
	case errors.Is(err, account.ErrNotFound):
		return Accepted{}, dead
	case errors.Is(err, account.ErrOwn):
		return Accepted{}, fault.New(fault.InvalidRequest, "this is your own invite: give its code to the person you want to share with").WithParam("code")
	case errors.Is(err, account.ErrUsed):
		return Accepted{}, fault.New(fault.InvalidRequest, "you already accepted this invite, and that share has ended: ask %s for another", owner.Name).WithParam("code")
	case errors.Is(err, account.ErrExists):
		return Accepted{Owner: owner.Name, OwnerID: owner.ID, With: c.Name, State: "shared already"}, nil
	case err != nil:
		return Accepted{}, err
	}
	a.noteShare(ctx, account.Named{ID: owner.ID, Name: owner.Name}, account.Named{ID: string(c.Member), Name: c.Name}, ", by an invite")
	limits := viewLimits(share.Limits)
	return Accepted{share.ID, owner.Name, owner.ID, c.Name, "accepted", &limits}, nil
}

// CodeHash returns the hash of a code of the given kind. The region does not matter,
// because members and their objects are the same in all regions.
func (a *API) CodeHash(text string, kind credential.Kind) ([32]byte, bool) {
	code, err := credential.Parse(strings.TrimSpace(text))
	if err != nil || code.Kind() != kind {
		return [32]byte{}, false
	}
	return code.Hash(), true
}
