package fleet

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// Ask is one call that looks for a machine, with all that Route may know of the
// world beside the Snapshot.
type Ask struct {
	Caller MemberID
	Narrow Narrow
	// Exclude is the machine whose own daemon sent the call up: for this call it
	// does not exist. Empty: none.
	Exclude MachineID
	Model   ModelID
	Family  Family
	// Avoid are machines this call has tried already: it is not sent there and
	// does not wait for them, but they are still there to be counted.
	Avoid []MachineID
	// Unconfirmed says that it cannot be confirmed just now who shares with the
	// caller (the epoch is too old).
	Unconfirmed bool
	// Waited says that the call's time to wait has passed: no more waiting.
	Waited bool
	// Gone says that every attempt so far found its machine gone, or unwilling,
	// before it started.
	Gone bool
	Now  time.Time
	// Draw is random; it breaks ties between machines and does nothing else.
	Draw uint64
	// Owed is what is owed to waiters who go before this call; nil: nothing.
	Owed Owed
}

// Survey is what a decision was made from.
type Survey struct {
	// Counts are the reachable machines that offer the model for the family.
	Counts [classes][states]int32
	// Ready and Busy are those of them that the call may still use: none to be
	// avoided. Returning ones are among the busy.
	Ready, Busy int32
	// SomebodyShares says that a share names the caller, or that a group has
	// another member beside the caller.
	SomebodyShares            bool
	Unconfirmed, Waited, Gone bool // as asked

	// The region's machines that offer the model for the family, in reach or
	// not, online or not. A member may learn of them what the rows tell.
	kept, online int32
	// silent says that the call is for audio and that no machine of the region,
	// online or kept, offers any model for it.
	silent bool
}

// In is how many of the reachable machines are in any of those states.
func (v Survey) In(of ...State) int {
	n := int32(0)
	for _, class := range v.Counts {
		for _, state := range of {
			n += class[state]
		}
	}
	return int(n)
}

// Of is how many of the reachable machines are the caller's by that class.
func (v Survey) Of(class Class) int {
	n := int32(0)
	for _, count := range v.Counts[class] {
		n += count
	}
	return int(n)
}

// Reachable is how many reachable machines offer the model.
func (v Survey) Reachable() int { return v.Of(Own) + v.Of(Shared) + v.Of(Grouped) }

// String is the counts by state: "2 busy, 1 offline"; "none" if there are none.
func (v Survey) String() string {
	var words []string
	for below := range states {
		state := Ready - below
		if n := v.In(state); n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// Look yields every machine the caller reaches that offers the model for the
// family, as Route sees it: what a Decision's Survey counts. Slots are read as
// they are now.
func Look(s *Snapshot, a Ask) iter.Seq[Sighting] {
	return func(yield func(Sighting) bool) {
		w := newWalk(s, a.Caller, a.Narrow)
		w.offering(&a, func(m *Machine, o *Offer, st Standing) bool {
			var sighting Sighting
			return !st.sight(&sighting, m, o, a.Now, a.Owed) || yield(sighting)
		})
	}
}

// Spot is Look at one machine alone, at the cost of that one: false if the
// caller does not reach it, it does not offer what is asked for, or the call is
// to avoid it. A machine that is Ready here is one that Route may try.
func Spot(s *Snapshot, a *Ask, m *Machine) (sighting Sighting, ok bool) {
	o := m.Offer(a.Model)
	if o == nil || !o.Families.Has(a.Family) || m.ID == a.Exclude || slices.Contains(a.Avoid, m.ID) {
		return sighting, false
	}
	w := newWalk(s, a.Caller, a.Narrow)
	st := w.standing(m)
	ok = st.sight(&sighting, m, o, a.Now, a.Owed)
	return sighting, ok
}

// offering shows every machine in reach that offers what is asked for.
func (w *walk) offering(a *Ask, see func(*Machine, *Offer, Standing) bool) {
	w.all(a.Model, func(m *Machine, st Standing) bool {
		if m.ID == a.Exclude {
			return true
		}
		o := m.Offer(a.Model)
		return o == nil || !o.Families.Has(a.Family) || see(m, o, st)
	})
}
