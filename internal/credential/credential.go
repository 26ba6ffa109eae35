// Package credential makes and parses the service's secrets: API keys, machine
// credentials, login tokens, invites, links. All have the same format
// (spec/api.md#api-key):
//
//	PREFIX_REGION_ + 32 random base62 characters + 6 of checksum
//
// The checksum is the CRC-32 of everything before it, so that a mistyped secret is
// refused without a database lookup. A Secret prints as redacted in every form; only
// Reveal returns the text.
package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"strings"
)

// Kind is the purpose of a secret. Its value is the secret's prefix.
type Kind string

// The kinds of secrets.
const (
	APIKey     Kind = "kith"  // a member's key on the hosted surface
	MachineKey Kind = "kithm" // a machine's own credential
	LoginToken Kind = "kitht" // registers one machine, once
	InviteCode Kind = "kithi" // creates a share with each member who accepts it
	LinkCode   Kind = "kithl" // signs a member in on the site, once
	DeviceCode Kind = "kithd" // fetches the secret that a member approved (RFC 8628)
)

const (
	alphabet    = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	randomLen   = 32 // 190 bits
	checksumLen = 6  // 62^6 > 2^32
	maxRegion   = 16
)

// The reasons why Parse rejects a text. They never contain the text.
var (
	errForm     = errors.New("cannot read the secret: it does not have the form PREFIX_REGION_TEXT with a known prefix; copy all of it, as it was shown")
	errChecksum = errors.New("cannot read the secret: its checksum is wrong; copy it again, as it was shown")
)

// Secret is one secret. The zero Secret has an empty text.
type Secret struct {
	kind   Kind
	region string
	// text is a pointer because fmt prints the unexported fields of a struct around a
	// Secret without the Secret's own methods.
	text *string
}

// Mint creates a secret of the given kind for a region. It panics if the region is
// invalid: a hub validates its own region at startup.
func Mint(kind Kind, region string) Secret {
	if !ValidRegion(region) {
		panic(fmt.Sprintf("credential: %q cannot be a region", region))
	}
	head := string(kind) + "_" + region + "_" + random()
	text := head + checksum(head)
	return Secret{kind: kind, region: region, text: &text}
}

// Parse parses a secret and checks its prefix, format and checksum, but not whether the
// secret is in use. Its errors never contain the text.
func Parse(text string) (Secret, error) {
	prefix, rest, _ := strings.Cut(text, "_")
	region, body, _ := strings.Cut(rest, "_")
	kind := Kind(prefix)
	switch kind {
	case APIKey, MachineKey, LoginToken, InviteCode, LinkCode, DeviceCode:
	default:
		return Secret{}, errForm
	}
	if !ValidRegion(region) || len(body) != randomLen+checksumLen || strings.Trim(body, alphabet) != "" {
		return Secret{}, errForm
	}
	head, sum := text[:len(text)-checksumLen], text[len(text)-checksumLen:]
	if checksum(head) != sum {
		return Secret{}, errChecksum
	}
	text = strings.Clone(text) // do not retain a request header
	return Secret{kind: kind, region: text[len(kind)+1:][:len(region)], text: &text}, nil
}

// ValidRegion reports whether region can be part of a secret: [a-z0-9-]{1,16}.
func ValidRegion(region string) bool {
	return region != "" && len(region) <= maxRegion &&
		strings.Trim(region, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Reveal returns the secret's text. Show it once, to its owner; never log or store it.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Kind returns the purpose of the secret.
func (s Secret) Kind() Kind { return s.kind }

// Region returns the secret's region.
func (s Secret) Region() string { return s.region }

// Hash returns the SHA-256 of the text. The store keeps the hash in place of the text.
func (s Secret) Hash() [32]byte { return sha256.Sum256([]byte(s.Reveal())) }

// LastFour returns the last four characters of the text, so that the owner can recognize
// the secret. They are part of the checksum and reveal nothing of the random part.
func (s Secret) LastFour() string {
	text := s.Reveal()
	return text[max(0, len(text)-4):]
}

// String returns the redacted form.
func (s Secret) String() string {
	if s.text == nil {
		return "[no secret]"
	}
	return string(s.kind) + "_" + s.region + "_[redacted]"
}

// GoString returns String.
func (s Secret) GoString() string { return s.String() }

// Format writes String, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue returns String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns String, for JSON and every other encoding.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func random() string { return randomOf(alphabet, randomLen) }

// randomOf returns n random characters, each chosen with equal probability.
func randomOf(characters string, n int) string {
	fair := 256 - 256%len(characters) // larger bytes would favor some characters
	out := make([]byte, 0, n)
	for {
		var draw [2 * randomLen]byte
		_, _ = rand.Read(draw[:]) // never fails: it crashes the process instead
		for _, b := range draw {
			if int(b) < fair {
				out = append(out, characters[int(b)%len(characters)])
			}
			if len(out) == n {
				return string(out)
			}
		}
	}
}

// checksum returns the CRC-32 (IEEE) of head in base62, most significant digit first.
func checksum(head string) string {
	sum := crc32.ChecksumIEEE([]byte(head))
	var out [checksumLen]byte
	for i := checksumLen - 1; i >= 0; i-- {
		out[i] = alphabet[sum%uint32(len(alphabet))]
		sum /= uint32(len(alphabet))
	}
	return string(out[:])
}
