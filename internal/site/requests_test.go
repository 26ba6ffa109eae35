package site

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// For each code, one click on a refusal in the list shows why, and a second one leads to
// what to do about it: a button, or a link to an existing page and place.
func TestRemedyInTwoClicks(t *testing.T) {
	tn := newTown(t, nil)
	now := time.Now()
	ada := tn.as("ada")
	codes := regexp.MustCompile(`<a id="(\w+)"`).FindAllStringSubmatch(fault.Page(), -1)
	assert.Require(t, len(codes) >= 20, len(codes), "codes")
	pages := map[string]string{}
	for _, m := range codes {
		code := m[1]
		check(t, tn.db.SaveTraces(t.Context(), []account.Trace{{
			CallID: "req_" + code, MemberID: tn.members["ada"].ID, Started: now, Mine: true, Caller: "ada", Model: "nothing-here", Endpoint: "/v1/chat/completions", Status: 503, Code: code,
		}}, now))
		ada.get("/requests?code="+code).want(t, 200, `href="/requests/req_`+code+`"`)
		page := ada.get("/requests/req_"+code).want(t, 200, fault.Code(code).Title()+` <small class="muted"><code>`+code+"</code> 503")
		_, rest, _ := strings.Cut(page.body, `<div class="actions">`)
		actions, _, _ := strings.Cut(rest, "</section>")
		links := regexp.MustCompile(`class="button secondary" href="([^"]+)"`).FindAllStringSubmatch(actions, -1)
		assert.That(t, len(links) != 0, code, "nothing can be done about it")
		for _, link := range links {
			at, err := url.Parse(link[1])
			check(t, err)
			if pages[at.Path] == "" {
				pages[at.Path] = ada.get(at.Path).want(t, 200).body
			}
			if at.Fragment != "" && !strings.Contains(pages[at.Path], fmt.Sprintf("id=%q", at.Fragment)) {
				t.Errorf("%s: %s has no place %q", code, at.Path, at.Fragment)
			}
		}
	}
}

// TestCauseOfARefusal checks that a refusal describes the state of the machines, and that
// an id similar to one in reach links to that one.
func TestCauseOfARefusal(t *testing.T) {
	refused := func(code fault.Code, seen ...account.StateCount) account.Trace {
		return account.Trace{Code: string(code), Model: "tiny", Decisions: []account.Decision{{Verdict: "wait"}, {Verdict: "refuse", Seen: seen}}}
	}
	for _, tt := range []struct {
		trace account.Trace
		want  string
	}{
		{refused(fault.CascadeExhausted, account.StateCount{Via: "shared", State: "spent", Machines: 1}),
			"No machine with `tiny` took the call: 1 machine shared with you had served all the calls a day that the owner allows you, until 00:00 UTC."},
		{refused(fault.CascadeExhausted, account.StateCount{Via: "own", State: "paused", Machines: 1}, account.StateCount{Via: "group", State: "offline", Machines: 2}),
			"No machine with `tiny` took the call: 1 machine of yours was paused; 2 machines of your groups were offline."},
		{refused(fault.CapacityFull, account.StateCount{Via: "own", State: "busy", Machines: 3}), "No machine with `tiny` took the call: 3 machines of yours were busy."},
		{refused(fault.ModelNotFound), "No machine that is online offers a model with the id `tiny`."},
		{refused(fault.NotInCircle), ""},
		{account.Trace{Code: "invalid_request"}, ""},
		{account.Trace{Model: "tiny", Decisions: []account.Decision{{Verdict: "try"}}}, ""},
	} {
		assert.Equal(t, causeOf(tt.trace), tt.want, tt.trace.Code)
	}
	for state := fleet.Offline; state < fleet.Ready; state++ {
		assert.That(t, stateWords[state.String()] != "", "nothing is said of a machine that", state)
	}
	now := time.Now()
	why := api.Why{Verdict: "refuse", Machines: []api.WhyMachine{{Via: "shared", State: "spent"}, {Via: "own", State: "paused"}, {Via: "shared", State: "spent"}}}
	if got, want := causeNow(why), "2 machines shared with you have served all the calls a day that the owner allows you, until 00:00 UTC; 1 machine of yours is paused"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	tn := newTown(t, nil)
	for i, id := range []string{"req_1", "req_2"} {
		trace := refused(fault.ModelNotFound)
		trace.CallID, trace.MemberID, trace.Caller, trace.Mine, trace.Model = id, tn.members["ada"].ID, "ada", true, "of-ado"
		trace.Started, trace.Status, trace.Endpoint = now.Add(time.Duration(i)*time.Second), 404, "/v1/chat/completions"
		check(t, tn.db.SaveTraces(t.Context(), []account.Trace{trace}, now))
	}
	ada := tn.as("ada")
	ada.get("/requests/req_1").want(t, 200, "offers a model with the id <code>of-ado</code>", `Did you mean <a href="/models?model=of-ada">`, `href="/models">See the models you can use`,
		`<th scope="row">Waits for a machine</th>`, `<th scope="row">Refused</th>`)
	ada.get("/").want(t, 200, "2 times", "offers a model with the id <code>of-ado</code>")
}

// For each routing rule, the pages of a call and of a model show what would change the
// refusal, with links to pages and without commands.
func TestChangeNamesPages(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	for row := 1; row <= 12; row++ {
		shown := fleet.ShownRow(row, fleet.Chat) // rows with the same answer are one
		if shown == 3 {
			continue // the call is served
		}
		verdict := map[bool]string{true: "wait", false: "refuse"}[shown == 4]
		id := fmt.Sprint("req_", row)
		trace := account.Trace{
			CallID: id, MemberID: tn.members["ada"].ID, Started: time.Now(), Mine: true, Caller: "ada", Model: "tiny", Endpoint: "/v1/chat/completions",
			Status: 503, Code: "CAPACITY_FULL", Decisions: []account.Decision{{Verdict: verdict, Row: shown}},
		}
		check(t, tn.db.SaveTraces(t.Context(), []account.Trace{trace}, time.Now()))
		_, change, _ := strings.Cut(ada.get("/requests/"+id).want(t, 200).body, "What helps: ")
		change, _, _ = strings.Cut(change, "</td>")
		if change == "" || strings.Contains(change, "<code>kith") || (row != 2 && row != 11) != strings.Contains(change, `<a href="/`) {
			t.Errorf("row %d: %q", row, change)
		}
	}
	page := ada.get("/models?model=nothing").want(t, 200, `What helps: The exact id, as <a href="/models">Models</a> lists it.`)
	assert.Lacks(t, page.body, "<code>kith", "the page of a model names a command")
}

// The filter of the requests is in the URL, also of the next page. A request shows its
// key, its tokens and its speed.
func TestRequestsFilter(t *testing.T) {
	tn := newTown(t, nil)
	now, ada := time.Now().UTC(), tn.members["ada"].ID
	key := account.Key{ID: "key_1", MemberID: ada, Name: "my editor", Region: "home", Reach: account.ReachAll, Hash: [32]byte{7}, LastFour: "Zz09", Created: now}
	check(t, tn.db.CreateKey(t.Context(), key))
	var traces []account.Trace
	for i := range 300 {
		traces = append(traces, account.Trace{
			CallID: fmt.Sprintf("req_%04d", i), MemberID: ada, Started: now.Add(-time.Duration(i) * time.Second), Mine: true, Caller: "ada", Model: []string{"m", "other"}[i%2],
			KeyID: "key_1", Status: 200, Endpoint: "/v1/chat/completions", Stream: true, FirstMS: 500, TookMS: 2500, TokensIn: 1234, TokensOut: 41,
		})
	}
	check(t, tn.db.SaveTraces(t.Context(), traces, now))
	b := tn.as("ada")
	page := b.get("/requests?model=m&key=key_1&q=ada").want(t, 200, `<option value="key_1" selected>my editor`, `value="m"`, "1,234 in<br>41 out", "20.0 tokens/s")
	older := next(page, "/requests?before=")
	if !strings.Contains(older, "model=m") || !strings.Contains(older, "key=key_1") || strings.Count(page.body, `href="/requests/req_`) != 100 || strings.Contains(page.body, "req_0001") {
		t.Errorf("the next page is %q", older)
	}
	if rest := b.get(older).want(t, 200); strings.Count(rest.body, `href="/requests/req_`) != 50 || strings.Contains(rest.body, `rel="next"`) {
		t.Errorf("the last page: %s", rest.body)
	}
	b.get("/requests?code=none").want(t, 200, "No call of the last 7 days matches")
	b.get("/requests?from=never").want(t, 400, "from is a time")
	b.get("/requests/req_0000").want(t, 200, "my editor", "1,234 in, 41 out, 20.0 tokens/s", "First token")
}

// The owner of a machine sees how long a caller waited for it, and whether an answer was
// cut off.
func TestOwnerSeesWaitAndBreak(t *testing.T) {
	tn := newTown(t, nil)
	now := time.Now()
	trace := account.Trace{
		CallID: "req_1", MemberID: tn.members["ada"].ID, Started: now, Caller: "bob", Model: "m", Endpoint: "/v1/chat/completions", Stream: true,
		Status: 200, Code: "machine_offline", WaitedMS: 7000, TookMS: 9000,
		Tries: []account.Attempt{{Machine: "box", Owner: "ada", Via: "shared", Outcome: "began to answer and did not finish: machine_offline", Prompt: true}},
	}
	check(t, tn.db.SaveTraces(t.Context(), []account.Trace{trace}, now))
	ada := tn.as("ada")
	for path, outcome := range map[string]string{"/requests": "waited 7.0 s", "/requests/req_1": "began to answer and did not finish: machine_offline"} {
		if page := ada.get(path).want(t, 200, outcome, "bob", fault.MachineOffline.Title()); strings.Contains(page.body, `state good">served`) {
			t.Errorf("%s says that it was served", path)
		}
	}
}
