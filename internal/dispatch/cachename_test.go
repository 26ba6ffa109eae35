package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// A stored name is valid only for its caller, machine and day.
func TestCacheNames(t *testing.T) {
	var names cacheNames
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for range 2 {
		for _, now := range []time.Time{noon, noon.Add(11 * time.Hour), noon.Add(13 * time.Hour), noon.In(time.FixedZone("", 14*3600))} {
			for _, caller := range []string{"ann", "bob"} {
				for _, machine := range []string{"desk", "attic"} {
					want := tunnel.CacheName(caller, machine, now)
					if got := names.name(fleet.MemberID(caller), fleet.MachineID(machine), now); got != want {
						t.Errorf("%s at %s on %s: %q, want %q", caller, machine, now, got, want)
					}
				}
			}
		}
	}
	for i := range 2 * maxCacheNames {
		names.name("ann", fleet.MachineID(fmt.Sprint(i)), noon)
	}
	assert.That(t, len(names.names) <= maxCacheNames, len(names.names), "names are kept")
}
