package credential

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
)

// sealUse separates these keys from keys derived for other purposes.
const sealUse = "kith sealed turn 1"

var errSealed = errors.New("cannot open a sealed text: it was sealed under another name or for another owner, or it is damaged")

// Seal encrypts text for an owner with a key derived from name. The name is the secret:
// it must be unguessable and must not be used for a second text. The cipher is
// AES-256-GCM and the key derivation HKDF-SHA-256.
func Seal(name, owner string, text []byte) []byte {
	return sealer(name).Seal(nil, nil, text, []byte(owner))
}

// Unseal decrypts the result of Seal with the same name and owner.
func Unseal(name, owner string, sealed []byte) ([]byte, error) {
	text, err := sealer(name).Open(nil, nil, sealed, []byte(owner))
	if err != nil {
		return nil, errSealed
	}
	return text, nil
}

// SealName returns the hash of a name. The store uses it to look up the sealed text.
func SealName(name string) [32]byte { return sha256.Sum256([]byte(name)) }

// sealer returns the cipher for a name. The cipher generates its own nonces.
func sealer(name string) cipher.AEAD {
	key := must(hkdf.Key(sha256.New, []byte(name), nil, sealUse, 32)) // HKDF can derive 32 bytes
	block := must(aes.NewCipher(key))                                 // a valid key size
	return must(cipher.NewGCMWithRandomNonce(block))                  // AES has the required block size
}

// must returns v. An error would be a bug in this file.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
