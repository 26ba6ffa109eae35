package dispatch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// home is ann's machine at a node that has the calls of others in its queues.
type home struct {
	*oneMachine
	outcome   GrantOutcome // of each grant
	offered   []Grant
	announced []Waiting
}

// atHome runs a test in a bubble with a machine of one slot, in use by first.
func atHome(t *testing.T, test func(h *home, first *reservation)) {
	synctest.Test(t, func(t *testing.T) {
		h := &home{oneMachine: newScheduler(t, 1), outcome: GrantTaken}
		h.refresh = func(q *fleet.Query) *fleet.Snapshot { q.Now = time.Now(); return h.snapshot }
		h.enter("home", h)
		q := queryBy("ann")
		d := fleet.Route(h.refresh(&q), q)
		test(h, h.take(d.Candidates, "m", q.Now))
	})
}

// Waits implements Others.
func (h *home) Waits(w Waiting) { h.announced = append(h.announced, w) }

// Used implements Others.
func (h *home) Used(*fleet.Candidate) {}

// Sent implements Others.
func (h *home) Sent([]byte) {}

// Offer implements Others.
func (h *home) Offer(_ context.Context, _ string, g Grant) GrantOutcome {
	h.offered = append(h.offered, g)
	return h.outcome
}

// waits announces that calls of bob wait at a node, the oldest for so long.
func (h *home) waits(node string, age time.Duration, numbers ...int64) {
	w := Waiting{ID: 1, Member: "bob", Model: "m"}
	for i, number := range numbers {
		w.Calls = append(w.Calls, WaitingCall{Number: number, Arrived: time.Now().Add(time.Duration(i)*time.Second - age)})
	}
	h.onWaiting(node, false, []Waiting{w})
}

// calls returns the numbers of the calls that were offered a slot, in order.
func (h *home) calls() (numbers []int64) {
	synctest.Wait()
	for _, g := range h.offered {
		numbers = append(numbers, g.Call)
	}
	return numbers
}

func (h *home) want(what string, numbers ...int64) {
	h.t.Helper()
	got := h.calls()
	same := len(got) == len(numbers)
	for i := range numbers {
		same = same && got[i] == numbers[i]
	}
	if !same {
		h.t.Fatalf("%s: offered to %v, not to %v", what, got, numbers)
	}
}

// A slot that is taken belongs to the call that names its hold, once.
func TestGrantIsRedeemed(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		h.waits("away", 10*time.Second, 7, 8)
		h.release(first, ran)
		h.want("a slot is free", 7)
		h.waits("away", 10*time.Second, 7, 8) // announced again, before it left
		r := h.redeem(h.offered[0].Hold)
		if r == nil || h.redeem(h.offered[0].Hold) != nil || h.redeem("another") != nil {
			t.Fatal("a hold is redeemed once")
		}
		time.Sleep(2 * holdFor)
		h.want("the call has the slot", 7)
		h.release(r, ran)
		h.want("the call is done", 7, 8) // 7 is remembered for as long as it is announced
		h.waits("away", 10*time.Second, 8)
		time.Sleep(2 * holdFor)
		synctest.Wait()
		if h.counts.expired.Load() != 1 || h.inFlight() != 0 {
			t.Errorf("%d expired, %d in flight", h.counts.expired.Load(), h.inFlight())
		}
	})
}

// A slot whose call does not come is free again after a second: its entry is gone.
func TestGrantExpires(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		h.waits("away", 10*time.Second, 7)
		w := h.join(queryBy("cid"), time.Now())
		h.release(first, ran)
		h.want("a slot is free", 7)
		time.Sleep(holdFor - time.Millisecond)
		if synctest.Wait(); got(w).slot != nil {
			t.Fatal("the slot was not held")
		}
		time.Sleep(2 * time.Millisecond)
		if synctest.Wait(); got(w).slot == nil {
			t.Error("the slot is lost")
		}
	})
}

// A call that waits no longer costs a round trip: the next one gets the slot.
func TestGrantIsTooLate(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		h.outcome = GrantGone
		h.waits("away", 10*time.Second, 7, 8)
		w := h.join(queryBy("cid"), time.Now())
		h.release(first, ran)
		h.want("both are gone", 7, 8)
		if got(w).slot == nil {
			t.Error("the slot is lost")
		}
	})
}

// A node that declines, or does not answer, is not offered the machine for a second; its
// call keeps its place.
func TestGrantIsDeclined(t *testing.T) {
	for _, outcome := range []GrantOutcome{GrantDeclined, GrantLost} {
		atHome(t, func(h *home, first *reservation) {
			h.outcome = outcome
			h.waits("away", 10*time.Second, 7, 8)
			h.release(first, ran)
			h.want("the first is declined", 7)
			h.outcome = GrantTaken
			h.waits("other", 5*time.Second, 3)
			h.want("another node has it", 7, 3)
			r := h.redeem(h.offered[1].Hold)
			time.Sleep(pauseFor)
			synctest.Wait()
			h.release(r, ran)
			h.want("after a second", 7, 3, 7)
			h.redeem(h.offered[2].Hold)
		})
	}
}

// The machine's owner is first also from another node; a node that is gone waits no more.
func TestGrantOrder(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		h.waits("away", 10*time.Second, 7)
		h.waits("gone", 20*time.Second, 5)
		h.onWaiting("gone", true, nil)
		h.onWaiting("far", false, []Waiting{{ID: 9, Member: "ann", Model: "n", Calls: []WaitingCall{{Number: 4, Arrived: time.Now()}}}})
		h.release(first, ran)
		h.want("the owner's call", 4)
		h.release(h.redeem(h.offered[0].Hold), ran)
		h.want("then the oldest", 4, 7)
		h.redeem(h.offered[1].Hold)
	})
}

// What waits here is announced: the first four of those that are equal to routing.
func TestAnnounceFirst(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		var all []*waiter
		for range 6 {
			all = append(all, h.join(queryBy("bob"), time.Now()))
			time.Sleep(time.Second)
		}
		last := func() Waiting { return h.announced[len(h.announced)-1] }
		if len(h.announced) != 4 || len(last().Calls) != 4 || last().Member != "bob" {
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
		if n := len(last().Calls); n != 0 || h.accept(Grant{Call: all[1].number, Machine: "box"}) != GrantGone {
			t.Errorf("%d calls still wait", n)
		}
		h.release(first, ran)
	})
}

// A grant of another node is taken for the call that waits, though this node knows of no
// free slot.
func TestAcceptGrant(t *testing.T) {
	atHome(t, func(h *home, first *reservation) {
		far := *h.snapshot.Machine("box")
		far.Elsewhere, far.Generation = true, 3
		h.snapshot = h.snapshot.WithMachine(&far)
		w := h.join(queryBy("bob"), time.Now())
		h.release(first, ran)
		if got(w).slot != nil {
			t.Fatal("this node granted a slot of another one's machine")
		}
		q := queryBy("bob")
		if d := fleet.Route(h.refresh(&q), q); len(d.Candidates) != 1 {
			t.Fatalf("%d candidates for a later call", len(d.Candidates))
		} else if h.take(d.Candidates, "m", q.Now) != nil {
			t.Error("a later call passed the one that waits for the machine")
		}
		g := Grant{Call: w.number, Machine: "box", Generation: 2, Hold: "hold"}
		if out := h.accept(g); out != GrantDeclined {
			t.Errorf("a tunnel that it does not know: %d", out)
		}
		g.Generation = 3
		if out := h.accept(g); out != GrantTaken {
			t.Errorf("declined: %d", out)
		}
		if r := got(w).slot; r == nil || r.hold != "hold" || h.inFlight() != 1 {
			t.Errorf("%+v", r)
		} else {
			h.release(r, ran)
		}
		if out := h.accept(g); out != GrantGone {
			t.Errorf("twice: %d", out)
		}
	})
}
