package dispatch

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// home is ann's machine at a hub that has guests of one Host.
type home struct {
	*oneMachine
	granted   []int64     // the guests that got a slot, in order
	slots     []*HeldSlot // their slots
	away      bool        // the host does not take slots of the machine
	announced []Waiting
}

func (h *home) Waits(w Waiting) { h.announced = append(h.announced, w) }

func (h *home) Rank(string, int64) uint64 { return 0 }

func (h *home) Used(*fleet.Candidate) {}

func (h *home) KeyCounted(string) {}

func (h *home) KeyUsed(string, *fleet.LimitLoad) {}

func (h *home) Sent([]byte) {}

func (h *home) Describe(*http.Request, *gateway.Call, bool, string) {}

// atHome runs a test in a bubble with a machine of one slot, which first holds.
func atHome(t *testing.T, test func(h *home, first *reservation)) {
	synctest.Test(t, func(t *testing.T) {
		h := &home{oneMachine: newScheduler(t, 1)}
		h.refresh = func(q *fleet.Query) *fleet.Snapshot { q.Now = time.Now(); return h.snapshot }
		h.setOthers(h)
		q := queryBy("ann")
		d := fleet.Route(h.refresh(&q), q)
		test(h, h.reserveFirst(d.Candidates, "m", q.Now))
	})
}

// guests returns Guests of a member, without any calls.
func (h *home) guests(member fleet.MemberID) *Guests {
	return newGuests(&h.scheduler, &Entry{
		Name:     "away",
		MayGrant: func(fleet.MachineID) bool { return !h.away },
		Grant: func(_ *Guests, number int64, slot *HeldSlot) {
			h.granted, h.slots = append(h.granted, number), append(h.slots, slot)
		},
	}, queryBy(member))
}

// calls returns calls; the oldest has waited for age.
func calls(age time.Duration, numbers ...int64) (calls []WaitingCall) {
	for i, number := range numbers {
		calls = append(calls, WaitingCall{number, time.Now().Add(time.Duration(i)*time.Second - age)})
	}
	return calls
}

func (h *home) want(what string, numbers ...int64) {
	h.t.Helper()
	assert.Require(h.t, slices.Equal(h.granted, numbers), what, "granted to", h.granted, numbers)
}

// A guest that got a slot stays out of the queue for as long as it is among the waiting
// calls, or until it is returned.
func TestGuestsAreGrantedSlots(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		bobs := h.guests("bob")
		bobs.Set(calls(10*time.Second, 7, 8))
		h.release(first, ran)
		h.want("a slot is free", 7)
		bobs.Set(calls(10*time.Second, 7, 8)) // announced again, before it left
		h.slots[0].Release()
		h.slots[0].Release()
		h.want("its slot is free", 7, 8)
		bobs.Return(7)
		bobs.Return(7)
		bobs.Return(99)
		h.slots[1].Release()
		h.want("it was returned", 7, 8, 7)
		bobs.Set(nil)
		h.slots[2].Release()
		if h.want("none waits", 7, 8, 7); h.inFlight() != 0 || h.waitCount.Load() != 0 {
			t.Errorf("%d in flight, %d wait", h.inFlight(), h.waitCount.Load())
		}
	})
}

// The machine's owner also comes first among guests, then the oldest call of all. A host
// that does not take the machine is skipped, and a guest is never refused.
func TestGuestsAreInOneOrder(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		h.guests("bob").Set(calls(10*time.Second, 7))
		w := h.join(queryBy("cid"), time.Now().Add(-5*time.Second))
		late := h.guests("bob")
		late.Set(calls(0, 9))
		late.Set(calls(20*time.Second, 9)) // the first announcement was late
		gone := h.guests("bob")
		gone.Set(calls(30*time.Second, 5))
		gone.Set(nil)
		h.guests("ann").Set(calls(0, 4))
		h.guests("eve").Set(calls(time.Minute, 66)) // the caller does not reach the machine
		h.release(first, ran)
		h.want("the owner's call", 4)
		h.slots[0].Release()
		h.want("then the oldest", 4, 9)
		h.away = true
		h.slots[1].Release()
		if h.want("the host takes none", 4, 9); got(w).reservation == nil {
			t.Error("a call of this hub waits though its turn has come")
		}
	})
}

// Waiting calls are announced: the first four of each cohort.
func TestAnnounceFirst(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		var all []*waiter
		for range 6 {
			all = append(all, h.join(queryBy("bob"), time.Now()))
			time.Sleep(time.Second)
		}
		last := func() Waiting { return h.announced[len(h.announced)-1] }
		if len(h.announced) != 4 || len(last().Calls) != 4 || last().Query.Caller != "bob" {
			t.Errorf("%d announcements, the last of %+v", len(h.announced), last())
		}
		h.leave(all[5])
		h.leave(all[0])
		if len(h.announced) != 5 || last().Calls[0].Number != all[1].number || len(last().Calls) != 4 {
			t.Errorf("%d announcements, the last of %+v", len(h.announced), last())
		}
		for _, w := range all[1:5] {
			h.leave(w)
		}
		if taken, waits := h.takeHeld(all[1].number, "box", 0, "hold"); taken || waits || len(last().Calls) != 0 {
			t.Errorf("%d calls still wait", len(last().Calls))
		}
		h.release(first, ran)
	})
}

// A slot that another node holds is taken for the waiting call, although this hub knows
// of no free slot.
func TestTakeHeld(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		far := *h.snapshot.Machine("box")
		far.Remote, far.Generation = true, 3
		h.snapshot = h.snapshot.WithMachine(&far)
		w := h.join(queryBy("bob"), time.Now())
		h.release(first, ran)
		if got(w).reservation != nil {
			t.Fatal("this hub granted a slot of a machine that is connected elsewhere")
		}
		q := queryBy("bob")
		if d := fleet.Route(h.refresh(&q), q); len(d.Candidates) != 1 {
			t.Fatalf("%d candidates for a later call", len(d.Candidates))
		} else if h.reserveFirst(d.Candidates, "m", q.Now) != nil {
			t.Error("a later call passed the one that waits for the machine")
		}
		if taken, waits := h.takeHeld(w.number, "box", 2, "hold"); taken || !waits {
			t.Errorf("by a tunnel that is not known: taken %t, waits %t", taken, waits)
		}
		if taken, _ := h.takeHeld(w.number, "box", 3, "hold"); !taken {
			t.Error("not taken")
		}
		if r := got(w).reservation; r == nil || r.hold != "hold" || h.inFlight() != 1 {
			t.Errorf("%+v", r)
		} else {
			h.release(r, ran)
		}
		if taken, waits := h.takeHeld(w.number, "box", 3, "hold"); taken || waits {
			t.Errorf("twice: taken %t, waits %t", taken, waits)
		}
	})
}
