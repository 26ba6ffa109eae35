package site

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// TestAccessAgreesWithRoute checks in random worlds that a member's call on a machine
// runs if and only if a way in the list of the machine's owner covers it: by the share or
// by a group as listed, and within the listed limits.
func TestAccessAgreesWithRoute(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(4000) {
		rng := rand.New(rand.NewPCG(seed, 16))
		w := randomAccess(rng)
		snapshot := w.snapshot(t)
		for _, owner := range accessMembers {
			rows := accessList(owner, w.machines[owner], w.given(owner), w.groups(owner))
			for _, caller := range accessMembers {
				if caller == owner {
					if slices.ContainsFunc(rows, func(r accessRow) bool { return r.Member == owner }) {
						t.Fatalf("world %d: %s is in the list of its own machines", seed, owner)
					}
					continue
				}
				for _, model := range accessModels {
					d := fleet.Route(snapshot, fleet.Query{Caller: fleet.MemberID(caller), Model: fleet.ModelID(model), Family: fleet.Chat, Now: w.now})
					for _, m := range w.machines[owner] {
						if !slices.ContainsFunc(m.Models, func(o api.MachineModel) bool { return string(o.ID) == model }) {
							continue
						}
						got := wayOf(rows, caller, m.Name, model, w.now)
						want := "none"
						for _, c := range d.Candidates {
							switch {
							case string(c.Machine.ID) != m.ID:
							case c.Share != nil:
								want = "share " + limitsOf(c.Limits)
							default:
								want = "group " + limitsOf(c.Limits)
							}
						}
						seen[strings.Fields(want)[0]]++
						if want == "none" && got != nil || want != "none" && !slices.Contains(got, want) {
							t.Fatalf("world %d: %s calls %s on %s of %s: routing has %q, the list %q\n%+v", seed, caller, model, m.Name, owner, want, got, rows)
						}
					}
				}
			}
		}
	}
	for _, way := range []string{"share", "group", "none"} {
		assert.That(t, seen[way] >= 1000, "only", seen[way], "calls by", way, seen)
	}
}

// wayOf returns the ways of the list that would allow a call now.
func wayOf(rows []accessRow, member, machine, model string, now time.Time) (ways []string) {
	for _, r := range rows {
		if r.Member != member || !slices.Contains(r.Machines, machine) {
			continue
		}
		for _, way := range r.Ways {
			hours, _ := fleet.ParseHours(way.Limits.Hours, "UTC")
			if len(way.Limits.Models) > 0 && !slices.Contains(way.Limits.Models, model) || !hours.Open(now) {
				continue
			}
			kind := "share "
			if way.Group != "" {
				kind = "group "
			}
			ways = append(ways, kind+limitWords(way.Limits))
		}
	}
	return ways
}

// limitsOf converts routing's limits to those of the page.
func limitsOf(l *fleet.Limits) string {
	if l == nil {
		return limitWords(api.Limits{})
	}
	view := api.Limits{Hours: l.Hours.String()}
	for _, id := range l.Models {
		view.Models = append(view.Models, string(id))
	}
	if l.Concurrent > 0 {
		view.Concurrent = &l.Concurrent
	}
	if l.PerDay > 0 {
		view.PerDay = &l.PerDay
	}
	return limitWords(view)
}

var (
	accessMembers = []string{"ann", "bob", "cat", "dan"}
	accessModels  = []string{"m1", "m2"}
)

// accessWorld is a world as the API lists it, each part by its owner.
type accessWorld struct {
	now      time.Time
	machines map[string][]api.Machine
	shares   []api.Share
	all      []accessGroup
}

type accessGroup struct {
	name     string
	members  []string
	keptOut  []string // ids of machines
	excluded []string // by an admin
	limits   map[string]api.Limits
}

func randomAccess(rng *rand.Rand) *accessWorld {
	some := func(of []string) (out []string) {
		for _, e := range of {
			if rng.IntN(2) == 0 {
				out = append(out, e)
			}
		}
		return out
	}
	limits := func() (l api.Limits) {
		if rng.IntN(3) == 0 {
			l.Models = some(append([]string{"other"}, accessModels...))
		}
		if rng.IntN(4) == 0 {
			l.Hours = []string{"Sat,Sun 00:00-24:00", "Mon-Fri 08:00-18:00"}[rng.IntN(2)]
		}
		if rng.IntN(3) == 0 {
			l.Concurrent = new(1 + rng.IntN(3))
		}
		if rng.IntN(3) == 0 {
			l.PerDay = new(1 + rng.IntN(3))
		}
		return l
	}
	w := &accessWorld{now: time.Date(2026, 11, 16+rng.IntN(7), rng.IntN(24), 30, 0, 0, time.UTC), machines: map[string][]api.Machine{}}
	names := []string{"lab", "all", "club"}
	for i := range 3 { // at most as many machines as one call may be tried on
		m := api.Machine{ID: fmt.Sprint("mch", i), Name: fmt.Sprint("box", i), KeptOut: rng.IntN(6) == 0}
		if rng.IntN(4) == 0 {
			m.Groups = append([]string{}, some(names)...)
		}
		for _, id := range some(accessModels) {
			m.Models = append(m.Models, api.MachineModel{ID: fleet.ModelID(id)})
		}
		owner := accessMembers[rng.IntN(2)]
		w.machines[owner] = append(w.machines[owner], m)
	}
	for _, owner := range accessMembers {
		for _, member := range accessMembers {
			if owner != member && rng.IntN(4) == 0 {
				w.shares = append(w.shares, api.Share{Owner: owner, With: member, Limits: limits()})
			}
		}
	}
	for _, name := range names[:rng.IntN(4)] {
		g := accessGroup{name: name, members: some(accessMembers), limits: map[string]api.Limits{}}
		for _, owner := range g.members {
			if rng.IntN(2) == 0 {
				g.limits[owner] = limits()
			}
			for _, m := range w.machines[owner] {
				switch rng.IntN(8) {
				case 0:
					g.keptOut = append(g.keptOut, m.ID)
				case 1:
					g.excluded = append(g.excluded, m.ID)
				}
			}
		}
		w.all = append(w.all, g)
	}
	return w
}

func (w *accessWorld) given(owner string) (given []api.Share) {
	for _, share := range w.shares {
		if share.Owner == owner {
			given = append(given, share)
		}
	}
	return given
}

// groups returns the groups that the owner sees.
func (w *accessWorld) groups(owner string) (groups []api.Group) {
	for _, g := range w.all {
		view := api.Group{Name: g.name, In: slices.Contains(g.members, owner), Size: len(g.members)}
		if view.In {
			for _, name := range g.members {
				view.Members = append(view.Members, api.GroupMember{Name: name})
			}
			for _, m := range w.machines[owner] {
				if slices.Contains(g.keptOut, m.ID) {
					view.KeptOut = append(view.KeptOut, m.Name)
				}
			}
			for _, fellow := range g.members {
				for _, m := range w.machines[fellow] {
					if slices.Contains(g.excluded, m.ID) {
						view.Machines = append(view.Machines, api.GroupMachine{Owner: fellow, Machine: m.Name, Rule: account.MachineExcluded})
					}
				}
			}
			view.Limits = new(g.limits[owner])
		}
		groups = append(groups, view)
	}
	return groups
}

// snapshot returns the same world for routing, with every machine online and idle.
func (w *accessWorld) snapshot(t *testing.T) *fleet.Snapshot {
	limits := func(l api.Limits) fleet.Limits {
		hours, err := fleet.ParseHours(l.Hours, "")
		check(t, err)
		out := fleet.Limits{Hours: hours}
		for _, id := range l.Models {
			out.Models = append(out.Models, fleet.ModelID(id))
		}
		if l.Concurrent != nil {
			out.Concurrent = *l.Concurrent
		}
		if l.PerDay != nil {
			out.PerDay = *l.PerDay
		}
		return out
	}
	s := fleet.NewSnapshot()
	for owner, machines := range w.machines {
		for _, m := range machines {
			live := &fleet.Machine{ID: fleet.MachineID(m.ID), Owner: fleet.MemberID(owner), OwnerName: owner, Name: m.Name, Online: true, KeptOut: m.KeptOut, Groups: m.Groups, Slots: 4}
			for _, o := range m.Models {
				live.Offers = append(live.Offers, fleet.Offer{ID: o.ID, Families: fleet.Families(fleet.Chat)})
			}
			s = s.WithMachine(live)
		}
	}
	for _, member := range accessMembers {
		var shares []*fleet.Share
		for i, share := range w.shares {
			if share.With == member {
				shares = append(shares, &fleet.Share{ID: fleet.ShareID(fmt.Sprint("shr", i)), Owner: fleet.MemberID(share.Owner), Member: fleet.MemberID(member), Limits: limits(share.Limits)})
			}
		}
		s = s.WithShares(fleet.MemberID(member), shares)
	}
	for _, g := range w.all {
		live := &fleet.Group{ID: fleet.GroupID("grp_" + g.name), Name: g.name, Limits: map[fleet.MemberID]*fleet.Limits{}}
		for _, name := range g.members {
			live.Members = append(live.Members, fleet.MemberID(name))
		}
		for _, id := range slices.Concat(g.keptOut, g.excluded) {
			live.KeptOut = append(live.KeptOut, fleet.MachineID(id))
		}
		for owner, l := range g.limits {
			live.Limits[fleet.MemberID(owner)] = new(limits(l))
		}
		s = s.WithGroup(live)
	}
	return s
}

// TestUsableListIsReach checks that a member's list of usable machines is what routing
// lets the member reach.
func TestUsableListIsReach(t *testing.T) {
	found := 0
	for seed := range uint64(2000) {
		w := randomAccess(rand.New(rand.NewPCG(seed, 17)))
		s := w.snapshot(t)
		for _, caller := range accessMembers {
			var received []api.Share
			for _, share := range w.shares {
				if share.With == caller {
					received = append(received, share)
				}
			}
			rows := usableList(s, fleet.MemberID(caller), received, w.now)
			for _, owner := range accessMembers {
				for _, model := range accessModels {
					want := false
					for _, m := range w.machines[owner] {
						shares, groups := s.AccessPaths(fleet.MemberID(caller), s.Machine(fleet.MachineID(m.ID)), fleet.ModelID(model))
						offers := slices.ContainsFunc(m.Models, func(o api.MachineModel) bool { return string(o.ID) == model })
						want = want || offers && len(shares)+len(groups) > 0
					}
					got := slices.ContainsFunc(rows, func(r usableRow) bool { return r.Owner == owner && slices.Contains(r.Models, model) })
					if got != want {
						t.Fatalf("world %d: %s calls %s of %s: routing says %v, the list %v", seed, caller, model, owner, want, got)
					}
					if got {
						found++
					}
				}
			}
		}
	}
	assert.That(t, found >= 1000, "only", found, "models are used")
}

// A member who reaches machines by groups reads the limits that their owner set for each
// group, how many calls of the day are used, and that there are none if none are set.
func TestGroupLimitsOfOthers(t *testing.T) {
	tn := newTown(t, nil)
	ada, bob := fleet.MemberID(tn.members["ada"].ID), fleet.MemberID(tn.members["bob"].ID)
	group := func(id, name string, limits *fleet.Limits) *fleet.Group {
		g := &fleet.Group{ID: fleet.GroupID(id), Name: name, Members: []fleet.MemberID{ada, bob}}
		if limits != nil {
			g.Limits = map[fleet.MemberID]*fleet.Limits{ada: limits}
		}
		return g
	}
	open := *tn.snapshot.Machine(fleet.MachineID(tn.machine.ID))
	open.Groups = nil
	tn.snapshot = tn.snapshot.WithMachine(&open).WithGroup(group("grp_1", "lab", nil))
	row := "<td class=\"names\">group lab</td>"
	page := tn.as("bob").get("/access/for-you").want(t, 200, row, ">no limits</td>")
	assert.Lacks(t, page.body, "set by ada")
	limits := &fleet.Limits{PerDay: 5, Load: fleet.NewLimitLoad(time.Now(), 2)}
	tn.snapshot = tn.snapshot.WithGroup(group("grp_1", "lab", limits))
	tn.as("bob").get("/access/for-you").want(t, 200, row, `>5 calls a day <small class="muted">(shared by all of lab)</small> <small class="muted">2 used</small></td>`)
	other := &fleet.Limits{Models: []fleet.ModelID{"another"}} // which covers none of the machine's models
	tn.snapshot = tn.snapshot.WithGroup(group("grp_1", "lab", other))
	tn.as("bob").get("/access/for-you").want(t, 200, row, "models another")
	tn.snapshot = tn.snapshot.WithGroup(group("grp_2", "office", nil))
	tn.as("bob").get("/access/for-you").want(t, 200, ">groups lab, office</td>", "lab: models another", "<br>office: no limits</td>")
}

// TestWarnings checks that a group that gives more than a share or another group is
// named, with the limits that would change that.
func TestWarnings(t *testing.T) {
	day := func(n int) api.Limits { return api.Limits{PerDay: &n} }
	share := api.Limits{Models: []string{"a", "b"}, Hours: "Sat,Sun 00:00-24:00", Concurrent: new(2), PerDay: new(10)}
	for name, test := range map[string]struct {
		row  accessRow
		want []accessWarning
	}{
		"a group without limits beside a share": {
			accessRow{Ways: []accessWay{{Limits: day(10)}}, Idle: []accessWay{{Group: "lab"}}}, []accessWarning{{"lab", "", day(10)}},
		},
		"a group as tight as the share": {accessRow{Ways: []accessWay{{Limits: day(10)}}, Idle: []accessWay{{Group: "lab", Limits: day(9)}}}, nil},
		"a share without limits":        {accessRow{Ways: []accessWay{{}}, Idle: []accessWay{{Group: "lab"}}}, nil},
		"other limits than the share's": {
			accessRow{Ways: []accessWay{{Limits: share}}, Idle: []accessWay{{Group: "lab", Limits: api.Limits{Models: []string{"b", "c"}, Hours: "Sat 10:00-12:00", PerDay: new(3)}}}},
			[]accessWarning{{"lab", "", api.Limits{Models: []string{"b"}, Hours: "Sat 10:00-12:00", Concurrent: new(2), PerDay: new(3)}}},
		},
		"a group beside a limited group": {
			accessRow{Ways: []accessWay{{Group: "all"}, {Group: "lab", Limits: day(7)}}}, []accessWarning{{"all", "lab", day(7)}},
		},
		"two limited groups": {accessRow{Ways: []accessWay{{Group: "all", Limits: day(8)}, {Group: "lab", Limits: api.Limits{Concurrent: new(1)}}}}, []accessWarning{
			{"all", "lab", api.Limits{Concurrent: new(1), PerDay: new(8)}}, {"lab", "all", api.Limits{Concurrent: new(1), PerDay: new(8)}},
		}},
		"two equal groups": {accessRow{Ways: []accessWay{{Group: "all", Limits: day(8)}, {Group: "lab", Limits: day(8)}}}, nil},
	} {
		assert.Same(t, test.row.warnings(), test.want, name)
		for _, w := range test.row.warnings() {
			for _, way := range test.row.Ways {
				if (way.Group == w.By) && exceeds(w.Limits, way.Limits) {
					t.Errorf("%s: the limits of the remedy exceed %v", name, way.Limits)
				}
			}
		}
	}
}
