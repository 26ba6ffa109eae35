package web

import (
	"cmp"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Why says whether a call for a model would be served now, by whom, and if not,
// which row of decisions 2 refuses it and what would change that. It speaks of
// the caller's reach; of anything beyond it tells what the refusal itself tells.
type Why struct {
	Model   fleet.ModelID `json:"model"`
	Family  string        `json:"family"`
	Verdict string        `json:"verdict"` // try, wait or refuse
	Row     int           `json:"row"`
	Reason  string        `json:"reason"`
	Change  string        `json:"change"` // what would change it
	// The refusal, as a call would be told it; absent where it would be served or
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
}

// why is GET /api/why?model=ID[&family=chat]. A model out of reach counts as one
// tried (decisions 7). Like the account's listing, it does not leave out the
// machine whose credential asks.
func (a *API) why(r *request) (any, error) {
	query := r.URL.Query()
	model := fleet.ModelID(query.Get("model"))
	if !model.Valid() {
		return nil, fault.New(fault.InvalidRequest, "name the model: ?model=ID, an id of 1 to %d printable bytes", fleet.MaxModelID).WithParam("model")
	}
	family, ok := fleet.ParseFamily(cmp.Or(query.Get("family"), fleet.Chat.String()))
	if !ok {
		return nil, fault.New(fault.InvalidRequest, "family is chat, embeddings or audio").WithParam("family")
	}
	now := time.Now()
	ask := fleet.Query{
		Caller: r.caller.Member, Narrow: r.caller.Narrow, Model: model, Family: family,
		Now: now, Unconfirmed: !a.Confirmed(now),
	}
	told, f := explain(a.Snapshot(), ask)
	if f != nil {
		if limited := a.Miss(r.caller, model, f); limited != f {
			return nil, limited
		}
	}
	return told, nil
}

// explain is Route's decision in words, and the fault if it is a refusal.
func explain(s *fleet.Snapshot, ask fleet.Query) (Why, *fault.Fault) {
	d := fleet.Route(s, ask)
	reason := fleet.ReasonOf(d.Row, ask.Family)
	w := Why{
		Model: ask.Model, Family: ask.Family.String(), Verdict: d.Verdict.String(),
		Row: reason.Row, Reason: reason.What, Change: reason.Fix, Machines: []WhyMachine{},
	}
	if f := d.Fault; f != nil {
		w.Code, w.Status, w.Message, w.NoRetry = f.Code, f.Status(), f.Message, f.NoRetry
	}
	if ask.Unconfirmed { // nobody's machines are told of while it is not known whose reach they are in
		return w, d.Fault
	}
	for seen := range fleet.Reachable(s, ask) {
		m := WhyMachine{Machine: seen.Machine.Name, Owner: seen.Machine.OwnerName, Via: seen.Class.String(), State: seen.State.String()}
		if seen.Group != nil {
			m.Group = seen.Group.Name
		}
		m.Limits = limitsInForce(seen.Limits)
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

// Told is a past call as one of those it concerns is told it: with its decisions
// in words.
type Told struct {
	account.Story `json:",inline"`
	Meaning       string         `json:"meaning,omitempty"` // of its code, in words
	Decisions     []ToldDecision `json:"decisions,omitempty"`
}

// ToldDecision is one decision about a past call.
type ToldDecision struct {
	account.Judgement `json:",inline"`
	Reason            string `json:"reason"`
	Change            string `json:"change"`
}

// story is GET /api/why/{call}: what happened to a call of the caller's, or, of
// anybody's, on the caller's machines. Ids hold more random bits than can be
// guessed, and a wrong one is told like another's.
func (a *API) story(r *request) (any, error) {
	s, err := a.Story(r.Context(), r.values["call"], r.me)
	if err != nil {
		return nil, notFound(err, "nothing is known of a call %.80q of yours or on your machines: what happened to calls is kept for %d days; "+
			"a call whose key was refused (401) is nobody's, and one over the rate (429) is not kept", r.values["call"], int(account.StoryLife.Hours()/24))
	}
	return tell(s), nil
}

func tell(s account.Story) *Told {
	family := fleet.Chat
	if endpoint, ok := fleet.ParseEndpoint(s.Endpoint); ok {
		family = endpoint.Family()
	}
	told := &Told{Story: s, Meaning: meaning(s.Code)}
	for _, j := range s.Judgements {
		reason := fleet.ReasonOf(j.Row, family)
		told.Decisions = append(told.Decisions, ToldDecision{j, reason.What, reason.Fix})
	}
	return told
}

// meaning says what a call's code means; of one that was served whole, nothing.
func meaning(code string) string {
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

// mostStories is how many calls one listing tells.
const mostStories = 100

// Requests is a page of calls, the newest first.
type Requests struct {
	Object string          `json:"object"`
	Data   []account.Story `json:"data"`
	Next   string          `json:"next,omitempty"` // the before of the next page; absent: this is the last
}

// listStories is GET /api/requests[?before=PLACE]: the caller's newest calls, and
// those on the caller's machines, without what was decided about them.
func (a *API) listStories(r *request) (any, error) {
	from, err := placeIn(r.URL.Query())
	if err != nil {
		return nil, err
	}
	stories, err := a.Accounts.StoriesOf(r.Context(), r.me, from, mostStories+1)
	for i := range stories {
		stories[i].Judgements = nil
	}
	page := Requests{Object: "list"}
	page.Data, page.Next = pageOf(stories, mostStories, func(s account.Story) account.Place { return account.Place{At: s.Started, ID: s.CallID} })
	return page, err
}
