package api

import (
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

func TestCheckName(t *testing.T) {
	for _, name := range []string{"ada", "Ada L.", "a-b_c.d 9", "Zoë", "Łukasz", "Иван", "Ιωάννης", "山田たろう", "ソニー", "김철수", "李小龍", "محمد", "9", "...", ".a", strings.Repeat("x", 64)} {
		if f := CheckName(name); f != nil {
			t.Errorf("%q: %v", name, f)
		}
	}
	for name, want := range map[string]string{
		"":                      "1 to 64 bytes",
		" ada":                  "1 to 64 bytes",
		"a/b":                   "1 to 64 bytes",
		"a\x00":                 "1 to 64 bytes",
		"a\u202eb":              "1 to 64 bytes", // turns the direction of what follows
		strings.Repeat("x", 65): "1 to 64 bytes",
		".":                     "folder",
		"..":                    "folder",
		"pаypal":                "one script", // a Cyrillic а
		"Αda":                   "one script", // a Greek Α
		"adа山":                  "one script",
		"ａｄａ":                   `write "ada"`,
		"ﬁona":                  `write "fiona"`,
		"Zoe\u0308":             `write "Zoë"`,
		"x²":                    `write "x2"`,
		"٣ada":                  "one script", // an Arabic digit
		"ada  l":                "see",        // a page shows one space
		"\u1160":                "see",        // a letter without a form
		"김\u115f철수":             "see",
		"\u3164":                "see", // the same, before NFKC
	} {
		f := CheckName(name)
		assert.That(t, f != nil && strings.Contains(f.Message, want) && f.Param == "name", name, f, want)
	}
	if f := checkLabel("Mac ноутбук"); f != nil {
		t.Errorf("a key may be called as its member likes: %v", f)
	}
}

// A member chooses no name of the service and its roles, however it is written.
func TestCheckChosenName(t *testing.T) {
	for _, name := range []string{
		"admin", "Admin", "ADMIN", "ADM1N", "ad-min", "a.d.m.i.n", "Kith", "KITH 2", "kith support", "Kith-Support-24", "support", "Hub", "root_", "moderator", "official",
		"о\u0440еrаtor", "ѕуѕtеm", "adm1n", "k\u00edth", "KithSupport", "kithadmin2", "hub.k1th-Adm\u00efn",
	} {
		if f := CheckChosenName(name); f == nil {
			t.Errorf("%q is free", name)
		}
	}
	for _, name := range []string{"ada", "Ada Root", "kithara", "hubert", "rooted", "9", "...", "24-7", "supporters", "team", "adminton", "ada-kith", "kithsupporter"} {
		if f := CheckChosenName(name); f != nil {
			t.Errorf("%q: %v", name, f)
		}
	}
	if f := CheckName("hub"); f != nil {
		t.Errorf("a machine is called as its member likes: %v", f)
	}
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"slots", "slotz", 1}} {
		if got := Distance(test.a, test.b); got != test.want {
			t.Errorf("distance(%q, %q) = %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
