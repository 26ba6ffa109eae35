package api

import (
	"slices"

	"github.com/kith/kith/internal/fleet"
)

// cut counts the running calls that will end because of a change.
func (a *API) cut(ends func(s *fleet.Snapshot, u fleet.ActiveCall) bool) int {
	n, s := 0, a.Snapshot()
	for _, u := range a.Running() {
		if u.Caller != u.Machine.Owner && ends(s, u) {
			n++
		}
	}
	return n
}

// endsWithShare reports whether a call of the member on the owner's machines ends with
// the share. If both are in a group, it continues through the group.
func endsWithShare(owner, member string) func(*fleet.Snapshot, fleet.ActiveCall) bool {
	return func(s *fleet.Snapshot, u fleet.ActiveCall) bool {
		if string(u.Machine.Owner) != owner || string(u.Caller) != member {
			return false
		}
		_, groups := s.WithoutShare(u.Machine.Owner, u.Caller).AccessPaths(u.Caller, u.Machine, u.Model)
		return len(groups) == 0
	}
}

// CutByShareEnd returns how many running calls would end with the share between the owner
// and the member, given by their ids.
func (a *API) CutByShareEnd(owner, member string) int { return a.cut(endsWithShare(owner, member)) }

// CutByGroupEnd returns how many running calls would end with the group of the given id.
func (a *API) CutByGroupEnd(group string) int { return a.cut(endsWithGroup(group)) }

// endsWithLimits reports whether a call of the member on the owner's machines ends if the
// share is limited to the given models. While there is a share, groups that both are in
// do not count.
func endsWithLimits(owner, member string, models []string) func(*fleet.Snapshot, fleet.ActiveCall) bool {
	return func(_ *fleet.Snapshot, u fleet.ActiveCall) bool {
		return string(u.Machine.Owner) == owner && string(u.Caller) == member && leavesOut(models, u.Model)
	}
}

// endsWithGroupLimits reports whether a call on the owner's machines ends if the group is
// limited to the given models, because it has no other way to the machine.
func endsWithGroupLimits(group, owner string, models []string) func(*fleet.Snapshot, fleet.ActiveCall) bool {
	only := endsWithGroup(group)
	return func(s *fleet.Snapshot, u fleet.ActiveCall) bool {
		return string(u.Machine.Owner) == owner && leavesOut(models, u.Model) && only(s, u)
	}
}

// leavesOut reports whether a limit to the given models excludes the model.
func leavesOut(models []string, model fleet.ModelID) bool {
	return len(models) > 0 && !slices.Contains(models, string(model))
}

// endsWithGroup reports whether a call uses the given group only and, if members are
// given, is by one of them or on a machine of one of them.
func endsWithGroup(group string, members ...string) func(*fleet.Snapshot, fleet.ActiveCall) bool {
	return func(s *fleet.Snapshot, u fleet.ActiveCall) bool {
		if len(members) > 0 && !slices.Contains(members, string(u.Caller)) && !slices.Contains(members, string(u.Machine.Owner)) {
			return false
		}
		shares, groups := s.AccessPaths(u.Caller, u.Machine, u.Model)
		return len(shares) == 0 && len(groups) == 1 && string(groups[0].ID) == group
	}
}
