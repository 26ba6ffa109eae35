package fleet

import (
	"errors"
	"time"
)

// ErrBehind is returned to a reader of changes when single changes are no longer known,
// so that everything has to be read again.
var ErrBehind = errors.New("too far behind to get each change: read everything again")

// ErrReplaced is returned to a node when another process took its name.
var ErrReplaced = errors.New("another hub process took this node's name")

// Position is how far a reader of changes is: the epoch of the newest change that it
// knows and that change's random nonce. A database that lost changes, by a fail-over or
// a restored backup, can reach the epoch again, but not with the same nonce.
type Position struct {
	Epoch int64
	Nonce string
}

// Update is what a poll of the store returns: what changed since the last one.
type Update struct {
	Position Position // behind the changes
	Changes  []Change
	Nodes    []Node // none where one process has the database to itself
	// ClockAhead is by how much this process's clock is ahead of the database's.
	ClockAhead time.Duration
	// FailedOver says that another database server confirmed this than the one before. It
	// may lack what was committed there last.
	FailedOver bool
}

// Change is one step of the store's epoch: the kind of record that changed, and its id.
// Applying one twice, or late, is harmless: readers read the record again.
type Change struct {
	Epoch int64
	Kind  ChangeKind
	ID    string
}

// ChangeKind is what a Change's ID names.
type ChangeKind string

// The kinds of change.
const (
	MemberChanged  ChangeKind = "member"  // ID: member
	KeyChanged     ChangeKind = "key"     // ID: key
	MachineChanged ChangeKind = "machine" // ID: machine (made, renamed, revoked)
	SharesChanged  ChangeKind = "shares"  // ID: the member shared with
	GroupChanged   ChangeKind = "group"   // ID: group (members, keep-outs, end)

	SessionsChanged ChangeKind = "sessions" // ID: the member whose session ended
)

// The states of a Node. One that has ended in order has no row any more.
const (
	NodeServing  = "serving"
	NodeDraining = "draining" // it ends once its calls have ended, and its machines moved
)

// Node is one of the hub processes that share a database.
type Node struct {
	Name        string // unique; a process that starts replaces the one before it
	Incarnation string // random, of one start
	Region      string
	Address     string // where other nodes reach it
	Pin         string // the SHA-256 of its certificate's public key
	Version     string
	State       string // NodeServing or NodeDraining
	Beat        int64  // grows while the node runs
	Started     time.Time
}
