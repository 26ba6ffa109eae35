package account

import (
	"strings"
	"time"
)

// Trace is what `kith why ID` shows one member about a past call: the caller, or an owner
// of machines that were tried. It holds no content of the call and is kept for TraceLife.
type Trace struct {
	CallID   string    `json:"call"`
	MemberID string    `json:"-"` // the member who may read it
	Started  time.Time `json:"started"`
	// Mine reports whether the member made the call. Otherwise the member owns a machine
	// in Tries.
	Mine     bool   `json:"mine"`
	Caller   string `json:"caller"` // the caller's name
	Model    string `json:"model"`
	Endpoint string `json:"endpoint"`
	Stream   bool   `json:"stream"`
	// Sealed reports that the hub could not read the call and its answer.
	Sealed bool `json:"sealed,omitzero"`
	// The result of the call and its duration. An owner sees them only if the call ended
	// on the owner's machine; otherwise Status is 0.
	Status int    `json:"status,omitzero"`
	Code   string `json:"code,omitempty"` // empty: completely served
	TookMS int64  `json:"took_ms,omitzero"`
	// Message is what the caller received as the cause; empty: none, or one that may quote
	// the call. Only the caller sees it.
	Message string `json:"message,omitempty"`
	// WaitedMS is how long the call waited for a machine. For an owner it is the wait
	// before the last of Tries.
	WaitedMS int64 `json:"waited_ms,omitzero"`
	// Place is the call's place in line when it first waited, from 1; 0 if it did not wait.
	// Only the caller sees it.
	Place int `json:"place,omitzero"`
	// Decisions are the first and the last routing decision. Only the caller sees them.
	Decisions []Decision `json:"decisions,omitempty"`
	// Tries are the attempts on machines. An owner sees those on the owner's own machines.
	Tries []Attempt `json:"tries"`
	// KeyID is the caller's key that made the call, as in Usage. Only the caller sees it.
	KeyID string `json:"key,omitempty"`
	// FromMachine is the name of the caller's machine at whose daemon the call was made, and
	// Program the command of kith that made it, "run" or "launch", there. They are not
	// stored: the API reads them from KeyID.
	FromMachine string `json:"from_machine,omitempty"`
	Program     string `json:"program,omitempty"`
	// FirstMS is the time to the first token of a streamed answer, measured from the start
	// of the attempt for an owner; 0 if there is none. It is shown, like the token counts,
	// to those who see the result.
	FirstMS   int64 `json:"first_ms,omitzero"`
	TokensIn  int64 `json:"tokens_in,omitzero"`
	TokensOut int64 `json:"tokens_out,omitzero"`
}

// minSpeedTokens is the number of tokens from which an answer has a speed: the time of fewer
// depends mostly on how the network delivered them.
const minSpeedTokens = 10

// Speed returns the tokens per second of a streamed answer after its first token, or 0 if
// it is unknown or the answer is too short to measure it.
func (t *Trace) Speed() float64 {
	if t.FirstMS == 0 || t.TookMS <= t.FirstMS || t.TokensOut < minSpeedTokens {
		return 0
	}
	return float64(t.TokensOut-1) * 1000 / float64(t.TookMS-t.FirstMS)
}

// TraceLife is how long a Trace is kept.
const TraceLife = 7 * 24 * time.Hour

// Decision is one routing decision about a call.
type Decision struct {
	AfterMS int64        `json:"after_ms"` // since the call's arrival
	Verdict string       `json:"verdict"`
	Row     int          `json:"row"` // a row of spec/routing.md#the-twelve-rows
	Seen    []StateCount `json:"seen,omitempty"`
	// Order explains why the first machine was tried before the second; empty if there was
	// only one.
	Order string `json:"order,omitempty"`
}

// StateCount is the number of machines in the caller's reach that were in a given state.
type StateCount struct {
	Via      string `json:"via"`
	State    string `json:"state"`
	Machines int    `json:"machines"`
}

// Attempt is one attempt at a call on one machine.
type Attempt struct {
	Machine string `json:"machine"`
	Owner   string `json:"owner"`
	Via     string `json:"via"`
	AfterMS int64  `json:"after_ms"` // since the call's arrival
	TookMS  int64  `json:"took_ms"`  // until its outcome; if it answered, until the answer ended
	Outcome string `json:"outcome"`  // a description
	Prompt  bool   `json:"prompt"`   // the machine received some of the request's body
}

// The beginnings of the Outcome of an attempt that was answered: completely, or not.
const (
	Answered      = "answered"
	BeganToAnswer = "began to answer"
)

// Began reports whether the machine began to answer.
func (a *Attempt) Began() bool {
	return strings.HasPrefix(a.Outcome, Answered) || strings.HasPrefix(a.Outcome, BeganToAnswer)
}
