// Package seal encrypts a call from one daemon to another, so that the hub between them
// cannot read it. It has the formats of docs/spec/sealed.md, and no state: what a daemon
// keeps of keys, and which it trusts, is not decided here.
package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hpke"
	"crypto/sha256"
	"errors"
	"math/bits"
)

// ErrOpen reports that something sealed does not open: it was changed on its way, or sealed
// for another key.
var ErrOpen = errors.New("it does not open: it was changed, or sealed for another key")

const (
	// MaxRecipients is the maximum number of machines that a call is sealed for.
	MaxRecipients = 8

	keySize          = 32
	nonceSize        = 12
	tagSize          = 16
	prekeySize       = 1216
	encSize          = 1120                        // of an HPKE context
	RecipientKeySize = encSize + keySize + tagSize // of what one machine needs to open a call
)

// The suite of spec/sealed.md#hpke.
var (
	kem  = hpke.MLKEM768X25519()
	kdf  = hpke.HKDFSHA256()
	info = []byte("kith seal 1")
)

// derive returns a key and a nonce from a secret.
func derive(secret, salt []byte, label string) (cipher.AEAD, []byte, error) {
	b, err := hkdf.Key(sha256.New, secret, salt, label, keySize+nonceSize)
	if err != nil {
		return nil, nil, err
	}
	aead, err := newAEAD(b[:keySize])
	return aead, b[keySize:], err
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// PaddedSize returns how many bytes a text has when it is padded (spec/sealed.md#padding).
func PaddedSize(n int) int {
	n++ // the mark
	step := min(max(1<<max(bits.Len(uint(n))-6, 0), 256), 64<<10)
	return (n + step - 1) / step * step
}

// pad appends the padding of the n bytes at the end of b. b has the capacity for it.
func pad(b []byte, n int) []byte {
	b = append(b, 0x80)
	return append(b, make([]byte, PaddedSize(n)-n-1)...)
}

// unpad removes the padding.
func unpad(b []byte) ([]byte, error) {
	text := bytes.TrimRight(b, "\x00")
	if len(text) == 0 || text[len(text)-1] != 0x80 || PaddedSize(len(text)-1) != len(b) {
		return nil, ErrOpen
	}
	return text[:len(text)-1], nil
}
