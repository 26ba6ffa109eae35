package credential

import (
	"crypto/sha256"
	"strings"
)

// The codes below are typed by people: their characters are few and look different.

const (
	// userCharacters are those of RFC 8628 6.1, without vowels, so that no word appears.
	userCharacters = "BCDFGHJKLMNPQRSTVWXZ"
	// recoveryCharacters are without i, l, o and u.
	recoveryCharacters = "0123456789abcdefghjkmnpqrstvwxyz"
)

// UserCode makes the code that a member types to approve a device (RFC 8628), as
// XXXX-XXXX: 34.6 bits, enough for ten minutes and few tries.
func UserCode() string {
	code := randomOf(userCharacters, 8)
	return code[:4] + "-" + code[4:]
}

// ReadUserCode returns the code that a member typed in the form of UserCode; case,
// spaces and dashes do not matter. It returns "" for a text that cannot be one.
func ReadUserCode(typed string) string {
	code := strings.ToUpper(squeeze(typed))
	if len(code) != 8 || strings.Trim(code, userCharacters) != "" {
		return ""
	}
	return code[:4] + "-" + code[4:]
}

// RecoveryCode makes a code that replaces a forgotten password, as four groups of four:
// 80 bits, so that its hash reveals nothing.
func RecoveryCode() string {
	code := randomOf(recoveryCharacters, 16)
	return code[:4] + "-" + code[4:8] + "-" + code[8:12] + "-" + code[12:]
}

// RecoveryHash returns what a store keeps of a recovery code, however it was typed.
func RecoveryHash(typed string) [32]byte {
	return sha256.Sum256([]byte(strings.ToLower(squeeze(typed))))
}

// squeeze removes what people put between groups of characters.
func squeeze(typed string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == ' ' || r == '\t' {
			return -1
		}
		return r
	}, typed)
}
