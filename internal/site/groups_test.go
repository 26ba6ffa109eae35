package site

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
)

// TestLimitsOnPages checks what the pages show about who may use machines: groups are
// listed with their limits, a form shows the existing limits, an empty field removes one,
// and sharing again does not change them.
func TestLimitsOnPages(t *testing.T) { onEachStore(t, testLimitsOnPages) }

func testLimitsOnPages(t *testing.T, tn *town) {
	ada, bob := tn.as("ada"), tn.as("bob")
	ada.get("/access").want(t, 200, "Only you.")
	ada.post("/groups/create", "name", "lab", "kind", "open").goes(t, "/access/group?group=lab")
	ada.get("/access").want(t, 200, "Only you.") // no other member
	bob.post("/groups/join", "group", "lab").goes(t, "/access/group?group=lab")
	if page := ada.get("/access").want(t, 200, `data-panel>bob</a></th>`, `<a href="/access/group?group=lab`, "<td class=\"names\">box</td>\n<td class=\"names wide\">no limits"); strings.Contains(page.body, "Only you") {
		t.Error("only ada, while a group reaches the machine")
	}
	ada.post("/groups/limit", "group", "lab", "models", "tiny", "per_day", "7").goes(t, "/access/group?group=lab")
	ada.get("/access/group?group=lab").want(t, 200, "Limits saved for lab.", "<strong>models tiny; 7 calls a day</strong>")
	ada.get("/access/group?group=lab&limits=edit").want(t, 200, `<dialog class="panel" id="panel" open`, `placeholder="no limit" value="7"`, `name="models" value="tiny" checked`)
	ada.get("/access").want(t, 200, "\">models tiny; 7 calls a day <small")
	ada.get("/machines/"+tn.machine.ID+"?tab=sharing").want(t, 200, "served, models tiny; 7 calls a day")
	bob.get("/access/group?group=lab").want(t, 200, "<strong>no limits</strong>")
	ada.post("/groups/limit", "group", "lab", "models", "tiny", "per_day", "0").want(t, 400, "Calls a day is a whole number from 1 to 1,000,000, or empty", `placeholder="no limit" value="0"`)
	ada.post("/groups/limit", "group", "lab", "models", "", "per_day", "").goes(t, "/access/group?group=lab")
	ada.get("/access/group?group=lab").want(t, 200, "<strong>no limits</strong>")

	ada.post("/sharing/share", "with", "bob", "models", "tiny", "concurrent", "2", "per_day", "9").goes(t, "/access")
	ada.post("/sharing/share", "with", "bob", "models", "", "concurrent", "", "per_day", "8").goes(t, "/access")
	ada.get("/access").want(t, 200, "\">models tiny; 2 at once; 8 calls a day", "lab allows more")
	ada.get("/access?member=bob").want(t, 200, `placeholder="no limit" value="8"`, "which has no effect while you share",
		"<strong>lab allows more</strong> than this share", `aria-label="Apply these limits to lab too: models tiny; 2 at once; 8 calls a day"`, "Without the share, the limits of lab apply: no limits.")
	ada.post("/groups/limit", "group", "lab", "models", "tiny", "concurrent", "2", "per_day", "8").goes(t, "/access/group?group=lab") // as the button does
	ada.get("/access/group?group=lab").want(t, 200, "<strong>models tiny; 2 at once; 8 calls a day</strong>")
	if page := ada.get("/access?member=bob"); strings.Contains(page.body, "gives more") {
		t.Error("lab gives no more than the share now")
	}
	ada.post("/sharing/limits", "with", "bob", "models", "tiny\nnone-such", "concurrent", "", "per_day", "8").goes(t, "/access")
	ada.get("/access").want(t, 200, "models tiny, none-such; 8 calls a day", "Note: no machine of yours offers the model")
	ada.post("/sharing/limits", "with", "bob", "per_day", "0").want(t, 400, "Calls a day is a whole number from 1", `placeholder="no limit" value="0"`)

	code := textOf(t, ada.post("/sharing/invite", "uses", "1", "expires", "7d"), "link")
	bob.post("/sharing/accept", "code", code).goes(t, "/access/for-you")
	bob.get("/access/for-you").want(t, 200, "ada already shares with you: nothing changed, and the invite was not used", "models tiny, none-such; 8 calls a day")
	ada.get("/access/invites").want(t, 200, "0 of 1")

	// A disabled member makes no calls, and is not listed as someone who can use a
	// machine.
	check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["bob"].ID, true))
	ada.get("/access").want(t, 200, "Only you.", "account disabled, so all their calls are refused", `aria-label="Stop sharing with bob"`)
}

// TestSharedWithoutMachine checks that a member without a machine sees who will be able
// to use one, and that a link to a group opens its limits.
func TestSharedWithoutMachine(t *testing.T) {
	tn := newTown(t, nil)
	good[anything](tn.world, "bob", "POST", "/api/shares", `{"with":"eve","per_day":5}`)
	good[anything](tn.world, "bob", "POST", "/api/groups", `{"name":"lab","kind":"open"}`)
	bob := tn.as("bob")
	bob.get("/access").want(t, 200, "You have no machine yet", `data-panel>eve</a></th>`, "<td class=\"names\">none yet</td>\n<td class=\"names wide\">5 calls a day")
	bob.get("/access?group=lab").goes(t, "/access/group?group=lab")
	bob.get("/access?member=eve").want(t, 200, `<dialog class="panel" id="panel" open`, `action="/sharing/limits"`, `value="5"`)
	bob.get("/access?member=zed").want(t, 404, "cannot use your machines")
	tn.as("eve").get("/access/for-you").want(t, 200, `<th scope="row">bob</th>`, ">share</td>", "5 calls a day")
}

// TestUsedToday checks that the page shows how many calls routing has counted today, and
// whether a way is used up.
func TestUsedToday(t *testing.T) {
	enginetest.OneDay()
	tn := newTown(t, nil)
	bob := tn.members["bob"].ID
	share := good[api.Share](tn.world, "ada", "POST", "/api/shares", `{"with":"bob","per_day":2}`)
	reach := func(calls int) {
		l := fleet.Limits{PerDay: 2, Load: fleet.NewLimitLoad(time.Now(), calls)}
		tn.snapshot = tn.snapshot.WithShares(fleet.MemberID(bob), []*fleet.Share{{ID: fleet.ShareID(share.ID), Owner: fleet.MemberID(tn.members["ada"].ID), Member: fleet.MemberID(bob), Limits: l}})
	}
	ada := tn.as("ada")
	reach(1)
	if page := ada.get("/access").want(t, 200, "2 calls a day <small class=\"muted\">1 used</small>"); strings.Contains(page.body, "used up today") {
		t.Error("used up with one call left")
	}
	const spent = "used up the 2 calls"
	if page := ada.get("/"); strings.Contains(page.body, spent) {
		t.Error("the first page calls a share used up with one call left")
	}
	tn.snapshot = tn.snapshot.WithShares(fleet.MemberID(bob), nil)
	reach(2)
	ada.get("/access").want(t, 200, "2 calls a day <span class=\"state warn\">used up today")
	ada.get("/").want(t, 200, "bob has "+spent+" that you allow a day.", "/access?member=bob")
	tn.as("bob").get("/access/for-you").want(t, 200, "2 calls a day <span class=\"state warn\">used up today") // also on the caller's side
	tn.models = []api.Model{{ID: "tiny", Availability: "busy", Via: "shared", Owner: "ada", Chat: true}}
	tn.as("bob").get("/models").want(t, 200, ">used up today</span>")
	tn.as("bob").get("/try").want(t, 200, "used up today")
	open := modelsContent(tn.site, nil, fleet.Caller{Member: fleet.MemberID(bob)})
	assert.Equal(t, open.texts["now-0"], words{"used up today", "warn"}, "on an open page")
	assert.Lacks(t, tn.as("bob").get("/").body, "wait in line")
	tn.as("bob").get("/").want(t, 200, "You have "+spent+" a day that ada allows you, until "+string(midnight())+".")
}

// TestInviteSays checks that an invite's page shows who invites and to what, and that one
// that is used up, expired or revoked invites no one.
func TestInviteSays(t *testing.T) { onEachStore(t, testInviteSays) }

func testInviteSays(t *testing.T, tn *town) {
	ada, visitor := tn.as("ada"), tn.browser()
	made := ada.post("/sharing/invite", "uses", "1", "expires", "7d", "models", "tiny\nother", "per_day", "5").want(t, 200, "This link does not include your key")
	link := textOf(t, made, "link")
	at := strings.TrimPrefix(link, tn.web.URL)
	visitor.get(at).want(t, 200, "<strong>ada</strong> shares their machines with you, within these limits: models tiny, other; 5 calls a day.", "Models: <code>tiny</code>.", `id="sign-up"`)
	tn.as("bob").get(at).want(t, 200, "<strong>ada</strong> shares", `id="accept"`)
	tn.as("bob").post("/sharing/accept", "code", link).goes(t, "/access/for-you")
	for _, b := range []*browser{visitor, tn.as("eve")} {
		if page := b.get(at).want(t, 404, "the invite of ada is used up: ask ada for another"); strings.Contains(page.body, `id="accept"`) || strings.Contains(page.body, `id="sign-up"`) {
			t.Error("a used-up invite still invites")
		}
	}
	visitor.get(at).want(t, 404, `<a href="/signin?next=%2Finvite%2F`)
	assert.Lacks(t, tn.as("eve").get(at).body, "/signin?next", "eve, who is signed in, is asked to sign in")
	link = textOf(t, ada.post("/sharing/invite", "uses", "1", "expires", "7d"), "link")
	good[anything](tn.world, "ada", "DELETE", "/api/invites/"+good[api.List[api.Invite]](tn.world, "ada", "GET", "/api/invites", "").Data[1].ID, "")
	visitor.get(strings.TrimPrefix(link, tn.web.URL)).want(t, 404, "the invite of ada is revoked")
}

// TestInvitationPages checks that every page shows the number of notices, and that a
// member can answer an invitation on /groups without scripts.
func TestInvitationPages(t *testing.T) { onEachStore(t, testInvitationPages) }

func testInvitationPages(t *testing.T, tn *town) {
	ada, bob := tn.as("ada"), tn.as("bob")
	ada.post("/groups/create", "name", "lab", "kind", "org").goes(t, "/access/group?group=lab")
	quiet := func(b *browser, path string) {
		t.Helper()
		if page := b.get(path).want(t, 200); strings.Contains(page.body, " new)") || strings.Contains(page.body, `id="notices"`) {
			t.Errorf("%s tells of notices", path)
		}
	}
	for _, answer := range []string{"decline", "withdraw", "accept"} {
		quiet(bob, "/")
		ada.post("/groups/invite", "group", "lab", "member", " bob ").goes(t, "/access/group?group=lab")
		ada.get("/access/group?group=lab").want(t, 200, "bob is invited and joins by accepting", `aria-label="Withdraw the invitation of bob to lab"`)
		bob.get("/models").want(t, 200, `aria-label="1 new"`)
		bob.get("/").want(t, 200, "1 new notice.<")
		bob.get("/notices").want(t, 200, "ada invites you to the group lab: accept or decline.", `href="/access/groups"`)
		bob.get("/access/groups").want(t, 200, "<strong>ada</strong> invites you to <strong>lab</strong>, an org of 1 member", `aria-label="Accept the invitation to lab"`)
		switch answer {
		case "withdraw":
			ada.post("/groups/withdraw", "group", "lab", "member", "bob").goes(t, "/access/group?group=lab")
			ada.get("/access/group?group=lab").want(t, 200, "The invitation of bob is withdrawn.")
			bob.post("/groups/accept", "group", "lab").want(t, 404, "no group named")
		default:
			bob.post("/groups/"+answer, "group", "lab").goes(t, "/access/groups")
			bob.header.Set("X-Kith-Refresh", "1") // the previous page may still follow changes
			bob.get("/access/groups").want(t, 200)
			bob.header.Del("X-Kith-Refresh")
			bob.get("/access/groups").want(t, 200, map[string]string{"accept": "You are in the group: its members can use your machines", "decline": "Declined: nothing is shared"}[answer])
		}
		if answer == "accept" {
			bob.get("/").want(t, 200, "1 new notice.<")
			bob.get("/notices").want(t, 200, "You joined lab.")
		} else {
			quiet(bob, "/")
		}
	}
	ada.post("/groups/invite", "group", "lab", "member", "bob").goes(t, "/access/group?group=lab")
	ada.get("/access/group?group=lab").want(t, 200, "bob is in the group already")
	page := ada.get("/notices").want(t, 200, `aria-label="1 new"`, "bob joined the group lab.", "Mark as read")
	_, rest, _ := strings.Cut(page.body, `name="until" value="`)
	until, _, _ := strings.Cut(rest, `"`)
	ada.post("/notices/seen", "until", strings.ReplaceAll(until, "&#43;", "+")).goes(t, "/notices")
	quiet(ada, "/access")
	ada.get("/notices").want(t, 200, "Nothing new", "Earlier", "bob joined the group lab.")
	ada.post("/notices/seen", "until", "yesterday").want(t, 400, "has no time")
}

// TestMachinesOfAGroup checks that an admin sees each machine that the group reaches, and
// can pin or exclude it, and that others see these decisions but no form to change them.
// The owner's pages show that an excluded machine is not reached.
func TestMachinesOfAGroup(t *testing.T) { onEachStore(t, testMachinesOfAGroup) }

func testMachinesOfAGroup(t *testing.T, tn *town) {
	good[anything](tn.world, "bob", "POST", "/api/groups", `{"name":"lab","kind":"open"}`)
	ada, bob, eve := tn.as("ada"), tn.as("bob"), tn.as("eve")
	ada.post("/groups/join", "group", "lab").goes(t, "/access/group?group=lab")
	eve.post("/groups/join", "group", "lab").goes(t, "/access/group?group=lab")
	route := func() { // like the registry after each change
		t.Helper()
		ids := must(tn.db.SeenGroups(t.Context(), tn.members["bob"].ID, "lab", time.Now()))
		tn.snapshot = tn.snapshot.WithGroup(must(tn.db.Facts("home").Group(t.Context(), fleet.GroupID(ids[0].ID))))
	}
	route()
	const table, pin = `aria-label="Machines of lab"`, `aria-label="Pin box of ada in lab"`
	const exclude, undo = `aria-label="Exclude box of ada from lab"`, `aria-label="Undo: box of ada`
	without := func(page seen, texts ...string) {
		t.Helper()
		for _, text := range texts {
			assert.Lacks(t, page.body, text, "the page")
		}
	}
	without(bob.get("/access/group?group=lab").want(t, 200, table, `<div id="machines" data-stream="/live/access"`, `<div id="members" data-stream="/live/access"`, "<th scope=\"row\">box</th><td>ada</td><td><span class=\"state \">new</span>", pin, exclude), undo)
	without(ada.get("/access/group?group=lab").want(t, 200), table, pin)
	set := func(rule, says string) {
		t.Helper()
		bob.post("/groups/machine", "group", "lab", "owner", "ada", "machine", "box", "rule", rule).goes(t, "/access/group?group=lab")
		route()
		bob.get("/access/group?group=lab").want(t, 200, says)
	}

	set("pinned", "box of ada is pinned: it is used before new machines in lab.")
	without(bob.get("/access/group?group=lab").want(t, 200, `<span class="state good">pinned</span>`, exclude, undo), pin)
	without(eve.get("/access/group?group=lab").want(t, 200, table, `<span class="state good">pinned</span>`), "/groups/machine")
	ada.get("/access").want(t, 200, `data-panel>bob</a></th>`, `<a href="/access/group?group=lab`)

	set("excluded", "box of ada is excluded: within 5 seconds")
	without(bob.get("/access/group?group=lab").want(t, 200, `<span class="state warn">excluded</span>`, pin, undo), exclude)
	without(ada.get("/access/group?group=lab").want(t, 200, table, `<span class="state warn">excluded</span>`), "/groups/machine")
	ada.get("/access").want(t, 200, "Only you.")
	ada.get("/machines/"+tn.machine.ID+"?tab=sharing").want(t, 200, "<strong>lab</strong>: excluded by an admin of the group")

	set("none", "box of ada is no longer pinned or excluded in lab.")
	without(eve.get("/access/group?group=lab").want(t, 200), table)
	ada.get("/machines/"+tn.machine.ID+"?tab=sharing").want(t, 200, "<strong>lab</strong>: served")
	for _, who := range []*browser{ada, eve} { // no page offers it to them
		who.post("/groups/machine", "group", "lab", "owner", "ada", "machine", "box", "rule", "pinned").want(t, 403, "only an admin of group")
	}
	bob.post("/groups/machine", "group", "lab", "owner", "bob", "machine", "box", "rule", "pinned").want(t, 404, "bob has no machine")
}

// TestStandingOnPages checks that a machine's standing in a group is shown as text.
func TestStandingOnPages(t *testing.T) {
	tn := newTown(t, nil)
	good[anything](tn.world, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	tn.intoGroup("lab", "bob")
	id := fleet.GroupID(must(tn.db.SeenGroups(t.Context(), tn.members["ada"].ID, "lab", time.Now()))[0].ID)
	ada, bob := fleet.MemberID(tn.members["ada"].ID), fleet.MemberID(tn.members["bob"].ID)
	group := &fleet.Group{ID: id, Name: "lab", Members: []fleet.MemberID{ada, bob}}
	two := *tn.snapshot.Machine(fleet.MachineID(tn.machine.ID))
	two.Offers = append(two.Offers, fleet.Offer{ID: "big", Families: fleet.Families(fleet.Chat)})
	tn.snapshot = tn.snapshot.WithMachine(&two).WithGroup(group)
	page := tn.as("ada")
	for i, says := range []string{"new", "established with 1 of 2 models", "established"} {
		page.get("/access/group?group=lab").want(t, 200, "<td>ada</td><td><span class=\"state \">"+says+"</span></td>")
		if i < 2 {
			for range fleet.EstablishedCalls {
				two.Offers[i].Load.ServedGroup(tn.snapshot, group, ada, bob, time.Now())
			}
		}
	}
}

// TestPeopleAreListedOnce checks that a member who reaches machines in different ways has one
// row with all of them, and that the panel says which machines are reached by what.
func TestPeopleAreListedOnce(t *testing.T) {
	tn := newTown(t, nil)
	check(t, tn.db.CreateMachine(t.Context(), account.Machine{ID: "mch_attic", OwnerID: tn.members["ada"].ID, Name: "attic", Region: "home", Hash: [32]byte{9}, Created: time.Now()}))
	for _, group := range []string{"lab", "club"} {
		good[anything](tn.world, "ada", "POST", "/api/groups", `{"name":"`+group+`","kind":"org"}`)
		tn.intoGroup(group, "bob")
	}
	ada := tn.as("ada")
	ada.post("/groups/limit", "group", "lab", "per_day", "4").goes(t, "/access/group?group=lab")
	ada.post("/machines/keep-out", "machine", "mch_attic", "group", "lab").goes(t, "/machines/mch_attic?tab=sharing")
	page := ada.get("/access").want(t, 200, "all 2", ">club</a>, <a", "club: no limits<br>lab: 4 calls a day")
	assert.Equal(t, strings.Count(page.body, `<tr><th scope="row"><a href="/access?member=bob"`), 1, "rows of bob")
	ada.get("/access?member=bob").want(t, 200, "By groups club, lab, all 2 machines.", `<span>attic</span><span class="muted">club</span>`, `<span>box</span><span class="muted">lab</span>`, `action="/sharing/share"`)
	ada.get("/access?q=nobody").want(t, 200, "No members match")
	ada.get("/access?state=by+group&q=lab+bob").want(t, 200, "1 member")
}

// TestLargeGroup checks that the members of a large group are listed page by page and can be
// searched, and that a small one is shown without either.
func TestLargeGroup(t *testing.T) {
	tn := newTown(t, nil)
	good[anything](tn.world, "ada", "POST", "/api/groups", `{"name":"lab","kind":"open"}`)
	ada := tn.as("ada")
	small := ada.get("/access/group?group=lab").want(t, 200, "1 member")
	assert.Lacks(t, small.body, `id="members-find"`)
	for i := range 120 {
		m := account.Member{ID: fmt.Sprintf("mem_%03d", i), Name: fmt.Sprintf("fellow %03d", i), Created: time.Now()}
		check(t, tn.db.CreateMember(t.Context(), m))
		check(t, tn.db.JoinGroup(t.Context(), tn.labID(tn.members["ada"].ID), m.ID, time.Now()))
	}
	page := ada.get("/access/group?group=lab").want(t, 200, "1 to 50 of 121 members", `href="/access/group?group=lab&amp;page=2"`)
	assert.Equal(t, strings.Count(page.body, `<th scope="row">fellow`), 49, "members on the first page, beside ada")
	ada.get("/access/group?group=lab&q=117").want(t, 200, `<th scope="row">fellow 117</th>`, "1 member<")
	ada.get("/access/group?group=lab&q=none").want(t, 200, "No members match", `<a href="/access/group?group=lab">Show all</a>`)
	ada.get("/access/group?group=none").want(t, 404, "no group named")
	tn.as("bob").get("/access/group?group=lab").want(t, 200, "Join lab")
}
