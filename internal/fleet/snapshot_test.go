package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// facts are all that a snapshot can be asked, as text.
func facts(s *Snapshot) map[string]string {
	out := map[string]string{}
	for m := range s.Machines() {
		out["machine "+string(m.ID)] = fmt.Sprint(m.Owner, m.Online, m.Paused, m.Offers, m.Hours, s.Machine(m.ID) == m)
	}
	for _, caller := range wMembers {
		reach := ""
		for m, access := range s.Reach(MemberID(caller), Everything) {
			reach += fmt.Sprint(m.ID, access.Class, len(access.shares), access.group != nil, " ")
		}
		out["reach of "+caller] = reach
		for _, model := range wModels {
			d := Route(s, Query{Caller: MemberID(caller), Model: ModelID(model), Now: noon})
			out["route "+caller+" "+model] = fmt.Sprint(d.Row, d.Tally, len(d.Candidates), d.Tally.kept, d.Tally.online)
		}
	}
	for groups := s.groups.Iterator(); !groups.Done(); {
		id, c, _ := groups.Next()
		for models := c.offering.Iterator(); !models.Done(); {
			model, of, _ := models.Next()
			var who []int
			for members := of.Iterator(); !members.Done(); {
				n, _, _ := members.Next()
				who = append(who, n)
			}
			slices.Sort(who)
			out[fmt.Sprint("who of ", id, " offers ", model)] = fmt.Sprint(who)
		}
	}
	return out
}

// A snapshot never changes, whatever is made of it; and after any history it
// knows the same as one built straight from what is true at the end.
func TestSnapshotsPersist(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 3))
		s := NewSnapshot()
		type version struct {
			s     *Snapshot
			knows map[string]string
		}
		var history []version
		machines := map[string]*Machine{}
		shares := map[string][]*Share{}
		groups := map[string]*Group{}
		for range 40 {
			switch id := fmt.Sprint(rng.IntN(6)); rng.IntN(6) {
			case 0, 1, 2:
				m := randomMachine(rng, id, pick(rng, wMembers)).machine(t, noon)
				s, machines[id] = s.WithMachine(m), m
			case 3:
				s = s.WithoutMachine(MachineID(id))
				delete(machines, id)
			case 4:
				member := pick(rng, wMembers)
				shares[member] = nil
				for _, owner := range some(rng, wMembers, 1, 3) {
					shares[member] = append(shares[member], &Share{ID: ShareID(owner + member), Owner: MemberID(owner), Member: MemberID(member)})
				}
				s = s.WithShares(MemberID(member), shares[member])
			case 5:
				if chance(rng, 1, 3) {
					s = s.WithoutGroup(GroupID(id))
					delete(groups, id)
					break
				}
				g := wGroup{id: id, members: some(rng, wMembers, 1, 2), keptOut: some(rng, []string{"0", "1", "2"}, 1, 4)}.group(t)
				s, groups[id] = s.WithGroup(g), g
			}
			history = append(history, version{s, facts(s)})
		}
		for i, v := range history {
			if now := facts(v.s); !maps.Equal(now, v.knows) {
				t.Fatalf("seed %d: version %d of 40 changed from\n%v to\n%v", seed, i, v.knows, now)
			}
		}
		rebuilt := NewSnapshot()
		for i := range s.numbers.Len() { // in the same order, which Reach shows
			for it := s.numbers.Iterator(); !it.Done(); {
				if member, n, _ := it.Next(); n == i {
					rebuilt.number(member)
				}
			}
		}
		for _, m := range machines {
			rebuilt = rebuilt.WithMachine(m)
		}
		for member, of := range shares {
			rebuilt = rebuilt.WithShares(MemberID(member), of)
		}
		for _, g := range groups {
			rebuilt = rebuilt.WithGroup(g)
		}
		if got, want := facts(s), facts(rebuilt); !maps.Equal(got, want) {
			t.Fatalf("seed %d: after its history the snapshot knows\n%v, straight\n%v", seed, got, want)
		}
		for _, m := range machines {
			s = s.WithoutMachine(m.ID)
		}
		for id := range groups {
			s = s.WithoutGroup(GroupID(id))
		}
		if s.models.Len() != 0 || s.owners.Len() != 0 || s.groups.Len() != 0 {
			t.Fatalf("seed %d: with all taken out there are still %d models, %d machines, %d groups", seed, s.models.Len(), s.owners.Len(), s.groups.Len())
		}
	}
}

func offering(models ...ModelID) (offers []Offer) {
	for _, model := range models {
		offers = append(offers, Offer{ID: model, Families: Families(Chat), Slots: 1})
	}
	return offers
}

func TestLoadsSurviveTheMachinesVersions(t *testing.T) {
	s := NewSnapshot().WithMachine(&Machine{ID: "a", Owner: "me", Online: true, Slots: 2, Offers: offering("x", "y")})
	first := s.Machine("a")
	if !first.Reserve("x", false) || first.Reserve("x", false) || !first.Reserve("y", false) || first.Reserve("z", false) {
		t.Fatal("wrong slots reserved")
	}
	s = s.WithMachine(&Machine{ID: "a", Owner: "me", Online: true, Slots: 2, Offers: offering("w", "x")})
	second := s.Machine("a")
	if second.Load != first.Load || second.Offer("x").Load != first.Offer("x").Load {
		t.Error("the new version lost the loads")
	}
	assert.That(t, second.Load.InFlight() == 2 && !second.Reserve("w", false), second.Load.InFlight(), "in flight")
	first.Release("y")
	if !second.Reserve("w", false) || second.Reserve("x", false) {
		t.Error("a slot given back through the old version is not free in the new one")
	}

	s = s.WithShares("me", []*Share{{ID: "s", Owner: "you", Member: "me", Limits: Limits{Concurrent: 1}}})
	_, me := s.find("me")
	old := me.shares[0]
	assert.Require(t, old.Reserve(noon), "cannot reserve of an idle share")
	s = s.WithShares("me", []*Share{{ID: "s", Owner: "you", Member: "me", Limits: Limits{Concurrent: 1, PerDay: 9, Load: NewLimitLoad(time.Now(), 9)}}})
	_, me = s.find("me")
	if me.shares[0].Load != old.Load || me.shares[0].Reserve(noon) {
		t.Error("the new version of the share lost its load")
	}

	limited := func(l *Limits) *Limits {
		s = s.WithGroup(&Group{ID: "g", Members: []MemberID{"me", "you"}, Limits: map[MemberID]*Limits{"you": l}})
		return l
	}
	was := limited(&Limits{Concurrent: 1})
	assert.Require(t, was.Reserve(noon), "cannot reserve of idle limits")
	if is := limited(&Limits{Concurrent: 1, PerDay: 9, Load: NewLimitLoad(time.Now(), 9)}); is.Load != was.Load || is.Reserve(noon) {
		t.Error("the new version of a group's limits lost its load")
	}
}

// Loads that come with a machine stay, whatever there was before.
func TestLoadsThatAreThereStay(t *testing.T) {
	s := NewSnapshot().WithMachine(&Machine{ID: "a", Owner: "me", Offers: offering("x")})
	load, ofModel := new(Load), new(Load)
	m := &Machine{ID: "a", Owner: "me", Load: load, Offers: []Offer{{ID: "x", Load: ofModel}}}
	if s.WithMachine(m); m.Load != load || m.Offers[0].Load != ofModel {
		t.Errorf("now %+v", m)
	}
}

// The indexes are as they were, not like what they were, where nothing of them
// changed: at 100,000 machines a copy costs.
func TestWhatDoesNotChangeIsShared(t *testing.T) {
	s := NewSnapshot().WithMachine(&Machine{ID: "a", Owner: "me", Offers: offering("x")})
	s = s.WithGroup(&Group{ID: "g", Members: []MemberID{"me"}})
	next := s.WithMachine(&Machine{ID: "a", Owner: "me", Online: true, Offers: offering("x")})
	if s.groups != next.groups || s.owners != next.owners || s.zones != next.zones {
		t.Error("a machine that came online made other indexes than that of models")
	}
	if again := next.WithMachine(&Machine{ID: "a", Owner: "me", Online: true, Paused: true, Offers: offering("x")}); again.models != next.models {
		t.Error("a pause made another index of models")
	}
}

// A member's machines are shown by their ids, in whatever order they came.
func TestMachinesAreInOrder(t *testing.T) {
	s := NewSnapshot()
	for _, id := range []MachineID{"b", "c", "a"} {
		s = s.WithMachine(&Machine{ID: id, Owner: "me"})
	}
	shown := ""
	for m := range s.Machines() {
		shown += string(m.ID)
	}
	assert.Equal(t, shown, "abc", "shows")
}

// OfferedBy differs where machines do, online or not, and where a machine offers the
// model for something else.
func TestOfferedBy(t *testing.T) {
	with := func(s *Snapshot, id MachineID, online bool, offers ...Offer) *Snapshot {
		return s.WithMachine(&Machine{ID: id, Owner: "me", Online: online, Offers: offers})
	}
	x, audio := offering("x")[0], Offer{ID: "x", Families: Families(Audio)}
	empty := NewSnapshot()
	one := with(empty, "1", true, x)
	seen := map[OfferedBy]string{}
	for name, s := range map[string]*Snapshot{
		"none": empty, "1": one, "2": with(empty, "2", true, x), "1 and 2": with(one, "2", true, x), "1 for audio": with(empty, "1", true, audio),
	} {
		by := s.OfferedBy("x")
		if other, ok := seen[by]; ok {
			t.Errorf("the same for %s and %s", name, other)
		}
		seen[by] = name
	}
	for name, s := range map[string]*Snapshot{
		"offline": with(one, "1", false, x), "back": with(with(one, "1", true), "1", true, x), "another model": with(one, "2", true, offering("y")...),
		"exchanged twice": with(with(one, "2", true, x), "2", true),
	} {
		assert.Equal(t, s.OfferedBy("x"), one.OfferedBy("x"), name, "it differs")
	}
}

func TestDifference(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"", "", ""}, {"ab", "", "-a-b"}, {"", "ab", "+a+b"}, {"ab", "ab", ""},
		{"bc", "ac", "+a-b"}, {"c", "ac", "+a"}, {"a", "b", "-a+b"}, {"ad", "bcd", "-a+b+c"},
	} {
		var steps []string
		for e, joined := range difference([]byte(c.before), []byte(c.after)) {
			steps = append(steps, map[bool]string{true: "+", false: "-"}[joined]+string(e))
		}
		assert.Equal(t, strings.Join(steps, ""), c.want, "from", c.before, "to", c.after)
		for at := range steps {
			n := 0
			for range difference([]byte(c.before), []byte(c.after)) { // the language panics where this goes on
				if n++; n > at {
					break
				}
			}
		}
	}
}

// A group is kept as it was given, in whatever order.
func TestAGroupsMembersStayInTheirOrder(t *testing.T) {
	g := &Group{ID: "g", Members: []MemberID{"b", "a"}, KeptOut: []MachineID{"2", "1"}}
	NewSnapshot().WithGroup(g)
	assert.That(t, g.Members[0] == "b" && g.KeptOut[0] == "2", "now", g.Members, "without", g.KeptOut)
}

// A share that names another member, or its own owner, gives no reach.
func TestOnlySharesThatNameTheMemberCount(t *testing.T) {
	s := NewSnapshot().WithShares("me", []*Share{{ID: "a", Owner: "you", Member: "her"}, {ID: "b", Owner: "me", Member: "me"}})
	if _, me := s.find("me"); len(me.shares) != 0 {
		t.Errorf("%d shares", len(me.shares))
	}
}

// Of two shares that are as good, a call counts against the first by id, whatever
// the store's order.
func TestTheFirstOfEqualSharesIsUsed(t *testing.T) {
	s := NewSnapshot().WithMachine(&Machine{ID: "a", Owner: "you", Online: true, Slots: 1, Offers: offering("x")})
	for _, ids := range [][]ShareID{{"1", "2"}, {"2", "1"}} {
		var shares []*Share
		for _, id := range ids {
			shares = append(shares, &Share{ID: id, Owner: "you", Member: "me"})
		}
		d := Route(s.WithShares("me", shares), Query{Caller: "me", Model: "x", Now: noon})
		assert.That(t, len(d.Candidates) == 1 && d.Candidates[0].Share.ID == "1", "of", ids, d.Candidates)
	}
}

// What a machine runs is bounded by its own slots, by the model's where it has
// any, and by what others hold of either.
func TestReserveKeepsToEveryBound(t *testing.T) {
	s := NewSnapshot().WithMachine(&Machine{ID: "a", Owner: "me", Online: true, Slots: 6, Offers: []Offer{{ID: "two", Slots: 2}, {ID: "any"}}})
	m := s.Machine("a")
	take := func(model ModelID, want int) {
		t.Helper()
		n := 0
		for m.Reserve(model, false) {
			n++
		}
		if n != want || m.Load.InFlight() != want {
			t.Errorf("%d calls of %s reserved, %d in flight, want %d", n, model, m.Load.InFlight(), want)
		}
		for range n {
			m.Release(model)
		}
	}
	take("unknown", 0)
	take("two", 2)
	take("any", 6)
	m.Load.SetLocal(2)
	take("any", 4)
	m.Offer("two").Load.SetLocal(1)
	take("two", 1)
	assert.Equal(t, m.Load.InFlight(), 0, "in flight after all was given back")
}

// Whether a machine takes others' calls is a matter of its state, not of its slots.
func TestAMachineTakesCalls(t *testing.T) {
	var m *Machine
	for _, state := range []State{Offline, Returning, OutsideHours, Paused, Busy, Ready} {
		w := in(state, "a", "me")
		m = NewSnapshot().WithMachine(w.machine(t, noon)).Machine("a")
		w.load(m, noon)
		assert.Equal(t, m.Accepts(noon), (state >= Busy), "a machine that is", state, "takes calls")
	}
	if m.Load.HoldOut(noon.Add(time.Second)); m.Accepts(noon) || !m.Accepts(noon.Add(time.Second)) {
		t.Error("a machine that is held out takes calls until then")
	}
}

func TestReserveIsExactUnderConcurrency(t *testing.T) {
	const slots, callers = 7, 64
	s := NewSnapshot().WithMachine(&Machine{ID: "a", Owner: "me", Online: true, Slots: 10, Offers: []Offer{{ID: "x", Slots: slots}, {ID: "y"}}})
	m := s.Machine("a")
	m.Offer("x").Load.SetLocal(2)
	share := &Limits{Concurrent: 4, PerDay: 50, Load: new(LimitLoad)}
	var wg sync.WaitGroup
	var mu sync.Mutex
	took := map[string]int{}
	for range callers {
		wg.Go(func() {
			n := map[string]int{}
			for range 20_000 {
				if m.Reserve("x", false) {
					if n := m.Offer("x").Load.InFlight(); n > slots-2 {
						t.Errorf("%d calls on %d slots", n, slots-2)
					}
					m.Release("x")
				}
				if share.Reserve(noon) {
					if n := share.Load.running.Load(); n > 4 {
						t.Errorf("%d calls at once of 4", n)
					}
					share.Release(true, noon)
					n["share"]++
				}
			}
			mu.Lock()
			took["share"] += n["share"]
			mu.Unlock()
		})
	}
	wg.Wait()
	if m.Load.InFlight() != 0 || m.Offer("x").Load.InFlight() != 0 || took["share"] != 50 {
		t.Errorf("%d and %d still in flight, %d calls of the day's 50", m.Load.InFlight(), m.Offer("x").Load.InFlight(), took["share"])
	}
}

// Of what many reserve and give back at once, not one is lost. It takes so many,
// of one kind at a time, because they must come between each other's look and its
// writing; under the race detector, which -short is for, that happens more often.
func TestNoReservationIsLost(t *testing.T) {
	const callers = 4
	each := 500_000
	if testing.Short() {
		each = 50_000
	}
	all := callers * each
	m := NewSnapshot().WithMachine(&Machine{ID: "a", Owner: "me", Slots: all, Offers: []Offer{{ID: "x"}}}).Machine("a")
	share := &Limits{Concurrent: all, PerDay: all, Load: new(LimitLoad)}
	for _, step := range []struct {
		do                     func()
		held, running, started int
	}{
		{func() { m.Reserve("x", false) }, all, 0, 0},
		{func() { share.Reserve(noon) }, all, all, all},
		{func() { m.Release("x") }, 0, all, all},
		{func() { share.Release(false, noon) }, 0, 0, 0},
		{func() { share.Reserve(noon); share.Release(true, noon) }, 0, 0, all},
	} {
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range each {
					step.do()
				}
			})
		}
		wg.Wait()
		held, running, started := m.Load.InFlight(), int(share.Load.running.Load()), share.Load.Started(noon)
		if held != step.held || running != step.running || started != step.started {
			t.Errorf("%d slots are held, %d calls run, %d started; want %d, %d, %d", held, running, started, step.held, step.running, step.started)
		}
	}
}

func TestAShareCountsItsDay(t *testing.T) {
	share := &Limits{PerDay: 2, Load: new(LimitLoad)}
	late := time.Date(2026, 11, 21, 23, 59, 59, 0, time.UTC)
	tomorrow := late.Add(time.Second)
	for i, want := range []bool{true, true, false} {
		if got := share.Reserve(late); got != want {
			t.Fatalf("call %d of a day with two: reserved %v", i+1, got)
		}
	}
	assert.Require(t, share.spent(late), "two of two calls, and the day is not spent")
	share.Release(false, late) // no machine started it: it does not count
	assert.That(t, !share.spent(late) && share.Reserve(late), "a call that never started is counted")
	if n := share.Load.running.Load(); share.Reserve(late) || share.Load.running.Load() != n || n != 2 {
		t.Errorf("a third call of two was taken, or left a trace: %d run", share.Load.running.Load())
	}
	assert.That(t, !share.spent(tomorrow) && share.Reserve(tomorrow), "yesterday's calls are counted")
	share.Release(false, late) // of yesterday: no business of today's count
	assert.Equal(t, share.Load.Started(tomorrow), 1, "calls today")
	if share.Load = NewLimitLoad(late, 2); share.Load.Started(late) != 2 || !share.spent(late) || share.spent(tomorrow) {
		t.Errorf("after a restart %d calls of two are counted on their day, %d on the next", share.Load.Started(late), share.Load.Started(tomorrow))
	}
}

func TestAShareOfOneCall(t *testing.T) {
	for _, share := range []*Limits{{PerDay: 1}, {Concurrent: 1}} {
		share.Load = new(LimitLoad)
		if !share.Reserve(noon) || share.Reserve(noon) || share.Load.running.Load() != 1 {
			t.Errorf("with %d a day, %d at once: %d run", share.PerDay, share.Concurrent, share.Load.running.Load())
		}
	}
}

// Readers of old and new snapshots run beside the writer; for the race detector.
func TestReadersBesideTheWriter(t *testing.T) {
	s := NewSnapshot()
	for i := range 20 {
		owner := MemberID(fmt.Sprint("m", i%5))
		s = s.WithMachine(&Machine{ID: MachineID(fmt.Sprint(i)), Owner: owner, Online: true, Slots: 2, Hours: hours(t, "Sat 00:00-24:00", "Europe/Berlin"), Offers: offering("x", "y")})
	}
	s = s.WithGroup(&Group{ID: "g", Members: []MemberID{"m0", "m1", "m2", "m3"}})
	snapshots := make(chan *Snapshot, 200)
	snapshots <- s
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for s := range snapshots {
				for d := range uint64(10) {
					for _, c := range Route(s, Query{Caller: "m0", Model: "x", Now: noon, Draw: d}).Candidates {
						if c.Machine.Reserve("x", false) {
							c.Offer.Load.Measure(Circle{}, Measurement{At: noon, FirstToken: time.Millisecond})
							c.Machine.Release("x")
						}
					}
				}
			}
		})
	}
	for i := range 150 {
		m := *s.Machine(MachineID(fmt.Sprint(i % 20))) // shares its offers with the version before
		m.Paused = !m.Paused
		m.Online = i%3 != 0
		s = s.WithMachine(&m).WithMachine(&m)
		if i%10 == 0 {
			s = s.WithGroup(&Group{ID: "g", Members: []MemberID{"m0", "m1", MemberID(fmt.Sprint("m", i%5))}})
		}
		snapshots <- s
	}
	close(snapshots)
	wg.Wait()
}

// One zone is kept once, however many machines are in it.
func TestZonesAreKeptOnce(t *testing.T) {
	s := NewSnapshot()
	for i := range 3 {
		s = s.WithMachine(&Machine{ID: MachineID(fmt.Sprint(i)), Owner: "me", Hours: hours(t, "Mon 10:00-11:00", "Europe/Lisbon")})
	}
	a, b := s.Machine("0").Hours.zone, s.Machine("2").Hours.zone
	if a != b || a.String() != "Europe/Lisbon" {
		t.Errorf("zones %p and %p", a, b)
	}
}

func TestWireWords(t *testing.T) {
	set := Families(Chat, Audio)
	if !set.Has(Chat) || set.Has(Embeddings) || !slices.Equal(slices.Collect(set.All()), []Family{Chat, Audio}) {
		t.Error("wrong families")
	}
	at := Endpoints(Messages, ChatCompletions)
	if !at.Has(Messages) || at.Has(Responses) || !slices.Equal(slices.Collect(at.All()), []Endpoint{ChatCompletions, Messages}) {
		t.Error("wrong endpoints")
	}
	for f := range families {
		if got, ok := ParseFamily(f.String()); !ok || got != f {
			t.Errorf("family %d is %s", f, f)
		}
	}
	for e := range endpoints {
		if got, ok := ParseEndpoint(e.Path()); !ok || got != e {
			t.Errorf("endpoint %d is %s", e, e)
		}
	}
	for range set.All() {
		break // must be the end of it
	}
	for range at.All() {
		break
	}
}

// TestRaise checks that a count of the day is only ever raised, and not for a day that is
// over.
func TestRaise(t *testing.T) {
	load, tomorrow := NewLimitLoad(noon, 3), noon.Add(24*time.Hour)
	for _, step := range []struct {
		at         time.Time
		n          int
		now, later int
	}{
		{noon, 2, 3, 0},
		{noon, 5, 5, 0},
		{tomorrow, 1, 0, 1},
		{noon, 9, 0, 1},
		{tomorrow, 0, 0, 1},
	} {
		load.Raise(step.at, step.n)
		if load.Started(noon) != step.now || load.Started(tomorrow) != step.later {
			t.Errorf("raised to %d at %s: %d today and %d tomorrow", step.n, step.at, load.Started(noon), load.Started(tomorrow))
		}
	}
}
