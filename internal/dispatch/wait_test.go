package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
)

// On a machine its owner's calls are served first, in the order of arrival.
func TestSchedulerOwnerGoesFirst(t *testing.T) {
	r := newScheduler(t, 1)
	h := r.newcomer("bob")
	want := []*waiter{2: r.wait("bob", 0), 3: r.wait("cid", 1), 0: r.wait("ann", 2), 1: nil}
	want[1] = r.join(fleet.Query{Caller: "ann", Model: "n"}, noon.Add(3)) // for another model of the machine
	for i, w := range want {
		r.release(h, ran)
		if h = got(w).reservation; h == nil {
			t.Fatalf("waiter %d was passed over", i)
		}
		assert.Equal(t, r.position(w), 0, "waiter", i, "was served and")
	}
}

// A machine serves the oldest call first, regardless of the models that the calls wait
// for and of their cohorts.
func TestSchedulerOldestOfTheMachine(t *testing.T) {
	r := newScheduler(t, 1)
	h := r.newcomer("ann")
	var order []*waiter
	for i, query := range []fleet.Query{
		{Caller: "bob", Model: "m"}, {Caller: "cid", Model: "n"}, {Caller: "bob", Model: "m", Reach: fleet.OwnAndShared},
		{Caller: "bob", Model: "n"}, {Caller: "bob", Model: "m", Avoid: []fleet.MachineID{"other"}, Gone: true}, {Caller: "cid", Model: "n"},
	} {
		order = append(order, r.join(query, noon.Add(time.Duration(i))))
	}
	for i, w := range order {
		r.release(h, ran)
		if h = got(w).reservation; h == nil {
			t.Fatalf("waiter %d was passed over", i)
		}
	}
}

// A place under a share's limits that becomes free on one machine can be used on another.
func TestSchedulerSharesPlaceElsewhere(t *testing.T) {
	r := newScheduler(t, 1)
	r.snapshot = r.snapshot.WithMachine(&fleet.Machine{
		ID: "more", Owner: "ann", Online: true, Slots: 1, Offers: []fleet.Offer{{ID: "x", Families: fleet.Families(fleet.Chat)}},
	}).WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{Concurrent: 1}}})
	h := r.newcomer("bob")
	w := r.join(fleet.Query{Caller: "bob", Model: "x"}, noon)
	if got(w).reservation != nil {
		t.Fatal("over the share's limit")
	}
	r.release(h, ran)
	assert.That(t, got(w).reservation != nil, "waits on")
}

// So can a place under the limits of a group, by any waiting member.
func TestSchedulerGroupsPlaceElsewhere(t *testing.T) {
	r := newScheduler(t, 2)
	limits := &fleet.Limits{Concurrent: 1}
	r.snapshot = r.snapshot.WithMachine(&fleet.Machine{
		ID: "more", Owner: "ann", Online: true, Slots: 1, Offers: []fleet.Offer{{ID: "x", Families: fleet.Families(fleet.Chat)}},
	}).WithGroup(&fleet.Group{ID: "g", Members: []fleet.MemberID{"ann", "dan", "eve"}, Limits: map[fleet.MemberID]*fleet.Limits{"ann": limits}})
	h := r.newcomer("dan")
	if h == nil || r.newcomer("eve") != nil || r.newcomer("dan") != nil {
		t.Fatal("the group's limit is not one for all its members together")
	}
	w := r.join(fleet.Query{Caller: "eve", Model: "x"}, noon)
	if got(w).reservation != nil {
		t.Fatal("over the group's limit")
	}
	r.release(h, ran)
	if g := got(w); g.reservation == nil || g.reservation.GroupID() != "g" {
		t.Error("waits on")
	}
}

// So can a place in a share's day, which a call that no machine accepted returns.
func TestSchedulerSharesDayElsewhere(t *testing.T) {
	r := newScheduler(t, 1)
	offers := []fleet.Offer{{ID: "x", Families: fleet.Families(fleet.Chat)}}
	mine := &fleet.Machine{ID: "mine", Owner: "bob", Online: true, Slots: 1, Offers: offers}
	r.snapshot = r.snapshot.WithMachine(mine).WithMachine(&fleet.Machine{
		ID: "more", Owner: "ann", Online: true, Slots: 1, Offers: slices.Clone(offers),
	}).WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{PerDay: 1}}})
	h := r.newcomer("bob")
	mine.Reserve("x", false) // busy: something to wait for
	w := r.join(fleet.Query{Caller: "bob", Model: "x"}, noon)
	assert.Require(t, got(w) == (waitResult{}), "does not wait")
	r.release(h, unused)
	if g := got(w); g.reservation == nil || g.reservation.Machine.ID != "more" || g.reservation.Limits.Load.Started(noon) != 1 {
		t.Error("waits on, or does not count in the day of the decision")
	}
}

// There are no notifications of these: a new minute, a reach that can be confirmed again,
// a machine that no longer offers the model.
func TestSchedulerTicks(t *testing.T) {
	r := newScheduler(t, 1)
	now := noon
	next := func(d time.Duration) { now = now.Add(d); r.tick(now) }
	box := *r.snapshot.Machine("box")

	h := r.newcomer("ann")
	w := r.wait("bob", 0)
	next(0)
	r.unconfirmed = true
	r.release(h, ran)
	next(time.Second)
	assert.Require(t, got(w) == (waitResult{}), "reach was not confirmed")
	r.unconfirmed = false
	if next(time.Second); got(w).reservation == nil {
		t.Fatal("reach is confirmed: waits on")
	}

	w = r.wait("bob", 0)
	r.snapshot = r.snapshot.WithShares("bob", nil) // as if the hours had ended
	if next(time.Second); got(w) != (waitResult{}) {
		t.Error("routed again within the minute")
	}
	if next(time.Minute); got(w).refusal == nil {
		t.Error("a new minute: waits on")
	}

	w = r.wait("cid", 0)
	box.Offers = box.Offers[1:]
	r.snapshot = r.snapshot.WithMachine(&box)
	r.onMachine(&box)
	evesOwn := fleet.Machine{ID: "other", Owner: "eve", Online: true, Slots: 1, Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}}}
	r.snapshot = r.snapshot.WithMachine(&evesOwn) // the same number of machines offer it
	r.onMachine(&evesOwn)
	if next(time.Second); got(w).refusal == nil {
		t.Error("no machine that it could use offers it: waits on")
	}
}

// crowd is a scheduler with random members and machines.
type crowd struct {
	oneMachine
	rng     *rand.Rand
	proven  bool // every machine has served every model before
	running []*reservation
	waiters []*waiter
}

const crowdMembers, crowdMachines = 6, 4

func newCrowd(t *testing.T, seed uint64) *crowd {
	c := &crowd{rng: rand.New(rand.NewPCG(seed, 7)), proven: seed%2 == 0}
	c.t, c.snapshot = t, fleet.NewSnapshot()
	c.activity = func() {}
	c.refresh = func(a *fleet.Query) *fleet.Snapshot {
		a.Now, a.Draw = noon, c.rng.Uint64()
		return c.snapshot
	}
	for i := range crowdMachines {
		m := &fleet.Machine{ID: fleet.MachineID(fmt.Sprint("box", i)), Owner: c.member(), Online: true, Slots: 1 + c.rng.IntN(3)}
		for _, model := range []fleet.ModelID{"m", "n", "o"} {
			if c.rng.IntN(3) > 0 {
				m.Offers = append(m.Offers, fleet.Offer{ID: model, Families: fleet.Families(fleet.Chat)})
			}
		}
		c.snapshot = c.snapshot.WithMachine(m)
		for i := range m.Offers {
			if c.proven {
				m.Offers[i].Load.RaiseStanding(fleet.Circle{Class: fleet.Grouped, Group: "g"})
			}
		}
	}
	c.snapshot = c.snapshot.WithGroup(&fleet.Group{ID: "g", Members: []fleet.MemberID{c.member(), c.member(), c.member()}})
	for range crowdMembers {
		c.reshare()
	}
	return c
}

func (c *crowd) member() fleet.MemberID { return fleet.MemberID(rune('a' + c.rng.IntN(crowdMembers))) }

func (c *crowd) reshare() (member fleet.MemberID) {
	member = c.member()
	var shares []*fleet.Share
	for range c.rng.IntN(3) {
		owner := c.member()
		shares = append(shares, &fleet.Share{ID: fleet.ShareID(owner + member), Owner: owner, Member: member})
	}
	c.snapshot = c.snapshot.WithShares(member, shares)
	return member
}

func (c *crowd) query() fleet.Query {
	a := fleet.Query{Caller: c.member(), Model: []fleet.ModelID{"m", "n", "o"}[c.rng.IntN(3)], Reach: fleet.KeyReach(c.rng.IntN(3))}
	if c.rng.IntN(4) == 0 {
		a.Avoid, a.Gone = []fleet.MachineID{"box0"}, true
	}
	return a
}

// call does what dispatch does with a new call.
func (c *crowd) call() {
	query := c.query()
	known := c.refresh(&query)
	d := fleet.Route(known, query)
	if d.Verdict == fleet.Try {
		if h := c.reserveFirst(d.Candidates, query.Model, query.Now); h != nil {
			c.running = append(c.running, h)
			return
		}
	}
	if d.Verdict != fleet.Refuse {
		arrived := noon.Add(time.Duration(c.rng.IntN(1000))) // a call that tried before keeps its place
		c.waiters = append(c.waiters, c.join(query, arrived))
	}
}

// step does one random thing.
func (c *crowd) step() string {
	switch n := c.rng.IntN(20); {
	case n < 9:
		c.call()
		return "call"
	case n < 16 && len(c.running) > 0:
		i := c.rng.IntN(len(c.running))
		c.release(c.running[i], ran)
		c.running = slices.Delete(c.running, i, i+1)
		return "release"
	case n < 17 && len(c.waiters) > 0:
		i := c.rng.IntN(len(c.waiters))
		if _, ok := c.leave(c.waiters[i]); ok {
			c.t.Fatal("a result that was not read")
		}
		c.waiters = slices.Delete(c.waiters, i, i+1)
		return "leave"
	case n < 18:
		before := c.snapshot
		member := c.reshare()
		c.onChange(fleet.AffectedBy(before, c.snapshot, []fleet.Change{{Kind: fleet.SharesChanged, ID: string(member)}}))
		return "reshare"
	default:
		m := *c.snapshot.Machine(fleet.MachineID(fmt.Sprint("box", c.rng.IntN(crowdMachines))))
		m.Online, m.Paused, m.Slots = c.rng.IntN(4) > 0, c.rng.IntN(4) == 0, 1+c.rng.IntN(3)
		c.snapshot = c.snapshot.WithMachine(&m)
		c.onMachine(&m)
		return "changed"
	}
}

// could reports whether the waiter could use the machine if it had a free slot. Through a
// group, a machine that has not served yet runs only one call, regardless of its free
// slots.
func (c *crowd) could(w *waiter, id fleet.MachineID) bool {
	query := w.cohort.query
	query.Now = noon
	seen, ok := fleet.StateOf(c.snapshot, &query, c.snapshot.Machine(id))
	return ok && seen.State >= fleet.Busy && (c.proven || seen.Class != fleet.Grouped)
}

// check checks the result of a step: no call waits that could be served or must be
// refused, and no call was served before one that arrived earlier, except an owner's on
// the owner's machine.
func (c *crowd) check(what string) {
	c.t.Helper()
	var served []*waiter
	var by []*reservation
	waiting := c.waiters[:0]
	for _, w := range c.waiters {
		switch g := got(w); {
		case g.reservation != nil:
			served, by = append(served, w), append(by, g.reservation)
		case g.refusal == nil:
			waiting = append(waiting, w)
		}
	}
	c.waiters, c.running = waiting, append(c.running, by...)
	for _, w := range waiting {
		query := w.cohort.query
		known := c.refresh(&query)
		if d := fleet.Route(known, query); d.Verdict != fleet.Wait {
			c.t.Fatalf("after %s: %+v waits: %s, row %d", what, query, d.Verdict, d.Row)
		}
		before := 0
		for _, other := range waiting {
			if other.cohort.query.Model == query.Model && other.before(w) {
				before++
			}
		}
		if n := c.position(w); n != before {
			c.t.Fatalf("after %s: %d ahead, not %d", what, n, before)
		}
		for i, s := range served {
			m := by[i].Machine
			owner, own := w.cohort.query.Caller == m.Owner, s.cohort.query.Caller == m.Owner
			if c.could(w, m.ID) && (owner && !own || owner == own && w.before(s)) {
				c.t.Fatalf("after %s: %+v was passed by %+v on %s", what, w.cohort.query, s.cohort.query, m.ID)
			}
		}
	}
	if n := c.scheduler.waitCount.Load(); int(n) != len(waiting) {
		c.t.Fatalf("after %s: %d wait, not %d", what, n, len(waiting))
	}
}

// In random worlds no call is skipped or forgotten.
func TestSchedulerIsFair(t *testing.T) {
	for seed := range uint64(300) {
		c := newCrowd(t, seed)
		for range 150 {
			c.check(c.step())
		}
		for len(c.running) > 0 {
			c.release(c.running[0], ran)
			c.running = c.running[1:]
			c.check("the end")
		}
	}
}

// Calls arrive, wait, disconnect and end all at once: in a bubble, a lost wake-up is a
// deadlock.
func TestSchedulerLosesNoWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newScheduler(t, 2)
		r.activity = func() {}
		r.refresh = func(a *fleet.Query) *fleet.Snapshot {
			a.Now = noon
			return r.snapshot
		}
		var all sync.WaitGroup
		for i := range 32 {
			caller := []fleet.MemberID{"ann", "bob", "cid"}[i%3]
			model := []fleet.ModelID{"m", "n"}[i%2]
			all.Go(func() {
				for n := range 300 {
					r.serveOne(fleet.Query{Caller: caller, Model: model}, n%5 == i%5)
				}
			})
		}
		all.Wait()
		if r.inFlight() != 0 || r.waitCount.Load() != 0 || len(r.queues) != 0 {
			t.Errorf("left over: in flight %d, waiting %d", r.inFlight(), r.waitCount.Load())
		}
	})
}

// serveOne serves one call from its arrival to its end. If hasty is set, it leaves
// instead of waiting.
func (r *oneMachine) serveOne(query fleet.Query, hasty bool) {
	arrived := time.Now()
	known := r.refresh(&query)
	d := fleet.Route(known, query)
	h := r.reserveFirst(d.Candidates, query.Model, query.Now)
	if h == nil {
		w := r.join(query, arrived)
		if hasty {
			runtime.Gosched()
			g, _ := r.leave(w)
			h = g.reservation
		} else {
			h = (<-w.result).reservation
		}
	}
	runtime.Gosched()
	if h != nil {
		r.release(h, ran)
	}
}

// 5,000 calls wait for a model with 100 slots becoming free a second. They are served in
// the order of arrival or refused at their deadline, and each knows its position. Under
// the race detector, which supports at most 8,128 goroutines and can crash with fewer,
// 1,000 wait.
func TestThousandsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiters := 5_000
		if testing.Short() {
			waiters = 1_000
		}
		const callers = 500
		d := &Dispatcher{cfg: Config{Registry: registry.New(registry.Config{}), Draw: rand.Uint64}}
		machine := &fleet.Machine{ID: "box", Owner: "ann", Online: true, Slots: 100, Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}}}
		snapshot := fleet.NewSnapshot().WithMachine(machine)
		members := []fleet.MemberID{}
		for i := range callers {
			members = append(members, fleet.MemberID(fmt.Sprint("member", i)))
		}
		snapshot = snapshot.WithGroup(&fleet.Group{ID: "g", Members: append(members, "ann")})
		d.scheduler.activity = func() {}
		d.scheduler.refresh = func(a *fleet.Query) *fleet.Snapshot {
			a.Now = time.Now()
			return snapshot
		}
		var running []*reservation
		for range machine.Slots {
			query := fleet.Query{Caller: "ann", Model: "m"}
			known := d.scheduler.refresh(&query)
			running = append(running, d.scheduler.reserveFirst(fleet.Route(known, query).Candidates, "m", query.Now))
		}

		var mu sync.Mutex
		var order []int
		elapsed := 0
		var all sync.WaitGroup
		for i := range waiters {
			limit := time.Duration(1+i%60) * time.Second
			reports := 0
			call := &gateway.Call{Model: "m", Arrived: time.Now(), Waiting: func(ahead int, left time.Duration) {
				if reports++; reports == 1 && (ahead != i || left != limit) {
					t.Errorf("waiter %d: %d ahead, %s left", i, ahead, left)
				}
			}}
			c := &activeCall{d: d, call: call, query: fleet.Query{Caller: members[i%callers], Model: "m"}, deadline: call.Arrived.Add(limit)}
			w := d.scheduler.join(c.query, call.Arrived)
			all.Go(func() {
				g, err := c.await(context.Background(), w)
				late := time.Since(c.deadline)
				mu.Lock()
				defer mu.Unlock()
				if g.reservation != nil {
					order, running = append(order, i), append(running, g.reservation)
				} else {
					elapsed++
				}
				if late > 500*time.Millisecond || g.reservation == nil && late < 0 {
					t.Errorf("waiter %d: %+v, %v, %s after its deadline", i, g, err, late)
				}
			})
		}
		synctest.Wait()
		for d.scheduler.waitCount.Load() > 0 {
			time.Sleep(10*time.Millisecond + 1) // never at the instant of a deadline
			mu.Lock()
			h := running[0]
			running = running[1:]
			mu.Unlock()
			d.scheduler.release(h, ran)
			synctest.Wait() // order is the order of grants
		}
		all.Wait()
		if !slices.IsSorted(order) || len(order)+elapsed != waiters || len(order) < waiters/5 {
			t.Errorf("%d served, in order: %t; %d waited in vain", len(order), slices.IsSorted(order), elapsed)
		}
	})
}

// A cohort is refused together, each call with the same fault.
func TestSchedulerRefusesACohort(t *testing.T) {
	r := newScheduler(t, 1)
	r.newcomer("ann")
	var all []*waiter
	for i := range 5 {
		all = append(all, r.wait("bob", time.Duration(i)))
	}
	stays := r.wait("cid", 0)
	box := *r.snapshot.Machine("box")
	box.Paused = true
	r.snapshot = r.snapshot.WithMachine(&box)
	r.onMachine(&box)
	for _, w := range append(all, stays) {
		if g := got(w); g.refusal == nil || g.refusal.Code != fault.CascadeExhausted {
			t.Errorf("%+v", g)
		}
	}
	assert.That(t, r.waitCount.Load() == 0 && len(r.queues) == 0, "left over")
}
