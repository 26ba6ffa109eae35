package site

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// usageData is the content of /usage: one side of it, or what members and the reader used of
// each other's machines.
type usageData struct {
	api.UsagePage
	At      string // path of the page: /usage, or the operator's
	Spans   []usageSpan
	View    chartView
	Sides   []usageSide // the tabs; the one that is shown is Side
	Side    usageSide
	Balance []balance
	// MoreBalance is the number of members with fewer calls, who are not in Balance, if it is
	// positive.
	MoreBalance int
	Members     int64 // number of the hub's members who made calls
}

// Address returns the address of the page with these values of its parameters, which are
// names and values in turn, and the current ones of the others.
func (d usageData) Address(pairs ...string) string {
	query := url.Values{"by": {string(d.By)}, "days": {strconv.Itoa(d.Days)}, "side": {d.Side.Name}, "view": {d.View.Name}}
	for pair := range slices.Chunk(pairs, 2) {
		query.Set(pair[0], pair[1])
	}
	for name := range query {
		if query.Get(name) == "" {
			query.Del(name)
		}
	}
	return d.At + "?" + query.Encode()
}

// CSV returns the address of a table of the side as a file; of all tables if of is empty.
func (d usageData) CSV(of string) string {
	return strings.Replace(d.Address("of", of, "view", "", "side", d.Side.ID), "?", ".csv?", 1)
}

// SinceName returns the first hour, day or week as text.
func (d usageData) SinceName() string { return d.StepName(d.Since) }

// SinceTime returns the start of the first hour, day or week.
func (d usageData) SinceTime() time.Time { return d.StepTime(d.Since) }

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

// Views returns the views that the page offers: of the usage of all members, those that name
// no member.
func (d usageData) Views() []chartView {
	if d.At == hubUsagePath {
		return slices.DeleteFunc(slices.Clone(chartViews), func(v chartView) bool { return v.Split == api.ByMember })
	}
	return chartViews
}

// usageSide is a side of usage: calls made, calls served, or the two compared. Name is in
// the address; empty: it is the default. ID is the prefix of the element ids in it.
type usageSide struct {
	Text, Name, ID string
	Chart          usageChart
	Heat           *heatMap // nil: no calls, or the steps are hours
	Side           api.UsageSide
	Tables         []usageTable
	Active         map[string]int64 // number of members who made calls, by step; nil: not counted
}

// usageSides are the tabs of /usage.
var usageSides = []usageSide{{Text: "Your calls", ID: "caller"}, {Text: "On your machines", Name: "owner", ID: "owner"},
	{Text: "Given and received", Name: "balance"}}

// usageTable has the sums by model, machine, member or key, those with the most calls.
type usageTable struct {
	Of, Head string // Of is in the address of its file
	Rows     []usageRow
	More     int // number of rows that only the file has
}

// usageRow is a row of a usageTable. Owner is that of a machine.
type usageRow struct {
	Name, Owner string
	api.UsageSum
}

// mostUsageRows is the number of rows of a usageTable, and of the comparison.
const mostUsageRows = 50

// addTable adds a table of sums, unless there are none.
func addTable[Sum any](side *usageSide, of, head string, sums []Sum, row func(Sum) usageRow) {
	if len(sums) == 0 {
		return
	}
	t := usageTable{Of: of, Head: head, More: max(0, len(sums)-mostUsageRows)}
	for _, sum := range sums[:len(sums)-t.More] {
		t.Rows = append(t.Rows, row(sum))
	}
	side.Tables = append(side.Tables, t)
}

// balance compares what the reader and another member used of each other's machines.
type balance struct {
	Member                 string
	Gave, Took             int64 // calls
	TokensGave, TokensTook int64
}

func (s *Site) usageData(v *visit) (usageData, error) {
	view, err := v.chartView()
	name := v.URL.Query().Get("side")
	named := func(side usageSide) bool { return side.Name == name }
	side, err := pick(usageSides, err, named, "there is no side %.20q of usage", name)
	if err != nil {
		return usageData{}, err
	}
	span := v.usageSpan()
	span.Split = view.Split
	usage, err := call(s, v, api.GetUsage, span)
	if err != nil {
		return usageData{}, err
	}
	data := usageData{UsagePage: usage, At: "/usage", Spans: usageSpans(usage), View: view, Sides: usageSides}
	switch side.ID {
	case "caller":
		side.Side = usage.As
	case "owner":
		side.Side = usage.On
	default:
		data.Balance = balances(usage)
		if data.MoreBalance = len(data.Balance) - mostUsageRows; data.MoreBalance > 0 {
			data.Balance = data.Balance[:mostUsageRows]
		}
	}
	data.Side = side.of(data, s.DB.Now())
	return data, nil
}

// usageSpan returns the span that the address names, in the zone of the reader.
func (v *visit) usageSpan() api.Span {
	query := v.URL.Query()
	return api.Span{Days: query.Get("days"), By: api.Step(query.Get("by")), Zone: v.zone()}
}

// of returns the side with its chart and tables.
func (side usageSide) of(data usageData, now time.Time) usageSide {
	side.Chart = chartOf(data.UsagePage, side.Side.Days, data.View, now)
	if data.View.Of == ofFirstToken { // its total is no sum
		side.Chart.Legend = data.View.parts(api.UsageOfDay{UsageSum: side.Side.Total}, nil)
	}
	side.Heat = heatOf(side.Side.Week, data.Zone)
	addTable(&side, "model", "Model", side.Side.Models, func(m api.UsageOfModel) usageRow { return usageRow{cmp.Or(m.Model, "(not read)"), "", m.UsageSum} })
	addTable(&side, "machine", "Machine", side.Side.Machines, func(m api.UsageOfMachine) usageRow {
		return usageRow{cmp.Or(m.Name, "(gone)"), m.Owner, m.UsageSum}
	})
	members := "Who called"
	if side.ID == "caller" {
		members = "Whose machines"
	}
	addTable(&side, "member", members, side.Side.Members, func(m api.UsageOfMember) usageRow {
		if m.Me {
			m.Member = "you"
		}
		return usageRow{cmp.Or(m.Member, "(gone)"), "", m.UsageSum}
	})
	addTable(&side, "key", "Key", side.Side.Keys, func(k api.UsageOfKey) usageRow { return usageRow{k.Title(), "", k.UsageSum} })
	return side
}

// StepName returns an hour, day or week as in the chart.
func (d usageData) StepName(day string) string { return stepName(d.By, day, d.Zone) }

// StepTime returns the start of an hour.
func (d usageData) StepTime(hour string) time.Time {
	at, _ := d.By.Parse(hour, d.Zone) // the API formatted it
	return at
}

// hubUsagePath is the page with the usage of all members.
const hubUsagePath = operatorPath + "/usage"

// hubUsage returns the calls of all members in the requested span.
func (s *Site) hubUsage(v *visit, split api.Split) (api.HubUsage, api.UsageSide, error) {
	query := v.URL.Query()
	span := api.HubSpan{Days: query.Get("days"), By: api.Step(query.Get("by")), Split: split}
	usage, err := call(s, v, api.OperatorGetUsage, span)
	return usage, api.UsageSide{Total: usage.Total, Models: usage.Models, Codes: usage.Codes, Week: usage.Week,
		Days: stepsOf(usage)}, err
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
	view, err := v.chartView()
	if err != nil {
		return reply{title: "Hub usage"}, err
	}
	usage, side, err := s.hubUsage(v, view.Split)
	if err != nil {
		return reply{title: "Hub usage"}, err
	}
	page := api.UsagePage{Days: usage.Days, By: usage.By, Zone: "UTC", Since: usage.Since}
	active := map[string]int64{}
	for _, step := range usage.Steps {
		active[step.Day] = step.Members
	}
	data := usageData{UsagePage: page, At: hubUsagePath, Spans: usageSpans(page), View: view, Members: usage.Members}
	data.Side = usageSide{Text: "Calls of all members", ID: "hub", Side: side, Active: active}.of(data, s.DB.Now())
	return reply{page: "usage", title: "Hub usage", data: data}, nil
}

// hubUsageCSV handles GET /operator/usage.csv, with the parameters of /usage.csv.
func (s *Site) hubUsageCSV(v *visit) (reply, error) {
	of, err := usageView(v)
	if err != nil {
		return reply{}, err
	}
	usage, side, err := s.hubUsage(v, "")
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
	usage, err := call(s, v, api.GetUsage, v.usageSpan())
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
