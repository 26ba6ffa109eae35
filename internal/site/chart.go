package site

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/api"
)

// chartView is what a chart of usage shows.
type chartView struct {
	Name  string // in the address
	Text  string
	Of    measure
	Split api.Split // empty: calls by outcome, tokens by direction
}

// measure is what the bars of a chart measure.
type measure int

const (
	ofCalls measure = iota
	ofTokens
	ofFirstToken // how long the first token took, for half and for 95 of 100 answers
	ofWaits
	ofWeekHours // no bars: the calls by hour of the week
)

// chartViews are the views of the chart of usage. The first is the default, and the one of
// all other charts.
var chartViews = []chartView{
	{"", "Calls by outcome", ofCalls, ""},
	{"calls-model", "Calls by model", ofCalls, api.ByModel},
	{"calls-member", "Calls by member", ofCalls, api.ByMember},
	{"calls-week", "Calls by hour of the week", ofWeekHours, ""},
	{"tokens", "Tokens", ofTokens, ""},
	{"tokens-model", "Tokens by model", ofTokens, api.ByModel},
	{"tokens-member", "Tokens by member", ofTokens, api.ByMember},
	{"first", "First token", ofFirstToken, ""},
	{"waits", "Waits", ofWaits, ""},
}

// chartView returns the view that the address names.
func (v *visit) chartView() (chartView, error) {
	name := v.URL.Query().Get("view")
	named := func(view chartView) bool { return view.Name == name }
	return pick(chartViews, nil, named, "there is no view %.20q of usage", name)
}

// usageChart is a bar chart of calls or tokens by hour, day or week. Each bar is divided as
// the view says.
type usageChart struct {
	By     api.Step
	Zone   string // of days and weeks
	Bars   []usageBar
	Total  api.UsageSum // only the numbers of calls and tokens
	Legend []barPart    // the parts of the total
	Most   usageBar     // the first of the highest bars
	Times  bool         // the values are times, in milliseconds
}

// usageBar is one hour, day or week in a chart.
type usageBar struct {
	X     int
	At    time.Time // its start
	Name  string
	Sum   api.UsageSum
	Parts []barPart // from the bottom up; none: there were no calls
}

// barPart is a part of a bar. Y is the distance of its upper edge from the top of the chart.
type barPart struct {
	Class     string // "served", "stopped" or "refused", "part-1" to "part-7", or "rest"
	Label     string
	Value     int64
	Text      string // of a time; empty: Value is a number
	Y, Height int64
}

// chartHeight is the height of the highest bar, and leastPart that of a part with a small
// value, so that one refused call among thousands is seen.
const (
	chartHeight = 100
	leastPart   = 2
)

// chartOf draws a span, one bar for each hour, day or week.
func chartOf(usage api.UsagePage, sums []api.UsageOfDay, view chartView, now time.Time) usageChart {
	chart := usageChart{By: usage.By, Zone: usage.Zone, Times: view.Of == ofFirstToken || view.Of == ofWaits}
	total := totalOf(sums)
	at, err := usage.By.Parse(usage.Since, usage.Zone)
	for ; err == nil && !at.After(now); at = usage.By.Next(at) {
		day := usage.By.Name(at)
		b := usageBar{X: len(chart.Bars) * 10, At: at, Name: stepName(usage.By, day, usage.Zone)}
		if i := slices.IndexFunc(sums, func(d api.UsageOfDay) bool { return d.Day == day }); i >= 0 {
			b.Sum, b.Parts = sums[i].UsageSum, view.parts(sums[i], total.Parts)
		}
		if b.Total() > chart.Most.Total() {
			chart.Most = b
		}
		chart.Bars = append(chart.Bars, b)
	}
	for i := range chart.Bars {
		stack(chart.Bars[i].Parts, chart.Most.Total())
	}
	chart.Total, chart.Legend = total.UsageSum, view.parts(total, total.Parts)
	return chart
}

// totalOf returns the numbers of calls and tokens of all sums together, and its parts, those
// with the most calls first.
func totalOf(sums []api.UsageOfDay) (total api.UsageOfDay) {
	for _, sum := range sums {
		total.Calls += sum.Calls
		total.Refused += sum.Refused
		total.Stopped += sum.Stopped
		total.WaitedMS += sum.WaitedMS
		total.TokensIn += sum.TokensIn
		total.TokensOut += sum.TokensOut
		for _, part := range sum.Parts {
			i := slices.IndexFunc(total.Parts, func(p api.UsagePart) bool { return p.Name == part.Name })
			if i < 0 {
				i, total.Parts = len(total.Parts), append(total.Parts, api.UsagePart{Name: part.Name})
			}
			total.Parts[i].Calls += part.Calls
			total.Parts[i].TokensIn += part.TokensIn
			total.Parts[i].TokensOut += part.TokensOut
		}
	}
	slices.SortStableFunc(total.Parts, func(a, b api.UsagePart) int { return cmp.Compare(b.Calls, a.Calls) })
	return total
}

// Width returns the width of the chart, without a gap after the last bar.
func (c usageChart) Width() int { return c.Last().X + 8 }

// First and Last return the bars at the ends.
func (c usageChart) First() usageBar { return c.Bars[0] }
func (c usageChart) Last() usageBar  { return c.Bars[len(c.Bars)-1] }

// Total returns what all parts of the bar are together.
func (b usageBar) Total() (sum int64) {
	for _, part := range b.Parts {
		sum += part.Value
	}
	return sum
}

// Words returns what the bar shows, such as "12 served, 1 stopped".
func (b usageBar) Words() string {
	var words []string
	for _, part := range b.Parts {
		words = append(words, cmp.Or(part.Text, api.Number(part.Value))+" "+part.Label)
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}

// parts divides a sum, from the bottom up. Parts of nothing are left out. The classes of
// models and members are by their places in all, the parts of the total.
func (view chartView) parts(sum api.UsageOfDay, all []api.UsagePart) (parts []barPart) {
	add := func(class, label string, value int64) {
		if value > 0 {
			parts = append(parts, barPart{Class: class, Label: label, Value: value})
		}
	}
	switch {
	case view.Of == ofWaits:
		add("part-1", "waited", sum.WaitedMS)
	case view.Of == ofFirstToken:
		add("part-1", "p50", sum.FirstP50MS)
		add("part-2", "p95", sum.FirstP95MS-sum.FirstP50MS)
	case view.Split == "" && view.Of == ofTokens:
		add("part-1", "in", sum.TokensIn)
		add("part-2", "out", sum.TokensOut)
	case view.Split == "":
		add("served", "served", sum.Served())
		add("stopped", "stopped", sum.Stopped)
		add("refused", "failed", sum.Refused)
	default:
		of := func(calls, in, out int64) int64 {
			if view.Of == ofTokens {
				return in + out
			}
			return calls
		}
		unnamed := map[api.Split]string{api.ByModel: "(not read)", api.ByMember: "(gone)"}[view.Split]
		rest := of(sum.Calls, sum.TokensIn, sum.TokensOut)
		for i, p := range all {
			if j := slices.IndexFunc(sum.Parts, func(part api.UsagePart) bool { return part.Name == p.Name }); j >= 0 {
				value := of(sum.Parts[j].Calls, sum.Parts[j].TokensIn, sum.Parts[j].TokensOut)
				add(fmt.Sprint("part-", i+1), cmp.Or(p.Name, unnamed), value)
				rest -= value
			}
		}
		add("rest", "others", rest)
	}
	if view.Of == ofFirstToken || view.Of == ofWaits {
		var ms int64
		for i := range parts {
			ms += parts[i].Value
			parts[i].Text = duration(ms)
		}
	}
	return parts
}

// stack sets the places of a bar's parts in a chart whose highest bar has the total most. The
// upper edge of a part is where its value and those below it reach, or higher if it would be
// too thin.
func stack(parts []barPart, most int64) {
	y, below := int64(chartHeight), int64(0)
	for i := range parts {
		below += parts[i].Value
		parts[i].Height = max(leastPart, y-chartHeight+int64(float64(below)*chartHeight/float64(most)))
		y -= parts[i].Height
		parts[i].Y = y
	}
}

// stepName returns an hour, day or week of the API as text for people.
func stepName(by api.Step, name, zone string) string {
	at, err := by.Parse(name, zone)
	switch {
	case err != nil: // cannot happen
		return name
	case by == api.Hour:
		return at.Format("2 Jan 15:04 UTC")
	case at.Year() != time.Now().Year():
		return at.Format("2 Jan 2006")
	}
	return at.Format("2 Jan")
}

// heatMap is a picture of the hours of a week, the darker the more calls.
type heatMap struct {
	Days []heatDay
	Zone string
	Most string // when the most calls were made, such as "Mon 14 h"
	N    int64  // how many those are
}

// heatDay is a day of the week.
type heatDay struct {
	Name  string
	Y     int
	Hours []heatHour
}

// heatHour is an hour of a day of the week. Heat is from 0, no calls, to 5.
type heatHour struct {
	X, Heat int
	Clock   string
	Calls   int64
}

// heatOf draws the calls by day of the week and hour, or returns nil if there are none.
func heatOf(week [][]int64, zone string) *heatMap {
	heat := &heatMap{Zone: zone}
	most := int64(0)
	for _, hours := range week {
		most = max(most, slices.Max(hours))
	}
	if most == 0 {
		return nil
	}
	for i, name := range []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"} {
		day := heatDay{Name: name, Y: 12 * i}
		for hour, n := range week[i] {
			h := heatHour{X: 12 * hour, Clock: fmt.Sprintf("%d h", hour), Calls: n, Heat: int((n*5 + most - 1) / most)}
			if n == most && heat.N == 0 {
				heat.Most, heat.N = name+" "+h.Clock, n
			}
			day.Hours = append(day.Hours, h)
		}
		heat.Days = append(heat.Days, day)
	}
	return heat
}
