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

// requestsData is what /requests shows.
type requestsData struct {
	api.Requests
	Search, Outcome string
	Seen            int // requests that the filter looked at
}

// requestsPage is GET /requests[?before=PLACE][&q=TEXT][&outcome=served|refused], or ?id=
// of one request, as an answer names it. The filter takes a page of the listing at a time.
func (s *Site) requestsPage(v *visit) (reply, error) {
	query := v.URL.Query()
	if id := strings.TrimSpace(query.Get("id")); id != "" {
		return reply{to: "/requests/" + url.PathEscape(id)}, nil
	}
	requests, err := call(s, v, api.ListRequests, api.Page{Before: query.Get("before")})
	if err != nil {
		return reply{title: "Requests"}, err
	}
	data := requestsData{Requests: requests, Search: strings.TrimSpace(query.Get("q")), Outcome: query.Get("outcome"), Seen: len(requests.Data)}
	switch data.Outcome {
	case "", "served", "refused":
	default:
		return reply{title: "Requests"}, fault.New(fault.InvalidRequest, "outcome is served or refused, not %.20q", data.Outcome).WithParam("outcome")
	}
	data.Data = slices.DeleteFunc(data.Data, func(t account.Trace) bool { return !data.shows(t) })
	return reply{page: "requests", title: "Requests", data: data}, nil
}

// shows reports whether the filter lets a request through.
func (d *requestsData) shows(t account.Trace) bool {
	if d.Outcome == "refused" && t.Code == "" || d.Outcome == "served" && (t.Code != "" || t.Status == 0) {
		return false
	}
	texts := []string{t.Model, t.Caller, t.Code, t.CallID}
	for _, try := range t.Tries {
		texts = append(texts, try.Machine)
	}
	return strings.Contains(strings.ToLower(strings.Join(texts, " ")), strings.ToLower(d.Search))
}

// requestData is what the page of one request shows.
type requestData struct {
	api.CallTrace
	Line     []moment
	Remedies []remedy // as things are now
}

// moment is one line of a request's time line.
type moment struct {
	AfterMS    int64
	What, More string
}

func (s *Site) requestData(v *visit) (requestData, error) {
	trace, err := call(s, v, api.ExplainCall, api.CallID{Call: v.PathValue("call")})
	if err != nil {
		return requestData{}, err
	}
	data := requestData{CallTrace: trace, Line: timeLine(trace)}
	if trace.Mine && trace.Code != "" && fleet.ModelID(trace.Model).Valid() {
		// Without an answer, the page has no remedy.
		if why, err := call(s, v, api.ExplainModel, api.ModelQuestion{Model: fleet.ModelID(trace.Model)}); err == nil {
			own, err := call(s, v, api.ListMachines, api.None{})
			data.Remedies = remedies(why, own.Data)
			return data, err
		}
	}
	return data, nil
}

// timeLine is what happened to a call, in order.
func timeLine(t api.CallTrace) []moment {
	line := []moment{{0, "Received", t.Endpoint}}
	for _, d := range t.Decisions {
		var seen []string
		for _, c := range d.Seen {
			seen = append(seen, fmt.Sprintf("%d %s: %s", c.Machines, c.Via, c.State))
		}
		more := d.Reason
		if d.Verdict != "try" {
			more += ". What would change it: " + d.Change
		}
		if len(seen) > 0 {
			more += " (" + strings.Join(seen, "; ") + ")"
		}
		line = append(line, moment{d.AfterMS, "Decided: " + d.Verdict, more})
	}
	for i, try := range t.Tries {
		line = append(line,
			moment{try.AfterMS, fmt.Sprintf("Attempt %d on %s", i+1, try.Machine), "of " + try.Owner + ", " + try.Via},
			moment{try.AfterMS + try.TookMS, fmt.Sprintf("Attempt %d ended", i+1), try.Outcome})
	}
	if t.Status != 0 {
		line = append(line, moment{t.TookMS, "Ended", cmp.Or(t.Code, "served")})
	}
	slices.SortStableFunc(line, func(a, b moment) int { return cmp.Compare(a.AfterMS, b.AfterMS) })
	return line
}
