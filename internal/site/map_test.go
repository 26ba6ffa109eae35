package site

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// TestDrawMap checks that 50 machines are shown singly and the rest is added up by owner, that
// no two places are the same, that all is inside the picture, and that each line ends at its
// machine.
func TestDrawMap(t *testing.T) {
	machine := func(owner string, i int) mapMachine {
		return mapMachine{ID: fmt.Sprint(owner, i), Name: "m", Owner: owner, Through: "share", Online: i%2 == 0}
	}
	some := func(owner string, n int) (all []mapMachine) {
		for i := range n {
			all = append(all, machine(owner, i))
		}
		return all
	}
	var crowd []mapMachine
	for i := range 60 {
		crowd = append(crowd, some(fmt.Sprintf("owner %02d", i), 10)...)
	}
	for name, test := range map[string]struct {
		machines    []mapMachine
		single, sum int
	}{
		"none":       {nil, 0, 0},
		"one":        {some("", 1), 1, 0},
		"exactly 50": {some("ada", 50), 50, 0},
		"51":         {append(some("", 50), machine("bob", 0)), 50, 1},
		"own 60":     {some("", 60), 50, 10},
		"a crowd":    {append(some("", 3), crowd...), 50, 553},
	} {
		p := drawMap(test.machines, liveContent{})
		single, sum, places := 0, 0, map[[2]int]bool{}
		for _, spot := range p.Spots {
			if spot.More == 0 {
				single++
			}
			sum += spot.More
			places[[2]int{spot.X, spot.Y}] = true
			assert.That(t, spot.Y > 0 && spot.Y+10 < p.Height, name, "outside", spot)
			length, err := strconv.ParseFloat(spot.Length, 64)
			check(t, err)
			assert.That(t, length >= spotX-mapWidth/2, name, "a line of", length)
		}
		assert.Equal(t, fmt.Sprint(single, "+", sum), fmt.Sprint(test.single, "+", test.sum), name)
		assert.Equal(t, len(places), len(p.Spots), name, "places")
		assert.That(t, len(p.Spots) <= mostSpots+mostOwners+1, name, len(p.Spots), "places")
	}
	p := drawMap(append(some("", 1), some("bob", 1)...), liveContent{})
	assert.That(t, p.Spots[0].Left && !p.Spots[1].Left && p.Labels[0].Text == "You" && p.Labels[1].Text == "bob", "the sides", p)
}

// TestMapShowsWhatRuns checks that a member sees own calls everywhere and others' calls on own
// machines alone, that machines out of reach are not there, and that a call changes texts and
// not the shape of the page.
func TestMapShowsWhatRuns(t *testing.T) {
	tn := newTown(t, nil)
	member := func(name string) fleet.MemberID { return fleet.MemberID(tn.members[name].ID) }
	tn.snapshot = tn.snapshot.WithShares(member("bob"), []*fleet.Share{{ID: "shr", Owner: member("ada"), Member: member("bob")}})
	tn.snapshot = tn.snapshot.WithMachine(&fleet.Machine{ID: "mch_eves", Owner: member("eve"), OwnerName: "eve", Name: "secret", Online: true})
	box := tn.box()
	id := string(box.ID)
	before := mapContent(tn.site, tn.site.hubView(tn.db.Now()), fleet.Caller{Member: member("ada")})
	tn.uses = []fleet.ActiveCall{
		{Caller: member("bob"), Name: "bob", Machine: box, Model: "tiny"}, {Caller: member("bob"), Name: "bob", Machine: box, Model: "tiny"},
		{Caller: member("eve"), Name: "eve", Machine: box, Model: "tiny"}, {Caller: member("bob"), Name: "bob", Model: "waits"},
	}
	after := mapContent(tn.site, tn.site.hubView(tn.db.Now()), fleet.Caller{Member: member("ada")})
	assert.Equal(t, before.Shape(), after.Shape())
	assert.Equal(t, [2]words{after.texts["map-theirs-"+id], after.texts["map-uses-"+id]}, [2]words{{"3", "calls-3"}, {"bob: tiny; bob: tiny; eve: tiny", ""}})
	bobs := mapContent(tn.site, tn.site.hubView(tn.db.Now()), fleet.Caller{Member: member("bob")})
	assert.Equal(t, [3]words{bobs.texts["map-mine-"+id], bobs.texts["map-uses-"+id], bobs.texts["map-theirs-"+id]}, [3]words{{"2", "calls-2"}, {"you: tiny; you: tiny", ""}})
	assert.Equal(t, bobs.texts["map-state-"+id], words{"ready", "good"})
	page := tn.as("bob").get(mapPath).want(t, 200, `id="map-mine-`+id+`"`, `class="state calls-2"`, ">ada<")
	assert.Lacks(t, page.body, "eve", "what another member calls")
	assert.Lacks(t, page.body, "secret", "a machine out of reach")
	assert.Lacks(t, page.body, "map-theirs", "who else calls")
	tn.as("eve").get(mapPath).want(t, 200, ">secret<")
	assert.That(t, strings.Contains(tn.as("ada").get(mapPath).body, `href="/machines/`+id), "no link to the machine's page")
}
