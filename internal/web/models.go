package web

import "github.com/kith/kith/internal/fleet"

// Model is one model that the caller reaches, as GET /api/models tells it.
type Model struct {
	ID            fleet.ModelID `json:"id"`
	ContextLength int           `json:"context_length,omitzero"`
	Capabilities  []string      `json:"capabilities"`
	Availability  string        `json:"availability"`
	Via           string        `json:"via"`
	Machines      int           `json:"machines"` // how many offer it, in reach
}

// list is the envelope of a listing.
type list[T any] struct {
	Object string `json:"object"`
	Data   []T    `json:"data"`
}

func listOf[T any](data []T) list[T] {
	if data == nil {
		data = []T{}
	}
	return list[T]{"list", data}
}

// models is GET /api/models: what the account reaches. Unlike the inference
// routes, it does not leave out the machine whose credential asks: that one
// cannot be called from itself, but it is the account's.
func (a *API) models(r *request) (any, error) {
	models, err := a.Models(r.Context(), r.caller)
	return listOf(models), err
}
