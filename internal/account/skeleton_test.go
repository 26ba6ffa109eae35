package account_test

import (
	"slices"
	"testing"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

// Names that look alike have a skeleton in common, and others have none.
func TestSkeletons(t *testing.T) {
	t.Parallel()
	alike := func(a, b string) bool {
		return slices.ContainsFunc(account.Skeletons(a), func(s string) bool { return slices.Contains(account.Skeletons(b), s) })
	}
	for _, pair := range [][2]string{
		{"аӏісе", "alice"}, {"јое", "joe"}, {"ANA", "ana"}, {"Ian", "lan"}, {"IAN", "ian"}, {"b0b", "bob"}, {"BOB0", "bobo"}, {"modern", "modem"},
		{"paypal", "раураӏ"}, {"ΑΝΑ", "ana"}, {"straße", "STRASSE"}, {"adm1n", "admln"}, {"kıth", "kith"},
	} {
		if !alike(pair[0], pair[1]) {
			t.Errorf("%q and %q: %q, %q", pair[0], pair[1], account.Skeletons(pair[0]), account.Skeletons(pair[1]))
		}
	}
	for _, pair := range [][2]string{{"ana", "anna"}, {"lan", "ian"}, {"joe", "joé"}, {"box-1", "box-2"}, {"ada b", "ada-b"}, {"анна", "анка"}, {"日本", "日木"}} {
		assert.That(t, !alike(pair[0], pair[1]), pair[0], "is not", pair[1])
	}
}
