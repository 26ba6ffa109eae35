package store

import "time"

// SetWithin sets how long a transaction may take.
func (db *DB) SetWithin(d time.Duration) { db.flavor.within = d }
