package api

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Why explains whether a call for a model would be served now and by which machine or, if
// not, which of the twelve rows (spec/routing.md#the-twelve-rows) refuses it and what
// would change that. It only describes the caller's reach; about anything beyond, it
// reveals no more than the refusal itself.
type Why struct {
	Model   fleet.ModelID `json:"model"`
	Family  string        `json:"family"`
	Verdict string        `json:"verdict"` // try, wait or refuse
	Row     int           `json:"row"`
	Reason  string        `json:"reason"`
	Change  string        `json:"change"` // what would change it
	// The refusal that a call would get; absent if the call would be served or would wait.
	Code    fault.Code `json:"code,omitempty"`
	Status  int        `json:"status,omitzero"`
	Message string     `json:"message,omitempty"`
	// NoRetry reports that a retry cannot succeed.
	NoRetry bool `json:"no_retry,omitzero"`
	// Machines are the machines in reach that offer the model: first those that would be
	// tried, in order.
	Machines []WhyMachine `json:"machines"`
}

// WhyMachine is a machine in the caller's reach that offers the model.
type WhyMachine struct {
	Machine string `json:"machine"`
	Owner   string `json:"owner"`
	Via     string `json:"via"`             // own, shared or group
	Group   string `json:"group,omitempty"` // the group, if via is group
	// Limits are the limits of the share or group that count the caller's calls; absent:
	// none.
	Limits *Limits `json:"limits,omitzero"`
	State  string  `json:"state"`
	// Opens is when it opens for the caller, if it is outside its hours or those of the
	// limits; absent: it is not, or never opens. LastSeen is set while it is offline.
	Opens    time.Time `json:"opens,omitzero"`
	LastSeen time.Time `json:"last_seen,omitzero"`
	// Class is the sizes of its GPUs and memory, if its owner shows them.
	Class string `json:"class,omitzero"`
	// The facts and the context length of the model there, as its engine reports them.
	fleet.ModelFacts
	ContextLength int `json:"context_length,omitzero"`
	Order         int `json:"order,omitzero"` // position in the order of attempts, from 1; 0: it would not be tried
	// FirstTokenMS and TokensPerSecond are the hub's measurements for calls of the
	// caller's circle (spec/routing.md#circles); absent: none yet.
	FirstTokenMS    int64   `json:"first_token_ms,omitzero"`
	TokensPerSecond float64 `json:"tokens_per_second,omitzero"`
}

// ModelQuestion is a question about calls for a model.
type ModelQuestion struct {
	Model  fleet.ModelID `json:"-" query:"model"`
	Family string        `json:"-" query:"family"` // empty: chat, or what the model is for if it does not chat
}

// explainModel explains how a call for the model would be routed now. A model out of
// reach is counted like a failed attempt. Like the account's listing, it includes the
// machine whose credential was sent.
func (a *API) explainModel(_ context.Context, c fleet.Caller, in ModelQuestion) (Why, error) {
	if !in.Model.Valid() {
		return Why{}, fault.New(fault.InvalidRequest, "name the model: ?model=ID, an id of 1 to %d printable bytes", fleet.MaxModelID).WithParam("model")
	}
	family, ok := fleet.ParseFamily(cmp.Or(in.Family, fleet.Chat.String()))
	if !ok {
		return Why{}, fault.New(fault.InvalidRequest, "family is chat, embeddings or audio").WithParam("family")
	}
	snapshot := a.Snapshot()
	ask := fleet.Query{
		Caller: c.Member, Reach: c.Reach, Model: in.Model, Family: family,
		Now: a.DB.Now(), Unconfirmed: !a.Confirmed(time.Now()),
	}
	if other, ok := fleet.OtherFamily(snapshot, ask); ok && in.Family == "" {
		ask.Family = other
	}
	why, f := explain(snapshot, ask)
	if f != nil {
		if limited := a.Miss(c, in.Model, f); limited != f {
			return Why{}, limited
		}
	}
	return why, nil
}

// explain describes Route's decision, and returns the fault if it is a refusal.
func explain(s *fleet.Snapshot, ask fleet.Query) (Why, *fault.Fault) {
	d := fleet.Route(s, ask)
	reason := reasonOf(d.Row, ask.Family)
	if offered, ok := fleet.OtherFamily(s, ask); ok && d.Fault != nil && d.Fault.Code == fault.ModelNotFound {
		reason.what = "the model " + ask.Family.Missing() + ": it serves " + offered.String() + " calls only"
	}
	w := Why{
		Model: ask.Model, Family: ask.Family.String(), Verdict: d.Verdict.String(),
		Row: reason.row, Reason: reason.what, Change: reason.fix, Machines: []WhyMachine{},
	}
	if ask.Reach != fleet.Everything {
		w.Reason += map[fleet.KeyReach]string{
			fleet.OwnOnly: "; the key reaches your own machines only", fleet.OwnAndShared: "; the key reaches your own machines and those shared with you only",
		}[ask.Reach]
	}
	if f := d.Fault; f != nil {
		w.Code, w.Status, w.Message, w.NoRetry = f.Code, f.Status(), f.Message, f.NoRetry
	}
	if ask.Unconfirmed { // while the reach is unconfirmed, no machine is listed
		return w, d.Fault
	}
	for seen := range fleet.Reachable(s, ask) {
		m := WhyMachine{Machine: seen.Machine.Name, Owner: seen.Machine.OwnerName, Via: seen.Class.String(), State: seen.State.String()}
		if seen.Group != nil {
			m.Group = seen.Group.Name
		}
		m.Limits = LimitsInForce(seen.Limits)
		if seen.Offer != nil {
			m.FirstTokenMS, m.TokensPerSecond = measured(seen.Offer.Load.Speed(seen.Circle()))
			m.ModelFacts, m.ContextLength = seen.Offer.Facts, seen.Offer.ContextLength
		}
		m.Class = classFor(seen.Machine, seen.Class)
		if seen.State == fleet.OutsideHours {
			m.Opens = seen.Opens(ask.Now)
		}
		if !seen.Machine.Online {
			m.LastSeen = seen.Machine.LastSeen
		}
		m.Order = 1 + slices.IndexFunc(d.Candidates, func(c fleet.Candidate) bool { return c.Machine.ID == seen.Machine.ID })
		w.Machines = append(w.Machines, m)
	}
	slices.SortFunc(w.Machines, func(a, b WhyMachine) int {
		if a.Order != 0 && b.Order != 0 || a.Order == b.Order {
			return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Machine, b.Machine))
		}
		return cmp.Compare(b.Order, a.Order)
	})
	return w, d.Fault
}

// LimitsInForce converts limits of package fleet for an answer; nil if they limit
// nothing.
func LimitsInForce(l *fleet.Limits) *Limits {
	if l == nil {
		return nil
	}
	of := account.Limits{Hours: l.Hours.String(), Concurrent: l.Concurrent, PerDay: l.PerDay}
	for _, id := range l.Models {
		of.Models = append(of.Models, string(id))
	}
	v := viewLimits(of)
	if len(v.Models) == 0 && v.Hours == "" && v.Concurrent == nil && v.PerDay == nil {
		return nil
	}
	return &v
}

// CallTrace is what happened to a past call, as shown to its caller or to a machine's
// owner, with descriptions of the decisions.
type CallTrace struct {
	account.Trace `json:",inline"`
	Meaning       string           `json:"meaning,omitempty"` // explanation of the code
	Decisions     []TracedDecision `json:"decisions,omitempty"`
}

// TracedDecision is a routing decision about a past call.
type TracedDecision struct {
	account.Decision `json:",inline"`
	Reason           string `json:"reason"`
	Change           string `json:"change"`
}

// CallID is a call's correlation id.
type CallID struct {
	Call string `json:"-" path:"call"`
}

// explainCall explains what happened to a call of the caller or on the caller's machines.
// Ids contain enough random bits that they cannot be guessed, and a wrong id gets the
// same answer as another member's.
func (a *API) explainCall(ctx context.Context, c fleet.Caller, in CallID) (CallTrace, error) {
	s, err := a.Trace(ctx, in.Call, string(c.Member))
	if err != nil {
		return CallTrace{}, NotFound(err, "no call %.80q of yours or on your machines: a call is listed within 2 seconds of its end, and kept for %d days; "+
			"one whose key was refused (401) or that was over the rate limit (429) is not", in.Call, int(account.TraceLife.Hours()/24))
	}
	if s.KeyID != "" {
		machines, err := a.DB.Machines(ctx, string(c.Member))
		if err != nil {
			return CallTrace{}, err
		}
		s.FromMachine, s.Program = madeAt(s.KeyID, machines)
	}
	return viewTrace(s), nil
}

func viewTrace(s account.Trace) CallTrace {
	family := fleet.Chat
	if endpoint, ok := fleet.ParseEndpoint(s.Endpoint); ok {
		family = endpoint.Family()
	}
	view := CallTrace{Trace: s, Meaning: Meaning(s.Code)}
	for _, j := range s.Decisions {
		reason := reasonOf(j.Row, family)
		view.Decisions = append(view.Decisions, TracedDecision{j, reason.what, reason.fix})
	}
	return view
}

// Outcome returns how a call ended, in the word of all pages and commands (docs/site.md#outcomes):
// served, stopped (by its caller) or failed (refused, or interrupted before the answer was complete). An owner's
// trace may be of a call that went elsewhere.
func Outcome(t account.Trace) string {
	switch {
	case account.Unserved(t.Code):
		return "failed"
	case t.Code != "":
		return "stopped"
	case t.Status != 0:
		return "served"
	}
	return "went elsewhere"
}

// Title returns a call's code in a few plain words.
func Title(code string) string {
	switch code {
	case account.Interrupted:
		return "The hub stopped"
	case account.Cancelled:
		return "Stopped by the caller"
	}
	return fault.Code(code).Title()
}

// Meaning explains a call's code. It returns "" for a call that was served.
func Meaning(code string) string {
	switch code {
	case "":
		return ""
	case account.Interrupted:
		return "The hub itself ended while the call ran: its caller may have heard all of the answer, some or none."
	case account.Cancelled:
		return "The caller left, or read too slowly, before the end."
	}
	return fault.Code(code).When()
}

// maxRequests is the number of calls on a page. To find that many that match the filter,
// at most maxSearched calls are read.
const (
	maxRequests = 100
	maxSearched = 5000
)

// Requests is a page of calls, newest first.
type Requests struct {
	Object string          `json:"object"`
	Data   []account.Trace `json:"data"`
	Next   string          `json:"next,omitempty"` // before of the next page; absent: this is the last one
}

// Page selects a page of a list.
type Page struct {
	Before string `json:"-" query:"before"`
}

// RequestFilter filters a list of calls. Empty fields match everything.
type RequestFilter struct {
	Before  string `json:"-" query:"before"`
	Outcome string `json:"-" query:"outcome"` // "served", "refused": failed, or "stopped"
	Code    string `json:"-" query:"code"`
	Model   string `json:"-" query:"model"`
	Machine string `json:"-" query:"machine"` // name of a machine that was tried
	Key     string `json:"-" query:"key"`     // key of a UsageOfKey
	Text    string `json:"-" query:"q"`       // words of its id, model, caller, code, machines or program
	From    string `json:"-" query:"from"`    // started then or later
	To      string `json:"-" query:"to"`      // started before
}

// begins parses a time of a filter, in UTC: a day, a minute, or in the format of RFC
// 3339.
func begins(text, param string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04", time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil && t.UnixMilli() > 0 {
			return t, nil
		}
	}
	return time.Time{}, fault.New(fault.InvalidRequest, "%s is a time like 2026-11-21 or 2026-11-21T10:30, UTC, not %.40q", param, text).WithParam(param)
}

// read validates the filter and returns the earliest time of matching calls and the start
// of the page.
func (f *RequestFilter) read() (from time.Time, before string, err error) {
	switch f.Outcome {
	case "", "served", "refused", "stopped":
	default:
		return from, "", fault.New(fault.InvalidRequest, "outcome is served, refused or stopped, not %.20q", f.Outcome).WithParam("outcome")
	}
	if f.From != "" {
		if from, err = begins(f.From, "from"); err != nil {
			return from, "", err
		}
	}
	if f.To == "" {
		return from, f.Before, nil
	}
	to, err := begins(f.To, "to")
	if start, noStart := pageStart(f.Before); err == nil && (f.Before == "" || noStart == nil && start.At.After(to)) {
		return from, to.UTC().Format(time.RFC3339Nano), nil
	}
	return from, f.Before, err
}

// Finds reports whether a search finds what has the texts: each of its words is a part of
// one of them, in any order and case.
func Finds(search string, texts ...string) bool {
	all := strings.ToLower(strings.Join(texts, "\n"))
	for word := range strings.FieldsSeq(strings.ToLower(search)) {
		if !strings.Contains(all, word) {
			return false
		}
	}
	return true
}

// shows reports whether the call matches the filter.
func (f *RequestFilter) shows(t *account.Trace) bool {
	on := func(machine string) bool {
		return slices.ContainsFunc(t.Tries, func(a account.Attempt) bool { return strings.EqualFold(a.Machine, machine) })
	}
	switch {
	case f.Outcome == "refused" && !account.Unserved(t.Code), f.Outcome == "stopped" && t.Code != account.Cancelled:
	case f.Outcome == "served" && (t.Code != "" || t.Status == 0):
	case f.Code != "" && f.Code != t.Code, f.Model != "" && f.Model != t.Model, f.Key != "" && f.Key != t.KeyID, f.Machine != "" && !on(f.Machine):
	default:
		texts := []string{t.Model, t.Caller, t.Code, t.CallID, MadeAt(t.FromMachine, t.Program)}
		for _, try := range t.Tries {
			texts = append(texts, try.Machine)
		}
		return Finds(f.Text, texts...)
	}
	return false
}

// listRequests lists the caller's newest calls, and those on the caller's machines,
// without the routing decisions. A page can contain fewer than maxRequests calls, or
// none, even if there is a next one, because it reads at most maxSearched calls.
func (a *API) listRequests(ctx context.Context, c fleet.Caller, in RequestFilter) (Requests, error) {
	out := Requests{Object: "list", Data: []account.Trace{}}
	since, before, err := in.read()
	if err != nil {
		return out, err
	}
	find := func(from account.Place, most int) ([]account.Trace, error) {
		return a.DB.TracesOf(ctx, string(c.Member), from, most)
	}
	machines, err := a.DB.Machines(ctx, string(c.Member))
	if err != nil {
		return out, err
	}
	place := func(t account.Trace) account.Place { return account.Place{At: t.Started, ID: t.CallID} }
	for searched := 0; searched < maxSearched; searched += maxRequests {
		traces, next, err := Paged(before, maxRequests, find, place)
		if err != nil {
			return out, err
		}
		for i, t := range traces {
			if t.Started.Before(since) {
				return out, nil
			}
			t.FromMachine, t.Program = madeAt(t.KeyID, machines)
			if !in.shows(&t) {
				continue
			}
			t.Decisions = nil
			if out.Data = append(out.Data, t); len(out.Data) == maxRequests && (next != "" || i < len(traces)-1) {
				out.Next = placeText(place(t))
				return out, nil
			}
		}
		if before = next; next == "" {
			return out, nil
		}
	}
	out.Next = before
	return out, nil
}
