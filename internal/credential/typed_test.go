package credential

import (
	"regexp"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

func TestTypedCodes(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-hjkmnp-tv-z]{4}(-[0-9a-hjkmnp-tv-z]{4}){3}$`)
	seen := map[string]bool{}
	for range 1000 {
		code, recovery := UserCode(), RecoveryCode()
		assert.Require(t, !seen[code] && !seen[recovery], code, "or", recovery, "came twice")
		seen[code], seen[recovery] = true, true
		assert.Require(t, len(code) == 9 && code[4] == '-' && !strings.ContainsAny(code, "AEIOUY01"), "made", code)
		assert.Require(t, form.MatchString(recovery), "made", recovery)
		for _, typed := range []string{code, strings.ToLower(code), strings.ReplaceAll(code, "-", " "), "\t" + strings.ReplaceAll(code, "-", "") + " "} {
			if got := ReadUserCode(typed); got != code {
				t.Fatalf("%q was read as %q", typed, got)
			}
		}
		if RecoveryHash(recovery) != RecoveryHash(" "+strings.ToUpper(strings.ReplaceAll(recovery, "-", ""))) {
			t.Fatalf("%s has two hashes", recovery)
		}
	}
	for _, typed := range []string{"", "BCDF", "BCDF-GHJA", "BCDF-GHJK-L", "BCDF_GHJK", "ＢCDFGHJ", strings.Repeat("B", 1<<20)} {
		assert.Equal(t, ReadUserCode(typed), "", typed, "was read as")
	}
}
