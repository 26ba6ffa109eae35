package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/kith/kith/internal/dispatch"
)

// grants is what the nodes offered to calls of other nodes.
func (w *world) grants() (all dispatch.Grants) {
	for _, n := range w.nodes() {
		g := n.hub.Grants()
		all.Offered += g.Offered
		all.Taken += g.Taken
		all.Gone += g.Gone
		all.Declined += g.Declined
		all.Lost += g.Lost
		all.Expired += g.Expired
	}
	return all
}

// The calls of several nodes wait for a machine in one order, whichever node it is
// connected to, and no call that comes later passes one that waits.
func TestPeersQueueIsOne(t *testing.T) {
	for home := range 3 {
		inCluster(t, 3, func(w *world, seats []*seat) {
			ann, bob, cid := w.addMember("ann"), w.addMember("bob"), w.addMember("cid")
			box := w.addMachine(ann, "box", 1, "m")
			w.share(ann, bob)
			w.share(ann, cid)
			box.moveTo(seats[home])
			time.Sleep(5 * time.Second)
			w.set(slow(10 * time.Second))
			var all []*answer
			for i := range 6 {
				by := cid
				if i%2 == 1 {
					by = bob
				}
				all = append(all, w.begin(ask{by: by, model: "m", stream: true, via: seats[i%3]}))
				time.Sleep(time.Second)
			}
			for i := range 70 {
				all = append(all, w.begin(ask{by: bob, model: "m", prefer: "wait=2", via: seats[i%3]}))
				time.Sleep(100 * time.Millisecond)
			}
			var order, ran []string
			for i, a := range all {
				<-a.over
				if i < 6 {
					w.wantServed(a, 1)
					order = append(order, a.tag)
				} else {
					w.wantCode(a, "CAPACITY_FULL", "wait_elapsed")
				}
			}
			for _, r := range w.runs.all {
				ran = append(ran, r.call)
			}
			if !slices.Equal(ran, order) {
				w.t.Errorf("ran %v, asked %v", ran, order)
			}
			if g := w.grants(); g.Offered != g.Taken || g.Taken < 3 || g.Expired != 0 {
				w.t.Errorf("%+v", g)
			}
			w.settled()
		})
	}
}

// A machine's owner goes ahead of others on that machine also from another node.
func TestPeersOwnerGoesAhead(t *testing.T) {
	inCluster(t, 2, func(w *world, seats []*seat) {
		ann, bob := w.addMember("ann"), w.addMember("bob")
		box := w.addMachine(ann, "box", 1, "m")
		w.share(ann, bob)
		box.moveTo(seats[0])
		time.Sleep(5 * time.Second)
		w.set(slow(10 * time.Second))
		w.begun(w.begin(ask{by: bob, model: "m", via: seats[0]}))
		var others []*answer
		for _, via := range seats {
			time.Sleep(time.Second)
			others = append(others, w.begin(ask{by: bob, model: "m", via: via}))
		}
		time.Sleep(time.Second)
		owners := w.begin(ask{by: ann, model: "m", via: seats[1]})
		<-owners.over
		w.wantServed(owners, 1)
		for _, a := range others {
			<-a.over
			w.wantServed(a, 1)
			if a.ended.Before(owners.ended) {
				w.t.Errorf("before the owner: %s", a)
			}
		}
	})
}
