package account

import "time"

// SignUp is a new member who will sign in with a password or with an account at an OpenID
// provider: exactly one of Password and Identity is set. At most one of Invite and Link
// is set, depending on the hub's rules for sign-up.
type SignUp struct {
	Member   Member
	Password string    // its hash, in argon2id's encoding
	Identity *Identity // of the member
	Invite   *[32]byte // hash of an invite's code, which the sign-up accepts
	Link     *[32]byte // hash of the link for the first operator
}

// Session is a browser in which a member has signed in or is signing in.
type Session struct {
	ID       string // a hash of the browser's token
	MemberID string // empty: not signed in yet
	Data     []byte
	Created  time.Time
	Seen     time.Time // accurate to about a minute
	Expires  time.Time
}

// Link signs a member in once, without a password. Without a MemberID it creates the
// account of the hub's first operator.
type Link struct {
	Hash     [32]byte
	MemberID string
	Created  time.Time
	Expires  time.Time
	Mailed   bool // it was requested by e-mail
}

// GrantKind is the kind of secret that a Grant delivers.
type GrantKind string

// The kinds of grant.
const (
	GrantMachine GrantKind = "machine" // a machine's credential
	GrantKey     GrantKind = "key"     // an API key
)

// GrantState is the state of a Grant.
type GrantState string

// The states of a grant. The member's decision moves it from the first to one of the next
// two.
const (
	GrantWaiting  GrantState = "waiting"
	GrantApproved GrantState = "approved"
	GrantDenied   GrantState = "denied"
	GrantUsed     GrantState = "used" // its secret was delivered
)

// Grant is a device's request for a member's approval (RFC 8628), either to become one of
// the member's machines or to get a key.
type Grant struct {
	ID       string
	Hash     [32]byte // of the code that only the device knows
	UserCode string   // typed by the member, as XXXX-XXXX; unique
	Kind     GrantKind
	Name     string // of the machine or key
	Reach    Reach  // of a key
	Manage   bool   // of a key
	Region   string // of a key; empty: the region of the hub that creates it
	Client   string // the device's description of itself
	Address  string // the address that the request came from
	State    GrantState
	MemberID string // the member who approved or denied it
	Created  time.Time
	Expires  time.Time
	// KeyExpires is when the requested key expires; zero: never.
	KeyExpires time.Time
	PerDay     int // of a key: its calls per UTC day; 0: no limit
}
