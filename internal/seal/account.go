package seal

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
)

// Account is the private account key of a member, which all machines of the member have
// once they are approved.
type Account struct{ private ed25519.PrivateKey }

// SeedSize is the size of an account key's seed in bytes.
const SeedSize = ed25519.SeedSize

// NewAccount returns the account key with a seed, which is random and secret.
func NewAccount(seed [SeedSize]byte) *Account {
	return &Account{ed25519.NewKeyFromSeed(seed[:])}
}

// Seed returns the seed. NewAccount makes the key of it again.
func (a *Account) Seed() (seed [SeedSize]byte) {
	copy(seed[:], a.private.Seed())
	return seed
}

// Key returns the public key.
func (a *Account) Key() (k AccountKey) {
	copy(k[:], a.private[ed25519.SeedSize:])
	return k
}

// sign signs a message of a kind. No kind begins with another one.
func (a *Account) sign(kind string, message []byte) [ed25519.SignatureSize]byte {
	return [ed25519.SignatureSize]byte(ed25519.Sign(a.private, append([]byte(kind), message...)))
}

// AccountKey is the public account key of a member.
type AccountKey [ed25519.PublicKeySize]byte

func (k AccountKey) verify(kind string, message, signature []byte) bool {
	return ed25519.Verify(k[:], append([]byte(kind), message...), signature)
}

// Fingerprint returns the fingerprint of the key (spec/sealed.md#fingerprint).
func (k AccountKey) Fingerprint() (f Fingerprint) {
	sum := sha256.Sum256(append([]byte("kith account 1\x00"), k[:]...))
	copy(f[:], sum[:])
	return f
}

// Fingerprint identifies an account key.
type Fingerprint [16]byte

// String returns the fingerprint as in links: 22 characters of base64url.
func (f Fingerprint) String() string { return base64.RawURLEncoding.EncodeToString(f[:]) }

// ParseFingerprint parses what String returns.
func ParseFingerprint(s string) (f Fingerprint, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != len(f) {
		return f, errors.New("not a fingerprint of 22 letters, digits, dashes and underscores")
	}
	copy(f[:], b)
	return f, nil
}

// Words returns the beginning of the fingerprint as words, which people compare.
func (f Fingerprint) Words() Words { return Words(f[:wordsSize]) }

// Succession is a former account key of a member with its signature of the key that
// followed it.
type Succession struct {
	Former    AccountKey
	Signature [ed25519.SignatureSize]byte
}

const kindSuccession = "kith succession 1"

// Succeed returns the succession from this key to the next one.
func (a *Account) Succeed(next AccountKey) Succession {
	return Succession{a.Key(), a.sign(kindSuccession, next[:])}
}

// leads reports whether the succession leads to the next key.
func (s *Succession) leads(next AccountKey) bool {
	return s.Former.verify(kindSuccession, next[:], s.Signature[:])
}
