package web

import (
	"context"
	"errors"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// controlTime is how long a machine may take to bring a change into force.
const controlTime = 10 * time.Second

// maxSlots is the most slots a machine can be told to have.
const maxSlots = 1024

// Machine is a machine as its owner is told of it. What it says of itself is
// its newest advertisement; of one that never connected there is none.
type Machine struct {
	ID       string         `json:"id"`
	Name     string         `json:"name"`
	Online   bool           `json:"online"`
	Paused   bool           `json:"paused"`
	Hours    string         `json:"hours"` // empty: always
	Timezone string         `json:"timezone"`
	Open     bool           `json:"open"` // inside its hours now
	Slots    int            `json:"slots"`
	Running  int            `json:"running"` // calls that this hub sent it
	Queued   int            `json:"queued"`  // calls that wait and that it could take
	Models   []MachineModel `json:"models"`
	KeptOut  bool           `json:"kept_out"` // of every group
	// Groups are the only ones it serves, by its own configuration; absent: every
	// one of its owner's.
	Groups   []string  `json:"groups,omitzero"`
	Created  time.Time `json:"created"`
	LastSeen time.Time `json:"last_seen,omitzero"`
}

// MachineModel is one model that a machine offers.
type MachineModel struct {
	ID            fleet.ModelID `json:"id"`
	ContextLength int           `json:"context_length,omitzero"`
	Slots         int           `json:"slots,omitzero"` // 0: only the machine's count
	// FirstTokenMS is the recent mean time to the first token, in milliseconds;
	// absent: not measured since this hub began.
	FirstTokenMS int64 `json:"first_token_ms,omitzero"`
	// TokensPerSecond is how fast it answered over the last 7 days, from when a
	// call left the queue to its end; absent: it did not.
	TokensPerSecond float64 `json:"tokens_per_second,omitzero"`
}

// speedDays is how many days a machine's speed is told of.
const speedDays = 7

// viewLive is a machine as the hub knows it, without what only the store does.
func (a *API) viewLive(live *fleet.Machine, now time.Time) Machine {
	v := viewMachine(account.Machine{ID: string(live.ID), Name: live.Name, KeptOut: live.KeptOut, Created: live.Created}, live, now)
	v.Queued = a.Queued(live)
	return v
}

func viewMachine(record account.Machine, live *fleet.Machine, now time.Time) Machine {
	v := Machine{
		ID: record.ID, Name: record.Name, KeptOut: record.KeptOut, Created: record.Created, LastSeen: record.LastSeen,
		Models: []MachineModel{},
	}
	if live == nil {
		return v
	}
	v.Online, v.Paused, v.Hours, v.Timezone = live.Online, live.Paused, live.Hours.String(), live.Hours.Zone()
	v.Groups = live.Groups
	v.Open, v.Slots, v.Running = live.Hours.Open(now), live.Slots, live.Load.InFlight()
	if live.Online {
		v.LastSeen = now.UTC()
	}
	for _, o := range live.Offers {
		v.Models = append(v.Models, MachineModel{ID: o.ID, ContextLength: o.ContextLength, Slots: o.Slots, FirstTokenMS: o.Load.TTFT().Milliseconds()})
	}
	return v
}

// listMachines is GET /api/machines: the caller's own that may connect.
func (a *API) listMachines(r *request) (any, error) {
	records, err := a.Accounts.Machines(r.Context(), r.me)
	if err != nil {
		return nil, err
	}
	var views []Machine
	snapshot, now := a.Snapshot(), time.Now()
	speeds, err := a.speeds(r, now.UTC().Truncate(aDay).AddDate(0, 0, 1-speedDays))
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		if !record.Revoked.IsZero() {
			continue
		}
		live := snapshot.Machine(fleet.MachineID(record.ID))
		v := viewMachine(record, live, now)
		if live != nil {
			v.Queued = a.Queued(live)
		}
		for i := range v.Models {
			v.Models[i].TokensPerSecond = speeds[offered{record.ID, string(v.Models[i].ID)}]
		}
		views = append(views, v)
	}
	return listOf(views), nil
}

// offered names a model on a machine.
type offered struct{ machine, model string }

// speeds is how many tokens a second each model on each of the caller's machines
// gave since then, over all calls that were served whole.
func (a *API) speeds(r *request, since time.Time) (map[offered]float64, error) {
	tokens, took := map[offered]int64{}, map[offered]time.Duration{}
	err := a.Accounts.DaysOfOwner(r.Context(), r.me, since, func(d account.UsageDay) {
		if of := (offered{d.MachineID, d.Model}); d.Code == "" {
			tokens[of] += d.TokensOut
			took[of] += d.Duration - d.Waited
		}
	})
	speeds := map[offered]float64{}
	for of, n := range tokens {
		if n > 0 && took[of] > 0 {
			speeds[of] = float64(n) / took[of].Seconds()
		}
	}
	return speeds, err
}

// owns lets the owner of the machine in the path pass.
func (a *API) owns(r *request) (err error) {
	id := r.values["machine"]
	r.machine, err = a.Accounts.OwnMachine(r.Context(), r.me, id)
	return notFound(err, "you have no machine with the id %.80q", id)
}

// machineAct says what was done to a machine.
type machineAct struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State string `json:"state"`
	Cut   int    `json:"cut,omitzero"` // calls that ran and end with it
}

// revokeMachine is DELETE /api/machines/{machine}: its credential is good for
// nothing from here on, and its tunnel ends. What the ledger has of it stays.
func (a *API) revokeMachine(r *request) (any, error) {
	cut := a.cut(func(_ *fleet.Snapshot, u Use) bool { return string(u.Machine.ID) == r.machine.ID })
	err := a.Accounts.RevokeMachine(r.Context(), r.machine.ID, time.Now().UTC())
	if err != nil {
		return nil, notFound(err, "machine %q was revoked already", r.machine.Name)
	}
	return machineAct{r.machine.ID, r.machine.Name, "revoked", cut}, nil
}

// machineName is the body of POST /api/machines/{machine}/name.
type machineName struct {
	Name string `json:"name"`
}

// renameMachine is POST /api/machines/{machine}/name {"name"}.
func (a *API) renameMachine(r *request) (any, error) {
	ask, err := read[machineName](r)
	if err != nil {
		return nil, err
	}
	if f := CheckName(ask.Name); f != nil {
		return nil, f
	}
	if err := a.Accounts.RenameMachine(r.Context(), r.me, r.machine.ID, ask.Name); err != nil {
		return nil, taken(notFound(err, "machine %q was revoked", r.machine.Name), "you have a machine named %q already", ask.Name)
	}
	return machineAct{ID: r.machine.ID, Name: ask.Name, State: "renamed"}, nil
}

// Control is a change of the owner's to a machine: what is nil stays as it is.
type Control struct {
	// Paused stops, or begins again, to take calls; those that run finish.
	Paused *bool `json:"paused,omitzero"`
	// Until ends a pause by itself.
	Until *time.Time `json:"until,omitzero"`
	// Hours are weekly windows as ParseHours reads them, in Timezone, an IANA
	// name; empty: always.
	Hours    *string `json:"hours,omitzero"`
	Timezone *string `json:"timezone,omitzero"`
	// Slots is how many calls may run at once; 0: as many as the engines say.
	Slots *int `json:"slots,omitzero"`
}

// check refuses what a machine would refuse, in words that name the member.
func (c *Control) check(now time.Time) error {
	switch {
	case *c == Control{}:
		return fault.New(fault.InvalidRequest, "nothing is to be changed: give paused, hours, timezone or slots")
	case c.Until != nil && (c.Paused == nil || !*c.Paused):
		return fault.New(fault.InvalidRequest, "until ends a pause: it goes with paused = true").WithParam("until")
	case c.Until != nil && !c.Until.After(now):
		return fault.New(fault.InvalidRequest, "the end of the pause is past already").WithParam("until")
	case c.Slots != nil && (*c.Slots < 0 || *c.Slots > maxSlots):
		return fault.New(fault.InvalidRequest, "slots is how many calls may run at once, up to %d; 0 is what the engines say", maxSlots).WithParam("slots")
	}
	if c.Timezone != nil {
		if _, err := fleet.ParseHours("", *c.Timezone); err != nil {
			return fault.New(fault.InvalidRequest, "%v", err).WithParam("timezone")
		}
	}
	if c.Hours != nil {
		if _, err := fleet.ParseHours(*c.Hours, ""); err != nil {
			return fault.New(fault.InvalidRequest, "%v", err).WithParam("hours")
		}
	}
	return nil
}

// controlMachine is POST /api/machines/{machine}/control: the machine keeps the
// change, and is asked for it now.
func (a *API) controlMachine(r *request) (any, error) {
	change, err := read[Control](r)
	if err != nil {
		return nil, err
	}
	if err := change.check(time.Now()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), controlTime)
	defer cancel()
	err = a.Control(ctx, fleet.MachineID(r.machine.ID), change)
	switch {
	case errors.Is(err, ErrNotConnected):
		return nil, fault.New(fault.MachineOffline, "machine %q is not connected: change it there, or once it is", r.machine.Name)
	case err != nil:
		return nil, fault.New(fault.MachineOffline, "machine %q did not take the change; try again", r.machine.Name).Because(err)
	}
	return machineAct{ID: r.machine.ID, Name: r.machine.Name, State: "changed"}, nil
}

// keepOutOf is the body of POST /api/machines/{machine}/keep-out: one group or all.
type keepOutOf struct {
	Group string `json:"group,omitzero"`
	All   bool   `json:"all,omitzero"`
	Undo  bool   `json:"undo,omitzero"`
}

// keptOut says which groups a machine is kept out of, or is not any more.
type keptOut struct {
	Machine string `json:"machine"` // its name
	KeptOut bool   `json:"kept_out"`
	Group   string `json:"group,omitzero"`
	All     bool   `json:"all,omitzero"`
	Cut     int    `json:"cut,omitzero"` // calls that ran and end with it
}

// keepOut is POST /api/machines/{machine}/keep-out {"group"} or {"all":true},
// with {"undo":true} to let it in again.
func (a *API) keepOut(r *request) (any, error) {
	ask, err := read[keepOutOf](r)
	switch {
	case err != nil:
		return nil, err
	case (ask.Group == "") != ask.All:
		return nil, fault.New(fault.InvalidRequest, "name the group that the machine is kept out of, or give all = true").WithParam("group")
	}
	answer := keptOut{Machine: r.machine.Name, KeptOut: !ask.Undo, All: ask.All}
	if ask.All {
		if !ask.Undo {
			answer.Cut = a.cut(func(s *fleet.Snapshot, u Use) bool {
				shares, _ := s.Ways(u.Caller, u.Machine, u.Model)
				return string(u.Machine.ID) == r.machine.ID && len(shares) == 0
			})
		}
		return answer, a.Accounts.KeepOutOfAll(r.Context(), r.me, r.machine.ID, !ask.Undo)
	}
	group, err := a.group(r, ask.Group)
	if err != nil {
		return nil, err
	}
	if answer.Group = group.Name; !ask.Undo {
		ends := endsWithGroup(group.ID)
		answer.Cut = a.cut(func(s *fleet.Snapshot, u Use) bool { return string(u.Machine.ID) == r.machine.ID && ends(s, u) })
	}
	return answer, a.Accounts.KeepOutOwn(r.Context(), r.me, group.ID, r.machine.ID, !ask.Undo)
}
