package api

import (
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// TestMoment: what a time says depends on how far it is from now, on now's clock.
func TestMoment(t *testing.T) {
	at := time.Date(2026, 11, 23, 23, 5, 0, 0, time.UTC)
	east := time.FixedZone("east", 2*60*60)
	for _, test := range []struct {
		t, now time.Time
		want   string
	}{
		{time.Time{}, at, "never"},
		{at, at.Add(-20 * time.Hour), "23:05 UTC"},
		{at, at.Add(time.Hour), "23 Nov 23:05 UTC"},
		{at, at.AddDate(1, 0, 0), "23 Nov 2026 23:05 UTC"},
		{at, time.Time{}, "23 Nov 2026 23:05 UTC"},
		{at, at.Add(time.Hour).In(east), "01:05"},
		{at, at.Add(-3 * time.Hour).In(east), "24 Nov 01:05"},
		{at.In(east), at, "23:05 UTC"},
	} {
		assert.Equal(t, Moment(test.t, test.now), test.want, test.t, "at", test.now)
	}
}

func TestNumber(t *testing.T) {
	for n, want := range map[any]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", int64(1234567): "1,234,567"} {
		assert.Equal(t, Number(n), want, n)
	}
}
