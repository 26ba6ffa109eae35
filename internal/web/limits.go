package web

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Bounds of what limits may say.
const (
	maxModels = 64
	maxLimit  = 1_000_000
)

// Limits are what an owner limits a share to, or the calls of a group; one that
// is empty or null is none.
type Limits struct {
	Models []string `json:"models"`
	// Hours are weekly windows as ParseHours reads them, on the wall clock of
	// each machine's zone; they narrow the machine's own.
	Hours      string `json:"hours"`
	Concurrent *int   `json:"concurrent"` // calls at once
	PerDay     *int   `json:"per_day"`    // calls started in one UTC day
}

func viewLimits(l account.Limits) Limits {
	v := Limits{Models: l.Models, Hours: l.Hours}
	if v.Models == nil {
		v.Models = []string{}
	}
	if l.Concurrent > 0 {
		v.Concurrent = &l.Concurrent
	}
	if l.PerDay > 0 {
		v.PerDay = &l.PerDay
	}
	return v
}

// limitChange is the part of a body that changes limits: a member that is absent
// leaves its limit as it is, null ends it.
type limitChange struct {
	Models     given[[]string] `json:"models,omitzero"`
	Hours      given[string]   `json:"hours,omitzero"`
	Concurrent given[int]      `json:"concurrent,omitzero"`
	PerDay     given[int]      `json:"per_day,omitzero"`
}

// given is a member of a body that may be absent, null or a value.
type given[T any] struct {
	value *T   // nil: null
	there bool // not absent
}

// UnmarshalJSONFrom satisfies json.UnmarshalerFrom.
func (g *given[T]) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	g.there = true
	return json.UnmarshalDecode(from, &g.value)
}

// change is the value to change to: nil is no change, and null the zero value.
func (g given[T]) change() *T {
	if g.there && g.value == nil {
		return new(T)
	}
	return g.value
}

// check refuses limits that mean nothing, and writes the hours in their one form.
func (c limitChange) check() (account.LimitChange, error) {
	to := account.LimitChange{Models: c.Models.change(), Hours: c.Hours.change(), Concurrent: c.Concurrent.change(), PerDay: c.PerDay.change()}
	if to.Models != nil {
		if len(*to.Models) > maxModels {
			return to, fault.New(fault.InvalidRequest, "limits name at most %d models; name none to allow all", maxModels).WithParam("models")
		}
		for _, id := range *to.Models {
			if !fleet.ModelID(id).Valid() {
				return to, fault.New(fault.InvalidRequest, "%.80q is no model's id: write it exactly as GET /v1/models lists it", id).WithParam("models")
			}
		}
	}
	if to.Hours != nil {
		hours, err := fleet.ParseHours(*to.Hours, "")
		if err != nil {
			return to, fault.New(fault.InvalidRequest, "%v", err).WithParam("hours")
		}
		written := hours.String()
		to.Hours = &written
	}
	if n := c.Concurrent.value; n != nil && (*n < 1 || *n > maxLimit) {
		return to, fault.New(fault.InvalidRequest, "concurrent is how many calls may run at once, 1 to %d; for no limit send null, or leave the field of a form empty; "+
			"to let none run, end the share, keep the machine out of the group or pause it", maxLimit).WithParam("concurrent")
	}
	if n := c.PerDay.value; n != nil && (*n < 1 || *n > maxLimit) {
		return to, fault.New(fault.InvalidRequest, "per_day is how many calls a day may start, 1 to %d; for no limit send null, or leave the field of a form empty; "+
			"to let none start, end the share, keep the machine out of the group or pause it", maxLimit).WithParam("per_day")
	}
	return to, nil
}

// warnings says which of the models that limits name no machine of the caller's
// offers, online or not: such a limit is taken, since a machine may offer it later.
func (a *API) warnings(r *request, to account.LimitChange) []string {
	if to.Models == nil {
		return nil
	}
	var offered []fleet.ModelID
	for m := range a.Snapshot().Reach(r.caller.Member, fleet.OwnOnly) {
		for _, o := range m.Offers {
			offered = append(offered, o.ID)
		}
	}
	var out []string
	for _, id := range *to.Models {
		id := fleet.ModelID(id)
		if slices.Contains(offered, id) {
			continue
		}
		text := fmt.Sprintf("no machine of yours offers the model %q: until one does, this names nothing", id)
		if i := slices.IndexFunc(offered, func(o fleet.ModelID) bool { return nearly(o) == nearly(id) }); i >= 0 {
			text += fmt.Sprintf("; did you mean %q?", offered[i])
		}
		out = append(out, text)
	}
	return out
}

// GroupLimits are what the caller limits the calls of a group's members to.
type GroupLimits struct {
	Group string `json:"group"`
	Limits
	Cut      int      `json:"cut,omitzero"`      // calls that run and end with the change
	Warnings []string `json:"warnings,omitzero"` // of models that no machine of the caller's offers
}

// limitGroup is POST /api/groups/{group}/limits: what all members of the group
// together may call on the caller's machines by it.
func (a *API) limitGroup(r *request) (any, error) {
	ask, err := read[limitChange](r)
	if err != nil {
		return nil, err
	}
	to, err := ask.check()
	if err != nil {
		return nil, err
	}
	cut := 0
	if to.Models != nil {
		cut = a.cut(endsWithGroupLimits(r.group.ID, r.me, *to.Models))
	}
	now, err := a.Accounts.PutGroupLimits(r.Context(), r.me, r.group.ID, to)
	if err != nil {
		return nil, notFound(err, "you are not in group %q", r.group.Name)
	}
	return GroupLimits{r.group.Name, viewLimits(now), cut, a.warnings(r, to)}, nil
}
