package site

import (
	"cmp"
	"fmt"
	"net/url"
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
	Older    string // URL of the next page; empty: this is the last
	Keys     []api.Key
	// Known are the values of the last week's calls, as choices for the filter.
	Known struct{ Codes, Models, Machines []string }
}

// requestsPage handles GET /requests with a filter in its query, or with ?id= and the id
// of one request.
func (s *Site) requestsPage(v *visit) (reply, error) {
	query := v.URL.Query()
	if id := strings.TrimSpace(query.Get("id")); id != "" {
		return reply{to: "/requests/" + url.PathEscape(id)}, nil
	}
	word := func(name string) string { return strings.TrimSpace(query.Get(name)) }
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
	// The next page has the same filter.
	address := url.Values{}
	for name, value := range map[string]string{
		"outcome": filter.Outcome, "code": filter.Code, "model": filter.Model, "machine": filter.Machine,
		"key": filter.Key, "q": filter.Text,
		"from": filter.From, "to": filter.To,
	} {
		if value != "" {
			address.Set(name, value)
			data.Filtered = true
		}
	}
	if requests.Next != "" {
		address.Set("before", requests.Next)
		data.Older = "/requests?" + address.Encode()
	}
	return reply{page: "requests", title: "Calls", data: data}, cmp.Or(noKeys, noUsage)
}

// requestData is the content of the page for one request.
type requestData struct {
	api.CallTrace
	Cause    string          // see causeText
	Near     []fleet.ModelID // models in reach with similar ids
	Line     []lineEvent
	Key      string   // name of the key that was used; empty: not one of the member's
	Remedies []remedy // according to the current state
	Family   string   // of the call, if it is not chat
}

// lineEvent is one line of a call's time line.
type lineEvent struct {
	AfterMS    int64
	What, More string
	Row        int // the routing rule of a decision that something would change; else 0
}

// requestPage handles GET /requests/{call}. Its title is the model and the outcome.
func (s *Site) requestPage(v *visit) (reply, error) {
	data, err := s.requestData(v)
	if err != nil {
		return reply{title: "Call"}, err
	}
	outcome := "went elsewhere"
	switch {
	case data.Code != "":
		outcome = fault.Code(data.Code).Title()
	case data.Status != 0:
		outcome = "served"
	}
	return reply{page: "request", title: cmp.Or(data.Model, "Call") + ": " + outcome, data: data}, nil
}

func (s *Site) requestData(v *visit) (requestData, error) {
	trace, err := call(s, v, api.ExplainCall, api.CallID{Call: v.PathValue("call")})
	if err != nil {
		return requestData{}, err
	}
	data := requestData{CallTrace: trace, Cause: causeText(&trace), Line: timeLine(trace)}
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

// causeText explains why this call was not served, in a sentence: by the states of the
// machines, the message that its caller received, or the reason of the last decision. It
// returns "" if the hub knows no more than the code.
func causeText(t *api.CallTrace) string {
	switch {
	case t.Code == account.Interrupted, t.Code == account.Cancelled && !t.Mine:
		return t.Meaning
	case t.Code == account.Cancelled:
		return "You or your program ended it before its answer was complete, or read too slowly."
	}
	var last api.TracedDecision
	if n := len(t.Decisions); n > 0 && t.Decisions[n-1].Verdict == fleet.Refuse.String() {
		last = t.Decisions[n-1]
	}
	cause := cmp.Or(statesText(t.Model, last.Seen), sentence(cmp.Or(t.Message, last.Reason)))
	if code := fault.Code(t.Code); cause == "" && code.Known() && code.Quotes() {
		return "The answer gave the cause. The hub does not keep such a text, because it may quote the call."
	}
	return cause
}

// causeBrief is causeText for a line that names the model already, without what to do next.
func causeBrief(t *api.CallTrace) string {
	if n := len(t.Decisions); n > 0 && t.Decisions[n-1].Verdict == fleet.Refuse.String() {
		if states := statesBrief(t.Decisions[n-1].Seen); states != "" {
			return states + "."
		}
	}
	cause, _, _ := strings.Cut(cmp.Or(causeText(t), t.Meaning), "; ")
	return strings.TrimSuffix(cause, ".") + "."
}

// statesText describes the machines that a refused call for the model could have used; ""
// if there were none.
func statesText(model string, machines []account.StateCount) string {
	states := statesBrief(machines)
	if states == "" {
		return ""
	}
	return fmt.Sprintf("No machine with `%s` took the call: %s.", model, states)
}

// statesBrief lists the machines in states that are known to prevent a call.
func statesBrief(machines []account.StateCount) string {
	var parts []string
	for _, seen := range machines {
		if _, known := stateWords[seen.State]; known {
			parts = append(parts, seenWords(seen, past))
		}
	}
	return strings.Join(parts, "; ")
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
	if words, known := stateWords[seen.State]; known {
		return machines + " " + tense[min(seen.Machines, 2)-1].Replace(words)
	}
	return machines + ": " + seen.State
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
		all = append(all, remedy{Text: "Read what helps", Href: "/docs/errors#" + string(code)})
	}
	return all
}

// verdictWords describe the decision about a call.
var verdictWords = map[string]string{
	fleet.Refuse.String(): "Refused",
	fleet.Try.String():    "Machine chosen",
	fleet.Wait.String():   "Waits for a machine",
}

// endWords describes how a call ended, in a few words.
func endWords(t account.Trace) string {
	if t.Mine && t.Code == account.Cancelled {
		return "You stopped it"
	}
	return cmp.Or(api.Title(t.Code), "served")
}

// timeLine returns what happened to a call, in order.
func timeLine(t api.CallTrace) []lineEvent {
	line := []lineEvent{{What: "Received", More: t.Endpoint}}
	for _, d := range t.Decisions {
		var seen []string
		for _, c := range d.Seen {
			seen = append(seen, seenWords(c, past))
		}
		more := d.Reason
		if len(seen) > 0 {
			more += " (" + strings.Join(seen, "; ") + ")"
		}
		event := lineEvent{AfterMS: d.AfterMS, What: verdictWords[d.Verdict], More: more}
		if d.Verdict != fleet.Try.String() {
			event.Row = d.Row
		}
		line = append(line, event)
	}
	for i, try := range t.Tries {
		line = append(line, lineEvent{AfterMS: try.AfterMS, What: fmt.Sprintf("Attempt %d on %s", i+1, try.Machine),
			More: "of " + try.Owner + ", " + try.Via})
		if t.FirstMS > 0 && t.Mine && i == len(t.Tries)-1 { // only the last attempt can answer
			line = append(line, lineEvent{AfterMS: t.FirstMS, What: "First token"})
		}
		line = append(line, lineEvent{AfterMS: try.AfterMS + try.TookMS, What: fmt.Sprintf("Attempt %d ended", i+1), More: try.Outcome})
	}
	if t.Status != 0 {
		line = append(line, lineEvent{AfterMS: t.TookMS, What: "Ended", More: endWords(t.Trace)})
	}
	slices.SortStableFunc(line, func(a, b lineEvent) int { return cmp.Compare(a.AfterMS, b.AfterMS) })
	return line
}
