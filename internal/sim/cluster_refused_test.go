package sim

import (
	"testing"
	"time"
)

// A call through the home of its machine ends as it would at the home: what the home
// knows before the entry does is no attempt of the call (spec/peers.md#news). Of the calls
// that wait for a machine whose engine dies, those that have its two slots find that out, and two again 200 ms later.
// The others wait on, and are not sent to it one after another.
func TestPeersHomeKnowsFirst(t *testing.T) {
	for _, stream := range []bool{true, false} {
		for v, where := range []string{"through the home", "at the home"} {
			inCluster(t, 2, func(w *world, seats []*seat) {
				ann, box := w.addBox(2)
				box.moveTo(seats[1])
				via := seats[v]
				time.Sleep(30 * time.Second)
				w.wantServed(w.do(ask{by: ann, model: "m", via: via}), 1)
				time.Sleep(5 * time.Second)
				w.set(slow(300 * time.Millisecond))
				time.AfterFunc(1013*time.Millisecond, func() { box.setDown(true) })
				time.AfterFunc(3017*time.Millisecond, func() { box.setDown(false) })
				var all []*answer
				for range 40 {
					all = append(all, w.begin(ask{by: ann, model: "m", stream: stream, via: via}))
					time.Sleep(50 * time.Millisecond)
				}
				refused := 0
				for _, a := range all {
					<-a.over
					if a.code == "CAPACITY_FULL" {
						refused++
					} else if !a.served() && a.code != "model_not_found" { // the daemon withdrew it
						t.Errorf("%s: %s", where, a)
					}
				}
				if refused > 4 { // two slots, twice
					t.Errorf("%s, stream %v: %d calls were refused", where, stream, refused)
				}
			})
		}
	}
}

// A machine that flaps counts as offline at every node, not only at its home.
func TestPeersFlapping(t *testing.T) {
	inCluster(t, 2, func(w *world, seats []*seat) {
		ann, box := w.addBox(1)
		box.moveTo(seats[1])
		time.Sleep(2 * time.Minute)
		for range 5 {
			box.cut()
			time.Sleep(5 * time.Second)
		}
		for _, via := range seats {
			w.wantCode(w.do(ask{by: ann, model: "m", via: via}), "machine_offline", "")
		}
		time.Sleep(time.Minute)
		for _, via := range seats {
			w.wantServed(w.do(ask{by: ann, model: "m", via: via}), 1)
		}
	})
}
