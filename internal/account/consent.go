package account

import "time"

// GroupInvitation asks a member to join an org. The member is in the org only
// after accepting it (decisions 1). It ends when it is accepted, declined or
// withdrawn, when the org ends, and at Expires.
type GroupInvitation struct {
	GroupID  string
	MemberID string // who is invited
	ByID     string // the admin who invites; empty: the hub's operator
	Member   string // the name of who is invited
	By       string // the admin's name
	Created  time.Time
	Expires  time.Time
}

// Bounds of what concerns consent to a group.
const (
	InvitationLife       = 30 * 24 * time.Hour // how long a GroupInvitation waits for an answer
	MaxGroupInvitations  = 100                 // that wait, of one group
	MaxMemberInvitations = 50                  // that wait, of one member
	JoinLife             = 30 * 24 * time.Hour // how long a GroupJoin is kept
)

// GroupJoin records that a member joined a group, for the group's other members.
type GroupJoin struct {
	Group  string // its name
	Member string // the name of who joined
	At     time.Time
}
