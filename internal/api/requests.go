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

// Why says whether a call for a model would be served now, by which machine, and if
// not, which of the twelve rows (spec/routing.md#the-twelve-rows) refuses it and what
// would change that. It describes the caller's reach; of anything beyond it says what
// the refusal itself says.
type Why struct {
	Model   fleet.ModelID `json:"model"`
	Family  string        `json:"family"`
	Verdict string        `json:"verdict"` // try, wait or refuse
	Row     int           `json:"row"`
	Reason  string        `json:"reason"`
	Change  string        `json:"change"` // what would change it
	// The refusal, as a call would get it; absent where it would be served or
	// wait.
	Code    fault.Code `json:"code,omitempty"`
	Status  int        `json:"status,omitzero"`
	Message string     `json:"message,omitempty"`
	// NoRetry says that repeating the call does not help.
	NoRetry bool `json:"no_retry,omitzero"`
	// Machines are those in reach that offer the model: the ones that would be
	// tried first, in that order.
	Machines []WhyMachine `json:"machines"`
}

// WhyMachine is one machine in the caller's reach that offers the model.
type WhyMachine struct {
	Machine string `json:"machine"`
	Owner   string `json:"owner"`
	Via     string `json:"via"`             // own, shared or group
	Group   string `json:"group,omitempty"` // which one
	// Limits are those of the share or group that the caller's calls count against;
	// absent: none.
	Limits *Limits `json:"limits,omitzero"`
	State  string  `json:"state"`
	Order  int     `json:"order,omitzero"` // in which it would be tried, from 1; 0: not
	// FirstTokenMS and TokensPerSecond are as the hub measured them by calls of the
	// caller's circle (spec/routing.md#circles); absent: not yet.
	FirstTokenMS    int64   `json:"first_token_ms,omitzero"`
	TokensPerSecond float64 `json:"tokens_per_second,omitzero"`
}

// ModelQuestion asks about a call for a model.
type ModelQuestion struct {
	Model  fleet.ModelID `json:"-" query:"model"`
	Family string        `json:"-" query:"family"` // empty: chat
}

// explainModel says how a call for the model would be routed now. A model out of
// reach counts as one that was tried. Like the account's listing, it does not
// leave out the machine whose credential asks.
func (a *API) explainModel(_ context.Context, c Caller, in ModelQuestion) (Why, error) {
	if !in.Model.Valid() {
		return Why{}, fault.New(fault.InvalidRequest, "name the model: ?model=ID, an id of 1 to %d printable bytes", fleet.MaxModelID).WithParam("model")
	}
	family, ok := fleet.ParseFamily(cmp.Or(in.Family, fleet.Chat.String()))
	if !ok {
		return Why{}, fault.New(fault.InvalidRequest, "family is chat, embeddings or audio").WithParam("family")
	}
	now := a.DB.Now()
	why, f := explain(a.Snapshot(), fleet.Query{
		Caller: c.Member, Narrow: c.Narrow, Model: in.Model, Family: family,
		Now: now, Unconfirmed: !a.Confirmed(time.Now()),
	})
	if f != nil {
		if limited := a.Miss(c, in.Model, f); limited != f {
			return Why{}, limited
		}
	}
	return why, nil
}

// explain is Route's decision in words, and the fault if it is a refusal.
func explain(s *fleet.Snapshot, ask fleet.Query) (Why, *fault.Fault) {
	d := fleet.Route(s, ask)
	reason := fleet.ReasonOf(d.Row, ask.Family)
	w := Why{
		Model: ask.Model, Family: ask.Family.String(), Verdict: d.Verdict.String(),
		Row: reason.Row, Reason: reason.What, Change: reason.Fix, Machines: []WhyMachine{},
	}
	if ask.Narrow != fleet.Everything {
		w.Reason += map[fleet.Narrow]string{
			fleet.OwnOnly: "; the key reaches your own machines only", fleet.OwnAndShared: "; the key reaches your own machines and those shared with you only",
		}[ask.Narrow]
	}
	if f := d.Fault; f != nil {
		w.Code, w.Status, w.Message, w.NoRetry = f.Code, f.Status(), f.Message, f.NoRetry
	}
	if ask.Unconfirmed { // no machine is listed while it is unknown whose reach it is in
		return w, d.Fault
	}
	for seen := range fleet.Reachable(s, ask) {
		m := WhyMachine{Machine: seen.Machine.Name, Owner: seen.Machine.OwnerName, Via: seen.Class.String(), State: seen.State.String()}
		if seen.Group != nil {
			m.Group = seen.Group.Name
		}
		m.Limits = limitsInForce(seen.Limits)
		if seen.Offer != nil {
			m.FirstTokenMS, m.TokensPerSecond = measured(seen.Offer.Load.Speed(seen.Circle()))
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

// limitsInForce is limits of the routing rules as an answer holds them; nil: they limit nothing.
func limitsInForce(l *fleet.Limits) *Limits {
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

// CallTrace is what happened to a past call, as its caller or the machine's owner sees it:
// with its decisions in words.
type CallTrace struct {
	account.Trace `json:",inline"`
	Meaning       string           `json:"meaning,omitempty"` // of its code, in words
	Decisions     []TracedDecision `json:"decisions,omitempty"`
}

// TracedDecision is one decision about a past call.
type TracedDecision struct {
	account.Decision `json:",inline"`
	Reason           string `json:"reason"`
	Change           string `json:"change"`
}

// CallID is the correlation id of a call.
type CallID struct {
	Call string `json:"-" path:"call"`
}

// explainCall says what happened to a call of the caller's or on the caller's
// machines. Ids hold more random bits than can be guessed, and a wrong id is
// answered like another member's.
func (a *API) explainCall(ctx context.Context, c Caller, in CallID) (CallTrace, error) {
	s, err := a.Trace(ctx, in.Call, c.id())
	if err != nil {
		return CallTrace{}, NotFound(err, "nothing is known of a call %.80q of yours or on your machines: if it ended just now, ask again in 2 seconds; what happened to calls is kept for %d days; "+
			"a call whose key was refused (401) belongs to no member, and one over the rate (429) is not kept", in.Call, int(account.TraceLife.Hours()/24))
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
		reason := fleet.ReasonOf(j.Row, family)
		view.Decisions = append(view.Decisions, TracedDecision{j, reason.What, reason.Fix})
	}
	return view
}

// Title is the code of a call in a few plain words.
func Title(code string) string {
	switch code {
	case account.Interrupted:
		return "The hub stopped"
	case "cancelled":
		return "Cancelled by the caller"
	}
	return fault.Code(code).Title()
}

// Meaning says what a call's code means; of one that was served, nothing.
func Meaning(code string) string {
	switch code {
	case "":
		return ""
	case account.Interrupted:
		return "The hub itself ended while the call ran: its caller may have heard all of the answer, some or none."
	case "cancelled":
		return "The caller left, or read too slowly, before the end."
	}
	return fault.Code(code).When()
}

// maxRequests is how many calls one page lists, and maxSearched among how many it looks
// for those that its filter lets through.
const (
	maxRequests = 100
	maxSearched = 5000
)

// Requests is a page of calls, the newest first.
type Requests struct {
	Object string          `json:"object"`
	Data   []account.Trace `json:"data"`
	Next   string          `json:"next,omitempty"` // the before of the next page; absent: this is the last
}

// Page says where a page of a listing begins.
type Page struct {
	Before string `json:"-" query:"before"`
}

// RequestFilter narrows a listing of calls; what is empty lets all through.
type RequestFilter struct {
	Before  string `json:"-" query:"before"`
	Outcome string `json:"-" query:"outcome"` // served, or refused: not served to its end
	Code    string `json:"-" query:"code"`
	Model   string `json:"-" query:"model"`
	Machine string `json:"-" query:"machine"` // by name: one that it was tried on
	Key     string `json:"-" query:"key"`     // by id
	Text    string `json:"-" query:"q"`       // in its id, model, caller, code or machines
	From    string `json:"-" query:"from"`    // it began then or later
	To      string `json:"-" query:"to"`      // it began before
}

// begins reads a time of a filter, UTC: a day, a minute, or as RFC 3339 has it.
func begins(text, param string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04", time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil && t.UnixMilli() > 0 {
			return t, nil
		}
	}
	return time.Time{}, fault.New(fault.InvalidRequest, "%s is a time like 2026-11-21 or 2026-11-21T10:30, UTC, not %.40q", param, text).WithParam(param)
}

// read checks the filter, and returns from when calls count and where the page begins.
func (f *RequestFilter) read() (from time.Time, before string, err error) {
	switch f.Outcome {
	case "", "served", "refused":
	default:
		return from, "", fault.New(fault.InvalidRequest, "outcome is served or refused, not %.20q", f.Outcome).WithParam("outcome")
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

// shows reports whether the filter lets a call through.
func (f *RequestFilter) shows(t *account.Trace) bool {
	on := func(machine string) bool {
		return slices.ContainsFunc(t.Tries, func(a account.Attempt) bool { return strings.EqualFold(a.Machine, machine) })
	}
	switch {
	case f.Outcome == "refused" && t.Code == "", f.Outcome == "served" && (t.Code != "" || t.Status == 0):
	case f.Code != "" && f.Code != t.Code, f.Model != "" && f.Model != t.Model, f.Key != "" && f.Key != t.KeyID, f.Machine != "" && !on(f.Machine):
	default:
		texts := []string{t.Model, t.Caller, t.Code, t.CallID}
		for _, try := range t.Tries {
			texts = append(texts, try.Machine)
		}
		return f.Text == "" || strings.Contains(strings.ToLower(strings.Join(texts, " ")), strings.ToLower(f.Text))
	}
	return false
}

// listRequests lists the caller's newest calls, and those on the caller's machines,
// without what was decided about them. A page may hold fewer than maxRequests, or none,
// and yet have a next one: it looks through maxSearched calls at most.
func (a *API) listRequests(ctx context.Context, c Caller, in RequestFilter) (Requests, error) {
	out := Requests{Object: "list", Data: []account.Trace{}}
	since, before, err := in.read()
	if err != nil {
		return out, err
	}
	find := func(from account.Place, most int) ([]account.Trace, error) {
		return a.DB.TracesOf(ctx, c.id(), from, most)
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
