package tunnel

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// Version is the version of the tunnel's protocol in this build (Kith-Version). It
// increases with every addition. The other end may not have it, so readers ignore unknown
// members and headers. A change that the other end cannot ignore changes Protocol.
//
//   - 1: kith 1.0.0
//   - 2, November 2026: the member models of POST /control
//   - 3, November 2026: sealed calls
//   - 4, November 2026: facts of models and machines, gauges
const Version = 4

// Protocol is the Upgrade token of GET /tunnel. The alternative is "websocket", with
// Sec-WebSocket-Protocol: kith-tunnel-1.
const (
	Protocol     = protocolName + "1"
	protocolName = "kith-tunnel/"
)

// Advertisement is a machine's complete state, one JSON line of GET /offers. Each
// replaces the previous one, so that a lost one does no harm.
type Advertisement struct {
	Version    int    `json:"version"`
	Generation int64  `json:"generation"`
	Name       string `json:"name"`
	Paused     bool   `json:"paused"`
	// PausedUntil is when the owner's pause ends. It is absent if the pause has no end.
	PausedUntil time.Time `json:"paused_until,omitzero"`
	Hours       string    `json:"hours"`    // in the syntax of fleet.ParseHours; empty: always
	Timezone    string    `json:"timezone"` // IANA name; empty: unknown
	Slots       int       `json:"slots"`
	Free        int       `json:"free"`  // unused slots, as counted by the daemon
	Local       int       `json:"local"` // slots used by calls that are not from this tunnel
	// Groups are the names of the groups that the machine serves. If absent, it serves
	// all groups of its owner.
	Groups []string `json:"groups,omitzero"`
	Models []Model  `json:"models"`
	// Seals are the keys that calls can be sealed for, the newest first, at most MaxSeals.
	Seals []fleet.SealKey `json:"seals,omitzero"`
	// Facts describe the machine; absent: unknown.
	Facts *fleet.MachineFacts `json:"facts,omitzero"`
}

// MaxSeals is the maximum number of keys in an Advertisement.
const MaxSeals = 2

// Model is one offer in an Advertisement.
type Model struct {
	ID            string   `json:"id"`
	Families      []string `json:"families"`  // fleet.Family words
	Endpoints     []string `json:"endpoints"` // paths that its engine supports natively
	ContextLength int      `json:"context_length,omitempty"`
	Capabilities  []string `json:"capabilities,omitempty"`
	Slots         int      `json:"slots"` // 0: limited only by the machine's total
	Free          int      `json:"free"`
	Local         int      `json:"local"` // used by calls that are not from this tunnel
	Engine        string   `json:"engine,omitempty"`
	fleet.ModelFacts
}

// POST PathTokenize counts the tokens of a chat call's body, which has at most
// MaxTokenize bytes. The response is Tokens. It runs no model and uses no slot. 501 means
// that the model's engine has no tokenizer.
const (
	PathTokenize = "/tokenize"
	MaxTokenize  = 8 << 20
)

// PathSealed is the path of a sealed call (spec/sealed.md#on-the-tunnel). Its head and its
// key are in headers, its body is the sealed one.
const PathSealed = "/v1/sealed"

// GET PathSeal responds with a fleet.Seal.
const PathSeal = "/seal"

// PathControl is the path for a Control.
const PathControl = "/control"

// Control is the body of POST /control: a change of the machine's settings or, if Models is
// not nil, an act on its model files. A change is answered with 204, an act with 200 and a
// fleet.ModelFiles (spec/tunnel.md#models). A daemon of version 1 answers 204 to both.
type Control struct {
	fleet.Control
	Models *fleet.FileAct `json:"models,omitzero"`
}

// PathNotice is the path for a Notice.
const PathNotice = "/notice"

// Notice is the body of POST /notice: what the hub cannot use of the machine's state.
// Each Notice replaces the previous one.
type Notice struct {
	// ZoneUnknown means that the hub does not know the machine's time zone.
	ZoneUnknown bool `json:"zone_unknown"`
}

// PathEnded responds with 204 when the daemon is no longer running the call named by
// HeaderCorrelation and HeaderAttempt. After the hub cancels a call, it waits for that
// before it tries another machine.
const PathEnded = "/ended"

// PathMove asks the daemon for another tunnel. The daemon dials the hub's address again,
// and keeps this tunnel until the hub closes it.
const PathMove = "/move"

// Tokens is the response of POST /tokenize.
type Tokens struct {
	Tokens int64 `json:"tokens"`
}

// Headers of a call on the tunnel.
const (
	HeaderCorrelation = "X-Correlation-ID"
	HeaderAttempt     = "Kith-Attempt"  // "N FENCE": the number of the attempt and the call's fence
	HeaderCaller      = "Kith-Caller"   // "CLASS NAME": own, shared or group, and the member
	HeaderDeadline    = "Kith-Deadline" // RFC 3339: when the hub cancels the call
	HeaderCache       = "Kith-Cache"    // key of the caller's prompt cache, from CacheName
	HeaderModel       = "Kith-Model"    // the model's id, from EscapeModel
	HeaderSealed      = "Kith-Sealed"   // base64 of the head of a sealed call
	HeaderSealKey     = "Kith-Seal-Key" // "ID KEY", both base64: the machine's key, and what opens the call with it
	HeaderFault       = "Kith-Fault"    // on a sealed answer with another status than 200: the fault's code
	HeaderRefused     = "Kith-Refused"  // on a 503 of the daemon: a Refusal
	HeaderVersion     = "Kith-Version"
	// HeaderGeneration is in the hub's 101: the number of this tunnel.
	HeaderGeneration = "Kith-Generation"
	// HeaderInstance is in GET /tunnel: a random id of the daemon's process.
	HeaderInstance = "Kith-Instance"
	// HeaderYields is in GET /tunnel of a daemon that was fenced. Such a daemon does not
	// replace another one.
	HeaderYields = "Kith-Yields"
	// HeaderNode is in the hub's 101: the name of the hub node.
	HeaderNode = "Kith-Node"
	// HeaderHub is in the hub's 421: the address of a hub of the machine's region.
	HeaderHub = "Kith-Hub"
)

// CacheName returns a name for a member's cache in a machine's engines. It changes each
// day and differs between machines, and it does not reveal the member.
func CacheName(member, machine string, now time.Time) string {
	mac := hmac.New(sha256.New, []byte(member))
	mac.Write([]byte(now.UTC().Format(time.DateOnly) + " " + machine))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// EscapeModel returns a model's id in a form that is valid in a header.
func EscapeModel(id string) string { return url.QueryEscape(id) }

// CallModel returns the model in a call's header, or "" if there is none.
func CallModel(h http.Header) string {
	id, _ := url.QueryUnescape(h.Get(HeaderModel)) // empty with an error
	return id
}

// Refusal is why a daemon refused a call. A 503 without a Refusal is the engine's.
type Refusal string

// The refusals of a daemon.
const (
	RefusedBusy         Refusal = "busy"
	RefusedPaused       Refusal = "paused"
	RefusedHours        Refusal = "hours"
	RefusedSpent        Refusal = "spent"
	RefusedUnknownModel Refusal = "unknown_model"
	RefusedFenced       Refusal = "fenced"
	RefusedStaleKey     Refusal = "stale_key" // a call sealed for a key that the machine no longer has
	RefusedRepeated     Refusal = "repeated"  // a sealed call that it has opened before
	// RefusedOther stands for a value that this version does not know.
	RefusedOther Refusal = "another reason"
)

// RefusalIn returns the refusal in the header of a daemon's response, or "" if the
// response is the engine's. For an unknown value it returns RefusedOther, and the text is
// not used.
func RefusalIn(h http.Header) Refusal {
	switch word := Refusal(h.Get(HeaderRefused)); word {
	case "", RefusedBusy, RefusedPaused, RefusedHours, RefusedSpent, RefusedUnknownModel, RefusedFenced, RefusedStaleKey, RefusedRepeated:
		return word
	default:
		return RefusedOther
	}
}
