package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// aCall returns a record without zero fields.
func aCall(id string, attempt int) account.Usage {
	return account.Usage{
		CallID: id, Attempt: attempt, Started: start,
		MemberID: "mem_caller", KeyID: "key_1", MachineID: "mch_1", OwnerID: "mem_owner",
		Model: "llama3:8b", Endpoint: "/v1/chat/completions", Stream: true, Status: 200, Code: "engine_error",
		Waited: 1500 * time.Microsecond, FirstByte: 2 * time.Second, Duration: 3*time.Second + time.Microsecond,
		TokensIn: 1 << 20, TokensOut: 77, TokensHow: account.TokensReported,
	}
}

// sum returns the expected daily sums of the records.
func sum(records []account.Usage) map[account.UsageDay]account.UsageDay {
	days := make(map[account.UsageDay]account.UsageDay)
	for _, u := range records {
		key := account.UsageDay{
			Day:      time.Date(u.Started.Year(), u.Started.Month(), u.Started.Day(), 0, 0, 0, 0, time.UTC),
			MemberID: u.MemberID, OwnerID: u.OwnerID, MachineID: u.MachineID, Model: u.Model, Code: u.Code,
		}
		day, known := days[key]
		if !known {
			day = key
		}
		day.Calls++
		day.Waited += u.Waited
		day.Duration += u.Duration
		day.TokensIn += u.TokensIn
		day.TokensOut += u.TokensOut
		days[key] = day
	}
	return days
}

// sameDays checks that the stored sums are those of the records.
func sameDays(t *testing.T, got []account.UsageDay, records []account.Usage) {
	t.Helper()
	want := sum(records)
	same(t, len(got), len(want))
	for _, day := range got {
		key := day
		key.Calls, key.Waited, key.Duration, key.TokensIn, key.TokensOut = 0, 0, 0, 0, 0
		same(t, day, want[key])
	}
	if !slices.IsSortedFunc(got, func(a, b account.UsageDay) int { return a.Day.Compare(b.Day) }) {
		t.Fatal("the days are out of order")
	}
}

func testUsage(t *testing.T, db *store.DB) {
	ctx := t.Context()
	full := aCall("call-1", 2)
	refused := account.Usage{CallID: "call-2", Started: later(1), MemberID: "mem_caller", Model: "nothing", Endpoint: "/v1/embeddings", Status: 404, Code: "model_not_found"}
	first := aCall("call-1", 1)
	first.Code = ""
	records := []account.Usage{refused, first, full}

	ok(t, db.RecordUsage(ctx, []account.Usage{full, refused}))
	ok(t, db.RecordUsage(ctx, []account.Usage{refused, full, first, first}))
	ok(t, db.RecordUsage(ctx, []account.Usage{full}))
	ok(t, db.RecordUsage(ctx, nil))
	lie := full // the first record of an attempt is kept
	lie.TokensOut = 1000
	ok(t, db.RecordUsage(ctx, []account.Usage{lie}))

	same(t, must[[]account.Usage](t)(db.Usage(ctx)), records)
	sameDays(t, must[[]account.UsageDay](t)(db.UsageDays(ctx)), records)
}

// testCallsOfShares checks that routing gets a share with the number of today's calls by
// its member on its owner's machines, for the share's models.
func testCallsOfShares(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	first := account.Share{ID: account.NewID("shr_"), OwnerID: ada.ID, MemberID: bob.ID, Created: start, Limits: account.Limits{PerDay: 10}}
	ok(t, db.AddShare(ctx, first))
	ok(t, db.AddShare(ctx, account.Share{
		ID: account.NewID("shr_"), OwnerID: eve.ID, MemberID: bob.ID, Created: later(1), Limits: account.Limits{Models: []string{"tiny"}, PerDay: 10},
	}))
	ok(t, db.AddShare(ctx, account.Share{ID: account.NewID("shr_"), OwnerID: ada.ID, MemberID: eve.ID, Created: later(2), Limits: account.Limits{PerDay: 10}}))
	enginetest.OneDay()
	now := time.Now()
	var records []account.Usage
	call := func(n int, caller, owner account.Member, model string, when time.Time) {
		for range n {
			u := aCall(fmt.Sprint("call-", len(records)), 1)
			u.MemberID, u.OwnerID, u.Model, u.Started = caller.ID, owner.ID, model, when
			records = append(records, u)
		}
	}
	call(2, bob, ada, "tiny", now)
	call(1, bob, ada, "large", now)
	call(9, bob, ada, "tiny", now.Add(-24*time.Hour))
	call(4, bob, eve, "tiny", now)
	call(9, bob, eve, "large", now) // not by the share, which does not cover the model
	call(9, ada, bob, "tiny", now)  // in the other direction
	call(9, bob, bob, "tiny", now)  // own
	ok(t, db.RecordUsage(ctx, records))

	left := func(s *fleet.Share) (n int) {
		for s.Reserve(now) {
			n++
		}
		return n
	}
	facts := db.Facts("home")
	for what, shares := range map[string][]*fleet.Share{
		"all": must[[]*fleet.Share](t)(facts.Shares(ctx)), "bob's": must[[]*fleet.Share](t)(facts.SharesTo(ctx, fleet.MemberID(bob.ID))),
	} {
		want := []int{10 - 3, 10 - 4, 10}[:len(shares)]
		var got []int
		for _, s := range shares {
			got = append(got, left(s))
		}
		assert.That(t, slices.Equal(got, want) && len(shares) >= 2, what, got, "calls left today", want)
	}
}

// testUsageOfMember checks that a member gets only their own days, for both sides, from
// the requested day on.
func testUsageOfMember(t *testing.T, db *store.DB) {
	ctx := t.Context()
	var records []account.Usage
	for i := range 12 {
		u := aCall(fmt.Sprint("call-", i), 1)
		u.Started = start.Add(time.Duration(-12*i) * time.Hour)
		u.MemberID, u.OwnerID = fmt.Sprint("mem_", i%2), []string{"", "mem_1", "mem_2"}[i%3]
		records = append(records, u)
	}
	ok(t, db.RecordUsage(ctx, records))
	noon := time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)
	for _, side := range []struct {
		read  func(context.Context, string, time.Time, func(account.UsageDay)) error
		whose func(account.Usage) string
	}{
		{db.DaysOfCaller, func(u account.Usage) string { return u.MemberID }},
		{db.DaysOfOwner, func(u account.Usage) string { return u.OwnerID }},
	} {
		for _, member := range []string{"mem_0", "mem_1", "mem_2", "mem_none"} {
			for _, since := range []time.Time{{}, noon} {
				var want []account.Usage
				for _, u := range records {
					if side.whose(u) == member && !u.Started.Before(since.Truncate(24*time.Hour)) {
						want = append(want, u)
					}
				}
				var got []account.UsageDay
				ok(t, side.read(ctx, member, since, func(d account.UsageDay) { got = append(got, d) }))
				sameDays(t, got, want)
			}
		}
	}
	ok(t, db.DaysOfOwner(ctx, "", time.Time{}, func(d account.UsageDay) { t.Errorf("nobody owns %+v", d) }))
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := db.DaysOfCaller(gone, "mem_1", time.Time{}, func(account.UsageDay) {}); err == nil {
		t.Error("a caller that is gone got no error")
	}
}

// testUsageRefused checks that an invalid record does not prevent others from being
// written.
func testUsageRefused(t *testing.T, db *store.DB) {
	ctx := t.Context()
	good := aCall("good", 1)
	batch := []account.Usage{good}
	for i, spoil := range []func(*account.Usage){
		func(u *account.Usage) { u.TokensIn = -1 },
		func(u *account.Usage) { u.TokensOut = -1 },
		func(u *account.Usage) { u.TokensIn = 1 << 31 },
		func(u *account.Usage) { u.TokensOut = 1<<63 - 1 },
		func(u *account.Usage) { u.Waited = -1 },
		func(u *account.Usage) { u.FirstByte = -time.Second },
		func(u *account.Usage) { u.Duration = 25 * time.Hour },
		func(u *account.Usage) { u.Started = time.Time{} },
		func(u *account.Usage) { u.Attempt = -1 },
		func(u *account.Usage) { u.Model = strings.Repeat("x", 257) },
		func(u *account.Usage) { u.Model = "a\x00b" },
		func(u *account.Usage) { u.Code = "\xff" },
	} {
		u := aCall(fmt.Sprint("spoilt-", i), 1)
		spoil(&u)
		fails(t, db.RecordUsage(ctx, []account.Usage{u}), store.ErrInvalid)
		batch = append(batch, u)
	}
	last := aCall("last", 1)
	fails(t, db.RecordUsage(ctx, append(batch, last, account.Usage{})), store.ErrInvalid)
	same(t, must[[]account.Usage](t)(db.Usage(ctx)), []account.Usage{good, last})
	sameDays(t, must[[]account.UsageDay](t)(db.UsageDays(ctx)), []account.Usage{good, last})
}

// testUsageConcurrency checks that hubs that write overlapping batches in different
// orders do not deadlock and do not count a call twice.
func testUsageConcurrency(t *testing.T, db *store.DB) {
	var records []account.Usage
	for i := range 60 {
		u := aCall(fmt.Sprint("call-", i), 1)
		u.MachineID = fmt.Sprint("mch_", i%7)
		records = append(records, u)
	}
	together(8, func(i int) {
		mine := slices.Clone(records)
		rand.New(rand.NewPCG(1, uint64(i))).Shuffle(len(mine), func(a, b int) { mine[a], mine[b] = mine[b], mine[a] })
		for batch := range slices.Chunk(mine, 20) {
			if err := db.RecordUsage(t.Context(), batch); err != nil {
				t.Error(err)
			}
		}
	})
	same(t, len(must[[]account.Usage](t)(db.Usage(t.Context()))), len(records))
	sameDays(t, must[[]account.UsageDay](t)(db.UsageDays(t.Context())), records)
}

func testUsageMany(t *testing.T, db *store.DB) {
	random := rand.New(rand.NewPCG(2, 3))
	var records []account.Usage
	for i := range 10_000 {
		u := aCall(fmt.Sprint("call-", i), 1)
		u.Started = start.Add(-time.Duration(random.IntN(40*24*3600)) * time.Second)
		u.MemberID, u.OwnerID = fmt.Sprint("mem_", random.IntN(5)), fmt.Sprint("mem_", random.IntN(3))
		u.Model = fmt.Sprint("model-", random.IntN(3))
		u.TokensIn, u.TokensOut = random.Int64N(1<<31), random.Int64N(1<<31)
		if random.IntN(4) > 0 {
			u.Code = ""
		}
		records = append(records, u)
	}
	for batch := range slices.Chunk(records, 500) {
		ok(t, db.RecordUsage(t.Context(), batch))
	}
	got := must[[]account.Usage](t)(db.Usage(t.Context()))
	same(t, len(got), len(records))
	if !slices.IsSortedFunc(got, func(a, b account.Usage) int { return b.Started.Compare(a.Started) }) {
		t.Fatal("the usage is out of order")
	}
	sameDays(t, must[[]account.UsageDay](t)(db.UsageDays(t.Context())), records)
}
