package fleet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// A machine that refuses what it advertised is left out for 30 s, doubling to 10
// min, until it serves (spec/routing.md#left-out).
func TestRefusalsDouble(t *testing.T) {
	l, now := new(Load), noon
	for i, want := range []time.Duration{30, 60, 120, 240, 480, 600, 600} {
		until := l.Refused(Refusal{Class: Shared, Sent: now, Received: now})
		if got := until.Sub(now); got != want*time.Second {
			t.Fatalf("refusal %d: left out for %s", i, got)
		}
		if !l.Record(Shared).LeftOut(until.Add(-1)) || l.Record(Shared).LeftOut(until) {
			t.Fatalf("refusal %d: not left out until %s", i, until)
		}
		now = until
	}
	if !l.Served(Shared) || l.Record(Shared).LeftOut(now.Add(-1)) || l.Served(Shared) {
		t.Error("a call that was served changes what the machine is sent, once")
	}
	if until := l.Refused(Refusal{Class: Shared, Sent: now, Received: now}); until != now.Add(30*time.Second) {
		t.Errorf("after a call that was served: left out until %s", until)
	}
}

// A machine that names its state is asked again after 3 s, however often it refuses.
func TestNewsIsNoStrike(t *testing.T) {
	l, now := new(Load), noon
	for i, want := range []time.Duration{raceWindow, newsRetry, newsRetry, newsRetry} {
		until := l.Refused(Refusal{Class: Shared, Sent: now, Received: now, Race: true, NamesState: true})
		assert.Equal(t, until.Sub(now), want, "refusal", i, "left out for")
		now = until
	}
	for _, want := range []time.Duration{raceWindow, firstBackoff} {
		if until := l.Refused(Refusal{Class: Shared, Sent: now, Received: now, Race: true}); until.Sub(now) != want {
			t.Errorf("a refusal without a state after those: %s, want %s", until.Sub(now), want)
		}
	}
}

// One refusal that may be a race is forgiven; a second one in a row is not.
func TestOneRaceIsForgiven(t *testing.T) {
	l := new(Load)
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		sent, came int
		served     bool
		want       time.Duration // left out
	}{
		{0, 1, false, raceWindow},
		{0, 2, false, 0}, // sent before the first came back: the same race
		{2, 3, true, 0},
		{4, 5, false, raceWindow},
		{5, 6, false, 30 * time.Second},
		{5, 7, false, 0},
		{36, 37, false, time.Minute},
		{97, 98, true, 0},
		{99, 100, false, raceWindow},
	} {
		if c.served {
			l.Served(Shared)
			continue
		}
		until, want := l.Refused(Refusal{Class: Shared, Sent: at(c.sent), Received: at(c.came), Race: true}), time.Time{}
		if c.want > 0 {
			want = at(c.came).Add(c.want)
		}
		assert.That(t, until.Equal(want), "sent at", c.sent, "s: left out until", until, want)
	}
}

// What a machine does for its owner is no merit with others, and no fault.
func TestTheOwnersCallsHaveTheirOwnRecord(t *testing.T) {
	s := NewSnapshot().
		WithMachine(&Machine{ID: "a", Owner: "eve", Online: true, Slots: 9, Offers: offering("x")}).
		WithGroup(&Group{ID: "g", Members: []MemberID{"eve", "me"}})
	l := s.Machine("a").Offer("x").Load
	verdict := func(caller MemberID) string {
		return Route(s, Query{Caller: caller, Model: "x", Now: noon}).Verdict.String()
	}
	l.Refused(Refusal{Class: Grouped, Sent: noon, Received: noon})
	if me, eve := verdict("me"), verdict("eve"); me != "wait" || eve != "try" {
		t.Errorf("left out for others: %s for others, %s for the owner", me, eve)
	}
	l.Served(Own)
	assert.Equal(t, verdict("me"), "wait", "the owner's call ended it")
	l.Served(Shared)
	l.Refused(Refusal{Class: Own, Sent: noon, Received: noon})
	if me, eve := verdict("me"), verdict("eve"); me != "try" || eve != "wait" {
		t.Errorf("left out for the owner: %s for others, %s for the owner", me, eve)
	}
}

// A model that is withdrawn and offered again has the record it had.
func TestARecordOutlivesItsOffer(t *testing.T) {
	machine := func(models ...ModelID) *Machine {
		return &Machine{ID: "a", Owner: "eve", Online: true, Slots: 9, Offers: offering(models...)}
	}
	s := NewSnapshot().WithMachine(machine("x", "y"))
	before := s.Machine("a").Offer("x").Load
	before.Refused(Refusal{Class: Grouped, Sent: noon, Received: noon})
	for range 3 {
		s = s.WithMachine(machine("y"))
		s = s.WithMachine(machine())
	}
	assert.Equal(t, len(s.Machine("a").withdrawn), 1, "records are kept of models that were not asked for")
	s = s.WithMachine(machine("y", "x"))
	if m := s.Machine("a"); m.Offer("x").Load != before || m.Offer("y").Load == before || len(m.withdrawn) != 0 {
		t.Error("the record is lost")
	}
	many := make([]ModelID, maxWithdrawn+10)
	for i := range many {
		many[i] = ModelID(fmt.Sprint("m", i))
	}
	s = s.WithMachine(machine(many...))
	for i := range s.Machine("a").Offers {
		s.Machine("a").Offers[i].Load.Refused(Refusal{Class: Shared, Sent: noon, Received: noon})
	}
	if s = s.WithMachine(machine()); len(s.Machine("a").withdrawn) != maxWithdrawn {
		t.Errorf("%d records are kept", len(s.Machine("a").withdrawn))
	}
}

// In a group neither a claim of many slots nor a quick first byte attracts calls
// before the machine served one; until then it runs one at once.
func TestClaimsAttractNothingInAGroup(t *testing.T) {
	honest := wMachine{id: "honest", owner: "ann", online: true, slots: 2, inFlight: 1, offers: []wOffer{{model: "m", families: []Family{Chat}, speed: &wSpeed{start: 1, dueIn: time.Hour}, inFlight: 1, standing: Established}}}
	claims := func(id string) wMachine {
		return wMachine{id: id, owner: "eve", online: true, slots: 1000, offers: []wOffer{{model: "m", families: []Family{Chat}, speed: &wSpeed{start: 0.001, dueIn: time.Hour}}}}
	}
	w := &world{now: noon, machines: []wMachine{claims("a"), honest, claims("b")}, groups: []wGroup{{id: "g", members: []string{"me", "ann", "eve"}}}}
	w.machines[2].slots = 1
	firsts := map[string]int{}
	for draw := range uint64(200) {
		s := w.snapshot(t, rand.New(rand.NewPCG(draw, 0)))
		var order []string
		for _, c := range Route(s, Query{Caller: "me", Model: "m", Now: noon, Draw: draw}).Candidates {
			order = append(order, string(c.Machine.ID))
		}
		firsts[strings.Join(order, " ")]++
	}
	if a, b := firsts["honest a b"], firsts["honest b a"]; a < 60 || b < 60 || a+b != 200 {
		t.Errorf("tried in the orders %v", firsts)
	}

	s := w.snapshot(t, rand.New(rand.NewPCG(0, 0)))
	a, g := s.Machine("a"), Circle{Grouped, "g"}
	reserve := func() bool {
		c, _ := StateOf(s, &Query{Caller: "me", Model: "m", Now: noon}, a)
		return a.Reserve("m", c.Alone())
	}
	assert.That(t, reserve() && !reserve(), "a machine that has not served runs one call at once")
	for _, c := range Route(s, Query{Caller: "me", Model: "m", Now: noon}).Candidates {
		assert.That(t, c.Machine != a, "it is tried while it runs that one")
	}
	assert.That(t, a.Reserve("m", false), "it holds for a share, or for the owner")
	a.Offer("m").Load.RaiseStanding(g)
	assert.That(t, reserve(), "it served: its slots count")
}
