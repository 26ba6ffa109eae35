package seal

import (
	"crypto/hmac"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// Ask is how a new machine asks a machine that has the account key for it
// (spec/sealed.md#approval). A person carries its words from the one to the other: they prove
// each end to the other, against a hub in between.
type Ask struct {
	Words   Words
	Machine string // its id

	private hpke.PrivateKey
}

var approvalInfo = []byte("kith approval 1")

const macSize = sha256.Size

// NewAsk returns an ask of a machine with new words.
func NewAsk(machine string) (*Ask, error) {
	private, err := kem.GenerateKey()
	return &Ask{NewWords(), machine, private}, err
}

// Message returns what the other machine needs, beside the words.
func (a *Ask) Message() []byte {
	public := a.private.PublicKey().Bytes()
	return append(public, askMAC(a.Words, a.Machine, public)...)
}

func askMAC(w Words, machine string, public []byte) []byte {
	mac := hmac.New(sha256.New, w[:])
	mac.Write([]byte("kith ask 1\x00"))
	mac.Write(binary.BigEndian.AppendUint16(nil, uint16(len(machine))))
	mac.Write([]byte(machine))
	mac.Write(public)
	return mac.Sum(nil)
}

func approvalMAC(w Words, k AccountKey, public []byte) []byte {
	mac := hmac.New(sha256.New, w[:])
	mac.Write([]byte("kith approved 1\x00"))
	mac.Write(k[:])
	mac.Write(public)
	return mac.Sum(nil)
}

// Approve answers the ask of a machine, whose owner typed the words: the answer gives it the
// account key.
func (a *Account) Approve(message []byte, machine string, w Words) ([]byte, error) {
	if len(message) != prekeySize+macSize {
		return nil, errors.New("what the machine asks is not complete")
	}
	public, mac := message[:prekeySize], message[prekeySize:]
	if !hmac.Equal(mac, askMAC(w, machine, public)) {
		return nil, errors.New("these are not the words that the machine shows")
	}
	key, err := kem.NewPublicKey(public)
	if err != nil {
		return nil, err
	}
	seed := a.Seed()
	return hpke.Seal(key, kdf, hpke.AES256GCM(), approvalInfo, append(seed[:], approvalMAC(w, a.Key(), public)...))
}

// Accept returns the account key that an answer to the ask gives.
func (a *Ask) Accept(answer []byte) (*Account, error) {
	text, err := hpke.Open(a.private, kdf, hpke.AES256GCM(), approvalInfo, answer)
	if err != nil || len(text) != SeedSize+macSize {
		return nil, ErrOpen
	}
	account := NewAccount([SeedSize]byte(text[:SeedSize]))
	if !hmac.Equal(text[SeedSize:], approvalMAC(a.Words, account.Key(), a.private.PublicKey().Bytes())) {
		return nil, errors.New("the answer was not made with the words of this machine")
	}
	return account, nil
}
