package store

import (
	"database/sql"
	"time"
)

// Pool is the state of the connections to the database. For SQLite they are open files.
type Pool struct {
	Open, InUse, Max int
	// Waits is how often a statement has waited for a free connection, and Waited for how
	// long in total.
	Waits  int64
	Waited time.Duration
}

// Pool returns the current state of all connections.
func (db *DB) Pool() Pool {
	pools := []*sql.DB{db.write}
	if db.read != db.write {
		pools = append(pools, db.read)
	}
	if db.flavor.primary != nil {
		pools = append(pools, db.flavor.primary.beats)
	}
	var p Pool
	for _, pool := range pools {
		s := pool.Stats()
		p.Open, p.InUse, p.Max = p.Open+s.OpenConnections, p.InUse+s.InUse, p.Max+s.MaxOpenConnections
		p.Waits, p.Waited = p.Waits+s.WaitCount, p.Waited+s.WaitDuration
	}
	return p
}
