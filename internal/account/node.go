package account

import "time"

// The states of a Node. A node that shut down regularly has no row.
const (
	NodeServing  = "serving"
	NodeDraining = "draining" // it exits when its calls have ended and its machines have moved
)

// Node is one of the hub processes that share a database.
type Node struct {
	Name        string // unique; a new process replaces the previous one of that name
	Incarnation string // random, chosen at startup
	Region      string
	Address     string // for connections from other nodes
	Pin         string // the SHA-256 of its certificate's public key
	Version     string
	State       string // NodeServing or NodeDraining
	Beat        int64  // increases while the node runs
	Started     time.Time
}

// Position is how far a reader of changes has read: the epoch of the last change it has
// seen, and the random nonce of that change. A database that lost changes, by a failover
// or a restored backup, can reach the same epoch again, but with a different nonce.
type Position struct {
	Epoch int64
	Nonce string
}

// StoreState is what a poll of the store returns besides the changes.
type StoreState struct {
	Position Position // after the changes
	Nodes    []Node   // empty if one process uses the database alone
	// ClockAhead is the difference between this process's clock and the database's;
	// positive if this one is ahead.
	ClockAhead time.Duration
	// FailedOver reports that the database server is not the one of the previous poll. The
	// new one may lack the last commits of the other.
	FailedOver bool
}
