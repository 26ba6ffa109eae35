package dispatch

import (
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// TestStatus counts the calls received by this node. Calls that wait at another node are
// in the same queue.
func TestStatus(t *testing.T) {
	r := newScheduler(t, 1)
	first := r.newcomer("ann")
	r.wait("bob", 0)
	r.wait("ann", 1)
	q := r.queues["m"]
	q.insert(&waiter{arrived: noon.Add(-time.Hour), cohort: &cohort{queue: q, guests: &Guests{entry: new(Entry)}, query: fleet.Query{Caller: "eve", Model: "m"}}})
	assert.Equal(t, r.status(noon.Add(time.Minute)), (Status{Waiting: 2, Oldest: time.Minute}))
	r.release(first, ran)
}
