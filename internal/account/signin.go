package account

import "time"

// Passkey lets a member sign in without a password (WebAuthn). It holds the public half
// of a key pair; the member's authenticator holds the private one.
type Passkey struct {
	ID         string
	MemberID   string
	Name       string // chosen by the member
	Credential []byte // the authenticator's id for it; unique
	PublicKey  []byte // COSE
	Synced     bool   // it may exist on several devices
	Signs      int64  // the authenticator's counter at its last use; 0: it does not count
	Created    time.Time
	Used       time.Time // last use; zero: never
}

// Identity is a member's account at an OpenID provider, used to sign in. It is identified
// by Issuer and Subject together.
type Identity struct {
	ID       string
	MemberID string
	Issuer   string
	Subject  string
	Shown    string // the account's name at the provider when it was linked
	Created  time.Time
}

// Ceremony is the state kept between the two steps of a sign-in.
type Ceremony struct {
	Hash     [32]byte // of the second step's secret
	Kind     CeremonyKind
	MemberID string // empty: not yet known
	Data     []byte
	Expires  time.Time
}

// CeremonyKind is the purpose of a ceremony. A ceremony is not accepted for any other
// purpose.
type CeremonyKind string

// The kinds of ceremony.
const (
	AddPasskey CeremonyKind = "add passkey"
	UsePasskey CeremonyKind = "use passkey"
	AtProvider CeremonyKind = "at provider" // the member is at the OpenID provider
)

// Email is a member's e-mail address. It is used for messages and recovery once the
// member has opened a link sent to it. Several members may have the same address.
type Email struct {
	MemberID string
	Address  string    // empty: none verified
	Verified time.Time // zero: never
	Asked    string    // an address that was sent a link but is not verified yet; empty: none
	Hash     [32]byte  // of that link's code
	Expires  time.Time // when that link expires
}
