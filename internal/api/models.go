package api

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"unicode"

	"github.com/kith/kith/internal/fleet"
)

// Model is a model that the caller can reach.
type Model struct {
	ID            fleet.ModelID `json:"id"`
	ContextLength int           `json:"context_length,omitzero"`
	Capabilities  []string      `json:"capabilities"`
	Availability  string        `json:"availability"`
	Via           string        `json:"via"`
	Owner         string        `json:"owner"`    // owner of the machine that would serve it best
	Chat          bool          `json:"chat"`     // can be used for chat
	Machines      int           `json:"machines"` // number of machines in reach that offer it
	// Variants are what machines in reach that offer it report, connected or not; those that
	// are best available first.
	Variants []ModelVariant `json:"variants"`
}

// Whose describes the machines that would serve the model, for display after its id.
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

// FirstChoice returns the model for a chat call if the caller names none, or nil if there
// is none. It prefers models on the caller's own machines, then shared ones, then those
// of groups, so that others do not read a prompt unnecessarily. Among those it prefers
// ready models over busy ones, and then the first by id.
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

// listModels lists the models that the account can reach. Unlike the inference routes, it
// includes those of the machine whose credential was sent: the machine cannot send calls
// to itself, but it belongs to the account.
func (a *API) listModels(ctx context.Context, c fleet.Caller, _ None) (List[Model], error) {
	models, err := a.Models(ctx, c)
	a.AddVariants(models, c)
	return listOf(models), err
}

// Skeleton reduces an id to what matters for recognizing it: its letters and digits in
// lower case, without a generic tag.
func Skeleton(id fleet.ModelID) string {
	text := strings.TrimSuffix(strings.ToLower(string(id)), ":latest")
	letters := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return -1
	}, text)
	return cmp.Or(letters, text) // an id without letters and digits is similar to no other
}

// Distance returns the Levenshtein distance between a and b.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			edit := diagonal
			if a[i] != b[j] {
				edit++
			}
			diagonal = row[j+1]
			row[j+1] = min(edit, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
