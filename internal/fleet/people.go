package fleet

// Class says why a caller reaches a machine; the order is the order of
// attempts (decisions 2).
type Class uint8

// The classes of reach, best first.
const (
	Own Class = iota
	Shared
	Grouped
)

// String is the class's word on the wire and in X-Kith-Route.
func (c Class) String() string { return [...]string{"own", "shared", "group"}[c] }

// Change is one step of the store's epoch: what kind of fact moved and whose.
// Applying one twice, or late, is harmless: readers re-read the fact it names.
type Change struct {
	Epoch int64
	Kind  ChangeKind
	ID    string
}

// ChangeKind says what a Change's ID names.
type ChangeKind string

// The kinds of change.
const (
	MemberChanged  ChangeKind = "member"  // ID: member
	KeyChanged     ChangeKind = "key"     // ID: key
	MachineChanged ChangeKind = "machine" // ID: machine (made, renamed, revoked)
	SharesChanged  ChangeKind = "shares"  // ID: the member shared with
	GroupChanged   ChangeKind = "group"   // ID: group (members, keep-outs, end)
)

// Narrow is what a key may reach of its member's reach (decisions 5).
type Narrow uint8

// The narrowings of a key.
const (
	Everything Narrow = iota
	OwnAndShared
	OwnOnly
)
