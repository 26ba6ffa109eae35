// Package account defines the records that the store keeps about members: accounts, API
// keys, machines, login tokens, shares, groups and usage, and about the hub nodes. They
// are plain types; times are UTC with millisecond precision. Callers of the store make the
// ids with NewID.
package account

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// NewID returns a time-ordered id with a prefix for what it names:
// "mem_", "key_", "mch_", "shr_", "grp_", "tok_", "inv_".
func NewID(prefix string) string { return prefix + uuid.Must(uuid.NewV7()).String() }

// The errors of a store, by errors.Is; any other is a failure of the database. They are
// declared here because the hub distinguishes them and does not import SQL.
var (
	// ErrNotFound: there is no active record with this name or id. The hash of a key or
	// machine that was revoked, or whose member is disabled, is not found either.
	ErrNotFound = errors.New("not found")
	// ErrExists: the id, name, secret or pair already exists.
	ErrExists = errors.New("exists already")
	// ErrLooksTaken: another name looks the same as this one.
	ErrLooksTaken = fmt.Errorf("%w: a name that looks the same", ErrExists)
	// ErrInvalid: a field is empty, negative, too long, or not text.
	ErrInvalid = errors.New("invalid")
	// ErrLastAdmin: the change would leave an org without an admin.
	ErrLastAdmin = errors.New("the last admin of an org")
	// ErrLastWay: the change would leave a member without a way to sign in.
	ErrLastWay = errors.New("the last way to sign in")
	// ErrOwn: members cannot accept their own invites.
	ErrOwn = errors.New("one's own")
	// ErrTooMany: a limit is reached.
	ErrTooMany = errors.New("too many")
	// ErrUsed: the member has already accepted this invite.
	ErrUsed = errors.New("used already")
	// ErrBehind: the changes after a Position are not available one by one, so the reader
	// must read everything again.
	ErrBehind = errors.New("too far behind to get each change: read everything again")
	// ErrReplaced: another process took over this node's name.
	ErrReplaced = errors.New("another hub process took this node's name")
)

// Member is a person with an account on the hub.
type Member struct {
	ID       string
	Name     string // unique, case-sensitive, as shown to other members
	Operator bool
	Disabled bool // the member's keys and machines are refused
	Created  time.Time
}

// The states of a member.
const (
	MemberActive   = "active"
	MemberDisabled = "disabled"
)

// MemberWords is the number of words of a MemberQuery that count.
const MemberWords = 4

// MemberQuery selects a page of the members of a hub.
type MemberQuery struct {
	Words []string // each is a part of the name; the case of ASCII characters is ignored
	State string   // MemberActive or MemberDisabled; empty: any
	// Sort is "name", "state", "active", "machines" or "created", after a "-" in reverse.
	// Members that it leaves equal, and with any other value all, are newest first.
	Sort       string
	Skip, Most int // members before the page, and on it
}

// MemberActivity is a member of the hub, with what the member last did.
type MemberActivity struct {
	Member
	Machines int       // that are not revoked
	Active   time.Time // when the member last used the site, a key or, to the hour and for 13 weeks, a model; zero: never
}

// Reach is the set of machines that a key can use (spec/routing.md#narrowed-key).
type Reach string

// The values of Reach.
const (
	ReachAll    Reach = "all"    // the member's own machines, shared ones and those of groups
	ReachShared Reach = "shared" // own and shared machines
	ReachOwn    Reach = "own"    // own machines only
)

// Key is an API key without its secret: the store keeps only a hash.
type Key struct {
	ID       string
	MemberID string
	Name     string
	Region   string
	Reach    Reach
	Manage   bool     // can manage its member's account, in addition to inference
	Hash     [32]byte // SHA-256 of the secret
	LastFour string
	Created  time.Time
	LastUsed time.Time // zero: never
	Revoked  time.Time // zero: active
	Expires  time.Time // when it stops working; zero: never
	PerDay   int       // calls per UTC day; 0: no limit
}

// Expired reports whether the key has expired at time now.
func (k *Key) Expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// Machine is a member's computer that runs the daemon.
type Machine struct {
	ID         string
	OwnerID    string
	OwnerName  string // not written: it is the name of the member
	Name       string // unique among its owner's machines
	Region     string
	Hash       [32]byte // SHA-256 of its credential
	LastFour   string
	Created    time.Time
	LastSeen   time.Time // zero: never connected
	Offers     []byte    // its last advertisement, as JSON; nil: never connected
	Generation int64     // number of its newest tunnel; each new tunnel increments it
	Revoked    time.Time // zero: active
	KeptOut    bool      // its owner excludes it from every group
	ShowsClass bool      // its owner lets others see the sizes of its GPUs and memory
}

// LoginToken lets `kith login --token` register one machine. It can be used once.
type LoginToken struct {
	ID       string
	MemberID string
	Name     string // the machine's name
	Hash     [32]byte
	Created  time.Time
	Expires  time.Time
	Used     time.Time // zero: not yet
}

// Share grants one member the use of the owner's machines.
type Share struct {
	ID       string
	OwnerID  string
	MemberID string
	Limits
	Created time.Time
}

// Limits restrict a share, or a member's machines in a group (spec/routing.md#limits).
// The zero value restricts nothing.
type Limits struct {
	Models     []string // empty: every model
	Hours      string   // in the format of `kith hours set`; empty: the machine's own
	Concurrent int      // 0: no limit
	PerDay     int      // requests per day; 0: no limit
}

// LimitChange is an update of Limits. A nil field keeps the current limit and a zero
// value removes it.
type LimitChange struct {
	Models     *[]string
	Hours      *string
	Concurrent *int
	PerDay     *int
}

// Of returns l with the change applied.
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
	Disabled      bool // at least one of the two members is disabled, so that the share is not used
}

// Invite creates a share of its owner's machines with each member who accepts its code.
type Invite struct {
	ID       string
	OwnerID  string
	Hash     [32]byte // SHA-256 of the code
	LastFour string
	Uses     int // how many members may accept it
	Used     int // how many have accepted it
	Limits       // of the shares that it creates
	Created  time.Time
	Expires  time.Time
	Revoked  time.Time // zero: active
}

// GroupKind determines who may join a group.
type GroupKind string

// The kinds of groups (spec/routing.md#group).
const (
	GroupOrg  GroupKind = "org"
	GroupOpen GroupKind = "open"
)

// Group is a named set of members who can use each other's machines.
type Group struct {
	ID      string
	Name    string // unique
	Kind    GroupKind
	Created time.Time
	Members []GroupMember
	KeptOut []string // ids of the machines that their owners exclude from this group
	// Pinned and Excluded are the ids of the machines that the group's admins pinned or
	// excluded.
	Pinned, Excluded []string
	// Invited are the invitations to create together with a new group. They are never read
	// back.
	Invited []GroupInvitation
}

// MachineRule is the decision of a group's admins about a member's machine.
type MachineRule string

// The rules for a machine (spec/routing.md#standing).
const (
	NoRule          MachineRule = "none"
	MachinePinned   MachineRule = "pinned"   // treated as established
	MachineExcluded MachineRule = "excluded" // not usable through the group
)

// GroupMachine is the name of a machine with its rule.
type GroupMachine struct {
	Owner, Machine string
	Rule           MachineRule
}

// GroupMember is a member of a group.
type GroupMember struct {
	MemberID string
	Admin    bool
}

// SeenGroup is a group as shown to one member: an open group, one that the member belongs
// to, or one that the member is invited to.
type SeenGroup struct {
	ID      string
	Name    string
	Kind    GroupKind
	Created time.Time
	In      bool // the member belongs to it
	Admin   bool // the member is one of its admins
	Size    int  // number of members
	// Invited is the member's own pending invitation; nil if there is none.
	Invited *GroupInvitation
	// Invitations are the pending invitations of other members. Only admins see them.
	Invitations []GroupInvitation
	// The fields below are empty unless the member belongs to the group.
	Members []Fellow
	KeptOut []Named // the member's own machines that are excluded from it
	// Machines are the machines that the group's admins pinned or excluded.
	Machines []GroupMachine
	Limits   Limits // the member's own limits for this group
}

// Fellow is a member of a group, by name.
type Fellow struct {
	Name  string
	Admin bool
}

// Named is an id with its name.
type Named struct{ ID, Name string }

// Usage is the record of one call. It holds no content. The cbor numbers identify the
// fields in the ledger's journal: the number of a field never changes, and a new field
// takes the next free one.
type Usage struct {
	CallID   string    `cbor:"1,keyasint"` // correlation id
	Attempt  int       `cbor:"2,keyasint"` // the first is 1; unique with CallID
	Started  time.Time `cbor:"3,keyasint"`
	MemberID string    `cbor:"4,keyasint,omitempty"`
	// KeyID is the id of the key, "site of " and the member's id for a call of the site, or a
	// MachineKey; empty: the call used a machine credential, before these were recorded.
	KeyID     string        `cbor:"5,keyasint,omitempty"`
	MachineID string        `cbor:"6,keyasint,omitempty"` // empty: refused before a machine accepted it
	OwnerID   string        `cbor:"7,keyasint,omitempty"` // owner of the machine at that time
	GroupID   string        `cbor:"8,keyasint,omitempty"` // the group that made the machine reachable; empty: none
	Model     string        `cbor:"9,keyasint,omitempty"`
	Endpoint  string        `cbor:"10,keyasint,omitempty"` // its path
	Stream    bool          `cbor:"11,keyasint,omitempty"`
	Status    int           `cbor:"12,keyasint,omitempty"`
	Code      string        `cbor:"13,keyasint,omitempty"` // empty: completely served; else Interrupted, Cancelled or a fault's code
	Waited    time.Duration `cbor:"14,keyasint,omitempty"` // time in the queue
	FirstByte time.Duration `cbor:"15,keyasint,omitempty"` // from arrival to the first byte of the answer; 0: no answer
	Duration  time.Duration `cbor:"16,keyasint,omitempty"`
	TokensIn  int64         `cbor:"17,keyasint,omitempty"`
	TokensOut int64         `cbor:"18,keyasint,omitempty"`
	TokensHow TokensHow     `cbor:"19,keyasint,omitempty"`
	// FirstToken is the time from arrival to the first content of a streamed answer; 0 if
	// there was none. The store keeps it only in the hourly sums.
	FirstToken time.Duration `cbor:"20,keyasint,omitempty"`
}

// machineKey is the prefix of a MachineKey.
const machineKey = "machine "

// MachineKey returns the KeyID of calls with a machine credential. program is the command
// of kith that made them at the machine's daemon, or empty for other programs.
func MachineKey(machineID, program string) string {
	return strings.TrimSuffix(machineKey+machineID+" "+program, " ")
}

// ParseMachineKey returns the machine and the program of a MachineKey. It returns "" for
// any other KeyID.
func ParseMachineKey(keyID string) (machineID, program string) {
	of, ok := strings.CutPrefix(keyID, machineKey)
	if !ok {
		return "", ""
	}
	machineID, program, _ = strings.Cut(of, " ")
	return machineID, program
}

// Interrupted is the Code of a call that a hub had sent to a machine when the hub died.
// How much of the answer the caller received is unknown: Status is 0 and the token counts
// are unknown.
const Interrupted = "interrupted"

// Cancelled is the Code of a call whose caller left, or read too slowly, before its end.
const Cancelled = "cancelled"

// Unserved reports whether a call that ended with the code failed. One that its caller
// stopped did not.
func Unserved(code string) bool { return code != "" && code != Cancelled }

// TokensHow is the source of the token counts.
type TokensHow string

// The sources of token counts.
const (
	TokensNone     TokensHow = ""
	TokensReported TokensHow = "reported" // by the engine
	TokensCounted  TokensHow = "counted"  // by the hub, from the stream's events
	TokensUnknown  TokensHow = "unknown"  // see Interrupted
)

// UsageHoursLife is how long the hourly sums are kept.
const UsageHoursLife = 13 * 7 * 24 * time.Hour

// UsageHour is the usage of one hour, grouped by caller, owner, machine, key, model, code
// and range of the time to the first token.
type UsageHour struct {
	Hour      time.Time // start of the hour, UTC
	MemberID  string
	OwnerID   string
	MachineID string
	KeyID     string
	Model     string
	Code      string // of each of these calls; empty: completely served
	// First is the lower bound, from FirstSteps, of the time to the first token; 0 if the
	// answers were not streamed or not complete.
	First     time.Duration
	Calls     int64
	Waited    time.Duration
	TokensIn  int64
	TokensOut int64
}

// FirstSteps are the lower bounds of the ranges for times to the first token, ascending.
// A time belongs to the last range whose bound it reaches. Above 2 ms each bound is at
// most 1.5 times the previous one.
var FirstSteps = firstSteps()

func firstSteps() []time.Duration {
	steps := []time.Duration{time.Millisecond}
	for step := 2 * time.Millisecond; step < 24*time.Hour; step *= 2 {
		steps = append(steps, step, step+step/2)
	}
	return steps
}

// FirstStep returns the lower bound of the range of u's time to the first token, or 0 if
// there is none or the call was not completely served.
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

// UsageDay is the usage of one day, grouped by caller, owner, machine, model and code.
type UsageDay struct {
	Day       time.Time // midnight UTC
	MemberID  string
	OwnerID   string
	MachineID string
	Model     string
	Code      string // of each of these calls; empty: completely served
	Calls     int64
	Waited    time.Duration
	Duration  time.Duration
	TokensIn  int64
	TokensOut int64
}

// Backup is an attempt to back up the database, started by an operator or by the
// schedule.
type Backup struct {
	ID    string
	At    time.Time
	File  string // on the hub's own computer
	As    string // recorded in place of File if the caller moves the file; empty: File
	Bytes int64
	Fault string // why the backup failed, or what is wrong with it; empty: none
}

// Place is a position in a list that is read page by page, newest first: a page holds the
// entries after it. The zero Place is the start of the list. A Place without an ID is a
// time, and the page holds the entries before that time.
type Place struct {
	At time.Time
	ID string // orders entries of the same millisecond, descending
}
