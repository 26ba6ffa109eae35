package credential

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
)

// sealUse separates the keys of seals from those of any other use.
const sealUse = "kith sealed turn 1"

var errSealed = errors.New("cannot open a sealed text: it was sealed under another name or for another owner, or it is damaged")

// Seal encrypts text for an owner under a name that is itself the secret. The name must
// be unguessable and seal one text only. The cipher is AES-256-GCM, its key is derived
// from the name by HKDF-SHA-256.
func Seal(name, owner string, text []byte) []byte {
	return sealer(name).Seal(nil, nil, text, []byte(owner))
}

// Unseal decrypts what Seal encrypted under the name for the owner.
func Unseal(name, owner string, sealed []byte) ([]byte, error) {
	text, err := sealer(name).Open(nil, nil, sealed, []byte(owner))
	if err != nil {
		return nil, errSealed
	}
	return text, nil
}

// SealName returns the hash of a name, by which a store finds the sealed text.
func SealName(name string) [32]byte { return sha256.Sum256([]byte(name)) }

// sealer returns the cipher of a name. It makes its nonces itself.
func sealer(name string) cipher.AEAD {
	key := must(hkdf.Key(sha256.New, []byte(name), nil, sealUse, 32)) // 32 bytes are never too many
	block := must(aes.NewCipher(key))                                 // 32 bytes are a key
	return must(cipher.NewGCMWithRandomNonce(block))                  // blocks of AES have the right size
}

// must returns v; an error would be a mistake in this file.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
