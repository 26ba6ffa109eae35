package fleet

import (
	"errors"
	"time"
)

// ErrBehind is returned to a reader of changes if individual changes are no longer
// available: the reader must read everything again.
var ErrBehind = errors.New("too far behind to get each change: read everything again")

// ErrReplaced is returned to a node if another process took over its name.
var ErrReplaced = errors.New("another hub process took this node's name")

// Position is how far a reader of changes has read: the epoch of the last change it has
// seen, and the random nonce of that change. A database that lost changes, by a failover
// or a restored backup, can reach the same epoch again, but with a different nonce.
type Position struct {
	Epoch int64
	Nonce string
}

// Update is the result of a poll of the store: what changed since the previous poll.
type Update struct {
	Position Position // after the changes
	Changes  []Change
	Nodes    []Node // empty if one process uses the database alone
	// ClockAhead is the difference between this process's clock and the database's;
	// positive if this one is ahead.
	ClockAhead time.Duration
	// FailedOver reports that the database server is not the one of the previous poll. The
	// new one may lack the last commits of the other.
	FailedOver bool
}

// Change is a step of the store's epoch: the kind of record that changed, and its id.
// Applying a change twice or late is harmless, because readers read the record again.
type Change struct {
	Epoch int64
	Kind  ChangeKind
	ID    string
}

// ChangeKind determines what a Change's ID refers to.
type ChangeKind string

// The kinds of changes.
const (
	MemberChanged  ChangeKind = "member"  // ID: member
	KeyChanged     ChangeKind = "key"     // ID: key
	MachineChanged ChangeKind = "machine" // ID: machine (created, renamed, revoked)
	SharesChanged  ChangeKind = "shares"  // ID: the member who receives the shares
	GroupChanged   ChangeKind = "group"   // ID: group (members, excluded machines, deletion)

	SessionsChanged ChangeKind = "sessions" // ID: the member whose session ended
)

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
