package hub

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// everybody is whom changes concern of which nothing more is known.
var everybody = fleet.AffectedBy(nil, nil, nil)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// oneRoom is a room in front of ann's one machine with so many slots, shared
// with bob and cid.
type oneRoom struct {
	room
	t           *testing.T
	snapshot    *fleet.Snapshot
	unconfirmed bool
	moves       int // how often somebody was told that something moved
}

func newRoom(t *testing.T, slots int) *oneRoom {
	s := fleet.NewSnapshot().WithMachine(&fleet.Machine{
		ID: "box", Owner: "ann", Online: true, Slots: slots,
		Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}, {ID: "n", Families: fleet.Families(fleet.Chat)}},
	})
	s = s.WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob"}})
	r := &oneRoom{t: t, snapshot: s.WithShares("cid", []*fleet.Share{{ID: "t", Owner: "ann", Member: "cid"}})}
	r.moved = func() { r.moves++ }
	r.now = func(a *fleet.Query) *fleet.Snapshot {
		a.Now, a.Unconfirmed = noon, r.unconfirmed
		return r.snapshot
	}
	return r
}

func asks(member fleet.MemberID) fleet.Query { return fleet.Query{Caller: member, Model: "m"} }

// newcomer is a call that finds a machine ready and tries for it.
func (r *oneRoom) newcomer(member fleet.MemberID) *held {
	r.t.Helper()
	a := asks(member)
	known := r.now(&a)
	d := fleet.Route(known, a)
	if d.Verdict != fleet.Try {
		return nil
	}
	return r.take(d.Candidates, "m", a.Now)
}

func (r *oneRoom) wait(member fleet.MemberID, after time.Duration) *waiter {
	return r.join(asks(member), noon.Add(after))
}

func (r *oneRoom) inFlight() int { return r.snapshot.Machine("box").Load.InFlight() }

// got is what ended the wait; none yet: the zero grant.
func got(w *waiter) grant {
	select {
	case g := <-w.granted:
		return g
	default:
		return grant{}
	}
}

func TestRoomIsFirstInFirstOut(t *testing.T) {
	r := newRoom(t, 1)
	first := r.newcomer("ann")
	late, early := r.wait("cid", 2*time.Second), r.wait("bob", time.Second)
	if r.ahead(late) != 1 || r.ahead(early) != 0 {
		t.Errorf("ahead: %d, %d", r.ahead(late), r.ahead(early))
	}
	if r.newcomer("ann") != nil {
		t.Error("a newcomer got a slot that is not there")
	}
	r.release(first, true)
	g := got(early)
	if g.held == nil || got(late).held != nil || r.inFlight() != 1 {
		t.Fatalf("early %+v, in flight %d", g, r.inFlight())
	}
	r.release(first, true) // again: nothing
	if got(late).held != nil || r.inFlight() != 1 {
		t.Error("a slot came back twice")
	}
	r.release(g.held, true)
	g = got(late)
	if g.held == nil {
		t.Fatal("the second waiter waits on")
	}
	r.release(g.held, true)
	if r.inFlight() != 0 || r.waiting.Load() != 0 || len(r.queues) != 0 {
		t.Errorf("left over: in flight %d, waiting %d", r.inFlight(), r.waiting.Load())
	}
}

// A freed slot of one model serves who waits for another model of the machine.
func TestRoomServesOtherModels(t *testing.T) {
	r := newRoom(t, 1)
	first := r.newcomer("ann")
	w := r.join(fleet.Query{Caller: "ann", Model: "n"}, noon)
	r.release(first, true)
	if got(w).held == nil {
		t.Error("waits on")
	}
}

// A slot that a machine did not grant wakes nobody; whoever comes next stands
// behind those who wait.
func TestRoomAfterARefusal(t *testing.T) {
	r := newRoom(t, 1)
	first := r.newcomer("ann")
	w := r.wait("bob", 0)
	r.refused(first)
	if got(w).held != nil || r.inFlight() != 0 {
		t.Fatal("a waiter was woken")
	}
	if r.newcomer("ann") != nil {
		t.Error("a newcomer passed a waiter")
	}
	if got(w).held == nil {
		t.Error("the waiter was passed over")
	}
}

func TestRoomLeaving(t *testing.T) {
	r := newRoom(t, 1)
	first := r.newcomer("ann")
	left, raced := r.wait("ann", 0), r.wait("ann", 1)
	if _, ok := r.leave(left); ok {
		t.Error("granted from nowhere")
	}
	r.release(first, true)
	g, ok := r.leave(raced) // its grant came at the same moment
	if !ok || g.held == nil || got(left).held != nil {
		t.Fatal("the grant is lost")
	}
	r.release(g.held, false)
	if r.inFlight() != 0 {
		t.Error("the slot is lost")
	}
}

// One line is for whom the law cannot tell apart, whenever and with whatever luck
// they ask; whoever differs in what it looks at has another.
func TestRoomLines(t *testing.T) {
	q := newQueue("m", 1)
	w := &waiter{line: q.line(asks("bob"))}
	q.insert(w)
	for _, c := range []struct {
		what   string
		change func(*fleet.Query)
		alike  bool
	}{
		{"nothing", func(*fleet.Query) {}, true},
		{"time and draw", func(a *fleet.Query) { a.Now, a.Draw = noon, 7 }, true},
		{"caller", func(a *fleet.Query) { a.Caller = "cid" }, false},
		{"narrowing", func(a *fleet.Query) { a.Narrow = fleet.OwnAndShared }, false},
		{"exclusion", func(a *fleet.Query) { a.Exclude = "box" }, false},
		{"family", func(a *fleet.Query) { a.Family = fleet.Embeddings }, false},
		{"what was tried", func(a *fleet.Query) { a.Avoid = []fleet.MachineID{"box"} }, false},
		{"how it ended", func(a *fleet.Query) { a.Gone = true }, false},
	} {
		ask := asks("bob")
		c.change(&ask)
		if one := q.line(ask) == w.line; one != c.alike {
			t.Errorf("with another %s: in one line: %t", c.what, one)
		}
	}
	if q.remove(w); len(q.waiters)+len(q.lines)+len(q.of) != 0 {
		t.Errorf("left over: %d waiters, %d lines, of %d callers", len(q.waiters), len(q.lines), len(q.of))
	}
}

// What ends a wait: a share's end at once; that reach cannot be confirmed, not.
func TestRoomDecidesAnew(t *testing.T) {
	r := newRoom(t, 1)
	first := r.newcomer("ann")
	w := r.wait("bob", 0)
	r.recheck(everybody)
	r.unconfirmed = true
	r.recheck(everybody)
	r.release(first, true)
	if g := got(w); g != (grant{}) {
		t.Fatalf("%+v", g)
	}
	r.unconfirmed = false
	before := r.snapshot
	r.snapshot = r.snapshot.WithShares("bob", nil)
	concerns := func(kind fleet.ChangeKind, id string) fleet.Affected {
		return fleet.AffectedBy(before, r.snapshot, []fleet.Change{{Kind: kind, ID: id}})
	}
	r.recheck(concerns(fleet.KeyChanged, "bob's"))
	r.recheck(concerns(fleet.SharesChanged, "cid"))
	if g := got(w); g != (grant{}) {
		t.Fatalf("looked at for nothing: %+v", g)
	}
	r.recheck(concerns(fleet.SharesChanged, "bob"))
	g := got(w)
	if g.refusal == nil || g.refusal.Code != fault.NotInCircle || r.waiting.Load() != 0 {
		t.Errorf("%+v", g)
	}
	if j := g.judged; j.Verdict != fleet.Refuse || j.Row != 6 {
		t.Errorf("told as decided: %s, row %d", j.Verdict, j.Row)
	}
}

// What came free between a call's look and its joining is its own at once.
func TestRoomJoiningWhereOneIsFree(t *testing.T) {
	r := newRoom(t, 1)
	first, second := r.wait("bob", 0), r.wait("bob", 1)
	if got(first).held == nil || got(second) != (grant{}) || r.inFlight() != 1 {
		t.Errorf("%d slots given out", r.inFlight())
	}
}

// The slot of a machine that is no longer is nobody's.
func TestRoomAfterAMachineIsRevoked(t *testing.T) {
	r := newRoom(t, 1)
	h := r.newcomer("ann")
	w := r.wait("bob", 0)
	r.snapshot = r.snapshot.WithoutMachine("box")
	r.release(h, true)
	if got(w) != (grant{}) {
		t.Error("a slot of no machine was given out")
	}
}

// A call that begins to wait is not sent back to the machine that just refused it; from
// the next event on it waits as any other.
func TestRoomJoiningAfterARefusal(t *testing.T) {
	r := newRoom(t, 1)
	ask := asks("bob")
	ask.Full = []fleet.MachineID{"box"}
	w := r.join(ask, noon)
	if got(w) != (grant{}) {
		t.Fatal("was sent back to the machine that had just refused it")
	}
	r.recheck(everybody)
	g := got(w)
	if g.held == nil {
		t.Fatal("waits on")
	}
	if j := g.judged; j.Verdict != fleet.Try || j.Row != 3 {
		t.Errorf("told as decided: %s, row %d", j.Verdict, j.Row)
	}
}

// A call that begins to wait while reach cannot be confirmed is served when it can.
func TestRoomJoiningUnconfirmed(t *testing.T) {
	r := newRoom(t, 1)
	r.minute = noon // so that no tick below is the first of its minute
	r.unconfirmed = true
	w := r.wait("bob", 0)
	r.unconfirmed = false
	if got(w) != (grant{}) {
		t.Fatal("reach was not confirmed")
	}
	if r.tick(noon); got(w).held == nil {
		t.Error("waits on")
	}
}

// However many machines come into reach at once, and although the share to some
// is used up by the first calls, every slot finds its waiter.
func TestRoomGivesAllThatCameIntoReach(t *testing.T) {
	offers := []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}}
	r := newRoom(t, 1)
	add := func(id fleet.MachineID, owner fleet.MemberID) *fleet.Machine {
		m := &fleet.Machine{ID: id, Owner: owner, Online: true, Slots: 1, Offers: slices.Clone(offers)}
		r.snapshot = r.snapshot.WithMachine(m)
		return m
	}
	add("bob's", "bob").Reserve("m", fleet.Own) // what all wait for
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
	r.recheck(everybody)
	for i, w := range all {
		if served := got(w).held != nil; served != (i < 4) {
			t.Errorf("waiter %d was served: %t", i, served)
		}
	}
}

// A share's limits are held and given back with the slot.
func TestRoomHoldsTheShare(t *testing.T) {
	r := newRoom(t, 2)
	r.snapshot = r.snapshot.WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{Concurrent: 1, PerDay: 2}}})
	for range 3 { // refused by the machine: it does not count for the day, either
		r.refused(r.newcomer("bob"))
	}
	first := r.newcomer("bob")
	if first == nil || r.newcomer("bob") != nil {
		t.Fatal("the share's limit does not hold")
	}
	r.release(first, false) // no machine took it: it does not count for the day
	for range 2 {
		h := r.newcomer("bob")
		if h == nil {
			t.Fatal("the day is over too soon")
		}
		r.release(h, true)
	}
	if r.newcomer("bob") != nil {
		t.Error("a third call of two a day")
	}
}

// Of two calls that were told to try the same, the slower one holds nothing of
// what is full, and goes on to what is not.
func TestRoomTakesWhatIsLeft(t *testing.T) {
	r := newRoom(t, 2)
	r.snapshot = r.snapshot.WithMachine(&fleet.Machine{
		ID: "mine", Owner: "bob", Online: true, Slots: 1, Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}},
	}).WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Limits: fleet.Limits{Concurrent: 1}}})
	told := asks("bob")
	s := r.now(&told)
	candidates := fleet.Route(s, told).Candidates
	for _, want := range []fleet.MachineID{"mine", "box"} {
		if h := r.take(candidates, "m", noon); h == nil || h.Machine.ID != want {
			t.Fatalf("took %+v, not %s", h, want)
		}
	}
	if r.take(candidates, "m", noon) != nil || r.inFlight() != 1 {
		t.Errorf("%d slots held of a share of one", r.inFlight())
	}
}

// TestRoomTellsWhoWaits: a machine's owner is told how many calls wait that it
// could take, and word goes out whenever a call takes a slot, waits or ends.
func TestRoomTellsWhoWaits(t *testing.T) {
	r := newRoom(t, 1)
	box := r.snapshot.Machine("box")
	moved := func(what string) {
		t.Helper()
		if r.moves == 0 {
			t.Errorf("nobody was told: %s", what)
		}
		r.moves = 0
	}
	first := r.newcomer("ann")
	moved("a call took a slot")
	bob := r.wait("bob", 1)
	r.wait("bob", 2)
	moved("a call waits")
	r.wait("eve", 3) // out of reach: the law has refused it
	r.wait("cid", 4)
	if n := r.queued(box); n != 3 {
		t.Errorf("%d wait for the machine, want 3", n)
	}
	other := *box
	other.Offers = other.Offers[1:]
	if n := r.queued(&other); n != 0 {
		t.Errorf("%d wait for another model", n)
	}
	r.moves = 0
	r.leave(bob)
	moved("a call left")
	r.release(first, true)
	moved("a slot came free")
	if n := r.queued(box); n != 1 {
		t.Errorf("%d wait, want 1", n)
	}

	alone := newRoom(t, 1)
	for what, end := range map[string]func(*held){
		"came free": func(h *held) { alone.release(h, true) }, "was refused by its machine": alone.refused,
	} {
		h := alone.newcomer("ann")
		alone.moves = 0
		if end(h); alone.moves == 0 {
			t.Errorf("nobody was told: a slot that nobody waits for %s", what)
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
		if got := routeOf([]gateway.Attempt{try(fleet.Shared, name, "ann", true)}); got != want {
			t.Errorf("%q: %s", name, got)
		}
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
		if got := routeOf(c.tries); got != c.want {
			t.Errorf("%+v: %s", c.tries, got)
		}
	}
}

// A call for several answers holds a slot for each; it waits for one alone, and
// gives all of them back once.
func TestRoomCountsAnswers(t *testing.T) {
	r := newRoom(t, 4)
	one, four := r.newcomer("ann"), r.newcomer("bob")
	four.widen(4)
	if n := r.inFlight(); n != 5 {
		t.Errorf("%d slots are held, not 5", n)
	}
	w := r.wait("cid", 0)
	r.release(one, true)
	if got(w) != (grant{}) {
		t.Error("a slot of four that are held was given away")
	}
	r.release(four, true)
	r.release(four, true)
	if h := got(w).held; h == nil {
		t.Error("waits on")
	} else if r.release(h, true); r.inFlight() != 0 {
		t.Errorf("%d slots are still held", r.inFlight())
	}
}
