package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// TestForwardCounts: every end of a forwarded request is counted, an unknown one of a
// newer node too.
func TestForwardCounts(t *testing.T) {
	var c forwardCounts
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, end := range []end{
		endedComplete, refusedBusy, "a word of a newer node",
		endOf(t.Context(), fmt.Errorf("read: %w", errLost)), endOf(t.Context(), errors.New("what")), endOf(gone, errLost),
	} {
		c.add(end)
	}
	for end, want := range map[string]uint64{"complete": 1, "busy": 1, "link_lost": 1, "cancelled": 1, "other": 2, "gone": 0} {
		if got, ok := c.counts()[end]; !ok || got != want {
			t.Errorf("%s: %d, want %d", end, got, want)
		}
	}
}

// A home says that a machine moved only where it has a newer tunnel.
func TestRefusalOfAbsent(t *testing.T) {
	for _, c := range []struct {
		machine *fleet.Machine
		want    end
	}{
		{nil, refusedGone},
		{&fleet.Machine{Generation: 3}, refusedGone},
		{&fleet.Machine{Generation: 2, Online: true}, refusedGone},
		{&fleet.Machine{Generation: 3, Online: true}, refusedMoved},
	} {
		assert.Equal(t, refusalOfAbsent(c.machine, 2), c.want, c.machine)
	}
}
