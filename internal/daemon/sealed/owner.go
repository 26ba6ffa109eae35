package sealed

import (
	"fmt"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/seal"
)

// Trust is what this machine has of the keys of sealed calls.
type Trust struct {
	Mode        Mode   `json:"mode"`
	Words       string `json:"words"` // of the account key
	Fingerprint string `json:"fingerprint"`
	// Approved reports that the account key is on several machines.
	Approved bool `json:"approved"`
	// Ask are the words to type on another machine of the owner that is to give this one its
	// account key; absent: this machine has it.
	Ask  string       `json:"ask,omitzero"`
	Keys []TrustedKey `json:"keys"`
	// Answer is the answer to the ask of another machine, if that was requested.
	Answer []byte `json:"answer,omitzero"`
}

// TrustedKey is the account key of another member.
type TrustedKey struct {
	Name        string         `json:"name"` // of the member
	Owner       fleet.MemberID `json:"owner"`
	Words       string         `json:"words"`
	Fingerprint string         `json:"fingerprint"`
	How         How            `json:"how"`
	Since       time.Time      `json:"since"`
}

// Act is what an owner does with keys.
type Act string

// The acts.
const (
	ActConfirm Act = "confirm" // the key of Name has these Words
	ActLink    Act = "link"    // the key of Name, whose id is Owner, has this Fingerprint
	ActRemove  Act = "remove"  // forget the keys of Name
	ActApprove Act = "approve" // answer the Ask of Machine, whose words are Words
	ActReset   Act = "reset"   // make another account key
)

// Change is the body of POST /trust.
type Change struct {
	Act         Act             `json:"act"`
	Name        string          `json:"name,omitzero"`
	Owner       fleet.MemberID  `json:"owner,omitzero"`
	Words       string          `json:"words,omitzero"`
	Fingerprint string          `json:"fingerprint,omitzero"`
	Machine     fleet.MachineID `json:"machine,omitzero"`
	Ask         []byte          `json:"ask,omitzero"`
}

// Trust returns what the keyring has, for its owner. machine is this machine's id.
func (k *Keyring) Trust(machine string, mode Mode) (now Trust, err error) {
	words, ask, err := k.Ask(machine)
	if err != nil {
		return now, err
	}
	f := k.Fingerprint()
	now = Trust{Mode: mode, Words: f.Words().String(), Fingerprint: f.String(), Approved: k.Approved(), Keys: []TrustedKey{}}
	if ask != nil {
		now.Ask = words.String()
	}
	for _, key := range k.Keys() {
		f := key.Fingerprint
		now.Keys = append(now.Keys, TrustedKey{key.Name, key.Owner, f.Words().String(), f.String(), key.How, key.Since})
	}
	return now, nil
}

// CheckWords returns an error if s is not words as people type them.
func CheckWords(s string) error {
	_, err := seal.ParseWords(s)
	return err
}

// CheckFingerprint returns an error if s is not a fingerprint as in an invite's link.
func CheckFingerprint(s string) error {
	_, err := seal.ParseFingerprint(s)
	return err
}

// Change carries out what the owner does with keys. The answer is that of ActApprove.
func (k *Keyring) Change(c *Change) (answer []byte, err error) {
	var words seal.Words
	if c.Act == ActConfirm || c.Act == ActApprove {
		if words, err = seal.ParseWords(c.Words); err != nil {
			return nil, err
		}
	}
	switch c.Act {
	case ActConfirm:
		return nil, k.ConfirmWords(c.Name, words)
	case ActLink:
		f, err := seal.ParseFingerprint(c.Fingerprint)
		if err != nil {
			return nil, err
		}
		return nil, k.Confirm(c.Owner, c.Name, f)
	case ActRemove:
		return nil, k.Remove(c.Name)
	case ActApprove:
		return k.Approve(c.Ask, string(c.Machine), words)
	case ActReset:
		return nil, k.Reset()
	}
	return nil, fmt.Errorf("unknown act %.20q on keys", c.Act)
}
