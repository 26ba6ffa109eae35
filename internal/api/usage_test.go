package api

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// usageOf asks the API for a member's usage.
func usageOf(t *testing.T, db *store.DB, member, query string) (page UsagePage, status int) {
	t.Helper()
	api := New(Config{
		DB: db, Log: slog.New(slog.DiscardHandler), Admit: func(fleet.Caller) error { return nil },
		Identify: func(_ context.Context, secret string) (fleet.Caller, error) {
			if secret != member {
				return fleet.Caller{}, fault.New(fault.InvalidAPIKey, "no")
			}
			return fleet.Caller{Member: fleet.MemberID(member), Name: member}, nil
		},
		Snapshot: func() *fleet.Snapshot {
			return fleet.NewSnapshot().WithMachine(&fleet.Machine{ID: "mch_desk", Owner: "bob", OwnerName: "Bob", Name: "desk"})
		},
	})
	r := httptest.NewRequest(http.MethodGet, "/api/usage"+query, nil)
	r.Header.Set("Authorization", "Bearer "+member)
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	if w.Code == http.StatusOK {
		assert.OK(t, json.Unmarshal(w.Body.Bytes(), &page, json.RejectUnknownMembers(true)))
		assert.Lacks(t, w.Body.String(), "eve", "the page tells of who is not its business", w.Body)
	}
	return page, w.Code
}

func openStore(t testing.TB) *store.DB {
	t.Helper()
	db := assert.Value(store.Open(t.Context(), store.Config{Path: storetest.SQLite(t)}))(t)
	t.Cleanup(func() { db.Close() })
	return db
}

// atNoon runs a test with a database where it is half an hour after noon, so that no hour
// and no day ends while it runs.
func atNoon(t *testing.T, test func(*testing.T, *store.DB)) {
	db := openStore(t)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(12*time.Hour + 30*time.Minute) // a bubble begins at midnight
		test(t, db)
	})
}

// TestUsage: both sides add up, by day, model, machine and code, each member
// sees its own, and who was at the other end.
func TestUsage(t *testing.T) { atNoon(t, testUsage) }

func testUsage(t *testing.T, db *store.DB) {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	day := func(ago int) time.Time { return today.AddDate(0, 0, -ago).Add(time.Hour) }
	call := func(id, member, owner, machine, model, code string, started time.Time) account.Usage {
		return account.Usage{
			CallID: id, Attempt: 1, Started: started, MemberID: member, OwnerID: owner, MachineID: machine, Model: model, Code: code,
			Waited: 1500 * time.Millisecond, TokensIn: 10, TokensOut: 100,
		}
	}
	check(t, db.CreateMember(t.Context(), account.Member{ID: "ann", Name: "Ann", Created: today}))
	check(t, db.CreateMember(t.Context(), account.Member{ID: "eve", Name: "Eve", Created: today}))
	err := db.RecordUsage(t.Context(), []account.Usage{
		call("1", "ann", "bob", "mch_desk", "m1", "", day(0)),
		call("2", "ann", "bob", "mch_desk", "m1", "machine_offline", day(0)),
		call("3", "ann", "ann", "mch_gone", "m2", "", day(2)),
		call("4", "ann", "", "", "m3", "CAPACITY_FULL", day(2)),
		call("5", "eve", "bob", "mch_desk", "m1", "", day(2)),
		call("6", "bob", "bob", "mch_desk", "m1", "", day(0)),
		call("7", "ann", "bob", "mch_desk", "m1", "", day(31)),
	})
	assert.OK(t, err)
	sum := func(calls, refused, others int64) UsageSum {
		return UsageSum{Calls: calls, Refused: refused, Others: others, WaitedMS: 1500 * calls, TokensIn: 10 * calls, TokensOut: 100 * calls}
	}
	date := func(ago int) string { return day(ago).Format(time.DateOnly) }

	page, _ := usageOf(t, db, "ann", "?days=3")
	week := func(ones ...int) [][]int64 { // the calls at 01:00 of the last days
		var all [][]int64
		for range 7 {
			all = append(all, make([]int64, 24))
		}
		for ago, n := range ones {
			all[(int(day(ago).Weekday())+6)%7][1] = int64(n)
		}
		return all
	}
	want := UsagePage{Days: 3, By: "day", Zone: "UTC", Since: date(2),
		As: UsageSide{
			Total:    sum(4, 2, 2),
			Days:     []UsageOfDay{{Day: date(2), UsageSum: sum(2, 1, 0)}, {Day: date(0), UsageSum: sum(2, 1, 2)}},
			Models:   []UsageOfModel{{"m1", sum(2, 1, 2)}, {"m2", sum(1, 0, 0)}, {"m3", sum(1, 1, 0)}},
			Machines: []UsageOfMachine{{"mch_desk", "desk", "Bob", sum(2, 1, 2)}, {"mch_gone", "", "", sum(1, 0, 0)}},
			Members:  []UsageOfMember{{"", false, sum(2, 1, 2)}, {"Ann", true, sum(1, 0, 0)}}, // bob is no member any more
			Keys:     []UsageOfKey{{UsageSum: sum(4, 2, 2)}},
			Codes:    []UsageOfCode{{"CAPACITY_FULL", 1}, {"machine_offline", 1}},
			Week:     week(2, 0, 2),
		},
		On: UsageSide{
			Total:    sum(1, 0, 0),
			Days:     []UsageOfDay{{Day: date(2), UsageSum: sum(1, 0, 0)}},
			Models:   []UsageOfModel{{"m2", sum(1, 0, 0)}},
			Machines: []UsageOfMachine{{"mch_gone", "", "", sum(1, 0, 0)}},
			Members:  []UsageOfMember{{"Ann", true, sum(1, 0, 0)}},
			Codes:    []UsageOfCode{},
			Week:     week(0, 0, 1),
		},
	}
	assert.Same(t, page, want, "-want +got")
	page, _ = usageOf(t, db, "bob", "")
	if page.Days != 30 || page.As.Total != sum(1, 0, 0) || page.On.Total != sum(4, 1, 3) {
		t.Errorf("bob's: %+v", page)
	}
	if diff := cmp.Diff([]UsageOfMember{{"Ann", false, sum(2, 1, 2)}, {"", true, sum(1, 0, 0)}, {"Eve", false, sum(1, 0, 1)}}, page.On.Members); diff != "" {
		t.Errorf("who called on bob's: -want +got\n%s", diff)
	}
	if page, _ = usageOf(t, db, "ann", "?days=32"); page.As.Total.Calls != 5 {
		t.Errorf("32 days: %+v", page.As.Total)
	}
	for _, query := range []string{"?days=0", "?days=367", "?days=-1", "?days=x", "?days=99999999999999999999"} {
		if _, status := usageOf(t, db, "ann", query); status != http.StatusBadRequest {
			t.Errorf("%s: %d", query, status)
		}
	}
}

// TestUsageInZone: days and weeks are those of the zone as far back as hours are kept, across
// a change of its clocks and where its offset has minutes; before that they are UTC.
func TestUsageInZone(t *testing.T) {
	at := func(text string) time.Time { return assert.Value(time.Parse(time.RFC3339, text))(t) }
	now := at("2026-11-03T12:00:00Z")
	for name, test := range map[string]struct {
		in    Span
		since string
		zone  string
		of    map[string]string
	}{
		"utc": {Span{Days: "2"}, "2026-11-02", "UTC", map[string]string{"2026-11-02T23:59:00Z": "2026-11-02"}},
		"west": {Span{Days: "3", Zone: "America/New_York"}, "2026-11-01", "America/New_York", map[string]string{
			"2026-11-01T04:00:00Z": "2026-11-01", "2026-11-02T04:59:00Z": "2026-11-01", "2026-11-02T05:00:00Z": "2026-11-02"}},
		"half an hour": {Span{Days: "2", Zone: "Asia/Kolkata"}, "2026-11-02", "Asia/Kolkata", map[string]string{"2026-11-02T18:00:00Z": "2026-11-02", "2026-11-02T19:00:00Z": "2026-11-03"}},
		"a week":       {Span{Days: "1", By: Week, Zone: "Pacific/Auckland"}, "2026-11-02", "Pacific/Auckland", map[string]string{"2026-11-01T11:00:00Z": "2026-11-02", "2026-11-01T10:59:00Z": "2026-10-26"}},
		"hours":        {Span{By: Hour, Zone: "Asia/Kolkata"}, "2026-11-02T13:00", "Asia/Kolkata", map[string]string{"2026-11-02T18:30:00Z": "2026-11-02T18:00"}},
		"too long":     {Span{Days: "92", Zone: "Asia/Kolkata"}, "2026-08-04", "UTC", map[string]string{"2026-11-02T19:00:00Z": "2026-11-02"}},
	} {
		steps := assert.Value(test.in.read(now))(t)
		assert.Equal(t, steps.Name(steps.since)+" "+steps.zone.String(), test.since+" "+test.zone, name)
		for moment, want := range test.of {
			assert.Equal(t, steps.Name(steps.of(at(moment))), want, name, moment)
		}
		begin := assert.Value(steps.Parse(test.since, test.zone))(t)
		assert.That(t, begin.Equal(steps.since), name, begin, steps.since)
	}
	for _, zone := range []string{"Mars/Olympus", "Local", "../etc"} {
		if _, err := (Span{Zone: zone}).read(now); err == nil {
			t.Errorf("the zone %q is taken", zone)
		}
	}
}

// TestUsageParts: a day is divided by the models or members with the most calls in the
// span, and what is left of it is of others.
func TestUsageParts(t *testing.T) { atNoon(t, testUsageParts) }

func testUsageParts(t *testing.T, db *store.DB) {
	now := time.Now()
	var calls []account.Usage
	for i := range 9 {
		member := fmt.Sprint("mem_", i)
		check(t, db.CreateMember(t.Context(), account.Member{ID: member, Name: fmt.Sprint("Member ", i), Created: now}))
		for n := range 10 - i {
			calls = append(calls, account.Usage{
				CallID: fmt.Sprint(i, "-", n), Attempt: 1, Started: now, MemberID: member, OwnerID: "mem_0", MachineID: "mch", Model: fmt.Sprint("m", i), TokensIn: 1, TokensOut: 2,
			})
		}
	}
	check(t, db.RecordUsage(t.Context(), calls))
	for split, first := range map[string]string{"model": "m0", "member": "Member 0"} {
		page, _ := usageOf(t, db, "mem_0", "?days=1&split="+split)
		parts := page.On.Days[0].Parts
		assert.Equal(t, len(parts), 7, split)
		assert.Same(t, parts[0], UsagePart{first, 10, 10, 20}, split)
		assert.That(t, parts[6].Calls == 4 && page.On.Days[0].Calls == 54, split, "the sum", page.On.Days[0])
		assert.Equal(t, len(page.As.Days[0].Parts), 1, split, "of one's own calls")
	}
	page, _ := usageOf(t, db, "mem_0", "?days=1")
	assert.Equal(t, len(page.On.Days[0].Parts), 0, "parts that no one asked for")
	if _, status := usageOf(t, db, "mem_0", "?split=key"); status != http.StatusBadRequest {
		t.Errorf("split=key: %d", status)
	}
}

// TestUsageSteps: sums by the hour and by the week are those of the calls in them, by the
// key that made them, with the times to the first token.
func TestUsageSteps(t *testing.T) { atNoon(t, testUsageSteps) }

func testUsageSteps(t *testing.T, db *store.DB) {
	now := time.Now().UTC()
	check(t, db.CreateMember(t.Context(), account.Member{ID: "ann", Name: "Ann", Created: now}))
	check(t, db.CreateKey(t.Context(), account.Key{ID: "key_1", MemberID: "ann", Name: "editor", Region: "home", Reach: account.ReachAll, Created: now}))
	var records []account.Usage
	add := func(n int, key string, ago, first time.Duration) {
		for range n {
			records = append(records, account.Usage{
				CallID: account.NewID("req_"), Attempt: 1, Started: now.Add(-ago), MemberID: "ann", KeyID: key, OwnerID: "bob", MachineID: "mch_desk", Model: "m",
				Stream: true, FirstToken: first,
			})
		}
	}
	add(9, "key_1", 0, 400*time.Millisecond)
	add(1, "key_1", 0, 5*time.Second)
	add(3, "", 5*time.Hour, 0)
	add(2, "key_1", 23*time.Hour+59*time.Minute+59*time.Second, 0) // this or the first of the 24 hours, or before
	add(5, "key_1", 25*time.Hour, 0)
	check(t, db.RecordUsage(t.Context(), records))

	page, _ := usageOf(t, db, "ann", "?by=hour")
	hour := func(ago time.Duration) string { return now.Add(-ago).Format("2006-01-02T15:00") }
	calls := map[string]int64{}
	for _, d := range page.As.Days {
		calls[d.Day] = d.Calls
	}
	if page.By != "hour" || page.Days != 1 || page.Since != hour(23*time.Hour) || calls[hour(0)] != 10 || calls[hour(5*time.Hour)] != 3 || calls[hour(25*time.Hour)] != 0 {
		t.Errorf("by the hour: %+v", page)
	}
	total := page.As.Total
	if total.FirstP50MS < 384 || total.FirstP50MS > 512 || total.FirstP95MS < 4096 || total.FirstP95MS > 6144 {
		t.Errorf("the first token: %+v", total)
	}
	if k := page.As.Keys; len(k) != 2 || k[0].Key != "key_1" || k[0].Name != "editor" || k[1].Key != "" || k[1].Calls != 3 {
		t.Errorf("by key: %+v", k)
	}
	page, _ = usageOf(t, db, "bob", "?by=hour&days=2")
	if page.On.Total.Calls != 20 || page.On.Keys != nil || page.On.Total.FirstP50MS == 0 {
		t.Errorf("bob's: %+v", page.On)
	}
	page, _ = usageOf(t, db, "ann", "?by=week")
	monday := now.Truncate(24 * time.Hour)
	for monday.Weekday() != time.Monday {
		monday = monday.AddDate(0, 0, -1)
	}
	var all int64
	for _, d := range page.As.Days {
		if all += d.Calls; d.Day > monday.Format(time.DateOnly) {
			t.Errorf("a week begins on %s", d.Day)
		}
	}
	if last := page.As.Days[len(page.As.Days)-1]; page.Days != 84 || all != 20 || last.Day != monday.Format(time.DateOnly) || last.FirstP95MS == 0 {
		t.Errorf("by the week: %+v", page.As.Days)
	}
	for _, query := range []string{"?by=month", "?by=hour&days=15", "?by=week&days=367"} {
		if _, status := usageOf(t, db, "ann", query); status != http.StatusBadRequest {
			t.Errorf("%s: %d", query, status)
		}
	}
}

// TestUsageOfPrograms: calls with a machine's credential are shown with the machine's name,
// also if it was revoked or renamed, and the command of kith; never with another member's.
func TestUsageOfPrograms(t *testing.T) {
	db := openStore(t)
	now := time.Now().UTC()
	check(t, db.CreateMember(t.Context(), account.Member{ID: "ann", Name: "Ann", Created: now}))
	check(t, db.CreateMember(t.Context(), account.Member{ID: "bob", Name: "Bob", Created: now}))
	for i, m := range []account.Machine{{ID: "mch_1", OwnerID: "ann", Name: "desk"}, {ID: "mch_2", OwnerID: "ann", Name: "old"}, {ID: "mch_3", OwnerID: "bob", Name: "hush"}} {
		m.Region, m.Hash, m.Created = "home", [32]byte{byte(i + 1)}, now
		check(t, db.CreateMachine(t.Context(), m))
	}
	check(t, db.RevokeMachine(t.Context(), "mch_2", now))
	var records []account.Usage
	for i, key := range []string{
		account.MachineKey("mch_1", "run"), account.MachineKey("mch_1", "launch"), account.MachineKey("mch_1", ""), account.MachineKey("mch_2", "run"),
		account.MachineKey("mch_3", "run"), account.MachineKey("mch_gone", ""), "", "site of ann",
	} {
		for range 10 - i { // rows are in order of calls
			records = append(records, account.Usage{CallID: account.NewID("req_"), Attempt: 1, Started: now, MemberID: "ann", KeyID: key, Model: "m"})
		}
	}
	check(t, db.RecordUsage(t.Context(), records))
	page, _ := usageOf(t, db, "ann", "")
	var got []string
	for _, k := range page.As.Keys {
		assert.Equal(t, k.Name, "", k.Key)
		got = append(got, MadeAt(k.Machine, k.Program))
	}
	assert.Equal(t, strings.Join(got, "; "), "desk, kith run; desk, kith launch; desk; old, kith run; ; ; ; ")
	assert.Equal(t, page.As.Keys[0].Key, "machine mch_1 run")
}

// TestUsageOfMany: of those on the other side, a hundred are listed, those
// with most calls; the sums are of all.
func TestUsageOfMany(t *testing.T) {
	db := openStore(t)
	now := time.Now().UTC()
	check(t, db.CreateMember(t.Context(), account.Member{ID: "most", Name: "Most", Created: now}))
	var records []account.Usage
	add := func(member string) {
		records = append(records, account.Usage{
			CallID: account.NewID("req_"), Attempt: 1, Started: now, MemberID: member, OwnerID: "bob", MachineID: "mch_desk", Model: "m",
		})
	}
	for i := range maxOthers + 5 {
		add(name("mem_", i))
	}
	add("most")
	add("most")
	check(t, db.RecordUsage(t.Context(), records))
	on, _ := usageOf(t, db, "bob", "")
	if got := on.On.Members; len(got) != maxOthers || got[0].Member != "Most" || got[0].Calls != 2 || got[1].Member != "" {
		t.Errorf("%d are told apart, first %+v", len(got), got[:2])
	}
	assert.Equal(t, on.On.Total.Calls, maxOthers+7, "in all", on.On.Total)
}

// BenchmarkUsagePage asks for a page over 1,000,000 records of 90 days: 200
// members, each calling 4 of 50 machines for 3 models, and 1 call in 20 is
// refused.
func BenchmarkUsagePage(b *testing.B) {
	db := openStore(b)
	today := time.Now().UTC()
	const records, batch = 1_000_000, 20_000
	random := rand.New(rand.NewPCG(1, 2))
	for from := 0; from < records; from += batch {
		list := make([]account.Usage, batch)
		for i := range list {
			n := from + i
			member := random.IntN(200)
			machine := (member + 13*random.IntN(4)) % 50
			code := ""
			if random.IntN(20) == 0 {
				code = "CAPACITY_FULL"
			}
			list[i] = account.Usage{
				CallID: account.NewID("req_"), Attempt: 1, Started: today.Add(-time.Duration(n) * (90 * 24 * time.Hour / records)),
				MemberID: name("mem_", member), OwnerID: name("mem_", machine), MachineID: name("mch_", machine), Model: name("model-", random.IntN(3)),
				Code: code, TokensIn: 100, TokensOut: 200, TokensHow: account.TokensReported,
			}
		}
		assert.OK(b, db.RecordUsage(b.Context(), list))
	}
	api := New(Config{
		DB: db, Log: slog.New(slog.DiscardHandler), Admit: func(fleet.Caller) error { return nil }, Snapshot: fleet.NewSnapshot,
		Identify: func(_ context.Context, secret string) (fleet.Caller, error) {
			return fleet.Caller{Member: fleet.MemberID(secret)}, nil
		},
	})
	for _, days := range []string{"1", "30", "90"} {
		b.Run(days+" days", func(b *testing.B) {
			since := today.AddDate(0, 0, -90)
			n := 0
			count := func(account.UsageDay) { n++ }
			err := errors.Join(db.DaysOfCaller(b.Context(), "mem_aa", since, count), db.DaysOfOwner(b.Context(), "mem_aa", since, count))
			assert.Require(b, err == nil && n != 0, err, n)
			b.ReportMetric(float64(n), "sums/90days")
			for i := 0; b.Loop(); i++ {
				r := httptest.NewRequest(http.MethodGet, "/api/usage?days="+days, nil)
				r.Header.Set("Authorization", "Bearer "+name("mem_", i%50))
				w := httptest.NewRecorder()
				if api.ServeHTTP(w, r); w.Code != http.StatusOK {
					b.Fatal(errors.New(w.Body.String()))
				}
			}
		})
	}
}

func name(prefix string, n int) string {
	return prefix + string(rune('a'+n/26)) + string(rune('a'+n%26))
}
