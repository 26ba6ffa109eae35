package fleet

import (
	"cmp"
	"slices"
	"time"
)

// SealKey identifies a key of a machine that calls can be sealed for
// (spec/sealed.md#key-id).
type SealKey [8]byte

// Recipient is a machine that a call is sealed for, with the key.
type Recipient struct {
	Machine MachineID `json:"machine"`
	Key     SealKey   `json:"key"`
}

// Seal is what others need to seal calls for a machine. It comes from the machine itself.
type Seal struct {
	Statement []byte `json:"statement,omitzero"` // of its newest key; empty: it has none
	// Ask asks the owner's other machines for the account key; empty: it has the key.
	Ask []byte `json:"ask,omitzero"`
}

// SealList lists machines in the caller's reach that offer a model, those first that a call
// would try first (spec/sealed.md#seals).
type SealList struct {
	Now      time.Time     `json:"now"` // by the hub's clock
	Machines []SealMachine `json:"machines"`
}

// SealMachine is one machine of a SealList.
type SealMachine struct {
	ID        MachineID `json:"machine"`
	Name      string    `json:"name"`
	Owner     MemberID  `json:"owner"`
	OwnerName string    `json:"owner_name"`
	Class     string    `json:"class"` // Class.String
	State     string    `json:"state"` // State.String
	Keys      []SealKey `json:"keys"`
	Statement []byte    `json:"statement,omitzero"` // empty: the machine has no key, or did not answer
}

// InOrder returns at most n of the machines that Reachable yields: the ready ones in the
// order in which Route would try them, then the others, the sooner ready the earlier.
func InOrder(s *Snapshot, q Query, n int) []CandidateState {
	var all []CandidateState
	for m := range Reachable(s, q) {
		m.rate(&q)
		all = append(all, m)
	}
	rank := func(m *CandidateState) int {
		if m.State == Returning {
			return int(Busy)*2 - 1
		}
		return int(m.State) * 2
	}
	slices.SortStableFunc(all, func(a, b CandidateState) int { return cmp.Or(cmp.Compare(rank(&b), rank(&a)), compare(&a, &b)) })
	return all[:min(n, len(all))]
}
