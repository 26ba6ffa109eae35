package site

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// usageData is the content of /usage.
type usageData struct {
	api.UsagePage
	At      string // path of the page: /usage, or the operator's
	Spans   []usageSpan
	Sides   []usageSide
	Balance []balance
	// MoreBalance is the number of members with fewer calls, who are not in Balance, if it is
	// positive.
	MoreBalance int
	Members     int64 // number of the hub's members who made calls
}

// SinceName returns the first hour, day or week as text.
func (d usageData) SinceName() string { return stepName(d.By, d.Since) }

// SinceTime returns the start of the first hour, day or week.
func (d usageData) SinceTime() time.Time {
	at, _ := d.By.Parse(d.Since) // the API formatted it
	return at
}

// SpanName returns the length of the span as text.
func (d usageData) SpanName() string {
	switch {
	case d.By == api.Hour:
		return fmt.Sprintf("The last %d hours", 24*d.Days)
	case d.Days == 1:
		return "The last day"
	}
	return fmt.Sprintf("The last %d days", d.Days)
}

// usageSpan is a time span that the member can choose.
type usageSpan struct {
	Text string
	By   api.Step
	Days int
	Here bool
}

// usageSide is one half of /usage with its title: calls made, or calls served. ID is the
// prefix of the element ids in it.
type usageSide struct {
	Title, ID string
	At        string // path of the page
	By        api.Step
	Days      int
	Chart     usageChart
	Side      api.UsageSide
	Active    map[string]int64 // number of members who made calls, by step; nil: not counted
	More      map[string]int   // number of rows of each table that only the CSV file has
}

// mostUsageRows is the number of rows of a table of sums by model, machine, member or key.
const mostUsageRows = 50

// shorten returns the rows with the most calls, and adds how many there are beside them.
func shorten[Row any](rows []Row, table string, more map[string]int) []Row {
	more[table] = max(0, len(rows)-mostUsageRows)
	return rows[:len(rows)-more[table]]
}

// usageBar is one hour, day or week in the chart of calls.
type usageBar struct {
	X     int
	At    time.Time // its start
	Name  string
	Sum   api.UsageSum
	Parts []barPart // from the bottom up; none: there were no calls
}

// barPart is the part of a bar for the calls of one outcome. Y is the distance of its upper
// edge from the top of the chart.
type barPart struct {
	Outcome   string // "refused", "stopped" or "served"
	Y, Height int64
}

// chartHeight is the height of the highest bar, and leastPart that of a part with few
// calls, so that one refused call among thousands is seen.
const (
	chartHeight = 100
	leastPart   = 2
)

// balance compares what the reader and another member used of each other's machines.
type balance struct {
	Member                 string
	Gave, Took             int64 // calls
	TokensGave, TokensTook int64
}

func (s *Site) usageData(v *visit) (usageData, error) {
	query := v.URL.Query()
	usage, err := call(s, v, api.GetUsage, api.Span{Days: query.Get("days"), By: api.Step(query.Get("by"))})
	if err != nil {
		return usageData{}, err
	}
	data := usageData{UsagePage: usage, At: "/usage", Spans: usageSpans(usage)}
	data.Balance = balances(usage)
	if data.MoreBalance = len(data.Balance) - mostUsageRows; data.MoreBalance > 0 {
		data.Balance = data.Balance[:mostUsageRows]
	}
	for _, side := range []usageSide{{Title: "Your calls", ID: "caller", Side: usage.As},
		{Title: "Calls on your machines", ID: "owner", Side: usage.On}} {
		data.Sides = append(data.Sides, side.of(usage, data.At, s.DB.Now()))
	}
	return data, nil
}

// of returns the side with the page's path, time span and chart filled in, and its tables
// shortened.
func (side usageSide) of(usage api.UsagePage, at string, now time.Time) usageSide {
	side.More = map[string]int{}
	side.Side.Models = shorten(side.Side.Models, "model", side.More)
	side.Side.Machines = shorten(side.Side.Machines, "machine", side.More)
	side.Side.Members = shorten(side.Side.Members, "member", side.More)
	side.Side.Keys = shorten(side.Side.Keys, "key", side.More)
	side.At, side.Days, side.By, side.Chart = at, usage.Days, usage.By, chartOf(usage, side.Side.Days, now)
	return side
}

// StepName returns the hour, day or week of a row as in the chart.
func (side usageSide) StepName(day string) string { return stepName(side.By, day) }

// StepAt returns the start of the row's step, in Unix seconds.
func (side usageSide) StepAt(day string) int64 {
	at, _ := side.By.Parse(day) // the API formatted it
	return at.Unix()
}

// StepTime returns the start of the row's step.
func (side usageSide) StepTime(day string) time.Time { return time.Unix(side.StepAt(day), 0) }

// stepName returns an hour, day or week of the API as text for people, in UTC.
func stepName(by api.Step, name string) string {
	at, err := by.Parse(name)
	switch {
	case err != nil: // cannot happen
		return name
	case by == api.Hour:
		return at.Format("2 Jan 15:04 UTC")
	case at.Year() != time.Now().UTC().Year():
		return at.Format("2 Jan 2006")
	}
	return at.Format("2 Jan")
}

// usageChart is a bar chart of calls by hour, day or week, each bar divided by outcome.
type usageChart struct {
	By    api.Step
	Bars  []usageBar
	Total api.UsageSum // only the numbers of calls
	Most  usageBar     // the first of the highest bars
}

// Width returns the width of the chart, without a gap after the last bar.
func (c usageChart) Width() int { return c.Last().X + 8 }

// First and Last return the bars at the ends.
func (c usageChart) First() usageBar { return c.Bars[0] }
func (c usageChart) Last() usageBar  { return c.Bars[len(c.Bars)-1] }

// hubUsagePath is the page with the usage of all members.
const hubUsagePath = operatorPath + "/usage"

// hubUsage returns the calls of all members in the requested span.
func (s *Site) hubUsage(v *visit) (api.HubUsage, api.UsageSide, error) {
	query := v.URL.Query()
	usage, err := call(s, v, api.OperatorGetUsage, api.Span{Days: query.Get("days"), By: api.Step(query.Get("by"))})
	return usage, api.UsageSide{Total: usage.Total, Models: usage.Models, Codes: usage.Codes, Days: stepsOf(usage)}, err
}

// stepsOf returns the sums of the hours, days or weeks.
func stepsOf(usage api.HubUsage) (steps []api.UsageOfDay) {
	for _, step := range usage.Steps {
		steps = append(steps, step.UsageOfDay)
	}
	return steps
}

// hubUsagePage handles GET /operator/usage.
func (s *Site) hubUsagePage(v *visit) (reply, error) {
	usage, side, err := s.hubUsage(v)
	if err != nil {
		return reply{title: "Hub usage"}, err
	}
	page := api.UsagePage{Days: usage.Days, By: usage.By, Since: usage.Since}
	active := map[string]int64{}
	for _, step := range usage.Steps {
		active[step.Day] = step.Members
	}
	return reply{page: "usage", title: "Hub usage", data: usageData{
		UsagePage: page, At: hubUsagePath, Spans: usageSpans(page), Members: usage.Members,
		Sides: []usageSide{usageSide{Title: "Calls of all members", ID: "hub", Side: side, Active: active}.of(page,
			hubUsagePath, s.DB.Now())},
	}}, nil
}

// hubUsageCSV handles GET /operator/usage.csv, with the parameters of /usage.csv.
func (s *Site) hubUsageCSV(v *visit) (reply, error) {
	of, err := usageView(v)
	if err != nil {
		return reply{}, err
	}
	usage, side, err := s.hubUsage(v)
	if err != nil {
		return reply{}, err
	}
	return writeUsage([]usagePart{{"hub", side}}, of, usage.Since), nil
}

// usageSpans returns the spans that a member can choose, with the current one marked.
func usageSpans(usage api.UsagePage) (spans []usageSpan) {
	for _, span := range []usageSpan{{Text: "24 hours", By: api.Hour, Days: 1},
		{Text: "14 days", By: api.Day, Days: 14}, {Text: "30 days", By: api.Day, Days: 30},
		{Text: "12 weeks", By: api.Week, Days: 84}, {Text: "A year", By: api.Week, Days: 365}} {
		span.Here = span.By == usage.By && span.Days == usage.Days
		spans = append(spans, span)
	}
	return spans
}

// chartOf draws the calls of a span, one bar for each hour, day or week.
func chartOf(usage api.UsagePage, sums []api.UsageOfDay, now time.Time) usageChart {
	chart := usageChart{By: usage.By}
	at, err := usage.By.Parse(usage.Since)
	for ; err == nil && !at.After(now); at = usage.By.Next(at) {
		day := usage.By.Name(at)
		b := usageBar{X: len(chart.Bars) * 10, At: at, Name: stepName(usage.By, day)}
		if i := slices.IndexFunc(sums, func(d api.UsageOfDay) bool { return d.Day == day }); i >= 0 {
			b.Sum = sums[i].UsageSum
		}
		chart.Total.Calls += b.Sum.Calls
		chart.Total.Refused += b.Sum.Refused
		chart.Total.Stopped += b.Sum.Stopped
		if b.Sum.Calls > chart.Most.Sum.Calls {
			chart.Most = b
		}
		chart.Bars = append(chart.Bars, b)
	}
	for i := range chart.Bars {
		chart.Bars[i].Parts = barParts(chart.Bars[i].Sum, chart.Most.Sum.Calls)
	}
	return chart
}

// barParts returns the parts of a bar in a chart whose highest bar has that many calls. What
// served calls take is what the other parts leave of the bar.
func barParts(sum api.UsageSum, most int64) (parts []barPart) {
	y := int64(chartHeight)
	for _, of := range []struct {
		outcome string
		calls   int64
		top     int64 // of the part, if it has enough calls
	}{
		{"refused", sum.Refused, sum.Refused}, {"stopped", sum.Stopped, sum.Refused + sum.Stopped},
		{"served", sum.Served(), sum.Calls},
	} {
		if of.calls > 0 {
			height := max(leastPart, y-chartHeight+of.top*chartHeight/most)
			y -= height
			parts = append(parts, barPart{of.outcome, y, height})
		}
	}
	return parts
}

// balances compares, for each other member, the use of the reader's machines with the
// reader's use of theirs. Members with the most calls come first.
func balances(usage api.UsagePage) (all []balance) {
	at := func(member string) *balance {
		i := slices.IndexFunc(all, func(b balance) bool { return b.Member == member })
		if i < 0 {
			i, all = len(all), append(all, balance{Member: member})
		}
		return &all[i]
	}
	for _, m := range usage.On.Members {
		if !m.Me {
			b := at(m.Member)
			b.Gave, b.TokensGave = b.Gave+m.Calls, b.TokensGave+m.TokensIn+m.TokensOut
		}
	}
	for _, m := range usage.As.Members {
		if !m.Me {
			b := at(m.Member)
			b.Took, b.TokensTook = b.Took+m.Calls, b.TokensTook+m.TokensIn+m.TokensOut
		}
	}
	slices.SortStableFunc(all, func(a, b balance) int { return cmp.Compare(b.Gave+b.Took, a.Gave+a.Took) })
	return all
}

// usageViews are the tables of one side of /usage. Each can be requested alone.
var usageViews = []string{"day", "model", "machine", "member", "key", "code"}

// usageView returns the requested table of a usage page; empty means all.
func usageView(v *visit) (of string, err error) {
	if of = v.URL.Query().Get("of"); of != "" && !slices.Contains(usageViews, of) {
		err = fault.New(fault.InvalidRequest, "of must be one of %s, not %.20q", strings.Join(usageViews, ", "),
			of).WithParam("of")
	}
	return of, err
}

// usageCSV handles GET
// /usage.csv[?days=N][&by=hour|day|week][&side=caller|owner][&of=VIEW]. It returns the
// content of /usage, one row for each sum. side and of select one side and one table.
func (s *Site) usageCSV(v *visit) (reply, error) {
	query := v.URL.Query()
	side := query.Get("side")
	if side != "" && side != "caller" && side != "owner" {
		return reply{}, fault.New(fault.InvalidRequest, "side must be caller or owner, not %.20q",
			side).WithParam("side")
	}
	of, err := usageView(v)
	if err != nil {
		return reply{}, err
	}
	usage, err := call(s, v, api.GetUsage, api.Span{Days: query.Get("days"), By: api.Step(query.Get("by"))})
	if err != nil {
		return reply{}, err
	}
	parts := []usagePart{{"caller", usage.As}, {"owner", usage.On}}
	if side != "" {
		parts = slices.DeleteFunc(parts, func(p usagePart) bool { return p.name != side })
	}
	return writeUsage(parts, of, usage.Since), nil
}

// usagePart is a side of usage and its name in the file.
type usagePart struct {
	name string
	side api.UsageSide
}

// writeUsage returns a reply with sides of usage as CSV.
func writeUsage(parts []usagePart, of, since string) reply {
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	w.UseCRLF = true // required by RFC 4180
	_ = w.Write([]string{"side", "of", "name", "calls", "refused", "others", "waited_ms", "tokens_in", "tokens_out",
		"first_token_p50_ms", "first_token_p95_ms", "stopped"})
	side := ""
	for _, part := range parts {
		if len(parts) == 1 {
			side = part.name
		}
		for _, row := range rowsOf(part.side, of) {
			_ = w.Write(append([]string{part.name}, row...)) // writes to memory never fail
		}
	}
	w.Flush()
	words := []string{"kith-usage", side, of, strings.ReplaceAll(since, ":", "")}
	name := strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), "-") + ".csv"
	return reply{write: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
		_, _ = w.Write(text.Bytes())
	}}
}

// rowsOf returns the rows of one table, or of all tables if of is empty. A row has the
// table's name, what the sum is of, and its numbers.
func rowsOf(u api.UsageSide, of string) (rows [][]string) {
	add := func(view, name string, sum api.UsageSum) {
		if of != "" && of != view {
			return
		}
		row := []string{view, inCell(name)}
		for _, n := range []int64{sum.Calls, sum.Refused, sum.Others, sum.WaitedMS, sum.TokensIn, sum.TokensOut} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		for _, ms := range []int64{sum.FirstP50MS, sum.FirstP95MS} { // empty: not measured
			row = append(row, strings.TrimPrefix(strconv.FormatInt(ms, 10), "0"))
		}
		rows = append(rows, append(row, strconv.FormatInt(sum.Stopped, 10)))
	}
	for _, d := range u.Days {
		add("day", d.Day, d.UsageSum)
	}
	for _, m := range u.Models {
		add("model", m.Model, m.UsageSum)
	}
	for _, m := range u.Machines {
		add("machine", cmp.Or(m.Name, m.Machine), m.UsageSum)
	}
	for _, m := range u.Members {
		add("member", m.Member, m.UsageSum)
	}
	for _, k := range u.Keys {
		add("key", k.Title(), k.UsageSum)
	}
	for _, c := range u.Codes {
		sum := api.UsageSum{Calls: c.Calls}
		if account.Unserved(c.Code) {
			sum.Refused = c.Calls
		} else {
			sum.Stopped = c.Calls
		}
		add("code", c.Code, sum)
	}
	return rows
}

// inCell prevents a spreadsheet from reading a member's text as a formula.
func inCell(name string) string {
	if name != "" && strings.ContainsRune("=+-@\t\r\n", rune(name[0])) {
		return "'" + name
	}
	return name
}
