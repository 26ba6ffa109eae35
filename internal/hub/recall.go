package hub

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/site"
)

const (
	// recallWithin bounds the look-ups after a change.
	recallWithin = 2 * time.Second
	// blindFor is how long what runs goes on, after nothing new is granted any
	// more, while no change of the store can be seen: 30 s in all.
	blindFor = 25 * time.Second
)

// all is the calls underway now.
func (u *underway) all() []*dispatch {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := make([]*dispatch, 0, len(u.calls))
	for d := range u.calls {
		out = append(out, d)
	}
	return out
}

// uses is what machines run now.
func (u *underway) uses() []api.Use {
	var out []api.Use
	for _, d := range u.all() {
		if on := d.on.Load(); on != nil {
			out = append(out, api.Use{
				Caller: d.call.Caller.Member, Name: d.call.Caller.Name,
				Machine: on.Machine, Model: d.call.Model, Class: on.Class,
			})
		}
	}
	return out
}

// recall ends a call, if it still is underway.
func (u *underway) recall(d *dispatch, why *fault.Fault) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if cancel := u.calls[d]; cancel != nil {
		cancel(why)
	}
}

// recall ends every call that may not go on after the changes; nil: after any.
func (h *Hub) recall(changes []fleet.Change) {
	ctx, cancel := context.WithTimeout(context.Background(), recallWithin)
	defer cancel()
	good := make(map[gateway.Caller]bool)
	for _, d := range h.underway.all() {
		caller := d.call.Caller
		if _, known := good[caller]; !known {
			good[caller] = !concerned(caller, changes) || h.stands(ctx, caller)
		}
		switch c := d.on.Load(); {
		case !good[caller]:
			h.underway.recall(d, badKey())
		case c != nil && !h.reaches(caller, c.held):
			c.end(h.outOfReach(d.call))
		}
	}
}

// recallUnsure ends every call that a machine runs once it can no longer be
// told whether it still may. Who waits, waits on (decisions 3).
func (h *Hub) recallUnsure(now time.Time) {
	if h.live.Confirmed(now.Add(-blindFor)) {
		return
	}
	for _, d := range h.underway.all() {
		if d.on.Load() != nil {
			h.underway.recall(d, fault.New(fault.CascadeExhausted, "cannot confirm any more that this may go on; try again shortly"))
		}
	}
}

// concerned says whether a change is of the caller's key, machine or member.
func concerned(caller gateway.Caller, changes []fleet.Change) bool {
	return changes == nil || slices.ContainsFunc(changes, func(c fleet.Change) bool {
		return c.ID == caller.KeyID || c.ID == string(caller.Member) || c.ID == string(caller.Machine)
	})
}

// stands says whether the caller's credential is still good. While that cannot
// be told it is: a hub that cannot read the store grants nothing new anyway.
func (h *Hub) stands(ctx context.Context, caller gateway.Caller) bool {
	member, err := h.records.MemberByName(ctx, caller.Name)
	if err != nil || member.Disabled {
		return err != nil
	}
	if strings.HasPrefix(caller.KeyID, site.SiteKey) {
		return true
	}
	if caller.KeyID == "" {
		machines, err := h.records.Machines(ctx, member.ID)
		i := slices.IndexFunc(machines, func(m account.Machine) bool { return m.ID == string(caller.Machine) })
		return err != nil || i >= 0 && machines[i].Revoked.IsZero()
	}
	keys, err := h.records.Keys(ctx, member.ID)
	i := slices.IndexFunc(keys, func(k account.Key) bool { return k.ID == caller.KeyID })
	return err != nil || i >= 0 && keys[i].Revoked.IsZero()
}

// reaches says whether the caller still may use the machine that runs its call.
func (h *Hub) reaches(caller gateway.Caller, c *held) bool {
	for machine, standing := range h.live.Snapshot().Reach(caller.Member, caller.Narrow) {
		if machine.ID == c.Machine.ID {
			_, ok := standing.State(machine, c.Offer, time.Now())
			return ok
		}
	}
	// One that left the fleet ends its calls with its line.
	return h.live.Snapshot().Machine(c.Machine.ID) == nil
}

// stillReaches says whether the caller of a call that is about to be sent still may
// use its machine. A change since the decision that came before the attempt was
// noted as running is one that recall did not end it for.
func (h *Hub) stillReaches(call *gateway.Call, c *held) bool {
	ask := askOf(call)
	s := h.now(&ask)
	machine := s.Machine(c.Machine.ID)
	if machine == nil {
		return false
	}
	_, ok := fleet.StateOf(s, &ask, machine)
	return ok
}

// outOfReach is what Route says now to a call whose machine is no longer in
// reach; where another would serve it, an answer once begun still ends.
func (h *Hub) outOfReach(call *gateway.Call) *fault.Fault {
	ask := askOf(call)
	if d := h.route(&ask); d.Verdict == fleet.Refuse {
		return d.Fault
	}
	return fault.New(fault.CascadeExhausted, "the machine that ran this is no longer shared with you; another one serves the model: try again")
}
