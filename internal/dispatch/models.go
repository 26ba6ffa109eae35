package dispatch

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// Models returns the models that the caller can reach now.
func (d *Dispatcher) Models(_ context.Context, caller fleet.Caller) ([]gateway.Model, error) {
	return ListModels(d.cfg.Registry.Snapshot(), caller, d.cfg.Registry.Now()), nil
}

// ListModels returns the models that the caller can reach at that time: those of
// connected machines, sorted by id, without duplicates. Each is described by the machine
// that would serve it best.
func ListModels(s *fleet.Snapshot, caller fleet.Caller, now time.Time) []gateway.Model {
	type entry struct {
		gateway.Model
		best fleet.State
	}
	byID := map[fleet.ModelID]*entry{}
	for machine, standing := range s.Reach(caller.Member, caller.Reach) {
		if machine.ID == caller.Machine || !machine.Online {
			continue
		}
		for i := range machine.Offers {
			offer := &machine.Offers[i]
			seen, ok := standing.State(machine, offer, now)
			if !ok || seen.State < fleet.OutsideHours {
				continue
			}
			e := byID[offer.ID]
			if e == nil {
				e = &entry{best: fleet.Offline}
				byID[offer.ID] = e
			}
			e.Machines++
			// The higher state is better; if they are equal, the lower class.
			if better := cmp.Or(cmp.Compare(seen.State, e.best), cmp.Compare(e.Via, seen.Class)); better > 0 {
				e.best = seen.State
				e.Model = gateway.Model{
					ID: offer.ID, ContextLength: offer.ContextLength, Capabilities: offer.Capabilities,
					Availability: availability[seen.State], Via: seen.Class, Machines: e.Machines, Created: machine.Created,
					Owner: machine.OwnerName, Chat: offer.Families&fleet.Families(fleet.Chat) != 0,
					Facts: offer.Facts,
				}
			}
		}
	}
	models := make([]gateway.Model, 0, len(byID))
	for _, e := range byID {
		models = append(models, e.Model)
	}
	slices.SortFunc(models, func(a, b gateway.Model) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return models
}

// availability maps the states of a connected machine to their names in the listing.
var availability = [...]gateway.Availability{
	fleet.OutsideHours: gateway.OutsideHours, fleet.Paused: gateway.Paused,
	fleet.Spent: gateway.Busy, fleet.Busy: gateway.Busy, fleet.Ready: gateway.Ready,
}
