package daemon

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Status is the output of `kith status`.
type Status struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Local   string    `json:"local"` // the local base URL, with /v1

	Tunnel TunnelStatus `json:"tunnel"`
	// Sealed is how calls to other machines are sealed; absent if this machine is not signed
	// in.
	Sealed *SealedStatus `json:"sealed,omitzero"`

	Sharing Sharing `json:"sharing"`
	Open    bool    `json:"open"` // now within the sharing hours
	// PausedBy are the reasons why this machine paused automatically; absent if it did
	// not.
	PausedBy []string `json:"paused_by,omitempty"`
	// Yielding reports that calls of the hub do not start now, because local calls are
	// running.
	Yielding bool `json:"yielding"`
	Slots    int  `json:"slots"` // the number in effect: set by the owner, otherwise the engines'
	// Groups are the only groups that this machine serves; absent: all of them.
	Groups []string `json:"groups,omitzero"`
	Routed int      `json:"routed"` // running calls of the hub
	Own    int      `json:"own"`    // running local calls

	// Facts are what the hub learns about this machine.
	Facts *fleet.MachineFacts `json:"facts"`

	Models []fleet.ModelID `json:"models"`
	// Lacks is what models cannot do, and why, as far as it is known.
	Lacks   map[fleet.ModelID]string `json:"lacks,omitempty"`
	Engines []EngineStatus           `json:"engines"` // the built-in engine, and each address that was checked
	// RecentErrors are the most recent errors, oldest first.
	RecentErrors []RecentError `json:"recent_errors,omitempty"`
}

// EngineStatus is an engine, or an address without a usable engine.
type EngineStatus = engine.Finding

// TunnelStatus is the state of the tunnel to the hub.
type TunnelStatus struct {
	SignedIn bool      `json:"signed_in"`
	Hub      string    `json:"hub,omitempty"`
	Machine  string    `json:"machine,omitempty"`
	Name     string    `json:"name,omitempty"` // as the hub calls it; set by `kith status`, which asks the hub
	State    string    `json:"state"`          // tunnel.Phase or one of TunnelOff, …
	Since    time.Time `json:"since"`
	// Node is the hub node of the last tunnel, if the hub names its nodes.
	Node string `json:"node,omitempty"`
	// ZoneUnknown reports that the hub does not know this machine's time zone, so that the
	// machine is outside its hours for other members.
	ZoneUnknown bool `json:"zone_unknown,omitzero"`
	// Retry is the time of the next attempt; absent if none is scheduled.
	Retry time.Time `json:"retry,omitzero"`
	// Error is why the tunnel is not open, if known.
	Error string `json:"error,omitempty"`
}

// RecentError is an error shown by status. It contains nothing of a call's content.
type RecentError struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// maxControl bounds the body of a control request, in bytes.
const maxControl = 64 << 10

// socketSurface returns the handler for the daemon's socket. It is for the owner's own
// programs: the mode of the socket (0600) is the only access control. All other paths
// behave as on the local TCP address, with the same browser guard and rate limit.
func (d *Daemon) socketSurface(local http.Handler) http.Handler {
	no := false
	_, own, _ := strings.Cut(strings.TrimSuffix(d.base, "/v1"), "//")
	routes := map[string]http.HandlerFunc{
		"GET /status": func(w http.ResponseWriter, r *http.Request) { writeJSON(w, http.StatusOK, d.Status()) },
		"POST /pause": d.servePause,
		"POST /resume": func(w http.ResponseWriter, r *http.Request) {
			d.retryRefused()
			d.answerChange(w, fleet.Control{Paused: &no})
		},
		"POST /drain":        d.serveDrain,
		"POST /hours":        d.serveHours,
		"GET /call":          d.serveCallHere,
		"GET /trust":         d.serveTrust,
		"GET /trust/refused": d.serveRefused,
		"POST /trust":        d.serveTrustChange,
		"POST /reload":       d.serveReload,
		"POST /models":       d.serveFiles,
		"POST /signin": func(w http.ResponseWriter, r *http.Request) {
			d.reconnect()
			w.WriteHeader(http.StatusNoContent)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if serve := routes[r.Method+" "+r.URL.Path]; serve != nil {
			d.isolate(func(w http.ResponseWriter, r *http.Request, _ *bool) { serve(w, r) })(w, r)
			return
		}
		r.Host = own // a socket has no host name and browsers cannot reach it
		local.ServeHTTP(w, r)
	})
}

// HoursChange is the body of POST /hours.
type HoursChange struct {
	Hours    string `json:"hours"`    // in the format of fleet.ParseHours; empty: always
	Timezone string `json:"timezone"` // IANA name; empty: unchanged
}

func (d *Daemon) serveHours(w http.ResponseWriter, r *http.Request) {
	var body HoursChange
	if !readChange(w, r, &body) {
		return
	}
	change := fleet.Control{Hours: &body.Hours}
	if body.Timezone != "" {
		change.Timezone = &body.Timezone
	}
	d.answerChange(w, change)
}

// PauseChange is the body of POST /pause. Without a body it is the zero PauseChange.
type PauseChange struct {
	Until time.Time `json:"until,omitzero"` // when the pause ends automatically; zero: at POST /resume
}

func (d *Daemon) servePause(w http.ResponseWriter, r *http.Request) {
	var body PauseChange
	if r.ContentLength != 0 && !readChange(w, r, &body) {
		return
	}
	yes := true
	d.answerChange(w, fleet.Control{Paused: &yes, Until: &body.Until})
}

// serveDrain responds once no call of the hub is running. It fails if this machine is not
// paused, or no longer, because then further calls start.
func (d *Daemon) serveDrain(w http.ResponseWriter, r *http.Request) {
	for {
		changed := d.offers.watch() // first, so that no change is missed while reading
		now, _ := d.settings.current(time.Now())
		if !now.Paused {
			refuseChange(w,
				errors.New("cannot drain this machine: it is not paused, or no longer, and still accepts calls"))
			return
		}
		drained := d.admission.drained()
		select {
		case <-drained:
			writeJSON(w, http.StatusOK, now)
			return
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// readChange decodes a change from JSON strictly. If that fails it writes an error
// response.
func readChange(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxControl), into, json.RejectUnknownMembers(true))
	if err != nil {
		refuseChange(w, fmt.Errorf("cannot read the change: %w", err))
	}
	return err == nil
}

func (d *Daemon) answerChange(w http.ResponseWriter, change fleet.Control) {
	if err := d.change(change); err != nil {
		refuseChange(w, err)
		return
	}
	now, _ := d.settings.current(time.Now())
	writeJSON(w, http.StatusOK, now)
}

// change applies a change made by the owner over the socket or on the site, and notifies
// the hub.
func (d *Daemon) change(c fleet.Control) error {
	err := d.settings.change(c)
	if err != nil && !errors.Is(err, errPauseUnsaved) {
		return err
	}
	d.offers.setChanged()
	now, _ := d.settings.current(time.Now())
	d.log.Info("sharing changed", "paused", now.Paused, "until", now.Until, "hours", now.Hours,
		"timezone", now.Timezone, "slots", now.Slots)
	return err
}

// pauseCheckInterval is how often to check whether a timed pause has ended. Timers stop
// while a laptop sleeps, but the pause does not.
const pauseCheckInterval = 30 * time.Second

// endTimedPauses ends timed pauses on time, including those from before the daemon's
// start.
func (d *Daemon) endTimedPauses(ctx context.Context) error {
	for {
		changed := d.offers.watch()
		var over <-chan time.Time
		if paused, until := d.settings.pause(); paused && !until.IsZero() {
			left := time.Until(until)
			if left <= 0 {
				no := false
				if err := d.change(fleet.Control{Paused: &no}); err != nil {
					d.recordError("the pause has ended, but this cannot be saved: %v", err)
					d.offers.setChanged() // the pause is over in either case
					over = time.After(pauseCheckInterval)
				}
				changed = d.offers.watch()
			} else {
				over = time.After(min(left, pauseCheckInterval))
			}
		}
		select {
		case <-over:
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// Status returns the daemon's current state.
func (d *Daemon) Status() Status {
	sharing, hours := d.settings.current(time.Now())
	ofHub, local := d.admission.running("")
	s := Status{
		Version: d.config.Version, Started: d.started,
		Sharing: sharing, Open: hours.Open(time.Now()), Slots: d.slots(sharing), Groups: d.policy.Load().groups,
		Routed: ofHub, Own: local,
		Yielding: d.admission.ownerOnly(),
		Models:   []fleet.ModelID{}, Engines: []EngineStatus{},
		Sealed: d.sealedStatus(), Facts: d.facts(),
	}
	for _, e := range *d.offers.own.Load() {
		s.Engines = append(s.Engines, statusesOf(e)...)
	}
	s.Engines = append(s.Engines, d.finder.Report()...)
	if d.audio != nil {
		s.Engines = append(s.Engines, d.audio.Finding())
	}
	for _, u := range d.offers.upstreams {
		s.Engines = append(s.Engines, u.Finding())
	}
	for _, o := range d.offers.models(d.offers.forOwner()) {
		s.Models = append(s.Models, fleet.ModelID(o.ID))
	}
	for _, e := range d.offers.engines() {
		for _, m := range e.Models() {
			if m.Lacks == "" {
				continue
			}
			if s.Lacks == nil {
				s.Lacks = map[fleet.ModelID]string{}
			}
			s.Lacks[m.ID] = m.Lacks
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.PausedBy = slices.Clone(d.power.pausedBy)
	s.Local, s.Tunnel, s.RecentErrors = d.base, d.tunnel, slices.Clone(d.recentErrors)
	return s
}

// statusesOf returns the status of an engine run by kith, and of each model that it
// cannot serve. A process for a single model has the model's name.
func statusesOf(e *engine.Engine) (all []EngineStatus) {
	status := EngineStatus{Place: e.Base(), Kind: e.Kind(), Name: e.Name(), Version: e.Version(), Models: len(e.Models()),
		Graphics: e.Graphics()}
	problems := e.Problems()
	switch models := e.Models(); {
	case e.IsStarting():
		status.Why = e.Problem()
		return []EngineStatus{status}
	case e.IsServer():
		if status.Name += " for " + string(models[0].ID); e.Problem() == "" {
			all = append(all, status)
		}
	case len(models) > 0 || len(problems) == 0:
		all = append(all, status)
	}
	for _, id := range slices.Sorted(maps.Keys(problems)) {
		all = append(all, EngineStatus{Place: e.Base(), Kind: e.Kind(), Name: e.Name() + " for " + string(id),
			Model: string(id), Why: problems[id]})
	}
	return all
}

// refuseChange writes err in the same format as the gateway.
func refuseChange(w http.ResponseWriter, err error) {
	writeFault(w, fault.New(fault.InvalidRequest, "%v", err), "")
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, v) // the only possible error is a closed connection
}
