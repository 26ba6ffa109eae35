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

// Identity is an account at an OpenID provider that signs a member in. Only Issuer and
// Subject together identify it.
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
	Hash     [32]byte // of the secret of the second step
	Kind     CeremonyKind
	MemberID string // empty: not known yet
	Data     []byte
	Expires  time.Time
}

// CeremonyKind is what a ceremony is for. It is accepted for nothing else.
type CeremonyKind string

// The kinds of ceremony.
const (
	AddPasskey CeremonyKind = "add passkey"
	UsePasskey CeremonyKind = "use passkey"
	AtProvider CeremonyKind = "at provider" // the member is at the OpenID provider
)

// Email is a member's e-mail address. It is used, for messages and for recovery, after
// the member has opened a link that was mailed there. Several members may have the same
// address.
type Email struct {
	MemberID string
	Address  string    // empty: none is verified yet
	Verified time.Time // zero: never
	Asked    string    // the address that a link was mailed to and not verified yet; empty: none
	Hash     [32]byte  // of that link's code
	Expires  time.Time // of that link
}
