package tunnel

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"time"
)

// Version is the version of the tunnel's protocol in this build (Kith-Version). It grows
// by one with each addition, which the other end may not have; a reader ignores unknown
// members and headers. A change that the other end cannot ignore changes Protocol.
const Version = 1

// Protocol is the Upgrade token of GET /tunnel. The other one is "websocket", with
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
	// PausedUntil is when its owner's pause ends by itself; absent: it does not.
	PausedUntil time.Time `json:"paused_until,omitzero"`
	Hours       string    `json:"hours"`    // as fleet.ParseHours reads them; empty: always
	Timezone    string    `json:"timezone"` // IANA name; empty: not known
	Slots       int       `json:"slots"`
	Free        int       `json:"free"`  // unused slots, as the daemon counts them
	Local       int       `json:"local"` // slots used by other calls than those of this tunnel
	// Groups are the names of the only groups that the machine serves; absent: all
	// groups of its owner.
	Groups []string `json:"groups,omitzero"`
	Models []Model  `json:"models"`
}

// Model is one offer in an Advertisement.
type Model struct {
	ID            string   `json:"id"`
	Families      []string `json:"families"`  // fleet.Family words
	Endpoints     []string `json:"endpoints"` // paths that its engine serves natively
	ContextLength int      `json:"context_length,omitempty"`
	Capabilities  []string `json:"capabilities,omitempty"`
	Slots         int      `json:"slots"` // 0: only the machine's total limits it
	Free          int      `json:"free"`
	Local         int      `json:"local"` // used by other calls than those of this tunnel
	Engine        string   `json:"engine,omitempty"`
}

// POST PathTokenize counts the tokens of a chat call's body, of at most MaxTokenize
// bytes. The response is Tokens. It runs no model and uses no slot. 501 means that
// the model's engine has no tokenizer.
const (
	PathTokenize = "/tokenize"
	MaxTokenize  = 8 << 20
)

// PathControl takes a Control.
const PathControl = "/control"

// PathNotice takes a Notice.
const PathNotice = "/notice"

// Notice is the body of POST /notice: what the hub cannot use of the machine's state.
// Each replaces the previous one.
type Notice struct {
	// ZoneUnknown reports that the hub does not know the time zone of the machine.
	ZoneUnknown bool `json:"zone_unknown"`
}

// PathEnded is answered with 204 once the daemon no longer runs the call that
// HeaderCorrelation and HeaderAttempt name. The hub waits for it before it tries
// another machine for a call that it cancelled.
const PathEnded = "/ended"

// PathMove asks the daemon for another tunnel: it dials the hub's address again, and
// keeps this tunnel until the hub closes it.
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
	HeaderCache       = "Kith-Cache"    // names the caller's prompt cache, as CacheName returns it
	HeaderModel       = "Kith-Model"    // the model's id, as EscapeModel returns it
	HeaderRefused     = "Kith-Refused"  // on a 503 of the daemon: a Refusal
	HeaderVersion     = "Kith-Version"
	// HeaderGeneration is on the hub's 101: the number of this tunnel.
	HeaderGeneration = "Kith-Generation"
	// HeaderInstance is on GET /tunnel: a random name of the daemon's process.
	HeaderInstance = "Kith-Instance"
	// HeaderYields is on GET /tunnel of a daemon that was fenced: it takes the place of
	// no other daemon.
	HeaderYields = "Kith-Yields"
	// HeaderNode is on the hub's 101: the name of the hub node.
	HeaderNode = "Kith-Node"
	// HeaderHub is on the hub's 421: the address of a hub of the machine's region.
	HeaderHub = "Kith-Hub"
)

// CacheName returns the name under which a machine's engines keep what they compute for
// a member, until the end of the day. The member cannot be found from it, and other
// machines get other names.
func CacheName(member, machine string, now time.Time) string {
	mac := hmac.New(sha256.New, []byte(member))
	mac.Write([]byte(now.UTC().Format(time.DateOnly) + " " + machine))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// EscapeModel returns a model's id in a form that a header can hold.
func EscapeModel(id string) string { return url.QueryEscape(id) }

// CallModel returns the model that a call's header names; "" if it names none.
func CallModel(h http.Header) string {
	id, _ := url.QueryUnescape(h.Get(HeaderModel)) // empty with an error
	return id
}

// Refusal is why a daemon refused a call. A 503 without one is the engine's.
type Refusal string

// The refusals of a daemon.
const (
	RefusedBusy         Refusal = "busy"
	RefusedPaused       Refusal = "paused"
	RefusedHours        Refusal = "hours"
	RefusedSpent        Refusal = "spent"
	RefusedUnknownModel Refusal = "unknown_model"
	RefusedFenced       Refusal = "fenced"
	// RefusedOther represents a value that this version does not know.
	RefusedOther Refusal = "another reason"
)

// RefusalIn returns the refusal in the header of a daemon's response; empty if the
// response is the engine's. An unknown value is RefusedOther: its text is not used.
func RefusalIn(h http.Header) Refusal {
	switch word := Refusal(h.Get(HeaderRefused)); word {
	case "", RefusedBusy, RefusedPaused, RefusedHours, RefusedSpent, RefusedUnknownModel, RefusedFenced:
		return word
	default:
		return RefusedOther
	}
}

// Control is the body of POST /control: a change that the owner made on the site or
// with the CLI of another machine. A nil member leaves the setting unchanged; empty
// hours are a change.
type Control struct {
	Paused *bool `json:"paused,omitzero"`
	// Until is when a pause ends by itself; the zero time: never. It belongs to
	// Paused: a change that sets Paused alone removes the end.
	Until    *time.Time `json:"until,omitzero"`
	Hours    *string    `json:"hours,omitzero"`
	Timezone *string    `json:"timezone,omitzero"`
	Slots    *int       `json:"slots,omitzero"`
}
