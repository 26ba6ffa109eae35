package sim

import (
	"strings"
	"testing"
	"time"
)

// A member has a number of calls that run at once, on the member's own machines too,
// and a number that wait; other members have their own, and each ends with its call.
func TestCallsOfOneMember(t *testing.T) {
	both(t, func(w *world, stream bool) {
		w.stopHub()
		w.config.Running, w.config.Waiting = 2, 1
		w.startHub()
		ann, bob, _ := w.addShared(3)
		w.set(slow(10 * time.Second))
		call := func(by *member) *answer { return w.begin(ask{by: by, model: "m", stream: stream}) }
		bounded := func(says string) {
			w.t.Helper()
			a := w.do(ask{by: ann, model: "m", stream: stream})
			w.wantCode(a, "rate_limit_exceeded", "")
			if a.status != 429 || a.header.Get("Retry-After") == "" || !strings.Contains(a.message, says) || a.took() > 50*time.Millisecond {
				w.t.Fatal(a)
			}
		}
		first, second := call(ann), call(ann)
		w.begun(first)
		w.begun(second)
		bounded("2 calls running") // a slot is free
		other := call(bob)
		w.begun(other)
		waits := call(ann) // all slots are taken
		time.Sleep(time.Second)
		bounded("1 calls waiting")
		also := call(bob)
		time.Sleep(time.Second)
		first.quit()
		<-first.over
		time.Sleep(time.Second)
		w.on(waits)
		for _, a := range []*answer{second, other, waits, also} {
			<-a.over
			w.wantServed(a, 1)
		}
		for range 3 { // each end counted once
			one, two := call(ann), call(ann)
			w.begun(one)
			w.begun(two)
			bounded("2 calls running")
			<-one.over
			<-two.over
			w.wantServed(one, 1)
			w.wantServed(two, 1)
		}
		w.settled()
	})
}
