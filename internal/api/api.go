// Package api is the management API: what a member does with an account beside
// making calls (keys, sharing, groups, machines, usage), what the hub's operator
// does, and how a machine with a login token signs in. One table of routes
// (routes.go) says who may ask for what, with which types; routing, authorization,
// the OpenAPI description and the commands' typed requests all come from it. The
// site's pages do the same routes by their Go types.
//
// Every object is looked up together with its owner: what belongs to another
// member cannot be distinguished from what does not exist.
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

// Config is what the API works with. All of it is needed, except Regions and LinkMade.
type Config struct {
	DB *store.DB
	// Region is the hub's, for the secrets that are minted here, and Regions has the
	// addresses of the other regions, of which keys are minted here, too.
	Region  string
	Regions map[string]*url.URL
	// Base is the site's address without a slash at the end, for sign-in links.
	Base string
	// Identify returns the holder of a secret. Its errors are faults.
	Identify func(ctx context.Context, secret string) (Caller, error)
	// Snapshot returns the machines that are connected now, and who reaches them.
	Snapshot func() *fleet.Snapshot
	// Models returns the models that the caller reaches now.
	Models func(ctx context.Context, caller Caller) ([]Model, error)
	// Running returns every call that a machine of this hub runs now.
	Running func() []Use
	// Waiting returns every call of this hub that waits for a machine; none has one.
	Waiting func() []Use
	// Queued returns how many waiting calls the machine could take. Of very many,
	// at least that many wait.
	Queued func(*fleet.Machine) int
	// Control sends a change to a connected machine. The error is ErrNotConnected,
	// or says why the machine refused.
	Control func(ctx context.Context, machine fleet.MachineID, change Control) error
	// Ready returns why this hub refuses every call now; nil: it does not.
	Ready func(now time.Time) error
	// Nodes returns the hub's nodes, as this one sees them, and Home the name of that at
	// which the machine's tunnel ends; empty if it has none.
	Nodes func() []Node
	Home  func(machine fleet.MachineID) string
	// DrainNode has a node end once its calls have ended and its machines moved.
	DrainNode func(ctx context.Context, name string) error
	// Reload reads the operator's configuration again and applies it.
	Reload func(context.Context) (Reloaded, error)
	// Changed is called after each write, so that it takes effect now: what is read from
	// the Snapshot after it has the change.
	Changed func(context.Context)
	// Admit takes a token of the caller's rate, or returns the fault that names the
	// time of the next one. The API and the inference routes share one rate.
	Admit func(Caller) error
	// Guess counts the look-up of a secret for the client that sent it, or returns the
	// fault of one that sent too many unknown ones. known is called for one that is known.
	// Nil limits nothing.
	Guess func(context.Context) (known func(), err error)
	// Miss returns f, the fault of a model that may be out of reach, or another
	// fault when the caller had too many of those.
	Miss func(caller Caller, model fleet.ModelID, f *fault.Fault) *fault.Fault
	// Confirmed reports whether the facts of who may use which machine are current.
	Confirmed func(now time.Time) bool
	// Trace returns the trace of a past call that concerns the member, or
	// account.ErrNotFound.
	Trace func(ctx context.Context, callID, memberID string) (account.Trace, error)
	// Flush writes the records that are still in memory to the database, and Open
	// returns those of the calls that run.
	Flush func(context.Context) error
	Open  func() []account.Usage
	// LinkMade notifies a member by e-mail of a new link that signs in; nil: it does not.
	LinkMade func(ctx context.Context, memberID string)
	Log      *slog.Logger
}

// ErrNotConnected is Config.Control's error for a machine without a live tunnel.
var ErrNotConnected = errors.New("the machine is not connected")

// Caller is the member who asks: the holder of the API key or the machine
// credential that was sent, or of the session of a page.
type Caller struct {
	Member  fleet.MemberID
	Name    string
	KeyID   string          // empty: a machine credential
	Narrow  fleet.Narrow    // of the key
	Machine fleet.MachineID // whose credential was sent, else empty
	// Inference says that the key is for inference and its listing alone.
	Inference bool
}

// id is the caller's member id, as the store knows it.
func (c Caller) id() string { return string(c.Member) }

// API serves the routes of the table. Make it with New.
type API struct {
	Config
	// Passwords hashes and checks members' passwords.
	Passwords Passwords
	public    Mux // the routes of members and machines
	operator  Mux // the routes of the operator's socket
}

// New makes the API.
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

// NotFound and Taken turn the store's expected refusals into words for the
// caller; other errors pass. The store refuses names that nothing can have with
// account.ErrInvalid.
func NotFound(err error, format string, args ...any) error {
	if isNotFound(err) {
		return fault.New(fault.NotFound, format, args...).Because(err)
	}
	return err
}

// looksTaken is for a name that could be taken for another member's or group's.
var looksTaken = badName("the name looks like one that is taken, or differs from it in capitals alone: choose another")

// Taken is NotFound for account.ErrExists, with a message of its own for a name that
// looks like another.
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

// memberNamed returns the enabled member of that name, which the request's
// member param gave.
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
