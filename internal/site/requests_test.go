package site

import (
	"cmp"
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
		assert.Lacks(t, page.body, string(inCode(fault.Code(code).When())), code, "is explained by the manual of all calls with it")
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
	refused := func(code fault.Code, message string, seen ...account.StateCount) account.Trace {
		return account.Trace{Code: string(code), Status: 503, Message: message, Model: "tiny", Mine: true, Decisions: []account.Decision{{Verdict: "wait"}, {Verdict: "refuse", Row: 7, Seen: seen}}}
	}
	unkept := "the error that the program received gives the cause; the hub does not keep it, because it may quote the call."
	attic := account.Attempt{Machine: "attic", Owner: "bob", Via: "shared", Outcome: "did not take it: busy", TookMS: 20}
	desk := account.Attempt{Machine: "desk", Owner: "ada", Via: "own", Outcome: "answered", AfterMS: 20, TookMS: 980}
	ended := func(try account.Attempt, outcome string) account.Attempt { try.Outcome = outcome; return try }
	for _, tt := range []struct {
		trace account.Trace
		want  string
	}{
		{refused(fault.CascadeExhausted, "all of it", account.StateCount{Via: "shared", State: "spent", Machines: 1}),
			"No machine with `tiny` took the call: 1 machine shared with you had served all the calls a day that the owner allows you, until 00:00 UTC."},
		{refused(fault.CascadeExhausted, "", account.StateCount{Via: "own", State: "paused", Machines: 1}, account.StateCount{Via: "group", State: "offline", Machines: 2}),
			"No machine with `tiny` took the call: 1 machine of yours was paused; 2 machines of your groups were offline."},
		{refused(fault.CapacityFull, "", account.StateCount{Via: "own", State: "busy", Machines: 3}), "No machine with `tiny` took the call: 3 machines of yours were busy."},
		{refused(fault.ModelNotFound, "no machine serves it"), "No machine serves it."},
		{refused(fault.CascadeExhausted, ""), "None of your own machines offers this model, and none of those shared with you or in your groups offers it to you."},
		{account.Trace{Code: "context_length_exceeded", Status: 400, Message: "prompt is too long: 5000 tokens > 4096 maximum", Mine: true}, "Prompt is too long: 5000 tokens > 4096 maximum."},
		{account.Trace{Code: "context_length_exceeded", Status: 400}, ""},
		{account.Trace{Code: "invalid_request", Status: 400}, "T" + unkept[1:]},
		{account.Trace{Code: "engine_error", Status: 502, Mine: true, Tries: []account.Attempt{ended(desk, "failed")}}, "Your `desk` failed: " + unkept},
		{account.Trace{Code: "context_length_exceeded", Status: 400, Mine: true, Message: "5000 tokens > 4096", Tries: []account.Attempt{ended(attic, "failed")}}, "`attic` of bob failed: 5000 tokens > 4096."},
		{account.Trace{Code: "machine_offline", Status: 200, Mine: true, FirstMS: 500, TookMS: 9000, Tries: []account.Attempt{ended(attic, "began to answer and did not finish: machine_offline")}},
			"`attic` of bob began to answer after 500 ms, and was interrupted after 9.0 s."},
		{account.Trace{Status: 200, Mine: true, TookMS: 1000, Tries: []account.Attempt{attic, desk}}, "`attic` of bob did not take it: busy; your `desk` answered after 1.0 s."},
		{account.Trace{Status: 200, Mine: true, WaitedMS: 7000, Place: 3, FirstMS: 7100, TookMS: 9000, Tries: []account.Attempt{desk}},
			"It waited 7.0 s for a machine, from place 3 in line; your `desk` began to answer after 7.1 s and finished after 9.0 s."},
		{account.Trace{Status: 200, Caller: "bob", WaitedMS: 20, TookMS: 1000, Tries: []account.Attempt{desk}}, "It waited 20 ms for a machine; your `desk` answered after 1.0 s."},
		{account.Trace{Caller: "bob", Tries: []account.Attempt{ended(desk, "did not take it: paused")}}, "Your `desk` did not take it: paused."},
		{account.Trace{Code: "cancelled", Mine: true, TookMS: 2100, Tries: []account.Attempt{ended(attic, "began to answer; the caller left")}},
			"You or your program stopped it, or read it too slowly, after 2.1 s, while `attic` of bob answered."},
		{account.Trace{Code: "cancelled", Mine: true, TookMS: 2100, Tries: []account.Attempt{ended(attic, "did not answer before the caller left")}}, "You or your program stopped it after 2.1 s, before `attic` of bob answered."},
		{account.Trace{Code: "cancelled", Mine: true, TookMS: 2100, WaitedMS: 2000}, "You or your program stopped it after 2.1 s, while it waited for a machine."},
		{account.Trace{Code: "cancelled", Mine: true}, "You or your program stopped it before a machine was found."},
		{account.Trace{Code: "cancelled", Caller: "bob", TookMS: 80, Tries: []account.Attempt{ended(desk, "began to answer; the caller left")}}, "Its caller bob stopped it, or read it too slowly, after 100 ms, while your `desk` answered."},
		{account.Trace{Code: account.Interrupted, Mine: true, Tries: []account.Attempt{ended(attic, "was running it when the hub stopped")}}, "The hub stopped while `attic` of bob ran it; how much of its answer arrived is not known."},
	} {
		trace := api.CallTrace{Trace: tt.trace, Meaning: "the manual"}
		for _, d := range tt.trace.Decisions {
			trace.Decisions = append(trace.Decisions, api.TracedDecision{Decision: d, Reason: map[int]string{
				7: "none of your own machines offers this model, and none of those shared with you or in your groups offers it to you",
			}[d.Row]})
		}
		assert.Equal(t, causeText(&trace), tt.want, tt.trace.Code)
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
		trace := refused(fault.ModelNotFound, "no machine you can use serves model \"of-ado\"")
		trace.CallID, trace.MemberID, trace.Caller, trace.Mine, trace.Model = id, tn.members["ada"].ID, "ada", true, "of-ado"
		trace.Started, trace.Status, trace.Endpoint = now.Add(time.Duration(i)*time.Second), 404, "/v1/chat/completions"
		check(t, tn.db.SaveTraces(t.Context(), []account.Trace{trace}, now))
	}
	ada := tn.as("ada")
	ada.get("/requests/req_1").want(t, 200, "<p id=\"cause\">No machine you can use serves model &#34;of-ado&#34;.</p>", `Did you mean <a href="/models?model=of-ada">`, `href="/models">See the models you can use`,
		`<th scope="row">Waits for a machine</th>`, `<th scope="row">Refused</th>`)
	ada.get("/").want(t, 200, "2 times", "No machine you can use serves model &#34;of-ado&#34;.")
}

// A call that its caller stopped is no refusal: it is not red, not among the newest
// refusals, and not counted as refused.
func TestStopIsNoRefusal(t *testing.T) {
	tn := newTown(t, nil)
	now, ada, bob := time.Now(), tn.members["ada"].ID, tn.members["bob"].ID
	of := func(id, member string, mine bool) account.Trace {
		return account.Trace{CallID: id, MemberID: member, Started: now, Mine: mine, Caller: "ada", Model: "m", Endpoint: "/v1/chat/completions",
			Status: 200, Code: account.Cancelled, Tries: []account.Attempt{{Machine: "attic", Owner: "bob", Via: "shared", Outcome: "began to answer; the caller left", Prompt: true}}}
	}
	check(t, tn.db.SaveTraces(t.Context(), []account.Trace{of("req_1", ada, true), of("req_1", bob, false)}, now))
	check(t, tn.db.RecordUsage(t.Context(), []account.Usage{{CallID: "req_1", Attempt: 1, Started: now.UTC(), MemberID: ada, Model: "m", Endpoint: "/v1/chat/completions", Status: 200, Code: account.Cancelled}}))
	for name, words := range map[string]string{"ada": "You or your program stopped it", "bob": "Its caller ada stopped it"} {
		browser := tn.as(name)
		for _, path := range []string{"/requests/req_1", "/requests", "/requests?outcome=stopped"} {
			page := browser.get(path).want(t, 200, `<span class="state">stopped</span>`)
			assert.Lacks(t, page.body, "state bad", path, "is red for", name)
			assert.Lacks(t, page.body, "notice problem", path, "is red for", name)
			assert.Lacks(t, page.body, "refused before any machine", path)
		}
		browser.get("/requests/req_1").want(t, 200, words)
		browser.get("/requests?outcome=refused").want(t, 200, "No calls match")
		browser.get("/").want(t, 200, "None in the last 7 days.")
	}
	browser := tn.as("ada")
	browser.get("/").want(t, 200, "1 stopped</span>", "Most at ")
	browser.get("/usage").want(t, 200, "<dt>Failed</dt><dd>0</dd>", "Stopped by the caller")
	browser.get("/usage.csv").want(t, 200, "caller,code,cancelled,1,0,")
}

// A call for embeddings to a model that only chats: both pages say that it has none, and
// neither offers to chat. The page of a model that only has embeddings does not say that
// no machine offers it.
func TestModelOfAnotherFamily(t *testing.T) {
	tn := newTown(t, nil)
	ada, now := tn.as("ada"), time.Now()
	check(t, tn.db.SaveTraces(t.Context(), []account.Trace{{
		CallID: "req_1", MemberID: tn.members["ada"].ID, Started: now, Mine: true, Caller: "ada", Model: "tiny", Endpoint: "/v1/embeddings", Status: 404, Code: "model_not_found",
		Message: "model \"tiny\" has no embeddings: it serves chat calls only, at /v1/chat/completions; name another model", Decisions: []account.Decision{{Verdict: "refuse", Row: 1}},
	}}, now))
	for path, want := range map[string]string{
		"/requests/req_1":                       "has no embeddings: it serves chat calls only, at /v1/chat/completions",
		"/models?model=tiny&family=embeddings":  "A call for embeddings would be refused",
		"/models?model=tiny&family=embeddings#": "Because the model has no embeddings: it serves chat calls only.",
	} {
		page := ada.get(path).want(t, 200, want)
		assert.Lacks(t, page.body, "Chat with it", path)
		assert.Lacks(t, page.body, "machine that is online offers", path)
	}
	ada.get("/requests/req_1").want(t, 200, `href="/models?model=tiny&amp;family=embeddings"`)
	tn.snapshot = tn.snapshot.WithMachine(&fleet.Machine{ID: "mch_v", Owner: fleet.MemberID(tn.members["ada"].ID), OwnerName: "ada", Name: "vec", Online: true, Slots: 1,
		Offers: []fleet.Offer{{ID: "vectors", Families: fleet.Families(fleet.Embeddings), Slots: 1}}})
	assert.Lacks(t, ada.get("/models?model=vectors").want(t, 200, "A call for embeddings would be served").body, "Chat with it")
	ada.get("/models?model=vectors&family=chat").want(t, 200, "A call would be refused", "Because the model does not chat: it serves embeddings calls only.")
}

// A model whose only machines are offline is among the models, and its exact id is not taken
// for a mistake, neither on its page nor on that of a call. One out of reach is not there.
func TestOfflineModelIsListed(t *testing.T) {
	tn := newTown(t, nil)
	machine := func(id, owner, model string) {
		tn.snapshot = tn.snapshot.WithMachine(&fleet.Machine{ID: fleet.MachineID(id), Owner: fleet.MemberID(tn.members[owner].ID), OwnerName: owner, Name: id,
			Offers: []fleet.Offer{{ID: fleet.ModelID(model), Families: fleet.Families(fleet.Chat), ContextLength: 4096}}})
	}
	machine("mch_1", "ada", "of-ado") // one letter from of-ada, which is online
	machine("mch_2", "ada", "of-ado")
	machine("mch_3", "eve", "secret")
	ada, now := tn.as("ada"), time.Now()
	page := ada.get("/models").want(t, 200, `<a href="/models?model=of-ado"><code>of-ado</code></a>`, `class="state bad">offline</span>`, ">2</span>", "4,096")
	assert.Lacks(t, page.body, "secret", "a model out of reach is listed")
	page = ada.get("/models?model=of-ado").want(t, 200, "2 machines of yours are offline. <small", "machine_offline")
	assert.Lacks(t, page.body, "Did you mean")
	check(t, tn.db.SaveTraces(t.Context(), []account.Trace{{CallID: "req_1", MemberID: tn.members["ada"].ID, Started: now, Mine: true, Caller: "ada",
		Model: "of-ado", Endpoint: "/v1/chat/completions", Status: 404, Code: "model_not_found"}}, now))
	assert.Lacks(t, ada.get("/requests/req_1").want(t, 200, "Unknown model").body, "Did you mean")
	ada.get("/models?model=of-adu").want(t, 200, "Did you mean", "of-ado", "of-ada")
}

// The steps of a call are in the order in which they happened, also those of one
// millisecond. An attempt lasts until its answer ends, and an owner's times count from the
// call's arrival.
func TestTimeLine(t *testing.T) {
	tries := []account.Attempt{
		{Machine: "attic", Owner: "bob", Via: "shared", Outcome: "did not take it: busy", TookMS: 20},
		{Machine: "desk", Owner: "ada", Via: "own", Outcome: "answered", AfterMS: 7020, TookMS: 980, Prompt: true},
	}
	for name, tt := range map[string]struct {
		trace account.Trace
		want  string
	}{
		"the caller's": {account.Trace{Mine: true, Stream: true, Status: 200, WaitedMS: 7000, Place: 3, FirstMS: 7500, TookMS: 8000, TokensOut: 51, Tries: tries, Decisions: []account.Decision{
			{AfterMS: 0, Verdict: "try"}, {AfterMS: 7020, Verdict: "try", Order: "desk before attic: own machines come before shared ones"},
		}}, `0+0 Received: /v1/chat/completions
0+0 Machine chosen: ready
0+20 Attempt 1: attic of bob, shared; prompt not sent; did not take it: busy
20+7000 Waited: from place 3 in line
7020+0 Machine chosen: ready; desk before attic: own machines come before shared ones
7020+980 Attempt 2: desk of ada, own; prompt sent; answered
7020+480 To first token: 
7500+500 Stream: 51 tokens, 100 tokens/s
8000+0 Ended: served
`},
		"the owner's": {account.Trace{Stream: true, Status: 200, WaitedMS: 7000, FirstMS: 480, TookMS: 980, Tries: tries[1:]}, `0+0 Received: /v1/chat/completions
20+7000 Waited: 
7020+980 Attempt 1: desk of ada, own; prompt sent; answered
7020+480 To first token: 
7500+500 Stream: 
8000+0 Ended: served
`},
	} {
		tt.trace.Endpoint = "/v1/chat/completions"
		view := api.CallTrace{Trace: tt.trace}
		for _, d := range tt.trace.Decisions {
			view.Decisions = append(view.Decisions, api.TracedDecision{Decision: d, Reason: "ready"})
		}
		var got strings.Builder
		for _, step := range callSteps(&view) {
			fmt.Fprintf(&got, "%d+%d %s: %s\n", step.AfterMS, step.TookMS, step.What, step.More)
		}
		assert.Equal(t, got.String(), tt.want, name)
	}
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
	page := ada.get("/models?model=nothing").want(t, 200, `What helps: Use the exact ID of a model for such calls, as <a href="/models">Models</a> lists it.`)
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
	page := b.get("/requests?model=m&key=key_1&q=ada").want(t, 200, `<option value="key_1" selected>my editor`, `value="m"`, "1,234 / 41", ">20.0<")
	older := next(page, "/requests?before=")
	if !strings.Contains(older, "model=m") || !strings.Contains(older, "key=key_1") || strings.Count(page.body, `href="/requests/req_`) != 100 || strings.Contains(page.body, "req_0001") {
		t.Errorf("the next page is %q", older)
	}
	if rest := b.get(older).want(t, 200); strings.Count(rest.body, `href="/requests/req_`) != 50 || strings.Contains(rest.body, `rel="next"`) {
		t.Errorf("the last page: %s", rest.body)
	}
	b.get("/requests?code=none").want(t, 200, "No calls match")
	b.get("/requests?from=never").want(t, 400, "from is a time")
	b.get("/requests/req_0000").want(t, 200, "my editor", "1,234 in, 41 out, 20.0 tokens/s", "To first token", "41 tokens, 20.0 tokens/s")
}

// Usage and calls show the machine and the command of kith that made a call, and no id of
// the machine, which is in the record.
func TestMadeAt(t *testing.T) {
	tn := newTown(t, nil)
	now, ada := time.Now().UTC(), tn.members["ada"].ID
	key := account.MachineKey(tn.machine.ID, "run")
	check(t, tn.db.RecordUsage(t.Context(), []account.Usage{
		{CallID: "req_1", Attempt: 1, Started: now, MemberID: ada, KeyID: key, Model: "m"},
		{CallID: "req_2", Attempt: 1, Started: now, MemberID: ada, Model: "m"}, // of an older hub
	}))
	check(t, tn.db.SaveTraces(t.Context(), []account.Trace{
		{CallID: "req_1", MemberID: ada, Started: now, Mine: true, Caller: "ada", Model: "m", KeyID: key, Status: 200, Endpoint: "/v1/chat/completions"},
	}, now))
	b, text := tn.as("ada"), tn.machine.Name+", kith run"
	for path, want := range map[string]string{
		"/usage": `<th scope="row">` + text + `</th>`, "/usage.csv?of=key&side=caller": `caller,key,"` + text + `",1,`,
		"/requests": ">" + text + "</small>", "/requests/req_1": "<dt>Made at</dt><dd>" + text + "</dd>",
	} {
		page := b.get(path).want(t, 200, want)
		assert.Lacks(t, page.body, tn.machine.ID, path)
	}
	b.get("/usage").want(t, 200, `<th scope="row">a machine of yours</th>`)
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
	for path, outcome := range map[string]string{"/requests": "waited 7.0 s", "/requests/req_1": "began to answer and did not finish<"} {
		if page := ada.get(path).want(t, 200, outcome, "bob", fault.MachineOffline.Title()); strings.Contains(page.body, `state good">served`) {
			t.Errorf("%s says that it was served", path)
		}
	}
}

// TestCallPicture checks that the picture of a call has a box for each machine, with the
// result of the last attempt on it, and a bar for each span of the table, to scale. Long
// names are cut in it. A refused call that waited and reached no machine has an empty box; one
// that did not wait has no picture.
func TestCallPicture(t *testing.T) {
	attempt := func(machine, outcome string, after, took int64) account.Attempt {
		return account.Attempt{Machine: machine, Owner: "bob", Via: "shared", Outcome: outcome, AfterMS: after, TookMS: took}
	}
	view := api.CallTrace{Trace: account.Trace{Mine: true, Status: 200, Sealed: true, WaitedMS: 600, FirstMS: 900, TookMS: 1000, Tries: []account.Attempt{
		attempt("a-name-of-more-than-twenty-letters", "did not take it: busy", 0, 100), attempt("desk", "did not take it: busy", 100, 100),
		attempt("a-name-of-more-than-twenty-letters", "answered", 800, 200),
	}}}
	steps := callSteps(&view)
	p := drawCall(&view, steps, "my editor")
	var boxes []string
	for _, box := range p.Boxes {
		var texts []string
		for _, text := range box.Texts {
			texts = append(texts, text.Full)
			assert.That(t, len([]rune(cmp.Or(text.Short, text.Full))) <= shortName+2, text, "does not fit in a narrow box")
		}
		boxes = append(boxes, strings.Join(texts, ", ")+" "+box.Tone)
	}
	assert.Equal(t, strings.Join(boxes, "\n"), "You, my editor \nHub, waited 600 ms, sealed \n"+
		"a-name-of-more-than…, of bob, 3. answered good\ndesk, of bob, 2. no answer bad")
	var bars []string
	for _, bar := range p.Bars {
		bars = append(bars, fmt.Sprintf("%s %s at %s width %s %s", bar.Label, bar.Time, bar.X, bar.Width, bar.Tone))
	}
	assert.Equal(t, strings.Join(bars, "\n"), `Received 0 ms at 0.00 width 0.25 
Attempt 1 on a-name-of-more-than… 100 ms at 0.00 width 10.00 bad
Attempt 2 on desk 100 ms at 10.00 width 10.00 bad
Waited 600 ms at 20.00 width 60.00 warn
Attempt 3 on a-name-of-more-than… 200 ms at 80.00 width 20.00 good outer
To first token 100 ms at 80.00 width 10.00 
Stream 100 ms at 90.00 width 10.00 good`)
	for _, step := range steps {
		assert.That(t, step.TookMS == 0 || step.Bar != "", step.What, "is a span without a bar")
	}
	refused := api.CallTrace{Trace: account.Trace{Mine: true, Status: 404, Code: "model_not_found"}}
	assert.That(t, drawCall(&refused, callSteps(&refused), "") == nil, "a picture of a call that reached no machine")
	refused.WaitedMS = 100
	p = drawCall(&refused, callSteps(&refused), "")
	assert.Equal(t, p.Boxes[len(p.Boxes)-1].Texts[0].Full, "No machine")
	refused.Code = account.Cancelled
	p = drawCall(&refused, callSteps(&refused), "")
	assert.Equal(t, len(p.Boxes), 2, "boxes of a call that was stopped before it reached a machine")
}
