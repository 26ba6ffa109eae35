package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// manyWait returns a scheduler with waiting calls for one model, distributed evenly over
// the callers. Each caller reaches 200 busy machines that offer it, through an open
// group; box is one of them.
func manyWait(b *testing.B, waiters, callers int) (r *scheduler, all []*waiter, box *reservation) {
	b.Helper()
	const machines = 200
	now := time.Now()
	s := fleet.NewSnapshot()
	var members []fleet.MemberID
	for i := range machines {
		id := fmt.Sprintf("%08d-0000-7000-8000-%012d", i%97, i)
		members = append(members, fleet.MemberID("mem_"+id))
		s = s.WithMachine(&fleet.Machine{
			ID: fleet.MachineID("mch_" + id), Owner: members[i], Online: true, Slots: 1,
			Offers: []fleet.Offer{{ID: "popular", Families: fleet.Families(fleet.Chat)}},
		})
	}
	for i := range callers {
		members = append(members, fleet.MemberID(fmt.Sprintf("mem_%08d-0000-7000-9000-%012d", i%97, i)))
	}
	s = s.WithGroup(&fleet.Group{ID: "grp_1", Open: true, Members: members})
	r = &scheduler{}
	benchRoom(r, s)
	for m := range s.Machines() {
		if h := reserve(fleet.Candidate{Machine: m, Offer: &m.Offers[0], Class: fleet.Own}, "popular", now); h != nil {
			box = h
		}
	}
	for i := range waiters {
		all = append(all, r.join(fleet.Query{Caller: members[machines+i%callers], Model: "popular"}, now.Add(time.Duration(i))))
	}
	return r, all, box
}

func benchRoom(r *scheduler, s *fleet.Snapshot) {
	r.activity = func() {}
	r.refresh = func(a *fleet.Query) *fleet.Snapshot {
		a.Now = time.Now()
		return s
	}
}

// BenchmarkWaiters10000 measures the cost of 10,000 waiting calls for one model: for a
// slot that becomes free and is granted (the call then joins again at the end), for a
// free slot that no call may use, for the tick of each second, for a decision about all
// calls, for a join and leave, and for a report of a position.
func BenchmarkWaiters10000(b *testing.B) {
	const waiters = 10_000
	for _, callers := range []int{100, 1_000, waiters} {
		each := func(name string, run func(b *testing.B, r *scheduler, all []*waiter, box *reservation)) {
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
				r, all, box := manyWait(b, waiters, callers)
				b.ReportAllocs()
				b.ResetTimer()
				run(b, r, all, box)
			})
		}
		each("wake", func(b *testing.B, r *scheduler, all []*waiter, box *reservation) {
			for i := 0; b.Loop(); i++ {
				r.release(box, ran)
				w := all[i%waiters]
				box = got(w).reservation
				if box == nil {
					b.Fatal("who is oldest was passed over")
				}
				all[i%waiters] = r.join(queryOfWaiter(w), w.arrived.Add(waiters))
			}
		})
		each("a slot of no use", func(b *testing.B, r *scheduler, _ []*waiter, box *reservation) {
			m := *box.Machine // its owner keeps it out of all groups
			m.KeptOut = true
			benchRoom(r, r.refresh(new(fleet.Query)).WithMachine(&m))
			for b.Loop() {
				again := reserve(box.Candidate, "popular", time.Now())
				if again == nil {
					again = &reservation{Candidate: box.Candidate, model: "popular"}
				}
				r.release(again, ran)
			}
		})
		each("tick", func(b *testing.B, r *scheduler, _ []*waiter, _ *reservation) {
			now := time.Now()
			r.tick(now) // the first tick of a minute decides for all
			b.ResetTimer()
			for b.Loop() {
				r.tick(now)
			}
		})
		each("recheck", func(b *testing.B, r *scheduler, _ []*waiter, _ *reservation) {
			for b.Loop() {
				r.onChange(anything)
			}
		})
		concerns := func(name string, change func(w *waiter) fleet.Change) {
			each(name, func(b *testing.B, r *scheduler, all []*waiter, _ *reservation) {
				s := r.refresh(new(fleet.Query))
				for i := 0; b.Loop(); i++ {
					r.onChange(fleet.AffectedBy(s, s, []fleet.Change{change(all[i*7919%waiters])}))
				}
			})
		}
		concerns("a key", func(w *waiter) fleet.Change { return fleet.Change{Kind: fleet.KeyChanged, ID: "key"} })
		concerns("a member's shares", func(w *waiter) fleet.Change {
			return fleet.Change{Kind: fleet.SharesChanged, ID: string(w.cohort.query.Caller)}
		})
		each("join and leave", func(b *testing.B, r *scheduler, all []*waiter, _ *reservation) {
			for i := 0; b.Loop(); i++ {
				w := all[i*7919%waiters]
				r.leave(w)
				all[i*7919%waiters] = r.join(queryOfWaiter(w), w.arrived)
			}
		})
		each("position", func(b *testing.B, r *scheduler, all []*waiter, _ *reservation) {
			for i := 0; b.Loop(); i++ {
				if at := i * 7919 % waiters; r.position(all[at]) != at {
					b.Fatal("not its position")
				}
			}
		})
	}
}

func queryOfWaiter(w *waiter) fleet.Query { return w.cohort.query }
