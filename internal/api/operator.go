package api

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// How long secrets for a single sign-in are valid.
const (
	tokenLife = 24 * time.Hour // a login token
	linkLife  = 24 * time.Hour // a sign-in link
)

// about sets the subject of the operator's action for the audit log if the request's path
// does not contain it.
func about(ctx context.Context, names ...string) {
	if act := account.ActOf(ctx); act != nil {
		act.Subject = strings.Join(names, ", ")
	}
}

// Named identifies the subject of an operator's route.
type Named struct {
	Name string `json:"-" path:"name"`
}

// Member is a member as shown to the operator.
type Member struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Operator bool      `json:"operator"`
	Disabled bool      `json:"disabled"`
	Created  time.Time `json:"created"`
}

// NewMember is a member to add.
type NewMember struct {
	Name     string `json:"name"`
	Operator bool   `json:"operator,omitzero"`
	Password string `json:"password,omitzero"` // empty: the member cannot sign in with a password
}

func (a *API) operatorCreateMember(ctx context.Context, _ fleet.Caller, in NewMember) (Member, error) {
	if f := CheckName(in.Name); f != nil {
		return Member{}, f
	}
	about(ctx, in.Name)
	now := a.DB.Now().UTC()
	made := account.SignUp{Member: account.Member{ID: account.NewID("mem_"), Name: in.Name, Operator: in.Operator, Created: now}}
	var err error
	if in.Password == "" {
		err = a.DB.CreateMember(ctx, made.Member)
	} else if made.Password, err = a.Passwords.Hash(ctx, in.Name, in.Password); err == nil {
		err = a.DB.SignUp(ctx, made, now)
	}
	return viewMember(made.Member), Taken(err, "a member named %q is there already", in.Name)
}

func viewMember(m account.Member) Member {
	return Member{m.ID, m.Name, m.Operator, m.Disabled, m.Created}
}

func (a *API) operatorListMembers(ctx context.Context, _ fleet.Caller, _ None) ([]Member, error) {
	members, err := a.DB.Members(ctx)
	return views(members, viewMember), err
}

func (a *API) operatorDisableMember(ctx context.Context, _ fleet.Caller, in Named) (Member, error) {
	return a.setDisabled(ctx, in.Name, true)
}

func (a *API) operatorEnableMember(ctx context.Context, _ fleet.Caller, in Named) (Member, error) {
	return a.setDisabled(ctx, in.Name, false)
}

func (a *API) setDisabled(ctx context.Context, name string, disabled bool) (Member, error) {
	member, err := a.anyMember(ctx, name)
	if err != nil {
		return Member{}, err
	}
	member.Disabled = disabled
	return viewMember(member), onlyOperator(member, a.DB.SetMemberDisabled(ctx, member.ID, disabled))
}

// onlyOperator returns the refusal of a change that would leave no operator, or err.
func onlyOperator(member account.Member, err error) error {
	if errors.Is(err, account.ErrInvalid) {
		return fault.New(fault.InvalidRequest, "%s is the only operator: first make another member one", member.Name).Because(err)
	}
	return err
}

// Role makes a member an operator, or not.
type Role struct {
	Name     string `json:"-" path:"name"`
	Operator bool   `json:"operator"`
}

// operatorSetRole gives a member the role of operator, or removes it. The last operator
// cannot lose it.
func (a *API) operatorSetRole(ctx context.Context, _ fleet.Caller, in Role) (Member, error) {
	member, err := a.anyMember(ctx, in.Name)
	if err != nil {
		return Member{}, err
	}
	role := "member"
	if in.Operator {
		role = "operator"
	}
	about(ctx, member.Name, role)
	member.Operator = in.Operator
	return viewMember(member), onlyOperator(member, a.DB.SetMemberOperator(ctx, member.ID, in.Operator))
}

// SignInLink is a one-time link to sign in on the site.
type SignInLink struct {
	Member string `json:"member"`
	Link   string `json:"link"`
}

func (a *API) operatorCreateLink(ctx context.Context, _ fleet.Caller, in Named) (SignInLink, error) {
	member, err := a.enabledMember(ctx, in.Name)
	if err != nil {
		return SignInLink{}, err
	}
	link, err := a.NewLink(ctx, member.ID)
	return SignInLink{member.Name, link}, err
}

// NewLink creates a one-time sign-in link for the member and notifies the member. If the
// id is empty the link is for the account of the hub's first operator.
func (a *API) NewLink(ctx context.Context, memberID string) (string, error) {
	secret, now := credential.Mint(credential.LinkCode, a.Region), a.DB.Now().UTC()
	err := a.DB.CreateLink(ctx, account.Link{Hash: secret.Hash(), MemberID: memberID, Created: now, Expires: now.Add(linkLife)})
	if err == nil && memberID != "" && a.LinkMade != nil {
		a.LinkMade(ctx, memberID)
	}
	return a.Base + "/welcome/" + secret.Reveal(), err
}

// FirstLink creates a one-time link for the account of the hub's first operator. It
// returns "" if an operator can already sign in.
func (a *API) FirstLink(ctx context.Context) (string, error) {
	there, err := a.DB.OperatorCanSignIn(ctx)
	if there || err != nil {
		return "", err
	}
	return a.NewLink(ctx, "")
}

// Device is a pending request for a machine's credential or a key.
type Device struct {
	Code    string    `json:"code"`
	Kind    string    `json:"kind"`
	Name    string    `json:"name"`
	Client  string    `json:"client"`
	Address string    `json:"address"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
}

func viewDevice(g account.Grant) Device {
	return Device{g.UserCode, string(g.Kind), g.Name, g.Client, g.Address, g.Created, g.Expires}
}

func (a *API) operatorListDevices(ctx context.Context, _ fleet.Caller, _ None) ([]Device, error) {
	grants, err := a.DB.WaitingGrants(ctx, a.DB.Now())
	return views(grants, viewDevice), err
}

// DeviceApproval approves a device on behalf of a member.
type DeviceApproval struct {
	Code   string `json:"-" path:"code"`
	Member string `json:"member"`
}

func (a *API) operatorApproveDevice(ctx context.Context, _ fleet.Caller, in DeviceApproval) (Device, error) {
	member, err := a.enabledMember(ctx, in.Member)
	if err != nil {
		return Device{}, err
	}
	about(ctx, in.Code, member.Name)
	g, err := a.DB.DecideGrant(ctx, credential.ReadUserCode(in.Code), account.GrantApproved, member.ID, a.DB.Now())
	return viewDevice(g), NotFound(err, "the code %.20q is not valid or has expired; kith admin device list shows those that wait", in.Code)
}

// OperatorKey is an API key as shown to the operator; Secret is only set when the key is
// created.
type OperatorKey struct {
	Key
	Member string `json:"member"`
	Secret string `json:"secret,omitzero"`
}

func (a *API) operatorCreateKey(ctx context.Context, _ fleet.Caller, in NewKey) (OperatorKey, error) {
	key, secret, err := a.mintKey(in)
	if err != nil {
		return OperatorKey{}, err
	}
	member, err := a.enabledMember(ctx, in.Member)
	if err != nil {
		return OperatorKey{}, err
	}
	about(ctx, member.Name, in.Name)
	key.MemberID = member.ID
	return OperatorKey{a.viewKey(key), member.Name, secret.Reveal()}, a.DB.CreateKey(ctx, key)
}

// OfMember restricts a listing to one member.
type OfMember struct {
	Member string `json:"-" query:"member"`
}

func (a *API) operatorListKeys(ctx context.Context, _ fleet.Caller, in OfMember) ([]OperatorKey, error) {
	member, err := a.anyMember(ctx, in.Member)
	if err != nil {
		return nil, err
	}
	keys, err := a.keysOf(ctx, member.ID)
	return views(keys, func(k Key) OperatorKey { return OperatorKey{Key: k, Member: member.Name} }), err
}

// ID identifies a key or a machine.
type ID struct {
	ID string `json:"-" path:"id"`
}

func (a *API) operatorRevokeKey(ctx context.Context, _ fleet.Caller, in ID) (Revoked, error) {
	err := a.DB.RevokeKey(ctx, in.ID, a.DB.Now().UTC())
	return Revoked{in.ID, "revoked"}, NotFound(err, "no key has the id %q", in.ID)
}

// NewToken is a login token to create. LoginToken is the answer, the only one that
// contains the secret.
type NewToken struct {
	Member string `json:"member"`
	Name   string `json:"name,omitzero"` // of the machine; empty: the machine chooses
}

// LoginToken registers one machine for its member.
type LoginToken struct {
	ID      string    `json:"id"`
	Token   string    `json:"token"`
	Member  string    `json:"member"`
	Name    string    `json:"name"`
	Expires time.Time `json:"expires"`
}

func (a *API) operatorCreateToken(ctx context.Context, _ fleet.Caller, in NewToken) (LoginToken, error) {
	member, err := a.enabledMember(ctx, in.Member)
	if err != nil {
		return LoginToken{}, err
	}
	if f := CheckName(in.Name); in.Name != "" && f != nil {
		return LoginToken{}, f
	}
	about(ctx, member.Name, in.Name)
	secret, now := credential.Mint(credential.LoginToken, a.Region), a.DB.Now().UTC()
	token := account.LoginToken{
		ID: account.NewID("tok_"), MemberID: member.ID, Name: in.Name, Hash: secret.Hash(), Created: now, Expires: now.Add(tokenLife),
	}
	return LoginToken{token.ID, secret.Reveal(), member.Name, in.Name, token.Expires}, a.DB.CreateLoginToken(ctx, token)
}

// OperatorMachine is a machine as shown to the operator.
type OperatorMachine struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Owner    string    `json:"owner"`
	Region   string    `json:"region"`
	Online   bool      `json:"online"`
	Node     string    `json:"node,omitempty"` // the node with its tunnel
	Created  time.Time `json:"created"`
	LastSeen time.Time `json:"last_seen,omitzero"`
	Revoked  time.Time `json:"revoked,omitzero"`
	// Facts describe its computer and programs, as of LastSeen; absent: unknown.
	Facts *fleet.MachineFacts `json:"facts,omitzero"`
}

func (a *API) operatorListMachines(ctx context.Context, _ fleet.Caller, in OfMember) ([]OperatorMachine, error) {
	var owner account.Member
	if in.Member != "" {
		var err error
		if owner, err = a.anyMember(ctx, in.Member); err != nil {
			return nil, err
		}
	}
	machines, err := a.DB.Machines(ctx, owner.ID)
	snapshot := a.Snapshot()
	return views(machines, func(m account.Machine) OperatorMachine {
		v := OperatorMachine{
			ID: m.ID, Name: m.Name, Owner: m.OwnerName, Region: m.Region, Node: a.Home(fleet.MachineID(m.ID)),
			Created: m.Created, LastSeen: m.LastSeen, Revoked: m.Revoked,
		}
		if live := snapshot.Machine(fleet.MachineID(m.ID)); live != nil {
			v.Online, v.Facts = live.Online, live.Facts
		}
		return v
	}), err
}

func (a *API) operatorRevokeMachine(ctx context.Context, _ fleet.Caller, in ID) (Revoked, error) {
	err := a.DB.RevokeMachine(ctx, in.ID, a.DB.Now().UTC())
	return Revoked{in.ID, "revoked"}, NotFound(err, "no machine has the id %q", in.ID)
}

// BetweenMembers identifies the owner of machines and the member who may use them.
type BetweenMembers struct {
	Owner string `json:"owner" query:"owner"`
	With  string `json:"with" query:"with"`
}

// OperatorShare is a share as shown to the operator.
type OperatorShare struct {
	ID    string `json:"id,omitzero"` // set if it was created
	Owner string `json:"owner"`
	With  string `json:"with"`
	State string `json:"state,omitzero"` // "ended", or absent
}

func (a *API) operatorAddShare(ctx context.Context, _ fleet.Caller, in BetweenMembers) (OperatorShare, error) {
	owner, with, err := a.twoMembers(ctx, in.Owner, in.With)
	if err != nil {
		return OperatorShare{}, err
	}
	if owner.ID == with.ID {
		return OperatorShare{}, fault.New(fault.InvalidRequest, "a member's own machines need no share")
	}
	about(ctx, owner.Name, with.Name)
	share := account.Share{ID: account.NewID("shr_"), OwnerID: owner.ID, MemberID: with.ID, Created: a.DB.Now().UTC()}
	err = a.DB.AddShare(ctx, share)
	return OperatorShare{ID: share.ID, Owner: owner.Name, With: with.Name}, Taken(err, "%s shares with %s already", owner.Name, with.Name)
}

func (a *API) operatorEndShare(ctx context.Context, _ fleet.Caller, in BetweenMembers) (OperatorShare, error) {
	owner, with, err := a.twoMembers(ctx, in.Owner, in.With)
	if err != nil {
		return OperatorShare{}, err
	}
	err = a.DB.RemoveShare(ctx, owner.ID, with.ID)
	return OperatorShare{Owner: owner.Name, With: with.Name, State: "ended"}, NotFound(err, "%s does not share with %s", owner.Name, with.Name)
}

// OperatorGroup is a group created by the operator.
type OperatorGroup struct {
	ID    string            `json:"id,omitzero"`
	Name  string            `json:"name"`
	Kind  account.GroupKind `json:"kind"`
	Admin string            `json:"admin"` // a member's name
	State string            `json:"state,omitzero"`
}

// NewOperatorGroup is a group to create. Its admin is invited.
type NewOperatorGroup struct {
	Name  string            `json:"name"`
	Kind  account.GroupKind `json:"kind"`
	Admin string            `json:"admin"`
}

// operatorCreateGroup creates a group for a member, who is invited to become its first
// member and admin, and joins only by accepting.
func (a *API) operatorCreateGroup(ctx context.Context, _ fleet.Caller, in NewOperatorGroup) (OperatorGroup, error) {
	group, err := a.newGroup(in.Name, in.Kind)
	if err != nil {
		return OperatorGroup{}, err
	}
	admin, err := a.enabledMember(ctx, in.Admin)
	if err != nil {
		return OperatorGroup{}, err
	}
	about(ctx, in.Name, admin.Name)
	invitation := account.GroupInvitation{GroupID: group.ID, MemberID: admin.ID, Member: admin.Name}
	err = a.invite(invitation, func(i account.GroupInvitation) error {
		group.Invited = []account.GroupInvitation{i}
		return a.DB.CreateGroup(ctx, group)
	})
	return OperatorGroup{group.ID, group.Name, in.Kind, admin.Name, "invited"}, Taken(err, "a group named %q already exists", in.Name)
}

// MemberOfGroup identifies a group and a current or future member.
type MemberOfGroup struct {
	Name   string `json:"-" path:"name"`
	Member string `json:"member" path:"member"`
}

// operatorInviteToGroup invites a member to an org. An operator cannot add a member to a
// group directly: the member accepts or declines, as with an admin's invitation.
func (a *API) operatorInviteToGroup(ctx context.Context, _ fleet.Caller, in MemberOfGroup) (GroupAct, error) {
	group, member, err := a.groupAndMember(ctx, in)
	if err != nil {
		return GroupAct{}, err
	}
	if group.Kind != account.GroupOrg {
		return GroupAct{}, fault.New(fault.InvalidRequest, "group %s is open: its members join it by themselves, with kith group join", group.Name)
	}
	if member, err = a.enabledMember(ctx, member.Name); err != nil {
		return GroupAct{}, err
	}
	about(ctx, group.Name, member.Name)
	invitation := account.GroupInvitation{GroupID: group.ID, MemberID: member.ID, Member: member.Name}
	err = a.invite(invitation, func(i account.GroupInvitation) error { return a.DB.InviteToGroup(ctx, i) })
	return GroupAct{Group: group.Name, Member: member.Name, State: "invited"}, Taken(err, "%s is in %s already, or invited to it", member.Name, group.Name)
}

func (a *API) operatorRemoveFromGroup(ctx context.Context, _ fleet.Caller, in MemberOfGroup) (GroupAct, error) {
	group, member, err := a.groupAndMember(ctx, in)
	if err != nil {
		return GroupAct{}, err
	}
	err = a.DB.RemoveGroupMember(ctx, group.ID, member.ID)
	return GroupAct{Group: group.Name, Member: member.Name, State: "removed"}, NotFound(err, "%s is neither in %s nor invited to it", member.Name, group.Name)
}

// operatorNameAdmin makes a member of an org its admin if all its admins are disabled.
func (a *API) operatorNameAdmin(ctx context.Context, _ fleet.Caller, in MemberOfGroup) (GroupAct, error) {
	group, member, err := a.groupAndMember(ctx, in)
	if err != nil {
		return GroupAct{}, err
	}
	if group.Kind != account.GroupOrg {
		return GroupAct{}, fault.New(fault.InvalidRequest, "group %s is open: it needs no admin, its members join and leave it by themselves", group.Name)
	}
	if member, err = a.enabledMember(ctx, member.Name); err != nil {
		return GroupAct{}, err
	}
	err = a.DB.NameAdmin(ctx, group.ID, member.ID)
	if errors.Is(err, account.ErrExists) {
		return GroupAct{}, fault.New(fault.InvalidRequest, "%s has an admin, who names others: on the site, or with `kith group admin`", group.Name)
	}
	return GroupAct{Group: group.Name, Member: member.Name, State: "admin"}, NotFound(err, "%s is not in %s: first `kith admin group add`, and its acceptance", member.Name, group.Name)
}

// BackupFile is the path for a copy of the database, on the hub's computer.
type BackupFile struct {
	File string `json:"file"`
	As   string `json:"as,omitzero"` // the path to record, if the file is moved right away
}

// Backup is a copy of the database.
type Backup struct {
	ID    string    `json:"id"`
	At    time.Time `json:"at"`
	File  string    `json:"file"`
	Bytes int64     `json:"bytes"`
}

// operatorBackUp copies the database to a new file and reads the complete copy to verify
// it. It first writes the records in memory to the database and then adds the running
// calls' records to the copy, so that the copy includes every call whose end its caller
// has seen.
func (a *API) operatorBackUp(ctx context.Context, _ fleet.Caller, in BackupFile) (Backup, error) {
	about(ctx, cmp.Or(in.As, in.File))
	running := a.Open() // first: calls that end later are in memory or already written
	if err := a.Flush(ctx); err != nil {
		return Backup{}, err
	}
	made, err := a.DB.Backup(ctx, account.Backup{ID: account.NewID("bak_"), At: a.DB.Now().UTC(), File: in.File, As: in.As}, running)
	switch {
	case errors.Is(err, account.ErrInvalid), errors.Is(err, account.ErrExists):
		_, text, _ := strings.Cut(err.Error(), ": ") // the kind of error means nothing to people
		return Backup{}, fault.New(fault.InvalidRequest, "%s", text).WithParam("file").Because(err)
	case err != nil:
		return Backup{}, err
	case made.Fault != "":
		return Backup{}, fault.New(fault.InternalError, "the copy is not sound and was not kept: %s; check the disk, and the database itself", made.Fault)
	}
	return Backup{made.ID, made.At, made.File, made.Bytes}, nil
}

// enabledMember returns the member with the given name, for actions that only an enabled
// member can use.
func (a *API) enabledMember(ctx context.Context, name string) (account.Member, error) {
	member, err := a.anyMember(ctx, name)
	if err == nil && member.Disabled {
		err = fault.New(fault.InvalidRequest, "%s is disabled, and could not use it: first `kith admin member enable %s`", member.Name, member.Name)
	}
	return member, err
}

// anyMember returns the member with the given name, even if disabled.
func (a *API) anyMember(ctx context.Context, name string) (account.Member, error) {
	member, err := a.DB.MemberByName(ctx, name)
	return member, NotFound(err, "no member is named %q; kith admin member list shows who there is", name)
}

func (a *API) twoMembers(ctx context.Context, one, other string) (m, n account.Member, err error) {
	if m, err = a.anyMember(ctx, one); err == nil {
		n, err = a.anyMember(ctx, other)
	}
	return m, n, err
}

func (a *API) groupAndMember(ctx context.Context, in MemberOfGroup) (account.Group, account.Member, error) {
	g, err := a.DB.GroupByName(ctx, in.Name)
	if err != nil {
		return g, account.Member{}, NotFound(err, "no group is named %q", in.Name)
	}
	m, err := a.anyMember(ctx, in.Member)
	return g, m, err
}
