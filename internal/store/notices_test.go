package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store"
)

// aNotice returns a notice about an offline machine.
func aNotice(m account.Member, subject string, occasion time.Time) account.Notice {
	return account.Notice{MemberID: m.ID, Kind: account.NoticeOffline, Subject: subject, Occasion: occasion, Text: subject + " is offline."}
}

// testNotices checks that a member gets one notice for each occasion and none of other
// members, can mark them as seen and switch off kinds, and gets a limited number a day.
func testNotices(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	texts := func(m account.Member) (all []string) {
		t.Helper()
		for _, n := range must[[]account.Notice](t)(db.Notices(ctx, m.ID, time.Time{}, later(1e6), 1000)) {
			text := n.Text
			if n.New {
				text += " new"
			}
			all = append(all, text)
		}
		return all
	}
	count := func(m account.Member, want int) {
		t.Helper()
		same(t, must[int](t)(db.CountNotices(ctx, m.ID, later(10))), want)
	}
	ok(t, db.AddNotices(ctx, []account.Notice{aNotice(ada, "attic", start), aNotice(bob, "cellar", start)}, start))
	ok(t, db.AddNotices(ctx, []account.Notice{aNotice(ada, "attic", start), aNotice(ada, "attic", later(1))}, later(5)))
	same(t, texts(ada), []string{"attic is offline. new", "attic is offline. new"})
	same(t, texts(bob), []string{"cellar is offline. new"})
	got := must[[]account.Notice](t)(db.Notices(ctx, ada.ID, start, later(5), 10))
	want := aNotice(ada, "attic", later(1))
	want.At, want.New = later(5), true
	same(t, got, []account.Notice{want})
	count(ada, 2)

	ok(t, db.SeeNotices(ctx, ada.ID, start))
	same(t, texts(ada), []string{"attic is offline. new", "attic is offline."})
	count(ada, 1)
	count(bob, 1)
	ok(t, db.SeeNotices(ctx, ada.ID, later(5)))
	ok(t, db.SeeNotices(ctx, ada.ID, later(1))) // never back
	count(ada, 0)

	choices := account.NoticeChoices{OffSite: []account.NoticeKind{account.NoticeSpent, account.NoticeOffline}, OffMail: []account.NoticeKind{account.NoticeJoined}}
	ok(t, db.SetNoticeChoices(ctx, bob.ID, choices))
	same(t, must[account.NoticeChoices](t)(db.NoticeChoices(ctx, bob.ID)), choices)
	same(t, must[account.NoticeChoices](t)(db.NoticeChoices(ctx, "mem_none")), account.NoticeChoices{})
	count(bob, 0)
	lab := newGroup(t, db, "lab", ada)
	ok(t, inviteTo(t, db, lab, ada, bob))
	count(bob, 1)
	ok(t, db.SetNoticeChoices(ctx, bob.ID, account.NoticeChoices{OffSite: []account.NoticeKind{account.NoticeInvited}}))
	count(bob, 1) // the machine
	ok(t, db.SetNoticeChoices(ctx, bob.ID, account.NoticeChoices{}))
	count(bob, 2)

	var many []account.Notice
	for i := range 2 * account.NoticesADay {
		many = append(many, aNotice(bob, fmt.Sprint("m", i), start))
	}
	ok(t, db.AddNotices(ctx, many, later(6)))
	same(t, len(texts(bob)), account.NoticesADay)
	ok(t, db.AddNotices(ctx, nil, start.Add(account.NoticeLife)))
	same(t, len(texts(bob)), account.NoticesADay-1) // the first has expired

	// A disabled member gets none, and a former operator none about backups.
	ok(t, db.SetMemberDisabled(ctx, ada.ID, true))
	ok(t, db.AddNotices(ctx, []account.Notice{aNotice(ada, "late", start)}, start.Add(account.NoticeLife)))
	same(t, texts(ada), []string{"attic is offline."})
	eve := account.Member{ID: account.NewID("mem_"), Name: "eve", Operator: true, Created: start}
	ok(t, db.CreateMember(ctx, eve))
	ok(t, db.SetMemberOperator(ctx, bob.ID, true))
	same(t, must[[]string](t)(db.OperatorsSince(ctx, start)), []string{min(bob.ID, eve.ID), max(bob.ID, eve.ID)})
	same(t, must[[]string](t)(db.OperatorsSince(ctx, later(-1))), []string{})
	ok(t, db.AddNotices(ctx, []account.Notice{{MemberID: eve.ID, Kind: account.NoticeBackup, Text: "none"}, aNotice(eve, "box", start)}, later(1e6)))
	ok(t, db.SetMemberOperator(ctx, eve.ID, false))
	same(t, texts(eve), []string{"box is offline. new"})
	fails(t, db.AddNotices(ctx, []account.Notice{{MemberID: eve.ID, Text: "a\x00b"}}, start), store.ErrInvalid)
}

// testDueNotices checks that reasons for notices are found until there is a notice about
// them.
func testDueNotices(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")

	// Machines by when they were last seen, without revoked ones and those that were
	// never seen.
	for name, seen := range map[string]time.Time{"now": later(100), "late": later(10), "early": later(-10), "gone": later(5), "never": {}} {
		m := newMachine(t, db, ada, name)
		if !seen.IsZero() {
			ok(t, db.SaveOffers(ctx, m.ID, []byte("{}"), seen))
		}
		if name == "gone" {
			ok(t, db.RevokeMachine(ctx, m.ID, later(20)))
		}
	}
	offline := must[[]account.OfflineMachine](t)
	got := offline(db.MachinesOffline(ctx, start, later(50)))
	if len(got) != 1 || got[0].Name != "late" || got[0].OwnerID != ada.ID || !got[0].LastSeen.Equal(later(10)) {
		t.Fatalf("offline are %+v", got)
	}
	ok(t, db.AddNotices(ctx, []account.Notice{aNotice(ada, got[0].ID, later(9))}, later(60))) // about another time
	same(t, len(offline(db.MachinesOffline(ctx, start, later(50)))), 1)
	ok(t, db.AddNotices(ctx, []account.Notice{aNotice(ada, got[0].ID, later(10))}, later(60)))
	same(t, len(offline(db.MachinesOffline(ctx, start, later(50)))), 0)

	// Keys that expire within 100 s and were created for longer than that.
	for name, end := range map[string]time.Time{"short": later(90), "soon": later(150), "later": later(300), "none": {}} {
		k := newKey(t, db, ada, name)
		k.ID, k.Hash, k.Expires = account.NewID("key_"), [32]byte{byte(len(name)), name[0]}, end
		ok(t, db.CreateKey(ctx, k))
	}
	ending := must[[]account.EndingKey](t)(db.KeysEnding(ctx, later(60), later(160)))
	if len(ending) != 1 || ending[0].Name != "for soon" || ending[0].MemberID != ada.ID || ending[0].LastFour != "abcd" || !ending[0].Expires.Equal(later(150)) {
		t.Fatalf("the keys are %+v", ending)
	}
	ok(t, db.AddNotices(ctx, []account.Notice{{MemberID: ada.ID, Kind: account.NoticeEnding, Subject: ending[0].ID, Occasion: later(150)}}, later(60)))
	same(t, len(must[[]account.EndingKey](t)(db.KeysEnding(ctx, later(60), later(160)))), 0)

	// Limits of the day: for a share's models, and for a group.
	share := must[account.Share](t)(db.PutShare(ctx, account.Share{ID: account.NewID("shr_"), OwnerID: ada.ID, MemberID: bob.ID, Created: start},
		account.LimitChange{Models: limit([]string{"a", "c"}), PerDay: limit(3)}))
	lab := newGroup(t, db, "lab", ada, bob)
	must[account.Limits](t)(db.PutGroupLimits(ctx, ada.ID, lab.ID, account.LimitChange{PerDay: limit(2)}))
	calls := 0
	called := func(model, group string, at time.Time) {
		u := aCall(fmt.Sprint("call-", calls), 1)
		calls++
		u.MemberID, u.OwnerID, u.Model, u.GroupID, u.Started = bob.ID, ada.ID, model, group, at
		ok(t, db.RecordUsage(ctx, []account.Usage{u}))
	}
	spent := func() []account.SpentLimit {
		t.Helper()
		return must[[]account.SpentLimit](t)(db.SpentLimits(ctx, later(1)))
	}
	called("a", "", start)
	called("b", "", start)
	called("c", "", start)
	called("c", "", start.AddDate(0, 0, -1))
	same(t, spent(), []account.SpentLimit{})
	called("c", "", later(2))
	byShare := account.SpentLimit{ShareID: share.ID, MemberID: bob.ID, Member: "bob", OwnerID: ada.ID, Owner: "ada", PerDay: 3}
	same(t, spent(), []account.SpentLimit{byShare})
	called("d", lab.ID, start)
	called("d", lab.ID, start)
	byGroup := account.SpentLimit{GroupID: lab.ID, Group: "lab", OwnerID: ada.ID, PerDay: 2}
	same(t, spent(), []account.SpentLimit{byShare, byGroup})
	day := start.Truncate(24 * time.Hour)
	ok(t, db.AddNotices(ctx, []account.Notice{{MemberID: ada.ID, Kind: account.NoticeSpent, Subject: share.ID, Occasion: day}}, start))
	same(t, spent(), []account.SpentLimit{byGroup})
	ok(t, db.AddNotices(ctx, []account.Notice{{MemberID: ada.ID, Kind: account.NoticeSpent, Subject: lab.ID, Occasion: day}}, start))
	same(t, spent(), []account.SpentLimit{})

	// For a key, only calls that ran on a machine count.
	key := newKey(t, db, bob, "bob")
	ok(t, db.LimitOwnKey(ctx, bob.ID, key.ID, 2))
	for i, at := range []time.Time{start.AddDate(0, 0, -1), start, start, later(2)} {
		same(t, spent(), []account.SpentLimit{})
		u := aCall(fmt.Sprint("of the key ", i), 1)
		u.MemberID, u.KeyID, u.Started = bob.ID, key.ID, at
		if i == 1 {
			u.MachineID, u.OwnerID = "", ""
		}
		ok(t, db.RecordUsage(ctx, []account.Usage{u}))
	}
	same(t, spent(), []account.SpentLimit{{KeyID: key.ID, Key: key.Name, LastFour: key.LastFour, OwnerID: bob.ID, PerDay: 2}})
	ok(t, db.AddNotices(ctx, []account.Notice{{MemberID: bob.ID, Kind: account.NoticeSpent, Subject: key.ID, Occasion: day}}, start))
	same(t, spent(), []account.SpentLimit{})
}

// testMembersToMail checks that a member with a verified address is mailed at intervals,
// by only one node, with everything since the last mail.
func testMembersToMail(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	toMail := func(now, until int, want ...string) []account.NewsFor {
		t.Helper()
		found := must[[]account.NewsFor](t)(db.MembersToMail(ctx, later(now), start, later(until), 10))
		names := make([]string, len(found))
		for i, of := range found {
			names[i] = of.Member.Name
		}
		same(t, names, want)
		return found
	}
	ok(t, db.AddNotices(ctx, []account.Notice{aNotice(ada, "before", start), aNotice(bob, "cellar", start)}, later(1)))
	toMail(20, 20)
	ok(t, db.AskEmail(ctx, account.Email{MemberID: ada.ID, Asked: "ada@example.org", Hash: hashOf("ada"), Expires: later(9)}))
	toMail(20, 20) // not verified
	must[account.Email](t)(db.VerifyEmail(ctx, ada.ID, hashOf("ada"), later(5)))
	toMail(20, 20) // nothing new
	ok(t, db.AddNotices(ctx, []account.Notice{aNotice(ada, "attic", start)}, later(10)))
	toMail(20, 9)
	found := toMail(20, 10, "ada")
	same(t, found[0], account.NewsFor{Member: account.Member{ID: ada.ID, Name: "ada"}, Address: "ada@example.org", Since: later(5)})

	// One of several nodes mails her, and no other until the given time.
	won := make(chan bool, 8)
	together(cap(won), func(int) {
		claimed, err := db.ClaimMail(ctx, ada.ID, later(20), later(80))
		if err != nil {
			t.Error(err)
		}
		won <- claimed
	})
	n := 0
	for range cap(won) {
		if <-won {
			n++
		}
	}
	same(t, n, 1)
	toMail(79, 79)
	toMail(80, 80, "ada") // that attempt failed
	same(t, must[bool](t)(db.ClaimMail(ctx, ada.ID, later(80), later(140))), true)
	ok(t, db.SetMailed(ctx, ada.ID, later(80), later(140)))
	toMail(200, 200)

	// Joins and invitations are mailed, too.
	lab := newGroup(t, db, "lab", ada, bob)
	den := newGroup(t, db, "den", bob)
	eve := newMember(t, db, "eve")
	ok(t, inviteTo(t, db, lab, ada, eve))
	ok(t, db.AcceptGroup(ctx, lab.ID, eve.ID, later(210)))
	same(t, toMail(220, 220, "ada")[0].Since, later(80))
	ok(t, db.SeeNotices(ctx, ada.ID, later(210)))
	toMail(220, 220)
	i := account.GroupInvitation{GroupID: den.ID, MemberID: ada.ID, ByID: bob.ID, Created: later(230), Expires: later(300)}
	ok(t, db.InviteToGroup(ctx, i))
	ok(t, db.SetNoticeChoices(ctx, ada.ID, account.NoticeChoices{OffMail: []account.NoticeKind{account.NoticeSpent}}))
	same(t, toMail(240, 240, "ada")[0].Off, []account.NoticeKind{account.NoticeSpent})
	toMail(300, 300) // it has expired
	ok(t, db.SetMemberDisabled(ctx, ada.ID, true))
	toMail(240, 240)

	// Each pass is claimed by one node. The time of the first pass is kept.
	claim := func(seconds int, want bool) {
		t.Helper()
		first, claimed, err := db.ClaimNoticePass(ctx, later(seconds), time.Minute)
		ok(t, err)
		same(t, claimed, want)
		if claimed {
			same(t, first, start)
		}
	}
	claim(0, true)
	claim(59, false)
	claim(60, true)
	claim(61, false)
	claim(60-1000, true) // a clock was wrong
}
