package web

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/kith/kith/internal/fleet"
)

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

// modelRow is one model on /models, beside those whose ids are nearly its own.
type modelRow struct {
	Model
	N     int             // its place in the listing
	Twins []fleet.ModelID // ids that differ from its own in next to nothing
	First bool            // of the rows that are each other's twins
}

// modelRows brings ids together that a person could take for one another. Each
// stays what it is: nothing is rewritten, and a call names one exactly.
func modelRows(models []Model) []modelRow {
	of := map[string][]fleet.ModelID{}
	rows := make([]modelRow, len(models))
	for i, m := range models {
		rows[i] = modelRow{Model: m, N: i}
		of[nearly(m.ID)] = append(of[nearly(m.ID)], m.ID)
	}
	slices.SortStableFunc(rows, func(a, b modelRow) int { return cmp.Compare(nearly(a.ID), nearly(b.ID)) })
	for i := range rows {
		same := of[nearly(rows[i].ID)]
		rows[i].First = len(same) > 1 && (i == 0 || nearly(rows[i-1].ID) != nearly(rows[i].ID))
		for _, id := range same {
			if id != rows[i].ID {
				rows[i].Twins = append(rows[i].Twins, id)
			}
		}
	}
	return rows
}

// nearly is what an id is to a quick eye: its letters and digits without their
// case, and without a tag that says nothing.
func nearly(id fleet.ModelID) string {
	text := strings.TrimSuffix(strings.ToLower(string(id)), ":latest")
	letters := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return -1
	}, text)
	return cmp.Or(letters, text) // one of signs alone is like no other
}

// modelsScene is what is live of the models that the caller reaches.
func modelsScene(s *Site, _ *glance, who Caller) scene {
	models, err := s.Models(context.Background(), who)
	if err != nil {
		s.Log.Warn("cannot tell an open page which models are reached", "member", string(who.Member), "error", err)
	}
	return sceneOf(models)
}

func sceneOf(models []Model) scene {
	out := scene{newShape, map[string]words{}}
	for i, m := range models {
		out.shape = out.shape.with(string(m.ID), m.Via, fmt.Sprint(m.ContextLength)).with(m.Capabilities...)
		out.texts[fmt.Sprint("now-", i)] = availabilityWords(m.Availability)
		out.texts[fmt.Sprint("machines-", i)] = words{text: fmt.Sprint(m.Machines)}
	}
	return out
}
