package seal

import (
	"crypto/ed25519"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Prekey is the private key of a machine for an hour. Calls are sealed for it.
type Prekey struct {
	private hpke.PrivateKey
	public  []byte
}

// NewPrekey returns a new random key.
func NewPrekey() (*Prekey, error) {
	private, err := kem.GenerateKey()
	if err != nil {
		return nil, err
	}
	return &Prekey{private, private.PublicKey().Bytes()}, nil
}

// ID returns the id of the key.
func (p *Prekey) ID() KeyID { return keyID(p.public) }

// KeyID identifies a prekey: the first bytes of the SHA-256 of its public part.
type KeyID [8]byte

func keyID(public []byte) (id KeyID) {
	sum := sha256.Sum256(public)
	copy(id[:], sum[:])
	return id
}

// Statement is what a machine says of its prekey, signed by the account key.
type Statement struct {
	Made    time.Time // to the second
	Machine string    // its id
	Account AccountKey
	KeyID   KeyID
	// Former are the account keys that led to Account, the oldest first. Each one's
	// signature of the next was checked.
	Former []Succession

	prekey []byte
}

const (
	statementMagic = "kith prekey v1\x00\x00"
	// MaxStatement is the maximum size of a statement in bytes.
	MaxStatement = 2 << 10
	// MaxSuccession is the maximum number of former keys in a statement.
	MaxSuccession = 4
	maxMachineID  = 64
)

// Sign returns the statement of a machine (spec/sealed.md#statement). former are the account
// keys that led to this one, the oldest first, at most four.
func (a *Account) Sign(machine string, prekey *Prekey, made time.Time, former []Succession) ([]byte, error) {
	if machine == "" || len(machine) > maxMachineID || len(former) > MaxSuccession {
		return nil, errors.New("cannot make a statement with such an id, or of so many keys")
	}
	key := a.Key()
	b := binary.BigEndian.AppendUint64([]byte(statementMagic), uint64(made.Unix()))
	b = binary.BigEndian.AppendUint16(b, uint16(len(machine)))
	b = append(append(append(b, machine...), key[:]...), prekey.public...)
	b = append(b, byte(len(former)))
	for _, s := range former {
		b = append(append(b, s.Former[:]...), s.Signature[:]...)
	}
	signature := a.sign("", b) // its magic is its kind
	return append(b, signature[:]...), nil
}

// ParseStatement parses a statement, and checks its signatures. Whose account key it is, is
// for the caller to judge.
func ParseStatement(text []byte) (*Statement, error) {
	s := &Statement{}
	r := reader{text}
	switch {
	case len(text) > MaxStatement:
		return nil, fmt.Errorf("a statement has at most %d bytes", MaxStatement)
	case string(r.take(len(statementMagic))) != statementMagic:
		return nil, errors.New("not a statement of this version")
	}
	s.Made = time.Unix(int64(r.number(8)), 0)
	s.Machine = string(r.take(int(r.number(2))))
	copy(s.Account[:], r.take(len(s.Account)))
	s.prekey = r.take(prekeySize)
	former := int(r.number(1))
	for range min(former, MaxSuccession) {
		var next Succession
		copy(next.Former[:], r.take(len(next.Former)))
		copy(next.Signature[:], r.take(len(next.Signature)))
		s.Former = append(s.Former, next)
	}
	signed := text[:len(text)-len(r.left)]
	signature := r.take(ed25519.SignatureSize)
	if signature == nil || len(r.left) > 0 || former > MaxSuccession || s.Machine == "" || len(s.Machine) > maxMachineID {
		return nil, errors.New("not a complete statement")
	}
	if !s.Account.verify("", signed, signature) {
		return nil, errors.New("the signature of the statement is wrong")
	}
	for i, f := range s.Former {
		next := s.Account
		if i+1 < len(s.Former) {
			next = s.Former[i+1].Former
		}
		if !f.leads(next) {
			return nil, errors.New("a former key did not sign the one after it")
		}
	}
	s.KeyID = keyID(s.prekey)
	return s, nil
}

// reader takes bytes from the front of a text. After its end it returns nil and 0.
type reader struct{ left []byte }

func (r *reader) take(n int) []byte {
	if n > len(r.left) {
		r.left = nil
		return nil
	}
	b := r.left[:n]
	r.left = r.left[n:]
	return b
}

// number takes a big-endian number of size bytes.
func (r *reader) number(size int) (n uint64) {
	for _, b := range r.take(size) {
		n = n<<8 | uint64(b)
	}
	return n
}
