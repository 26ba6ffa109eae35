package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// In random worlds, whatever the store changed, a caller who is not affected gets the
// same decision as before.
func TestUnaffectedCallersGetTheSame(t *testing.T) {
	spared, moved := 0, 0
	for seed := range worlds(20_000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		w := randomWorld(rng)
		before := w.snapshot(t, rng)
		after, changes := before, []Change{}
		for range 1 + rng.IntN(2) {
			var c Change
			after, c = randomChange(t, rng, w, after)
			changes = append(changes, c)
		}
		affected := AffectedBy(before, after, changes)
		for range 8 {
			a := randomAsk(rng, w).ask(w, rng.Uint64())
			a.Caller = MemberID(pick(rng, wMembers))
			was, is := Route(before, a), Route(after, a)
			got, want := outcome(is), outcome(was)
			switch {
			case was.Tally.noSpeech != is.Tally.noSpeech: // refused at once, so that none waits
			case !affected.Includes(&a) && got != want:
				t.Fatalf("world %d: %+v do not affect %s who calls %s, and yet:\n%s\nwas\n%s", seed, changes, a.Caller, a.Model, got, want)
			case !affected.Includes(&a):
				spared++
			case got != want:
				moved++
			}
			if affected.Includes(&a) && !affected.Any() {
				t.Fatalf("world %d: no one is affected, except %s", seed, a.Caller)
			}
		}
	}
	assert.That(t, moved != 0 && spared != 0, moved, "decisions moved", spared, "were spared: this tested nothing")
}

// Keys, members and sessions move no one's reach by themselves.
func TestWhoIsNobodysConcern(t *testing.T) {
	s := NewSnapshot()
	for _, kind := range []ChangeKind{KeyChanged, MemberChanged, SessionsChanged} {
		if AffectedBy(s, s, []Change{{Kind: kind, ID: "ann"}}).Any() {
			t.Errorf("a change of %s affects someone", kind)
		}
	}
}

func outcome(d Decision) string {
	text := fmt.Sprint(d.Verdict, d.Row, d.Fault)
	for _, c := range d.Candidates {
		text += fmt.Sprint(" ", c.Machine.ID, c.Class)
		if c.Share != nil {
			text += string(c.Share.ID)
		}
		if c.Group != nil {
			text += string(c.Group.ID)
		}
	}
	return text
}

// randomChange returns a change of the store and the Change that announces it.
func randomChange(t *testing.T, rng *rand.Rand, w *world, s *Snapshot) (*Snapshot, Change) {
	member := pick(rng, wMembers)
	group := fmt.Sprint("grp", rng.IntN(3))
	machine := MachineID("none")
	if len(w.machines) > 0 {
		machine = MachineID(pick(rng, w.machines).id)
	}
	switch rng.IntN(8) {
	case 0:
		return s, Change{Kind: KeyChanged, ID: "key"}
	case 1:
		return s, Change{Kind: MemberChanged, ID: member}
	case 2:
		var shares []*Share
		for _, owner := range some(rng, wMembers, 1, 3) {
			shares = append(shares, &Share{ID: ShareID(owner + member), Owner: MemberID(owner), Member: MemberID(member), Limits: Limits{PerDay: rng.IntN(2)}})
		}
		return s.WithShares(MemberID(member), shares), Change{Kind: SharesChanged, ID: member}
	case 3:
		return s.WithoutGroup(GroupID(group)), Change{Kind: GroupChanged, ID: group}
	case 4, 5:
		g := wGroup{id: group, members: some(rng, wMembers, 1, 2)}
		for _, m := range w.machines {
			if chance(rng, 1, 6) {
				g.keptOut = append(g.keptOut, m.id)
			}
		}
		if c, ok := s.groups.Get(GroupID(group)); ok && chance(rng, 1, 2) { // one joins, or only what is kept out moves
			g.members = nil
			for _, id := range c.ids {
				g.members = append(g.members, string(id))
			}
			g.members = append(g.members, some(rng, []string{member}, 1, 2)...)
		}
		for _, before := range w.groups {
			if before.id == group {
				g.limits = slices.Clone(before.limits)
			}
		}
		if chance(rng, 1, 2) {
			g.limits = randomLimitsOf(rng)
		}
		return s.WithGroup(g.group(t)), Change{Kind: GroupChanged, ID: group}
	case 6:
		return s.WithoutMachine(machine), Change{Kind: MachineChanged, ID: string(machine)}
	default:
		if m := s.Machine(machine); m != nil {
			next := *m
			next.KeptOut = chance(rng, 1, 2)
			next.Name = "renamed"
			return s.WithMachine(&next), Change{Kind: MachineChanged, ID: string(machine)}
		}
		return s.WithMachine(randomMachine(rng, "new", member).machine(t, w.now)), Change{Kind: MachineChanged, ID: "new"}
	}
}

// What touches one member concerns that one alone.
func TestConcernIsSmall(t *testing.T) {
	members := []MemberID{"bob", "cid", "dan"}
	start := NewSnapshot().WithGroup(&Group{ID: "g", Members: members}).
		WithMachine(&Machine{ID: "box", Owner: "dan", Online: true, Slots: 1, Offers: offering("m", "n")})
	named := *start.Machine("box")
	named.Name = "other"
	kept := *start.Machine("box")
	kept.KeptOut = true
	given := *start.Machine("box")
	given.Owner = "cid"
	for _, c := range []struct {
		name   string
		after  *Snapshot
		change Change
		want   string // who of bob, cid, eve and fay is concerned if they ask for m, for x
	}{
		{"a key", start, Change{Kind: KeyChanged, ID: "k"}, ""},
		{"a member", start, Change{Kind: MemberChanged, ID: "bob"}, ""},
		{"a share", start.WithShares("bob", nil), Change{Kind: SharesChanged, ID: "bob"}, "bob:m bob:x "},
		{"joins without a machine", start.WithGroup(&Group{ID: "g", Members: append(members, "eve")}), Change{Kind: GroupChanged, ID: "g"}, "eve:m eve:x "},
		{"leaves with one", start.WithGroup(&Group{ID: "g", Members: members[:2]}), Change{Kind: GroupChanged, ID: "g"}, "bob:m cid:m eve:m fay:m "},
		{"the last but one leaves", start.WithGroup(&Group{ID: "g", Members: members[1:2]}), Change{Kind: GroupChanged, ID: "g"}, "bob:m bob:x cid:m cid:x eve:m fay:m "},
		{"a name", start.WithMachine(&named), Change{Kind: MachineChanged, ID: "box"}, ""},
		{"a machine kept out", start.WithMachine(&kept), Change{Kind: MachineChanged, ID: "box"}, "bob:m cid:m eve:m fay:m "},
		{"one kept out of the group", start.WithGroup(&Group{ID: "g", Members: members, KeptOut: []MachineID{"box"}}), Change{Kind: GroupChanged, ID: "g"}, "bob:m cid:m eve:m fay:m "},
		{"a limit of the group", start.WithGroup(&Group{ID: "g", Members: members, Limits: map[MemberID]*Limits{"dan": {PerDay: 1}}}), Change{Kind: GroupChanged, ID: "g"}, "bob:m cid:m eve:m fay:m "},
		{"one of an owner without machines", start.WithGroup(&Group{ID: "g", Members: members, Limits: map[MemberID]*Limits{"bob": {PerDay: 1}}}), Change{Kind: GroupChanged, ID: "g"}, ""},
		{"a machine of another owner", start.WithMachine(&given), Change{Kind: MachineChanged, ID: "box"}, "bob:m cid:m eve:m fay:m "},
		{"a machine revoked", start.WithoutMachine("box"), Change{Kind: MachineChanged, ID: "box"}, "bob:m cid:m eve:m fay:m "},
		{"what this hub does not know", start, Change{Kind: "weather"}, "bob:m bob:x cid:m cid:x eve:m eve:x fay:m fay:x "},
	} {
		affected, got := AffectedBy(start, c.after, []Change{c.change}), ""
		for _, member := range []MemberID{"bob", "cid", "eve", "fay"} {
			for _, model := range []ModelID{"m", "x"} {
				if affected.Includes(&Query{Caller: member, Model: model}) {
					got += fmt.Sprint(member, ":", model, " ")
				}
			}
		}
		assert.That(t, got == c.want && affected.Any() == (c.want != ""), c.name, "concerns", got, c.want)
	}
	affected := AffectedBy(start.WithGroup(&Group{ID: "g", Members: members[:2]}), start, []Change{{Kind: GroupChanged, ID: "g"}})
	if !affected.Includes(&Query{Caller: "fay", Model: "m"}) || affected.Includes(&Query{Caller: "fay", Model: "x"}) {
		t.Error("one joins with a machine: not those who ask for what it offers")
	}
	assert.That(t, AffectedBy(start, start, nil).Includes(&Query{}), "no word on what changed concerns no one")
}

// Each of an owner's limits for a group affects its members when it changes alone.
func TestEachLimitAffects(t *testing.T) {
	with := func(l Limits) *Snapshot {
		return NewSnapshot().WithMachine(&Machine{ID: "box", Owner: "dan", Online: true, Slots: 1, Offers: offering("m", "n")}).
			WithGroup(&Group{ID: "g", Members: []MemberID{"bob", "dan"}, Limits: map[MemberID]*Limits{"dan": &l}})
	}
	start := func() Limits {
		return Limits{Models: []ModelID{"m"}, Hours: knownHours(t, "Mon 08:00-09:00", "UTC"), Concurrent: 2, PerDay: 3}
	}
	for name, change := range map[string]func(*Limits){
		"models": func(l *Limits) { l.Models = []ModelID{"n"} }, "hours": func(l *Limits) { l.Hours = knownHours(t, "Tue 08:00-09:00", "UTC") },
		"concurrent": func(l *Limits) { l.Concurrent++ }, "per day": func(l *Limits) { l.PerDay++ }, "none": func(*Limits) {},
	} {
		after := start()
		change(&after)
		if got := AffectedBy(with(start()), with(after), []Change{{Kind: GroupChanged, ID: "g"}}).Any(); got != (name != "none") {
			t.Errorf("%s: affected %t", name, got)
		}
	}
}
