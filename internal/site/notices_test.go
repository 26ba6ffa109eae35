package site

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/mail"
)

// TestNoticesPage checks that the page lists a member's notices and none of other
// members, and that the account page can switch off kinds.
func TestNoticesPage(t *testing.T) { onEachStore(t, testNoticesPage) }

func testNoticesPage(t *testing.T, tn *town) {
	ada, eve := tn.as("ada"), tn.as("eve")
	now := time.Now()
	ada.get("/notices").want(t, 200, "Nothing new")
	check(t, tn.db.SaveOffers(t.Context(), tn.machine.ID, []byte("{}"), now.Add(-2*time.Hour)))
	check(t, tn.db.AddNotices(t.Context(), []account.Notice{{MemberID: tn.members["ada"].ID, Kind: account.NoticeOffline, Subject: "mch_revoked", Text: "old box has been offline for more than an hour."}}, now.Add(-time.Hour)))
	check(t, tn.site.notify(t.Context(), now, true))
	ada.get("/").want(t, 200, "2 new notices", `aria-label="2 new"`)
	page := ada.get("/notices").want(t, 200, "box has been offline for more than an hour.", `href="/machines/`+tn.machine.ID+`"`, `href="/machines" aria-label="See the machines: old box`, "Mark as read")
	eve.get("/notices").want(t, 200, "Nothing new")
	assert.Lacks(t, eve.get("/").body, "new notice", "eve is notified of ada's machine")

	// There is only one notice, however many nodes and passes there are.
	for i := range 3 {
		check(t, tn.site.notify(t.Context(), now.Add(time.Duration(i)*time.Minute), true))
	}
	ada.get("/").want(t, 200, "2 new notices")
	_, rest, _ := strings.Cut(page.body, `name="until" value="`)
	until, _, _ := strings.Cut(rest, `"`)
	ada.post("/notices/seen", "until", strings.ReplaceAll(until, "&#43;", "+")).goes(t, "/notices")
	ada.get("/notices").want(t, 200, "All notices are marked as read.", "Nothing new", "Earlier", "box has been offline")

	// It can be switched off on the site. Only an operator sees the setting for backups,
	// and without a mail server there is none for mail.
	account := ada.get("/account").want(t, 200, "A key expires within 7 days", `name="site" value="offline" checked`)
	for _, not := range []string{"backup", `name="mail"`} {
		assert.Lacks(t, account.body, not, "the account page")
	}
	ada.post("/account/notices", "kind", "offline", "kind", "spent", "site", "spent").goes(t, "/account")
	ada.get("/account").want(t, 200, "Notice settings saved.", `name="site" value="spent" checked`, `name="site" value="offline" aria-label`)
	assert.Lacks(t, ada.get("/notices").body, "box has been offline", "a kind that is switched off is listed")
	ada.post("/account/notices", "kind", "nonsense").want(t, 400, "unknown kind of notice")
	tn.operator().get("/account").want(t, 200, "The hub has had no good backup for 7 days")
}

// TestNoticesLeadToTheirPages checks that each notice has a link to the page about it: for a
// share the owner's side or the other, for limits that are used up the share, group or key.
func TestNoticesLeadToTheirPages(t *testing.T) {
	tn := newTown(t, nil)
	ada, bob := fleet.MemberID(tn.members["ada"].ID), fleet.MemberID(tn.members["bob"].ID)
	good[anything](tn.world, "ada", "POST", "/api/shares", `{"with":"bob"}`)
	good[anything](tn.world, "bob", "POST", "/api/shares", `{"with":"ada"}`) // the same two on the same day
	tn.snapshot = tn.snapshot.WithShares(bob, []*fleet.Share{{ID: "shr_1", Owner: ada, Member: bob}}).
		WithGroup(&fleet.Group{ID: "grp_1", Name: "lab", Members: []fleet.MemberID{ada, bob}}).
		WithGroup(&fleet.Group{ID: "grp_2", Name: "left", Members: []fleet.MemberID{ada}})
	text := map[string]string{ // the text of a notice, and the link below it
		"ada shares machines with you.":        `href="/access/for-you"`,
		"You share your machines with ada.":    `href="/access"`,
		"spent what ada allows":                `href="/access/for-you"`,
		"others spent what I allow":            `href="/access"`,
		"the group spent what I allow":         `href="/access/group?group=lab"`,
		"the key spent its calls":              `href="/applications"`,
		"joined":                               `href="/access/group?group=lab"`,
		"joined, and left":                     `href="/access/groups"`,
		"An admin of lab pinned your machine.": `href="/access/group?group=lab"`,
	}
	add := func(kind account.NoticeKind, subject, text string) {
		check(t, tn.db.AddNotices(t.Context(), []account.Notice{{MemberID: string(bob), Kind: kind, Subject: subject, Text: text}}, time.Now()))
	}
	add(account.NoticeSpent, "shr_1", "spent what ada allows")
	add(account.NoticeSpent, "shr_2", "others spent what I allow")
	add(account.NoticeSpent, "grp_1", "the group spent what I allow")
	add(account.NoticeSpent, "key_1", "the key spent its calls")
	add(account.NoticeAccess, "grp_1", "joined")
	add(account.NoticeAccess, "grp_2", "joined, and left")
	add(account.NoticeAccess, "grp_1 mch_1 pinned", "An admin of lab pinned your machine.")
	page := tn.as("bob").get("/notices").want(t, 200).body
	for words, link := range text {
		_, rest, found := strings.Cut(page, "<span>"+words+"<br>")
		line, _, _ := strings.Cut(rest, "</li>")
		assert.That(t, found, "no notice:", words)
		assert.Contains(t, line, link+" ", words)
	}
}

// passes makes the site's passes for that many minutes.
func (tn *town) passes(now time.Time, minutes ...int) {
	tn.t.Helper()
	for _, m := range minutes {
		check(tn.t, tn.site.notify(tn.t.Context(), now.Add(time.Duration(m)*time.Minute), true))
	}
}

// TestNewsMail checks that new notices are mailed to members with an address, in at most
// one message an hour, except those that were seen, switched off or from before the first
// pass.
func TestNewsMail(t *testing.T) { onEachStore(t, testNewsMail) }

func testNewsMail(t *testing.T, tn *town) {
	post := tn.posts(t)
	ada, bob := tn.as("ada"), tn.as("bob")
	good[api.Group](tn.world, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	good[api.Group](tn.world, "ada", "POST", "/api/groups", `{"name":"all","kind":"open"}`)
	ada.verify(post, "ada@example.org")
	bob.verify(post, "bob@example.org")
	good[anything](tn.world, "bob", "POST", "/api/groups/all/join", "")
	time.Sleep(2 * time.Millisecond) // so that the first pass is later
	now := time.Now()
	tn.passes(now, 0)
	good[anything](tn.world, "ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`)
	good[anything](tn.world, "ada", "POST", "/api/groups/lab/invitations", `{"member":"eve"}`) // she has no address
	tn.passes(now, 2)
	got := post.next("bob@example.org", "Hello bob", "- ada invites you to the group lab: accept or decline.", tn.web.URL+"/notices", tn.web.URL+"/account#notices")
	assert.Equal(t, got.Header.Get("Subject"), "kith: 1 notice", "subject")
	tn.passes(now, 4, 6)
	post.none(tn)

	// Inviting and withdrawing repeatedly does not fill a mailbox.
	lab := tn.labID(tn.members["ada"].ID)
	for m := range 20 {
		good[anything](tn.world, "ada", "DELETE", "/api/groups/lab/members/bob", "")
		at := now.Add(time.Duration(8+m) * time.Minute)
		check(t, tn.db.InviteToGroup(t.Context(), account.GroupInvitation{GroupID: lab, MemberID: tn.members["bob"].ID, ByID: tn.members["ada"].ID, Created: at, Expires: at.AddDate(0, 0, 1)}))
		tn.passes(now, 9+m)
	}
	tn.passes(now, 30, 61)
	post.none(tn)
	tn.passes(now, 63)
	post.next("bob@example.org", "invites you")
	tn.passes(now, 65, 200)
	post.none(tn)

	// A join is mailed, with everything else that is new, to a member with a machine that
	// the group reaches.
	check(t, tn.db.AcceptGroup(t.Context(), lab, tn.members["bob"].ID, now.Add(200*time.Minute)))
	check(t, tn.db.AddNotices(t.Context(), []account.Notice{{MemberID: tn.members["ada"].ID, Kind: account.NoticeSpent, Subject: "shr_1", Text: "eve has\r\nused up \u202e calls."}}, now.Add(200*time.Minute)))
	tn.passes(now, 202)
	got = post.next("ada@example.org", "- bob joined the group lab.", "- eve has  used up   calls.")
	assert.Equal(t, got.Header.Get("Subject"), "kith: 2 notices", "subject")

	// Notices that are switched off, or were seen before the mail, are not mailed.
	ada.post("/account/notices", "mails", "yes", "kind", "spent", "kind", "offline", "mail", "offline", "site", "spent", "site", "offline").goes(t, "/account")
	notes := func(kind account.NoticeKind, subject string, minute int) {
		t.Helper()
		check(t, tn.db.AddNotices(t.Context(), []account.Notice{{MemberID: tn.members["ada"].ID, Kind: kind, Subject: subject, Text: subject}}, now.Add(time.Duration(minute)*time.Minute)))
	}
	notes(account.NoticeSpent, "not wanted", 300)
	tn.passes(now, 302)
	post.none(tn)
	notes(account.NoticeOffline, "wanted", 304)
	tn.passes(now, 306)
	if got := post.next("ada@example.org", "- wanted"); strings.Contains(got.Text, "not wanted") {
		t.Errorf("mailed is %s", got.Text)
	}
	notes(account.NoticeOffline, "seen", 400)
	check(t, tn.db.SeeNotices(t.Context(), tn.members["ada"].ID, now.Add(401*time.Minute)))
	tn.passes(now, 402)
	post.none(tn)

	// A mail lists a limited number of notices, and counts the rest.
	for i := range mostLines + 3 {
		notes(account.NoticeOffline, fmt.Sprint("machine ", i), 500)
	}
	tn.passes(now, 502)
	post.next("ada@example.org", "- and 3 more")
}

// TestNewsWhileServerAway checks that what could not be delivered is mailed later, in one
// message, and that there is one attempt an hour for each member.
func TestNewsWhileServerAway(t *testing.T) {
	tn := newTown(t, nil)
	post := tn.posts(t)
	tn.as("ada").verify(post, "ada@example.org")
	tn.as("bob").verify(post, "bob@example.org")
	now := time.Now()
	tn.passes(now, 0)
	notes := func(minute int) {
		t.Helper()
		var all []account.Notice
		for _, who := range []string{"ada", "bob"} {
			all = append(all, account.Notice{MemberID: tn.members[who].ID, Kind: account.NoticeOffline, Subject: fmt.Sprint(minute), Text: fmt.Sprint("minute ", minute, ".")})
		}
		check(t, tn.db.AddNotices(t.Context(), all, now.Add(time.Duration(minute)*time.Minute)))
	}
	works, log := tn.site.mail, &tn.log
	tn.site.mail = mail.New(Mail{Host: "127.0.0.1", Port: 1, From: "kith@hub.example", TLS: mail.NoTLS}, tn.site.Log)
	tries := func() int { return strings.Count(log.String(), "mail not sent") }
	notes(10)
	for m := 11; m < 70; m++ {
		tn.passes(now, m)
	}
	assert.Equal(t, tries(), 2, "two members were tried", "times in an hour")
	notes(100)
	tn.passes(now, 102, 103, 104)
	assert.Equal(t, tries(), 4, "two members were tried", "times in two hours")
	tn.site.mail = works
	tn.passes(now, 105, 106)
	post.none(tn)
	tn.passes(now, 165, 166, 167)
	for _, who := range []string{"ada@example.org", "bob@example.org"} {
		if got := post.nextOfAny(); !strings.Contains(got.Text, "minute 10.") || !strings.Contains(got.Text, "minute 100.") {
			t.Errorf("%s or another gets %s", who, got.Text)
		}
	}
	post.none(tn)

	// After a permanent refusal there is no retry, and old notices are not mailed.
	post.server.Misbehave("RCPT", "550 no such mailbox")
	notes(300)
	tn.passes(now, 302, 363, 425)
	post.server.Misbehave("RCPT", "")
	tn.passes(now, 490)
	post.none(tn)
	notes(600)
	tn.passes(now, 600+int(newsLife/time.Minute)+2)
	post.none(tn)
}
