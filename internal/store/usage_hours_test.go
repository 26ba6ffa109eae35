package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store"
)

// hoursOf returns the expected hourly sums of the records.
func hoursOf(records []account.Usage) map[account.UsageHour]account.UsageHour {
	hours := make(map[account.UsageHour]account.UsageHour)
	for _, u := range records {
		key := account.UsageHour{
			Hour: u.Started.Truncate(time.Hour), MemberID: u.MemberID, OwnerID: u.OwnerID, MachineID: u.MachineID,
			KeyID: u.KeyID, Model: u.Model, Code: u.Code, First: u.FirstStep(),
		}
		hour, known := hours[key]
		if !known {
			hour = key
		}
		hour.Calls++
		hour.Waited += u.Waited
		hour.TokensIn += u.TokensIn
		hour.TokensOut += u.TokensOut
		hours[key] = hour
	}
	return hours
}

// testUsageOfHub checks that the hub's sums are those of all members' records, without
// members, and that each member counts once in a step.
func testUsageOfHub(t *testing.T, db *store.DB) {
	ctx := t.Context()
	call := func(i int, at time.Time, member, owner, model, code string, first time.Duration) {
		u := aCall(fmt.Sprint("call-", i), 1)
		u.Started, u.MemberID, u.OwnerID, u.Model, u.Code, u.FirstToken = at, member, owner, model, code, first
		ok(t, db.RecordUsage(ctx, []account.Usage{u}))
	}
	day := start.Truncate(24 * time.Hour)
	call(0, day.Add(-time.Second), "mem_0", "mem_0", "m1", "", 0)
	call(1, day, "mem_0", "mem_0", "m1", "", time.Second)
	call(2, day.Add(time.Hour), "mem_0", "mem_1", "m1", "", time.Second)
	call(3, day.Add(2*time.Hour), "mem_1", "mem_0", "m1", "", time.Second)
	call(4, day.Add(2*time.Hour), "mem_2", "", "m2", "model_not_found", 0)
	call(5, day.AddDate(0, 0, 1), "mem_2", "mem_2", "m2", "", 0)
	var days []string
	ok(t, db.DaysOfHub(ctx, start, func(d account.UsageDay) {
		days = append(days, fmt.Sprint(d.Day.Format(time.DateOnly), " ", d.Model, " ", d.Code, " ", d.OwnerID != "", " ", d.Calls, " ", d.TokensOut, " ", d.Waited, d.MemberID, d.MachineID))
	}))
	slices.Sort(days)
	same(t, days, []string{
		"2026-11-21 m1  false 1 77 1.5ms", "2026-11-21 m1  true 2 154 3ms", "2026-11-21 m2 model_not_found false 1 77 1.5ms", "2026-11-22 m2  false 1 77 1.5ms",
	})
	var hours []string
	ok(t, db.HoursOfHub(ctx, day.Add(time.Hour), func(h account.UsageHour) {
		hours = append(hours, fmt.Sprint(h.Hour.Sub(day), " ", h.Model, " ", h.Code, " ", h.OwnerID != "", " ", h.Calls, " ", h.First, h.MemberID, h.KeyID))
	}))
	slices.Sort(hours)
	same(t, hours, []string{"1h0m0s m1  true 1 768ms", "24h0m0s m2  false 1 0s", "2h0m0s m1  true 1 768ms", "2h0m0s m2 model_not_found false 1 0s"})
	for step, want := range map[time.Duration]map[time.Time]int64{
		time.Hour:          {day: 1, day.Add(time.Hour): 1, day.Add(2 * time.Hour): 2, day.AddDate(0, 0, 1): 1},
		24 * time.Hour:     {day: 3, day.AddDate(0, 0, 1): 1},
		7 * 24 * time.Hour: {day: 3},
	} {
		total, steps, err := db.ActiveMembers(ctx, day, step)
		ok(t, err)
		same(t, total, int64(3))
		same(t, steps, want)
	}
}

// testUsageHours checks that a member's hourly sums on both sides are those of the
// records, each counted once, and so are the calls of each key.
func testUsageHours(t *testing.T, db *store.DB) {
	ctx, random := t.Context(), rand.New(rand.NewPCG(5, 6))
	var records []account.Usage
	for i := range 400 {
		u := aCall(fmt.Sprint("call-", i), 1)
		u.Started = start.Add(-time.Duration(random.IntN(30*3600)) * time.Second)
		u.MemberID, u.OwnerID = fmt.Sprint("mem_", i%2), []string{"", "mem_1", "mem_2"}[i%3]
		if u.OwnerID == "" { // it did not run
			u.MachineID = ""
		}
		u.KeyID = []string{"", "key_1", "key_2"}[random.IntN(3)]
		u.FirstToken = time.Duration(random.IntN(4)) * 700 * time.Millisecond
		if random.IntN(4) > 0 {
			u.Code = ""
		}
		records = append(records, u)
	}
	for batch := range slices.Chunk(records, 150) {
		ok(t, db.RecordUsage(ctx, append(batch, batch[0])))
		ok(t, db.RecordUsage(ctx, batch))
	}
	for _, side := range []struct {
		read  func(context.Context, string, time.Time, func(account.UsageHour)) error
		whose func(account.Usage) string
	}{
		{db.HoursOfCaller, func(u account.Usage) string { return u.MemberID }},
		{db.HoursOfOwner, func(u account.Usage) string { return u.OwnerID }},
	} {
		for _, member := range []string{"mem_0", "mem_1", "mem_2", "mem_none"} {
			for _, since := range []time.Time{{}, start.Add(-7 * time.Hour)} {
				var of []account.Usage
				for _, u := range records {
					if side.whose(u) == member && !u.Started.Before(since.Truncate(time.Hour)) {
						of = append(of, u)
					}
				}
				want, n, last := hoursOf(of), 0, time.Time{}
				ok(t, side.read(ctx, member, since, func(got account.UsageHour) {
					key := got
					key.Calls, key.Waited, key.TokensIn, key.TokensOut = 0, 0, 0, 0
					same(t, got, want[key])
					if n++; got.Hour.Before(last) {
						t.Errorf("the hour %s is after %s", got.Hour, last)
					}
					last = got.Hour
				}))
				same(t, n, len(want))
			}
		}
	}
	ok(t, db.HoursOfOwner(ctx, "", time.Time{}, func(h account.UsageHour) { t.Errorf("no one owns %+v", h) }))
	calls := map[string]int64{}
	for _, u := range records {
		if u.MemberID == "mem_1" && u.KeyID != "" && !u.Started.Before(start.Add(-7*time.Hour).Truncate(time.Hour)) {
			calls[u.KeyID]++
		}
	}
	same(t, must[map[string]int64](t)(db.CallsOfKeys(ctx, "mem_1", start.Add(-7*time.Hour))), calls)

	// Of the calls of a day only those count that ran on a machine.
	clear(calls)
	for _, u := range records {
		if u.MemberID == "mem_1" && u.KeyID != "" && u.MachineID != "" && !u.Started.Before(start.Truncate(24*time.Hour)) {
			calls[u.KeyID]++
		}
	}
	same(t, must[map[string]int64](t)(db.DayOfKeys(ctx, "mem_1", start)), calls)
	same(t, must[map[string]int64](t)(db.DayOfKeys(ctx, "mem_1", start.AddDate(0, 0, 1))), map[string]int64{})
}

// testUsageHoursEnd checks that hourly sums are deleted after 13 weeks, but not because
// of a record with a time in the future.
func testUsageHoursEnd(t *testing.T, db *store.DB) {
	ctx, now := t.Context(), time.Now()
	hours := func() (n int) {
		ok(t, db.HoursOfCaller(ctx, "mem_caller", time.Time{}, func(account.UsageHour) { n++ }))
		return n
	}
	ok(t, db.RecordUsage(ctx, []account.Usage{callAt("old", now.Add(-account.UsageHoursLife-26*time.Hour)), callAt("kept", now.Add(-account.UsageHoursLife+2*time.Hour))}))
	same(t, hours(), 2)
	ok(t, db.RecordUsage(ctx, []account.Usage{callAt("future", now.Add(40*24*time.Hour))}))
	same(t, hours(), 2)
	same(t, len(must[[]account.UsageDay](t)(db.UsageDays(ctx))), 3) // the daily sums are kept forever
}

// TestFirstSteps checks that a time counts in the last step that it reaches, and that the
// steps are close together.
func TestFirstSteps(t *testing.T) {
	for first, want := range map[time.Duration]time.Duration{
		0: 0, time.Microsecond: time.Millisecond, 5 * time.Millisecond: 4 * time.Millisecond, 6 * time.Millisecond: 6 * time.Millisecond,
		800 * time.Millisecond: 768 * time.Millisecond, 24 * time.Hour: 1 << 26 * time.Millisecond,
	} {
		u := account.Usage{FirstToken: first}
		same(t, u.FirstStep(), want)
		u.Code = "engine_error"
		same(t, u.FirstStep(), time.Duration(0))
	}
	for i, step := range account.FirstSteps[2:] {
		if before := account.FirstSteps[i+1]; step <= before || float64(step) > 1.5*float64(before) {
			t.Errorf("the step after %s is %s", before, step)
		}
	}
}
