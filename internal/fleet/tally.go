package fleet

import (
	"iter"
	"slices"
	"strconv"
	"time"
)

// Query is one call that needs a machine, with everything that Route may know beside
// the Snapshot.
type Query struct {
	Caller MemberID
	Narrow Narrow
	// Exclude is the machine whose own daemon sent the call: for this call it does
	// not exist (spec/routing.md#same-machine). Empty: none.
	Exclude MachineID
	Model   ModelID
	Family  Family
	// Avoid are the machines that this call was tried on: it is neither sent there
	// nor waits for them, but they are counted.
	Avoid []MachineID
	// Full are machines that refused this call as busy just now: they count as busy.
	Full []MachineID
	// Unconfirmed says that the caller's reach cannot be confirmed now
	// (spec/routing.md#row-2).
	Unconfirmed bool
	// Waited says that the call has waited to the end of its time.
	Waited bool
	// Gone says that every attempt so far found its machine gone, or refusing, before
	// the call started, or lost it in the middle of a unary answer.
	Gone bool
	Now  time.Time
	// Draw is random. It breaks ties between machines and does nothing else.
	Draw uint64
	// Turns are the groups of the caller in which a newcomer comes before the established
	// machines, for this call.
	Turns []GroupID
	// Work is what the call demands of a machine. It decides the order of the machines
	// and nothing else.
	Work Work
}

// Tally is what a decision is based on.
type Tally struct {
	// Counts are the reachable machines that offer the model for the family.
	Counts [classes][states]int32
	// Ready and Busy are the machines among them that the call may still use:
	// those not in Query.Avoid. Returning machines are counted as busy.
	Ready, Busy int32
	// SharedWith says that a share names the caller, or that the caller is in a group
	// with another member.
	SharedWith                bool
	Unconfirmed, Waited, Gone bool // as in the Query

	// The region's machines that offer the model for the family, in reach or not:
	// kept counts all of them, online those with a tunnel. A member learns of them only
	// what the rows reveal (spec/routing.md#hidden).
	kept, online int32
	// noSpeech says that the call is for audio and that no machine of the region,
	// online or kept, offers any model for it.
	noSpeech bool
}

// In returns how many of the reachable machines are in any of those states.
func (t Tally) In(of ...State) int {
	n := int32(0)
	for _, class := range t.Counts {
		for _, state := range of {
			n += class[state]
		}
	}
	return int(n)
}

// Of returns how many of the machines the caller reaches by that class.
func (t Tally) Of(class Class) int {
	n := int32(0)
	for _, count := range t.Counts[class] {
		n += count
	}
	return int(n)
}

// Reachable returns how many reachable machines offer the model.
func (t Tally) Reachable() int { return t.Of(Own) + t.Of(Shared) + t.Of(Grouped) }

// String returns the counts by state, in words: "2 busy, 1 offline"; "none" if there are none.
func (t Tally) String() string { return string(t.append(nil)) }

func (t Tally) append(to []byte) []byte {
	none := true
	for below := range states {
		state := Ready - below
		if n := t.In(state); n > 0 {
			if !none {
				to = append(to, ", "...)
			}
			to = append(strconv.AppendInt(to, int64(n), 10), ' ')
			to = append(to, StateText(state.String())...)
			none = false
		}
	}
	if none {
		return append(to, "none"...)
	}
	return to
}

// Reachable yields every machine that the caller reaches and that offers the model for
// the family, with its state now: the machines that a Decision's Tally counts.
func Reachable(s *Snapshot, q Query) iter.Seq[CandidateState] {
	return func(yield func(CandidateState) bool) {
		w := newWalk(s, q.Caller, q.Narrow)
		w.offering(&q, func(m *Machine, o *Offer, access Access) bool {
			var c CandidateState
			return !access.evaluate(&c, m, o, &q) || yield(c)
		})
	}
}

// StateOf returns the state of one machine: false if the caller does not reach it, it
// does not offer what the query names, or the call is to avoid it. A machine that is
// Ready here is one that Route may try.
func StateOf(s *Snapshot, q *Query, m *Machine) (c CandidateState, ok bool) {
	o := m.Offer(q.Model)
	if o == nil || !o.Families.Has(q.Family) || m.ID == q.Exclude || slices.Contains(q.Avoid, m.ID) {
		return c, false
	}
	access := s.AccessTo(q.Caller, q.Narrow, m)
	ok = access.evaluate(&c, m, o, q)
	return c, ok
}

// offering visits every machine in reach that offers what the query names.
func (w *walk) offering(q *Query, visit func(*Machine, *Offer, Access) bool) {
	w.all(q.Model, func(m *Machine, access Access) bool {
		if m.ID == q.Exclude {
			return true
		}
		o := m.Offer(q.Model)
		return o == nil || !o.Families.Has(q.Family) || visit(m, o, access)
	})
}
