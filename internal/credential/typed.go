package credential

import (
	"crypto/sha256"
	"strings"
)

// People type the codes below, so that they use few characters, which cannot be confused.

const (
	// userCharacters are those of RFC 8628, section 6.1: no vowels, so that no word can
	// occur.
	userCharacters = "BCDFGHJKLMNPQRSTVWXZ"
	// recoveryCharacters omit i, l, o and u.
	recoveryCharacters = "0123456789abcdefghjkmnpqrstvwxyz"
)

// UserCode creates the code that a member types to approve a device (RFC 8628), in the
// format XXXX-XXXX. Its 34.6 bits are enough for ten minutes and a few attempts.
func UserCode() string {
	code := randomOf(userCharacters, 8)
	return code[:4] + "-" + code[4:]
}

// ReadUserCode normalizes a code that a member typed, ignoring case, spaces and dashes.
// It returns "" if the text cannot be a code.
func ReadUserCode(typed string) string {
	code := strings.ToUpper(squeeze(typed))
	if len(code) != 8 || strings.Trim(code, userCharacters) != "" {
		return ""
	}
	return code[:4] + "-" + code[4:]
}

// RecoveryCode creates a code that replaces a forgotten password, in four groups of four
// characters. Its 80 bits are enough that its hash cannot be reversed.
func RecoveryCode() string {
	code := randomOf(recoveryCharacters, 16)
	return code[:4] + "-" + code[4:8] + "-" + code[8:12] + "-" + code[12:]
}

// RecoveryHash returns the hash that a store keeps of a recovery code, ignoring case and
// separators.
func RecoveryHash(typed string) [32]byte {
	return sha256.Sum256([]byte(strings.ToLower(squeeze(typed))))
}

// squeeze removes the separators that people put between groups of characters.
func squeeze(typed string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == ' ' || r == '\t' {
			return -1
		}
		return r
	}, typed)
}
