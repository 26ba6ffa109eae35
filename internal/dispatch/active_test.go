package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// TestActiveTogether: if a member's machine makes calls wait, run and wait again, the
// member never has more calls than may run and wait together.
func TestActiveTogether(t *testing.T) {
	u := activeCalls{maxRunning: 2, maxWaiting: 3}
	var ends []func()
	n := 0
	for range 20 {
		c := &activeCall{call: &gateway.Call{Caller: fleet.Caller{Member: "ann"}}}
		_, unregister := u.register(t.Context(), c)
		if err := u.enter(c, phaseWaiting); err != nil {
			if f := fault.Of(err); f.Code != fault.RateLimitExceeded {
				t.Fatal(err)
			}
			unregister()
			continue
		}
		n++
		ends = append(ends, unregister)
		if err := u.enter(c, phaseRunning); err != nil { // its machine has a free slot
			t.Fatalf("one that waited is refused: %v", err)
		}
	}
	assert.Equal(t, n, 5, "calls underway")
	for _, end := range ends {
		end()
	}
	if len(u.calls) != 0 || len(u.byMember) != 0 {
		t.Errorf("%d calls of %d members are left", len(u.calls), len(u.byMember))
	}
}

// TestDefectInDo: a call that ends because of a defect is no longer counted.
func TestDefectInDo(t *testing.T) {
	d := &Dispatcher{} // without a registry the first decision panics
	func() {
		defer func() {
			assert.That(t, recover() != nil, "there was no defect")
		}()
		_, _ = d.Do(t.Context(), &gateway.Call{Caller: fleet.Caller{Member: "ann"}, Arrived: time.Now()})
	}()
	assert.Equal(t, len(d.active.all()), 0, "calls are left underway")
}

// A call that ends because of a defect leaves no slot reserved and does not wait,
// wherever the defect is.
func TestDefectLeavesNoSlot(t *testing.T) {
	for name, c := range map[string]struct {
		busy    bool
		waiting func(ahead int)
	}{
		"with a slot": {false, nil}, // there is no ledger
		"waiting":     {true, func(int) { panic("a defect") }},
		"granted": {true, func(ahead int) {
			if ahead < 0 {
				panic("a defect")
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one := newScheduler(t, 1)
				d := new(Dispatcher)
				d.SetLimits(Limits{Wait: time.Minute})
				d.scheduler.refresh, d.scheduler.activity = one.refresh, func() {}
				var held *reservation
				if c.busy {
					held = one.newcomer("ann")
				}
				ended := make(chan any)
				go func() {
					defer func() { ended <- recover() }()
					_, err := d.Do(t.Context(), &gateway.Call{
						Model: "m", Endpoint: fleet.ChatCompletions, Caller: fleet.Caller{Member: "bob"}, Arrived: time.Now(), Wait: -1,
						Waiting: func(ahead int, _ time.Duration) { c.waiting(ahead) },
					})
					t.Error("there was no defect:", err)
				}()
				synctest.Wait()
				if held != nil {
					d.scheduler.release(held, ran)
				}
				assert.That(t, <-ended != nil, "there was no defect")
				if n := one.inFlight(); n != 0 || d.scheduler.waitCount.Load() != 0 || len(d.active.all()) != 0 {
					t.Errorf("%d slots are reserved, %d calls wait, %d are active", n, d.scheduler.waitCount.Load(), len(d.active.all()))
				}
			})
		})
	}
}
