package account_test

import (
	"testing"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

// TestSpeed checks that an answer has a speed if it was streamed and is long enough to
// measure it.
func TestSpeed(t *testing.T) {
	for _, tt := range []struct {
		firstMS, tookMS, tokens int64
		want                    float64
	}{
		{1000, 2000, 11, 10},
		{1000, 2000, 10, 9},
		{1000, 1001, 9, 0}, // would be 8,000
		{0, 2000, 11, 0},
		{2000, 2000, 11, 0},
	} {
		trace := account.Trace{FirstMS: tt.firstMS, TookMS: tt.tookMS, TokensOut: tt.tokens}
		assert.Equal(t, trace.Speed(), tt.want, tt)
	}
}
