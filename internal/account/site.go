package account

import "time"

// SignUp is a new member who will sign in with a password, or by an account at an
// OpenID provider: one of Password and Identity is set. At most one of Invite and Link
// is set, as the hub's rules for sign-up require.
type SignUp struct {
	Member   Member
	Password string    // its hash, in argon2id's own encoding
	Identity *Identity // of the member
	Invite   *[32]byte // hash of the code of an invite, which is accepted with it
	Link     *[32]byte // hash of the link for the first operator
}

// Session is a browser in which a member signed in, or began to sign in.
type Session struct {
	ID       string // a hash of what the browser holds
	MemberID string // empty: not signed in yet
	Data     []byte
	Created  time.Time
	Seen     time.Time // to about a minute
	Expires  time.Time
}

// Link signs a member in without a password, once; with no MemberID, it makes
// the account of a hub's first operator.
type Link struct {
	Hash     [32]byte
	MemberID string
	Created  time.Time
	Expires  time.Time
	Mailed   bool // it was asked for by e-mail
}

// GrantKind is what a Grant gives.
type GrantKind string

// The kinds of grant.
const (
	GrantMachine GrantKind = "machine" // a machine's credential
	GrantKey     GrantKind = "key"     // an API key
)

// GrantState is the state of a Grant.
type GrantState string

// The states of a grant; a member decides between the first and the next two.
const (
	GrantWaiting  GrantState = "waiting"
	GrantApproved GrantState = "approved"
	GrantDenied   GrantState = "denied"
	GrantUsed     GrantState = "used" // its secret was fetched
)

// Grant is a request of a device that waits for a member's approval (RFC 8628):
// to become a machine of the member's, or for a key.
type Grant struct {
	ID       string
	Hash     [32]byte // of the code that only the device has
	UserCode string   // what the member types, as XXXX-XXXX; unique
	Kind     GrantKind
	Name     string // of the machine or key
	Reach    Reach  // of a key
	Manage   bool   // of a key
	Region   string // of a key; empty: that of the hub that makes it
	Client   string // what the device says it is
	Address  string // the address of its request
	State    GrantState
	MemberID string // the member who decided
	Created  time.Time
	Expires  time.Time
	// KeyExpires is the end of the key that is asked for; zero: none.
	KeyExpires time.Time
}
