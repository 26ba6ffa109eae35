package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// Caller is who makes a call, as the edge identified it. The zero Caller is
// the owner on the local surface.
type Caller struct {
	Member fleet.MemberID
	Name   string
	// KeyID names the API key; empty for a machine credential and locally.
	KeyID string
	// Narrow is what the key may reach (spec/routing.md#narrowed-key).
	Narrow fleet.Narrow
	// Machine is set for a machine credential: for its calls that machine does
	// not exist, so that a call never comes back to where it began.
	Machine fleet.MachineID
	// Inference says that the key is for inference and its listing alone
	// (spec/api.md#scopes).
	Inference bool
}

// Call is one inference request on its way through a surface. gateway makes
// it; a Backend reads it and changes nothing but Trace.
type Call struct {
	ID       string // the correlation id
	Endpoint fleet.Endpoint
	Model    fleet.ModelID
	Stream   bool
	Choices  int // answers asked for at once; 0: one
	Caller   Caller
	// Body is the request's bytes as received; never logged, never changed. It is
	// the gateway's to close.
	Body *spool.Bytes
	// Header holds the messages dialect's own headers, for a service elsewhere
	// that speaks it and for the hub; nil on the hosted surface and in other dialects.
	Header http.Header
	// Form is the request of a transcription, which has no Body.
	Form    *dialect.Transcription
	Arrived time.Time
	Started time.Time // Arrived by Config.Now, for what is recorded
	// Wait is the caller's own limit on waiting for a machine (Prefer: wait=N);
	// negative when the caller said nothing.
	Wait time.Duration
	// Waiting reports to the caller how many calls are ahead in the queue and how long the wait may still take. A Backend
	// calls it while the call waits, and with a negative ahead once it waits no longer. It never blocks.
	Waiting func(ahead int, left time.Duration)
	// Trace is what the Backend reports, for the log and the usage record.
	Trace Trace

	chat *spool.Bytes // Body as that of a chat call; nil where it is one, or can be none
	// translationErr is why Body cannot be translated to the chat dialect, where a service that
	// speaks its own dialect may take it all the same: on the local surface.
	translationErr error
}

// Request is the endpoint and the body that a machine gets: the call's own bytes, or their translation to chat. A machine
// that speaks messages or responses gets chat like any other, because only chat has every check
// (docs/decisions/0003-machines-are-asked-in-chat.md).
func (c *Call) Request() (fleet.Endpoint, *spool.Bytes) {
	if c.chat == nil {
		return c.Endpoint, c.Body
	}
	return fleet.ChatCompletions, c.chat
}

// ForEngine is the endpoint and the body that an engine of this machine or an upstream gets: with own the call's own
// bytes, else as Request. The error is why there is no translation.
func (c *Call) ForEngine(own bool) (fleet.Endpoint, *spool.Bytes, error) {
	if own {
		return c.Endpoint, c.Body, nil
	}
	endpoint, body := c.Request()
	return endpoint, body, c.translationErr
}

// Attach makes the call the body of a request for the next hop: one of its bodies,
// or the form of a transcription.
func (c *Call) Attach(r *http.Request, body *spool.Bytes) { dialect.SetBody(r, c.Form, body, true) }

// answered releases the request's bodies once no transport sends them any more: the call
// goes to no other machine. Body stays if the answer needs it.
func (c *Call) answered(needed bool) {
	if c.Body != nil && !needed {
		c.Body.Done()
	}
	if c.chat != nil {
		c.chat.Done()
	}
}

// close releases all that the call holds.
func (c *Call) close() {
	for _, body := range []*spool.Bytes{c.Body, c.chat} {
		if body != nil {
			body.Close()
		}
	}
	if c.Form != nil {
		c.Form.Close()
	}
}

// translated reports whether the answer has to be translated back.
func (c *Call) translated(a *Answer) bool {
	return c.chat != nil && !a.Untranslated && a.Endpoint == fleet.ChatCompletions
}

// Trace is what a Backend learned on the way of one call.
type Trace struct {
	Machine  fleet.MachineID
	Owner    fleet.MemberID // of that machine
	Group    fleet.GroupID  // by which the caller reached it; empty: by none
	Route    string         // X-Kith-Route's value; empty: no machine was given the prompt
	Attempts int
	Waited   time.Duration
	// First and Last are the first and the newest decision about the call, Tries
	// the attempts at it, for the record that answers `kith why`.
	First, Last Decision
	Tries       []Attempt
	// Prompt is the length of what engines compute before they answer, in bytes.
	Prompt int
}

// Decision is one decision about a call. The zero Decision is none.
type Decision struct {
	After   time.Duration // since the call arrived
	Row     int           // of spec/routing.md#the-twelve-rows
	Verdict fleet.Verdict
	Tally   fleet.Tally
	// Best and Second are the first two candidates of a decision to try; without a
	// Machine: there was none.
	Best, Second fleet.Candidate
	Prompt       int // tokens of the prompt, as expected
}

// Attempt is one attempt at a call on a machine.
type Attempt struct {
	Machine *fleet.Machine
	Class   fleet.Class
	Circle  fleet.Circle  // of the caller
	After   time.Duration // since the call arrived
	Took    time.Duration // to its outcome
	Outcome string        // in words; nothing of the call's content
	// Prompt says that the machine was given some of the request's body, Began that
	// it began to answer.
	Prompt, Began bool
	Waited        time.Duration // in the queue, before it
	// Running is how many calls ran on the machine when it began to answer, this one
	// included.
	Running int
	// Sent is how many bytes of the prompt were sent to the machine before, and Since those
	// of other prompts that were sent to it after that.
	Sent, Since int
}

// Answer is a served call: the response, and the endpoint whose dialect its
// body speaks. The status is 200. A Body that breaks reports a *fault.Fault
// where the cause is known, and it breaks when the context of Do ends. Closing
// the Body ends the call at the machine and gives its slot back.
type Answer struct {
	*http.Response
	Endpoint fleet.Endpoint
	// Held is the body of a unary call's answer where it was held already, by
	// Call.Hold; the gateway closes it. Body then has nothing more to be read.
	Held *spool.Bytes
	// FromHub says that a hub rendered the body and not a machine: its comments
	// are passed on, count as signs of life, and its error frames keep their codes.
	FromHub bool
	// Untranslated says that it answers the call's own Body and not a translation.
	Untranslated bool
}

// Close ends an answer that is given to no caller.
func (a *Answer) Close() {
	a.Body.Close()
	if a.Held != nil {
		a.Held.Close()
	}
}

// Availability of a model to one caller, best machine first.
type Availability string

// The availabilities of a model in a listing.
const (
	Ready        Availability = "ready"
	Busy         Availability = "busy"
	Paused       Availability = "paused"
	OutsideHours Availability = "outside_hours"
)

// Model is one entry of a model listing.
type Model struct {
	ID            fleet.ModelID
	ContextLength int // 0: unknown
	Capabilities  []string
	Availability  Availability
	Via           fleet.Class
	Owner         string // of the machine that would serve it best; the hub's listing alone has it
	Chat          bool   // that machine serves it in chat
	Machines      int    // how many in reach offer it, online
	Created       time.Time
}

// Backend serves calls. hub (over tunnels) and daemon (over engines here, then
// the hub) implement it. Errors are *fault.Fault; anything else is a defect.
type Backend interface {
	// Do serves the call or says which fault it is. It may block while the call
	// waits for a machine; ctx ends when the caller hangs up.
	Do(ctx context.Context, call *Call) (*Answer, error)
	// Models lists what the caller reaches now, sorted by id, each once.
	Models(ctx context.Context, caller Caller) ([]Model, error)
}

// Outcome is how a call ended, for the log event and the usage record.
type Outcome struct {
	Status    int
	Code      string        // empty: served completely
	FirstByte time.Duration // from arrival to the answer's first byte; 0: none
	Duration  time.Duration
	TokensIn  int64
	TokensOut int64
	// Reported says that the engine counted the tokens; otherwise TokensOut is
	// the number of content frames.
	Reported bool
	// Cached is how many of TokensIn the engine had computed before, as it reports.
	Cached int64
	// Truncated says that the engine read only a part of the conversation.
	Truncated bool
	// Of a streamed answer, from the call's arrival to the first and to the last frame
	// with content, and how many frames there were. Blocked is how long the caller's
	// connection took to take them.
	FirstToken, LastToken time.Duration
	Frames                int
	Blocked               time.Duration
}
