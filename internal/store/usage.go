package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// Limits for one record. Within them no sum over a day's calls overflows.
const (
	maxTokens   = math.MaxInt32
	maxDuration = 24 * time.Hour
)

// RecordUsage writes the records in one transaction. When it returns they are on the
// disk. It ignores records whose call and attempt are stored already, so that a caller
// can retry a batch (spec/api.md#usage).
//
// It skips invalid records (negative or absurd numbers, no call id, invalid text) and
// writes all others. Then the error is ErrInvalid and names the records. After any other
// error nothing is written.
func (db *DB) RecordUsage(ctx context.Context, records []account.Usage) error {
	var refused error
	sound := make([]account.Usage, 0, len(records))
	for _, u := range records {
		if err := checkUsage(u); err != nil {
			refused = errors.Join(refused, fmt.Errorf("cannot record attempt %d of call %q: %w", u.Attempt, u.CallID, err))
			continue
		}
		sound = append(sound, u)
	}
	// Sorted, so that two hubs that write the same rows do not deadlock.
	slices.SortFunc(sound, func(a, b account.Usage) int {
		return cmp.Or(cmp.Compare(a.CallID, b.CallID), cmp.Compare(a.Attempt, b.Attempt))
	})
	sound = slices.CompactFunc(sound, func(a, b account.Usage) bool { return a.CallID == b.CallID && a.Attempt == b.Attempt })
	ctx, cancel := db.bound(ctx)
	defer cancel()
	if err := db.flavor.recordUsage(ctx, sound); err != nil {
		return db.wrap(err, "record %d calls", len(sound))
	}
	return errors.Join(refused, db.pruneHours(ctx, sound))
}

// pruneHours deletes hourly sums that are too old by both this hub's clock and the time
// of the newest record, so that one wrong clock deletes nothing. It does so once an hour.
func (db *DB) pruneHours(ctx context.Context, records []account.Usage) error {
	if len(records) == 0 {
		return nil
	}
	newest := slices.MaxFunc(records, func(a, b account.Usage) int { return a.Started.Compare(b.Started) }).Started
	hour := millis(hourOf(newest))
	if before := db.pruned.Load(); before >= hour || !db.pruned.CompareAndSwap(before, hour) {
		return nil
	}
	last := min(hour, millis(hourOf(time.Now()))) - account.UsageHoursLife.Milliseconds()
	prune := func(q *query.Queries) error { return q.PruneUsageHours(ctx, last) }
	return db.transact(ctx, prune, "delete old sums of usage")
}

func checkUsage(u account.Usage) error {
	switch {
	case u.CallID == "" || u.Attempt < 0 || u.Started.UnixMilli() <= 0:
		return fmt.Errorf("%w: it needs a call id, an attempt and the time it started", ErrInvalid)
	case u.TokensIn < 0 || u.TokensIn > maxTokens || u.TokensOut < 0 || u.TokensOut > maxTokens:
		return fmt.Errorf("%w: %d tokens in, %d out", ErrInvalid, u.TokensIn, u.TokensOut)
	case min(u.Waited, u.FirstByte, u.Duration) < 0 || max(u.Waited, u.FirstByte, u.Duration) > maxDuration:
		return fmt.Errorf("%w: waited %s, first byte after %s, took %s", ErrInvalid, u.Waited, u.FirstByte, u.Duration)
	case len(u.Model) > fleet.MaxModelID:
		return fmt.Errorf("%w: a model id of %d bytes", ErrInvalid, len(u.Model))
	}
	return checkText(u.CallID, u.MemberID, u.KeyID, u.MachineID, u.OwnerID, u.GroupID, u.Model, u.Endpoint, u.Code, string(u.TokensHow))
}

type usageSum struct{ calls, waited, took, in, out int64 }

func (s usageSum) add(u account.Usage) usageSum {
	return usageSum{
		s.calls + 1, s.waited + u.Waited.Microseconds(), s.took + u.Duration.Microseconds(),
		s.in + u.TokensIn, s.out + u.TokensOut,
	}
}

// addUsage writes records that checkUsage accepts, all or none.
func (db *DB) addUsage(ctx context.Context, records []account.Usage) error {
	return db.inTransaction(ctx, func(q *query.Queries) error { return addUsage(db.flavor.batch(ctx), q, records) })
}

// addUsage inserts records and adds the new ones to the sums of their days and hours.
// These are in maps by their rows without the sums. No other process writes to SQLite, so
// that the order of the rows does not matter.
func addUsage(ctx context.Context, q *query.Queries, records []account.Usage) error {
	days, hours := map[query.AddUsageDayParams]usageSum{}, map[query.AddUsageHourParams]usageSum{}
	groups := map[query.GroupDay]int64{}
	for _, u := range records {
		n, err := q.InsertUsage(ctx, usageRow(u))
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		day := query.AddUsageDayParams{
			Day: millis(dayOf(u.Started)), MemberID: u.MemberID, OwnerID: u.OwnerID,
			MachineID: u.MachineID, Model: u.Model, Code: u.Code,
		}
		days[day] = days[day].add(u)
		hour := query.AddUsageHourParams{
			Hour: millis(hourOf(u.Started)), FirstMs: u.FirstStep().Milliseconds(), MemberID: u.MemberID, OwnerID: u.OwnerID,
			MachineID: u.MachineID, KeyID: u.KeyID, Model: u.Model, Code: u.Code,
		}
		hours[hour] = hours[hour].add(u)
		if u.GroupID != "" && u.OwnerID != "" {
			groups[query.GroupDay{Day: day.Day, GroupID: u.GroupID, OwnerID: u.OwnerID}]++
		}
	}
	for row, s := range days {
		row.Calls, row.WaitedUs, row.DurationUs, row.TokensIn, row.TokensOut = s.calls, s.waited, s.took, s.in, s.out
		if err := q.AddUsageDay(ctx, row); err != nil {
			return err
		}
	}
	for row, s := range hours {
		row.Calls, row.WaitedUs, row.TokensIn, row.TokensOut = s.calls, s.waited, s.in, s.out
		if err := q.AddUsageHour(ctx, row); err != nil {
			return err
		}
	}
	for row, calls := range groups {
		if err := q.AddGroupDay(ctx, row.Day, row.GroupID, row.OwnerID, calls); err != nil {
			return err
		}
	}
	return nil
}

// dayOf returns the midnight, UTC, at or before t.
func dayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// hourOf returns the start of the hour of t.
func hourOf(t time.Time) time.Time { return t.UTC().Truncate(time.Hour) }

// Usage returns every record, newest first. Pages do not use it: they read the daily
// sums, whose cost does not depend on the number of calls.
func (db *DB) Usage(ctx context.Context) ([]account.Usage, error) {
	rows, err := db.query.Usage(ctx)
	return convert(rows, usage), db.wrap(err, "read the usage")
}

// UsageDays returns the sums of every day, in order of day.
func (db *DB) UsageDays(ctx context.Context) ([]account.UsageDay, error) {
	rows, err := db.query.UsageDays(ctx)
	return convert(rows, usageDay), db.wrap(err, "read the daily usage")
}

// DaysOfCaller calls take with each daily sum of a member's calls, from the day of since,
// in order of day.
func (db *DB) DaysOfCaller(ctx context.Context, memberID string, since time.Time, take func(account.UsageDay)) error {
	return db.days(ctx, "member_id", memberID, since, take)
}

// DaysOfOwner calls take with each daily sum of the calls on a member's machines, like
// DaysOfCaller.
func (db *DB) DaysOfOwner(ctx context.Context, ownerID string, since time.Time, take func(account.UsageDay)) error {
	return db.days(ctx, "owner_id", ownerID, since, take)
}

// days reads one sum at a time. The owner of a machine in a large group has more sums
// than should be in memory at once, and sqlc's queries would load them all. Grouping them
// in SQL takes SQLite twice the time.
func (db *DB) days(ctx context.Context, side, id string, since time.Time, take func(account.UsageDay)) error {
	if id == "" { // the owner of calls that ran on no machine
		return nil
	}
	rows, err := db.reads().QueryContext(ctx, `
SELECT day, member_id, owner_id, machine_id, model, code, calls, waited_us, duration_us, tokens_in, tokens_out
FROM usage_days WHERE `+side+` = $1 AND day >= $2 ORDER BY day`, id, millis(dayOf(since)))
	var row query.UsageDay
	err = scan(rows, err, func() { take(usageDay(row)) },
		&row.Day, &row.MemberID, &row.OwnerID, &row.MachineID, &row.Model, &row.Code,
		&row.Calls, &row.WaitedUs, &row.DurationUs, &row.TokensIn, &row.TokensOut)
	return db.wrap(err, "read the daily usage")
}

// HoursOfCaller calls take with each hourly sum of a member's calls, from the hour of
// since, in order of hour.
func (db *DB) HoursOfCaller(ctx context.Context, memberID string, since time.Time, take func(account.UsageHour)) error {
	return db.hours(ctx, "member_id", memberID, since, take)
}

// HoursOfOwner calls take with each hourly sum of the calls on a member's machines, like
// HoursOfCaller.
func (db *DB) HoursOfOwner(ctx context.Context, ownerID string, since time.Time, take func(account.UsageHour)) error {
	return db.hours(ctx, "owner_id", ownerID, since, take)
}

func (db *DB) hours(ctx context.Context, side, id string, since time.Time, take func(account.UsageHour)) error {
	if id == "" { // the owner of calls that ran on no machine
		return nil
	}
	rows, err := db.reads().QueryContext(ctx, `
SELECT hour, member_id, owner_id, machine_id, key_id, model, code, first_ms, calls, waited_us, tokens_in, tokens_out
FROM usage_hours WHERE `+side+` = $1 AND hour >= $2 ORDER BY hour`, id, millis(hourOf(since)))
	var h account.UsageHour
	var hour, first, waited int64
	err = scan(rows, err, func() {
		h.Hour, h.First, h.Waited = timeOf(hour), time.Duration(first)*time.Millisecond, micros(waited)
		take(h)
	}, &hour, &h.MemberID, &h.OwnerID, &h.MachineID, &h.KeyID, &h.Model, &h.Code, &first,
		&h.Calls, &waited, &h.TokensIn, &h.TokensOut)
	return db.wrap(err, "read the hourly usage")
}

// DaysOfHub calls take with the sums of all members' calls from the day of since, in
// order of day. They are by day, model, code, and whether the machine belonged to another
// member than the caller. MemberID, MachineID and Duration are empty. OwnerID is empty
// unless it belonged to another member.
func (db *DB) DaysOfHub(ctx context.Context, since time.Time, take func(account.UsageDay)) error {
	rows, err := db.query.DaysOfHub(ctx, millis(dayOf(since)))
	for _, row := range rows {
		take(account.UsageDay{
			Day: timeOf(row.Day), OwnerID: crossing(row.Crossed), Model: row.Model, Code: row.Code,
			Calls: row.Calls, Waited: micros(row.WaitedUs), TokensIn: row.TokensIn, TokensOut: row.TokensOut,
		})
	}
	return db.wrap(err, "add up the daily usage")
}

// HoursOfHub is like DaysOfHub by the hour, and also by the histogram step of the time to
// the first token.
func (db *DB) HoursOfHub(ctx context.Context, since time.Time, take func(account.UsageHour)) error {
	rows, err := db.query.HoursOfHub(ctx, millis(hourOf(since)))
	for _, row := range rows {
		take(account.UsageHour{
			Hour: timeOf(row.Hour), OwnerID: crossing(row.Crossed), Model: row.Model, Code: row.Code, First: time.Duration(row.FirstMs) * time.Millisecond,
			Calls: row.Calls, Waited: micros(row.WaitedUs), TokensIn: row.TokensIn, TokensOut: row.TokensOut,
		})
	}
	return db.wrap(err, "add up the hourly usage")
}

// crossing returns the OwnerID for sums that have no members.
func crossing(crossed bool) string {
	if crossed {
		return "another member"
	}
	return ""
}

// ActiveMembers counts the members who made calls since a time: in total, and in each
// step, by the start of the step. Steps of less than a day are counted by the hour.
func (db *DB) ActiveMembers(ctx context.Context, since time.Time, step time.Duration) (total int64, steps map[time.Time]int64, err error) {
	steps = map[time.Time]int64{}
	from, length := millis(since), step.Milliseconds()
	bySteps, inAll := db.query.MembersByDays, db.query.MembersSinceDay
	if step < 24*time.Hour {
		bySteps, inAll = func(ctx context.Context, from, length int64) ([]query.MembersByDaysRow, error) {
			rows, err := db.query.MembersByHours(ctx, from, length)
			same := func(row query.MembersByHoursRow) query.MembersByDaysRow { return query.MembersByDaysRow(row) }
			return convert(rows, same), err
		}, db.query.MembersSinceHour
	}
	rows, err := bySteps(ctx, from, length)
	for _, row := range rows {
		steps[timeOf(from+row.Step*length)] = row.Members
	}
	if err == nil {
		total, err = inAll(ctx, from)
	}
	return total, steps, db.wrap(err, "count the members who made calls")
}

// CallsOfKeys returns how many calls each key of the member made since the hour of since,
// as far back as hourly sums are kept. Keys without calls are left out.
func (db *DB) CallsOfKeys(ctx context.Context, memberID string, since time.Time) (map[string]int64, error) {
	rows, err := db.query.CallsOfKeys(ctx, memberID, millis(hourOf(since)))
	calls := make(map[string]int64, len(rows))
	for _, row := range rows {
		calls[row.KeyID] = row.Calls
	}
	return calls, db.wrap(err, "count the calls of the keys of member %q", memberID)
}

// DayOfKeys returns how many calls of each key of the member began on the UTC day of now
// and ran on a machine. Keys without such calls are left out, and so are calls that still
// run.
func (db *DB) DayOfKeys(ctx context.Context, memberID string, now time.Time) (map[string]int64, error) {
	rows, err := db.query.DayOfKeys(ctx, memberID, millis(dayOf(now)))
	calls := make(map[string]int64, len(rows))
	for _, row := range rows {
		calls[row.KeyID] = row.Calls
	}
	return calls, db.wrap(err, "count the day's calls of the keys of member %q", memberID)
}

func usageRow(u account.Usage) query.InsertUsageParams {
	return query.InsertUsageParams{
		CallID: u.CallID, Attempt: int64(u.Attempt), Started: millis(u.Started),
		MemberID: u.MemberID, KeyID: u.KeyID, MachineID: u.MachineID, OwnerID: u.OwnerID,
		Model: u.Model, Endpoint: u.Endpoint, Stream: u.Stream, Status: int64(u.Status), Code: u.Code,
		WaitedUs: u.Waited.Microseconds(), FirstByteUs: u.FirstByte.Microseconds(), DurationUs: u.Duration.Microseconds(),
		TokensIn: u.TokensIn, TokensOut: u.TokensOut, TokensHow: string(u.TokensHow),
		GroupID: u.GroupID,
	}
}

func usage(row query.Usage) account.Usage {
	return account.Usage{
		CallID: row.CallID, Attempt: int(row.Attempt), Started: timeOf(row.Started),
		MemberID: row.MemberID, KeyID: row.KeyID, MachineID: row.MachineID, OwnerID: row.OwnerID,
		Model: row.Model, Endpoint: row.Endpoint, Stream: row.Stream, Status: int(row.Status), Code: row.Code,
		Waited: micros(row.WaitedUs), FirstByte: micros(row.FirstByteUs), Duration: micros(row.DurationUs),
		TokensIn: row.TokensIn, TokensOut: row.TokensOut, TokensHow: account.TokensHow(row.TokensHow),
		GroupID: row.GroupID,
	}
}

func usageDay(row query.UsageDay) account.UsageDay {
	return account.UsageDay{
		Day:      timeOf(row.Day),
		MemberID: row.MemberID, OwnerID: row.OwnerID, MachineID: row.MachineID, Model: row.Model, Code: row.Code,
		Calls: row.Calls, Waited: micros(row.WaitedUs), Duration: micros(row.DurationUs),
		TokensIn: row.TokensIn, TokensOut: row.TokensOut,
	}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
