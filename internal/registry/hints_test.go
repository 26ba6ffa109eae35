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

// A node receives the hints of the other nodes and not its own.
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
		var a, b hints
		var own, heard atomic.Int64
		all.Go(func() { a.serve(ctx, s, "home", func() { own.Add(1) }) })
		all.Go(func() { b.serve(ctx, s, "home", func() { heard.Add(1) }) })
		other, err := nats.Connect("", nats.InProcessServer(s))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		synctest.Wait()
		a.changed()
		synctest.Wait()
		if own.Load() != 0 || heard.Load() != 1 {
			t.Errorf("a node heard %d of its own hints, the other %d of 1", own.Load(), heard.Load())
		}
		other.Publish(subject("home"), []byte{0xff, 0}) // forged, garbage
		other.Flush()
		synctest.Wait()
		if heard.Load() != 2 {
			t.Error("a hint is looked into, not just heard")
		}
	})
}

// Faults 20, 21: a flood of hints costs 50 polls a second at most, and changes
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
			n.poke()
			n.poke()
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

// Without any hint (NATS down) changes still come with the poll.
func TestWithoutHints(t *testing.T) {
	var h hints
	h.changed() // must not panic
}
