package site

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
)

// TestUsageCSV checks that the file is complete, by side and by table, and conforms to
// RFC 4180, and that a spreadsheet would not take any cell for a formula.
func TestUsageCSV(t *testing.T) {
	enginetest.OneDay()
	tn := newTown(t, nil)
	tn.history()
	ada, bob := tn.members["ada"].ID, tn.members["bob"].ID
	formulas := []string{"=1+1", "+1", "-1", "@SUM(1)", "a,b", `a"b`, "plain"}
	for i, model := range formulas {
		check(t, tn.db.RecordUsage(t.Context(), []account.Usage{{
			CallID: fmt.Sprint("req_f", i), Attempt: 1, Started: time.Now(), MemberID: bob, OwnerID: ada, MachineID: tn.machine.ID, Model: model, TokensIn: 3, TokensOut: 4,
		}}))
	}
	b := tn.as("ada")
	read := func(query string) [][]string {
		t.Helper()
		page := b.get("/usage.csv"+query).want(t, 200)
		if strings.Count(page.body, "\n") != strings.Count(page.body, "\r\n") || !strings.HasSuffix(page.body, "\r\n") {
			t.Errorf("%s: the lines do not end in CRLF: %q", query, page.body)
		}
		rows, err := csv.NewReader(strings.NewReader(page.body)).ReadAll()
		check(t, err)
		for _, row := range rows {
			for _, cell := range row {
				assert.That(t, !strings.ContainsAny(cell[:min(1, len(cell))], "=+-@\t\r"), query, "a formula", row)
			}
		}
		return rows[1:]
	}
	views := map[string]int{"day": 2, "model": len(formulas) + 1, "machine": 1, "member": 2, "key": 0, "code": 0} // with ada's own call of yesterday
	sum := 0
	for of, n := range views {
		rows := read("?days=7&side=owner&of=" + of)
		if sum += n; len(rows) != n {
			t.Errorf("%s: %q, want %d rows", of, rows, n)
		}
		for _, row := range rows {
			assert.That(t, row[0] == "owner" && row[1] == of, of, row)
		}
	}
	assert.Equal(t, len(read("?days=7&side=owner")), sum, "the side", "rows, its tables")
	if all, caller := read("?days=7"), read("?days=7&side=caller"); len(all) != sum+len(caller) || len(caller) == 0 {
		t.Errorf("%d rows in all, %d and %d of the sides", len(all), sum, len(caller))
	}
	if got := strings.Join(read("?days=7&side=owner&of=member")[0], ","); got != "owner,member,bob,7,0,7,0,21,28,,,0" {
		t.Errorf("most called: %s", got)
	}
	got := fmt.Sprint(read("?days=7&side=owner&of=model"))
	for _, want := range []string{"'=1+1", "'+1", "'-1", "'@SUM(1)", "a,b", `a"b`} {
		assert.Contains(t, got, want, "no")
	}
	for query, says := range map[string]string{"?side=x": "side must be", "?of=x": "of must be one of", "?days=x": "whole number", "?by=x": "by is hour"} {
		b.get("/usage.csv"+query).want(t, 400, says)
	}
	if name := b.get("/usage.csv?days=7&side=owner&of=model").header.Get("Content-Disposition"); !strings.Contains(name, "kith-usage-owner-model-") {
		t.Errorf("it is called %s", name)
	}

	// The page shows who called on which machines, and bob sees the other side of it.
	b.get("/usage?days=7&side=owner&view=tokens").want(t, 200, `id="owner-members"`, ">bob<", ">you<", "days=7&amp;of=member&amp;side=owner", `aria-current="page">On your machines<`,
		`aria-current="true">Tokens<`, `href="/usage?by=day&amp;days=7&amp;view=tokens">Your calls<`, `href="/usage?by=week&amp;days=84&amp;side=owner&amp;view=tokens">12 weeks<`)
	b.get("/usage?days=7&side=balance").want(t, 200, `id="balance"`, ">bob<")
	b.get("/usage?side=x").want(t, 404, "no side")
	for view, want := range map[string]string{"calls-week": "Calls by hour of the week (UTC)", "first": "None in this period.", "waits": "None in this period."} {
		page := b.get("/usage?days=7&side=owner&view="+view).want(t, 200, want)
		assert.Equal(t, strings.Count(page.body, "<figure"), 1, "charts of", view)
	}
	tn.as("bob").get("/usage?days=7").want(t, 200, `id="caller-members"`, ">ada<")
	if page := tn.as("eve").get("/usage?days=7").want(t, 200); strings.Contains(page.body, ">ada<") || strings.Contains(page.body, ">bob<") {
		t.Error("eve is told who called whom")
	}
}

// TestRequestPages checks that a list can be read to its end by its links, even if all
// calls have the same millisecond, and that a request is found by its id, with its code
// explained.
func TestRequestPages(t *testing.T) { onEachStore(t, testRequestPages) }

func testRequestPages(t *testing.T, tn *town) {
	now, ada := time.Now(), tn.members["ada"].ID
	const many = 230
	var traces []account.Trace
	for i := range many {
		traces = append(traces, account.Trace{CallID: fmt.Sprintf("req_%04d", i), MemberID: ada, Started: now, Mine: true, Caller: "ada", Model: "m", Status: 200, Endpoint: fleet.ChatCompletions.String()})
	}
	check(t, tn.db.SaveTraces(t.Context(), traces, now))
	b := tn.as("ada")
	seen := map[string]int{}
	pages := 0
	for path := "/requests"; path != ""; pages++ {
		page := b.get(path).want(t, 200)
		for part := range strings.SplitSeq(page.body, `href="/requests/`) {
			if id, _, ok := strings.Cut(part, `"`); ok && strings.HasPrefix(id, "req_") {
				seen[id]++
			}
		}
		path = next(page, "/requests?before=")
	}
	for id, n := range seen {
		assert.Equal(t, n, 1, id, "is told")
	}
	assert.That(t, len(seen) == many && pages == 3, len(seen), "of", many, "told on", pages, "pages")
	const id = "req_0198c1f0-5b7e-7c61-9d2a-3f2b1c0d9e8f"
	b.get("/requests?outcome=served&q=+"+id+"+").goes(t, "/requests/"+id)
	b.get("/requests?q=req_0007").want(t, 200, `href="/requests/req_0007"`, ">1 call<")
	assert.Equal(t, strings.Count(b.get("/requests").body, `type="search"`), 1, "search fields")
	b.get("/requests?before=2026-11-21T10:30:00Z,%00").want(t, 400, "before is a time")
	none := b.get("/requests/req_none").want(t, 404, "<h1>Call</h1>", "no call &#34;req_none&#34; of yours", "within 2 seconds", "401")
	assert.Lacks(t, none.body, "<dt>", "the page of an unknown call describes one")

	early := account.Trace{CallID: "req_early", MemberID: ada, Started: now, Mine: true, Caller: "ada", Status: 413, Code: "request_too_large", Message: "the body exceeds 33554432 bytes", Endpoint: "/v1/chat/completions"}
	lost := account.Trace{CallID: "req_lost", MemberID: ada, Started: now, Mine: true, Caller: "ada", Status: 200, Code: account.Interrupted, Model: "m"}
	check(t, tn.db.SaveTraces(t.Context(), []account.Trace{early, lost}, now))
	page := b.get("/requests/req_early").want(t, 200, "The body exceeds 33554432 bytes.", "before the hub looked for a machine", "<code>request_too_large</code> 413", "<title>Call: failed")
	assert.Equal(t, strings.Count(page.body, ">request_too_large<"), 1, "the code of a call is there once")
	assert.Lacks(t, page.body, `class="way"`, "a picture of a call to which nothing happened")
	assert.Lacks(t, page.body, `id="steps"`, "a timeline of a call to which nothing happened")
	b.get("/requests/req_lost").want(t, 200, "The hub stopped before a machine was found.")
	b.get("/requests/req_0007").want(t, 200, "served")
}

// next returns the URL of a page's link to the next page, or "".
func next(page seen, from string) string {
	_, after, ok := strings.Cut(page.body, `href="`+from)
	if !ok {
		return ""
	}
	rest, _, _ := strings.Cut(after, `"`)
	return strings.ReplaceAll(from+rest, "&amp;", "&")
}

// A number of one is not followed by a plural.
func TestOneIsNoPlural(t *testing.T) {
	tn := newTown(t, nil)
	ada, op := tn.as("ada"), tn.operator()
	for query, want := range map[string]string{
		"by=hour&days=1": "The last 24 hours, since", "by=hour&days=2": "The last 48 hours, since", "by=day&days=1": "The last day, since",
		"by=week&days=1": "The last day, since", "by=day&days=14": "The last 14 days, since",
	} {
		ada.get("/usage?"+query).want(t, 200, want)
		op.get("/operator/usage?"+query).want(t, 200, want)
	}
	op.get("/operator/drain?node=a").want(t, 200, "Its machine and the calls that wait there", "Its running call finishes")
}

// TestNoDataAfterAnError checks that a page whose data cannot be read shows the error and
// no data.
func TestNoDataAfterAnError(t *testing.T) {
	tn := newTown(t, nil)
	op := tn.operator()
	for path, data := range map[string]string{
		"/usage?days=x": "The last", "/requests?before=x": "None yet", "/requests/req_none": "<dt>",
		"/operator/audit?before=x": "Nothing yet",
	} {
		if page := op.get(path); page.status < 400 || !strings.Contains(page.body, `id="problem"`) || strings.Contains(page.body, data) {
			t.Errorf("%s: %d %s", path, page.status, page.body)
		}
	}
}

// TestOperatorPages checks that an operator's lists can be read to their end, also with a
// search, and that the result of the last backup is shown.
func TestOperatorPages(t *testing.T) {
	tn := newTown(t, nil)
	op := tn.operator()
	const many = mostListed + 20
	at := time.Now()
	for i := range many {
		check(t, tn.db.CreateMember(t.Context(), account.Member{ID: fmt.Sprintf("mem_p%03d", i), Name: fmt.Sprintf("pat %03d", i), Created: at}))
		m := account.Machine{ID: fmt.Sprintf("mch_p%03d", i), OwnerID: tn.members["bob"].ID, Name: fmt.Sprintf("pad %03d", i), Region: "home", Created: at}
		m.Hash[0], m.Hash[1] = byte(i), 7
		check(t, tn.db.CreateMachine(t.Context(), m))
		act := account.Act{ID: fmt.Sprintf("act_p%03d", i), At: at, What: "enable a member", Subject: fmt.Sprintf("pat %03d", i)}
		check(t, tn.db.SetMemberDisabled(account.Acting(t.Context(), &act), fmt.Sprintf("mem_p%03d", i), false))
	}
	for path, name := range map[string]string{"/operator/members?q=PAT": "pat", "/operator/machines?q=pa": "pad", "/operator/audit": "pat"} {
		base, _, _ := strings.Cut(path, "?")
		told, pages := "", 0
		for at := path; at != ""; pages++ {
			page := op.get(at).want(t, 200)
			told += page.body
			from := base + "?page="
			if base == "/operator/audit" {
				from = base + "?before="
			}
			at = next(page, from)
		}
		for i := range many {
			if !strings.Contains(told, fmt.Sprintf("%s %03d<", name, i)) {
				t.Errorf("%s leaves out %s %03d", path, name, i)
				break
			}
		}
		assert.Equal(t, pages, 2, path)
	}

	op.get("/operator").want(t, 200, "none yet", fmt.Sprintf("of %d<", many+4), fmt.Sprintf(">1 of %d<", many+1))
	file := t.TempDir() + "/copy.db"
	_, err := tn.db.Backup(t.Context(), account.Backup{ID: "bak_1", At: time.Now(), File: file}, nil)
	check(t, err)
	op.get("/operator").want(t, 200, file, "KiB", "verified")
}

// TestUsageInTheReadersZone checks that days are those of the zone that the browser names, that
// the page says so, and that a zone which does not exist changes nothing.
func TestUsageInTheReadersZone(t *testing.T) {
	enginetest.OneDay()
	tn := newTown(t, nil)
	tn.history()
	b := tn.as("ada")
	b.get("/usage?days=7").want(t, 200, "Days and weeks are in UTC")
	at, err := url.Parse(b.web.URL)
	check(t, err)
	for zone, want := range map[string]string{"Asia/Tokyo": "Days and weeks are in Asia/Tokyo time.", "Mars/Olympus": "Days and weeks are in UTC."} {
		b.client.Jar.SetCookies(at, []*http.Cookie{{Name: "kith-zone", Value: zone}})
		b.get("/usage?days=7").want(t, 200, want)
	}
	b.get("/usage?view=calls-model").want(t, 200, `class="part-1"`, "view=calls-model", `id="caller-days"`)
	b.get("/usage?view=x").want(t, 404, "no view")
	tn.operator().get("/operator/usage?view=calls-member").want(t, 400, "names no member")
}

// TestHubUsage checks that an operator sees the sums of all members' calls and no names,
// and that others get "not found".
func TestHubUsage(t *testing.T) { onEachStore(t, testHubUsage) }

func testHubUsage(t *testing.T, tn *town) {
	op := tn.operator()
	op.get("/operator/usage").want(t, 200, "No calls in this period", "0 members made calls")
	ada, bob := tn.members["ada"].ID, tn.members["bob"].ID
	now := time.Now()
	for i, call := range []account.Usage{
		{MemberID: bob, OwnerID: ada, MachineID: tn.machine.ID, Model: "tiny", TokensIn: 1000, TokensOut: 400},
		{MemberID: bob, Model: "tiny", Code: "NOT_IN_CIRCLE"},
		{MemberID: ada, OwnerID: ada, MachineID: tn.machine.ID, Model: "=large", TokensIn: 500},
	} {
		call.CallID, call.Attempt, call.Started = fmt.Sprint("req_h", i), 1, now
		check(t, tn.db.RecordUsage(t.Context(), []account.Usage{call}))
	}
	for _, by := range []string{"hour", "day", "week"} {
		page := op.get("/operator/usage?by="+by).want(t, 200, "2 members made calls", ">Members</th>", `<small>400 out</small></dd>`, "tiny", "<code>NOT_IN_CIRCLE</code>",
			`href="/operator/usage.csv?by=`+by, `<td class="n">2</td></tr>`, `aria-current="page">Usage</a>`)
		rows, err := csv.NewReader(strings.NewReader(op.get("/operator/usage.csv?by="+by).want(t, 200).body)).ReadAll()
		check(t, err)
		if len(rows) != 5 || strings.Join(rows[2], " ") != "hub model tiny 2 1 1 0 1000 400   0" || rows[3][2] != "'=large" || rows[4][2] != "NOT_IN_CIRCLE" {
			t.Errorf("by %s the table is %q", by, rows)
		}
		for _, name := range []string{"bob", ">ada", ">box", tn.machine.ID} {
			assert.Lacks(t, page.body, name, "by", by, "the page names")
		}
	}
	if rows := strings.Split(op.get("/operator/usage.csv?of=code").want(t, 200).body, "\r\n"); len(rows) != 3 {
		t.Errorf("the table of codes is %q", rows)
	}
	op.get("/operator/usage?by=year").want(t, 400)
	op.get("/operator/usage.csv?of=member2").want(t, 400)
	tn.as("bob").get("/operator/usage").want(t, 404)
	tn.as("bob").get("/operator/usage.csv").want(t, 404)
}
