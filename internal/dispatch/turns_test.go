package dispatch

import (
	"slices"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// At most one in ten of a member's calls in a group tries a newcomer first, however many
// calls are decided at once. Other members and groups are counted separately.
func TestTurns(t *testing.T) {
	var turns turns
	candidate := func(standing fleet.Standing, group fleet.GroupID) *fleet.Candidate {
		return &fleet.Candidate{Class: fleet.Grouped, Group: &fleet.Group{ID: group}, Standing: standing}
	}
	newcomer, old := candidate(fleet.Newcomer, "g"), candidate(fleet.Established, "g")
	firsts := 0
	for range 100 {
		claimed := turns.claim("ann")
		if again := turns.claim("ann"); len(again) > 0 {
			t.Fatal("two calls have the same turn")
		}
		on := old
		if slices.Contains(claimed, "g") {
			firsts, on = firsts+1, newcomer
		}
		turns.giveBack("ann", claimed, []fleet.Candidate{*on})
		turns.tried("ann", on, true)
		turns.tried("ann", old, false) // the call moved on
		turns.tried("ann", candidate(fleet.Established, "h"), true)
	}
	assert.Equal(t, firsts, 10, "a newcomer was first for", "of 100 calls")
	if got := turns.claim("bob"); len(got) > 0 {
		t.Errorf("another member has turns in %v", got)
	}
	if got := turns.claim("ann"); len(got) != 1 || got[0] != "h" {
		t.Errorf("turns in %v, want h", got)
	}
	turns.giveBack("ann", []fleet.GroupID{"h"}, nil)
	assert.Equal(t, len(turns.claim("ann")), 1, "a turn that no newcomer used is lost")
	turns.tried("ann", &fleet.Candidate{Class: fleet.Own}, true)
	for range callsBetween {
		turns.tried("ann", old, true)
	}
	turns.tried("ann", newcomer, false) // no established machine was ready
	if got := turns.claim("ann"); len(got) > 0 {
		t.Errorf("turns in %v after a call that a newcomer got anyway", got)
	}
}
