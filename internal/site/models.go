package site

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// modelsData is what /models shows.
type modelsData struct {
	Models []modelRow
	All    int // in reach, whatever was searched for
	Live   scene
	Search string
}

// modelData is what the page of one model id shows; the id may be out of reach.
type modelData struct {
	api.Why
	Model    *api.Model // nil: it is out of reach
	Cause    string     // why a call would be refused or wait
	Machines []modelMachine
	Remedies []remedy
	Near     []fleet.ModelID // ids in reach that the id may have been meant for
}

// modelMachine is one machine that offers the model; ID is there where it is the
// member's own.
type modelMachine struct {
	api.WhyMachine
	ID string
}

// remedy is what a member can do about a refusal: a page to go to, or a machine to
// resume.
type remedy struct{ Text, Href, Resume string }

// modelsPage is GET /models[?q=TEXT], or ?model= of one model.
func (s *Site) modelsPage(v *visit) (reply, error) {
	models, err := call(s, v, api.ListModels, api.None{})
	if err != nil {
		return reply{title: "Models"}, err
	}
	query := v.URL.Query()
	if id := query.Get("model"); id != "" {
		data, err := s.modelData(v, fleet.ModelID(id), query.Get("family"), models.Data)
		return reply{page: "model", title: "Model", data: data}, err
	}
	search := strings.TrimSpace(query.Get("q"))
	rows := modelRows(models.Data)
	rows = slices.DeleteFunc(rows, func(r modelRow) bool {
		return !strings.Contains(strings.ToLower(strings.Join(append([]string{string(r.ID), r.Via, r.Availability}, r.Capabilities...), " ")), strings.ToLower(search))
	})
	return reply{page: "models", title: "Models", data: modelsData{rows, len(models.Data), sceneOf(models.Data), search}}, nil
}

func (s *Site) modelData(v *visit, id fleet.ModelID, family string, models []api.Model) (modelData, error) {
	why, err := call(s, v, api.ExplainModel, api.ModelQuestion{Model: id, Family: family})
	if err != nil {
		return modelData{}, err
	}
	own, err := call(s, v, api.ListMachines, api.None{})
	data := modelData{Why: why, Cause: cmp.Or(causeNow(why), why.Reason), Remedies: remedies(why, own.Data)}
	for _, m := range why.Machines {
		machine := modelMachine{WhyMachine: m}
		if i := slices.IndexFunc(own.Data, func(o api.Machine) bool { return m.Via == "own" && o.Name == m.Machine }); i >= 0 {
			machine.ID = own.Data[i].ID
		}
		data.Machines = append(data.Machines, machine)
	}
	for i, m := range models {
		if m.ID == id {
			data.Model = &models[i]
		}
	}
	data.Near = nearby(models, id)
	return data, err
}

// causeNow says how many machines take no call of the model, and why; of a call that would
// be served, and where no machine is in reach, nothing.
func causeNow(why api.Why) string {
	if why.Verdict == "try" {
		return ""
	}
	var counts []account.StateCount
	for _, m := range why.Machines {
		i := slices.IndexFunc(counts, func(c account.StateCount) bool { return c.Via == m.Via && c.State == m.State })
		if i < 0 {
			i, counts = len(counts), append(counts, account.StateCount{Via: m.Via, State: m.State})
		}
		counts[i].Machines++
	}
	var parts []string
	for _, c := range counts {
		parts = append(parts, seenWords(c, present))
	}
	return strings.Join(parts, "; ")
}

// remedies are what the caller can do where a call would be refused, given the caller's
// own machines.
func remedies(why api.Why, own []api.Machine) (all []remedy) {
	if why.Verdict == "try" {
		return []remedy{{Text: "Chat with it", Href: "/try?" + url.Values{"model": {string(why.Model)}}.Encode()}}
	}
	for _, seen := range why.Machines {
		i := slices.IndexFunc(own, func(m api.Machine) bool { return m.Name == seen.Machine && seen.Via == "own" })
		switch {
		case i < 0:
		case seen.State == "paused":
			all = append(all, remedy{Text: "Resume " + own[i].Name, Resume: own[i].ID})
		case seen.State == "offline":
			all = append(all, remedy{Text: "See " + own[i].Name, Href: "/machines/" + own[i].ID})
		}
	}
	if len(why.Machines) == 0 && why.Verdict == "refuse" {
		all = append(all, remedy{Text: "See the models you can use", Href: "/models"}, remedy{Text: "Accept an invite", Href: "/access#accept-invite"}, remedy{Text: "Connect a machine", Href: "/machines#connect"})
	}
	return all
}

// nearby are ids, five at most, that a person may have meant by one.
func nearby(models []api.Model, id fleet.ModelID) (all []fleet.ModelID) {
	for _, m := range models {
		if m.ID != id && near(m.ID, id) && len(all) < 5 {
			all = append(all, m.ID)
		}
	}
	return all
}

// near reports whether a person may have meant the one id by the other: their letters and
// digits are the same, one begins with the other's, or two characters differ at most.
func near(a, b fleet.ModelID) bool {
	x, y := api.Skeleton(a), api.Skeleton(b)
	if len(x) > len(y) {
		x, y = y, x
	}
	return len(x) >= 3 && strings.HasPrefix(y, x) || len(y) <= 64 && distance(x, y) <= min(2, len(x)/3)
}

// distance is how many characters have to be added, removed or changed between two texts.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
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
