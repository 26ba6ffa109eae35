package limit

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

func TestNetwork(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8::1": "2001:db8::/64", "2001:db8:0:1:2::": "2001:db8:0:1::/64",
		"fe80::1%eth0": "fe80::/64",
	} {
		if got := Network(netip.MustParseAddr(addr)); got.String() != want {
			t.Errorf("%s is counted under %s, not %s", addr, got, want)
		}
	}
}

// A map whose keys are used once stays small, and a map keeps the keys that are in use.
func TestMap(t *testing.T) {
	var m Map[int, int]
	for i := range 20 * minPrune {
		m.Put(i, i, func(old int) bool { return old < i-10 && old != 7 })
	}
	if v, ok := m.Get(7); m.Len() > 2*minPrune || !ok || v != 7 {
		t.Errorf("%d keys are kept; 7 is %v", m.Len(), ok)
	}
	for i := range 3 * minPrune {
		m.Put(i, i, func(int) bool { return false })
	}
	assert.That(t, m.Len() >= 3*minPrune, m.Len(), "keys in use are kept")
}

func TestThrottle(t *testing.T) {
	limit := &Throttle[string]{Every: 30 * time.Second, Burst: 10}
	now := time.Now()
	try := func(key string) bool { return limit.Take(key, now) == 0 }
	for i := range 10 {
		if !try("ada") {
			t.Fatalf("refused try %d", i+1)
		}
	}
	for range 3 { // refused attempts take nothing
		assert.Equal(t, limit.Take("ada", now), 30*time.Second, "the eleventh waits")
	}
	assert.That(t, try("bob"), "bob is held to what ada did")
	now = now.Add(30 * time.Second)
	assert.That(t, try("ada") && !try("ada"), "after 30 s, one more and no more")
	limit.Give("ada", now)
	assert.That(t, try("ada") && !try("ada"), "what was given back can be taken once")
	now = now.Add(-time.Hour) // the clock was set back
	assert.That(t, !try("ada") && limit.Take("ada", now) <= 30*time.Second, "it waits for the clock")
	now = now.Add(2 * time.Hour)
	limit.Give("ada", now)
	for range 10 {
		try("ada")
	}
	now = now.Add(time.Millisecond)
	if limit.Give("cy", now); try("ada") {
		t.Error("more than the burst after an hour")
	}
}

func TestThrottleIsBounded(t *testing.T) {
	limit := &Throttle[int]{Every: time.Hour, Burst: 1}
	for i := range maxThrottled + 10 {
		limit.Take(i, time.Now())
	}
	if n := limit.of.Len(); n > maxThrottled {
		t.Errorf("%d keys are remembered", n)
	}
}
