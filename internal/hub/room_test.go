package hub

import (
	"testing"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// everybody is whom changes concern of which nothing more is known.
var everybody = fleet.Concerned(nil, nil, nil)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// oneRoom is a room in front of ann's one machine with so many slots, shared
// with bob and cid.
type oneRoom struct {
	room
	t           *testing.T
	snapshot    *fleet.Snapshot
	unconfirmed bool
}

func newRoom(t *testing.T, slots int) *oneRoom {
	s := fleet.NewSnapshot().WithMachine(&fleet.Machine{
		ID: "box", Owner: "ann", Online: true, Slots: slots,
		Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}, {ID: "n", Families: fleet.Families(fleet.Chat)}},
	})
	s = s.WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob"}})
	r := &oneRoom{t: t, snapshot: s.WithShares("cid", []*fleet.Share{{ID: "t", Owner: "ann", Member: "cid"}})}
	r.now = func(a *fleet.Ask) *fleet.Snapshot {
		a.Now, a.Unconfirmed = noon, r.unconfirmed
		return r.snapshot
	}
	return r
}

func asks(member fleet.MemberID) fleet.Ask { return fleet.Ask{Caller: member, Model: "m"} }

// newcomer is a call that finds a machine ready and tries for it.
func (r *oneRoom) newcomer(member fleet.MemberID) *held {
	r.t.Helper()
	a := asks(member)
	known := r.now(&a)
	d := fleet.Route(known, a)
	if d.Verdict != fleet.Try {
		return nil
	}
	return r.take(d.Candidates, "m")
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
	w := r.join(fleet.Ask{Caller: "ann", Model: "n"}, noon)
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
		change func(*fleet.Ask)
		alike  bool
	}{
		{"nothing", func(*fleet.Ask) {}, true},
		{"time and draw", func(a *fleet.Ask) { a.Now, a.Draw = noon, 7 }, true},
		{"caller", func(a *fleet.Ask) { a.Caller = "cid" }, false},
		{"narrowing", func(a *fleet.Ask) { a.Narrow = fleet.OwnAndShared }, false},
		{"exclusion", func(a *fleet.Ask) { a.Exclude = "box" }, false},
		{"family", func(a *fleet.Ask) { a.Family = fleet.Embeddings }, false},
		{"what was tried", func(a *fleet.Ask) { a.Avoid = []fleet.MachineID{"box"} }, false},
		{"how it ended", func(a *fleet.Ask) { a.Gone = true }, false},
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
	concerns := func(kind fleet.ChangeKind, id string) fleet.Concern {
		return fleet.Concerned(before, r.snapshot, []fleet.Change{{Kind: kind, ID: id}})
	}
	r.recheck(concerns(fleet.KeyChanged, "bob's"))
	r.recheck(concerns(fleet.SharesChanged, "cid"))
	if g := got(w); g != (grant{}) {
		t.Fatalf("looked at for nothing: %+v", g)
	}
	r.recheck(concerns(fleet.SharesChanged, "bob"))
	if g := got(w); g.refusal == nil || g.refusal.Code != fault.NotInCircle || r.waiting.Load() != 0 {
		t.Errorf("%+v", g)
	}
}

// A share's limits are held and given back with the slot.
func TestRoomHoldsTheShare(t *testing.T) {
	r := newRoom(t, 2)
	r.snapshot = r.snapshot.WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Concurrent: 1, PerDay: 2}})
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
	}).WithShares("bob", []*fleet.Share{{ID: "s", Owner: "ann", Member: "bob", Concurrent: 1}})
	told := asks("bob")
	s := r.now(&told)
	candidates := fleet.Route(s, told).Candidates
	for _, want := range []fleet.MachineID{"mine", "box"} {
		if h := r.take(candidates, "m"); h == nil || h.Machine.ID != want {
			t.Fatalf("took %+v, not %s", h, want)
		}
	}
	if r.take(candidates, "m") != nil || r.inFlight() != 1 {
		t.Errorf("%d slots held of a share of one", r.inFlight())
	}
}

func TestRouteHeader(t *testing.T) {
	for name, want := range map[string]string{
		"box-1.local": "shared; machine=box-1.local; owner=ann",
		"Anna's Mac":  `shared; machine="Anna's Mac"; owner=ann`,
		"Größe\r\nX:": `shared; machine="Gr\u00f6\u00dfe\r\nX:"; owner=ann`,
		`a"; b=c`:     `shared; machine="a\"; b=c"; owner=ann`,
	} {
		c := fleet.Candidate{Class: fleet.Shared, Machine: &fleet.Machine{Name: name, OwnerName: "ann"}}
		if got := routeHeader(c); got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}
