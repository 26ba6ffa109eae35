package api

import (
	"slices"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// Use is one call that a machine runs now.
type Use struct {
	Caller  fleet.MemberID
	Name    string // the caller's
	Machine *fleet.Machine
	Model   fleet.ModelID
	Class   fleet.Class // why the caller reached it
	Since   time.Time   // the arrival of the call
}

// cut counts the calls that end with what is about to.
func (a *API) cut(ends func(s *fleet.Snapshot, u Use) bool) int {
	n, s := 0, a.Snapshot()
	for _, u := range a.Running() {
		if u.Caller != u.Machine.Owner && ends(s, u) {
			n++
		}
	}
	return n
}

// endsWithShare reports whether a call of the member on the owner's machines ends
// with the share: it continues by a group that both are in.
func endsWithShare(owner, member string) func(*fleet.Snapshot, Use) bool {
	return func(s *fleet.Snapshot, u Use) bool {
		if string(u.Machine.Owner) != owner || string(u.Caller) != member {
			return false
		}
		_, groups := s.WithoutShare(u.Machine.Owner, u.Caller).Ways(u.Caller, u.Machine, u.Model)
		return len(groups) == 0
	}
}

// CutByShareEnd returns how many running calls end with the share of the owner's
// machines with the member, by their ids.
func (a *API) CutByShareEnd(owner, member string) int { return a.cut(endsWithShare(owner, member)) }

// CutByGroupEnd returns how many running calls end with the group, by its id.
func (a *API) CutByGroupEnd(group string) int { return a.cut(endsWithGroup(group)) }

// endsWithLimits reports whether a call of the member on the owner's machines ends
// with a share of those models: the share alone decides between the two, whatever
// the call runs by.
func endsWithLimits(owner, member string, models []string) func(*fleet.Snapshot, Use) bool {
	return func(_ *fleet.Snapshot, u Use) bool {
		return string(u.Machine.Owner) == owner && string(u.Caller) == member && leavesOut(models, u.Model)
	}
}

// endsWithGroupLimits reports whether a call on the owner's machines ends with a
// limit of that group to those models: it has no other way.
func endsWithGroupLimits(group, owner string, models []string) func(*fleet.Snapshot, Use) bool {
	only := endsWithGroup(group)
	return func(s *fleet.Snapshot, u Use) bool {
		return string(u.Machine.Owner) == owner && leavesOut(models, u.Model) && only(s, u)
	}
}

// leavesOut reports whether limits of those models do not cover that one.
func leavesOut(models []string, model fleet.ModelID) bool {
	return len(models) > 0 && !slices.Contains(models, string(model))
}

// endsWithGroup reports whether a call runs by that group alone, and, if members are
// given, is one of theirs or on a machine of theirs.
func endsWithGroup(group string, members ...string) func(*fleet.Snapshot, Use) bool {
	return func(s *fleet.Snapshot, u Use) bool {
		if len(members) > 0 && !slices.Contains(members, string(u.Caller)) && !slices.Contains(members, string(u.Machine.Owner)) {
			return false
		}
		shares, groups := s.Ways(u.Caller, u.Machine, u.Model)
		return len(shares) == 0 && len(groups) == 1 && string(groups[0].ID) == group
	}
}
