package fleet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

var update = flag.Bool("update", false, "write testdata/verdicts.txt again, for a person to review")

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) // a Saturday

// in is a machine of that owner which is in that state for a caller it is
// shared with; a spent one by the share that spent makes.
func in(state State, id, owner string) wMachine {
	m := wMachine{id: id, owner: owner, online: true, slots: 1, offers: []wOffer{{model: "m", families: []Family{Chat, Embeddings, Audio}}}}
	switch state {
	case Offline:
		m.online = false
	case Returning:
		m.online, m.backIn = false, time.Second
	case OutsideHours:
		m.hours, m.zone = []wWindow{{days: []time.Weekday{time.Sunday}, from: 60, to: 120}}, "UTC"
	case Paused:
		m.paused = true
	case Busy:
		m.inFlight = 1
	}
	return m
}

func sharing(state State, owner string) wShare {
	s := wShare{id: "shr-" + owner, owner: owner, member: "me"}
	if state == Spent {
		s.perDay, s.today = 1, 1
	}
	return s
}

// each of the states that a machine of the caller's own, or of a sharer, can have.
var (
	ownStates    = []State{Offline, Returning, Paused, Busy, Ready}
	sharedStates = []State{Offline, Returning, OutsideHours, Paused, Spent, Busy, Ready}
)

// stateWorld has one machine of the caller's own in each of those states, and one
// shared with the caller, each by another member, in each of those.
func stateWorld(own, shared []State) *world {
	w := &world{now: noon}
	for i, state := range own {
		w.machines = append(w.machines, in(state, fmt.Sprint("own", i), "me"))
	}
	for i, state := range shared {
		owner := fmt.Sprint("friend", i)
		w.machines = append(w.machines, in(state, fmt.Sprint("shared", i), owner))
		w.shares = append(w.shares, sharing(state, owner))
	}
	return w
}

// Every set of states of own and shared machines, in every phase of a call and
// both families' columns: 2^5 × 2^7 worlds, 12 asks each.
func TestRouteAgreesWithItsTwinOnEverySetOfStates(t *testing.T) {
	subset := func(of []State, bits int) (out []State) {
		for i, state := range of {
			if bits&(1<<i) != 0 {
				out = append(out, state)
			}
		}
		return out
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for own := range 1 << len(ownStates) {
		for shared := range 1 << len(sharedStates) {
			w := stateWorld(subset(ownStates, own), subset(sharedStates, shared))
			s := w.snapshot(t, rng)
			for _, a := range phases(w) {
				for _, a.family = range []Family{Chat, Embeddings} {
					if diff := w.disagrees(Route(s, a.ask(w, 7)), a); diff != "" {
						t.Fatalf("own %v, shared %v, %+v: %s", subset(ownStates, own), subset(sharedStates, shared), a, diff)
					}
				}
			}
		}
	}
}

// phases are the moments of a call: first, with one candidate tried, with all
// that are alive tried and gone, each before and after its wait.
func phases(w *world) []wAsk {
	first := wAsk{caller: "me", model: "m"}
	one, all := first, first
	one.gone, all.gone = true, true
	for _, m := range w.machines {
		if alive := m.online && !m.paused && m.hours == nil || m.backIn > 0; alive {
			all.avoid = append(all.avoid, m.id)
		}
	}
	one.avoid = all.avoid[:min(1, len(all.avoid))]
	out := []wAsk{first, one, all}
	for _, a := range slices.Clone(out) {
		a.waited = true
		out = append(out, a)
	}
	return out
}

// TestVerdicts holds every verdict a call can meet with up to three machines in
// testdata/verdicts.txt, for a person to read beside docs/spec/routing.md.
func TestVerdicts(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# What fleet.Route decides. Written by: go test ./internal/fleet -run TestVerdicts -update
# A verdict: row of docs/spec/routing.md, what the call gets. A|B: chat, responses, messages | embeddings, audio.
# +wait: wait_elapsed. !: x-should-retry: false. A try names the machines' classes in their order.
`)
	writeReachable(t, &b)
	writeOutOfReach(t, &b)
	writeTwoWays(t, &b)
	writeGroupLimits(t, &b)

	const file = "testdata/verdicts.txt"
	if *update {
		assert.OK(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want := assert.Value(os.ReadFile(file))(t)
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("%s is not what Route decides (-file +Route); if Route is right, run with -update and read the change:\n%s", file, diff)
	}
}

// cell is both families' answers to one ask.
func cell(t *testing.T, s *Snapshot, w *world, a wAsk) string {
	one := func(family Family) string {
		a.family = family
		d := Route(s, a.ask(w, 7))
		assert.Equal(t, w.disagrees(d, a), "", a)
		out := fmt.Sprintf("%d ", d.Row)
		switch d.Verdict {
		case Refuse:
			out += string(d.Fault.Code)
			if d.Fault.NoRetry {
				out += "!"
			}
			if d.Fault.Reason != "" {
				out += "+wait"
			}
			return out
		case Try:
			var ways []string
			for _, c := range d.Candidates {
				ways = append(ways, c.Class.String())
			}
			return out + "try " + strings.Join(ways, ", ")
		default:
			return out + "wait"
		}
	}
	chat, rest := one(Chat), one(Embeddings)
	if audio := one(Audio); audio != rest && (audio != "1 invalid_request" || w.speaks(a.exclude)) {
		t.Errorf("audio is %s, embeddings %s", audio, rest)
	}
	if chat == rest {
		return chat
	}
	return chat + "|" + rest[strings.Index(rest, " ")+1:]
}

// writeReachable groups the sets of machines by what happens with them.
func writeReachable(t *testing.T, b *strings.Builder) {
	rng := rand.New(rand.NewPCG(1, 1))
	b.WriteString(`
## Machines in reach: every set of up to two of the caller's own and two shared with them
# first: as the call comes. tried: every machine that would run it was tried and found gone.
# waited: the time to wait is over. Below, with what it happens: any of these own, with any of these shared.
`)
	var outcomes []string
	type block struct{ own, shared []string } // each of these own sets with each of these shared
	blocks := map[string][]block{}            // by outcome
	for _, own := range upToTwo(ownStates) {
		shared := map[string][]string{} // by outcome
		for _, others := range upToTwo(sharedStates) {
			if len(own)+len(others) == 0 {
				continue
			}
			w := stateWorld(own, others)
			s, p := w.snapshot(t, rng), phases(w)
			outcome := fmt.Sprintf("\nfirst %s; tried %s; waited %s; waited and tried %s\n",
				cell(t, s, w, p[0]), cell(t, s, w, p[2]), cell(t, s, w, p[3]), cell(t, s, w, p[5]))
			if !slices.Contains(outcomes, outcome) {
				outcomes = append(outcomes, outcome)
			}
			shared[outcome] = append(shared[outcome], join(others))
		}
		for outcome, with := range shared {
			at := slices.IndexFunc(blocks[outcome], func(b block) bool { return slices.Equal(b.shared, with) })
			if at < 0 {
				blocks[outcome] = append(blocks[outcome], block{nil, with})
				at = len(blocks[outcome]) - 1
			}
			blocks[outcome][at].own = append(blocks[outcome][at].own, join(own))
		}
	}
	for _, outcome := range outcomes {
		b.WriteString(outcome)
		for _, block := range blocks[outcome] {
			b.WriteString(fold("    own    ", block.own) + fold("    shared ", block.shared))
		}
	}
}

// upToTwo is every set of at most two machines by their states.
func upToTwo(of []State) [][]State {
	sets := [][]State{nil}
	for i, one := range of {
		sets = append(sets, []State{one})
		for _, two := range of[i:] {
			sets = append(sets, []State{one, two})
		}
	}
	return sets
}

// join names a set of states in words of one piece.
func join(of []State) string {
	if len(of) == 0 {
		return "none"
	}
	var words []string
	for _, state := range of {
		words = append(words, strings.TrimSuffix(state.String(), " hours"))
	}
	return strings.Join(words, "+")
}

// fold writes the words after the head, in lines of some 120 columns.
func fold(head string, words []string) string {
	var b strings.Builder
	line := head
	for _, word := range words {
		if len(line)+len(word) > 120 {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = strings.Repeat(" ", len(head))
		}
		line += word + "  "
	}
	return b.String() + strings.TrimRight(line, " ") + "\n"
}

func writeOutOfReach(t *testing.T, b *strings.Builder) {
	rng := rand.New(rand.NewPCG(1, 1))
	fmt.Fprintf(b, `
## Nothing in reach, by what is out of it and who shares with the caller
# other models: a share that does not cover this one. alone: in a group without another member.
# narrowed: a friend's machine has it, and the key reaches the caller's own only.

`)
	const line = "%-12s %-14s  %-48s  %s\n"
	fmt.Fprintf(b, line, "elsewhere", "who shares", "reach confirmed", "reach not confirmed")
	for _, elsewhere := range []string{"nothing", "offline", "online"} {
		for _, who := range []string{"nobody", "alone", "other models", "group", "narrowed"} {
			w := &world{now: noon}
			a := wAsk{caller: "me", model: "m"}
			if elsewhere != "nothing" {
				state := Ready
				if elsewhere == "offline" {
					state = Offline
				}
				w.machines = append(w.machines, in(state, "theirs", "friend"))
			}
			switch who {
			case "alone":
				w.groups = []wGroup{{id: "g", members: []string{"me"}}}
			case "other models":
				w.shares = []wShare{{id: "s", owner: "friend", member: "me", models: []string{"another"}}}
			case "group":
				w.groups = []wGroup{{id: "g", members: []string{"me", "friend"}, keptOut: []string{"theirs"}}}
			case "narrowed":
				w.shares = []wShare{{id: "s", owner: "friend", member: "me"}}
				a.narrow = OwnOnly
			}
			s := w.snapshot(t, rng)
			confirmed := cell(t, s, w, a)
			a.unconfirmed = true
			fmt.Fprintf(b, line, elsewhere, who, confirmed, cell(t, s, w, a))
		}
	}
}

func writeTwoWays(t *testing.T, b *strings.Builder) {
	rng := rand.New(rand.NewPCG(1, 1))
	fmt.Fprintf(b, `
## One machine, by a share with limits and by a group: a share with this caller decides alone

`)
	const line = "%-22s %-28s  %s\n"
	fmt.Fprintf(b, line, "the share", "the group", "the call")
	for _, share := range []string{"none", "no limits", "another model", "outside hours", "spent", "concurrent met"} {
		for _, group := range []string{"none", "member", "member, kept out of it", "member, kept out of all", "member, of others alone"} {
			w := &world{now: noon, machines: []wMachine{in(Ready, "theirs", "friend")}}
			sh := wShare{id: "s", owner: "friend", member: "me"}
			switch share {
			case "another model":
				sh.models = []string{"another"}
			case "outside hours":
				sh.hours = []wWindow{{days: []time.Weekday{time.Sunday}, from: 60, to: 120}}
				w.machines[0].zone = "UTC"
			case "spent":
				sh.perDay, sh.today = 2, 2
			case "concurrent met":
				sh.concurrent, sh.running = 1, 1
			}
			if share != "none" {
				w.shares = []wShare{sh}
			}
			g := wGroup{id: "g", members: []string{"me", "friend"}}
			switch group {
			case "member, kept out of it":
				g.keptOut = []string{"theirs"}
			case "member, kept out of all":
				w.machines[0].keptOut = true
			case "member, of others alone":
				w.machines[0].limited, w.machines[0].only = true, []string{"another"}
			}
			if group != "none" {
				w.groups = []wGroup{g}
			}
			s := w.snapshot(t, rng)
			fmt.Fprintf(b, line, share, group, cell(t, s, w, wAsk{caller: "me", model: "m"}))
		}
	}
}

func writeGroupLimits(t *testing.T, b *strings.Builder) {
	rng := rand.New(rand.NewPCG(1, 1))
	fmt.Fprintf(b, `
## One machine, by groups to which its owner set limits: the best way is taken

`)
	const line = "%-22s %-24s  %s\n"
	fmt.Fprintf(b, line, "the group's limits", "another group in common", "the call")
	states := []string{"none", "within them", "another model", "outside hours", "spent", "concurrent met"}
	limits := func(state string) []wShare {
		l := wShare{owner: "friend"}
		switch state {
		case "none":
			return nil
		case "within them":
			l.models, l.perDay, l.concurrent = []string{"m"}, 1, 1
		case "another model":
			l.models = []string{"another"}
		case "outside hours":
			l.hours = []wWindow{{days: []time.Weekday{time.Sunday}, from: 60, to: 120}}
		case "spent":
			l.perDay, l.today = 2, 2
		case "concurrent met":
			l.concurrent, l.running = 1, 1
		}
		return []wShare{l}
	}
	for _, one := range states {
		for _, other := range append([]string{"-"}, states...) {
			w := &world{now: noon, machines: []wMachine{in(Ready, "theirs", "friend")}}
			w.machines[0].zone = "UTC"
			members := []string{"me", "friend"}
			w.groups = []wGroup{{id: "g", members: members, limits: limits(one)}}
			if other != "-" {
				w.groups = append(w.groups, wGroup{id: "h", members: members, limits: limits(other)})
			}
			s := w.snapshot(t, rng)
			by := ""
			if d := Route(s, Query{Caller: "me", Model: "m", Now: noon}); d.Verdict == Try {
				by = " " + string(d.Candidates[0].Group.ID)
			}
			fmt.Fprintf(b, line, one, other, cell(t, s, w, wAsk{caller: "me", model: "m"})+by)
		}
	}
}

func TestOrderOfAttempts(t *testing.T) {
	// A machine that computes 1,000 tokens a second, and makes so many.
	offer := func(rate float64) []wOffer {
		return []wOffer{{model: "m", families: []Family{Chat}, speed: &wSpeed{start: 0.1, prefill: 0.001, decode: map[int]float64{1: 1 / rate}, hit: 1, room: 4096, dueIn: time.Hour}}}
	}
	unknown := []wOffer{{model: "m", families: []Family{Chat}}}
	long := wAsk{prompt: 20_000, output: 100}
	sent := func(machine string, all ...wSent) wAsk {
		a := long
		a.sent = map[string][]wSent{machine: all}
		return a
	}
	for _, c := range []struct {
		name     string
		ask      wAsk
		machines []wMachine
		want     string
	}{
		{"class before all else", long, []wMachine{
			{id: "g", owner: "member", slots: 9, offers: offer(1000)},
			{id: "s", owner: "friend", slots: 9, inFlight: 4, offers: offer(100)},
			{id: "o", owner: "me", slots: 9, inFlight: 8, offers: offer(10)},
		}, "o s g"},
		{"the faster first", long, []wMachine{
			{id: "a", owner: "friend", slots: 1, offers: offer(10)},
			{id: "b", owner: "friend", slots: 1, offers: offer(50)},
			{id: "c", owner: "friend", slots: 1, offers: offer(20)},
		}, "b c a"},
		{"of the same speed, those where fewer calls run", wAsk{output: 1000}, []wMachine{
			{id: "a", owner: "me", slots: 10, inFlight: 4, offers: offer(50)},
			{id: "b", owner: "me", slots: 10, inFlight: 1, offers: offer(50)},
			{id: "c", owner: "me", slots: 10, local: 7, offers: offer(50)},
		}, "b a c"},
		{"the slower first that has the prompt", sent("a", wSent{19_000, 4095}), []wMachine{
			{id: "a", owner: "me", slots: 1, offers: offer(20)},
			{id: "b", owner: "me", slots: 1, offers: offer(100)},
		}, "a b"},
		{"unless it got as much of other prompts since as it keeps", sent("a", wSent{19_000, 4096}), []wMachine{
			{id: "a", owner: "me", slots: 1, offers: offer(20)},
			{id: "b", owner: "me", slots: 1, offers: offer(100)},
		}, "b a"},
		{"but a part of the prompt may have been sent there later", sent("a", wSent{19_000, 4096}, wSent{15_000, 0}), []wMachine{
			{id: "a", owner: "me", slots: 1, offers: offer(20)},
			{id: "b", owner: "me", slots: 1, offers: offer(100)},
		}, "a b"},
		{"unless what is left takes as long", sent("a", wSent{2_000, 0}), []wMachine{
			{id: "a", owner: "me", slots: 1, offers: offer(10)},
			{id: "b", owner: "me", slots: 1, offers: offer(100)},
		}, "b a"},
		{"not that of another class", sent("s", wSent{19_000, 0}), []wMachine{
			{id: "s", owner: "friend", slots: 1, offers: offer(100)},
			{id: "o", owner: "me", slots: 1, offers: offer(10)},
		}, "o s"},
		{"a short prompt measures a new machine", wAsk{prompt: 2000, output: 10}, []wMachine{
			{id: "a", owner: "me", slots: 1, offers: offer(100)},
			{id: "new", owner: "me", slots: 1, offers: unknown},
		}, "new a"},
		{"a long one does not", wAsk{prompt: 2001, output: 1000, typical: &wSpeed{start: 1, prefill: 0.1}}, []wMachine{
			{id: "a", owner: "me", slots: 1, offers: offer(100)},
			{id: "new", owner: "me", slots: 1, offers: unknown},
		}, "a new"},
		{"three at most", wAsk{output: 1000}, []wMachine{
			{id: "a", owner: "me", slots: 1, offers: offer(10)},
			{id: "b", owner: "me", slots: 1, offers: offer(20)},
			{id: "c", owner: "me", slots: 1, offers: offer(30)},
			{id: "d", owner: "me", slots: 1, offers: offer(40)},
			{id: "e", owner: "me", slots: 1, offers: offer(50)},
		}, "e d c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{now: noon, machines: c.machines}
			for i := range w.machines {
				w.machines[i].online = true
			}
			w.shares = []wShare{{id: "s", owner: "friend", member: "me"}}
			w.groups = []wGroup{{id: "g", members: []string{"me", "member"}}}
			c.ask.caller, c.ask.model = "me", "m"
			for seed := range uint64(20) {
				s := w.snapshot(t, rand.New(rand.NewPCG(seed, 0)))
				var got []string
				for _, m := range Route(s, c.ask.ask(w, seed)).Candidates {
					got = append(got, string(m.Machine.ID))
				}
				assert.Require(t, strings.Join(got, " ") == c.want, "tried in the order", got, c.want)
			}
		})
	}
}

// The draw breaks ties evenly, and the same draw breaks them the same way.
func TestTheDrawBreaksTies(t *testing.T) {
	s := NewSnapshot()
	const machines, draws = 10, 20_000
	for i := range machines {
		s = s.WithMachine(&Machine{ID: MachineID(fmt.Sprint("mch", i)), Owner: "me", Online: true, Slots: 1, Offers: []Offer{{ID: "m", Families: Families(Chat)}}})
	}
	first := map[MachineID]int{}
	for draw := range uint64(draws) {
		a := Query{Caller: "me", Model: "m", Draw: draw, Now: noon}
		d, again := Route(s, a), Route(s, a)
		assert.Require(t, slices.Equal(d.Candidates, again.Candidates), "the same draw gave another order")
		first[d.Candidates[0].Machine.ID]++
	}
	for id, n := range first {
		if want := draws / machines; n < want*8/10 || n > want*12/10 {
			t.Errorf("%s was first %d times of %d, expected about %d", id, n, draws, want)
		}
	}
	assert.Equal(t, len(first), machines, "of", "machines were ever first")
}

// What a refusal says: the model, safely quoted, and a next step; nothing of
// what is out of reach.
func TestWhatARefusalSays(t *testing.T) {
	evil := ModelID("a\"b\r\nX-Evil: 1\u202e{states}%s")
	w := &world{now: noon, machines: []wMachine{in(Offline, "secret-machine", "mallory"), in(Ready, "secret-two", "oscar")}}
	s := w.snapshot(t, rand.New(rand.NewPCG(1, 1)))
	for _, model := range []ModelID{evil, "m", ModelID(strings.Repeat("x", 100_000))} {
		for _, family := range []Family{Chat, Embeddings} {
			for _, narrow := range []KeyReach{Everything, OwnAndShared, OwnOnly} {
				for _, unconfirmed := range []bool{false, true} {
					f := Route(s, Query{Caller: "me", Model: model, Family: family, Reach: narrow, Unconfirmed: unconfirmed, Now: noon}).Fault
					if strings.ContainsAny(f.Message, "\r\n\u202e") || len(f.Message) > 1000 || strings.Contains(f.Message, "secret") ||
						strings.Contains(f.Message, "mallory") || strings.Contains(f.Message, "%!") {
						t.Errorf("the message is %q", f.Message)
					}
					if !strings.Contains(f.Message, "model \"") || strings.Contains(f.Message, "{you}") || strings.Contains(f.Message, "{model}") {
						t.Errorf("the message is %q", f.Message)
					}
				}
			}
		}
	}
	w = stateWorld([]State{Paused}, []State{OutsideHours, Offline})
	f := Route(w.snapshot(t, rand.New(rand.NewPCG(1, 1))), Query{Caller: "me", Model: "m", Now: noon}).Fault
	if want := `every machine shared with you that serves model "m" and is online is outside its sharing hours (1 paused, 1 outside hours, 1 offline); retry within them`; f.Message != want {
		t.Errorf("the message is %q, want %q", f.Message, want)
	}
}

// Each row says its own, to either kind of caller.
func TestEveryRowSaysItsOwn(t *testing.T) {
	const notFound, exhausted = "send the id exactly as GET /v1/models lists it", `takes a call of model "m" just now`
	const paused, spent = "is paused (1 paused, 1 offline); retry when its owner", "are used up (1 used up today); the next day begins at 00:00 UTC"
	mallory := func(state State) *world {
		return &world{now: noon, machines: []wMachine{in(state, "theirs", "mallory")}}
	}
	groupIndex := mallory(Ready)
	groupIndex.shares = []wShare{{id: "s", owner: "friend", member: "me"}}
	own := func(states ...State) *world { return stateWorld(states, nil) }
	mixed := stateWorld([]State{Busy, Paused}, []State{OutsideHours})
	for _, c := range []struct {
		w          *world
		ask        wAsk
		row        int
		chat, rest string
	}{
		{&world{now: noon}, wAsk{}, 1, notFound, notFound},
		{own(Ready), wAsk{unconfirmed: true}, 2, "who shares with you, so model", "who shares with you, so model"},
		{mallory(Offline), wAsk{}, 5, notFound, notFound},
		{mallory(Ready), wAsk{}, 6, "no one shares with you", notFound},
		{groupIndex, wAsk{}, 7, "and waiting does not help", notFound},
		{own(Offline), wAsk{}, 8, "is offline; it is back when one of them is", "is offline; it is back when one of them is"},
		{stateWorld(nil, []State{OutsideHours}), wAsk{}, 9, "outside its sharing hours (1 outside hours)", "outside its sharing hours (1 outside hours)"},
		{own(Paused, Offline), wAsk{}, 10, paused, paused},
		{stateWorld(nil, []State{Spent}), wAsk{}, 10, spent, spent},
		{stateWorld([]State{Paused}, []State{Spent}), wAsk{}, 10, exhausted + " (1 used up today, 1 paused)", exhausted + " (1 used up today, 1 paused)"},
		{stateWorld(nil, []State{Returning}), wAsk{waited: true}, 11, "before the wait was over (1 reconnecting)", "before the wait was over (1 reconnecting)"},
		{own(Ready), wAsk{avoid: []string{"own0"}, gone: true}, 11, "before it started (1 ready)", "before it started (1 ready)"},
		{own(Busy), wAsk{waited: true}, 11, "before the wait was over (1 busy)", "before the wait was over (1 busy)"},
		{mixed, wAsk{waited: true}, 12, "outside its sharing hours (1 busy, 1 paused, 1 outside hours)", "outside its sharing hours (1 busy, 1 paused, 1 outside hours)"},
		{own(Busy, Paused), wAsk{waited: true}, 12, exhausted + " (1 busy, 1 paused)", exhausted + " (1 busy, 1 paused)"},
	} {
		c.ask.caller, c.ask.model = "me", "m"
		s := c.w.snapshot(t, rand.New(rand.NewPCG(1, 1)))
		for family, want := range map[Family]string{Chat: c.chat, Embeddings: c.rest} {
			c.ask.family = family
			d := Route(s, c.ask.ask(c.w, 7))
			if d.Row != c.row || d.Fault == nil || !strings.Contains(d.Fault.Message, want) {
				t.Errorf("%+v is row %d, %v; want row %d and %q", c.ask, d.Row, d.Fault, c.row, want)
			}
		}
	}
}

// A narrowed call is named as what cannot use the machine; a long id is cut.
func TestARefusalNamesWhoAndWhat(t *testing.T) {
	s := stateWorld([]State{Offline}, nil).snapshot(t, rand.New(rand.NewPCG(1, 1)))
	for narrow, want := range map[KeyReach]string{
		Everything:   "every machine you can use that",
		OwnAndShared: "every machine this call (narrowed to your own machines and those shared with you) can use that",
		OwnOnly:      "every machine this call (narrowed to your own machines) can use that",
	} {
		if f := Route(s, Query{Caller: "me", Reach: narrow, Model: "m", Now: noon}).Fault; !strings.HasPrefix(f.Message, want) {
			t.Errorf("the message is %q, want %q first", f.Message, want)
		}
	}
	quote := func(id ModelID) string { return string(appendQuoted(nil, id)) }
	longest := strings.Repeat("x", MaxModelID)
	if quote(ModelID(longest)) != `"`+longest+`"` || quote(ModelID(longest+"y")) != `"`+longest+`…"` {
		t.Errorf("ids are quoted as %s and %s", quote(ModelID(longest)), quote(ModelID(longest+"y")))
	}
	assert.Equal(t, (Tally{}).String(), "none", "a survey of nothing")
}

// A call that a daemon sent up never sees that daemon's machine, nor counts it.
func TestTheExcludedMachineDoesNotExist(t *testing.T) {
	w := &world{now: noon, machines: []wMachine{in(Ready, "here", "me"), in(Offline, "there", "me")}}
	s := w.snapshot(t, rand.New(rand.NewPCG(1, 1)))
	if d := Route(s, Query{Caller: "me", Model: "m", Exclude: "here", Now: noon}); d.Row != 8 || d.Tally.Reachable() != 1 {
		t.Errorf("row %d, %s", d.Row, d.Tally)
	}
	if v := Route(s, Query{Caller: "me", Model: "m", Now: noon}).Tally; v.kept != 2 || v.online != 1 {
		t.Errorf("%d machines, %d online; want 2 and 1", v.kept, v.online)
	}
	s = s.WithoutMachine("there")
	if d := Route(s, Query{Caller: "me", Model: "m", Exclude: "here", Now: noon}); d.Row != 1 {
		t.Errorf("row %d, %s", d.Row, d.Tally)
	}
	if d := Route(s, Query{Caller: "me", Model: "m", Exclude: "unknown", Now: noon}); d.Row != 3 {
		t.Errorf("row %d, %s", d.Row, d.Tally)
	}
}

// A machine that refused the call as busy counts as busy for it, and for no other call.
func TestMachineThatRefusedIsBusy(t *testing.T) {
	w := &world{now: noon, machines: []wMachine{in(Ready, "here", "me")}}
	s := w.snapshot(t, rand.New(rand.NewPCG(1, 1)))
	for machine, want := range map[MachineID]Verdict{"here": Wait, "there": Try} {
		if d := Route(s, Query{Caller: "me", Model: "m", Now: noon, Full: []MachineID{machine}}); d.Verdict != want {
			t.Errorf("%s is full: %s, want %s", machine, d.Verdict, want)
		}
	}
}

// Audio is 400 where no machine of the region, online or kept, offers any speech
// model, for every caller; where one does, another model is 404 (spec/api.md#audio-missing).
func TestNoSpeech(t *testing.T) {
	ask := Query{Caller: "me", Model: "whisper", Family: Audio, Now: noon}
	code := func(s *Snapshot, a Query) fault.Code { return Route(s, a).Fault.Code }
	speaker := func(id string, online bool) *Machine {
		return &Machine{ID: MachineID(id), Owner: "outsider", Online: online, Slots: 1, Offers: []Offer{{ID: "parakeet", Families: Families(Audio), Slots: 1}}}
	}
	s := NewSnapshot().WithMachine(&Machine{ID: "text", Owner: "me", Online: true, Slots: 1, Offers: []Offer{{ID: "whisper", Families: Families(Chat), Slots: 1}}})
	if f := Route(s, ask).Fault; f.Code != fault.InvalidRequest || f.Status() != 400 || f.Param != "model" {
		t.Errorf("no machine offers speech: %+v", f)
	}
	online := s.WithMachine(speaker("ears", true))
	if f := Route(online, ask).Fault; f.Code != fault.ModelNotFound || f.Param != "model" {
		t.Errorf("another model for speech is offered: %+v", f)
	}
	if got := code(online.WithMachine(speaker("ears", false)), ask); got != fault.ModelNotFound {
		t.Errorf("the machine that offers speech is kept: %s", got)
	}
	excluded := ask
	excluded.Exclude = "ears"
	if got := code(online, excluded); got != fault.InvalidRequest {
		t.Errorf("the only machine that offers speech does not exist for the call: %s", got)
	}
	if got := code(online.WithMachine(speaker("nose", true)), excluded); got != fault.ModelNotFound {
		t.Errorf("another machine offers speech: %s", got)
	}
	if got := code(online.WithoutMachine("ears"), ask); got != fault.InvalidRequest {
		t.Errorf("the machine that offered speech has left: %s", got)
	}
	ask.Family = Embeddings
	assert.Equal(t, code(s, ask), fault.ModelNotFound, "embeddings")
}

// A model that a reachable machine offers for other calls: the message names the path,
// and not the id, which was right. A machine out of reach changes nothing.
func TestOtherCallsAreNamed(t *testing.T) {
	s := NewSnapshot().WithMachine(&Machine{ID: "a", Owner: "me", Online: true, Slots: 1, Offers: []Offer{
		{ID: "x", Families: Families(Embeddings)}, {ID: "y", Families: Families(Chat)}, {ID: "z", Families: Families(Chat, Embeddings)},
		{ID: "s", Families: Families(Audio)}, // so that a missing speech model is one of many
	}})
	for _, c := range []struct {
		caller MemberID
		model  ModelID
		asked  Family
		want   string
	}{
		{"me", "x", Chat, `model "x" does not chat: it serves embeddings calls only, at /v1/embeddings; name another model`},
		{"me", "y", Embeddings, `model "y" has no embeddings: it serves chat calls only, at /v1/chat/completions; name another model`},
		{"me", "y", Audio, `model "y" does not transcribe: it serves chat calls only, at /v1/chat/completions; name another model`},
		{"me", "z", Embeddings, ""},
		{"you", "x", Chat, "send the id exactly as GET /v1/models lists it"},
		{"you", "y", Embeddings, "send the id exactly as GET /v1/models lists it"},
	} {
		d := Route(s, Query{Caller: c.caller, Model: c.model, Family: c.asked, Now: noon})
		if c.want == "" {
			assert.Equal(t, d.Verdict, Try, c.model)
			continue
		}
		assert.Require(t, d.Fault != nil, c.caller, c.model, c.asked, d.Verdict)
		assert.Contains(t, d.Fault.Message, c.want, c.caller, c.model, c.asked)
	}
}
