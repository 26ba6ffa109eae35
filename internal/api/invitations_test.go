package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

// TestConsent: no one is in a group but by an act of their own. Whatever an org's
// admin asks for, the member is not in it (spec/routing.md#consent).
func TestConsent(t *testing.T) {
	w := newWorld(t)
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	in := func() bool {
		t.Helper()
		for _, g := range good[List[Group]](w, "bob", "GET", "/api/groups", "").Data {
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
		if got := good[GroupAct](w, who, "POST", "/api/groups/lab/"+path, body); got.State != state || got.Group != "lab" {
			t.Errorf("%s %s: %+v, want %s", who, path, got, state)
		}
	}
	lab := func(who string) *Group {
		t.Helper()
		for _, g := range good[List[Group]](w, who, "GET", "/api/groups", "").Data {
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
			good[GroupAct](w, "ada", "DELETE", "/api/groups/lab/members/bob", "")
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
	if got := w.ask("ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`); got.status != 400 || !strings.Contains(got.body, `\"bob\" has 50 unanswered invitations, the maximum`) {
		t.Errorf("%+v", got)
	}
}

// TestInvitationsOfUnknown: accounts that a member does not know cannot fill the places of
// those that the member shares with, and the messages name the limit that is reached.
func TestInvitationsOfUnknown(t *testing.T) {
	w := newWorld(t)
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	now, ctx := time.Now(), t.Context()
	invite := func(by account.Member, i int) error {
		g := account.Group{ID: account.NewID("grp_"), Name: fmt.Sprintf("org %d of %s", i, by.Name), Kind: account.GroupOrg, Created: now}
		g.Members = []account.GroupMember{{MemberID: by.ID, Admin: true}}
		check(t, w.db.CreateGroup(ctx, g))
		return w.db.InviteToGroup(ctx, account.GroupInvitation{GroupID: g.ID, MemberID: w.members["bob"].ID, ByID: by.ID, Created: now, Expires: now.Add(time.Hour)})
	}
	taken := 0
	for a := range 20 { // accounts of one person
		by := account.Member{ID: account.NewID("mem_"), Name: fmt.Sprintf("puppet %d", a), Created: now}
		check(t, w.db.CreateMember(ctx, by))
		// What a puppet does alone makes it no one that bob knows.
		check(t, w.db.AddShare(ctx, account.Share{ID: account.NewID("shr_"), OwnerID: by.ID, MemberID: w.members["bob"].ID, Created: now}))
		for i := range account.MaxInvitationsByOne {
			if invite(by, i) == nil {
				taken++
			}
		}
	}
	assert.Equal(t, taken, account.MaxUnknown, "they took")
	ask := func() response { return w.ask("ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`) }
	if got := ask(); got.status != 400 || !strings.Contains(got.body, `\"bob\" has 25 unanswered invitations from admins they do not share with`) {
		t.Errorf("ada, whom bob does not know: %+v", got)
	}
	good[anything](w, "bob", "POST", "/api/shares", `{"with":"ada"}`)
	if got := ask(); got.status != 200 {
		t.Errorf("ada, whom bob shares with: %+v", got)
	}
}

// TestGroupsFull: a member who is in as many groups as one may be learns that.
func TestGroupsFull(t *testing.T) {
	w := newWorld(t)
	good[Group](w, "bob", "POST", "/api/groups", `{"name":"lab","kind":"open"}`)
	for i := range account.MaxGroups {
		g := account.Group{ID: account.NewID("grp_"), Name: fmt.Sprint(i), Kind: account.GroupOpen, Created: time.Now()}
		g.Members = []account.GroupMember{{MemberID: w.members["ada"].ID, Admin: true}}
		check(t, w.db.CreateGroup(t.Context(), g))
	}
	for path, body := range map[string]string{"/api/groups": `{"name":"more","kind":"open"}`, "/api/groups/lab/join": ""} {
		if got := w.ask("ada", "POST", path, body); got.status != 400 || !strings.Contains(got.body, "you are in 200 groups") {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

// TestGroupNotices: a member is notified of an invitation until it is answered, and of
// each join of a group until it is marked as seen.
func TestGroupNotices(t *testing.T) {
	w := newWorld(t)
	notices := func(who string) []Notice {
		t.Helper()
		all := good[List[Notice]](w, who, "GET", "/api/notices", "").Data
		for i := range all {
			if all[i].At = (time.Time{}); all[i].Kind == account.NoticeAccess {
				all[i].Subject = "" // the group's id
			}
		}
		return all
	}
	same := func(got []Notice, want ...Notice) {
		t.Helper()
		assert.Same(t, got, append([]Notice{}, want...))
	}
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"all","kind":"open"}`)
	same(notices("ada"))
	good[anything](w, "ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`)
	same(notices("bob"), Notice{Kind: "invited", Text: "ada invites you to the group lab: accept or decline. Until you accept, nothing is shared.", New: true, Group: "lab", Member: "ada"})
	same(notices("ada"))
	good[anything](w, "bob", "POST", "/api/groups/lab/accept", "")
	same(notices("bob"), Notice{Kind: "access", Text: "You joined lab.", New: true})
	joined := Notice{Kind: "joined", Text: "bob joined the group lab.", New: true, Group: "lab", Member: "bob"}
	same(notices("ada"), joined)
	newest := good[List[Notice]](w, "ada", "GET", "/api/notices", "").Data[0].At
	good[anything](w, "ada", "POST", "/api/notices/seen", `{"until":"`+newest.Format(time.RFC3339Nano)+`"}`)
	joined.New = false
	same(notices("ada"), joined)
	good[anything](w, "eve", "POST", "/api/groups/all/join", "")
	good[anything](w, "eve", "POST", "/api/groups/all/join", "")
	same(notices("ada"), Notice{Kind: "joined", Text: "eve joined the group all.", New: true, Group: "all", Member: "eve"}, joined)
	same(notices("eve"), Notice{Kind: "access", Text: "You joined all.", New: true})
	for _, body := range []string{`{}`, `{"until":"2999-01-01T00:00:00Z"}`, `{"until":"1960-01-01T00:00:00Z"}`, `{"until":1}`} {
		if got := w.ask("ada", "POST", "/api/notices/seen", body); got.status != 400 {
			t.Errorf("%s: %+v", body, got)
		}
	}
}
