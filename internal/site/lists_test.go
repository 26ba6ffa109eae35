package site

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// before reports whether the page has the first text before the second.
func before(t *testing.T, page seen, first, second string) {
	t.Helper()
	i, j := strings.Index(page.body, first), strings.Index(page.body, second)
	assert.That(t, i >= 0 && i < j, first, "at", i, "comes before", second, "at", j)
}

// TestListsFindWords checks that a search finds words in any order, in each list.
func TestListsFindWords(t *testing.T) {
	tn := newTown(t, nil)
	tn.models = []api.Model{{ID: "qwen3:32b", Availability: "ready", Via: "own"}, {ID: "qwen3:8b", Availability: "ready", Via: "own"}}
	op := tn.operator()
	check(t, tn.db.CreateMember(t.Context(), account.Member{ID: "mem_w", Name: "Grace Brewster Hopper", Created: time.Now()}))
	check(t, tn.db.SaveTraces(t.Context(), []account.Trace{{
		CallID: "req_words", MemberID: tn.members["ada"].ID, Started: time.Now(), Mine: true, Caller: "ada", Model: "qwen3:32b", Status: 502, Code: "engine_error",
	}}, time.Now()))
	for _, one := range []struct {
		as         *browser
		path, find string
	}{
		{tn.as("ada"), "/models?q=%s", "<code>qwen3:32b</code>"}, {tn.as("ada"), "/requests?q=%s", "/requests/req_words"},
	} {
		for search, found := range map[string]bool{"qwen+32b": true, "32B++qwen": true, "qwen+70b": false} {
			page := one.as.get(fmt.Sprintf(one.path, search)).want(t, 200)
			assert.Equal(t, strings.Contains(page.body, one.find), found, one.path, search)
		}
	}
	for search, found := range map[string]bool{"hopper+grace": true, "grace+turing": false} {
		page := op.get("/operator/members?q="+search).want(t, 200)
		assert.Equal(t, strings.Contains(page.body, "<th scope=\"row\">Grace Brewster Hopper"), found, "members", search)
	}
	for search, found := range map[string]bool{"ada+box": true, "bob+box": false} {
		page := op.get("/operator/machines?q="+search).want(t, 200)
		assert.Equal(t, strings.Contains(page.body, tn.machine.ID), found, "machines", search)
	}
}

// TestListsBeginWithWhatIsOnline checks the order of each list and picker, and that offline
// has one colour.
func TestListsBeginWithWhatIsOnline(t *testing.T) {
	tn := newTown(t, nil)
	for i, name := range []string{"attic", "cellar"} { // older and newer than the box, which is online
		check(t, tn.db.CreateMachine(t.Context(), account.Machine{ID: "mch_" + name, OwnerID: tn.members["ada"].ID, Name: name, Region: "home",
			Hash: [32]byte{byte(9 + i)}, Created: time.Now().Add(time.Duration(2*i-1) * time.Hour), LastSeen: time.Now()}))
		tn.snapshot = tn.snapshot.WithMachine(&fleet.Machine{ID: fleet.MachineID("mch_" + name), Owner: fleet.MemberID(tn.members["ada"].ID), OwnerName: "ada", Name: name, LastSeen: time.Now(),
			Offers: []fleet.Offer{{ID: "tiny", Families: fleet.Families(fleet.Chat)}}})
	}
	tn.models = []api.Model{{ID: "a", Availability: "offline", Via: "own", Chat: true}, {ID: "b", Availability: "busy", Via: "own", Chat: true}, {ID: "A", Availability: "ready", Via: "own", Chat: true}}
	ada, op := tn.as("ada"), tn.operator()
	for _, path := range []string{"/machines", "/", "/operator/machines"} {
		page := map[bool]*browser{true: op, false: ada}[path == "/operator/machines"].get(path).want(t, 200)
		before(t, page, ">box<", ">attic<")
		before(t, page, ">box<", ">cellar<")
	}
	models := ada.get("/models").want(t, 200)
	before(t, models, "<code>A</code>", "<code>b</code>") // of twins one is ready
	tn.models = tn.models[:2]
	before(t, ada.get("/models").want(t, 200), "<code>b</code>", "<code>a</code>")
	before(t, ada.get("/try").want(t, 200), `<option value="b"`, `<option value="a"`)

	var colours []string
	pill := regexp.MustCompile(`class="state ?(\w*)">offline`)
	for _, path := range []string{"/machines", "/", "/operator/machines", "/models", "/machines/mch_attic", "/models?model=tiny"} {
		page := map[bool]*browser{true: op, false: ada}[path == "/operator/machines"].get(path).want(t, 200)
		found := pill.FindStringSubmatch(page.body)
		assert.Require(t, found != nil, path, "shows nothing that is offline")
		colours = append(colours, found[1])
	}
	assert.Equal(t, len(slices.Compact(slices.Sorted(slices.Values(colours)))), 1, "colours of offline:", colours)
}

// TestTitlesNameWhatIsShown checks that the title of a page of one thing, which a tab shows,
// names it.
func TestTitlesNameWhatIsShown(t *testing.T) {
	tn := newTown(t, nil)
	tn.models = []api.Model{{ID: "tiny", Availability: "ready", Via: "own"}}
	ada := tn.as("ada")
	check(t, tn.db.SaveTraces(t.Context(), []account.Trace{
		{CallID: "req_failed", MemberID: tn.members["ada"].ID, Started: time.Now(), Mine: true, Caller: "ada", Model: "tiny", Status: 502, Code: "engine_error"},
		{CallID: "req_served", MemberID: tn.members["ada"].ID, Started: time.Now(), Mine: true, Caller: "ada", Model: "tiny", Status: 200},
		{CallID: "req_elsewhere", MemberID: tn.members["ada"].ID, Started: time.Now(), Caller: "bob"},
	}, time.Now()))
	for path, want := range map[string]string{
		"/requests/req_failed": "tiny: failed", "/requests/req_served": "tiny: served", "/requests/req_elsewhere": "Call: went elsewhere",
		"/models?model=tiny": "tiny", "/machines/" + tn.machine.ID: "box",
	} {
		ada.get(path).want(t, 200, "<title>"+want+" · kith</title>")
	}
	ada.get("/requests/req_none").want(t, 404, "<title>Problem: Call · kith</title>")
}

// TestHeadingsAreThoseOfTheMenu checks that the heading of a page and of its tabs is the name in
// the menu, of Account the purpose of the page, with the member's name below.
func TestHeadingsAreThoseOfTheMenu(t *testing.T) {
	op := newTown(t, nil).operator()
	for path, heading := range map[string]string{
		"/models": "Models", "/machines": "Machines", "/applications": "Keys", "/usage": "Usage", "/requests": "Calls", "/notices": "Notices", "/account": "Account",
		"/access": "Access", "/access/for-you": "Access", "/access/groups": "Access", "/access/invites": "Access",
		"/operator": "Operator", "/operator/members": "Operator", "/operator/machines": "Operator", "/operator/usage": "Operator", "/operator/audit": "Operator",
	} {
		op.get(path).want(t, 200, "<h1>"+heading+"</h1>")
	}
	op.get("/account").want(t, 200, "<title>Account · kith</title>", "<strong>root</strong> · joined")
}

// TestWorksAgainWhenOnline checks that a model whose machines are offline names them.
func TestWorksAgainWhenOnline(t *testing.T) {
	off := func(name string) modelMachine {
		return modelMachine{WhyMachine: api.WhyMachine{Machine: name, State: "offline"}}
	}
	for want, machines := range map[string][]modelMachine{
		"": {{WhyMachine: api.WhyMachine{Machine: "attic", State: "paused"}}}, "attic is": {off("attic")}, "attic or cellar is": {off("attic"), off("cellar")},
		"one of its 4 machines is": {off("a"), off("b"), off("c"), off("d")},
	} {
		assert.Equal(t, modelData{Machines: machines}.Offline(), want)
	}
}
