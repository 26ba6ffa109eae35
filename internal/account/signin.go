package account

import "time"

// Passkey lets a member sign in without a password: the public half of a key that
// an authenticator of theirs holds (WebAuthn).
type Passkey struct {
	ID         string
	MemberID   string
	Name       string // as the member calls it
	Credential []byte // its id, as the authenticator knows it; unique
	PublicKey  []byte // COSE
	Synced     bool   // it may be on more than one device
	Signs      int64  // the authenticator's counter at its last use; 0: it has none
	Created    time.Time
	Used       time.Time // zero: never
}

// Identity is an account at an OpenID provider that signs a member in. Issuer and
// Subject together name it; nothing else that the provider says does.
type Identity struct {
	ID       string
	MemberID string
	Issuer   string
	Subject  string
	Shown    string // what the provider called the account when it was bound
	Created  time.Time
}

// Ceremony is what is remembered between the two steps of a sign-in.
type Ceremony struct {
	Hash     [32]byte // of what the second step brings
	Kind     CeremonyKind
	MemberID string // whose; empty: nobody's yet
	Data     []byte
	Expires  time.Time
}

// CeremonyKind says what a ceremony is for; it is taken for nothing else.
type CeremonyKind string

// The kinds of ceremony.
const (
	AddPasskey CeremonyKind = "add passkey"
	UsePasskey CeremonyKind = "use passkey"
	AtProvider CeremonyKind = "at provider" // the member is at the OpenID provider
)

// Email is a member's e-mail address. It counts, for letters and as a way back
// in, once a link that was mailed there was used; any number of members may have
// the same.
type Email struct {
	MemberID string
	Address  string    // empty: none counts yet
	Verified time.Time // zero: none does
	Asked    string    // a link was mailed there, which is to be used; empty: none was
	Hash     [32]byte  // of that link's code
	Expires  time.Time // of that link
}
