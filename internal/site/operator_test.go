package site

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/account"
)

// operator is a browser of a member who runs the hub.
func (tn *town) operator() *browser {
	tn.t.Helper()
	m := account.Member{ID: account.NewID("mem_"), Name: "root", Operator: true, Created: time.Now()}
	check(tn.t, tn.db.CreateMember(tn.t.Context(), m))
	tn.members["root"] = m
	return tn.as("root")
}

// deeds is what the audit log says, without its times and ids, the oldest first.
func (tn *town) deeds() []string {
	tn.t.Helper()
	acts, err := tn.db.Acts(tn.t.Context(), account.Place{}, 100)
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
	op.get("/operator").want(t, 200, "4 members", "1 of 1 online", "Database", "not well", "50 a second")
	op.get("/operator/machines").want(t, 200, "box", "ada", "online")
	op.get("/operator/machines?name=zzz").want(t, 200, "None of that name")
	op.get("/operator/audit").want(t, 200, "Nothing yet")
	op.get("/operator/audit?before=x").want(t, 400, "before is a time")
	if page := op.get("/operator/members?name=BO").want(t, 200, "bob"); strings.Contains(page.body, tn.members["ada"].ID) {
		t.Error("the search finds everybody")
	}

	const members = "/operator/members"
	changed := tn.changed
	op.post(members+"/disable", "member", tn.members["bob"].ID).goes(t, members)
	op.get(members).want(t, 200, "bob is disabled", "Enable bob")
	if tn.changed == changed {
		t.Error("nobody was told of the change")
	}
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
	if diff := cmp.Diff(want, tn.deeds()); diff != "" {
		t.Error(diff)
	}
	op.get("/operator/audit").want(t, 200, "make a sign-in link", "root")

	// With a password of the operator's own, a link asks for it.
	op.post("/account/password", "password", aPassword).goes(t, "/account")
	op.post(members+"/link", "member", tn.members["bob"].ID).want(t, 403, "current password is wrong")
	op.post(members+"/link", "member", tn.members["bob"].ID, "old", aPassword).want(t, 200, "signs bob in")
}

// TestActIsPartOfWhatItDoes: what was not done is not in the log.
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
	if diff := cmp.Diff([]string{": disable a member: no\ufffdbody\ufffd"}, tn.deeds()); diff != "" {
		t.Error(diff)
	}
}

func TestOperatorSeesHostileNamesAsText(t *testing.T) {
	tn := newTown(t, nil)
	op := tn.operator()
	for i, name := range hostile() {
		m := account.Member{ID: fmt.Sprintf("mem_h%d", i), Name: name, Created: time.Now()}
		check(t, tn.db.CreateMember(t.Context(), m))
		op.post("/operator/members/disable", "member", m.ID).goes(t, "/operator/members")
		check(t, tn.db.RenameMachine(t.Context(), tn.members["ada"].ID, tn.machine.ID, name))
		q := url.QueryEscape(name)
		for _, page := range []seen{
			op.get("/operator/members?name=" + q), op.get("/operator/machines"), op.get("/operator/machines?name=" + q),
			op.get("/operator/audit?before=" + q), op.post("/operator/members/enable", "member", name),
		} {
			inert(t, name, page)
		}
	}
	inert(t, "all", op.get("/operator/audit"))
	inert(t, "all", op.get("/operator/members"))
}
