package fleet

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// village returns an open group of so many members, m0 to mN, where m0 owns the machine "a"
// and m1 the machine "b", both of model "m".
func village(members int) *Snapshot {
	g := &Group{ID: "g", Open: true}
	for i := range members {
		g.Members = append(g.Members, MemberID(fmt.Sprint("m", i)))
	}
	s := NewSnapshot().WithGroup(g)
	for i, id := range []MachineID{"a", "b"} {
		s = s.WithMachine(&Machine{ID: id, Owner: g.Members[i], Online: true, Slots: 4, Offers: offering("m")})
	}
	return s
}

// serve records calls of each member that the machine "a" served to the group "g".
func serve(s *Snapshot, calls int, by ...MemberID) {
	a := s.Machine("a")
	for _, member := range by {
		for range calls {
			a.Offer("m").Load.ServedGroup(s, s.Group("g"), a.Owner, member, noon)
		}
	}
}

func standingOf(s *Snapshot) Standing {
	a := s.Machine("a")
	return s.Group("g").standing(a, a.Offer("m").Load.proof(Circle{Grouped, "g"}))
}

// A machine is established in a group once it served 20 calls of three members who reach
// neither its owner nor each other otherwise (spec/routing.md#standing).
func TestStanding(t *testing.T) {
	for _, c := range []struct {
		name    string
		members int
		with    func(*Snapshot) *Snapshot
		calls   int // of each
		by      []MemberID
		want    Standing
	}{
		{"no call", 9, nil, 0, nil, Unserved},
		{"one call", 9, nil, 1, []MemberID{"m2"}, Newcomer},
		{"19 calls of three", 9, nil, 6, []MemberID{"m2", "m3", "m4"}, Newcomer},
		{"21 calls of three", 9, nil, 7, []MemberID{"m2", "m3", "m4"}, Established},
		{"many calls of two", 9, nil, 100, []MemberID{"m2", "m3"}, Newcomer},
		{"both others of a group of three", 3, nil, 10, []MemberID{"m1", "m2"}, Established},
		{"one other of a group of three", 3, nil, 100, []MemberID{"m2"}, Newcomer},
		{"three, one with a share of the owner", 9, func(s *Snapshot) *Snapshot {
			return s.WithShares("m4", []*Share{{ID: "s", Owner: "m0", Member: "m4"}})
		}, 50, []MemberID{"m2", "m3", "m4"}, Newcomer},
		{"three, one who shares with another", 9, func(s *Snapshot) *Snapshot {
			return s.WithShares("m3", []*Share{{ID: "s", Owner: "m4", Member: "m3"}})
		}, 50, []MemberID{"m2", "m3", "m4"}, Newcomer},
		{"two accounts of one person", 9, func(s *Snapshot) *Snapshot {
			return s.WithGroup(&Group{ID: "private", Members: []MemberID{"m0", "m2"}})
		}, 50, []MemberID{"m2"}, Unserved},
		{"three who are in another open group", 9, func(s *Snapshot) *Snapshot {
			return s.WithGroup(&Group{ID: "open", Open: true, Members: []MemberID{"m0", "m2", "m3"}})
		}, 10, []MemberID{"m2", "m3", "m4"}, Established},
		{"all reach each other by another group", 9, func(s *Snapshot) *Snapshot {
			return s.WithGroup(&Group{ID: "company", Members: s.Group("g").Members})
		}, 1, []MemberID{"m2"}, Established},
		{"pinned", 9, func(s *Snapshot) *Snapshot {
			g := *s.Group("g")
			g.Pinned = []MachineID{"a"}
			return s.WithGroup(&g)
		}, 0, nil, Established},
	} {
		s := village(c.members)
		if c.with != nil {
			s = c.with(s)
		}
		if serve(s, c.calls, c.by...); standingOf(s) != c.want {
			t.Errorf("%s: %v, want %v", c.name, standingOf(s), c.want)
		}
	}
}

// What a machine proved to its owner, by shares or in one group is unknown in another
// group: accounts of its owner could have proved it.
func TestProofsStayInTheirCircle(t *testing.T) {
	s := village(9).WithGroup(&Group{ID: "mine", Members: []MemberID{"m0", "m8"}}).
		WithShares("m7", []*Share{{ID: "s", Owner: "m0", Member: "m7"}})
	l := s.Machine("a").Offer("m").Load
	for _, c := range []Circle{{}, {Class: Shared}, {Grouped, "mine"}} {
		for range 16 {
			l.Measure(c, Measurement{At: noon, Uncached: 1000, FirstToken: time.Millisecond, Output: 100, Decoding: time.Millisecond, Running: 1})
		}
	}
	l.ServedGroup(s, s.Group("mine"), "m0", "m8", noon)
	for member, want := range map[MemberID]bool{"m0": true, "m7": true, "m2": false} {
		for _, c := range Route(s, Query{Caller: member, Model: "m", Now: noon}).Candidates {
			if c.Machine.ID == "a" && c.Expectation.Measured != want {
				t.Errorf("for %s it is measured: %v, want %v", member, !want, want)
			}
		}
	}
	assert.Equal(t, standingOf(s), Unserved, "in the open group it")
}

// A newcomer comes after the established machines of its group, except when it is a
// newcomer's turn; it is tried while none of those is ready.
func TestNewcomersComeLast(t *testing.T) {
	s := village(9)
	serve(s, 7, "m2", "m3", "m4")
	for range 16 {
		s.Machine("a").Offer("m").Load.Measure(Circle{Grouped, "g"}, Measurement{At: noon, FirstToken: 10 * time.Second})
		s.Machine("b").Offer("m").Load.Measure(Circle{Grouped, "g"}, Measurement{At: noon, FirstToken: time.Millisecond})
	}
	first := func(turns ...GroupID) MachineID {
		return Route(s, Query{Caller: "m5", Model: "m", Now: noon, Turns: turns}).Candidates[0].Machine.ID
	}
	assert.Equal(t, first(), "a", "is first")
	assert.Equal(t, first("g"), "b", "is first in a newcomer's turn")
	assert.Equal(t, first("h"), "a", "is first in the turn of another group")
	for s.Machine("a").Reserve("m", false) {
	}
	assert.Equal(t, first(), "b", "is first while the other is busy")
}

// Proofs are stored as JSON, and taken over by circle.
func TestProofsAreKept(t *testing.T) {
	s := village(9)
	serve(s, 7, "m2", "m3", "m4")
	l := s.Machine("a").Offer("m").Load
	l.Measure(Circle{Class: Shared}, Measurement{At: noon, FirstToken: time.Second})
	proofs, _ := l.Proofs()
	text := assert.Value(json.Marshal(proofs))(t)
	var read map[Circle]Proof
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err, string(text))
	}
	var other Load
	if !other.SetProofs(read) || other.Speed(Circle{Class: Shared}).FirstToken != 1 || other.LatestSpeed().FirstToken != 1 {
		t.Error("the speed is lost")
	}
	if again, _ := other.Proofs(); !reflect.DeepEqual(again, proofs) {
		t.Errorf("%+v became %+v", proofs, again)
	}
	if standing, calls, members := other.Standing(Circle{Grouped, "g"}); standing != Established || calls != 20 || members != 3 {
		t.Errorf("%v after %d calls of %d members", standing, calls, members)
	}
	for _, text := range []string{"", "group", "shared x", "other x"} {
		assert.That(t, new(Circle).UnmarshalText([]byte(text)) != nil, text, "is a circle")
	}
}

// Measurements of another node are not replaced by a proof that is younger only because a
// call was served that was not measured, and the standing is the higher one of both.
func TestServingIsNoMeasurement(t *testing.T) {
	s := village(9)
	g := Circle{Grouped, "g"}
	var here Load
	here.Measure(g, Measurement{At: noon, FirstToken: time.Second})
	serve(s, 7, "m2", "m3", "m4") // at the other node
	l := s.Machine("a").Offer("m").Load
	l.ServedGroup(s, s.Group("g"), "m0", "m2", noon.Add(time.Hour))
	proofs, at := l.Proofs()
	assert.Equal(t, at, noon.Add(time.Hour), "it changed at")
	here.SetProofs(proofs)
	if speed := here.Speed(g); speed == nil || speed.FirstToken != 1 {
		t.Errorf("the measurements are lost: %+v", speed)
	}
	if standing, _, _ := here.Standing(g); standing != Established {
		t.Errorf("it is %v", standing)
	}
}

// The groups of a model are bounded: the one proven longest ago is forgotten.
func TestGroupsAreBounded(t *testing.T) {
	var l Load
	for i := range maxGroups + 10 {
		l.Measure(Circle{Grouped, GroupID(fmt.Sprint(i))}, Measurement{At: noon.Add(time.Duration(i)), FirstToken: time.Second})
	}
	proofs, _ := l.Proofs()
	if _, first := proofs[Circle{Grouped, "9"}]; first || len(proofs) != maxGroups {
		t.Errorf("%d groups, the tenth among them: %v", len(proofs), first)
	}
}

// A slot can be reserved for a candidate exactly while its state is ready: a scheduler that
// tries again until it has one would not end.
func TestReadyCanBeReserved(t *testing.T) {
	for _, pinned := range []string{"", "g", "h"} { // the group whose admins pinned the machine
		for standing := range Newcomer + 1 {
			for class, caller := range map[Class]MemberID{Own: "m0", Shared: "m7", Grouped: "m2"} {
				for _, slots := range []int{0, 1, 3} { // of the model
					s := village(9).WithShares("m7", []*Share{{ID: "s", Owner: "m0", Member: "m7"}}).
						WithGroup(&Group{ID: "h", Members: []MemberID{"m0", "m2"}})
					m := *s.Machine("a")
					m.Slots, m.Offers = 4, []Offer{{ID: "m", Families: Families(Chat), Slots: slots, Load: m.Offers[0].Load}}
					s = s.WithMachine(&m)
					if g := s.Group(GroupID(pinned)); g != nil {
						g := *g
						g.Pinned = []MachineID{"a"}
						s = s.WithGroup(&g)
					}
					for range standing {
						m.Offers[0].Load.RaiseStanding(Circle{Grouped, "g"})
					}
					for n := 0; ; n++ {
						c, ok := StateOf(s, &Query{Caller: caller, Model: "m", Now: noon}, &m)
						assert.Require(t, ok && c.Class == class, c.Class, ok)
						if reserved := m.Reserve("m", c.Alone()); reserved != (c.State == Ready) {
							t.Fatalf("pinned in %q, %v to the group, for %v, %d slots, %d calls: %v, and a slot is reserved: %v", pinned, standing, class, slots, n, c.State, reserved)
						}
						if c.State != Ready {
							break
						}
					}
				}
			}
		}
	}
}
