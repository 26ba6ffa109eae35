package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// On PostgreSQL the table usage has a partition for each day (UTC), so that one DROP
// TABLE deletes the records of a day (docs/decisions/0009-usage-by-day.md).
const (
	// usageLife is how long records are kept. The daily sums are kept forever.
	usageLife = 90 * 24 * time.Hour
	// daysAhead is the number of days after the newest record that have a partition.
	daysAhead = 7
	// dropTimeout is how long dropping a partition waits for a lock on usage. Other
	// statements queue behind that wait, so a backup that reads the table delays the
	// drop, but not the records.
	dropTimeout = "SET LOCAL lock_timeout = '1s'"
)

const dayMillis = int64(24 * time.Hour / time.Millisecond)

// usagePartitions writes usage records to PostgreSQL.
type usagePartitions struct {
	pool *sql.DB

	mu    sync.Mutex
	known map[int64]bool // days that have a partition
}

// recordUsage adds records, and the new ones to the sums of their days, in one statement.
// All rows are sorted, so that two hubs that write the same rows do not deadlock.
const recordUsage = `
WITH record AS (
    INSERT INTO usage (call_id, attempt, started, member_id, key_id, machine_id, owner_id, model, endpoint, stream,
        status, code, waited_us, first_byte_us, duration_us, tokens_in, tokens_out, tokens_how, group_id)
    SELECT * FROM unnest(cast($1 AS text[]), cast($2 AS bigint[]), cast($3 AS bigint[]), cast($4 AS text[]), cast($5 AS text[]),
        cast($6 AS text[]), cast($7 AS text[]), cast($8 AS text[]), cast($9 AS text[]), cast($10 AS boolean[]),
        cast($11 AS bigint[]), cast($12 AS text[]), cast($13 AS bigint[]), cast($14 AS bigint[]), cast($15 AS bigint[]),
        cast($16 AS bigint[]), cast($17 AS bigint[]), cast($18 AS text[]), cast($19 AS text[]))
    ON CONFLICT (call_id, attempt, started) DO NOTHING
    RETURNING *, started - started % 86400000 AS day
), by_hour AS (
    INSERT INTO usage_hours (member_id, hour, owner_id, machine_id, key_id, model, code, first_ms, calls, waited_us, tokens_in, tokens_out)
    SELECT member_id, started - started % 3600000, owner_id, machine_id, key_id, model, code, first_ms,
        count(*), sum(waited_us), sum(tokens_in), sum(tokens_out)
    FROM record JOIN unnest(cast($1 AS text[]), cast($2 AS bigint[]), cast($20 AS bigint[])) AS first (call_id, attempt, first_ms) USING (call_id, attempt)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
    ON CONFLICT (member_id, hour, owner_id, machine_id, key_id, model, code, first_ms) DO UPDATE SET
        calls = usage_hours.calls + excluded.calls,
        waited_us = usage_hours.waited_us + excluded.waited_us,
        tokens_in = usage_hours.tokens_in + excluded.tokens_in,
        tokens_out = usage_hours.tokens_out + excluded.tokens_out
), by_group AS (
    INSERT INTO group_days (day, group_id, owner_id, calls)
    SELECT day, group_id, owner_id, count(*) FROM record WHERE group_id <> '' AND owner_id <> ''
    GROUP BY day, group_id, owner_id ORDER BY group_id, owner_id, day
    ON CONFLICT (day, group_id, owner_id) DO UPDATE SET calls = group_days.calls + excluded.calls
)
INSERT INTO usage_days (day, member_id, owner_id, machine_id, model, code, calls, waited_us, duration_us, tokens_in, tokens_out)
SELECT day, member_id, owner_id, machine_id, model, code,
    count(*), sum(waited_us), sum(duration_us), sum(tokens_in), sum(tokens_out)
FROM record GROUP BY member_id, day, owner_id, machine_id, model, code ORDER BY member_id, day, owner_id, machine_id, model, code
ON CONFLICT (member_id, day, owner_id, machine_id, model, code) DO UPDATE SET
    calls = usage_days.calls + excluded.calls,
    waited_us = usage_days.waited_us + excluded.waited_us,
    duration_us = usage_days.duration_us + excluded.duration_us,
    tokens_in = usage_days.tokens_in + excluded.tokens_in,
    tokens_out = usage_days.tokens_out + excluded.tokens_out`

// record writes records that checkUsage accepts, all or none.
func (p *usagePartitions) record(ctx context.Context, records []account.Usage) error {
	if err := p.prepare(ctx, records); err != nil {
		return err
	}
	type usageParams = query.InsertUsageParams
	rows := convert(records, usageRow)
	_, err := p.pool.ExecContext(ctx, recordUsage,
		convert(rows, func(r usageParams) string { return r.CallID }),
		convert(rows, func(r usageParams) int64 { return r.Attempt }),
		convert(rows, func(r usageParams) int64 { return r.Started }),
		convert(rows, func(r usageParams) string { return r.MemberID }),
		convert(rows, func(r usageParams) string { return r.KeyID }),
		convert(rows, func(r usageParams) string { return r.MachineID }),
		convert(rows, func(r usageParams) string { return r.OwnerID }),
		convert(rows, func(r usageParams) string { return r.Model }),
		convert(rows, func(r usageParams) string { return r.Endpoint }),
		convert(rows, func(r usageParams) bool { return r.Stream }),
		convert(rows, func(r usageParams) int64 { return r.Status }),
		convert(rows, func(r usageParams) string { return r.Code }),
		convert(rows, func(r usageParams) int64 { return r.WaitedUs }),
		convert(rows, func(r usageParams) int64 { return r.FirstByteUs }),
		convert(rows, func(r usageParams) int64 { return r.DurationUs }),
		convert(rows, func(r usageParams) int64 { return r.TokensIn }),
		convert(rows, func(r usageParams) int64 { return r.TokensOut }),
		convert(rows, func(r usageParams) string { return r.TokensHow }),
		convert(rows, func(r usageParams) string { return r.GroupID }),
		convert(records, func(u account.Usage) int64 { return u.FirstStep().Milliseconds() }),
	)
	if err != nil { // a failover may have lost a partition
		p.mu.Lock()
		p.known = nil
		p.mu.Unlock()
	}
	return err
}

// prepare creates the partitions for the records' days and for the following days, and
// drops those older than usageLife. Usually all partitions are known already.
func (p *usagePartitions) prepare(ctx context.Context, records []account.Usage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	days := convert(records, func(u account.Usage) int64 { return millis(dayOf(u.Started)) })
	slices.Sort(days)
	days = slices.Compact(days)
	known := func(day int64) bool { return p.known[day] && p.known[day+dayMillis] }
	if !slices.ContainsFunc(days, func(day int64) bool { return !known(day) }) {
		return nil
	}
	oldest, newest := days[0], days[len(days)-1]
	for ahead := range int64(daysAhead) {
		days = append(days, newest+(ahead+1)*dayMillis)
	}
	tx, err := p.pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if err := makePartitions(ctx, tx, days); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	p.known = make(map[int64]bool)
	for _, day := range days {
		p.known[day] = true
	}
	return p.dropOld(ctx, oldest, newest)
}

// makePartitions creates the missing partitions of the days. Statements on usage do not
// wait for it: attaching a table takes a weaker lock than CREATE TABLE PARTITION OF.
func makePartitions(ctx context.Context, tx *sql.Tx, days []int64) error {
	// The lock that attaching takes, so that one hub at a time does this.
	if _, err := tx.ExecContext(ctx, "LOCK TABLE usage IN SHARE UPDATE EXCLUSIVE MODE"); err != nil {
		return err
	}
	names, err := partitions(ctx, tx)
	if err != nil {
		return err
	}
	for _, day := range days {
		name := partitionName(day)
		if slices.Contains(names, name) {
			continue
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`CREATE TABLE %[1]s (LIKE usage INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
ALTER TABLE usage ATTACH PARTITION %[1]s FOR VALUES FROM (%[2]d) TO (%[3]d)`, name, day, day+dayMillis))
		if err != nil {
			return err
		}
	}
	return nil
}

// partitions returns the names of the partitions of usage, the oldest day first.
func partitions(ctx context.Context, tx *sql.Tx) ([]string, error) {
	var names string
	err := tx.QueryRowContext(ctx, `SELECT coalesce(string_agg(c.relname, ' ' ORDER BY c.relname), '')
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = cast('usage' AS regclass)`).Scan(&names)
	return strings.Fields(names), err
}

// partitionName returns the name of a day's partition, such as usage_20261122.
func partitionName(day int64) string { return "usage_" + timeOf(day).Format("20060102") }

// dropOld drops the partitions of days before oldest that are older than usageLife by
// this hub's clock, by the server's, and by the newest record, so that one wrong clock
// deletes nothing. It skips partitions that are being read until the next time.
func (p *usagePartitions) dropOld(ctx context.Context, oldest, newest int64) error {
	tx, err := p.pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	var now int64                        // the server's
	if err := tx.QueryRowContext(ctx, "SELECT cast(extract(epoch FROM now()) * 1000 AS bigint)").Scan(&now); err != nil {
		return err
	}
	names, err := partitions(ctx, tx)
	if err != nil {
		return err
	}
	first := partitionName(min(oldest, min(now, millis(time.Now()), newest)-usageLife.Milliseconds()))
	names = slices.DeleteFunc(names, func(name string) bool { return name >= first })
	if len(names) == 0 {
		return nil
	}
	if _, err = tx.ExecContext(ctx, dropTimeout); err == nil {
		_, err = tx.ExecContext(ctx, "DROP TABLE "+strings.Join(names, ", "))
	}
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "55P03": // lock_not_available
		return nil
	case err != nil:
		return err
	}
	return tx.Commit()
}

// partitionUsage is a migration for PostgreSQL only. It partitions the table usage, which
// is still empty.
func partitionUsage() *goose.Migration {
	m := goose.NewGoMigration(2, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
ALTER TABLE usage RENAME TO usage_before;
ALTER INDEX usage_pkey RENAME TO usage_before_pkey;
CREATE TABLE usage (LIKE usage_before INCLUDING DEFAULTS INCLUDING CONSTRAINTS, PRIMARY KEY (call_id, attempt, started))
    PARTITION BY RANGE (started);
DROP TABLE usage_before`)
		return err
	}}, nil)
	m.Source = "00002_usage_partitions.go"
	return m
}

// usageDaysIn returns the days that have records in usage.
func usageDaysIn(ctx context.Context, tx *sql.Tx) ([]int64, error) {
	rows, err := tx.QueryContext(ctx, "SELECT DISTINCT started - started % $1 FROM usage", dayMillis)
	var days []int64
	var day int64
	err = scan(rows, err, func() { days = append(days, day) }, &day)
	return days, err
}
