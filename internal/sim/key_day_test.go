package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// limitKey sets how many calls a day the member's key may make; 0: no limit.
func (w *world) limitKey(m *member, perDay int) {
	w.t.Helper()
	w.must(w.db.LimitOwnKey(w.t.Context(), m.ID, m.key.ID, perDay))
	for _, n := range w.nodes() {
		n.live.Settle(w.t.Context())
	}
}

// servedOf returns how many of the calls were served. The others must have been refused
// because of the key's limit.
func (w *world) servedOf(all []*answer) (served int) {
	w.t.Helper()
	for _, a := range all {
		<-a.over
		if a.served() {
			served++
			continue
		}
		w.wantCode(a, "rate_limit_exceeded", "")
		assert.Require(w.t, len(w.runs.of(a.tag)) == 0 && strings.Contains(a.message, "calls of the day are used up"), a)
	}
	return served
}

// A key with a limit makes so many calls a day, whatever runs at once. Calls that ran on no
// machine do not count, and neither a restart nor a change of the limit forgets any.
func TestKeyDay(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, _ := w.addBox(9)
		call := func() *answer { return w.begin(ask{by: ann, model: "m", stream: stream}) }
		spent := func(message string) {
			w.t.Helper()
			a := w.do(ask{by: ann, model: "m", stream: stream})
			w.wantCode(a, "rate_limit_exceeded", "")
			if a.status != 429 || a.message != message || a.header.Get("Retry-After") != "30" || a.header.Get("X-Should-Retry") != "false" {
				w.t.Fatal(a, a.header)
			}
			if why, _ := w.why(ann, a); why.Message != message || len(why.Decisions) != 0 || why.KeyID != ann.key.ID {
				w.t.Fatal(why)
			}
		}
		w.limitKey(ann, 5)
		for range 9 {
			w.wantCode(w.do(ask{by: ann, model: "nobody's"}), "model_not_found", "")
		}
		w.set(slow(10 * time.Second))
		var all []*answer
		for range 9 {
			all = append(all, call())
		}
		assert.Equal(w.t, w.servedOf(all), 5, "served of nine at once")
		const text = "this key's 5 calls of the day are used up; the next day begins at 00:00 UTC"
		spent(text)
		w.settled()

		w.stopHub()
		w.startHub()
		time.Sleep(time.Minute) // its machine connects again
		w.set(slow(0))
		spent(text)

		w.limitKey(ann, 6)
		w.wantServed(w.do(ask{by: ann, model: "m"}), 1)
		spent("this key's 6 calls of the day are used up; the next day begins at 00:00 UTC")
		w.limitKey(ann, 0)
		for range 3 {
			w.wantServed(w.do(ask{by: ann, model: "m"}), 1)
		}
		w.settled()
		w.limitKey(ann, 9) // 6 and 3 are 9
		spent("this key's 9 calls of the day are used up; the next day begins at 00:00 UTC")
		w.limitKey(ann, 1)
		spent("this key's call of the day is used up; the next day begins at 00:00 UTC")

		w.stopHub() // a hub that runs makes the day of the test long
		midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		time.Sleep(time.Until(midnight.Add(-2 * time.Minute)))
		w.startHub()
		time.Sleep(time.Until(midnight.Add(-10 * time.Second)))
		a := w.do(ask{by: ann, model: "m"})
		w.wantCode(a, "rate_limit_exceeded", "")
		assert.Equal(w.t, a.header.Get("Retry-After"), "10", "the time to the next day")
		time.Sleep(10 * time.Second)
		w.wantServed(w.do(ask{by: ann, model: "m"}), 1)
		w.settled()
	})
}

// A call that waits has its place among the calls of the day, and gives it back if no
// machine runs it.
func TestKeyDayOfWaiting(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob, _ := w.addShared(1)
		w.limitKey(bob, 1)
		w.set(slow(50 * time.Second))
		first := w.begin(ask{by: ann, model: "m"})
		w.begun(first)
		waits := w.begin(ask{by: bob, model: "m", prefer: "wait=5"})
		time.Sleep(time.Second)
		w.wantCode(w.do(ask{by: bob, model: "m"}), "rate_limit_exceeded", "")
		<-waits.over
		w.wantCode(waits, "CAPACITY_FULL", "wait_elapsed")
		w.wantServed(w.do(ask{by: bob, model: "m"}), 1)
		w.wantCode(w.do(ask{by: bob, model: "m"}), "rate_limit_exceeded", "")
		w.settled()
	})
}

// A key has its calls of the day once, whatever nodes they come to, also at one that starts
// while some of them run.
func TestPeersKeyDay(t *testing.T) {
	inCluster(t, 3, func(w *world, seats []*seat) {
		ann := w.addMember("ann")
		w.addMachine(ann, "box", 20, "m").moveTo(seats[0])
		w.limitKey(ann, 12)
		time.Sleep(40 * time.Second) // the nodes started a while ago
		w.set(slow(20 * time.Second))
		round := func(calls, want int) {
			w.t.Helper()
			var all []*answer
			for i := range calls {
				all = append(all, w.begin(ask{by: ann, model: "m", via: seats[i%3]}))
				time.Sleep(50 * time.Millisecond)
			}
			assert.Equal(w.t, w.servedOf(all), want, "served of", calls)
			w.settled()
		}
		round(4, 4)
		var all []*answer
		for i := range 4 {
			all = append(all, w.begin(ask{by: ann, model: "m", via: seats[i%2]}))
			w.begun(all[i])
		}
		seats[2].Load().stop()
		w.startNode("hub3", w.db)
		time.Sleep(10 * time.Second)
		for i := range 6 { // 8 have begun, of which the new node reads 4 from the database
			all = append(all, w.begin(ask{by: ann, model: "m", via: seats[2]}))
			time.Sleep(time.Duration(i) * time.Millisecond)
		}
		assert.Equal(w.t, w.servedOf(all), 8, "served before and after the start")
		w.settled()
		round(6, 0)
		w.limitKey(ann, 16)
		round(9, 4)

		// At the same moment each node may give away what is left.
		w.limitKey(ann, 18)
		all = nil
		for i := range 9 {
			all = append(all, w.begin(ask{by: ann, model: "m", via: seats[i%3]}))
		}
		served := w.servedOf(all)
		assert.That(w.t, served >= 2 && served <= 6, fmt.Sprint(served, " served of 9 at once, with 2 left"))
		w.settled()
		round(6, 0)
	})
}
