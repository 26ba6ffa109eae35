package site

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// The first page leads a new member through what is left to do, and says what needs
// attention.
func TestHome(t *testing.T) {
	tn := newTown(t, nil)
	ada, eve := tn.as("ada"), tn.as("eve")
	eve.get("/").want(t, 200, "Get started", "1 of 5 done", `href="/machines#connect"`, "None is connected", "None in the last 7 days", `aria-label="None"`)
	ada.get("/").want(t, 200, "Get started", `id="first-key"`, "My machines", tn.machine.ID)
	ada.post("/applications", "name", "k", "reach", "own").goes(t, newKeyPath)
	good[anything](tn.world, "ada", "POST", "/api/invites", "")
	tn.history()
	ada.get("/").want(t, 200, "Calls, last 14 days", "Newest refusals", "NOT_IN_CIRCLE")
}

// TestManyMachines: the first page and the lists of access name a few of many machines, and
// say how many more there are.
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
	if got := few(names); got != "a, b, c, d, e" {
		t.Errorf("of five: %q", got)
	}
	if got := few(append(names, "f")); got != "a, b, c, d and 2 more" {
		t.Errorf("of six: %q", got)
	}
}

// TestReachStep: who has a share or a machine already is not asked to accept an invite.
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

// What can be done about a refusal leads there at once; nothing is offered for a machine
// of another member's.
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
	if got := remedies(api.Why{Model: "a b", Verdict: "try"}, own); len(got) != 1 || got[0].Href != "/try?model=a+b" {
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

func TestDayBars(t *testing.T) {
	now := time.Date(2026, 11, 22, 1, 0, 0, 0, time.UTC)
	bars := dayBars([]api.UsageOfDay{{Day: "2026-11-21", UsageSum: api.UsageSum{Calls: 80}}, {Day: "2026-11-22", UsageSum: api.UsageSum{Calls: 20}}}, now)
	last, before := bars[len(bars)-1], bars[len(bars)-2]
	if len(bars) != homeDays || last.Day != "2026-11-22" || last.Height != 10 || last.Y != 30 || before.Height != 40 || before.Y != 0 || !bars[0].None || bars[0].Height != 2 {
		t.Errorf("the bars are %+v", bars)
	}
}
