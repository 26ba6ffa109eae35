package site

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/api"
)

// limitFields are the form fields for the limits of a share, an invite or a group, the
// template limit-fields.
type limitFields struct {
	Prefix             string // of the elements' ids
	Models             []modelBox
	Other              string // further ids, one a line
	Rows               []hoursRow
	Hours              string // in force
	Concurrent, PerDay string
	HoursOpen          bool // hours were typed
}

// modelBox is a checkbox for a model.
type modelBox struct {
	ID               string
	Checked, Offered bool
}

// newLimitFields returns the fields with the limits there, or, if typed is not nil, with the
// values of a refused form. Offered are the models of the owner's machines.
func newLimitFields(prefix string, offered []string, there api.Limits, typed url.Values) limitFields {
	f := limitFields{Prefix: prefix, Rows: hoursRows(there.Hours), Hours: there.Hours}
	chosen, digits := there.Models, func(n *int) string {
		if n == nil {
			return ""
		}
		return strconv.Itoa(*n)
	}
	f.Concurrent, f.PerDay = digits(there.Concurrent), digits(there.PerDay)
	if typed != nil {
		chosen, f.Concurrent, f.PerDay = typedModels(typed), typed.Get("concurrent"), typed.Get("per_day")
		f.Rows = typedRows(typed)
		f.HoursOpen = len(f.Rows) > 1
	}
	var other []string
	for _, id := range chosen {
		switch offers := slices.Contains(offered, id); {
		case offers:
		case typed != nil: // to correct it
			other = append(other, id)
		default:
			f.Models = append(f.Models, modelBox{id, true, false})
		}
	}
	for _, id := range offered {
		f.Models = append(f.Models, modelBox{id, slices.Contains(chosen, id), true})
	}
	slices.SortStableFunc(f.Models, func(a, b modelBox) int {
		return cmp.Or(api.OnlineFirst(a.Checked, b.Checked), compareNames(a.ID, b.ID))
	})
	f.Other = strings.Join(other, "\n")
	return f
}

// typedModels returns the ids of models in a form, of the checkboxes and of the lines of its
// field, each once. An id can contain commas and spaces, but no line breaks. It is not
// normalized: an invalid id is refused, never changed into a valid one.
func typedModels(form url.Values) (ids []string) {
	for _, value := range form["models"] {
		for line := range strings.Lines(value) {
			if id := strings.TrimRight(line, "\r\n"); id != "" && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// offeredModels returns the ids of the models of machines, each once.
func offeredModels(machines []api.Machine) (ids []string) {
	for _, m := range machines {
		for _, model := range m.Models {
			ids = append(ids, string(model.ID))
		}
	}
	slices.SortFunc(ids, compareNames)
	return slices.Compact(ids)
}
