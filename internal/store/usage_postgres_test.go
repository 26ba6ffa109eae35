package store_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// rawPostgres opens the database at url without the store.
func rawPostgres(t *testing.T, url string) *sql.DB {
	t.Helper()
	raw, err := sql.Open("pgx", url)
	ok(t, err)
	t.Cleanup(func() { ok(t, raw.Close()) })
	return raw
}

// partitions returns the names of usage's partitions, in order of day.
func partitions(t *testing.T, raw *sql.DB) []string {
	t.Helper()
	var names string
	ok(t, raw.QueryRowContext(t.Context(), `SELECT coalesce(string_agg(c.relname, ' ' ORDER BY c.relname), '')
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = cast('usage' AS regclass)`).Scan(&names))
	return strings.Fields(names)
}

// callAt returns a record of a call that started at that time.
func callAt(id string, started time.Time) account.Usage {
	u := aCall(id, 1)
	u.Started = started
	return u
}

// TestUsagePartitions checks that a day's records have a partition, created in advance.
// Days older than 90 days are dropped after both clocks agree. Their sums stay, and a
// record that is written again still counts once.
func TestUsagePartitions(t *testing.T) {
	t.Parallel()
	url := storetest.Postgres(t)
	db, raw := open(t, store.Config{URL: url}), rawPostgres(t, url)
	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	name := func(days int) string { return midnight.AddDate(0, 0, days).Format("usage_20060102") }

	last, first := callAt("last", midnight.Add(-time.Millisecond)), callAt("first", midnight)
	old, older := callAt("old", midnight.AddDate(0, 0, -91)), callAt("older", midnight.AddDate(0, 0, -500))
	ok(t, db.RecordUsage(t.Context(), []account.Usage{last, first}))
	want := []string{name(-1), name(0), name(1), name(2), name(3), name(4), name(5), name(6), name(7)}
	same(t, partitions(t, raw), want)
	ok(t, db.RecordUsage(t.Context(), []account.Usage{first, last}))
	same(t, must[[]account.Usage](t)(db.Usage(t.Context())), []account.Usage{first, last})

	ok(t, db.RecordUsage(t.Context(), []account.Usage{old, first, older}))
	ok(t, db.RecordUsage(t.Context(), []account.Usage{old, first, older}))
	same(t, len(must[[]account.Usage](t)(db.Usage(t.Context()))), 4)
	sameDays(t, must[[]account.UsageDay](t)(db.UsageDays(t.Context())), []account.Usage{older, old, last, first})

	again := open(t, store.Config{URL: url}) // a hub that starts looks for old partitions
	next := callAt("next", midnight.Add(time.Hour))
	ok(t, again.RecordUsage(t.Context(), []account.Usage{next}))
	if got := partitions(t, raw); slices.Contains(got, name(-91)) || slices.Contains(got, name(-500)) || !slices.Contains(got, name(-1)) {
		t.Errorf("the partitions are %v", got)
	}
	same(t, must[[]account.Usage](t)(db.Usage(t.Context())), []account.Usage{next, first, last})
	sameDays(t, must[[]account.UsageDay](t)(db.UsageDays(t.Context())), []account.Usage{older, old, last, first, next})
}

// TestUsagePartitionLost checks that records whose partition was lost in a failover are
// not refused as invalid, so that the ledger can write them again successfully.
func TestUsagePartitionLost(t *testing.T) {
	t.Parallel()
	url := storetest.Postgres(t)
	db, raw := open(t, store.Config{URL: url}), rawPostgres(t, url)
	today := callAt("today", time.Now().UTC().Truncate(time.Millisecond))
	ok(t, db.RecordUsage(t.Context(), []account.Usage{today}))
	ok(t, assert.Err(raw.ExecContext(t.Context(), "DROP TABLE "+strings.Join(partitions(t, raw), ", "))))
	if err := db.RecordUsage(t.Context(), []account.Usage{today}); err == nil || errors.Is(err, store.ErrInvalid) {
		t.Errorf("the error is %v, want one that leads to another try", err)
	}
	ok(t, db.RecordUsage(t.Context(), []account.Usage{today}))
	same(t, must[[]account.Usage](t)(db.Usage(t.Context())), []account.Usage{today})
}

// TestUsageBesideReader checks that a backup that reads the table for long delays neither
// records nor the partitions of new days, but only the drop of old ones.
func TestUsageBesideReader(t *testing.T) {
	t.Parallel()
	url := storetest.Postgres(t)
	db, raw := open(t, store.Config{URL: url}), rawPostgres(t, url)
	now := time.Now().UTC()
	ok(t, db.RecordUsage(t.Context(), []account.Usage{callAt("old", now.AddDate(0, 0, -100))}))
	backup, err := raw.BeginTx(t.Context(), nil)
	ok(t, err)
	defer func() { _ = backup.Rollback() }()
	ok(t, assert.Err(backup.ExecContext(t.Context(), "SELECT count(*) FROM usage")))
	for day := range 10 {
		ok(t, db.RecordUsage(t.Context(), []account.Usage{callAt(fmt.Sprint("call-", day), now.AddDate(0, 0, day))}))
	}
	same(t, len(must[[]account.Usage](t)(db.Usage(t.Context()))), 11)
	ok(t, backup.Rollback())
	again := open(t, store.Config{URL: url})
	ok(t, again.RecordUsage(t.Context(), []account.Usage{callAt("more", now)}))
	same(t, len(must[[]account.Usage](t)(db.Usage(t.Context()))), 11)
}

// TestUsageIsBounded checks that a server that does not respond does not block the writer
// of records forever.
func TestUsageIsBounded(t *testing.T) {
	t.Parallel()
	url := storetest.Postgres(t)
	db, raw := open(t, store.Config{URL: url}), rawPostgres(t, url)
	record := []account.Usage{callAt("one", time.Now())}
	locked, err := raw.BeginTx(t.Context(), nil)
	ok(t, err)
	defer func() { _ = locked.Rollback() }()
	ok(t, assert.Err(locked.ExecContext(t.Context(), "LOCK TABLE usage IN ACCESS EXCLUSIVE MODE")))
	db.SetWithin(100 * time.Millisecond)
	if err := db.RecordUsage(t.Context(), record); err == nil {
		t.Error("records were written to a locked table")
	}
	ok(t, locked.Rollback())
	db.SetWithin(time.Minute)
	ok(t, db.RecordUsage(t.Context(), record))
	same(t, len(must[[]account.Usage](t)(db.Usage(t.Context()))), 1)
}
