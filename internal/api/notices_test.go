package api

import (
	"slices"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// TestNoteWhatIsDue: members are notified once of what concerns them, and of nothing that
// concerns others.
func TestNoteWhatIsDue(t *testing.T) {
	for name, open := range map[string]func(*testing.T) store.Config{
		"SQLite":     func(t *testing.T) store.Config { return store.Config{Path: storetest.SQLite(t)} },
		"PostgreSQL": func(t *testing.T) store.Config { return store.Config{URL: storetest.PostgresWithTables(t)} },
	} {
		t.Run(name, func(t *testing.T) { testNoteWhatIsDue(t, worldOn(t, open(t))) })
	}
}

func testNoteWhatIsDue(t *testing.T, w *world) {
	ctx, now := t.Context(), time.Now().UTC()
	for name, created := range map[string]time.Time{"op": now.AddDate(0, 0, -8), "new": now} {
		m := account.Member{ID: account.NewID("mem_"), Name: name, Operator: true, Created: created}
		check(t, w.db.CreateMember(ctx, m))
		w.members[name] = m
	}
	check(t, w.db.SaveOffers(ctx, w.machine.ID, []byte("{}"), now.Add(-2*time.Hour)))
	perDay := map[string]int{"far": 2, "": 1, "short": 2}
	for name, key := range map[string]struct{ created, expires time.Time }{
		"soon": {now.AddDate(0, 0, -90), now.AddDate(0, 0, 6)}, "": {now.AddDate(0, 0, -90), now.AddDate(0, 0, 5)},
		"far": {now.AddDate(0, 0, -90), now.AddDate(0, 0, 8)}, "short": {now, now.AddDate(0, 0, 6)}, "no end": {created: now},
	} {
		check(t, w.db.CreateKey(ctx, account.Key{
			ID: "key_" + name, MemberID: w.members["bob"].ID, Name: name, PerDay: perDay[name], LastFour: "wxyz", Region: "home", Reach: account.ReachAll, Hash: [32]byte{byte(len(name))}, Created: key.created, Expires: key.expires,
		}))
	}
	good[anything](w, "ada", "POST", "/api/shares", `{"with":"eve","per_day":1}`)
	good[anything](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	w.intoGroup("lab", "bob")
	good[anything](w, "ada", "POST", "/api/groups/lab/limits", `{"per_day":2}`)
	groups, err := w.db.SeenGroups(ctx, w.members["ada"].ID, "lab", now)
	check(t, err)
	labs := groups[0].ID
	for i, call := range []account.Usage{{MemberID: w.members["eve"].ID}, {MemberID: w.members["bob"].ID, GroupID: labs}, {MemberID: w.members["bob"].ID, GroupID: labs}} {
		call.CallID, call.Attempt, call.Started = account.NewID("req_"), 1+i, now
		call.OwnerID, call.MachineID, call.Model = w.members["ada"].ID, w.machine.ID, "tiny"
		call.KeyID = [...]string{"key_short", "key_far", "key_far"}[i]
		check(t, w.db.RecordUsage(ctx, []account.Usage{call}))
	}

	texts := func(who string) (all []string) {
		t.Helper()
		for _, n := range good[List[Notice]](w, who, "GET", "/api/notices", "").Data {
			if n.Kind != account.NoticeJoined && n.Kind != account.NoticeAccess {
				all = append(all, n.Text)
			}
		}
		slices.Sort(all)
		return all
	}
	want := func(who string, says ...string) {
		t.Helper()
		if got := texts(who); !slices.Equal(got, says) {
			t.Errorf("%s is notified of %q, want %q", who, got, says)
		}
	}
	spent := []string{"The members of lab have used up the 2 calls a day that you allow the group.", "eve has used up the 1 call a day that you allow."}
	check(t, w.api.NoteWhatIsDue(ctx, now, false))
	want("ada", spent...) // machines may be on their way back
	for range 2 {
		check(t, w.api.NoteWhatIsDue(ctx, now, true))
	}
	want("ada", append(spent[:1:1], "box has been offline for more than an hour.", spent[1])...)
	want("bob", "The key far has used up its 2 calls a day, until 00:00 UTC.", "The key soon stops working on "+now.AddDate(0, 0, 6).UTC().Format("2 Jan 2006 15:04 UTC")+".", "The key that ends in wxyz stops working on "+now.AddDate(0, 0, 5).UTC().Format("2 Jan 2006 15:04 UTC")+".")
	want("eve", "You have used up the 1 call a day that ada allows you, until 00:00 UTC.")
	want("new")
	if w.db.MakesBackups() {
		want("op", "This hub has no valid backup from the last 7 days.")
		check(t, w.db.RecordBackup(ctx, account.Backup{ID: "bak_1", At: now, File: "x", Bytes: 1}))
		check(t, w.api.NoteWhatIsDue(ctx, now.AddDate(0, 0, 6), true))
		want("op", "This hub has no valid backup from the last 7 days.")
		check(t, w.api.NoteWhatIsDue(ctx, now.AddDate(0, 0, 7).Add(time.Second), true))
		if got := texts("op"); len(got) != 1 { // the list ends with now
			t.Errorf("op is notified of %q", got)
		}
	} else {
		want("op")
	}

	// The machine is back, and away again: that is another occasion.
	check(t, w.db.SaveOffers(ctx, w.machine.ID, []byte("{}"), now.Add(-90*time.Minute)))
	check(t, w.api.NoteWhatIsDue(ctx, now, true))
	if got := texts("ada"); len(got) != 4 {
		t.Errorf("ada is notified of %q", got)
	}

	// Kinds that are switched off are not listed; a list that is absent stays.
	good[anything](w, "ada", "POST", "/api/notices/off", `{"site":["offline","offline"],"mail":["joined"]}`)
	want("ada", spent...)
	off := good[NoticesOff](w, "ada", "POST", "/api/notices/off", `{"site":null}`)
	if len(off.Site) != 0 || !slices.Equal(off.Mail, []account.NoticeKind{account.NoticeJoined}) {
		t.Errorf("off are %+v", off)
	}
	if got := good[NoticesOff](w, "bob", "GET", "/api/notices/off", ""); len(got.Site)+len(got.Mail) != 0 {
		t.Errorf("of bob's, off are %+v", got)
	}
	if got := w.ask("ada", "POST", "/api/notices/off", `{"mail":["all"]}`); got.status != 400 || got.code != "invalid_request" {
		t.Errorf("an unknown kind: %+v", got)
	}

	// By mail: what came since, is not seen, and is wanted.
	news := func(of account.NewsFor) int {
		of.Member = w.members["ada"]
		all, err := w.api.NoticesToMail(ctx, of, time.Now())
		check(t, err)
		return len(all)
	}
	since := now.Add(-time.Minute)
	if n := news(account.NewsFor{Since: since}); n != 6 { // with the join and the share
		t.Errorf("%d notices to mail, want 6", n)
	}
	if n := news(account.NewsFor{Since: since, Off: []account.NoticeKind{account.NoticeOffline}}); n != 4 {
		t.Errorf("%d notices to mail without machines, want 4", n)
	}
	assert.Equal(t, news(account.NewsFor{Since: time.Now()}), 0, "notices to mail of now")
	good[anything](w, "ada", "POST", "/api/notices/seen", `{"until":"`+time.Now().Format(time.RFC3339Nano)+`"}`)
	assert.Equal(t, news(account.NewsFor{Since: since}), 0, "notices to mail that are seen")
}

// Both members are notified of a new share, by whatever key or invite it was made, once a
// day, and a member of a group that was joined in the member's name.
func TestAccessIsNoted(t *testing.T) {
	w := newWorld(t)
	want := func(who string, says ...string) {
		t.Helper()
		var got []string
		for _, n := range good[List[Notice]](w, who, "GET", "/api/notices", "").Data {
			if n.Kind == account.NoticeAccess {
				got = append(got, n.Text)
			}
		}
		slices.Sort(got)
		assert.That(t, slices.Equal(got, says), who, "is notified of", got, says)
	}
	for range 3 {
		good[Share](w, "ada", "POST", "/api/shares", `{"with":"bob"}`)
		good[Share](w, "ada", "POST", "/api/shares", `{"with":"bob","per_day":9}`) // other limits of the same
		good[EndedShare](w, "ada", "DELETE", "/api/shares/bob", "")
	}
	invite := good[Invite](w, "ada", "POST", "/api/invites", "")
	good[Accepted](w, "eve", "POST", "/api/invites/accept", `{"code":"`+invite.Code+`"}`)
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"all","kind":"open"}`)
	good[GroupAct](w, "bob", "POST", "/api/groups/all/join", "")
	want("ada", "You share your machines with bob.", "You share your machines with eve, by an invite.")
	want("bob", "You joined all.", "ada shares machines with you.")
	want("eve", "ada shares machines with you, by an invite.")
}
