package site

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// modelsData is what /models shows.
type modelsData struct {
	Models []modelRow
	Live   scene
	Why    *api.Why // for the model that was asked about
}

func (s *Site) modelsPage(v *visit) (reply, error) {
	models, err := call(s, v, api.ListModels, api.None{})
	if err != nil {
		return reply{}, err
	}
	data := modelsData{Models: modelRows(models.Data), Live: sceneOf(models.Data)}
	if query := v.URL.Query(); query.Get("model") != "" {
		why, err := call(s, v, api.ExplainModel, api.ModelQuestion{Model: fleet.ModelID(query.Get("model")), Family: query.Get("family")})
		if err != nil {
			return reply{page: "models", title: "Models", data: data}, err
		}
		data.Why = &why
	}
	return reply{page: "models", title: "Models", data: data}, nil
}

// modelRow is one model on /models, beside those whose ids are nearly its own.
type modelRow struct {
	api.Model
	N     int             // its place in the listing
	Twins []fleet.ModelID // ids that differ from its own in next to nothing
	First bool            // of the rows that are each other's twins
}

// modelRows brings ids together that a person could take for one another. Each
// stays what it is: nothing is rewritten, and a call names one exactly.
func modelRows(models []api.Model) []modelRow {
	of := map[string][]fleet.ModelID{}
	rows := make([]modelRow, len(models))
	for i, m := range models {
		rows[i] = modelRow{Model: m, N: i}
		of[api.Skeleton(m.ID)] = append(of[api.Skeleton(m.ID)], m.ID)
	}
	slices.SortStableFunc(rows, func(a, b modelRow) int { return cmp.Compare(api.Skeleton(a.ID), api.Skeleton(b.ID)) })
	for i := range rows {
		same := of[api.Skeleton(rows[i].ID)]
		rows[i].First = len(same) > 1 && (i == 0 || api.Skeleton(rows[i-1].ID) != api.Skeleton(rows[i].ID))
		for _, id := range same {
			if id != rows[i].ID {
				rows[i].Twins = append(rows[i].Twins, id)
			}
		}
	}
	return rows
}

// modelsScene is what is live of the models that the caller reaches.
func modelsScene(s *Site, _ *glance, who api.Caller) scene {
	models, err := s.Models(context.Background(), who)
	if err != nil {
		s.Log.Warn("cannot notify an open page of the models in reach", "member", string(who.Member), "error", err)
	}
	return sceneOf(models)
}

func sceneOf(models []api.Model) scene {
	out := scene{texts: map[string]words{}}
	for i, m := range models {
		out.shape = out.shape.with(string(m.ID), m.Via, fmt.Sprint(m.ContextLength)).with(m.Capabilities...)
		out.texts[fmt.Sprint("now-", i)] = availabilityWords(m.Availability)
		out.texts[fmt.Sprint("machines-", i)] = words{text: fmt.Sprint(m.Machines)}
	}
	return out
}
