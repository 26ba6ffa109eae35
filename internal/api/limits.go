package api

import (
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"slices"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// The maximum values of limits.
const (
	maxModels = 64
	MaxLimit  = 1_000_000 // of calls, at once or a day
)

// Limits are an owner's limits for a share or a group. Empty or null means no limit.
type Limits struct {
	Models []string `json:"models"`
	// Hours are weekly windows in the format of ParseHours, in each machine's time zone.
	// They restrict the machine's own hours.
	Hours      string `json:"hours"`
	Concurrent *int   `json:"concurrent"` // concurrent calls
	PerDay     *int   `json:"per_day"`    // calls started per UTC day
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

// LimitChange is the part of a request that changes limits: absent members leave a limit
// unchanged, null removes it.
type LimitChange struct {
	Models     Given[[]string] `json:"models,omitzero"`
	Hours      Given[string]   `json:"hours,omitzero"`
	Concurrent Given[int]      `json:"concurrent,omitzero"`
	PerDay     Given[int]      `json:"per_day,omitzero"`
}

// Given is a member of a JSON body that may be absent, null or a value.
type Given[T any] struct {
	value *T   // nil: null
	there bool // not absent
}

// Give returns a member with a value.
func Give[T any](value T) Given[T] { return Given[T]{&value, true} }

// End returns a null member, which removes a limit.
func End[T any]() Given[T] { return Given[T]{there: true} }

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (g *Given[T]) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	g.there = true
	return json.UnmarshalDecode(from, &g.value)
}

// MarshalJSONTo implements json.MarshalerTo.
func (g Given[T]) MarshalJSONTo(to *jsontext.Encoder) error { return json.MarshalEncode(to, g.value) }

// change returns the new value: nil if absent, and the zero value for null.
func (g Given[T]) change() *T {
	if g.there && g.value == nil {
		return new(T)
	}
	return g.value
}

// check validates limits and normalizes the hours.
func (c LimitChange) check() (account.LimitChange, error) {
	to := account.LimitChange{Models: c.Models.change(), Hours: c.Hours.change(), Concurrent: c.Concurrent.change(), PerDay: c.PerDay.change()}
	if to.Models != nil {
		if len(*to.Models) > maxModels {
			return to, fault.New(fault.InvalidRequest, "limits name at most %d models; name none to allow all", maxModels).WithParam("models")
		}
		for _, id := range *to.Models {
			if !fleet.ModelID(id).Valid() {
				return to, fault.New(fault.InvalidRequest, "invalid model id %.80q: write it exactly as GET /v1/models lists it", id).WithParam("models")
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
	if n := c.Concurrent.value; n != nil && (*n < 1 || *n > MaxLimit) {
		return to, fault.New(fault.InvalidRequest, "concurrent is how many calls may run at once, 1 to %d; for no limit send null; "+
			"to let none run, end the share, keep the machine out of the group or pause it", MaxLimit).WithParam("concurrent")
	}
	if n := c.PerDay.value; n != nil && (*n < 1 || *n > MaxLimit) {
		return to, fault.New(fault.InvalidRequest, "per_day is how many calls a day may start, 1 to %d; for no limit send null; "+
			"to let none start, end the share, keep the machine out of the group or pause it", MaxLimit).WithParam("per_day")
	}
	return to, nil
}

// warnings lists the models in the limits that no machine of the caller offers, online or
// not. Such limits are accepted, because a machine may offer the model later.
func (a *API) warnings(c fleet.Caller, to account.LimitChange) []string {
	var offered []fleet.ModelID
	var out []string
	for m := range a.Snapshot().Reach(c.Member, fleet.OwnOnly) {
		for _, o := range m.Offers {
			if o.ID.IsPath() && !slices.Contains(offered, o.ID) && (to.Models == nil || slices.Contains(*to.Models, string(o.ID))) {
				out = append(out, fmt.Sprintf("the id of the model %q is a path on your machine, and everyone who may use it sees it; give it a name in its engine (llama-server: --alias NAME)", o.ID))
			}
			offered = append(offered, o.ID)
		}
	}
	if to.Models == nil {
		return out
	}
	for _, id := range *to.Models {
		id := fleet.ModelID(id)
		if slices.Contains(offered, id) {
			continue
		}
		text := fmt.Sprintf("no machine of yours offers the model %q: this has no effect until one does", id)
		if i := slices.IndexFunc(offered, func(o fleet.ModelID) bool { return Skeleton(o) == Skeleton(id) }); i >= 0 {
			text += fmt.Sprintf("; did you mean %q?", offered[i])
		}
		out = append(out, text)
	}
	return out
}

// GroupLimits are the caller's limits for a group's members.
type GroupLimits struct {
	Group string `json:"group"`
	Limits
	Cut      int      `json:"cut,omitzero"`      // running calls that end because of the change
	Warnings []string `json:"warnings,omitzero"` // about models that no machine of the caller offers
}

// GroupLimitChange is a change of the caller's limits for a group.
type GroupLimitChange struct {
	Group string `json:"-" path:"group"`
	LimitChange
}

// limitGroup sets the caller's limits for all members of a group together.
func (a *API) limitGroup(ctx context.Context, c fleet.Caller, in GroupLimitChange) (GroupLimits, error) {
	group, err := a.groupIn(ctx, c, in.Group)
	if err != nil {
		return GroupLimits{}, err
	}
	to, err := in.check()
	if err != nil {
		return GroupLimits{}, err
	}
	cut := 0
	if to.Models != nil {
		cut = a.cut(endsWithGroupLimits(group.ID, string(c.Member), *to.Models))
	}
	now, err := a.DB.PutGroupLimits(ctx, string(c.Member), group.ID, to)
	if err != nil {
		return GroupLimits{}, NotFound(err, "you are not in group %q", group.Name)
	}
	return GroupLimits{group.Name, viewLimits(now), cut, a.warnings(c, to)}, nil
}
