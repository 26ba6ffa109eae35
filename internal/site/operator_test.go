package site

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
)

// operator returns a browser of a member who is an operator.
func (tn *town) operator() *browser {
	tn.t.Helper()
	m := account.Member{ID: account.NewID("mem_"), Name: "root", Operator: true, Created: time.Now()}
	check(tn.t, tn.db.CreateMember(tn.t.Context(), m))
	tn.members["root"] = m
	return tn.as("root")
}

// deeds returns the acts in the audit log, without times and ids, oldest first.
func (tn *town) deeds() []string {
	tn.t.Helper()
	acts, err := tn.db.Acts(tn.t.Context(), account.Place{}, account.ActFilter{}, 100)
	check(tn.t, err)
	all := make([]string, len(acts))
	for i, a := range acts {
		all[len(acts)-1-i] = fmt.Sprintf("%s: %s: %s", a.ByName, a.What, a.Subject)
	}
	return all
}

func TestOperator(t *testing.T) { onEachStore(t, testOperator) }

func testOperator(t *testing.T, tn *town) {
	op, bob := tn.operator(), tn.as("bob")
	op.get("/").want(t, 200, `href="/operator"`)
	if page := bob.get("/").want(t, 200); strings.Contains(page.body, "/operator") {
		t.Error("a member is told of the operator's pages")
	}
	op.get("/operator").want(t, 200, "of 4<", ">1 of 1<", "Database", "not OK", "50 a second")
	op.get("/operator/machines").want(t, 200, "box", "ada", "ready", `<td class="quiet">now</td>`)
	op.get("/operator/machines?q=zzz").want(t, 200, "No machines match")
	op.get("/operator/audit").want(t, 200, "Nothing yet")
	op.get("/operator/audit?before=x").want(t, 400, "before is a time")
	if page := op.get("/operator/members?q=BO").want(t, 200, "bob"); strings.Contains(page.body, tn.members["ada"].ID) {
		t.Error("the search finds everybody")
	}

	const members = "/operator/members"
	changed := tn.changed
	op.post(members+"/disable", "member", tn.members["bob"].ID).goes(t, members)
	op.get(members).want(t, 200, "bob is disabled", "Enable bob")
	assert.That(t, tn.changed != changed, "nobody was told of the change")
	bob.get("/machines").goes(t, "/signin?next=%2Fmachines")
	op.post(members+"/link", "member", tn.members["bob"].ID).want(t, 400, "enable the account first")
	op.post(members+"/enable", "member", tn.members["bob"].ID).goes(t, members)
	bob.get("/machines").want(t, 200)
	op.post(members+"/disable", "member", tn.members["root"].ID).want(t, 400, "own account")
	op.post(members+"/disable", "member", "mem_none").want(t, 404, "no such member")

	page := op.post(members+"/link", "member", tn.members["bob"].ID).want(t, 200, "signs bob in")
	path := strings.TrimPrefix(textOf(t, page, "link"), tn.web.URL)
	tn.browser().get(path).want(t, 200, "Sign in as bob")
	want := []string{"root: disable a member: bob", "root: enable a member: bob", "root: make a sign-in link: bob"}
	assert.Same(t, tn.deeds(), want)
	op.get("/operator/audit").want(t, 200, "make a sign-in link", "root")

	// If the operator has a password, creating a link requires it.
	op.post("/account/password", "password", aPassword).goes(t, "/account")
	op.get(members+"/link?member=mem_none").want(t, 404, "no such member")
	asked := op.get(members+"/link?member="+tn.members["bob"].ID).want(t, 200, "Create a sign-in link for bob?", `name="old"`)
	assert.Lacks(t, asked.body, `name="name"`, "the field for a password manager would fill the form for a new member")
	op.post(members+"/link", "member", tn.members["bob"].ID).want(t, 403, "current password is wrong")
	op.post(members+"/link", "member", tn.members["bob"].ID, "old", aPassword).want(t, 200, "signs bob in", `<details id="add">`,
		`<a href="/operator/members" aria-current="page">Members`)
}

// An operator can add a member, who signs in by a link, and give and take the role of
// operator, except from the last operator.
func TestOperatorAddsMembers(t *testing.T) { onEachStore(t, testOperatorAdds) }

func testOperatorAdds(t *testing.T, tn *town) {
	op := tn.operator()
	const members = "/operator/members"
	page := op.post(members, "name", "dee").want(t, 200, "dee was added")
	dee := tn.browser()
	path := strings.TrimPrefix(textOf(t, page, "link"), tn.web.URL)
	dee.get(path).want(t, 200, "Sign in as dee")
	dee.post("/welcome", "link", strings.TrimPrefix(path, "/welcome/")).goes(t, "/")
	dee.get("/").want(t, 200, "You cannot sign in again yet: set a password.")
	dee.get("/operator").want(t, 404)
	op.post(members, "name", "dee").want(t, 400, "is there already", `value="dee"`)
	op.post(members, "name", "ev\u202el").want(t, 400)

	made, err := tn.db.MemberByName(t.Context(), "dee")
	check(t, err)
	op.get(members+"/role?member="+made.ID).want(t, 200, "Make dee an operator?", `name="operator" value="yes"`)
	op.post(members+"/role", "member", made.ID, "operator", "yes").goes(t, members)
	if page := op.get(members+"/role?member="+made.ID).want(t, 200, "Remove dee as an operator?"); strings.Contains(page.body, `name="operator"`) {
		t.Error("the form would make an operator")
	}
	dee.get("/operator").want(t, 200)
	op.post(members+"/role", "member", made.ID).goes(t, members)
	dee.get("/operator").want(t, 404)
	dee.post(members+"/role", "member", made.ID, "operator", "yes").want(t, 404)
	op.post(members+"/role", "member", tn.members["root"].ID).want(t, 400, "root is the only operator")
	op.get("/operator").want(t, 200)
	want := []string{"root: create a member: dee", "root: make a sign-in link: dee", "root: change a member&#39;s role: dee, operator", "root: change a member&#39;s role: dee, member"}
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], "&#39;", "'")
	}
	assert.Same(t, tn.deeds(), want)

	// If the operator has a password, both actions require it.
	op.post("/account/password", "password", aPassword).goes(t, "/account")
	op.post(members, "name", "fay").want(t, 403, "current password is wrong")
	op.post(members+"/role", "member", made.ID, "operator", "yes").want(t, 403, "current password is wrong")
	op.post(members, "name", "fay", "operator", "yes", "old", aPassword).want(t, 200, "fay was added")
	op.post(members+"/role", "member", tn.members["root"].ID, "old", aPassword).goes(t, "/")
	op.get("/operator").want(t, 404)
}

// The operator's first page shows the nodes, which can be drained, the clients near a
// limit, and whether the hub makes backups.
func TestOperatorOverview(t *testing.T) { onEachStore(t, testOperatorOverview) }

func testOperatorOverview(t *testing.T, tn *town) {
	op := tn.operator()
	page := op.get("/operator").want(t, 200, "192.0.2.7", "190", "(this one)", "Drain b")
	const own, none = "pg_dump", "none yet"
	if tn.db.MakesBackups() == strings.Contains(page.body, own) || tn.db.MakesBackups() != strings.Contains(page.body, none) {
		t.Errorf("the page on backups says %q", page.body)
	}
	const missing = "No backup of the hub succeeded"
	if home := op.get("/").want(t, 200); strings.Contains(home.body, missing) {
		t.Error("a hub whose first operator joined just now has to have a backup")
	}
	now := time.Now()
	check(t, tn.db.CreateMember(t.Context(), account.Member{ID: "mem_old", Name: "olga", Operator: true, Created: now.Add(-8 * 24 * time.Hour)}))
	if home := op.get("/").want(t, 200); tn.db.MakesBackups() != strings.Contains(home.body, missing) {
		t.Error("the first page and the operator's differ on backups")
	}
	if tn.db.MakesBackups() { // a failed backup does not hide the good one before it
		check(t, tn.db.RecordBackup(t.Context(), account.Backup{ID: account.NewID("bak_"), At: now.Add(-2 * time.Hour), File: "kith.db", Bytes: 1}))
		check(t, tn.db.RecordBackup(t.Context(), account.Backup{ID: account.NewID("bak_"), At: now.Add(-time.Hour), File: "kith.db", Fault: "the disk is full"}))
		if home := op.get("/").want(t, 200); strings.Contains(home.body, missing) {
			t.Error("the first page says that no backup succeeded, and one did 2 h ago")
		}
	}
	op.get("/operator/drain?node=b").want(t, 200, "Drain b?", "move to the other nodes")
	op.get("/operator/drain?node=c").want(t, 404)
	op.post("/operator/drain", "name", "b").goes(t, "/operator")
	tn.as("bob").post("/operator/drain", "name", "a").want(t, 404)
	assert.Same(t, tn.drained, []string{"b"})
}

// TestOperatorFigures checks the numbers at the top of the operator's first page: calls and
// failed calls of this hour and the one before, slots, and members who made calls.
func TestOperatorFigures(t *testing.T) {
	tn := newTown(t, nil)
	op := tn.operator()
	op.get("/operator").want(t, 200, `<dd id="rate">0.0 <small>`, `days=1#hub-codes">–</a> <small>0 of 0 calls`, `<dd id="capacity">0 of 3 <small>`, ">0 of 4</a>")
	now := time.Now().UTC()
	for i, code := range []string{"", "", "CAPACITY_FULL", account.Cancelled} {
		check(t, tn.db.RecordUsage(t.Context(), []account.Usage{{CallID: fmt.Sprint("req_", i), Attempt: 1, Started: now, MemberID: tn.members["bob"].ID, Model: "m", Code: code}}))
	}
	tn.box().Load.SetLocal(2)
	op.get("/operator").want(t, 200, `<dd id="errors"><a href="/operator/usage?by=hour&amp;days=1#hub-codes">25.0 %</a> <small>1 of 4 calls`, `<dd id="capacity">2 of 3 <small>`, ">1 of 4</a>", "1 stopped</span>")

	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	bar := func(hour int, calls, refused int64) usageBar {
		return usageBar{At: at.Add(time.Duration(hour) * time.Hour), Sum: api.UsageSum{Calls: calls, Refused: refused}}
	}
	got := recent(usageChart{Bars: []usageBar{bar(0, 1000, 1000), bar(1, 100, 10), bar(2, 50, 5)}}, at.Add(2*time.Hour+15*time.Minute))
	assert.Equal(t, got, recentCalls{api.UsageSum{Calls: 150, Refused: 15}, 75})
	assert.Equal(t, got.Rate()+", "+got.ErrorRate(), "2.0, 10.0 %")
	assert.Equal(t, recentCalls{api.UsageSum{Calls: 120_000}, 60}.Rate(), "2,000")
}

// TestMembersList checks that the list of members shows their machines, and when they were
// there.
func TestMembersList(t *testing.T) { onEachStore(t, testMembersList) }

func testMembersList(t *testing.T, tn *town) {
	op := tn.operator()
	op.get("/operator/members?q=ada").want(t, 200, `<td>never</td><td class="n">1</td>`, `aria-label="Actions: ada"`)
	check(t, tn.db.CreateMember(t.Context(), account.Member{ID: "mem_pat", Name: "pat", Created: time.Now().Add(-100 * time.Hour)}))
	check(t, tn.db.RecordUsage(t.Context(), []account.Usage{{CallID: "req_1", Attempt: 1, Started: time.Now().Add(-50 * time.Hour), MemberID: "mem_pat", Model: "m"}}))
	op.get("/operator/members?q=pat").want(t, 200, ">2 days ago</time></td><td class=\"n\">0</td>")
	tn.as("ada").get("/").want(t, 200)
	op.get("/operator/members?q=ada").want(t, 200, ">just now</time></td><td class=\"n\">1</td>")
}

// The audit log can be filtered by who, what and when, on every page.
func TestAuditFilters(t *testing.T) { onEachStore(t, testAuditFilters) }

func testAuditFilters(t *testing.T, tn *town) {
	op := tn.operator()
	day := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	record := func(i int, by, what, subject string) {
		act := &account.Act{ID: account.NewID("act_"), At: day.AddDate(0, 0, i), By: by, ByName: by, What: what, Subject: subject}
		check(t, tn.db.SetMemberDisabled(account.Acting(t.Context(), act), tn.members["bob"].ID, false))
	}
	record(0, "", "first thing", "subject-0")
	record(1, "root", "first thing", "subject-1")
	record(2, "root", "other thing", "subject-2")
	for i := range mostListed + 1 {
		record(10, "zoe", "many", fmt.Sprintf("many-%d", i))
	}
	for query, want := range map[string][]string{
		"who=-":                            {"subject-0"},
		"who=root":                         {"subject-1", "subject-2"},
		"what=first+thing":                 {"subject-0", "subject-1"},
		"who=root&what=first+thing":        {"subject-1"},
		"from=2026-03-02&to=2026-03-02":    {"subject-1"},
		"to=2026-03-01":                    {"subject-0"},
		"from=2026-03-03&to=2026-03-04":    {"subject-2"},
		"who=nowhere":                      nil,
		"who=root&what=many":               nil,
		"who=zoe&to=2026-03-10":            nil,
		"from=2026-03-01&to=2026-03-02":    {"subject-0", "subject-1"},
		"what=first+thing&from=2026-03-02": {"subject-1"},
	} {
		body := op.get("/operator/audit?"+query).want(t, 200).body
		for i := range 3 {
			subject := fmt.Sprintf("subject-%d", i)
			assert.Equal(t, strings.Contains(body, subject), slices.Contains(want, subject), query, "shows", subject)
		}
	}
	page := op.get("/operator/audit?who=zoe&from=2026-03-02&to=2026-03-20").want(t, 200, "Older", `<option selected>zoe`)
	_, link, _ := strings.Cut(page.body, `<p><a href="`)
	link, _, _ = strings.Cut(link, `"`)
	rest := op.get(strings.ReplaceAll(link, "&amp;", "&")).want(t, 200, `<option selected>zoe`)
	assert.Equal(t, strings.Count(rest.body, "<td>many-"), 1, "the second page")
	op.get("/operator/audit?from=soon").want(t, 400, "from must be a day such as")
}

// TestActIsPartOfWhatItDoes checks that the log has no acts that failed.
func TestActIsPartOfWhatItDoes(t *testing.T) { onEachStore(t, testActIsPart) }

func testActIsPart(t *testing.T, tn *town) {
	act := &account.Act{ID: account.NewID("act_"), At: time.Now(), What: "disable a member", Subject: "no\x00body\xff"}
	ctx := account.Acting(t.Context(), act)
	if err := tn.db.SetMemberDisabled(ctx, "mem_none", true); !errors.Is(err, account.ErrNotFound) {
		t.Fatal(err)
	}
	if got := tn.deeds(); len(got) != 0 {
		t.Errorf("the log tells of %q", got)
	}
	check(t, tn.db.SetMemberDisabled(ctx, tn.members["bob"].ID, true))
	check(t, tn.db.SetMemberDisabled(ctx, tn.members["bob"].ID, false)) // the same act in two transactions
	assert.Same(t, tn.deeds(), []string{": disable a member: no\ufffdbody\ufffd"})
}

func TestOperatorSeesHostileNamesAsText(t *testing.T) {
	tn := newTown(t, nil)
	op := tn.operator()
	for i, name := range hostile() {
		name += fmt.Sprintf(" no%d", i) // some names look alike, which members' names may not
		m := account.Member{ID: fmt.Sprintf("mem_h%d", i), Name: name, Created: time.Now()}
		check(t, tn.db.CreateMember(t.Context(), m))
		op.post("/operator/members/disable", "member", m.ID).goes(t, "/operator/members")
		check(t, tn.db.RenameMachine(t.Context(), tn.members["ada"].ID, tn.machine.ID, name))
		q := url.QueryEscape(name)
		for _, page := range []seen{
			op.get("/operator/members?q=" + q), op.get("/operator/machines"), op.get("/operator/machines?q=" + q),
			op.get("/operator/audit?before=" + q), op.post("/operator/members/enable", "member", name),
		} {
			inert(t, name, page)
		}
	}
	inert(t, "all", op.get("/operator/audit"))
	inert(t, "all", op.get("/operator/members"))
}
