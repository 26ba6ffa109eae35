package api

import (
	"cmp"
	"context"
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
	Machines      int           `json:"machines"` // how many offer it, in reach
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
