package fleet

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
