// Package api is the management API. Members use it to manage their accounts (keys,
// sharing, groups, machines, usage), the operator to manage the hub, and machines to sign
// in with a login token. A single table (routes.go) lists the routes, who may use them,
// and the types of requests and answers. Routing, authorization, the OpenAPI description
// and the commands' typed requests are derived from it. The site's pages call the same
// routes through their Go types.
//
// Every object is looked up together with its owner, so that another member's object
// looks the same as one that does not exist.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// Config holds the dependencies of the API. All fields are required except Regions and
// LinkMade.
type Config struct {
	DB *store.DB
	// Region is this hub's region, used in new secrets. Regions are the addresses of the
	// other regions; keys for those can be created here, too.
	Region  string
	Regions map[string]*url.URL
	// Base is the site's address without a trailing slash, for sign-in links.
	Base string
	// Identify returns the caller for a secret. Its errors are faults.
	Identify func(ctx context.Context, secret string) (fleet.Caller, error)
	// Snapshot returns the connected machines and who can reach them.
	Snapshot func() *fleet.Snapshot
	// Models returns the models that the caller can reach now.
	Models func(ctx context.Context, caller fleet.Caller) ([]Model, error)
	// Running returns the calls that are running on this hub's machines.
	Running func() []fleet.ActiveCall
	// Waiting returns this hub's calls that are waiting for a machine.
	Waiting func() []fleet.ActiveCall
	// Queued returns how many waiting calls the machine could serve. If there are very
	// many it may return a lower number.
	Queued func(*fleet.Machine) int
	// KeyLoad returns the count of a key's calls of the day, or nil if this hub has none. The
	// hub counts the calls of keys with a limit.
	KeyLoad func(key string) *fleet.LimitLoad
	// Control sends a change to a connected machine. The error is fleet.ErrNotConnected or
	// the machine's reason for refusing the change.
	Control func(ctx context.Context, machine fleet.MachineID, change fleet.Control) error
	// Seal returns what others need to seal calls for a connected machine.
	Seal func(ctx context.Context, machine fleet.MachineID) (fleet.Seal, error)
	// Files has a connected machine carry out an act on its model files. The error is
	// fleet.ErrNotConnected, or as tunnel.SendFileAct has it.
	Files func(ctx context.Context, machine fleet.MachineID, act fleet.FileAct) (fleet.ModelFiles, error)
	// Ready returns why this hub currently refuses all calls, or nil.
	Ready func(now time.Time) error
	// Nodes returns the hub's nodes as seen by this one. Home returns the name of the node
	// with the machine's tunnel, or "".
	Nodes func() []Node
	Home  func(machine fleet.MachineID) string
	// DrainNode makes a node exit once its calls have ended and its machines have moved.
	DrainNode func(ctx context.Context, name string) error
	// Reload reads the operator's configuration again and applies it.
	Reload func(context.Context) (Reloaded, error)
	// Changed is called after each write to make it effective: snapshots read afterwards
	// include the change.
	Changed func(context.Context)
	// Admit takes a token from the caller's rate limit, or returns a fault with the time
	// of the next token. The API and the inference routes share one limit.
	Admit func(fleet.Caller) error
	// Guess counts the look-up of a secret for the client that sent it, or returns a fault
	// if the client sent too many unknown ones. The caller calls known if the secret is
	// known. If Guess is nil there is no limit.
	Guess func(context.Context) (known func(), err error)
	// Miss returns f, the fault for a model that may be out of reach, or a different fault
	// if the caller has caused too many of those.
	Miss func(caller fleet.Caller, model fleet.ModelID, f *fault.Fault) *fault.Fault
	// Confirmed reports whether the data about who may use which machine is current.
	Confirmed func(now time.Time) bool
	// Trace returns the trace of a past call for the member, or account.ErrNotFound.
	Trace func(ctx context.Context, callID, memberID string) (account.Trace, error)
	// Flush writes the records that are still in memory to the database. Open returns the
	// records of running calls.
	Flush func(context.Context) error
	Open  func() []account.Usage
	// LinkMade notifies a member by e-mail of a new sign-in link; nil: no notification.
	LinkMade func(ctx context.Context, memberID string)
	Log      *slog.Logger
}

// API serves the routes of the table. Create it with New.
type API struct {
	Config
	// Passwords hashes and checks members' passwords.
	Passwords Passwords
	public    Mux // the routes of members and machines
	operator  Mux // the routes of the operator's socket
}

// New returns an API.
func New(c Config) *API {
	a := &API{Config: c, Passwords: newPasswords()}
	for _, l := range table {
		mux := &a.public
		if l.may == operators {
			mux = &a.operator
		}
		mux.Handle(l.method, l.path, a.handler(l))
	}
	return a
}

// NotFound translates the store's expected errors into messages for the caller. It
// returns other errors unchanged. The store rejects names that no object can have with
// account.ErrInvalid.
func NotFound(err error, format string, args ...any) error {
	if isNotFound(err) {
		return fault.New(fault.NotFound, format, args...).Because(err)
	}
	return err
}

// looksTaken is the error for a name that could be mistaken for another member's or
// group's.
var looksTaken = badName("the name looks like one that is taken, or differs from it in capitals alone: choose another")

// Taken is NotFound for account.ErrExists, with a special message for a name that looks
// like another.
func Taken(err error, format string, args ...any) error {
	if errors.Is(err, account.ErrLooksTaken) {
		return looksTaken.Because(err)
	}
	if errors.Is(err, account.ErrExists) {
		return fault.New(fault.InvalidRequest, format, args...).Because(err)
	}
	return err
}

func isNotFound(err error) bool {
	return errors.Is(err, account.ErrNotFound) || errors.Is(err, account.ErrInvalid)
}

// memberNamed returns the enabled member with the given name. param is the request
// parameter that contained the name.
func (a *API) memberNamed(ctx context.Context, param, name string) (account.Member, error) {
	m, err := a.DB.MemberByName(ctx, name)
	if err == nil && m.Disabled {
		err = account.ErrNotFound
	}
	if isNotFound(err) {
		return m, fault.New(fault.NotFound, "no member is named %q: names are exact, in upper and lower case too", name).WithParam(param).Because(err)
	}
	return m, err
}
