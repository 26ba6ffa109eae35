package account

import "time"

// NoticeKind is the subject of a Notice. Members can switch off each kind.
type NoticeKind string

// The kinds of notices.
const (
	NoticeInvited NoticeKind = "invited" // the member is invited to a group
	NoticeJoined  NoticeKind = "joined"  // another member joined one of the member's groups
	NoticeAccess  NoticeKind = "access"  // a new share, a group that the member joined, a pin or exclusion of a machine
	NoticeSpent   NoticeKind = "spent"   // the calls per day of a share, group or key are used up
	NoticeOffline NoticeKind = "offline" // one of the member's machines is offline
	NoticeFiles   NoticeKind = "models"  // the models of one of the member's machines were managed from elsewhere
	NoticeEnding  NoticeKind = "ending"  // one of the member's keys expires soon
	NoticeBackup  NoticeKind = "backup"  // for operators: there is no valid backup from the last days
)

// NoticeKinds are all kinds, in the order of the pages.
var NoticeKinds = []NoticeKind{NoticeInvited, NoticeJoined, NoticeAccess, NoticeSpent, NoticeFiles, NoticeOffline, NoticeEnding, NoticeBackup}

// When members are notified and how long notices are kept
// (docs/decisions/0017-notices.md).
const (
	NoticeLife     = 30 * 24 * time.Hour // how long a Notice is kept
	NoticesADay    = 200                 // for one member; further ones are dropped
	OfflineFor     = time.Hour           // how long a machine is offline before its owner is notified
	KeyEndsWithin  = 7 * 24 * time.Hour
	BackupOldAfter = 7 * 24 * time.Hour
	SmallGroup     = 50 // larger groups send no mail about new members
)

// Notice is a message to one member. A member has at most one of the same kind, subject
// and occasion.
type Notice struct {
	MemberID string
	Kind     NoticeKind
	Subject  string    // the id of the object it is about; after a space, more that distinguishes it
	Occasion time.Time // distinguishes notices about the same subject
	At       time.Time
	Text     string
	New      bool // the member has not seen it
}

// NoticeChoices are the kinds that a member has switched off.
type NoticeChoices struct{ OffSite, OffMail []NoticeKind }

// OfflineMachine is a machine that has been offline for some time.
type OfflineMachine struct {
	ID, Name, OwnerID string
	LastSeen          time.Time
}

// EndingKey is a key that expires soon.
type EndingKey struct {
	ID, Name, LastFour, MemberID string
	Expires                      time.Time
}

// SpentLimit is a limit of calls per day that is used up, of a share, a group or a key.
// The fields of the others are empty.
type SpentLimit struct {
	ShareID, MemberID, Member string
	GroupID, Group            string
	KeyID, Key, LastFour      string
	OwnerID, Owner            string // of a key, its member; Owner is the name, set for a share only
	PerDay                    int
}

// NewsFor is a member to notify by mail of everything new since a time.
type NewsFor struct {
	Member  Member // only ID and Name
	Address string
	Since   time.Time
	Off     []NoticeKind // kinds that are not mailed
}
