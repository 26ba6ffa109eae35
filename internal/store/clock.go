package store

import (
	"context"
	"sync/atomic"
	"time"
)

// clock compares this computer's clock with the database server's.
type clock struct {
	offset atomic.Int64 // nanoseconds that the server's is ahead
}

// clockSlack is how far an offset may be off before it changes. Clocks that are synchronized
// have none.
const clockSlack = 250 * time.Millisecond

// read takes the time of the server that was read between before and after.
func (c *clock) read(before, server, after time.Time) {
	least, most := server.Sub(after.Round(0)), server.Sub(before.Round(0))
	if known := time.Duration(c.offset.Load()); known < least-clockSlack || known > most+clockSlack {
		c.offset.Store(int64((least + most) / 2))
	}
}

// Now returns the time by the clock that rules: on PostgreSQL the server's, as of the last
// beat, so that nodes whose own clocks differ mean the same by a time that is stored; on
// SQLite this computer's. It has no monotonic reading: it cannot be compared with time.Now.
func (db *DB) Now() time.Time { return time.Now().Round(0).Add(-db.clockAhead()) }

// clockAhead returns by how much this computer's clock is ahead of the one that rules.
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
