package account

import "time"

// Trace is what one member may see of one past call (`kith why ID`): the caller, or an
// owner of machines it was tried on. It holds no content of the call. It is kept for
// TraceLife.
type Trace struct {
	CallID   string    `json:"call"`
	MemberID string    `json:"-"` // the member who may see it
	Started  time.Time `json:"started"`
	// Mine says that the member made the call; else the member owns a machine of Tries.
	Mine     bool   `json:"mine"`
	Caller   string `json:"caller"` // by name
	Model    string `json:"model"`
	Endpoint string `json:"endpoint"`
	Stream   bool   `json:"stream"`
	// How the call ended and how long it took. An owner sees that only if the call
	// ended on the owner's machine: else Status is 0.
	Status int    `json:"status,omitzero"`
	Code   string `json:"code,omitempty"` // empty: served, complete
	TookMS int64  `json:"took_ms,omitzero"`
	// WaitedMS is how long the call waited for a machine; for an owner, before the
	// last of Tries.
	WaitedMS int64 `json:"waited_ms,omitzero"`
	// Decisions are the first and the last decision about the call. Only the caller
	// sees them.
	Decisions []Decision `json:"decisions,omitempty"`
	// Tries are the machines that it was sent to; for an owner, the owner's.
	Tries []Attempt `json:"tries"`
	// KeyID is the key of the caller's that made the call; only the caller sees it.
	KeyID string `json:"key,omitempty"`
	// FirstMS is the time to the first token of a streamed answer, for an owner from the
	// begin of the attempt; 0: none. Who sees how the call ended sees it, and the tokens.
	FirstMS   int64 `json:"first_ms,omitzero"`
	TokensIn  int64 `json:"tokens_in,omitzero"`
	TokensOut int64 `json:"tokens_out,omitzero"`
}

// Speed is how many tokens a second a streamed answer had after its first one; 0: it
// is not known.
func (t *Trace) Speed() float64 {
	if t.FirstMS == 0 || t.TookMS <= t.FirstMS || t.TokensOut < 2 {
		return 0
	}
	return float64(t.TokensOut-1) * 1000 / float64(t.TookMS-t.FirstMS)
}

// TraceLife is how long a Trace is kept.
const TraceLife = 7 * 24 * time.Hour

// Decision is one decision about a call.
type Decision struct {
	AfterMS int64        `json:"after_ms"` // since the call arrived
	Verdict string       `json:"verdict"`
	Row     int          `json:"row"` // of spec/routing.md#the-twelve-rows
	Seen    []StateCount `json:"seen,omitempty"`
	// Order says why the first machine was tried before the second; empty: there was no
	// second one.
	Order string `json:"order,omitempty"`
}

// StateCount is how many of the machines in the caller's reach were in one state.
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
	AfterMS int64  `json:"after_ms"` // since the call arrived
	TookMS  int64  `json:"took_ms"`  // to its outcome
	Outcome string `json:"outcome"`  // in words
	Prompt  bool   `json:"prompt"`   // the machine was given some of the request's body
}
