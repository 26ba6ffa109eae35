package api

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// kin makes a snapshot of owners' machines, each of which offers "m" for chat,
// shared with bob; a machine is edited before it goes in.
func kin(t *testing.T, machines map[string]func(*fleet.Machine)) *fleet.Snapshot {
	t.Helper()
	s := fleet.NewSnapshot()
	var shares []*fleet.Share
	for owner, edit := range machines {
		m := &fleet.Machine{
			ID: fleet.MachineID("mch_" + owner), Owner: fleet.MemberID(owner), OwnerName: owner, Name: owner + "s", Online: true, Slots: 1,
			Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}},
		}
		if edit != nil {
			edit(m)
		}
		s = s.WithMachine(m)
		if owner != "bob" && owner != "stranger" {
			shares = append(shares, &fleet.Share{ID: fleet.ShareID("shr_" + owner), Owner: m.Owner, Member: "bob"})
		}
	}
	return s.WithShares("bob", shares)
}

// TestEveryRowIsExplained goes through the rows that a call can meet before it
// is made.
func TestEveryRowIsExplained(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) // a Saturday
	closed, err := fleet.ParseHours("Mon 00:00-24:00", "UTC")
	check(t, err)
	paused := func(m *fleet.Machine) { m.Paused = true }
	full := func(m *fleet.Machine) { m.Slots = 0 }
	offline := func(m *fleet.Machine) { m.Online = false }
	for name, c := range map[string]struct {
		machines map[string]func(*fleet.Machine)
		family   fleet.Family
		blind    bool
		row      int
		says     string // the verdict or the code
		seen     string
	}{
		"unknown":               {row: 1, says: "model_not_found"},
		"offline elsewhere":     {machines: map[string]func(*fleet.Machine){"stranger": offline}, row: 1, says: "model_not_found"},
		"unconfirmed":           {machines: map[string]func(*fleet.Machine){"ann": nil}, blind: true, row: 2, says: "CASCADE_EXHAUSTED"},
		"ready":                 {machines: map[string]func(*fleet.Machine){"ann": nil, "bob": paused}, row: 3, says: "try", seen: "1 anns of ann shared ready; 0 bobs of bob own paused"},
		"busy":                  {machines: map[string]func(*fleet.Machine){"ann": full}, row: 4, says: "wait", seen: "0 anns of ann shared busy"},
		"not in circle":         {machines: map[string]func(*fleet.Machine){"stranger": nil}, row: 6, says: "NOT_IN_CIRCLE"},
		"not shared":            {machines: map[string]func(*fleet.Machine){"stranger": nil, "ann": func(m *fleet.Machine) { m.Offers = nil }}, row: 7, says: "CASCADE_EXHAUSTED"},
		"elsewhere, embeddings": {machines: map[string]func(*fleet.Machine){"stranger": nil}, family: fleet.Embeddings, row: 1, says: "model_not_found"},
		"offline":               {machines: map[string]func(*fleet.Machine){"ann": offline}, row: 8, says: "machine_offline", seen: "0 anns of ann shared offline"},
		"closed":                {machines: map[string]func(*fleet.Machine){"ann": func(m *fleet.Machine) { m.Hours = closed }}, row: 9, says: "outside_sharing_hours", seen: "0 anns of ann shared outside hours"},
		"mixture":               {machines: map[string]func(*fleet.Machine){"ann": paused, "dan": offline}, row: 10, says: "CASCADE_EXHAUSTED", seen: "0 anns of ann shared paused; 0 dans of dan shared offline"},
	} {
		t.Run(name, func(t *testing.T) {
			ask := fleet.Query{Caller: "bob", Model: "m", Family: c.family, Now: noon, Unconfirmed: c.blind}
			w, f := explain(kin(t, c.machines), ask)
			says := w.Verdict
			if f != nil {
				says = string(w.Code)
			}
			var seen []string
			for _, m := range w.Machines {
				seen = append(seen, fmt.Sprintf("%d %s of %s %s %s", m.Order, m.Machine, m.Owner, m.Via, m.State))
			}
			if w.Row != c.row || says != c.says || strings.Join(seen, "; ") != c.seen {
				t.Errorf("row %d %s %q, not row %d %s %q", w.Row, says, seen, c.row, c.says, c.seen)
			}
			if w.Reason == "" || w.Change == "" || (w.Verdict == "refuse") != (w.Message != "" && w.Status >= 400) {
				t.Errorf("not explained: %+v", w)
			}
			assert.Lacks(t, fmt.Sprint(w), "stranger", "tells of a stranger's machine", w)
			// The machine of another member beside those in reach changes nothing.
			if len(w.Machines) > 0 {
				more := map[string]func(*fleet.Machine){"stranger": nil}
				for owner, edit := range c.machines {
					more[owner] = edit
				}
				with, _ := explain(kin(t, more), ask)
				assert.Same(t, with, w, "a machine out of reach changes the answer")
			}
		})
	}
}

func TestWhyOverHTTP(t *testing.T) {
	w := newWorld(t)
	got := good[Why](w, "ada", "GET", "/api/why?model=tiny", "")
	if got.Verdict != "try" || len(got.Machines) != 1 || got.Machines[0].Machine != "box" || got.Machines[0].Order != 1 || len(w.missed) != 0 {
		t.Errorf("ada is told %+v; missed %v", got, w.missed)
	}
	// What a machine showed to its owner is unknown to the others.
	w.snapshot.Machine(fleet.MachineID(w.machine.ID)).Offer("tiny").Load.Measure(fleet.Circle{}, fleet.Measurement{At: time.Now(), FirstToken: time.Second})
	bob := fleet.MemberID(w.members["bob"].ID)
	w.snapshot = w.snapshot.WithShares(bob, []*fleet.Share{{ID: "shr_1", Owner: fleet.MemberID(w.machine.OwnerID), Member: bob}})
	for who, want := range map[string]int64{"ada": 1000, "bob": 0} {
		if got := good[Why](w, who, "GET", "/api/why?model=tiny", ""); len(got.Machines) != 1 || got.Machines[0].FirstTokenMS != want {
			t.Errorf("%s is shown %+v", who, got.Machines)
		}
	}
	why, _ := explain(w.snapshot, fleet.Query{Caller: bob, Reach: fleet.OwnOnly, Model: "tiny", Now: time.Now()})
	if want := "; the key reaches your own machines only"; !strings.HasSuffix(why.Reason, want) || !strings.Contains(why.Message, "this call (narrowed to your own machines)") {
		t.Errorf("a narrowed key: %q, %q", why.Reason, why.Message)
	}
	got = good[Why](w, "eve", "GET", "/api/why?model=tiny", "")
	if got.Code != fault.NotInCircle || got.Status != 403 || len(got.Machines) != 0 || len(w.missed) != 1 {
		t.Errorf("eve is told %+v; missed %v", got, w.missed)
	}
	for _, query := range []string{"", "?model=", "?model=%00", "?model=tiny&family=poems", "?model=" + strings.Repeat("x", 300)} {
		if got := w.ask("ada", "GET", "/api/why"+query, ""); got.status != 400 || got.code != "invalid_request" {
			t.Errorf("%q: %+v", query, got)
		}
	}
	w.blind = true
	if got := good[Why](w, "ada", "GET", "/api/why?model=tiny", ""); got.Row != 2 || len(got.Machines) != 0 {
		t.Errorf("while nothing can be confirmed ada is told %+v", got)
	}
	w.blind = false
	// A caller who tries names is stopped as on the inference routes.
	last := response{}
	for i := range 61 {
		last = w.ask("eve", "GET", "/api/why?"+url.Values{"model": {fmt.Sprint("guess", i)}}.Encode(), "")
	}
	assert.Equal(t, last.status, 429, "after 61 guesses", last)
	w.limit = fault.New(fault.RateLimitExceeded, "slow down")
	if got := w.ask("ada", "GET", "/api/why?model=tiny", ""); got.status != 429 || got.code != "rate_limit_exceeded" {
		t.Errorf("over the rate: %+v", got)
	}
}

// A call of one's own machine is shown with its name and the command of kith, in the list,
// alone, and to who searches for them.
func TestRequestOfAProgram(t *testing.T) {
	w := newWorld(t)
	now, ada := time.Now().UTC(), w.members["ada"].ID
	check(t, w.db.CreateMachine(t.Context(), account.Machine{ID: "mch_desk", OwnerID: ada, Name: "desk", Region: "home", Hash: [32]byte{9}, Created: now}))
	check(t, w.db.RevokeMachine(t.Context(), "mch_desk", now))
	var traces []account.Trace
	for id, key := range map[string]string{"req_run": account.MachineKey("mch_desk", "run"), "req_other": account.MachineKey("mch_desk", ""), "req_old": ""} {
		traces = append(traces, account.Trace{CallID: id, MemberID: ada, Started: now, Mine: true, Caller: "ada", Model: "tiny", KeyID: key, Status: 200, Endpoint: "/v1/chat/completions"})
	}
	check(t, w.db.SaveTraces(t.Context(), traces, now))
	for id, want := range map[string]string{"req_run": "desk, kith run", "req_other": "desk", "req_old": ""} {
		s := good[CallTrace](w, "ada", "GET", "/api/why/"+id, "")
		assert.Equal(t, MadeAt(s.FromMachine, s.Program), want, id)
	}
	for query, want := range map[string]int{"": 3, "q=kith+run": 1, "q=DESK": 2, "key=machine+mch_desk": 1} {
		page := good[Requests](w, "ada", "GET", "/api/requests?"+query, "")
		assert.Equal(t, len(page.Data), want, query)
		for _, s := range page.Data {
			assert.That(t, query != "q=kith+run" || s.FromMachine == "desk" && s.Program == "run", s)
		}
	}
}

// A listing of calls is narrowed by what a call was of, and its pages hold each call that
// the filter lets through once, also while new ones come.
func TestRequestFilter(t *testing.T) {
	w := newWorld(t)
	now := time.Now().UTC().Truncate(time.Millisecond)
	var traces []account.Trace
	add := func(i int) {
		tr := account.Trace{
			CallID: fmt.Sprintf("req_%04d", i), MemberID: w.members["ada"].ID, Started: now.Add(time.Duration(i-1000) * time.Minute), Mine: true, Caller: "ada",
			Model: []string{"tiny", "large"}[i%2], KeyID: []string{"key_1", "key_2", ""}[i%3], Status: 200, Endpoint: "/v1/chat/completions",
			Tries: []account.Attempt{{Machine: []string{"box", "shy", "den", "box"}[i%4]}},
		}
		if i%5 == 0 {
			tr.Status, tr.Code = 503, []string{"CAPACITY_FULL", "machine_offline"}[i%2]
		}
		if i%25 == 1 {
			tr.Code = account.Cancelled
		}
		traces = append(traces, tr)
	}
	for i := range 1000 {
		add(i)
	}
	check(t, w.db.SaveTraces(t.Context(), traces, now))
	minute := func(i int) string { return traces[i].Started.Format(time.RFC3339) }
	for query, lets := range map[string]func(i int) bool{
		"":                            func(int) bool { return true },
		"code=CAPACITY_FULL":          func(i int) bool { return i%10 == 0 },
		"outcome=served&model=large":  func(i int) bool { return i%5 != 0 && i%25 != 1 && i%2 == 1 },
		"outcome=stopped":             func(i int) bool { return i%25 == 1 },
		"outcome=refused&machine=BOX": func(i int) bool { return i%5 == 0 && (i%4 == 0 || i%4 == 3) },
		"key=key_2":                   func(i int) bool { return i%3 == 1 },
		"q=offline":                   func(i int) bool { return i%10 == 5 },
		"code=none":                   func(int) bool { return false },
		"from=" + minute(100) + "&to=" + minute(350): func(i int) bool { return i >= 100 && i < 350 },
	} {
		seen, before := map[string]bool{}, ""
		for range 20 {
			page := good[Requests](w, "ada", "GET", "/api/requests?"+query+"&before="+url.QueryEscape(before), "")
			for _, tr := range page.Data {
				assert.That(t, !seen[tr.CallID], query, tr.CallID, "is listed twice")
				seen[tr.CallID] = true
			}
			late := traces[0] // a call that comes meanwhile
			late.CallID, late.Started = account.NewID("req_late"), time.Now().Add(time.Hour)
			check(t, w.db.SaveTraces(t.Context(), []account.Trace{late}, now))
			if before = page.Next; before == "" {
				break
			}
		}
		for i, tr := range traces {
			if seen[tr.CallID] != lets(i) {
				t.Errorf("%s: %s is listed: %t", query, tr.CallID, seen[tr.CallID])
				break
			}
		}
	}
	for _, query := range []string{"outcome=x", "from=yesterday", "to=x", "before=x"} {
		if got := w.ask("ada", "GET", "/api/requests?"+query, ""); got.status != 400 {
			t.Errorf("%s: %+v", query, got)
		}
	}
}

// Two members of one call: each reads what was written for that member.
func TestAStoryIsForWhomItConcerns(t *testing.T) {
	w := newWorld(t)
	now := time.Now().UTC().Truncate(time.Millisecond)
	of := func(name string, mine bool) account.Trace {
		s := account.Trace{
			CallID: "req_1", MemberID: w.members[name].ID, Started: now, Mine: mine, Caller: "bob", Model: "m", Endpoint: "/v1/embeddings",
			Tries: []account.Attempt{
				{Machine: "shy", Owner: "ada", Via: "shared", Outcome: "did not take it: busy"},
				{Machine: "box", Owner: "ada", Via: "shared", Outcome: "answered", Prompt: true},
			},
			WaitedMS: 7000,
		}
		if mine {
			s.Status = 200
			s.Decisions = []account.Decision{{Verdict: "try", Row: 3, Seen: []account.StateCount{{Via: "shared", State: "ready", Machines: 1}}}}
		}
		return s
	}
	check(t, w.db.SaveTraces(t.Context(), []account.Trace{of("bob", true), of("ada", false)}, now))
	bobs := good[anything](w, "bob", "GET", "/api/why/req_1", "")
	decisions, _ := bobs["decisions"].([]any)
	if len(decisions) != 1 || decisions[0].(anything)["reason"] != reasonOf(3, fleet.Embeddings).what || bobs["mine"] != true {
		t.Errorf("bob is told %v", bobs)
	}
	adas := good[anything](w, "ada", "GET", "/api/why/req_1", "")
	if adas["decisions"] != nil || adas["status"] != nil || adas["mine"] != false || adas["caller"] != "bob" {
		t.Errorf("ada is told %v", adas)
	}
	for _, told := range []anything{bobs, adas} {
		tries, _ := told["tries"].([]any)
		if len(tries) != 2 || tries[0].(anything)["prompt"] != false || tries[1].(anything)["prompt"] != true || told["waited_ms"] != 7000.0 {
			t.Errorf("told of the machines %v, waited %v", tries, told["waited_ms"])
		}
	}
	// Another's call, and one that never was, are answered alike.
	another, none := w.ask("eve", "GET", "/api/why/req_1", ""), w.ask("eve", "GET", "/api/why/req_2", "")
	if another.status != 404 || strings.ReplaceAll(message(t, another), "req_1", "req_2") != message(t, none) {
		t.Errorf("%+v and %+v", another, none)
	}
}

func TestEveryRowHasItsReason(t *testing.T) {
	for row := 1; row <= 12; row++ {
		for _, family := range []fleet.Family{fleet.Chat, fleet.Embeddings, fleet.Audio} {
			r := reasonOf(row, family)
			if r.what == "" || r.fix == "" || r.row != fleet.ShownRow(row, family) {
				t.Errorf("row %d for %s has the reason %+v", row, family, r)
			}
			if says := strings.Contains(r.what, "this kind of call"); says != (family != fleet.Chat && r.row == 1) {
				t.Errorf("row %d for %s says %q", row, family, r.what)
			}
		}
	}
	for _, none := range []int{-1, 0, 13} {
		if got := reasonOf(none, fleet.Chat); got != (reason{}) {
			t.Errorf("row %d has the reason %+v", none, got)
		}
	}
}
