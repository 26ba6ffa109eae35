package gateway

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// Call is one inference request. The gateway creates it; a Backend reads it and may
// change only Trace.
type Call struct {
	ID       string // the correlation id
	Endpoint fleet.Endpoint
	Model    fleet.ModelID
	Stream   bool
	Choices  int // number of answers requested; 0: one
	Caller   fleet.Caller
	// Body is the request body as received. It is never logged or changed. The gateway
	// closes it.
	Body *spool.Bytes
	// Header holds the headers specific to the messages dialect, for the hub and for
	// upstreams that speak it; nil on the hosted surface and in other dialects.
	Header http.Header
	// Sealed is set if the call is sealed: what the hub can read of it, in front of Body.
	Sealed *Sealed
	// Form is the request of a transcription, which has no Body.
	Form    *dialect.Transcription
	Arrived time.Time
	Started time.Time // Arrived by Config.Now, for records
	// Wait is the caller's own limit on waiting for a machine (Prefer: wait=N); negative
	// if there is none.
	Wait time.Duration
	// Waiting reports to the caller how many calls are ahead in the queue and how much
	// longer the wait may take. A Backend calls it while the call waits, and with a
	// negative ahead when the wait ends. It never blocks.
	Waiting func(ahead int, left time.Duration)
	// Trace is what the Backend reports, for the log and the usage record.
	Trace Trace

	chat *spool.Bytes // Body translated to chat; nil if it is chat already or has no translation
	// translationErr is why Body cannot be translated to chat. On the local surface an
	// upstream that speaks the call's own dialect may still serve it.
	translationErr error
	// response translates the answer to a call of the responses dialect, forms that to a
	// chat call that was sent to the machine in another form.
	response *dialect.Response
	forms    *dialect.ChatForms
	// maxPrompt is the upper bound of the request's tokens, without tokenRoom; text is the
	// length in bytes of its conversation, 0 if unknown, as with images.
	maxPrompt, text int
}

// Request returns the endpoint and the body to send to a machine: the call's own body, or
// its translation to chat. Machines that speak messages or responses also get chat,
// because only chat has every check (docs/decisions/0003-machines-are-asked-in-chat.md).
func (c *Call) Request() (fleet.Endpoint, *spool.Bytes) {
	if c.chat == nil {
		return c.Endpoint, c.Body
	}
	return fleet.ChatCompletions, c.chat
}

// ForEngine returns the endpoint and the body to send to an engine of this machine or to
// an upstream. If own is set, it is the call's own body; otherwise it is as in Request.
// It fails if the body cannot be translated.
func (c *Call) ForEngine(own bool) (fleet.Endpoint, *spool.Bytes, error) {
	if own {
		return c.Endpoint, c.Body, nil
	}
	endpoint, body := c.Request()
	return endpoint, body, c.translationErr
}

// Attach makes the call the body of a request to the next hop: body, the form if it is a
// transcription, or the part of body after its front if the call is sealed.
func (c *Call) Attach(r *http.Request, body *spool.Bytes) {
	if c.Sealed != nil {
		c.Sealed.attach(r, c)
		return
	}
	dialect.SetBody(r, c.Form, body, true)
}

// answered releases the request bodies when no transport needs them: the call goes to no
// other machine. The answer in the responses dialect repeats parts of Body.
func (c *Call) answered() {
	if c.Body != nil && c.response == nil {
		c.Body.Done()
	}
	if c.chat != nil {
		c.chat.Done()
	}
}

// close releases everything that the call holds.
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

// translated reports whether the answer must be translated back.
func (c *Call) translated(a *Answer) bool {
	return c.chat != nil && !a.Untranslated && a.Endpoint == fleet.ChatCompletions
}

// events returns the translator for a chat stream that answers the call.
func (c *Call) events() *dialect.Events {
	switch {
	case c.response != nil:
		return c.response.Events()
	case c.forms != nil:
		return c.forms.Events()
	}
	return dialect.NewMessageEvents(c.messageID(), c.Model)
}

// messageID returns the id of the message that answers the call.
func (c *Call) messageID() string { return "msg_" + strings.TrimPrefix(c.ID, "req_") }

// Trace is what a Backend records while it serves a call.
type Trace struct {
	Machine fleet.MachineID
	Owner   fleet.MemberID // of Machine
	Group   fleet.GroupID  // through which the caller reached the machine; empty: none
	Route   string         // the value of X-Kith-Route; empty: no machine received the prompt
	// Sealed is the value of X-Kith-Sealed, on the local surface; empty: the header is not sent.
	Sealed string
	// HubID is the hub's correlation id of the call, on the local surface.
	HubID    string
	Attempts int
	Waited   time.Duration
	Place    int // in line when the call first waited, from 1; 0: it did not wait
	// First and Last are the first and the latest routing decision, Tries the attempts.
	// They are recorded for `kith why`.
	First, Last Decision
	Tries       []Attempt
	// Prompt is the length in bytes of what engines process before they answer.
	Prompt int
}

// maxHubID is the length of the longest correlation id of a hub that is kept.
const maxHubID = 64

// FromHub records what the header of a hub's response shows of the call.
func (t *Trace) FromHub(h http.Header) {
	t.Route = h.Get("X-Kith-Route")
	if id := h.Get(correlationHeader); len(id) <= maxHubID {
		t.HubID = id
	}
}

// Decision is one routing decision about a call. The zero Decision is none.
type Decision struct {
	After   time.Duration // since the call arrived
	Row     int           // of spec/routing.md#the-twelve-rows
	Verdict fleet.Verdict
	Tally   fleet.Tally
	// Best and Second are the first two candidates of a decision to try. Their Machine is
	// empty if there was no such candidate.
	Best, Second fleet.Candidate
	Prompt       int // expected tokens of the prompt
}

// Attempt is one attempt at a call on a machine.
type Attempt struct {
	Machine *fleet.Machine
	Class   fleet.Class
	Circle  fleet.Circle  // of the caller
	After   time.Duration // since the call arrived
	Took    time.Duration // until its outcome; of a streamed answer, until it began
	Outcome string        // in words, without any content of the call
	// Prompt is set if the machine received any of the request's body, Began if it began
	// to answer.
	Prompt, Began bool
	Waited        time.Duration // in the queue, before this attempt
	// Running is the number of calls that ran on the machine when it began to answer,
	// including this one.
	Running int
	// Sent is how many bytes of the prompt the machine had received before, and Since the
	// bytes of other prompts sent to it after that.
	Sent, Since int
}

// Answer is the answer to a served call, with status 200. Endpoint names the dialect of
// its body. Reads of Body fail with a *fault.Fault if the cause is known; they also fail
// when the context of Do ends. Closing Body ends the call at the machine and releases its
// slot.
type Answer struct {
	*http.Response
	Endpoint fleet.Endpoint
	// Held is the body of a unary answer if Call.Hold has already read it; Body is then
	// empty. The gateway closes Held.
	Held *spool.Bytes
	// FromHub is set if a hub rendered the body. Its comments are passed on and count as
	// signs of life, and its error frames keep their codes.
	FromHub bool
	// Untranslated is set if the machine answered the call's own Body, not a translation
	// of it.
	Untranslated bool
}

// Close closes an answer that no caller gets.
func (a *Answer) Close() {
	a.Body.Close()
	if a.Held != nil {
		a.Held.Close()
	}
}

// Availability is the availability of a model to one caller, that of the best machine.
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
	Owner         string // of the best machine; only in the hub's listing
	Chat          bool   // that machine serves it in chat
	Machines      int    // online machines in reach that offer it
	Created       time.Time
	Facts         fleet.ModelFacts // of the best machine
}

// Backend serves calls. The hub implements it over tunnels; the daemon with its engines,
// then the hub. Its errors are *fault.Fault; any other error is a defect.
type Backend interface {
	// Do serves the call. It may block while the call waits for a machine; ctx ends when
	// the caller disconnects.
	Do(ctx context.Context, call *Call) (*Answer, error)
	// Models returns the models that the caller can reach now, sorted by id, without
	// duplicates.
	Models(ctx context.Context, caller fleet.Caller) ([]Model, error)
}

// Outcome is how a call ended, for the log event and the usage record.
type Outcome struct {
	Status    int
	Code      string        // empty: served completely
	Message   string        // of the fault; empty: none, or one that may quote the call (fault.Code.Quotes)
	FirstByte time.Duration // from arrival to the answer's first byte; 0: none
	Duration  time.Duration
	TokensIn  int64
	TokensOut int64
	// Reported is set if the engine reported the token counts; otherwise TokensOut is the
	// number of content frames.
	Reported bool
	// Cached is how many of TokensIn came from the engine's cache, as it reports.
	Cached int64
	// Truncated is set if the engine read only part of the conversation.
	Truncated bool
	// For a streamed answer: the times from the call's arrival to the first and the last
	// frame with content, and the number of these frames. Blocked is the total time that
	// writes to the caller's connection took.
	FirstToken, LastToken time.Duration
	Frames                int
	Blocked               time.Duration
}
