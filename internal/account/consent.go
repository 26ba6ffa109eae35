package account

import "time"

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
	MaxInvitationsByOne  = 10                  // that wait for an answer, of one member, by one admin
	JoinLife             = 30 * 24 * time.Hour // how long a GroupJoin is kept
)

// GroupJoin records that a member joined a group, for the group's other members.
type GroupJoin struct {
	Group  string // its name
	Member string // the joined member's name
	At     time.Time
	New    bool // the member who asks has not seen it
}
