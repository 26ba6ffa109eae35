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

// modelsData is the content of /models.
type modelsData struct {
	Models []modelRow // on this page of the list
	Any    bool       // a model is in reach
	List   list
	Live   liveContent
}

// modelColumns are the columns of the list of models.
var modelColumns = []column{
	{Head: "ID", Name: "id"}, {Head: "Status", Class: "status", Name: "status"}, {Head: "Model", Name: "parameters", Most: true},
	{Head: "Context", Class: "n", Name: "context", Most: true}, {Head: "Tokens/s", Class: "n", Name: "speed", Most: true},
	{Head: "Capabilities", Class: "spare"}, {Head: "Access", Class: "spare", Name: "access"},
	{Head: "Machines", Name: "machines", Most: true},
	{Head: "Actions", Class: "do"},
}

// modelList are the rules of the list of models.
var modelList = listRules[modelRow]{
	texts: func(m modelRow) []string {
		texts := append([]string{string(m.ID), m.Via, availabilityWords(m.Availability).text}, m.Capabilities...)
		for _, v := range m.Variants {
			texts = append(append(texts, factWords(v.ModelFacts), kindWords(v.Kinds)), v.Owners...)
		}
		return texts
	},
	state: func(m modelRow) words { return availabilityWords(m.Availability) },
	by: map[string]func(a, b modelRow) int{
		"id": func(a, b modelRow) int { return compareNames(string(a.ID), string(b.ID)) },
		"status": func(a, b modelRow) int {
			return compareStates(availabilityWords(a.Availability), availabilityWords(b.Availability))
		},
		"access":   func(a, b modelRow) int { return strings.Compare(a.Via, b.Via) },
		"machines": func(a, b modelRow) int { return cmp.Compare(a.Machines, b.Machines) },
		"context":  func(a, b modelRow) int { return cmp.Compare(a.ContextLength, b.ContextLength) },
		"parameters": func(a, b modelRow) int {
			return cmp.Compare(a.most(func(v api.ModelVariant) float64 { return float64(v.Parameters) }), b.most(func(v api.ModelVariant) float64 { return float64(v.Parameters) }))
		},
		"speed": func(a, b modelRow) int { return cmp.Compare(a.Speed(), b.Speed()) },
	},
}

// modelData is the content of the page for one model id, which may be out of reach.
type modelData struct {
	api.Why
	Model    *api.Model // nil: out of reach
	Cause    string     // why a call would be refused or wait
	Machines []modelMachine
	Remedies []remedy
	Near     []fleet.ModelID // similar ids in reach
	Example  modelCode
}

// Offline returns the machines that are offline, as the subject of a sentence: "attic or
// cellar is". It is empty if there are none.
func (d modelData) Offline() string {
	var names []string
	for _, m := range d.Machines {
		if m.State == "offline" {
			names = append(names, m.Machine)
		}
	}
	switch n := len(names); {
	case n == 0:
		return ""
	case n > 3:
		return fmt.Sprintf("one of its %d machines is", n)
	}
	return strings.Join(names, " or ") + " is"
}

// modelMachine is a machine that offers the model. ID is empty unless the member owns it.
type modelMachine struct {
	api.WhyMachine
	ID string
}

// remedy is an action against a refusal: a page to open, or a machine to resume.
type remedy struct{ Text, Href, Resume string }

// modelsPage handles GET /models with the query of the list, or ?model= for one model.
func (s *Site) modelsPage(v *visit) (reply, error) {
	models, err := call(s, v, api.ListModels, api.None{})
	if err != nil {
		return reply{title: "Models"}, err
	}
	models.Data = s.markSpent(s.withOffline(models.Data, v.caller()), v.caller())
	s.AddVariants(models.Data, v.caller())
	query := v.URL.Query()
	if id := query.Get("model"); id != "" {
		data, err := s.modelData(v, fleet.ModelID(id), query.Get("family"), models.Data)
		return reply{page: "model", title: cmp.Or(string(data.Why.Model), "Model"), data: data}, err
	}
	shown := modelsData{Any: len(models.Data) > 0, Live: contentOfModels(models.Data), List: list{
		ID: "models", Path: "/models", Label: "Models", One: "model", Many: "models",
		Find: "ID, capability or status", Query: readList(query, ""), Columns: modelColumns}}
	shown.Models, shown.List.Found, shown.List.States = modelList.cut(modelRows(models.Data), shown.List.Query)
	return reply{page: "models", title: "Models", data: shown}, nil
}

func (s *Site) modelData(v *visit, id fleet.ModelID, family string, models []api.Model) (modelData, error) {
	why, err := call(s, v, api.ExplainModel, api.ModelQuestion{Model: id, Family: family})
	if err != nil {
		return modelData{}, err
	}
	own, err := call(s, v, api.ListMachines, api.None{})
	data := modelData{Why: why, Cause: cmp.Or(causeNow(why), why.Reason), Remedies: remedies(why, own.Data),
		Example: modelCode{s.Base, why.Model, why.Family}}
	for _, m := range why.Machines {
		machine := modelMachine{WhyMachine: m}
		if i := slices.IndexFunc(own.Data,
			func(o api.Machine) bool { return m.Via == "own" && o.Name == m.Machine }); i >= 0 {
			machine.ID = own.Data[i].ID
		}
		data.Machines = append(data.Machines, machine)
	}
	for i, m := range models {
		if m.ID == id {
			data.Model = &models[i]
		}
	}
	if len(why.Machines) == 0 { // else the id is right
		data.Near = nearby(models, id)
	}
	return data, err
}

// markSpent marks the models whose calls of the day the caller has used up on each machine
// that could serve them. The API lists them as busy, but a call would be refused and not wait.
func (s *Site) markSpent(models []api.Model, who fleet.Caller) []api.Model {
	best, now := map[fleet.ModelID]fleet.State{}, s.DB.Now()
	for m, access := range s.Snapshot().Reach(who.Member, who.Reach) {
		for i := range m.Offers {
			offer := &m.Offers[i]
			if seen, ok := access.State(m, offer, now); ok {
				best[offer.ID] = max(best[offer.ID], seen.State)
			}
		}
	}
	models = slices.Clone(models)
	for i := range models {
		if best[models[i].ID] == fleet.Spent {
			models[i].Availability = fleet.Spent.String()
		}
	}
	return models
}

// withOffline returns the models, which are those of connected machines, and those that the
// caller reaches only on machines that are offline or just lost the connection, by id.
func (s *Site) withOffline(models []api.Model, who fleet.Caller) []api.Model {
	connected := map[fleet.ModelID]bool{}
	for _, m := range models {
		connected[m.ID] = true
	}
	offline, now := map[fleet.ModelID]*api.Model{}, s.DB.Now()
	for m, access := range s.Snapshot().Reach(who.Member, who.Reach) {
		if m.Online {
			continue
		}
		for i := range m.Offers {
			offer := &m.Offers[i]
			seen, ok := access.State(m, offer, now)
			if !ok || connected[offer.ID] {
				continue
			}
			if offline[offer.ID] == nil {
				offline[offer.ID] = &api.Model{
					ID: offer.ID, ContextLength: offer.ContextLength, Capabilities: offer.Capabilities,
					Availability: seen.State.String(), Via: seen.Class.String(), Owner: m.OwnerName,
					Chat: offer.Families&fleet.Families(fleet.Chat) != 0,
				}
			}
			offline[offer.ID].Machines++
		}
	}
	models = slices.Clone(models)
	for _, m := range offline {
		models = append(models, *m)
	}
	slices.SortFunc(models, func(a, b api.Model) int { return cmp.Compare(a.ID, b.ID) })
	return models
}

// The capabilities of a model with respect to tools that are no abilities.
const (
	defaultTools = "default_tools"
	noTools      = "no_tools"
)

// abilities lists what a model can do.
func abilities(capabilities []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(capabilities), func(c string) bool { return c == defaultTools || c == noTools }), ", ")
}

// lacks describes what a model is known to lack, or returns "".
func lacks(capabilities []string) string {
	switch {
	case slices.Contains(capabilities, noTools):
		return "tools: kith cannot read how its chat template writes tool calls, so calls with tools are refused. The machine's owner sees the reason in kith status."
	case slices.Contains(capabilities, defaultTools):
		return "native tool calls: kith describes tools to it in text, which works less well."
	}
	return ""
}

// causeNow describes how many machines are unavailable for the model, and why. It returns
// "" if a call would be served or if no machine is in reach.
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

// remedies returns what the caller can do if a call would be refused. own are the
// caller's machines.
func remedies(why api.Why, own []api.Machine) (all []remedy) {
	switch {
	case why.Verdict == "try" && why.Family != fleet.Chat.String():
		return nil
	case why.Verdict == "try":
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
		all = append(all, remedy{Text: "See the models you can use", Href: "/models"}, remedy{Text: "Accept an invite",
			Href: "/access/invites#accept-invite"}, remedy{Text: "Connect a machine", Href: "/machines#connect"})
	}
	return all
}

// nearby returns at most five ids that a person may have meant by id.
func nearby(models []api.Model, id fleet.ModelID) (all []fleet.ModelID) {
	for _, m := range models {
		if m.ID != id && near(m.ID, id) && len(all) < 5 {
			all = append(all, m.ID)
		}
	}
	return all
}

// near reports whether a person may have confused two ids: they have the same letters and
// digits, one is a prefix of the other, or at most two characters differ.
func near(a, b fleet.ModelID) bool {
	x, y := api.Skeleton(a), api.Skeleton(b)
	if len(x) > len(y) {
		x, y = y, x
	}
	return len(x) >= 3 && strings.HasPrefix(y, x) || len(y) <= 64 && api.Distance(x, y) <= min(2, len(x)/3)
}

// online orders models for a list or a picker: those without a connected machine come last.
func online(a, b api.Model) int {
	return api.OnlineFirst(connected(a), connected(b))
}

// connected reports whether a machine with the model is connected.
func connected(m api.Model) bool {
	return m.Availability != fleet.Offline.String() && m.Availability != fleet.Returning.String()
}

// modelRow is a model on /models, listed next to models with very similar ids.
type modelRow struct {
	api.Model
	N     int             // index in the listing
	Twins []fleet.ModelID // ids that are easily confused with its own
}

// most returns the largest value of the model's forms, or 0.
func (r modelRow) most(of func(api.ModelVariant) float64) (most float64) {
	for _, v := range r.Variants {
		most = max(most, of(v))
	}
	return most
}

// Speed returns the tokens per second of the fastest form, or 0 if none was measured.
func (r modelRow) Speed() float64 {
	return r.most(func(v api.ModelVariant) float64 { return v.TokensPerSecond })
}

// Owners returns who has the model, sorted.
func (r modelRow) Owners() (all []string) {
	for _, v := range r.Variants {
		all = append(all, v.Owners...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Chats reports whether a chat with the model could be answered now or soon.
func (r modelRow) Chats() bool { return r.Chat && connected(r.Model) }

// modelRows groups models whose ids are easily confused. Groups with a model on a connected
// machine come first. It changes no id: a call must name one exactly.
func modelRows(models []api.Model) []modelRow {
	of := map[string][]fleet.ModelID{}
	up := map[string]bool{}
	rows := make([]modelRow, len(models))
	for i, m := range models {
		rows[i] = modelRow{Model: m, N: i}
		of[api.Skeleton(m.ID)] = append(of[api.Skeleton(m.ID)], m.ID)
		up[api.Skeleton(m.ID)] = up[api.Skeleton(m.ID)] || connected(m)
	}
	slices.SortStableFunc(rows, func(a, b modelRow) int {
		x, y := api.Skeleton(a.ID), api.Skeleton(b.ID)
		return cmp.Or(api.OnlineFirst(up[x], up[y]), cmp.Compare(x, y))
	})
	for i := range rows {
		for _, id := range of[api.Skeleton(rows[i].ID)] {
			if id != rows[i].ID {
				rows[i].Twins = append(rows[i].Twins, id)
			}
		}
	}
	return rows
}

// modelsContent is the live content for the models that the caller reaches.
func modelsContent(s *Site, _ *hubView, who fleet.Caller) liveContent {
	models, err := s.Models(context.Background(), who)
	if err != nil {
		s.Log.Warn("cannot notify an open page of the models in reach", "member", string(who.Member), "error", err)
	}
	return contentOfModels(s.markSpent(s.withOffline(models, who), who))
}

func contentOfModels(models []api.Model) liveContent {
	out := liveContent{texts: map[string]words{}}
	for i, m := range models {
		out.shape = out.shape.with(string(m.ID), m.Via, fmt.Sprint(m.ContextLength)).with(m.Capabilities...)
		if m.Availability == "offline" || m.Availability == "outside_hours" {
			out.shape = out.shape.with(m.Availability) // the page shows since when, or until when
		}
		out.texts[fmt.Sprint("now-", i)] = availabilityWords(m.Availability)
		out.texts[fmt.Sprint("machines-", i)] = words{text: fmt.Sprint(m.Machines)}
	}
	return out
}
