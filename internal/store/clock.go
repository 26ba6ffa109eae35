package store

import (
	"context"
	"sync/atomic"
	"time"
)

// clock compares this computer's clock with the database server's.
type clock struct {
	offset atomic.Int64 // how many nanoseconds the server's clock is ahead
}

// clockSlack is the change of the offset that is ignored. Synchronized clocks differ by
// less.
const clockSlack = 250 * time.Millisecond

// read updates the offset from a time of the server that was read between before and
// after.
func (c *clock) read(before, server, after time.Time) {
	least, most := server.Sub(after.Round(0)), server.Sub(before.Round(0))
	if known := time.Duration(c.offset.Load()); known < least-clockSlack || known > most+clockSlack {
		c.offset.Store(int64((least + most) / 2))
	}
}

// Now returns the time of the reference clock. On PostgreSQL that is the server's clock,
// as of the last beat, so that stored times mean the same to all nodes even if their own
// clocks differ. On SQLite it is this computer's clock. The time has no monotonic
// reading, so it must not be compared with time.Now.
func (db *DB) Now() time.Time { return time.Now().Round(0).Add(-db.clockAhead()) }

// clockAhead returns how far this computer's clock is ahead of the reference clock.
func (db *DB) clockAhead() time.Duration {
	if db.flavor.primary == nil {
		return 0
	}
	return -time.Duration(db.flavor.primary.clock.offset.Load())
}

// readClock reads the server's clock on the connection for beats.
func (p *primary) readClock(ctx context.Context) error {
	var micros int64
	before := time.Now()
	err := p.beats.QueryRowContext(ctx, "SELECT cast(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)").Scan(&micros)
	if err == nil {
		p.clock.read(before, time.UnixMicro(micros), time.Now())
	}
	return err
}
