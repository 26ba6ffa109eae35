package account

import (
	"fmt"
	"time"
)

// GroupInvitation asks a member to join an org. The member joins only by accepting it
// (spec/routing.md#consent). It ends when it is accepted, declined or withdrawn, when the
// org is deleted, or at Expires.
type GroupInvitation struct {
	GroupID  string
	MemberID string // the invited member
	ByID     string // the inviting admin; empty: the hub's operator
	Member   string // the invited member's name
	By       string // the admin's name
	Created  time.Time
	Expires  time.Time
}

// Limits of invites, groups, invitations and joins.
const (
	MaxInvites           = 100                 // open invites of one member; also the ended ones that are kept
	MaxGroups            = 200                 // groups of one member
	InvitationLife       = 30 * 24 * time.Hour // how long a GroupInvitation is valid
	MaxGroupInvitations  = 100                 // pending ones of one group
	MaxMemberInvitations = 50                  // pending ones of one member
	MaxUnknown           = 25                  // of these, from admins that the member does not know
	MaxInvitationsByOne  = 10                  // of these, from one admin that the member knows
	MaxByOneUnknown      = 3                   // of these, from one admin that the member does not know
	JoinLife             = 30 * 24 * time.Hour // how long a GroupJoin is kept
)

// The limits that an invitation can exceed. Each of these errors is an ErrTooMany.
var (
	ErrGroupInvitations  = fmt.Errorf("%w invitations of one group without an answer", ErrTooMany)
	ErrMemberInvitations = fmt.Errorf("%w invitations of one member without an answer", ErrTooMany)
	ErrUnknownInviters   = fmt.Errorf("%w invitations of one member by admins that the member does not know", ErrTooMany)
	ErrInvitationsByOne  = fmt.Errorf("%w invitations of one member by one admin without an answer", ErrTooMany)
)

// GroupJoin records that a member joined a group. It is shown to the group's other
// members.
type GroupJoin struct {
	Group  string // the group's name
	Member string // the joined member's name
	At     time.Time
	New    bool // the member who is reading has not seen it
}
