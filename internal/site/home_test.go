package site

import (
	"fmt"
	"slices"
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
	eve.get("/").want(t, 200, "Get started", "1 of 4 done", `href="/machines#connect"`, "None connected", "None in the last 7 days", "None yet.", "(optional)")
	ada.get("/").want(t, 200, "Get started", `id="first-key"`, "Your machines", tn.machine.ID)
	first := tn.as("bob")
	first.post("/account/password", "password", aPassword)
	all := tn.models
	tn.models = []api.Model{}
	assert.Lacks(t, first.get("/").want(t, 200, "Get started").body, "Needs attention", "a page with nothing but the first steps")
	tn.models = all
	ada.post("/applications", "name", "k", "reach", "own").goes(t, newKeyPath)
	good[anything](tn.world, "ada", "POST", "/api/invites", "")
	tn.history()
	page := ada.get("/").want(t, 200, "Calls, last 24 hours", "Recent failed calls", `title="Not shared with you: 1 machine of yours was offline."`, "1 failed</span>",
		"of=day", `<a href="/requests?outcome=refused">`)
	attention, calls := strings.Index(page.body, `id="attention"`), strings.Index(page.body, `id="calls-title"`)
	assert.That(t, attention < calls, "on a phone the calls come before what needs attention")
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
	if n := strings.Count(page.body, "has never connected.</span>"); n > mostConcerns {
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
		models   int
		machines []api.Machine
		shares   []api.Share
		want     string
		done     bool
	}{
		"nothing yet":               {want: "Accept an invite"},
		"a share, no model on it":   {shares: shares, want: "See what you can use"},
		"shares that give nothing":  {shares: shares[:2], want: "Accept an invite"},
		"a machine without a model": {machines: make([]api.Machine, 1), want: "See your machines"},
		"a model":                   {models: 1, machines: make([]api.Machine, 1), want: "Accept an invite", done: true},
		"an offline machine's":      {machines: []api.Machine{{}, {Models: make([]api.MachineModel, 1)}}, want: "Accept an invite", done: true},
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

// A chart of calls has a bar for each step, divided by outcome. A part with few calls is high
// enough to be seen.
func TestChart(t *testing.T) {
	now := time.Date(time.Now().Year(), 11, 22, 1, 0, 0, 0, time.UTC)
	day := func(n int) string { return now.AddDate(0, 0, n).Format(time.DateOnly) }
	got := chartOf(api.UsagePage{By: api.Day, Since: day(-13)}, []api.UsageOfDay{
		{Day: day(-2), UsageSum: api.UsageSum{Calls: 8000, Refused: 1, Stopped: 1}},
		{Day: day(-1), UsageSum: api.UsageSum{Calls: 4000, Refused: 1000, Stopped: 2000}},
		{Day: day(0), UsageSum: api.UsageSum{Calls: 1}},
	}, chartViews[0], now)
	assert.Equal(t, len(got.Bars), 14, "bars")
	type place struct {
		Class     string
		Y, Height int64
	}
	for i, want := range map[int][]place{
		0: nil, 13: {{"served", 98, 2}},
		11: {{"served", 1, 99}, {"stopped", -1, 2}, {"refused", -3, 2}},
		12: {{"served", 88, 12}, {"stopped", 63, 25}, {"refused", 50, 13}},
	} {
		var places []place
		for _, p := range got.Bars[i].Parts {
			places = append(places, place{p.Class, p.Y, p.Height})
		}
		assert.Same(t, places, want)
	}
	assert.Equal(t, got.Bars[12].Words(), "1,000 served, 2,000 stopped, 1,000 failed")
	if got.First().Name != "9 Nov" || got.Last().Name != "22 Nov" || got.Total != (api.UsageSum{Calls: 12001, Refused: 1001, Stopped: 2001}) || got.Most.Name != "20 Nov" {
		t.Errorf("the numbers are %+v", got)
	}
	for name, want := range map[string]string{"2020-02-03T04:00": "3 Feb 04:00 UTC", "2020-02-03": "3 Feb 2020"} {
		by := api.Day
		if strings.Contains(name, "T") {
			by = api.Hour
		}
		assert.Equal(t, stepName(by, name, ""), want, name, "is called")
	}
}

// TestChartViews checks that a chart of models has the largest at the bottom in every bar, each
// with its own class throughout, and the others on top.
func TestChartViews(t *testing.T) {
	now := time.Date(2026, 11, 22, 13, 0, 0, 0, time.UTC)
	sum := func(day string, calls int64, parts ...api.UsagePart) api.UsageOfDay {
		return api.UsageOfDay{Day: day, UsageSum: api.UsageSum{Calls: calls, TokensIn: 10 * calls, TokensOut: calls}, Parts: parts}
	}
	part := func(name string, calls int64) api.UsagePart {
		return api.UsagePart{Name: name, Calls: calls, TokensIn: 10 * calls, TokensOut: calls}
	}
	sums := []api.UsageOfDay{sum("2026-11-21", 10, part("b", 9), part("a", 1)), sum("2026-11-22", 30, part("", 2), part("a", 20))}
	sums[0].FirstP50MS, sums[0].FirstP95MS, sums[1].WaitedMS = 300, 2000, 1500
	for name, want := range map[string][]string{
		"":              {"10 served", "30 served", "40 served"},
		"calls-model":   {"1 a, 9 b", "20 a, 2 (not read), 8 others", "21 a, 9 b, 2 (not read), 8 others"},
		"tokens":        {"100 in, 10 out", "300 in, 30 out", "400 in, 40 out"},
		"tokens-member": {"11 a, 99 b", "220 a, 22 (gone), 88 others", "231 a, 99 b, 22 (gone), 88 others"},
		"waits":         {"none", "1.5 s waited", "1.5 s waited"},
		"first":         {"300 ms p50, 2.0 s p95", "none", "none"},
	} {
		view := chartViews[slices.IndexFunc(chartViews, func(v chartView) bool { return v.Name == name })]
		chart := chartOf(api.UsagePage{By: api.Day, Since: "2026-11-21", Zone: "UTC"}, sums, view, now)
		assert.Same(t, []string{chart.Bars[0].Words(), chart.Bars[1].Words(), usageBar{Parts: chart.Legend}.Words()}, want, name)
		if view.Split != "" {
			assert.Equal(t, chart.Bars[0].Parts[0].Class+chart.Bars[1].Parts[0].Class+chart.Bars[0].Parts[1].Class, "part-1part-1part-2", name)
		}
	}
	// The percentiles of all days are not those of their bars.
	side := usageSide{Side: api.UsageSide{Days: sums, Total: api.UsageSum{FirstP50MS: 200, FirstP95MS: 900}}}
	side = side.of(usageData{UsagePage: api.UsagePage{By: api.Day, Since: "2026-11-21", Zone: "UTC"}, View: chartView{Of: ofFirstToken}}, now)
	assert.Equal(t, usageBar{Parts: side.Chart.Legend}.Words(), "200 ms p50, 900 ms p95")
}

// TestChartOfTokens checks that the highest bar of a chart of tokens is that with the most tokens,
// not that with the most calls.
func TestChartOfTokens(t *testing.T) {
	sums := []api.UsageOfDay{
		{Day: "2026-11-21", UsageSum: api.UsageSum{Calls: 9, TokensIn: 10}}, {Day: "2026-11-22", UsageSum: api.UsageSum{Calls: 1, TokensIn: 500, TokensOut: 500}},
	}
	now := time.Date(2026, 11, 22, 13, 0, 0, 0, time.UTC)
	chart := chartOf(api.UsagePage{By: api.Day, Since: "2026-11-21", Zone: "UTC"}, sums, chartView{Of: ofTokens}, now)
	assert.Equal(t, fmt.Sprint(chart.Most.At.Day(), " ", chart.Most.Total(), " ", chart.Bars[0].Parts[0].Height), "22 1000 2")
}

// TestHeat checks that the darkest hour is that of the most calls, that one call is not left
// white, and that a week without calls has no picture.
func TestHeat(t *testing.T) {
	week := make([][]int64, 7)
	for i := range week {
		week[i] = make([]int64, 24)
	}
	assert.That(t, heatOf(week, "UTC") == nil && heatOf(nil, "UTC") == nil, "a picture of nothing")
	week[1][14], week[6][23] = 1000, 1
	heat := heatOf(week, "UTC")
	assert.Equal(t, fmt.Sprintln(heat.Most, heat.N, heat.Days[1].Hours[14].Heat, heat.Days[6].Hours[23].Heat, heat.Days[0].Hours[0].Heat), "Tue 14 h 1000 5 1 0\n")
}

// TestShort checks that a number keeps its digits as long as they can be read.
func TestShort(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 99_999: "99,999", 123_456: "123 k", 1_000_000: "1 M", 11_412_332: "11.4 M", 999_600: "1 M", 3_200_000_000: "3.2 G"} {
		assert.Equal(t, short(n), want)
	}
}

// TestSteps checks that a member who uses others' machines chats with one of their models
// first and an own machine is optional, and that a member with a machine is guided to invite
// someone.
func TestSteps(t *testing.T) {
	shares := []api.Share{{Direction: "received", Owner: "eve"}}
	model := func(availability string) []api.Model {
		return []api.Model{{ID: "tiny", Chat: true, Owner: "eve", Via: "shared", Availability: availability}}
	}
	const alone = "Connect a machine, Get access to a model, Create a key, Make a first call, Invite someone"
	for name, test := range map[string]struct {
		models   []api.Model
		machines []api.Machine
		shares   []api.Share
		want     string
	}{
		"nothing yet":         {want: alone},
		"a machine":           {machines: make([]api.Machine, 1), models: model("ready"), want: alone},
		"an invite":           {models: model("ready"), shares: shares, want: "Get access to a model, Chat with eve's `tiny`, Create a key, Connect a machine (optional)"},
		"a share, no model":   {shares: shares, want: "Get access to a model, Make a first call, Create a key, Connect a machine (optional)"},
		"a share, none ready": {models: model("offline"), shares: shares, want: "Get access to a model, Make a first call, Create a key, Connect a machine (optional)"},
		"a group":             {models: model("busy"), want: "Get access to a model, Chat with eve's `tiny`, Create a key, Connect a machine (optional)"},
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
	for availability, want := range map[string]string{"ready": "without a key", "busy": "It is busy, so you wait in line.", "offline": "No chat model is ready right now"} {
		got := chatStep(step{Href: "/try"}, model(availability))
		assert.Contains(t, got.Help, want, availability)
		assert.Equal(t, got.Href == "/try", availability == "offline", availability, "leads to no model")
	}
}

// TestConcerns checks that each problem has a button for what can be done about it.
func TestConcerns(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	box := tn.box()
	box.Paused = true
	page := ada.get("/").want(t, 200, "box is paused.", `aria-label="Resume: box is paused."`, "You cannot sign in again yet: set a password.", `aria-label="Set a password: `)
	assert.Contains(t, page.body, `<input type="hidden" name="machine" value="`+tn.machine.ID+`">`)
	box.Paused, box.Offers = false, nil
	ada.get("/").want(t, 200, "box has no model", `href="/machines/`+tn.machine.ID+`?tab=models#files-title"`)
}

// TestHasCalled checks that a member who made no call for months is not guided to a first one.
func TestHasCalled(t *testing.T) {
	tn := newTown(t, nil)
	ada, long := tn.as("ada"), time.Now().AddDate(0, -6, 0)
	const guide = "<strong>Make a first call</strong>"
	record := func(id, code string) {
		check(t, tn.db.RecordUsage(t.Context(), []account.Usage{{CallID: id, Attempt: 1, Started: long, MemberID: tn.members["ada"].ID, Model: "m", Code: code}}))
	}
	record("req_1", "NOT_IN_CIRCLE")
	ada.get("/").want(t, 200, guide)
	record("req_2", "")
	assert.Lacks(t, ada.get("/").want(t, 200).body, guide, "after a call")
}

// TestCauseBrief checks that a line of the first page holds the cause alone.
func TestCauseBrief(t *testing.T) {
	refused := api.TracedDecision{Decision: account.Decision{Verdict: "refuse", Seen: []account.StateCount{{Via: "own", State: "paused", Machines: 1}, {Via: "group", State: "busy", Machines: 2}}}}
	for want, trace := range map[string]api.CallTrace{
		"1 machine of yours was paused; 2 machines of your groups were busy.": {Trace: account.Trace{Code: "CASCADE_EXHAUSTED"}, Decisions: []api.TracedDecision{refused}},
		"No machine you can use serves it.":                                   {Trace: account.Trace{Code: "model_not_found", Model: "a", Message: "no machine you can use serves model \"a\"; send the id exactly as GET /v1/models lists it"}},
		"It is not understood.":                                               {Trace: account.Trace{Code: "invalid_request"}, Meaning: "It is not understood: message says why."},
		"It means this.":                                                      {Trace: account.Trace{Code: "machine_offline"}, Meaning: "It means this; and more."},
	} {
		assert.Equal(t, causeBrief(&trace), want)
	}
}
