package account

import "time"

// NoticeKind is what a Notice is about. A member can switch off each kind.
type NoticeKind string

// The kinds of notices.
const (
	NoticeInvited NoticeKind = "invited" // the member is invited to a group
	NoticeJoined  NoticeKind = "joined"  // another member joined a group of the member's
	NoticeAccess  NoticeKind = "access"  // there is a new share of or with the member, or the member joined a group
	NoticeSpent   NoticeKind = "spent"   // the calls a day of a share or a group are used up
	NoticeOffline NoticeKind = "offline" // a machine of the member's is offline
	NoticeEnding  NoticeKind = "ending"  // a key of the member's ends soon
	NoticeBackup  NoticeKind = "backup"  // for operators: there is no good backup of the last days
)

// NoticeKinds is every kind, in the order in which pages list them.
var NoticeKinds = []NoticeKind{NoticeInvited, NoticeJoined, NoticeAccess, NoticeSpent, NoticeOffline, NoticeEnding, NoticeBackup}

// When and for how long members are notified (docs/decisions/0017-notices.md).
const (
	NoticeLife     = 30 * 24 * time.Hour // how long a Notice is kept
	NoticesADay    = 200                 // of one member; others are left out
	OfflineFor     = time.Hour           // a machine's, before its owner is notified
	KeyEndsWithin  = 7 * 24 * time.Hour
	BackupOldAfter = 7 * 24 * time.Hour
	SmallGroup     = 50 // a group of more members mails no joins
)

// Notice is a sentence for one member. Of a kind, a subject and an occasion, a member
// has one at most.
type Notice struct {
	MemberID string
	Kind     NoticeKind
	Subject  string    // the id of what it is about
	Occasion time.Time // sets apart two notices of one subject
	At       time.Time
	Text     string
	New      bool // the member has not seen it
}

// NoticeChoices are the kinds that a member does not want.
type NoticeChoices struct{ OffSite, OffMail []NoticeKind }

// OfflineMachine is a machine that was last seen a while ago.
type OfflineMachine struct {
	ID, Name, OwnerID string
	LastSeen          time.Time
}

// EndingKey is a key that ends soon.
type EndingKey struct {
	ID, Name, LastFour, MemberID string
	Expires                      time.Time
}

// SpentLimit is a limit of calls a day that is used up: of a share with a member, or of
// a group. The other half is empty.
type SpentLimit struct {
	ShareID, MemberID, Member string
	GroupID, Group            string
	OwnerID, Owner            string // Owner is the name, for a share alone
	PerDay                    int
}

// NewsFor is a member to be mailed what is new since a time.
type NewsFor struct {
	Member  Member // its ID and Name
	Address string
	Since   time.Time
	Off     []NoticeKind // not to be mailed
}
