package site

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// requestsData is the content of /requests.
type requestsData struct {
	api.Requests
	api.RequestFilter
	Filtered bool
	Narrowed bool   // by more than words and an outcome
	Outcomes []chip // links to the calls of an outcome
	Newest   string // address of the first page
	Older    string // address of the next page; empty: this is the last
	Keys     []api.Key
	// Known are the values of the last week's calls, as choices for the filter.
	Known struct{ Codes, Models, Machines []string }
}

// requestID matches a complete id of a request.
var requestID = regexp.MustCompile(`^req_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// requestsPage handles GET /requests with a filter in its query. A search for a complete id
// leads to that request.
func (s *Site) requestsPage(v *visit) (reply, error) {
	query := v.URL.Query()
	word := func(name string) string { return strings.TrimSpace(query.Get(name)) }
	if id := word("q"); requestID.MatchString(id) {
		return reply{to: "/requests/" + id}, nil
	}
	filter := api.RequestFilter{
		Before: query.Get("before"), Outcome: word("outcome"), Code: word("code"), Model: word("model"),
		Machine: word("machine"),
		Key:     word("key"), Text: word("q"), From: word("from"), To: word("to"),
	}
	requests, err := call(s, v, api.ListRequests, filter)
	if err != nil {
		return reply{title: "Calls"}, err
	}
	keys, noKeys := call(s, v, api.ListKeys, api.None{})
	usage, noUsage := call(s, v, api.GetUsage, api.Span{Days: "7"})
	data := requestsData{Requests: requests, RequestFilter: filter, Keys: keys.Data}
	for _, side := range []api.UsageSide{usage.As, usage.On} {
		for _, c := range side.Codes {
			data.Known.Codes = append(data.Known.Codes, c.Code)
		}
		for _, m := range side.Models {
			data.Known.Models = append(data.Known.Models, m.Model)
		}
		for _, m := range side.Machines {
			data.Known.Machines = append(data.Known.Machines, m.Name)
		}
	}
	for _, list := range []*[]string{&data.Known.Codes, &data.Known.Models, &data.Known.Machines} {
		slices.Sort(*list)
		*list = slices.DeleteFunc(slices.Compact(*list), func(name string) bool { return name == "" })
	}
	asked := url.Values{}
	for name, value := range map[string]string{
		"outcome": filter.Outcome, "code": filter.Code, "model": filter.Model, "machine": filter.Machine,
		"key": filter.Key, "q": filter.Text,
		"from": filter.From, "to": filter.To,
	} {
		if value != "" {
			asked.Set(name, value)
			data.Filtered = true
			data.Narrowed = data.Narrowed || name != "outcome" && name != "q"
		}
	}
	// The other outcomes and pages have the same filter.
	address := func(name, value string) string {
		other := maps.Clone(asked)
		if other.Set(name, value); value == "" {
			other.Del(name)
		}
		return strings.TrimSuffix("/requests?"+other.Encode(), "?")
	}
	for _, o := range []struct{ outcome, text, tone string }{
		{"", "All", ""}, {"served", "served", "good"}, {"stopped", "stopped", ""}, {"refused", "failed", "bad"},
	} {
		data.Outcomes = append(data.Outcomes, chip{Text: o.text, Tone: o.tone, Href: address("outcome", o.outcome), Here: filter.Outcome == o.outcome})
	}
	data.Newest = address("before", "")
	if requests.Next != "" {
		data.Older = address("before", requests.Next)
	}
	return reply{page: "requests", title: "Calls", data: data}, cmp.Or(noKeys, noUsage)
}

// requestData is the content of the page for one request.
type requestData struct {
	api.CallTrace
	Cause    string          // see causeText
	Near     []fleet.ModelID // models in reach with similar ids
	Steps    []callStep
	Picture  *callPicture
	Key      string   // name of the key that was used; empty: not one of the member's
	Remedies []remedy // according to the current state
	Family   string   // of the call, if it is not chat
}

// requestPage handles GET /requests/{call}. Its title is the model and the outcome.
func (s *Site) requestPage(v *visit) (reply, error) {
	data, err := s.requestData(v)
	if err != nil {
		return reply{title: "Call"}, err
	}
	return reply{page: "request", title: cmp.Or(data.Model, "Call") + ": " + api.Outcome(data.Trace), data: data}, nil
}

func (s *Site) requestData(v *visit) (requestData, error) {
	trace, err := call(s, v, api.ExplainCall, api.CallID{Call: v.PathValue("call")})
	if err != nil {
		return requestData{}, err
	}
	data := requestData{CallTrace: trace, Cause: causeText(&trace), Steps: callSteps(&trace)}
	if endpoint, ok := fleet.ParseEndpoint(trace.Endpoint); ok && endpoint.Family() != fleet.Chat {
		data.Family = endpoint.Family().String()
	}
	if trace.KeyID != "" {
		keys, err := call(s, v, api.ListKeys, api.None{})
		if err != nil {
			return data, err
		}
		if i := slices.IndexFunc(keys.Data, func(k api.Key) bool { return k.ID == trace.KeyID }); i >= 0 {
			data.Key = cmp.Or(keys.Data[i].Name, "…"+keys.Data[i].LastFour)
		}
	}
	data.Picture = drawCall(&trace, data.Steps, cmp.Or(data.Key, api.MadeAt(trace.FromMachine, trace.Program)))
	if !trace.Mine || !account.Unserved(trace.Code) {
		return data, nil
	}
	data.Remedies = remediesOf(fault.Code(trace.Code))
	if fleet.ModelID(trace.Model).Valid() {
		// Without this result, the page has no remedies for the model.
		if why, err := call(s, v, api.ExplainModel, api.ModelQuestion{Model: fleet.ModelID(trace.Model), Family: cmp.Or(data.Family, fleet.Chat.String())}); err == nil {
			own, noMachines := call(s, v, api.ListMachines, api.None{})
			models, noModels := call(s, v, api.ListModels, api.None{})
			data.Remedies = append(remedies(why, own.Data), data.Remedies...)
			if fault.Code(trace.Code) == fault.ModelNotFound && len(why.Machines) == 0 {
				data.Near = nearby(s.withOffline(models.Data, v.caller()), why.Model)
			}
			return data, cmp.Or(noMachines, noModels)
		}
	}
	return data, nil
}

// stateWords explain why a machine is unavailable. {is} and {has} are replaced depending
// on the tense and the number of machines.
var stateWords = map[string]string{
	fleet.Offline.String():      "{is} offline",
	fleet.Returning.String():    "{has} just lost the connection",
	fleet.OutsideHours.String(): "{is} outside the sharing hours",
	fleet.Paused.String():       "{is} paused",
	fleet.Spent.String():        "{has} served all the calls a day that the owner allows you, until 00:00 UTC",
	fleet.Busy.String():         "{is} busy",
}

// The tenses, each for one machine and for several.
var (
	past = [2]*strings.Replacer{strings.NewReplacer("{is}", "was", "{has}", "had"),
		strings.NewReplacer("{is}", "were", "{has}", "had")}
	present = [2]*strings.Replacer{strings.NewReplacer("{is}", "is", "{has}", "has"),
		strings.NewReplacer("{is}", "are", "{has}", "have")}
)

// seenWords describes how many machines are in a state.
func seenWords(seen account.StateCount, tense [2]*strings.Replacer) string {
	machines := machinesWords(seen.Machines, seen.Via)
	words := cmp.Or(stateWords[seen.State], "{is} "+seen.State)
	return machines + " " + tense[min(seen.Machines, 2)-1].Replace(words)
}

// machinesWords counts machines by how the caller reaches them.
func machinesWords(n int, via string) string {
	machines := "machines"
	if n == 1 {
		machines = "machine"
	}
	switch via {
	case fleet.Own.String():
		return fmt.Sprintf("%d %s of yours", n, machines)
	case fleet.Shared.String():
		return fmt.Sprintf("%d %s shared with you", n, machines)
	}
	return fmt.Sprintf("%d %s of your groups", n, machines)
}

// remediesOf returns what a member can do about a refusal, whatever the state of the
// machines.
func remediesOf(code fault.Code) (all []remedy) {
	switch code {
	case fault.CascadeExhausted, fault.OutsideSharingHours:
		all = append(all, remedy{Text: "See your limits and hours", Href: accessPath})
	case fault.CapacityFull, fault.MachineOffline:
		all = append(all, remedy{Text: "Choose another model", Href: "/models"})
	}
	if code.When() != "" {
		all = append(all, remedy{Text: "About this error", Href: "/docs/errors#" + string(code)})
	}
	return all
}
