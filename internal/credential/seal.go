package credential

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
)

// sealUse tells the keys of seals from those of any other use.
const sealUse = "kith sealed turn 1"

var errSealed = errors.New("cannot open what is sealed: it was sealed under another name, for another owner, or it is damaged")

// Seal seals text under a name that is itself the secret: only who has the name
// can open it, and only for that owner. The name has to be unguessable and to
// seal one text only. AES-256-GCM, its key by HKDF-SHA-256 from the name.
func Seal(name, owner string, text []byte) []byte {
	return sealer(name).Seal(nil, nil, text, []byte(owner))
}

// Unseal opens what Seal sealed under the name for the owner.
func Unseal(name, owner string, sealed []byte) ([]byte, error) {
	text, err := sealer(name).Open(nil, nil, sealed, []byte(owner))
	if err != nil {
		return nil, errSealed
	}
	return text, nil
}

// SealName is how what is sealed under a name is found again: it does not tell
// the name.
func SealName(name string) [32]byte { return sha256.Sum256([]byte(name)) }

// sealer is the cipher of a name. It makes its nonces itself.
func sealer(name string) cipher.AEAD {
	key := must(hkdf.Key(sha256.New, []byte(name), nil, sealUse, 32)) // so few bytes are never too many
	block := must(aes.NewCipher(key))                                 // so many are a key
	return must(cipher.NewGCMWithRandomNonce(block))                  // blocks of AES have the right size
}

// must is v, where an error would be a mistake in this file.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
