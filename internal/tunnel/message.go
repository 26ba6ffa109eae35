package tunnel

import (
	"net/http"
	"net/url"
	"time"
)

// Version is what this build speaks on the tunnel (Kith-Version). It grows by
// one with each change; a reader ignores members and headers it does not know.
//
//	1  2026-11-21  first: offers, ack, control, calls, fenced
//	2  2026-11-21  control: until, the end of a pause
//	3  2026-11-21  the same in a WebSocket, where a network passes nothing else
//	4  2026-11-21  offers: groups, those that the machine serves
//	5  2026-11-21  tokenize, which daemons before do not have
//	6  2026-11-22  calls: Kith-Model, by which a daemon admits or refuses a call
//	               before it reads the body, and Expect: 100-continue
//	7  2026-11-22  ended, which daemons before do not have
const Version = 7

// versionAdmits is the first version whose daemons admit a call by its head. Those
// before it do not answer an Expect.
const versionAdmits = 6

// Protocol is the Upgrade token of GET /tunnel (decisions 8); the other one is
// "websocket", with Sec-WebSocket-Protocol: kith-tunnel-1.
const Protocol = "kith-tunnel/1"

// Advertisement is a machine's complete state, one JSON line of GET /offers. Each
// replaces the one before; a lost one costs nothing.
type Advertisement struct {
	Version    int    `json:"version"`
	Generation int64  `json:"generation"`
	Name       string `json:"name"`
	Paused     bool   `json:"paused"`
	Hours      string `json:"hours"`    // as fleet.ParseHours reads; empty: always
	Timezone   string `json:"timezone"` // IANA name; empty: UTC
	Slots      int    `json:"slots"`
	Free       int    `json:"free"`  // slots nothing holds, as the daemon sees it
	Local      int    `json:"local"` // slots held by other than calls of this tunnel
	// Groups are the names of the only groups that it serves; absent: every one
	// of its owner's.
	Groups []string `json:"groups,omitzero"`
	Models []Model  `json:"models"`
}

// Model is one offer in an Advertisement.
type Model struct {
	ID            string   `json:"id"`
	Families      []string `json:"families"`  // fleet.Family words
	Endpoints     []string `json:"endpoints"` // paths its engine speaks natively
	ContextLength int      `json:"context_length,omitempty"`
	Capabilities  []string `json:"capabilities,omitempty"`
	Slots         int      `json:"slots"` // 0: only the machine's total counts
	Free          int      `json:"free"`
	Local         int      `json:"local"` // held by other than calls of this tunnel
	Engine        string   `json:"engine,omitempty"`
}

// PathTokenize is where a daemon counts the tokens of a chat call's body, of at
// most MaxTokenize bytes, with Tokens. It runs nothing and takes no slot. 501:
// the model's engine has no tokenizer to ask.
const (
	PathTokenize = "/tokenize"
	MaxTokenize  = 8 << 20
)

// PathEnded is where a daemon answers, with 204, once it no longer runs the call
// that HeaderCorrelation and HeaderAttempt name. The hub asks before it tries
// another machine for a call that it cancelled.
const PathEnded = "/ended"

// Tokens is the answer of POST /tokenize.
type Tokens struct {
	Tokens int64 `json:"tokens"`
}

// Headers of a call on the tunnel.
const (
	HeaderCorrelation = "X-Correlation-ID"
	HeaderAttempt     = "Kith-Attempt"  // "N FENCE": attempt number and the call's fence
	HeaderCaller      = "Kith-Caller"   // "CLASS NAME": own, shared or group; the member
	HeaderDeadline    = "Kith-Deadline" // RFC 3339, when the hub gives the call up
	HeaderModel       = "Kith-Model"    // the model's id, as EscapeModel writes it
	HeaderRefused     = "Kith-Refused"  // on a 503 of the daemon: a Refusal
	HeaderVersion     = "Kith-Version"
	// HeaderGeneration is on the hub's 101: the number it gave this tunnel.
	HeaderGeneration = "Kith-Generation"
)

// EscapeModel is a model's id as a header may carry it.
func EscapeModel(id string) string { return url.QueryEscape(id) }

// CallModel is the model that a call's head names; ok is false where it names none,
// as a hub before version 6 does not.
func CallModel(h http.Header) (id string, ok bool) {
	escaped := h.Get(HeaderModel)
	id, err := url.QueryUnescape(escaped)
	return id, escaped != "" && err == nil
}

// Refusal is why a daemon did not take a call; a 503 without one came from the engine.
type Refusal string

// The refusals of a daemon.
const (
	RefusedBusy         Refusal = "busy"
	RefusedPaused       Refusal = "paused"
	RefusedHours        Refusal = "hours"
	RefusedSpent        Refusal = "spent"
	RefusedUnknownModel Refusal = "unknown_model"
	RefusedFenced       Refusal = "fenced"
	// RefusedOther is returned for a word that this version does not know.
	RefusedOther Refusal = "another reason"
)

// RefusalIn is the refusal in the head of a daemon's answer; empty: the answer is
// an engine's. The text of an unknown word is never used: it is RefusedOther.
func RefusalIn(h http.Header) Refusal {
	switch word := Refusal(h.Get(HeaderRefused)); word {
	case "", RefusedBusy, RefusedPaused, RefusedHours, RefusedSpent, RefusedUnknownModel, RefusedFenced:
		return word
	default:
		return RefusedOther
	}
}

// Control is the body of POST /control: a change the owner made on the site or
// with the CLI of another machine. Nil members stay as they are, and only
// those are left out: empty hours are a change too.
type Control struct {
	Paused *bool `json:"paused,omitzero"`
	// Until is when a pause ends by itself; the zero time: never. It goes with
	// Paused: a change that sets Paused alone leaves no end.
	Until    *time.Time `json:"until,omitzero"`
	Hours    *string    `json:"hours,omitzero"`
	Timezone *string    `json:"timezone,omitzero"`
	Slots    *int       `json:"slots,omitzero"`
}
