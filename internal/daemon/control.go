package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Status is everything `kith status` shows.
type Status struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Local   string    `json:"local"` // the local surface's base URL, with /v1

	Line LineStatus `json:"line"`

	Sharing Sharing `json:"sharing"`
	Open    bool    `json:"open"` // inside the sharing hours just now
	// PausedBy says why this machine has paused by itself; absent: it has not.
	PausedBy []string `json:"paused_by,omitempty"`
	// Yielding says that no call from the hub begins now, for the owner's own.
	Yielding bool `json:"yielding"`
	Slots    int  `json:"slots"` // in force: the owner's, else the engines'
	// Groups are the only ones that this machine serves; absent: every one.
	Groups []string `json:"groups,omitzero"`
	Routed int      `json:"routed"`
	Own    int      `json:"own"` // running calls of the local surface

	Models  []fleet.ModelID `json:"models"`
	Engines []EngineStatus  `json:"engines"` // the built-in one, and each place that was looked at
	// Troubles are the last errors, oldest first.
	Troubles []Trouble `json:"troubles,omitempty"`
}

// EngineStatus is one engine, or one place where there is none to use.
type EngineStatus struct {
	Place      string `json:"place"` // its address, without /v1
	Configured bool   `json:"configured"`
	Kind       string `json:"kind,omitempty"`
	Name       string `json:"name,omitempty"`
	Models     int    `json:"models"`
	Others     int    `json:"others,omitzero"` // calls of other programs that it runs, where it tells
	Why        string `json:"why,omitempty"`   // why there is no engine to use
}

// LineStatus is the line to the hub.
type LineStatus struct {
	SignedIn bool      `json:"signed_in"`
	Hub      string    `json:"hub,omitempty"`
	Machine  string    `json:"machine,omitempty"`
	Name     string    `json:"name,omitempty"`
	State    string    `json:"state"` // a LineState's word
	Since    time.Time `json:"since"`
	// Trouble says why the line is not up, if that is known.
	Trouble string `json:"trouble,omitempty"`
}

// Trouble is one error of the recent past; it holds nothing of a call's content.
type Trouble struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// maxControl bounds the body of a control request, in bytes.
const maxControl = 64 << 10

// socketSurface is the API of the daemon's socket for the owner's own programs:
// whoever may open the socket (0600) may do everything here. Every other path
// is the local surface, behind the same guard and rate as over TCP.
func (d *Daemon) socketSurface(local http.Handler) http.Handler {
	no := false
	_, own, _ := strings.Cut(strings.TrimSuffix(d.base, "/v1"), "//")
	routes := map[string]http.HandlerFunc{
		"GET /status":  func(w http.ResponseWriter, r *http.Request) { writeJSON(w, http.StatusOK, d.Status()) },
		"POST /pause":  d.servePause,
		"POST /resume": func(w http.ResponseWriter, r *http.Request) { d.answerChange(w, Change{Paused: &no}) },
		"POST /drain":  d.serveDrain,
		"POST /hours":  d.serveHours,
		"POST /reload": d.serveReload,
		"POST /discover": func(w http.ResponseWriter, r *http.Request) {
			d.askCheck()
			d.checkUpstreams(r.Context())
			d.finder.Probe(r.Context())
			writeJSON(w, http.StatusOK, d.Status())
		},
		"POST /signin": func(w http.ResponseWriter, r *http.Request) {
			d.reconnect()
			w.WriteHeader(http.StatusNoContent)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if serve := routes[r.Method+" "+r.URL.Path]; serve != nil {
			defer func() { // a defect of this request only
				if v := recover(); v != nil {
					err := fault.Defect(v)
					d.log.Error("a request of the owner's failed", "request", r.Method+" "+r.URL.Path, "error", err)
					refuse(w, fault.Of(err))
				}
			}()
			serve(w, r)
			return
		}
		r.Host = own // a socket has no name of its own, and no browser reaches it
		local.ServeHTTP(w, r)
	})
}

// HoursChange is the body of POST /hours.
type HoursChange struct {
	Hours    string `json:"hours"`    // as fleet.ParseHours reads them; empty: always
	Timezone string `json:"timezone"` // IANA name; empty: as it was
}

func (d *Daemon) serveHours(w http.ResponseWriter, r *http.Request) {
	var asked HoursChange
	if !readChange(w, r, &asked) {
		return
	}
	change := Change{Hours: &asked.Hours}
	if asked.Timezone != "" {
		change.Timezone = &asked.Timezone
	}
	d.answerChange(w, change)
}

// PauseChange is the body of POST /pause, which may have none.
type PauseChange struct {
	Until time.Time `json:"until,omitzero"` // when the pause ends by itself; zero: when it is told to
}

func (d *Daemon) servePause(w http.ResponseWriter, r *http.Request) {
	var asked PauseChange
	if r.ContentLength != 0 && !readChange(w, r, &asked) {
		return
	}
	yes := true
	d.answerChange(w, Change{Paused: &yes, Until: &asked.Until})
}

// serveDrain answers once no call from the hub runs any more: in a pause none
// begins. It fails where this machine is not paused, or no longer.
func (d *Daemon) serveDrain(w http.ResponseWriter, r *http.Request) {
	for {
		changed := d.board.change() // first: a change while the rest is read counts
		now, _ := d.settings.current(time.Now())
		if !now.Paused {
			refuseChange(w, errors.New("cannot drain this machine: it is not paused (any more), and goes on taking calls"))
			return
		}
		drained := d.desk.drained()
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

// readChange reads a change's strict JSON, or answers that it cannot.
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

// change brings a change of the owner's into force, from the socket or from the
// site down the tunnel, and tells the hub.
func (d *Daemon) change(c Change) error {
	if err := d.settings.change(c); err != nil {
		return err
	}
	d.board.touch()
	now, _ := d.settings.current(time.Now())
	d.log.Info("sharing changed", "paused", now.Paused, "until", now.Until, "hours", now.Hours, "timezone", now.Timezone, "slots", now.Slots)
	return nil
}

// pauseLook is how often a timed pause is looked at: a timer stands still while
// a laptop sleeps, and the pause does not.
const pauseLook = 30 * time.Second

// keepPause ends a timed pause when its time is over, also one that began
// before this daemon did.
func (d *Daemon) keepPause(ctx context.Context) error {
	for {
		changed := d.board.change()
		var over <-chan time.Time
		if paused, until := d.settings.pause(); paused && !until.IsZero() {
			left := time.Until(until)
			if left <= 0 {
				no := false
				if err := d.change(Change{Paused: &no}); err != nil {
					d.trouble("the pause is over, and that cannot be saved: %v", err)
					d.board.touch() // it is over all the same
					over = time.After(pauseLook)
				}
				changed = d.board.change()
			} else {
				over = time.After(min(left, pauseLook))
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

// Status is how the daemon is just now.
func (d *Daemon) Status() Status {
	sharing, hours := d.settings.current(time.Now())
	routed, own := d.desk.load("")
	s := Status{
		Version: d.config.Version, Started: d.started,
		Sharing: sharing, Open: hours.Open(time.Now()), Slots: d.slots(sharing), Groups: d.policy.Load().groups, Routed: routed, Own: own,
		Yielding: d.desk.owners(),
		Models:   []fleet.ModelID{}, Engines: []EngineStatus{},
	}
	if e := d.config.Builtin; e != nil {
		s.Engines = append(s.Engines, EngineStatus{Place: e.Base(), Kind: e.Kind(), Name: e.Name(), Models: len(e.Models())})
	}
	for _, e := range d.board.servers {
		found := EngineStatus{Place: e.Base(), Kind: e.Kind(), Name: e.Name() + " for " + string(e.Models()[0].ID), Models: len(e.Models()), Why: e.Problem()}
		if found.Why != "" {
			found.Models = 0
		}
		s.Engines = append(s.Engines, found)
	}
	for _, f := range d.finder.Report() {
		s.Engines = append(s.Engines, EngineStatus(f))
	}
	if d.audio != nil {
		s.Engines = append(s.Engines, EngineStatus(d.audio.Finding()))
	}
	for _, u := range d.board.upstreams {
		s.Engines = append(s.Engines, EngineStatus(u.Finding()))
	}
	for _, o := range d.board.offers(d.board.own()) {
		s.Models = append(s.Models, fleet.ModelID(o.ID))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.PausedBy = slices.Clone(d.comfort.pausedBy)
	s.Local, s.Line, s.Troubles = d.base, d.line, slices.Clone(d.troubles)
	return s
}

// refuseChange tells the owner's program why not, in the envelope of the local
// surface, so that one reader does for both.
func refuseChange(w http.ResponseWriter, err error) {
	refuse(w, fault.New(fault.InvalidRequest, "%v", err))
}

func refuse(w http.ResponseWriter, f *fault.Fault) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status())
	_, _ = w.Write(dialect.FaultBody(dialect.Chat, f, "")) // the only error is a client that left
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, v) // the only error is a client that left
}
