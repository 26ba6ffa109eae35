package api

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"unicode"

	"github.com/kith/kith/internal/fleet"
)

// Model is one model that the caller reaches.
type Model struct {
	ID            fleet.ModelID `json:"id"`
	ContextLength int           `json:"context_length,omitzero"`
	Capabilities  []string      `json:"capabilities"`
	Availability  string        `json:"availability"`
	Via           string        `json:"via"`
	Owner         string        `json:"owner"`    // of the machine that would serve it best
	Chat          bool          `json:"chat"`     // it takes chat calls
	Machines      int           `json:"machines"` // how many offer it, in reach
}

// Whose says, after the id, on which machines a call of the model would run.
func (m *Model) Whose() string {
	switch more := m.Machines > 1; {
	case m.Via == fleet.Own.String():
		return "yours"
	case m.Via == fleet.Grouped.String() && more:
		return m.Owner + "'s or another's, in a group"
	case m.Via == fleet.Grouped.String():
		return m.Owner + "'s, in a group"
	case more:
		return m.Owner + "'s or another's"
	}
	return m.Owner + "'s"
}

// FirstChoice returns the model for a chat call of a caller who names none: of those that
// take calls one on the caller's own machines, else one that is shared with them, else one
// of a group, so that no one else reads a prompt that need not leave; of these a ready one
// before a busy one, and the first by id. It returns nil if there is none.
func FirstChoice(models []Model) *Model {
	var first *Model
	rank := func(m *Model) int {
		n := 2 * slices.Index([]string{fleet.Own.String(), fleet.Shared.String(), fleet.Grouped.String()}, m.Via)
		if m.Availability != "ready" {
			n++
		}
		return n
	}
	for i := range models {
		m := &models[i]
		if m.Chat && (m.Availability == "ready" || m.Availability == "busy") && (first == nil || rank(m) < rank(first)) {
			first = m
		}
	}
	return first
}

// listModels lists what the account reaches. Unlike the inference routes, it does
// not leave out the machine whose credential asks: that machine cannot be called
// from itself, but it is the account's.
func (a *API) listModels(ctx context.Context, c Caller, _ None) (List[Model], error) {
	models, err := a.Models(ctx, c)
	return listOf(models), err
}

// Skeleton is what an id is to a quick eye: its letters and digits without their
// case, and without a tag that says nothing.
func Skeleton(id fleet.ModelID) string {
	text := strings.TrimSuffix(strings.ToLower(string(id)), ":latest")
	letters := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return -1
	}, text)
	return cmp.Or(letters, text) // one of signs alone is like no other
}
