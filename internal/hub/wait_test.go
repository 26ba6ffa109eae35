package hub

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

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
)

// A machine's owner goes ahead of others on that machine, in their own order.
func TestRoomOwnerGoesFirst(t *testing.T) {
	r := newRoom(t, 1)
	h := r.newcomer("bob")
	want := []*waiter{2: r.wait("bob", 0), 3: r.wait("cid", 1), 0: r.wait("ann", 2), 1: nil}
	want[1] = r.join(fleet.Query{Caller: "ann", Model: "n"}, noon.Add(3)) // for another model of the machine
	for i, w := range want {
		r.release(h, true)
		if h = got(w).held; h == nil {
			t.Fatalf("waiter %d was passed over", i)
		}
		if n := r.ahead(w); n != 0 {
			t.Errorf("waiter %d was served and has %d ahead", i, n)
		}
	}
}

// The oldest goes first on a machine, whatever model of it they wait for, and
// however much alike others are.
func TestRoomOldestOfTheMachine(t *testing.T) {
	r := newRoom(t, 1)
	h := r.newcomer("ann")
	var order []*waiter
	for i, ask := range []fleet.Query{
		{Caller: "bob", Model: "m"}, {Caller: "cid", Model: "n"}, {Caller: "bob", Model: "m", Narrow: fleet.OwnAndShared},
		{Caller: "bob", Model: "n"}, {Caller: "bob", Model: "m", Avoid: []fleet.MachineID{"other"}, Gone: true}, {Caller: "cid", Model: "n"},
	} {
		order = append(order, r.join(ask, noon.Add(time.Duration(i))))
	}
	for i, w := range order {
		r.release(h, true)
		if h = got(w).held; h == nil {
			t.Fatalf("waiter %d was passed over", i)
		}
	}
}

// A place in a share that comes free on one machine serves on another.
func TestRoomSharesPlaceElsewhere(t *testing.T) {
	r := newRoom(t, 1)
	r.snapshot = r.snapshot.WithMachine(&fleet.Machine{
		ID: "more", Owner: "ann", Online: true, Slots: 1, Offers: []fleet.Offer{{ID: "x", Families: fleet.Families(fleet.Chat)}},
	}).WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{Concurrent: 1}}})
	h := r.newcomer("bob")
	w := r.join(fleet.Query{Caller: "bob", Model: "x"}, noon)
	if got(w).held != nil {
		t.Fatal("over the share's limit")
	}
	r.release(h, true)
	if got(w).held == nil {
		t.Error("waits on")
	}
}

// So does a place in the limits of a group, which serves whichever member waits.
func TestRoomGroupsPlaceElsewhere(t *testing.T) {
	r := newRoom(t, 2)
	limits := &fleet.Limits{Concurrent: 1}
	r.snapshot = r.snapshot.WithMachine(&fleet.Machine{
		ID: "more", Owner: "ann", Online: true, Slots: 1, Offers: []fleet.Offer{{ID: "x", Families: fleet.Families(fleet.Chat)}},
	}).WithGroup(&fleet.Group{ID: "g", Members: []fleet.MemberID{"ann", "dan", "eve"}, Limits: map[fleet.MemberID]*fleet.Limits{"ann": limits}})
	h := r.newcomer("dan")
	if h == nil || r.newcomer("eve") != nil || r.newcomer("dan") != nil {
		t.Fatal("the group's limit is not one for all its members together")
	}
	w := r.join(fleet.Query{Caller: "eve", Model: "x"}, noon)
	if got(w).held != nil {
		t.Fatal("over the group's limit")
	}
	r.release(h, true)
	if g := got(w); g.held == nil || g.held.GroupID() != "g" {
		t.Error("waits on")
	}
}

// So does a place in a share's day, which a call that no machine took gives back.
func TestRoomSharesDayElsewhere(t *testing.T) {
	r := newRoom(t, 1)
	offers := []fleet.Offer{{ID: "x", Families: fleet.Families(fleet.Chat)}}
	mine := &fleet.Machine{ID: "mine", Owner: "bob", Online: true, Slots: 1, Offers: offers}
	r.snapshot = r.snapshot.WithMachine(mine).WithMachine(&fleet.Machine{
		ID: "more", Owner: "ann", Online: true, Slots: 1, Offers: slices.Clone(offers),
	}).WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{PerDay: 1}}})
	h := r.newcomer("bob")
	mine.Reserve("x", fleet.Own) // busy: something to wait for
	w := r.join(fleet.Query{Caller: "bob", Model: "x"}, noon)
	if got(w) != (grant{}) {
		t.Fatal("does not wait")
	}
	r.release(h, false)
	if g := got(w); g.held == nil || g.held.Machine.ID != "more" {
		t.Error("waits on")
	}
}

// What only time, or nothing at all, tells of: a new minute, that reach can be
// confirmed again, that a machine no longer offers the model.
func TestRoomTicks(t *testing.T) {
	r := newRoom(t, 1)
	now := noon
	next := func(d time.Duration) { now = now.Add(d); r.tick(now) }
	box := *r.snapshot.Machine("box")

	h := r.newcomer("ann")
	w := r.wait("bob", 0)
	next(0)
	r.unconfirmed = true
	r.release(h, true)
	next(time.Second)
	if got(w) != (grant{}) {
		t.Fatal("reach was not confirmed")
	}
	r.unconfirmed = false
	if next(time.Second); got(w).held == nil {
		t.Fatal("reach is confirmed: waits on")
	}

	w = r.wait("bob", 0)
	r.snapshot = r.snapshot.WithShares("bob", nil) // as if hours had ended
	if next(time.Second); got(w) != (grant{}) {
		t.Error("decided anew within the minute")
	}
	if next(time.Minute); got(w).refusal == nil {
		t.Error("a new minute: waits on")
	}

	w = r.wait("cid", 0)
	box.Offers = box.Offers[1:]
	r.snapshot = r.snapshot.WithMachine(&box)
	r.changed(&box)
	if next(time.Second); got(w).refusal == nil {
		t.Error("nobody offers it: waits on")
	}
}

// crowd is random members around random machines, and a room they wait in.
type crowd struct {
	oneRoom
	rng     *rand.Rand
	proven  bool // every machine has served every model before
	running []*held
	waiters []*waiter
}

const crowdMembers, crowdMachines = 6, 4

func newCrowd(t *testing.T, seed uint64) *crowd {
	c := &crowd{rng: rand.New(rand.NewPCG(seed, 7)), proven: seed%2 == 0}
	c.t, c.snapshot = t, fleet.NewSnapshot()
	c.moved = func() {}
	c.now = func(a *fleet.Query) *fleet.Snapshot {
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
				m.Offers[i].Load.Record(fleet.Grouped).Served()
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

func (c *crowd) ask() fleet.Query {
	a := fleet.Query{Caller: c.member(), Model: []fleet.ModelID{"m", "n", "o"}[c.rng.IntN(3)], Narrow: fleet.Narrow(c.rng.IntN(3))}
	if c.rng.IntN(4) == 0 {
		a.Avoid, a.Gone = []fleet.MachineID{"box0"}, true
	}
	return a
}

// call is what dispatch does with a new call.
func (c *crowd) call() {
	ask := c.ask()
	known := c.now(&ask)
	d := fleet.Route(known, ask)
	if d.Verdict == fleet.Try {
		if h := c.take(d.Candidates, ask.Model, ask.Now); h != nil {
			c.running = append(c.running, h)
			return
		}
	}
	if d.Verdict != fleet.Refuse {
		arrived := noon.Add(time.Duration(c.rng.IntN(1000))) // one that tried before comes back in its place
		c.waiters = append(c.waiters, c.join(ask, arrived))
	}
}

// step does one thing at random.
func (c *crowd) step() string {
	switch n := c.rng.IntN(20); {
	case n < 9:
		c.call()
		return "call"
	case n < 16 && len(c.running) > 0:
		i := c.rng.IntN(len(c.running))
		c.release(c.running[i], true)
		c.running = slices.Delete(c.running, i, i+1)
		return "release"
	case n < 17 && len(c.waiters) > 0:
		i := c.rng.IntN(len(c.waiters))
		if _, ok := c.leave(c.waiters[i]); ok {
			c.t.Fatal("a grant that nobody saw")
		}
		c.waiters = slices.Delete(c.waiters, i, i+1)
		return "leave"
	case n < 18:
		before := c.snapshot
		member := c.reshare()
		c.recheck(fleet.AffectedBy(before, c.snapshot, []fleet.Change{{Kind: fleet.SharesChanged, ID: string(member)}}))
		return "reshare"
	default:
		m := *c.snapshot.Machine(fleet.MachineID(fmt.Sprint("box", c.rng.IntN(crowdMachines))))
		m.Online, m.Paused, m.Slots = c.rng.IntN(4) > 0, c.rng.IntN(4) == 0, 1+c.rng.IntN(3)
		c.snapshot = c.snapshot.WithMachine(&m)
		c.changed(&m)
		return "changed"
	}
}

// could says whether the waiter may use the machine, were a slot free. Through a
// group a machine that has not served yet takes one call, however many are free.
func (c *crowd) could(w *waiter, id fleet.MachineID) bool {
	ask := w.line.ask
	ask.Now = noon
	seen, ok := fleet.StateOf(c.snapshot, &ask, c.snapshot.Machine(id))
	return ok && seen.State >= fleet.Busy && (c.proven || seen.Class != fleet.Grouped)
}

// check looks at what a step came to: nobody waits who could be served or must
// be refused, and nobody was passed by one who came later, but for an owner on
// a machine of theirs.
func (c *crowd) check(what string) {
	c.t.Helper()
	var served []*waiter
	var by []*held
	waiting := c.waiters[:0]
	for _, w := range c.waiters {
		switch g := got(w); {
		case g.held != nil:
			served, by = append(served, w), append(by, g.held)
		case g.refusal == nil:
			waiting = append(waiting, w)
		}
	}
	c.waiters, c.running = waiting, append(c.running, by...)
	for _, w := range waiting {
		ask := w.line.ask
		known := c.now(&ask)
		if d := fleet.Route(known, ask); d.Verdict != fleet.Wait {
			c.t.Fatalf("after %s: %+v waits: %s, row %d", what, ask, d.Verdict, d.Row)
		}
		before := 0
		for _, other := range waiting {
			if other.line.ask.Model == ask.Model && other.before(w) {
				before++
			}
		}
		if n := c.ahead(w); n != before {
			c.t.Fatalf("after %s: %d ahead, not %d", what, n, before)
		}
		for i, s := range served {
			m := by[i].Machine
			owner, own := w.line.ask.Caller == m.Owner, s.line.ask.Caller == m.Owner
			if c.could(w, m.ID) && (owner && !own || owner == own && w.before(s)) {
				c.t.Fatalf("after %s: %+v was passed by %+v on %s", what, w.line.ask, s.line.ask, m.ID)
			}
		}
	}
	if n := c.room.waiting.Load(); int(n) != len(waiting) {
		c.t.Fatalf("after %s: %d wait, not %d", what, n, len(waiting))
	}
}

// In random worlds nobody is passed over and nobody is forgotten.
func TestRoomPassesNobody(t *testing.T) {
	for seed := range uint64(300) {
		c := newCrowd(t, seed)
		for range 150 {
			c.check(c.step())
		}
		for len(c.running) > 0 {
			c.release(c.running[0], true)
			c.running = c.running[1:]
			c.check("the end")
		}
	}
}

// Calls that come, wait, hang up and end all at once: in a bubble, a wake-up
// that is lost is a deadlock.
func TestRoomLosesNoWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, 2)
		r.moved = func() {}
		r.now = func(a *fleet.Query) *fleet.Snapshot {
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
		if r.inFlight() != 0 || r.waiting.Load() != 0 || len(r.queues) != 0 {
			t.Errorf("left over: in flight %d, waiting %d", r.inFlight(), r.waiting.Load())
		}
	})
}

// serveOne is one call from its arrival to its end; hasty hangs up if it is to
// wait.
func (r *oneRoom) serveOne(ask fleet.Query, hasty bool) {
	arrived := time.Now()
	known := r.now(&ask)
	d := fleet.Route(known, ask)
	h := r.take(d.Candidates, ask.Model, ask.Now)
	if h == nil {
		w := r.join(ask, arrived)
		if hasty {
			runtime.Gosched()
			g, _ := r.leave(w)
			h = g.held
		} else {
			h = (<-w.granted).held
		}
	}
	runtime.Gosched()
	if h != nil {
		r.release(h, true)
	}
}

// 10,000 wait for a model of which 100 slots a second come free: they are served
// in the order in which they came, or told so at their deadline; each knows its
// position.
func TestTenThousandWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters, callers = 10_000, 500
		hub := &Hub{cfg: Config{}.withDefaults(), live: registry.New(registry.Config{})}
		machine := &fleet.Machine{ID: "box", Owner: "ann", Online: true, Slots: 100, Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}}}
		snapshot := fleet.NewSnapshot().WithMachine(machine)
		members := []fleet.MemberID{}
		for i := range callers {
			members = append(members, fleet.MemberID(fmt.Sprint("member", i)))
		}
		snapshot = snapshot.WithGroup(&fleet.Group{ID: "g", Members: append(members, "ann")})
		hub.room.moved = func() {}
		hub.room.now = func(a *fleet.Query) *fleet.Snapshot {
			a.Now = time.Now()
			return snapshot
		}
		var running []*held
		for range machine.Slots {
			ask := fleet.Query{Caller: "ann", Model: "m"}
			known := hub.room.now(&ask)
			running = append(running, hub.room.take(fleet.Route(known, ask).Candidates, "m", ask.Now))
		}

		var mu sync.Mutex
		var order []int
		elapsed := 0
		var all sync.WaitGroup
		for i := range waiters {
			patience := time.Duration(1+i%60) * time.Second
			reports := 0
			call := &gateway.Call{Model: "m", Arrived: time.Now(), Waiting: func(ahead int, left time.Duration) {
				if reports++; reports == 1 && (ahead != i || left != patience) {
					t.Errorf("waiter %d: %d ahead, %s left", i, ahead, left)
				}
			}}
			d := &dispatch{hub: hub, call: call, ask: fleet.Query{Caller: members[i%callers], Model: "m"}, deadline: call.Arrived.Add(patience)}
			w := hub.room.join(d.ask, call.Arrived)
			all.Go(func() {
				g, err := d.sit(context.Background(), w)
				late := time.Since(d.deadline)
				mu.Lock()
				defer mu.Unlock()
				if g.held != nil {
					order, running = append(order, i), append(running, g.held)
				} else {
					elapsed++
				}
				if late > 500*time.Millisecond || g.held == nil && late < 0 {
					t.Errorf("waiter %d: %+v, %v, %s after its deadline", i, g, err, late)
				}
			})
		}
		synctest.Wait()
		for hub.room.waiting.Load() > 0 {
			time.Sleep(10*time.Millisecond + 1) // never at the instant of a deadline
			mu.Lock()
			h := running[0]
			running = running[1:]
			mu.Unlock()
			hub.room.release(h, true)
			synctest.Wait() // order is the order of grants
		}
		all.Wait()
		if !slices.IsSorted(order) || len(order)+elapsed != waiters || len(order) < 1000 {
			t.Errorf("%d served, in order: %t; %d waited in vain", len(order), slices.IsSorted(order), elapsed)
		}
	})
}

// Alike waiters are refused together, each with the same words.
func TestRoomRefusesALine(t *testing.T) {
	r := newRoom(t, 1)
	r.newcomer("ann")
	var all []*waiter
	for i := range 5 {
		all = append(all, r.wait("bob", time.Duration(i)))
	}
	stays := r.wait("cid", 0)
	box := *r.snapshot.Machine("box")
	box.Paused = true
	r.snapshot = r.snapshot.WithMachine(&box)
	r.changed(&box)
	for _, w := range append(all, stays) {
		if g := got(w); g.refusal == nil || g.refusal.Code != fault.CascadeExhausted {
			t.Errorf("%+v", g)
		}
	}
	if r.waiting.Load() != 0 || len(r.queues) != 0 {
		t.Error("left over")
	}
}
