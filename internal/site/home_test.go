package site

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// The first page guides a new member through the remaining steps, and shows what needs
// attention.
func TestHome(t *testing.T) {
	tn := newTown(t, nil)
	ada, eve := tn.as("ada"), tn.as("eve")
	eve.get("/").want(t, 200, "Get started", "1 of 4 done", `href="/machines#connect"`, "None is connected", "None in the last 7 days", "None yet.", "(optional)")
	ada.get("/").want(t, 200, "Get started", `id="first-key"`, "Your machines", tn.machine.ID)
	ada.post("/applications", "name", "k", "reach", "own").goes(t, newKeyPath)
	good[anything](tn.world, "ada", "POST", "/api/invites", "")
	tn.history()
	ada.get("/").want(t, 200, "Calls, last 14 days", "Newest refusals", "Not shared with you", "<code>NOT_IN_CIRCLE</code>", "figcaption")
}

// TestManyMachines checks that the first page and the lists of access name a few of many
// machines, and show how many others there are.
func TestManyMachines(t *testing.T) {
	tn := newTown(t, nil)
	for i := range 30 {
		m := account.Machine{ID: fmt.Sprintf("mch_%d", i), OwnerID: tn.members["ada"].ID, Name: fmt.Sprintf("box %d", i), Region: "home", Hash: [32]byte{byte(i), 9}, LastFour: "abcd", Created: time.Now()}
		check(t, tn.db.CreateMachine(t.Context(), m))
	}
	page := tn.as("ada").get("/").want(t, 200, "more of your machines are offline or paused", "All 31 machines")
	if n := strings.Count(page.body, "has never connected"); n > mostConcerns {
		t.Errorf("%d machines are named, want %d at most", n, mostConcerns)
	}
	names := []string{"a", "b", "c", "d", "e"}
	assert.Equal(t, few(names), "a, b, c, d, e", "of five")
	assert.Equal(t, few(append(names, "f")), "a, b, c, d and 2 more", "of six")
}

// TestReachStep checks that a member with a share or a machine is not asked to accept an
// invite.
func TestReachStep(t *testing.T) {
	shares := []api.Share{{Direction: "given", Owner: "me"}, {Direction: "received", Owner: "gone", Disabled: true}, {Direction: "received", Owner: "eve"}}
	for name, test := range map[string]struct {
		models, machines int
		shares           []api.Share
		want             string
		done             bool
	}{
		"nothing yet":               {want: "Accept an invite"},
		"a share, no model on it":   {shares: shares, want: "See what you can use"},
		"shares that give nothing":  {shares: shares[:2], want: "Accept an invite"},
		"a machine without a model": {machines: 1, want: "See your machines"},
		"a model":                   {models: 1, machines: 1, want: "Accept an invite", done: true},
	} {
		if got := reachStep(test.models, test.machines, test.shares); got.Do != test.want || got.Done != test.done {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Each remedy for a refusal has a link. There is none for another member's machine.
func TestRemedies(t *testing.T) {
	own := []api.Machine{{ID: "mch_1", Name: "attic"}, {ID: "mch_2", Name: "cellar"}}
	why := api.Why{Model: "a b", Verdict: "refuse", Machines: []api.WhyMachine{
		{Machine: "attic", Via: "own", State: "paused"}, {Machine: "cellar", Via: "own", State: "offline"}, {Machine: "attic", Via: "shared", State: "paused"},
	}}
	got := remedies(why, own)
	if len(got) != 2 || got[0] != (remedy{Text: "Resume attic", Resume: "mch_1"}) || got[1] != (remedy{Text: "See cellar", Href: "/machines/mch_2"}) {
		t.Errorf("for own machines: %+v", got)
	}
	if got := remedies(api.Why{Verdict: "refuse", Code: "NOT_IN_CIRCLE"}, own); len(got) != 3 || got[0].Href != "/models" {
		t.Errorf("out of reach: %+v", got)
	}
	if got := remedies(api.Why{Model: "a b", Family: "chat", Verdict: "try"}, own); len(got) != 1 || got[0].Href != "/try?model=a+b" {
		t.Errorf("ready: %+v", got)
	}
}

func TestNear(t *testing.T) {
	for pair, want := range map[[2]fleet.ModelID]bool{
		{"llama3", "llama-3"}: true, {"llama3:8b", "llama3"}: true, {"qwen3", "qwem3"}: true, {"qwen2.5-coder", "qwen-2.5-coder:32b"}: true,
		{"llama3", "mistral"}: false, {"a", "b"}: false, {"gemma", "llama"}: false,
	} {
		if near(pair[0], pair[1]) != want || near(pair[1], pair[0]) != want {
			t.Errorf("%q and %q are near: %v", pair[0], pair[1], !want)
		}
	}
}

// A chart of calls has a bar for each day, and its numbers as text.
func TestChart(t *testing.T) {
	now := time.Date(time.Now().Year(), 11, 22, 1, 0, 0, 0, time.UTC)
	day := func(n int) string { return now.AddDate(0, 0, n).Format(time.DateOnly) }
	got := chartOf(api.UsagePage{By: api.Day, Since: day(-13)}, []api.UsageOfDay{{Day: day(-1), UsageSum: api.UsageSum{Calls: 80, Refused: 20}}, {Day: day(0), UsageSum: api.UsageSum{Calls: 20}}}, now)
	before, last := got.Bars[len(got.Bars)-2], got.Last()
	if len(got.Bars) != homeDays || last.Name != "22 Nov" || last.Height != 10 || last.Y != 30 || before.Height != 40 || before.Y != 0 || before.Refused != 10 || !got.First().None || got.First().Height != 2 {
		t.Errorf("the bars are %+v", got.Bars)
	}
	if got.First().Name != "9 Nov" || got.Total != 100 || got.Refused != 20 || got.Most.Name != "21 Nov" || got.Most.Calls != 80 {
		t.Errorf("the numbers are %+v", got)
	}
	for name, want := range map[string]string{"2020-02-03T04:00": "3 Feb 04:00 UTC", "2020-02-03": "3 Feb 2020"} {
		by := api.Day
		if strings.Contains(name, "T") {
			by = api.Hour
		}
		assert.Equal(t, stepName(by, name), want, name, "is called")
	}
}

// TestSteps checks that for a member who uses others' machines a key comes first and an
// own machine is optional, and that a member with a machine is guided to invite someone.
func TestSteps(t *testing.T) {
	shares := []api.Share{{Direction: "received", Owner: "eve"}}
	for name, test := range map[string]struct {
		models, machines int
		shares           []api.Share
		want             string
	}{
		"nothing yet":       {want: "Connect a machine, Reach a model, Create a key, Make a first call, Invite someone"},
		"a machine":         {machines: 1, models: 1, want: "Connect a machine, Reach a model, Create a key, Make a first call, Invite someone"},
		"an invite":         {models: 1, shares: shares, want: "Reach a model, Create a key, Make a first call, Connect a machine (optional)"},
		"a share, no model": {shares: shares, want: "Reach a model, Create a key, Make a first call, Connect a machine (optional)"},
		"a group":           {models: 3, want: "Reach a model, Create a key, Make a first call, Connect a machine (optional)"},
	} {
		var got []string
		for _, st := range steps(test.models, test.machines, test.shares, false, false, false) {
			if st.Optional {
				st.Text += " (optional)"
			}
			got = append(got, st.Text)
		}
		assert.Equal(t, strings.Join(got, ", "), test.want, name)
	}
}
