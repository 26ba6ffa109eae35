package dialect

import (
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// Engines write their errors in different forms; unknown forms yield no text.
func TestEngineText(t *testing.T) {
	for answer, want := range map[string]string{
		`{"error":{"code":"too_long","message":"no room"}}`:         "too_long: no room",
		`{"error":{"code":"invalid_request","message":"no"}}`:       "no",
		`{"error":{"code":"invalid_request_error","message":"no"}}`: "no",
		`{"error":{"code":400,"message":"no room"}}`:                "no room",
		`{"error":{"code":null,"message":"no room"}}`:               "no room",
		`{"error":"no room"}`:                                       "no room",
		`{"error":[1]}`:                                             "",
		`{"detail":"no room"}`:                                      "no room",
		`{"detail":[{"loc":["body"],"msg":"no room"}]}`:             "no room",
		`{"message":"no room"}`:                                     "no room",
		`{"error":{"detail":"no room"}}`:                            "no room",
		`{"error":{"error":"no room"}}`:                             "no room",
		`no room`:                                                   "no room",
		`{"other":"no room"}`:                                       "",
		`<html>`:                                                    "",
		``:                                                          "",
		`{"error":"` + strings.Repeat("é", 400) + `"}`:              strings.Repeat("é", 150) + "…",
	} {
		assert.Equal(t, EngineText([]byte(answer)), want, answer)
	}
}

func TestUsageTrailer(t *testing.T) {
	for cached, want := range map[string]int64{"": 0, "5": 5, "9": 7, "-1": 0, "x": 0} {
		u := Usage{In: 7, Out: 50, Reported: true, Cached: want}
		if got, ok := ParseTrailer(u.Trailer(), cached); !ok || got != u {
			t.Errorf("%q and %q read back as %+v, %v", u.Trailer(), cached, got, ok)
		}
	}
	for _, value := range []string{"", "7", "7 ", "-7 5", "7 x", "7 5 3"} {
		if got, ok := ParseTrailer(value, "5"); ok {
			t.Errorf("%q was read as %+v", value, got)
		}
	}
}
