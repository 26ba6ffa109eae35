package account

import (
	"fmt"
	"time"
)

// GroupInvitation asks a member to join an org. The member is in the org only
// after accepting it (spec/routing.md#consent). It ends when it is accepted, declined or
// withdrawn, when the org ends, and at Expires.
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
	MaxInvites           = 100                 // that are open, of one member; and that are kept of those that are not
	MaxGroups            = 200                 // that one member is in
	InvitationLife       = 30 * 24 * time.Hour // how long a GroupInvitation waits for an answer
	MaxGroupInvitations  = 100                 // that wait for an answer, of one group
	MaxMemberInvitations = 50                  // that wait for an answer, of one member
	MaxUnknown           = 25                  // of these, by admins that the member does not know
	MaxInvitationsByOne  = 10                  // of these, by one admin that the member knows
	MaxByOneUnknown      = 3                   // of these, by one that the member does not
	JoinLife             = 30 * 24 * time.Hour // how long a GroupJoin is kept
)

// Why an invitation is one too many; each is ErrTooMany.
var (
	ErrGroupInvitations  = fmt.Errorf("%w invitations of one group without an answer", ErrTooMany)
	ErrMemberInvitations = fmt.Errorf("%w invitations of one member without an answer", ErrTooMany)
	ErrUnknownInviters   = fmt.Errorf("%w invitations of one member by admins that the member does not know", ErrTooMany)
	ErrInvitationsByOne  = fmt.Errorf("%w invitations of one member by one admin without an answer", ErrTooMany)
)

// GroupJoin records that a member joined a group, for the group's other members.
type GroupJoin struct {
	Group  string // its name
	Member string // the joined member's name
	At     time.Time
	New    bool // the member who asks has not seen it
}
