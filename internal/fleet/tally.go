package fleet

import (
	"iter"
	"slices"
	"strconv"
	"time"
)

// Query is a call that needs a machine, with all of Route's input except the Snapshot.
type Query struct {
	Caller MemberID
	Reach  KeyReach
	// Exclude is the machine whose own daemon sent the call. It does not exist for this
	// call (spec/routing.md#same-machine). Empty: none.
	Exclude MachineID
	Model   ModelID
	Family  Family
	// Avoid are the machines that were already tried. The call is neither sent to them nor
	// waits for them, but they are counted.
	Avoid []MachineID
	// Full are machines that just refused this call as busy. They count as busy.
	Full []MachineID
	// Unconfirmed reports that the caller's reach cannot be confirmed now
	// (spec/routing.md#row-2).
	Unconfirmed bool
	// Waited reports that the call's wait time is over.
	Waited bool
	// Gone reports that in every attempt so far the machine was gone, or refused the call
	// before it started, or was lost in the middle of a unary answer.
	Gone bool
	Now  time.Time
	// Draw is a random number. It is only used to break ties between machines.
	Draw uint64
	// Turns are the caller's groups in which newcomers come before established machines
	// for this call.
	Turns []GroupID
	// Work is the expected work of the call. It only affects the order of the machines.
	Work Work
	// Sealed reports that the call is sealed: machines without a key, and those in
	// Declined, do not exist for it (spec/sealed.md#routing). If To is not nil, neither do
	// machines that have none of these keys.
	Sealed   bool
	Declined []MachineID
	To       []Recipient
}

// admits reports whether a machine exists for the call, as far as sealing matters.
func (q *Query) admits(m *Machine) bool {
	if !q.Sealed {
		return true
	}
	if len(m.Seals) == 0 || slices.Contains(q.Declined, m.ID) {
		return false
	}
	return q.To == nil || slices.ContainsFunc(q.To, func(r Recipient) bool { return r.Machine == m.ID && slices.Contains(m.Seals, r.Key) })
}

// Tally holds the counts behind a decision.
type Tally struct {
	// Counts are the numbers of reachable machines that offer the model for the family.
	Counts [classes][states]int32
	// Ready and Busy count those of them that the call may still use, which are not in
	// Query.Avoid. Returning machines count as busy.
	Ready, Busy int32
	// SharedWith reports that a share names the caller, or that the caller is in a group
	// with another member.
	SharedWith                bool
	Unconfirmed, Waited, Gone bool // from the Query

	// The numbers of the region's machines that offer the model for the family, and that
	// calls can be sealed for if the call is, whether in reach or not: online of those with a
	// tunnel, kept of all. They affect only which row
	// applies, which is all that a member can learn from them (spec/routing.md#hidden).
	kept, online int32
	// noSpeech reports that the call is for audio and that no machine of the region,
	// online or not, offers any model for it.
	noSpeech bool
}

// In returns how many of the reachable machines are in one of the given states.
func (t Tally) In(of ...State) int {
	n := int32(0)
	for _, class := range t.Counts {
		for _, state := range of {
			n += class[state]
		}
	}
	return int(n)
}

// Of returns how many of the machines are reachable by the given class.
func (t Tally) Of(class Class) int {
	n := int32(0)
	for _, count := range t.Counts[class] {
		n += count
	}
	return int(n)
}

// Reachable returns how many reachable machines offer the model.
func (t Tally) Reachable() int { return t.Of(Own) + t.Of(Shared) + t.Of(Grouped) }

// String returns the counts by state, such as "2 busy, 1 offline", or "none".
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

// Reachable yields the machines that a Decision's Tally counts, with their current
// states: those that the caller can reach and that offer the model for the family.
func Reachable(s *Snapshot, q Query) iter.Seq[CandidateState] {
	return func(yield func(CandidateState) bool) {
		w := newWalk(s, q.Caller, q.Reach)
		w.offering(&q, func(m *Machine, o *Offer, access Access) bool {
			var c CandidateState
			return !access.evaluate(&c, m, o, &q) || yield(c)
		})
	}
}

// StateOf returns the state of one machine. It returns false if the caller cannot reach
// the machine, the machine does not offer the query's model and family, or the call must
// avoid it. If the state is Ready, Route may try the machine.
func StateOf(s *Snapshot, q *Query, m *Machine) (c CandidateState, ok bool) {
	o := m.Offer(q.Model)
	if o == nil || !o.Families.Has(q.Family) || m.ID == q.Exclude || slices.Contains(q.Avoid, m.ID) || !q.admits(m) {
		return c, false
	}
	access := s.AccessTo(q.Caller, q.Reach, m)
	ok = access.evaluate(&c, m, o, q)
	return c, ok
}

// offering visits the machines in reach that offer the query's model and family.
func (w *walk) offering(q *Query, visit func(*Machine, *Offer, Access) bool) {
	w.all(q.Model, func(m *Machine, access Access) bool {
		if m.ID == q.Exclude {
			return true
		}
		o := m.Offer(q.Model)
		return o == nil || !o.Families.Has(q.Family) || !q.admits(m) || visit(m, o, access)
	})
}
