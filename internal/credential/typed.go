package credential

import (
	"crypto/sha256"
	"strings"
)

// The codes below are typed by people, so their letters are few and none looks
// like another.

const (
	// userLetters are those of RFC 8628 6.1: no vowels, no word comes up.
	userLetters = "BCDFGHJKLMNPQRSTVWXZ"
	// recoveryLetters leave out i, l, o and u.
	recoveryLetters = "0123456789abcdefghjkmnpqrstvwxyz"
)

// UserCode makes the code that a member types to approve a device (RFC 8628),
// as XXXX-XXXX: 34.6 bits, enough for ten minutes and few tries.
func UserCode() string {
	code := randomOf(userLetters, 8)
	return code[:4] + "-" + code[4:]
}

// ReadUserCode is the code a member typed, in the form of UserCode: case,
// spaces and dashes do not matter. Empty: it cannot be one.
func ReadUserCode(typed string) string {
	code := strings.ToUpper(squeeze(typed))
	if len(code) != 8 || strings.Trim(code, userLetters) != "" {
		return ""
	}
	return code[:4] + "-" + code[4:]
}

// RecoveryCode makes a code that stands in for a forgotten password, as four
// groups of four: 80 bits, so that its hash alone gives nothing away.
func RecoveryCode() string {
	code := randomOf(recoveryLetters, 16)
	return code[:4] + "-" + code[4:8] + "-" + code[8:12] + "-" + code[12:]
}

// RecoveryHash is what a store keeps of a recovery code, however it was typed.
func RecoveryHash(typed string) [32]byte {
	return sha256.Sum256([]byte(strings.ToLower(squeeze(typed))))
}

// squeeze takes out what people put between groups of letters.
func squeeze(typed string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == ' ' || r == '\t' {
			return -1
		}
		return r
	}, typed)
}
