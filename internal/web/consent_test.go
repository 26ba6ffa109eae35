package web

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/account"
)

// TestConsent: no one is in a group but by an act of their own. Whatever an org's
// admin asks for, the member is not in it (decisions 1).
func TestConsent(t *testing.T) {
	w := newWorld(t)
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	in := func() bool {
		t.Helper()
		for _, g := range good[list[Group]](w, "bob", "GET", "/api/groups", "").Data {
			if g.Name == "lab" && g.In {
				return true
			}
		}
		return false
	}
	for _, path := range []string{"members", "invitations", "admins", "join", "accept"} {
		if w.ask("ada", "POST", "/api/groups/lab/"+path, `{"member":"bob"}`); in() {
			t.Fatalf("POST /api/groups/lab/%s put bob into the group", path)
		}
	}
}

// TestInvitations: who is invited accepts or declines, alone, and each answer ends
// the invitation; both sides see it while it waits.
func TestInvitations(t *testing.T) {
	w := newWorld(t)
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	act := func(who, path, body, state string) {
		t.Helper()
		if got := good[groupAct](w, who, "POST", "/api/groups/lab/"+path, body); got.State != state || got.Group != "lab" {
			t.Errorf("%s %s: %+v, want %s", who, path, got, state)
		}
	}
	lab := func(who string) *Group {
		t.Helper()
		for _, g := range good[list[Group]](w, who, "GET", "/api/groups", "").Data {
			return &g
		}
		return nil
	}
	refused := func(who, method, path, body string, status int, says string) {
		t.Helper()
		if got := w.ask(who, method, path, body); got.status != status || !strings.Contains(got.body, says) {
			t.Errorf("%s %s %s: %+v, want %d %s", who, method, path, got, status, says)
		}
	}
	const bob = `{"member":"bob"}`
	for _, round := range []string{"decline", "withdraw", "accept"} {
		act("ada", "invitations", bob, "invited")
		act("ada", "invitations", bob, "invited")
		if g := lab("ada"); len(g.Members) != 1 || len(g.Invitations) != 1 || g.Invitations[0].Member != "bob" || g.Invitations[0].By != "ada" {
			t.Errorf("ada sees %+v", g)
		}
		g := lab("bob")
		if g == nil || g.In || g.Invited == nil || g.Invited.By != "ada" || len(g.Members) != 0 || len(g.Invitations) != 0 || g.Invited.Expires.Sub(g.Invited.Created) != account.InvitationLife {
			t.Fatalf("bob sees %+v", g)
		}
		if lab("eve") != nil {
			t.Error("eve sees the org")
		}
		refused("bob", "POST", "/api/groups/lab/leave", "", 403, "accept or decline")
		refused("bob", "POST", "/api/groups/lab/join", "", 403, "by invitation")
		refused("bob", "POST", "/api/groups/lab/invitations", `{"member":"eve"}`, 403, "accept or decline")
		refused("eve", "POST", "/api/groups/lab/accept", "", 404, "no group named")
		switch round {
		case "decline":
			act("bob", "decline", "", "declined")
		case "withdraw":
			good[groupAct](w, "ada", "DELETE", "/api/groups/lab/members/bob", "")
			refused("ada", "DELETE", "/api/groups/lab/members/bob", "", 404, "is not in group")
		case "accept":
			act("bob", "accept", "", "joined")
			act("bob", "accept", "", "joined")
			act("ada", "invitations", bob, "joined")
			refused("bob", "POST", "/api/groups/lab/decline", "", 400, "leave it instead")
			act("bob", "leave", "", "left")
		}
		if lab("bob") != nil || len(lab("ada").Members) != 1 || len(lab("ada").Invitations) != 0 {
			t.Errorf("after %s: %+v", round, lab("ada"))
		}
		refused("bob", "POST", "/api/groups/lab/accept", "", 404, "no group named")
	}
	refused("ada", "POST", "/api/groups/lab/invitations", `{"member":"nobody"}`, 404, "no member is named")
	check(t, w.db.SetMemberDisabled(t.Context(), w.members["bob"].ID, true))
	refused("ada", "POST", "/api/groups/lab/invitations", bob, 404, "no member is named")
}

// TestInvitationsFull: an admin learns that too many wait, and what to do.
func TestInvitationsFull(t *testing.T) {
	w := newWorld(t)
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	for i := range account.MaxMemberInvitations {
		g := account.Group{ID: account.NewID("grp_"), Name: "org" + strings.Repeat("x", i), Kind: account.GroupOrg, Created: time.Now()}
		check(t, w.db.CreateGroup(t.Context(), g))
		now := time.Now()
		check(t, w.db.InviteToGroup(t.Context(), account.GroupInvitation{GroupID: g.ID, MemberID: w.members["bob"].ID, Created: now, Expires: now.Add(time.Hour)}))
	}
	if got := w.ask("ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`); got.status != 400 || !strings.Contains(got.body, "50 to one member") {
		t.Errorf("%+v", got)
	}
}

// TestGroupNotices: a member is notified of an invitation until it is answered, and of
// each join of a group until it is marked as seen.
func TestGroupNotices(t *testing.T) {
	w := newWorld(t)
	notices := func(who string) []Notice {
		t.Helper()
		all := good[list[Notice]](w, who, "GET", "/api/notices", "").Data
		for i := range all {
			all[i].At = time.Time{}
		}
		return all
	}
	same := func(got []Notice, want ...Notice) {
		t.Helper()
		if diff := cmp.Diff(append([]Notice{}, want...), got); diff != "" {
			t.Error(diff)
		}
	}
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"all","kind":"open"}`)
	same(notices("ada"))
	good[anything](w, "ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`)
	same(notices("bob"), Notice{Kind: "invited", Group: "lab", Member: "ada"})
	same(notices("ada"))
	good[anything](w, "bob", "POST", "/api/groups/lab/accept", "")
	same(notices("bob"))
	same(notices("ada"), Notice{Kind: "joined", Group: "lab", Member: "bob"})
	newest := good[list[Notice]](w, "ada", "GET", "/api/notices", "").Data[0].At
	good[anything](w, "ada", "POST", "/api/notices/seen", `{"until":"`+newest.Format(time.RFC3339Nano)+`"}`)
	same(notices("ada"))
	good[anything](w, "eve", "POST", "/api/groups/all/join", "")
	good[anything](w, "eve", "POST", "/api/groups/all/join", "")
	same(notices("ada"), Notice{Kind: "joined", Group: "all", Member: "eve"})
	same(notices("eve"))
	for _, body := range []string{`{}`, `{"until":"2999-01-01T00:00:00Z"}`, `{"until":"1960-01-01T00:00:00Z"}`, `{"until":1}`} {
		if got := w.ask("ada", "POST", "/api/notices/seen", body); got.status != 400 {
			t.Errorf("%s: %+v", body, got)
		}
	}
}

// TestInvitationPages: the pages say on each how many notices wait, and a member
// answers an invitation on /groups, without scripts.
func TestInvitationPages(t *testing.T) { onEachStore(t, testInvitationPages) }

func testInvitationPages(t *testing.T, tn *town) {
	ada, bob := tn.as("ada"), tn.as("bob")
	ada.post("/groups/create", "name", "lab", "kind", "org").goes(t, "/groups")
	quiet := func(b *browser, path string) {
		t.Helper()
		if page := b.get(path).want(t, 200); strings.Contains(page.body, " new)") || strings.Contains(page.body, `id="notices"`) {
			t.Errorf("%s tells of notices", path)
		}
	}
	for _, answer := range []string{"decline", "withdraw", "accept"} {
		quiet(bob, "/")
		ada.post("/groups/invite", "group", "lab", "member", " bob ").goes(t, "/groups")
		ada.get("/groups").want(t, 200, "bob is invited, and is in the group after accepting", `aria-label="Withdraw the invitation of bob to lab"`)
		bob.get("/models").want(t, 200, "Groups (1 new)")
		bob.get("/").want(t, 200, "1 notice of your groups")
		bob.get("/groups").want(t, 200, "<strong>ada</strong> invites you to <strong>lab</strong>, an org of 1 member", `aria-label="Accept the invitation to lab"`)
		switch answer {
		case "withdraw":
			ada.post("/groups/withdraw", "group", "lab", "member", "bob").goes(t, "/groups")
			ada.get("/groups").want(t, 200, "The invitation of bob is withdrawn.")
			bob.post("/groups/accept", "group", "lab").want(t, 404, "no group named")
		default:
			bob.post("/groups/"+answer, "group", "lab").goes(t, "/groups")
			bob.get("/groups").want(t, 200, map[string]string{"accept": "You are in the group: its members reach your machines", "decline": "Declined: nothing is shared"}[answer])
		}
		quiet(bob, "/")
	}
	ada.post("/groups/invite", "group", "lab", "member", "bob").goes(t, "/groups")
	ada.get("/groups").want(t, 200, "bob is in the group already")
	page := ada.get("/groups").want(t, 200, "Groups (1 new)", "<strong>bob</strong> joined <strong>lab</strong>", "Mark as seen")
	_, rest, _ := strings.Cut(page.body, `name="until" value="`)
	until, _, _ := strings.Cut(rest, `"`)
	ada.post("/groups/seen", "until", strings.ReplaceAll(until, "&#43;", "+")).goes(t, "/groups")
	quiet(ada, "/groups")
	ada.post("/groups/seen", "until", "yesterday").want(t, 400, "up to when")
}

// TestInvitationMail: an invitation goes to the member's address, and each join to
// members with a machine that the group reaches; never more than a few an hour.
func TestInvitationMail(t *testing.T) {
	tn := newTown(t, nil)
	post := tn.posts(t)
	ada, bob := tn.as("ada"), tn.as("bob")
	good[Group](tn.world, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	good[Group](tn.world, "ada", "POST", "/api/groups", `{"name":"all","kind":"open"}`)
	good[anything](tn.world, "ada", "POST", "/api/groups/lab/invitations", `{"member":"eve"}`)
	post.none(tn) // eve has no address
	ada.verify(post, "ada@example.org")
	bob.verify(post, "bob@example.org")

	good[anything](tn.world, "ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`)
	got := post.next("bob@example.org", "Hello bob", "ada invites you to the group lab", tn.web.URL+"/groups", "If you do nothing, nothing is shared.")
	if got.Header.Get("Subject") != "kith: an invitation to a group" {
		t.Errorf("subject %q", got.Header.Get("Subject"))
	}
	good[anything](tn.world, "ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`) // waits already
	post.none(tn)
	bob.post("/groups/accept", "group", "lab").goes(t, "/groups")
	post.next("ada@example.org", "bob joined the group lab", "those of your machines that you do not keep out of it")
	good[anything](tn.world, "eve", "POST", "/api/groups/all/join", "")
	post.next("ada@example.org", "eve joined the group all")

	// One who invites, and withdraws, again and again fills no mailbox.
	for range 20 {
		good[anything](tn.world, "ada", "DELETE", "/api/groups/lab/members/bob", "")
		good[anything](tn.world, "ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`)
	}
	for range 4 { // one of five came before
		post.next("bob@example.org", "invites you")
	}
	post.none(tn)

	// The operator's says so.
	check(t, tn.db.DeclineGroup(t.Context(), tn.labID(tn.members["ada"].ID), tn.members["bob"].ID, time.Now()))
	tn.site.limits = newLimits()
	check(t, tn.site.Invite(t.Context(), "lab", account.GroupInvitation{GroupID: tn.labID(tn.members["ada"].ID), MemberID: tn.members["bob"].ID, Member: "bob"}))
	post.next("bob@example.org", "The operator invites you to the group lab")
}
