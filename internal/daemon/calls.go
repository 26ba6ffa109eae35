package daemon

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// CallHere is what a daemon knows of a call that was made at its own surface.
type CallHere struct {
	ID string `json:"id"` // the correlation id of its answer
	// HubID is the hub's correlation id of it; empty: it did not reach the hub.
	HubID    string        `json:"hub_id,omitzero"`
	Started  time.Time     `json:"started"`
	TookMS   int64         `json:"took_ms"`
	Endpoint string        `json:"endpoint"` // its path
	Model    fleet.ModelID `json:"model"`
	Stream   bool          `json:"stream"`
	Status   int           `json:"status"`
	Code     string        `json:"code,omitzero"`    // empty: served completely
	Message  string        `json:"message,omitzero"` // its cause; empty: none, or one that may quote the call
	// Sealed is the X-Kith-Sealed of its answer, empty if calls are not sealed.
	Sealed string `json:"sealed,omitzero"`
}

// SealedCalls are the calls that left this machine for the hub since the daemon started.
type SealedCalls struct {
	Sealed int64 `json:"sealed"`
	Clear  int64 `json:"clear"`
	// LastClear is the last one that was sent in clear.
	LastClear *CallHere `json:"last_clear,omitzero"`
}

// maxCallsHere is how many of the calls made here are kept.
const maxCallsHere = 1000

// callsHere are the calls that were made at this machine's surface.
type callsHere struct {
	mu     sync.Mutex
	last   []CallHere // at most maxCallsHere; next is the oldest, once it is full
	next   int
	totals SealedCalls
}

func (c *callsHere) add(call *gateway.Call, out gateway.Outcome) {
	made := CallHere{ID: call.ID, HubID: call.Trace.HubID, Started: call.Started.UTC(), TookMS: out.Duration.Milliseconds(),
		Endpoint: call.Endpoint.Path(), Model: call.Model, Stream: call.Stream, Status: out.Status, Code: out.Code, Message: out.Message, Sealed: call.Trace.Sealed}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.last) < maxCallsHere {
		c.last = append(c.last, made)
	} else {
		c.last[c.next] = made
		c.next = (c.next + 1) % maxCallsHere
	}
	switch made.Sealed {
	case sealed.Yes:
		c.totals.Sealed++
	case sealed.NoKey, sealed.NoList, sealed.Audio:
		c.totals.Clear++
		c.totals.LastClear = &made
	}
}

// of returns the call with a correlation id, of this machine or of the hub; nil: none.
func (c *callsHere) of(id string) *CallHere {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.last, func(made CallHere) bool { return made.ID == id || made.HubID == id })
	if at < 0 {
		return nil
	}
	made := c.last[at]
	return &made
}

// sealed returns how many calls were sealed.
func (c *callsHere) sealed() SealedCalls {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.totals
}

// serveCallHere serves GET /call?id=ID on the socket: what is known of one of the last calls
// that were made here.
func (d *Daemon) serveCallHere(w http.ResponseWriter, r *http.Request) {
	made := d.calls.of(r.FormValue("id"))
	if made == nil {
		http.NotFound(w, r)
		return
	}
	writeJSON(w, http.StatusOK, made)
}
