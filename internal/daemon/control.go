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

// Status is everything `kith status` shows.
type Status struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Local   string    `json:"local"` // the local surface's base URL, with /v1

	Tunnel TunnelStatus `json:"line"`

	Sharing Sharing `json:"sharing"`
	Open    bool    `json:"open"` // inside the sharing hours just now
	// PausedBy holds why this machine has paused by itself; absent if it has not.
	PausedBy []string `json:"paused_by,omitempty"`
	// Yielding reports that no call of the hub starts now, because local calls run.
	Yielding bool `json:"yielding"`
	Slots    int  `json:"slots"` // the number in effect: the owner's, else the engines'
	// Groups are the only groups that this machine serves; absent: all.
	Groups []string `json:"groups,omitzero"`
	Routed int      `json:"routed"` // running calls of the hub
	Own    int      `json:"own"`    // running local calls

	Models  []fleet.ModelID `json:"models"`
	Engines []EngineStatus  `json:"engines"` // the built-in one, and each address that was checked
	// RecentErrors are the latest errors, oldest first.
	RecentErrors []RecentError `json:"troubles,omitempty"`
}

// EngineStatus is one engine, or an address where no engine can be used.
type EngineStatus = engine.Finding

// TunnelStatus is the tunnel to the hub.
type TunnelStatus struct {
	SignedIn bool      `json:"signed_in"`
	Hub      string    `json:"hub,omitempty"`
	Machine  string    `json:"machine,omitempty"`
	Name     string    `json:"name,omitempty"`
	State    string    `json:"state"` // tunnel.Phase or one of TunnelOff, …
	Since    time.Time `json:"since"`
	// Node is the hub node at which the tunnel ended last, if the hub names it.
	Node string `json:"node,omitempty"`
	// ZoneUnknown reports that the hub does not know the time zone of this machine, which
	// is outside its hours for others.
	ZoneUnknown bool `json:"zone_unknown,omitzero"`
	// Retry is when the next attempt begins; absent while there is none to wait for.
	Retry time.Time `json:"retry,omitzero"`
	// Error is why the tunnel is not open, if that is known.
	Error string `json:"trouble,omitempty"`
}

// RecentError is an error that status shows. It holds no part of a call's content.
type RecentError struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// maxControl bounds the body of a control request, in bytes.
const maxControl = 64 << 10

// socketSurface returns the handler of the daemon's socket. It is for the owner's own
// programs: the mode of the socket (0600) is the only access control. Every other path
// is the local surface, with the same guard and rate limit as over TCP.
func (d *Daemon) socketSurface(local http.Handler) http.Handler {
	no := false
	_, own, _ := strings.Cut(strings.TrimSuffix(d.base, "/v1"), "//")
	routes := map[string]http.HandlerFunc{
		"GET /status": func(w http.ResponseWriter, r *http.Request) { writeJSON(w, http.StatusOK, d.Status()) },
		"POST /pause": d.servePause,
		"POST /resume": func(w http.ResponseWriter, r *http.Request) {
			d.retryRefused()
			d.answerChange(w, Change{Paused: &no})
		},
		"POST /drain":  d.serveDrain,
		"POST /hours":  d.serveHours,
		"POST /reload": d.serveReload,
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
		r.Host = own // a socket has no host name, and no browser reaches it
		local.ServeHTTP(w, r)
	})
}

// HoursChange is the body of POST /hours.
type HoursChange struct {
	Hours    string `json:"hours"`    // as fleet.ParseHours reads them; empty: always
	Timezone string `json:"timezone"` // IANA name; empty: unchanged
}

func (d *Daemon) serveHours(w http.ResponseWriter, r *http.Request) {
	var body HoursChange
	if !readChange(w, r, &body) {
		return
	}
	change := Change{Hours: &body.Hours}
	if body.Timezone != "" {
		change.Timezone = &body.Timezone
	}
	d.answerChange(w, change)
}

// PauseChange is the body of POST /pause. An absent body is the zero PauseChange.
type PauseChange struct {
	Until time.Time `json:"until,omitzero"` // when the pause ends by itself; zero: at POST /resume
}

func (d *Daemon) servePause(w http.ResponseWriter, r *http.Request) {
	var body PauseChange
	if r.ContentLength != 0 && !readChange(w, r, &body) {
		return
	}
	yes := true
	d.answerChange(w, Change{Paused: &yes, Until: &body.Until})
}

// serveDrain responds once no call of the hub runs. It fails if this machine is not
// paused, or no longer: then further calls start.
func (d *Daemon) serveDrain(w http.ResponseWriter, r *http.Request) {
	for {
		changed := d.offers.watch() // first, so that no change during the reading is missed
		now, _ := d.settings.current(time.Now())
		if !now.Paused {
			refuseChange(w, errors.New("cannot drain this machine: it is not paused (any more), and still takes calls"))
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

// readChange decodes a change's JSON strictly, or writes an error response.
func readChange(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxControl), into, json.RejectUnknownMembers(true))
	if err != nil {
		refuseChange(w, fmt.Errorf("cannot read the change: %w", err))
	}
	return err == nil
}

func (d *Daemon) answerChange(w http.ResponseWriter, change Change) {
	if err := d.change(change); err != nil {
		refuseChange(w, err)
		return
	}
	now, _ := d.settings.current(time.Now())
	writeJSON(w, http.StatusOK, now)
}

// change applies a change that the owner made over the socket or on the site, and
// notifies the hub.
func (d *Daemon) change(c Change) error {
	err := d.settings.change(c)
	if err != nil && !errors.Is(err, errPauseUnsaved) {
		return err
	}
	d.offers.setChanged()
	now, _ := d.settings.current(time.Now())
	d.log.Info("sharing changed", "paused", now.Paused, "until", now.Until, "hours", now.Hours, "timezone", now.Timezone, "slots", now.Slots)
	return err
}

// pauseCheckInterval is how often the end of a timed pause is checked. A timer stops
// while a laptop sleeps; the pause does not.
const pauseCheckInterval = 30 * time.Second

// endTimedPauses ends each timed pause at its time, one from before the start of this
// daemon too.
func (d *Daemon) endTimedPauses(ctx context.Context) error {
	for {
		changed := d.offers.watch()
		var over <-chan time.Time
		if paused, until := d.settings.pause(); paused && !until.IsZero() {
			left := time.Until(until)
			if left <= 0 {
				no := false
				if err := d.change(Change{Paused: &no}); err != nil {
					d.recordError("the pause is over, and that cannot be saved: %v", err)
					d.offers.setChanged() // the pause is over in any case
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

// Status returns the daemon's present state.
func (d *Daemon) Status() Status {
	sharing, hours := d.settings.current(time.Now())
	ofHub, local := d.admission.running("")
	s := Status{
		Version: d.config.Version, Started: d.started,
		Sharing: sharing, Open: hours.Open(time.Now()), Slots: d.slots(sharing), Groups: d.policy.Load().groups, Routed: ofHub, Own: local,
		Yielding: d.admission.ownerOnly(),
		Models:   []fleet.ModelID{}, Engines: []EngineStatus{},
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
	d.mu.Lock()
	defer d.mu.Unlock()
	s.PausedBy = slices.Clone(d.power.pausedBy)
	s.Local, s.Tunnel, s.RecentErrors = d.base, d.tunnel, slices.Clone(d.recentErrors)
	return s
}

// statusesOf returns the status of an engine that kith runs, and of each model that it
// cannot serve. A process that serves one model has its name.
func statusesOf(e *engine.Engine) (all []EngineStatus) {
	status := EngineStatus{Place: e.Base(), Kind: e.Kind(), Name: e.Name(), Models: len(e.Models()), Graphics: e.Graphics()}
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
		all = append(all, EngineStatus{Place: e.Base(), Kind: e.Kind(), Name: e.Name() + " for " + string(id), Model: string(id), Why: problems[id]})
	}
	return all
}

// refuseChange writes err in the same form as the local surface does.
func refuseChange(w http.ResponseWriter, err error) {
	writeFault(w, fault.New(fault.InvalidRequest, "%v", err), "")
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, v) // the only error is a closed connection
}
