package dispatch

import (
	"sync"

	"github.com/kith/kith/internal/fleet"
)

const (
	// callsBetween is how many calls of a member use established machines of a group
	// before one may try a newcomer first (spec/routing.md#newcomers).
	callsBetween = 9
	// maxTurns is the maximum number of members whose calls are counted.
	maxTurns = 100_000
)

// turns counts, for each member and group, the calls since the last one that was
// attempted on a newcomer. It is safe for concurrent use.
type turns struct {
	mu    sync.Mutex
	since map[fleet.MemberID]map[fleet.GroupID]int
}

// claim returns the groups in which the member's next call may try a newcomer first. No
// other call gets these groups until giveBack.
func (t *turns) claim(member fleet.MemberID) (groups []fleet.GroupID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for group, n := range t.since[member] {
		if n >= callsBetween {
			t.since[member][group] = 0
			groups = append(groups, group)
		}
	}
	return groups
}

// giveBack returns the claims of a call, except the one that its decision used.
func (t *turns) giveBack(member fleet.MemberID, claimed []fleet.GroupID, order []fleet.Candidate) {
	if len(claimed) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, group := range claimed {
		used := len(order) > 0 && order[0].Standing < fleet.Established && order[0].GroupID() == group
		if counts := t.since[member]; counts != nil && !used {
			counts[group] = callsBetween
		}
	}
}

// tried counts a call of the member that is attempted on a machine. A call is counted
// once, at its first attempt, unless a newcomer gets it later.
func (t *turns) tried(member fleet.MemberID, on *fleet.Candidate, first bool) {
	if on.Class != fleet.Grouped {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since == nil || len(t.since) >= maxTurns {
		t.since = make(map[fleet.MemberID]map[fleet.GroupID]int)
	}
	counts := t.since[member]
	if counts == nil {
		counts = make(map[fleet.GroupID]int)
		t.since[member] = counts
	}
	switch {
	case on.Standing < fleet.Established:
		counts[on.Group.ID] = 0
	case first:
		counts[on.Group.ID]++
	}
}
