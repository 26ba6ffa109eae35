package registry

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// A node gets the hints of other nodes and not its own, and does not read what they
// say.
func TestHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := embed("hub-1")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { s.Shutdown(); s.WaitForShutdown() }()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		a, b := hints{prefix: "kith.home."}, hints{prefix: "kith.home."}
		var own, others atomic.Int64
		all.Go(func() { a.serve(ctx, s, func() { own.Add(1) }) })
		all.Go(func() { b.serve(ctx, s, func() { others.Add(1) }) })
		forger, err := nats.Connect("", nats.InProcessServer(s))
		if err != nil {
			t.Fatal(err)
		}
		defer forger.Close()
		synctest.Wait()
		a.send()
		synctest.Wait()
		if own.Load() != 0 || others.Load() != 1 {
			t.Errorf("a node got %d of its own hints, the other %d of 1", own.Load(), others.Load())
		}
		forger.Publish(b.prefix+subjectChanged, []byte{0xff, 0})
		synctest.Wait()
		if others.Load() != 2 {
			t.Error("the content of a hint is read")
		}
	})
}

// A flood of forged hints (docs/faults.md#21) costs 50 polls a second at most, and changes
// nothing that the store does not say.
func TestForgedHints(t *testing.T) {
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
		if polls > 52 {
			t.Errorf("%d polls in a second", polls)
		}
		if n.Snapshot() != before {
			t.Error("hints alone changed the snapshot")
		}
	})
}

// Without NATS changes still come with the poll.
func TestWithoutHints(t *testing.T) {
	new(hints).send() // does not panic
}
