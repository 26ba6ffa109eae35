// Package account defines the records that the store keeps about members: accounts, API
// keys, machines, login tokens, shares, groups and usage. They are plain types; times
// are UTC with millisecond precision. Callers of the store make the ids with NewID.
package account

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// NewID returns a time-ordered id with a prefix for what it names:
// "mem_", "key_", "mch_", "shr_", "grp_", "tok_", "inv_".
func NewID(prefix string) string { return prefix + uuid.Must(uuid.NewV7()).String() }

// The errors of a store, by errors.Is; any other is a failure of the database. They are
// declared here because the hub distinguishes them and does not import SQL.
var (
	// ErrNotFound: nothing live has this name or id. A key or machine that was revoked,
	// or whose member is disabled, is not found by its hash.
	ErrNotFound = errors.New("not found")
	// ErrExists: the id, the name, the secret or the pair is taken.
	ErrExists = errors.New("exists already")
	// ErrLooksTaken: the name is not taken, but looks like one that is.
	ErrLooksTaken = fmt.Errorf("%w: a name that looks the same", ErrExists)
	// ErrInvalid: a field is empty, negative, too long, or not text.
	ErrInvalid = errors.New("invalid")
	// ErrLastAdmin: an org would be left without an admin.
	ErrLastAdmin = errors.New("the last admin of an org")
	// ErrLastWay: a member would be left without a way to sign in.
	ErrLastWay = errors.New("the last way to sign in")
	// ErrOwn: members cannot accept their own invites.
	ErrOwn = errors.New("one's own")
	// ErrTooMany: the limit is reached.
	ErrTooMany = errors.New("too many")
	// ErrUsed: the member has accepted this invite before.
	ErrUsed = errors.New("used already")
)

// Member is a person with an account on the hub.
type Member struct {
	ID       string
	Name     string // unique, case-sensitive, as shown to other members
	Operator bool
	Disabled bool // the member's keys and machines are refused
	Created  time.Time
}

// Reach is what a key may reach (spec/routing.md#narrowed-key).
type Reach string

// The reaches of a key.
const (
	ReachAll    Reach = "all"    // own, shared and group machines
	ReachShared Reach = "shared" // own and shared
	ReachOwn    Reach = "own"    // own only
)

// Key is an API key without its secret: the store keeps a hash only.
type Key struct {
	ID       string
	MemberID string
	Name     string
	Region   string
	Reach    Reach
	Manage   bool     // it may manage its member's account, beside inference
	Hash     [32]byte // SHA-256 of the secret
	LastFour string
	Created  time.Time
	LastUsed time.Time // zero: never
	Revoked  time.Time // zero: live
	Expires  time.Time // it is refused from then on; zero: never
}

// Expired reports whether the key is past its end.
func (k *Key) Expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// Machine is a member's computer that runs the daemon.
type Machine struct {
	ID         string
	OwnerID    string
	Name       string // unique for its owner
	Region     string
	Hash       [32]byte // SHA-256 of its credential
	LastFour   string
	Created    time.Time
	LastSeen   time.Time // zero: never connected
	Offers     []byte    // its last advertisement, as JSON; nil: never connected
	Generation int64     // of its newest tunnel; grows by one with each
	Revoked    time.Time // zero: live
	KeptOut    bool      // its owner keeps it out of every group
}

// LoginToken lets `kith login --token` make one machine; single use.
type LoginToken struct {
	ID       string
	MemberID string
	Name     string // the machine's name
	Hash     [32]byte
	Created  time.Time
	Expires  time.Time
	Used     time.Time // zero: not yet
}

// Share says that the owner's machines are candidates for one member.
type Share struct {
	ID       string
	OwnerID  string
	MemberID string
	Limits
	Created time.Time
}

// Limits are what an owner may limit a share to, or the calls of a group
// (spec/routing.md#limits). The zero Limits limit nothing.
type Limits struct {
	Models     []string // empty: every model
	Hours      string   // as `kith hours set` writes them; empty: the machine's own
	Concurrent int      // 0: no limit
	PerDay     int      // requests a day; 0: no limit
}

// LimitChange is a change of Limits: a nil field leaves a limit as it is, and a zero
// value ends it.
type LimitChange struct {
	Models     *[]string
	Hours      *string
	Concurrent *int
	PerDay     *int
}

// Of returns the limits l after the change.
func (c LimitChange) Of(l Limits) Limits {
	if c.Models != nil {
		l.Models = *c.Models
	}
	if c.Hours != nil {
		l.Hours = *c.Hours
	}
	if c.Concurrent != nil {
		l.Concurrent = *c.Concurrent
	}
	if c.PerDay != nil {
		l.PerDay = *c.PerDay
	}
	return l
}

// NamedShare is a share with its members' names.
type NamedShare struct {
	Share
	Owner, Member string
	Disabled      bool // one of the two is: no call runs by the share
}

// Invite makes a share of its owner's machines with each member who accepts its code.
type Invite struct {
	ID       string
	OwnerID  string
	Hash     [32]byte // SHA-256 of the code
	LastFour string
	Uses     int // how many may accept it
	Used     int // how many did
	Limits       // of the shares it makes
	Created  time.Time
	Expires  time.Time
	Revoked  time.Time // zero: live
}

// GroupKind says who may join a group.
type GroupKind string

// The kinds of group (spec/routing.md#group).
const (
	GroupOrg  GroupKind = "org"
	GroupOpen GroupKind = "open"
)

// Group is a named set of members whose machines are candidates for each other.
type Group struct {
	ID      string
	Name    string // unique
	Kind    GroupKind
	Created time.Time
	Members []GroupMember
	KeptOut []string // ids of machines that their owners keep out of this group
	// Pinned and Excluded are the ids of machines that its admins decided on.
	Pinned, Excluded []string
	// Invited are the invitations to make with a new group. They are only written.
	Invited []GroupInvitation
}

// MachineRule is what a group's admins decided on a machine of a member.
type MachineRule string

// The rules (spec/routing.md#standing).
const (
	NoRule          MachineRule = "none"
	MachinePinned   MachineRule = "pinned"   // it counts as established
	MachineExcluded MachineRule = "excluded" // the group does not reach it
)

// GroupMachine is a machine with such a rule, by name.
type GroupMachine struct {
	Owner, Machine string
	Rule           MachineRule
}

// GroupMember is one member's place in a group.
type GroupMember struct {
	MemberID string
	Admin    bool
}

// SeenGroup is a group as one member may see it: an open one, one the member is
// in, or one the member is invited to.
type SeenGroup struct {
	ID      string
	Name    string
	Kind    GroupKind
	Created time.Time
	In      bool // the member is in it
	Admin   bool // and one of its admins
	Size    int  // how many members it has
	// Invited is the member's own invitation; nil: none waits for an answer.
	Invited *GroupInvitation
	// Invitations are those of other members that wait for an answer; only an
	// admin sees them.
	Invitations []GroupInvitation
	// What only its members see; empty for others.
	Members []Fellow
	KeptOut []Named // the member's own machines that are kept out of it
	// Machines are those that its admins decided on.
	Machines []GroupMachine
	Limits   Limits // the member's own, for this group
}

// Fellow is one member of a group, by name.
type Fellow struct {
	Name  string
	Admin bool
}

// Named is the id and name of something.
type Named struct{ ID, Name string }

// Usage is the record of one call; it holds nothing of its content. The numbers are those
// of the fields in the ledger's journal: a field keeps its number for ever, and a new one
// takes the next.
type Usage struct {
	CallID    string        `cbor:"1,keyasint"` // correlation id
	Attempt   int           `cbor:"2,keyasint"` // 1 for the first; unique with CallID
	Started   time.Time     `cbor:"3,keyasint"`
	MemberID  string        `cbor:"4,keyasint,omitempty"`
	KeyID     string        `cbor:"5,keyasint,omitempty"` // empty: a machine credential made the call
	MachineID string        `cbor:"6,keyasint,omitempty"` // empty: refused before a machine took it
	OwnerID   string        `cbor:"7,keyasint,omitempty"` // owner of that machine at that time
	GroupID   string        `cbor:"8,keyasint,omitempty"` // the group by which the caller reached it; empty: by none
	Model     string        `cbor:"9,keyasint,omitempty"`
	Endpoint  string        `cbor:"10,keyasint,omitempty"` // its path
	Stream    bool          `cbor:"11,keyasint,omitempty"`
	Status    int           `cbor:"12,keyasint,omitempty"`
	Code      string        `cbor:"13,keyasint,omitempty"` // empty: served completely; Interrupted; or what ended it
	Waited    time.Duration `cbor:"14,keyasint,omitempty"` // in the queue
	FirstByte time.Duration `cbor:"15,keyasint,omitempty"` // from arrival to the first byte of the answer; 0: none
	Duration  time.Duration `cbor:"16,keyasint,omitempty"`
	TokensIn  int64         `cbor:"17,keyasint,omitempty"`
	TokensOut int64         `cbor:"18,keyasint,omitempty"`
	TokensHow TokensHow     `cbor:"19,keyasint,omitempty"`
	// FirstToken is from arrival to the first content of a streamed answer; 0: none. The
	// store keeps it in the hourly sums alone.
	FirstToken time.Duration `cbor:"20,keyasint,omitempty"`
}

// Interrupted is the Code of a call that a hub had sent to a machine when the hub died.
// It is not known how much of the answer the caller got. Its Status is 0, its tokens are
// unknown.
const Interrupted = "interrupted"

// TokensHow says where token counts came from.
type TokensHow string

// Where token counts come from.
const (
	TokensNone     TokensHow = ""
	TokensReported TokensHow = "reported" // by the engine
	TokensCounted  TokensHow = "counted"  // by the hub, from the frames
	TokensUnknown  TokensHow = "unknown"  // see Interrupted
)

// UsageHoursLife is how long the hourly sums are kept.
const UsageHoursLife = 13 * 7 * 24 * time.Hour

// UsageHour is the usage of one hour by caller, owner, machine, key, model, code and the
// step of the time to the first token.
type UsageHour struct {
	Hour      time.Time // its begin, UTC
	MemberID  string
	OwnerID   string
	MachineID string
	KeyID     string
	Model     string
	Code      string // of each of these calls; empty: they were served completely
	// First is the step, of FirstSteps, of the time to the first token; 0: the answers
	// were not streamed, or not served completely.
	First     time.Duration
	Calls     int64
	Waited    time.Duration
	TokensIn  int64
	TokensOut int64
}

// FirstSteps are the steps of times to the first token, ascending: a time counts in the
// last step that it reaches. Each is at most half as long again as the one before, above 2 ms.
var FirstSteps = firstSteps()

func firstSteps() []time.Duration {
	steps := []time.Duration{time.Millisecond}
	for step := 2 * time.Millisecond; step < 24*time.Hour; step *= 2 {
		steps = append(steps, step, step+step/2)
	}
	return steps
}

// FirstStep returns the step of the call's time to the first token; 0 if it has none or
// was not served completely.
func (u *Usage) FirstStep() time.Duration {
	if u.Code != "" || u.FirstToken <= 0 {
		return 0
	}
	i, found := slices.BinarySearch(FirstSteps, u.FirstToken)
	if !found {
		i--
	}
	return FirstSteps[max(i, 0)]
}

// UsageDay is the usage of one day by caller, owner, machine, model and code.
type UsageDay struct {
	Day       time.Time // midnight UTC
	MemberID  string
	OwnerID   string
	MachineID string
	Model     string
	Code      string // of each of these calls; empty: they were served completely
	Calls     int64
	Waited    time.Duration
	Duration  time.Duration
	TokensIn  int64
	TokensOut int64
}

// Backup is one attempt to copy the database, by an operator or by the schedule.
type Backup struct {
	ID    string
	At    time.Time
	File  string // on the hub's own computer
	As    string // recorded instead of File, which the caller moves away; empty: File
	Bytes int64
	Fault string // why there is no such copy, or what was found wrong in it; empty: it is sound
}

// Place is a position in a list that is read a page at a time, the newest first. The
// page holds what follows it. The zero Place is the list's beginning; one without an ID
// is a time, and the page what is older.
type Place struct {
	At time.Time
	ID string // distinguishes entries of the same millisecond, in reverse order
}

// Kept is a machine that may connect, with its owner's name.
type Kept struct {
	Machine   Machine
	OwnerName string
}
