package dispatch

import (
	"testing"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/gateway"
)

// TestActiveTogether: a member whose machine lets calls wait, then run, then wait
// has no more underway than may run and wait together.
func TestActiveTogether(t *testing.T) {
	u := activeCalls{maxRunning: 2, maxWaiting: 3}
	var ends []func()
	n := 0
	for range 20 {
		c := &activeCall{call: &gateway.Call{Caller: gateway.Caller{Member: "ann"}}}
		_, end := u.begin(t.Context(), c)
		if err := u.enter(c, waiting); err != nil {
			if f := fault.Of(err); f.Code != fault.RateLimitExceeded {
				t.Fatal(err)
			}
			end()
			continue
		}
		n++
		ends = append(ends, end)
		if err := u.enter(c, running); err != nil { // its machine made room
			t.Fatalf("one that waited is refused: %v", err)
		}
	}
	if n != 5 {
		t.Errorf("%d calls underway, want 5", n)
	}
	for _, end := range ends {
		end()
	}
	if len(u.cancel) != 0 || len(u.byMember) != 0 {
		t.Errorf("%d calls of %d members are left", len(u.cancel), len(u.byMember))
	}
}

// TestDefectInDo: a call that a defect ends is underway no more.
func TestDefectInDo(t *testing.T) {
	d := &Dispatcher{} // no registry: the first decision is a defect
	func() {
		defer func() {
			if recover() == nil {
				t.Error("there was no defect")
			}
		}()
		_, _ = d.Do(t.Context(), &gateway.Call{Caller: gateway.Caller{Member: "ann"}, Arrived: time.Now()})
	}()
	if n := len(d.active.all()); n != 0 {
		t.Errorf("%d calls are left underway", n)
	}
}
