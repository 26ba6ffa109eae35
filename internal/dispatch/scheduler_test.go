package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// anything is what an unknown change affects.
var anything = fleet.AffectedBy(nil, nil, nil)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// oneMachine is a scheduler for ann's one machine with a number of slots, shared with bob
// and cid.
type oneMachine struct {
	scheduler
	t           *testing.T
	snapshot    *fleet.Snapshot
	unconfirmed bool
	activities  int // number of calls of activity
}

func newScheduler(t *testing.T, slots int) *oneMachine {
	s := fleet.NewSnapshot().WithMachine(&fleet.Machine{
		ID: "box", Owner: "ann", Online: true, Slots: slots,
		Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}, {ID: "n", Families: fleet.Families(fleet.Chat)}},
	})
	s = s.WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob"}})
	r := &oneMachine{t: t, snapshot: s.WithShares("cid", []*fleet.Share{{ID: "t", Owner: "ann", Member: "cid"}})}
	r.activity = func() { r.activities++ }
	r.refresh = func(a *fleet.Query) *fleet.Snapshot {
		a.Now, a.Unconfirmed = noon, r.unconfirmed
		return r.snapshot
	}
	return r
}

func queryBy(member fleet.MemberID) fleet.Query { return fleet.Query{Caller: member, Model: "m"} }

// newcomer is a new call that finds a machine ready and tries to reserve it.
func (r *oneMachine) newcomer(member fleet.MemberID) *reservation {
	r.t.Helper()
	a := queryBy(member)
	known := r.refresh(&a)
	d := fleet.Route(known, a)
	if d.Verdict != fleet.Try {
		return nil
	}
	return r.reserveFirst(d.Candidates, "m", a.Now)
}

func (r *oneMachine) wait(member fleet.MemberID, after time.Duration) *waiter {
	return r.join(queryBy(member), noon.Add(after))
}

func (r *oneMachine) inFlight() int { return r.snapshot.Machine("box").Load.InFlight() }

// got returns the result of the wait, the zero value if there is none yet.
func got(w *waiter) waitResult {
	select {
	case g := <-w.result:
		return g
	default:
		return waitResult{}
	}
}

func TestSchedulerIsFirstInFirstOut(t *testing.T) {
	r := newScheduler(t, 1)
	first := r.newcomer("ann")
	late, early := r.wait("cid", 2*time.Second), r.wait("bob", time.Second)
	assert.That(t, r.position(late) == 1 && r.position(early) == 0, "ahead", r.position(late), r.position(early))
	if r.newcomer("ann") != nil {
		t.Error("a newcomer got a slot that is not there")
	}
	r.release(first, ran)
	g := got(early)
	if g.reservation == nil || got(late).reservation != nil || r.inFlight() != 1 {
		t.Fatalf("early %+v, in flight %d", g, r.inFlight())
	}
	r.release(first, ran) // has no effect the second time
	assert.That(t, got(late).reservation == nil && r.inFlight() == 1, "a slot came back twice")
	r.release(g.reservation, ran)
	g = got(late)
	assert.Require(t, g.reservation != nil, "the second waiter waits on")
	r.release(g.reservation, ran)
	if r.inFlight() != 0 || r.waitCount.Load() != 0 || len(r.queues) != 0 {
		t.Errorf("left over: in flight %d, waiting %d", r.inFlight(), r.waitCount.Load())
	}
}

// A slot that a machine refused is granted to no waiting call; the next new call is
// served after the waiting ones.
func TestSchedulerAfterARefusal(t *testing.T) {
	r := newScheduler(t, 1)
	first := r.newcomer("ann")
	w := r.wait("bob", 0)
	r.release(first, refusedBusy)
	assert.Require(t, got(w).reservation == nil && r.inFlight() == 0, "a waiter was woken")
	if r.newcomer("ann") != nil {
		t.Error("a newcomer passed a waiter")
	}
	assert.That(t, got(w).reservation != nil, "the waiter was passed over")
}

// If a machine refuses a call as busy, the call's place under a share's limits is
// released at once. A call that waits for the owner's other machine gets it.
func TestSchedulerSharesPlaceAfterARefusal(t *testing.T) {
	r := newScheduler(t, 1)
	r.snapshot = r.snapshot.WithMachine(&fleet.Machine{
		ID: "more", Owner: "ann", Online: true, Slots: 1, Offers: []fleet.Offer{{ID: "x", Families: fleet.Families(fleet.Chat)}},
	}).WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{Concurrent: 1}}})
	h := r.newcomer("bob")
	same, other := r.wait("bob", 0), r.join(fleet.Query{Caller: "bob", Model: "x"}, noon)
	assert.Require(t, got(same) == (waitResult{}) && got(other) == (waitResult{}), "over the share's limit")
	r.release(h, refusedBusy)
	if got(same).reservation != nil {
		t.Error("was sent to the machine that had just refused")
	}
	assert.That(t, got(other).reservation != nil, "waits on for the owner's other machine")
}

func TestSchedulerLeaving(t *testing.T) {
	r := newScheduler(t, 1)
	first := r.newcomer("ann")
	left, raced := r.wait("ann", 0), r.wait("ann", 1)
	if _, ok := r.leave(left); ok {
		t.Error("granted from nowhere")
	}
	r.release(first, ran)
	g, ok := r.leave(raced) // its grant came at the same time
	assert.Require(t, ok && g.reservation != nil && got(left).reservation == nil, "the grant is lost")
	r.release(g.reservation, unused)
	assert.Equal(t, r.inFlight(), 0, "the slot is lost")
}

// Calls that are the same to routing are in one cohort, regardless of their time and
// draw; others are not.
func TestCohorts(t *testing.T) {
	q := newQueue("m", fleet.OfferedBy{})
	w := &waiter{cohort: q.cohortOf(queryBy("bob"))}
	q.insert(w)
	for _, c := range []struct {
		what   string
		change func(*fleet.Query)
		alike  bool
	}{
		{"nothing", func(*fleet.Query) {}, true},
		{"time and draw", func(a *fleet.Query) { a.Now, a.Draw = noon, 7 }, true},
		{"caller", func(a *fleet.Query) { a.Caller = "cid" }, false},
		{"narrowing", func(a *fleet.Query) { a.Reach = fleet.OwnAndShared }, false},
		{"exclusion", func(a *fleet.Query) { a.Exclude = "box" }, false},
		{"family", func(a *fleet.Query) { a.Family = fleet.Embeddings }, false},
		{"what was tried", func(a *fleet.Query) { a.Avoid = []fleet.MachineID{"box"} }, false},
		{"how it ended", func(a *fleet.Query) { a.Gone = true }, false},
	} {
		query := queryBy("bob")
		c.change(&query)
		assert.Equal(t, q.cohortOf(query) == w.cohort, c.alike, "with another", c.what, "in one cohort")
	}
	one, other := queryBy("cid"), queryBy("cid")
	one.Avoid, other.Avoid = []fleet.MachineID{"a", "b"}, []fleet.MachineID{"b", "a"}
	assert.That(t, alike(&one, &other), "the order of what was tried makes another cohort")
	if q.remove(w); len(q.waiters)+len(q.cohorts)+len(q.byCaller) != 0 {
		t.Errorf("left over: %d waiters, %d cohorts, of %d callers", len(q.waiters), len(q.cohorts), len(q.byCaller))
	}
}

// The end of a share ends a wait at once; a reach that cannot be confirmed does not.
func TestSchedulerDecidesAgain(t *testing.T) {
	r := newScheduler(t, 1)
	first := r.newcomer("ann")
	w := r.wait("bob", 0)
	r.onChange(anything)
	r.unconfirmed = true
	r.onChange(anything)
	r.release(first, ran)
	if g := got(w); g != (waitResult{}) {
		t.Fatalf("%+v", g)
	}
	r.unconfirmed = false
	before := r.snapshot
	r.snapshot = r.snapshot.WithShares("bob", nil)
	concerns := func(kind fleet.ChangeKind, id string) fleet.Affected {
		return fleet.AffectedBy(before, r.snapshot, []fleet.Change{{Kind: kind, ID: id}})
	}
	r.onChange(concerns(fleet.KeyChanged, "bob's"))
	r.onChange(concerns(fleet.SharesChanged, "cid"))
	if g := got(w); g != (waitResult{}) {
		t.Fatalf("looked at for nothing: %+v", g)
	}
	r.onChange(concerns(fleet.SharesChanged, "bob"))
	g := got(w)
	assert.That(t, g.refusal != nil && g.refusal.Code == fault.NotInCircle && r.waitCount.Load() == 0, g)
	if j := g.decision; j.Verdict != fleet.Refuse || j.Row != 6 {
		t.Errorf("recorded: %s, row %d", j.Verdict, j.Row)
	}
}

// The slot of a machine that was removed is not granted.
func TestSchedulerAfterAMachineIsRevoked(t *testing.T) {
	r := newScheduler(t, 1)
	h := r.newcomer("ann")
	w := r.wait("bob", 0)
	r.snapshot = r.snapshot.WithoutMachine("box")
	r.release(h, ran)
	assert.Equal(t, got(w), (waitResult{}), "a slot of no machine was given out")
}

// A call that starts to wait is not sent back to the machine that has just refused it.
// From the next event on, it waits like any other.
func TestSchedulerJoiningAfterARefusal(t *testing.T) {
	r := newScheduler(t, 1)
	query := queryBy("bob")
	query.Full = []fleet.MachineID{"box"}
	w := r.join(query, noon)
	assert.Require(t, got(w) == (waitResult{}), "was sent back to the machine that had just refused it")
	r.onChange(anything)
	g := got(w)
	assert.Require(t, g.reservation != nil, "waits on")
	if j := g.decision; j.Verdict != fleet.Try || j.Row != 3 {
		t.Errorf("recorded: %s, row %d", j.Verdict, j.Row)
	}
}

// A call that starts to wait while its reach cannot be confirmed is served once it can
// be.
func TestSchedulerJoiningUnconfirmed(t *testing.T) {
	r := newScheduler(t, 1)
	r.minute = noon // so that no tick below is the first of its minute
	r.unconfirmed = true
	w := r.wait("bob", 0)
	r.unconfirmed = false
	assert.Require(t, got(w) == (waitResult{}), "reach was not confirmed")
	if r.tick(noon); got(w).reservation == nil {
		t.Error("waits on")
	}
}

// However many machines come into reach at once, every slot gets a waiting call, although
// the first calls exhaust the share of some machines.
func TestSchedulerGivesAllThatCameIntoReach(t *testing.T) {
	offers := []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}}
	r := newScheduler(t, 1)
	add := func(id fleet.MachineID, owner fleet.MemberID) *fleet.Machine {
		m := &fleet.Machine{ID: id, Owner: owner, Online: true, Slots: 1, Offers: slices.Clone(offers)}
		r.snapshot = r.snapshot.WithMachine(m)
		return m
	}
	add("bob's", "bob").Reserve("m", false) // they all wait for this one
	for i := range 2 {
		add(fleet.MachineID(fmt.Sprint("ann's", i)), "ann")
		add(fleet.MachineID(fmt.Sprint("dan's", i)), "dan")
	}
	r.snapshot = r.snapshot.WithShares("bob", nil)
	var all []*waiter
	for i := range 5 {
		all = append(all, r.wait("bob", time.Duration(i)))
	}
	r.snapshot = r.snapshot.
		WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{Concurrent: 2}}}).
		WithGroup(&fleet.Group{ID: "g", Members: []fleet.MemberID{"bob", "dan"}})
	r.onChange(anything)
	for i, w := range all {
		assert.Equal(t, got(w).reservation != nil, (i < 4), "waiter", i, "was served")
	}
}

// A machine that a group's admins pinned grants all its slots to waiting calls, although
// it has served no call yet. grantSlots repeats until a slot is reserved; that must not
// be an infinite loop.
func TestSchedulerGrantsAllSlotsOfAPinnedMachine(t *testing.T) {
	r := newScheduler(t, 2)
	r.snapshot = r.snapshot.WithShares("bob", nil).WithShares("cid", nil).
		WithGroup(&fleet.Group{ID: "g", Members: []fleet.MemberID{"ann", "bob", "cid"}, Pinned: []fleet.MachineID{"box"}})
	assert.Require(t, r.newcomer("bob") != nil, "no slot for the first")
	second := r.wait("cid", 0)
	assert.That(t, got(second).reservation != nil && r.inFlight() == 2, r.inFlight(), "calls run")
}

// A share's limits are reserved and released with the slot.
func TestSchedulerHoldsTheShare(t *testing.T) {
	r := newScheduler(t, 2)
	r.snapshot = r.snapshot.WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{Concurrent: 1, PerDay: 2}}})
	for range 3 { // refused by the machine: it does not count for the day either
		r.release(r.newcomer("bob"), refusedBusy)
	}
	first := r.newcomer("bob")
	assert.Require(t, first != nil && r.newcomer("bob") == nil, "the share's limit does not hold")
	r.release(first, unused) // no machine accepted it: it does not count for the day
	for range 2 {
		h := r.newcomer("bob")
		assert.Require(t, h != nil, "the day is over too soon")
		r.release(h, ran)
	}
	if r.newcomer("bob") != nil {
		t.Error("a third call of two a day")
	}
}

// If two calls have the same candidates, the second reserves what the first left.
func TestSchedulerTakesWhatIsLeft(t *testing.T) {
	r := newScheduler(t, 2)
	r.snapshot = r.snapshot.WithMachine(&fleet.Machine{
		ID: "mine", Owner: "bob", Online: true, Slots: 1, Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}},
	}).WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{Concurrent: 1}}})
	query := queryBy("bob")
	s := r.refresh(&query)
	candidates := fleet.Route(s, query).Candidates
	for _, want := range []fleet.MachineID{"mine", "box"} {
		if h := r.reserveFirst(candidates, "m", noon); h == nil || h.Machine.ID != want {
			t.Fatalf("took %+v, not %s", h, want)
		}
	}
	if r.reserveFirst(candidates, "m", noon) != nil || r.inFlight() != 1 {
		t.Errorf("%d slots held of a share of one", r.inFlight())
	}
}

// queued returns how many waiting calls a machine could take. activity is called whenever
// a call reserves or releases a slot, and starts or stops waiting.
func TestSchedulerQueued(t *testing.T) {
	r := newScheduler(t, 1)
	box := r.snapshot.Machine("box")
	moved := func(what string) {
		t.Helper()
		assert.That(t, r.activities != 0, "no activity", what)
		r.activities = 0
	}
	first := r.newcomer("ann")
	moved("a call took a slot")
	bob := r.wait("bob", 1)
	r.wait("bob", 2)
	moved("a call waits")
	r.wait("eve", 3) // out of reach: refused at once
	r.wait("cid", 4)
	assert.Equal(t, r.queued(box), 3, "wait for the machine")
	other := *box
	other.Offers = other.Offers[1:]
	assert.Equal(t, r.queued(&other), 0, "wait for another model")
	r.activities = 0
	r.leave(bob)
	moved("a call left")
	r.release(first, ran)
	moved("a slot came free")
	assert.Equal(t, r.queued(box), 1, "wait")

	alone := newScheduler(t, 1)
	for what, end := range map[string]func(*reservation){
		"came free": func(h *reservation) { alone.release(h, ran) }, "was refused by its machine": func(h *reservation) { alone.release(h, refusedBusy) },
	} {
		h := alone.newcomer("ann")
		alone.activities = 0
		if end(h); alone.activities == 0 {
			t.Errorf("no activity: a slot that no call waits for %s", what)
		}
	}
}

func TestRouteHeader(t *testing.T) {
	try := func(class fleet.Class, name, owner string, prompt bool) gateway.Attempt {
		return gateway.Attempt{Machine: &fleet.Machine{ID: fleet.MachineID(name), Name: name, OwnerName: owner}, Class: class, Prompt: prompt}
	}
	for name, want := range map[string]string{
		"box-1.local": "shared; machine=box-1.local; owner=ann",
		"Anna's Mac":  `shared; machine="Anna's Mac"; owner=ann`,
		"Größe\r\nX:": `shared; machine="Gr\u00f6\u00dfe\r\nX:"; owner=ann`,
		`a"; b=c, d`:  `shared; machine="a\"; b=c, d"; owner=ann`,
	} {
		assert.Equal(t, routeHeader([]gateway.Attempt{try(fleet.Shared, name, "ann", true)}), want, name)
	}
	own, group, other := try(fleet.Own, "box", "me", true), try(fleet.Grouped, "trap", "eve", true), try(fleet.Grouped, "shy", "cy", false)
	for _, c := range []struct {
		tries []gateway.Attempt
		want  string
	}{
		{nil, ""},
		{[]gateway.Attempt{other}, ""},
		{[]gateway.Attempt{group, other, own}, "group; machine=trap; owner=eve, own; machine=box; owner=me"},
		{[]gateway.Attempt{own, group, own, own}, "group; machine=trap; owner=eve, own; machine=box; owner=me"},
		{[]gateway.Attempt{group, own, try(fleet.Grouped, "trap", "eve", false)}, "group; machine=trap; owner=eve, own; machine=box; owner=me"},
	} {
		assert.Equal(t, routeHeader(c.tries), c.want, c.tries)
	}
}

// A call for several answers reserves a slot for each. It waits for only one, and
// releases all of them once.
func TestSchedulerCountsAnswers(t *testing.T) {
	r := newScheduler(t, 4)
	one, four := r.newcomer("ann"), r.newcomer("bob")
	r.widen(four, 4)
	assert.Equal(t, r.inFlight(), 5, "slots are held")
	w := r.wait("cid", 0)
	r.release(one, ran)
	assert.Equal(t, got(w), (waitResult{}), "a slot of four that are held was given away")
	r.release(four, ran)
	r.release(four, ran)
	if h := got(w).reservation; h == nil {
		t.Error("waits on")
	} else if r.release(h, ran); r.inFlight() != 0 {
		t.Errorf("%d slots are still held", r.inFlight())
	}
}
