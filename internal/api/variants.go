package api

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// ModelVariant is a model as one or more machines in the caller's reach report it: the same
// id may be another quantization on another machine.
type ModelVariant struct {
	fleet.ModelFacts
	ContextLength int      `json:"context_length,omitzero"` // the longest
	Kinds         []string `json:"kinds"`                   // chat, embeddings, audio
	Machines      int      `json:"machines"`                // that have it, connected or not
	Owners        []string `json:"owners"`                  // of these machines
	Availability  string   `json:"availability"`            // of the machine that is best available
	// TokensPerSecond is the hub's measurement for calls of the caller's circle, of the
	// fastest machine; absent: none yet.
	TokensPerSecond float64 `json:"tokens_per_second,omitzero"`
	// Opens is when the first of them opens for the caller, if no other state is better than
	// being outside the hours; absent: unknown. LastSeen is when one was last connected, if
	// all are offline.
	Opens    time.Time `json:"opens,omitzero"`
	LastSeen time.Time `json:"last_seen,omitzero"`
}

// variant is a ModelVariant while the machines are added.
type variant struct {
	ModelVariant
	best fleet.State
}

// AddVariants sets the Variants of models that the caller reaches.
func (a *API) AddVariants(models []Model, c fleet.Caller) {
	of := make(map[fleet.ModelID][]variant, len(models))
	now := a.DB.Now()
	for m, access := range a.Snapshot().Reach(c.Member, c.Reach) {
		for i := range m.Offers {
			offer := &m.Offers[i]
			if seen, ok := access.State(m, offer, now); ok {
				of[offer.ID] = addVariant(of[offer.ID], &seen, now)
			}
		}
	}
	for i := range models {
		variants := of[models[i].ID]
		slices.SortFunc(variants, func(a, b variant) int {
			return cmp.Or(cmp.Compare(b.best, a.best), cmp.Compare(b.Machines, a.Machines), strings.Compare(a.Quantization, b.Quantization))
		})
		models[i].Variants = views(variants, func(v variant) ModelVariant { return v.ModelVariant })
	}
}

// addVariant adds a machine's offer to the variants of its model.
func addVariant(variants []variant, seen *fleet.CandidateState, now time.Time) []variant {
	i := slices.IndexFunc(variants, func(v variant) bool { return v.ModelFacts == seen.Offer.Facts })
	if i < 0 {
		i = len(variants)
		variants = append(variants, variant{ModelVariant{ModelFacts: seen.Offer.Facts}, seen.State})
	}
	v := &variants[i]
	v.Machines++
	v.best = max(v.best, seen.State)
	v.Availability = availabilityOf(v.best)
	v.ContextLength = max(v.ContextLength, seen.Offer.ContextLength)
	for family := range seen.Offer.Families.All() {
		v.Kinds = insert(v.Kinds, family.String())
	}
	v.Owners = insert(v.Owners, seen.Machine.OwnerName)
	_, speed := measured(seen.Offer.Load.Speed(seen.Circle()))
	v.TokensPerSecond = max(v.TokensPerSecond, speed)
	if seen.State == fleet.OutsideHours {
		if at := seen.Opens(now); v.Opens.IsZero() || at.Before(v.Opens) {
			v.Opens = at
		}
	}
	if last := seen.Machine.LastSeen; last.After(v.LastSeen) {
		v.LastSeen = last
	}
	if v.best != fleet.OutsideHours {
		v.Opens = time.Time{}
	}
	if v.best != fleet.Offline {
		v.LastSeen = time.Time{}
	}
	return variants
}

// availabilityOf returns a state in the words of lists of models.
func availabilityOf(s fleet.State) string {
	switch s {
	case fleet.Spent:
		s = fleet.Busy
	case fleet.OutsideHours:
		return "outside_hours"
	}
	return s.String()
}

// insert adds a word to a sorted list, once.
func insert(words []string, word string) []string {
	if i, found := slices.BinarySearch(words, word); !found {
		words = slices.Insert(words, i, word)
	}
	return words
}

// classFor returns the sizes of a machine's GPUs and memory for a caller who reaches it by
// that class: to others than its owner only if the owner shows them.
func classFor(m *fleet.Machine, by fleet.Class) string {
	if m.Facts == nil || by != fleet.Own && !m.ShowsClass {
		return ""
	}
	return classOf(m.Facts)
}
