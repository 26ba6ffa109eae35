package registry

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

// A flood of notifications (docs/faults.md#21) causes at most 50 polls a second, and
// changes nothing that the store does not have.
func TestManyNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m")
		n := newNode(t, f)
		n.connect(t, "m", offering("llama"))
		synctest.Wait()
		before, start := n.Snapshot(), time.Now()
		f.mu.Lock()
		f.polls = 0
		f.mu.Unlock()
		for time.Since(start) < time.Second {
			n.pollNow()
			n.pollNow()
			time.Sleep(time.Millisecond)
		}
		f.mu.Lock()
		polls := f.polls
		f.mu.Unlock()
		assert.That(t, polls <= 52, polls, "polls in a second")
		assert.Equal(t, n.Snapshot(), before, "notifications alone changed the snapshot")
	})
}
