package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/host"
)

func (a *app) usage() *cobra.Command {
	var span spanFlags
	cmd := command("kith usage", func(ctx context.Context, _ []string) error {
		in, err := span.read()
		if err != nil {
			return err
		}
		if zone, err := host.Zone(); err == nil { // else days are UTC
			in.Zone = zone
		}
		return ask(ctx, a.account("show your usage"), api.GetUsage.With(in), func(page api.UsagePage) {
			a.showUsage("Your calls", page, page.As)
			a.say("\n")
			a.showUsage("On your machines", page, page.On)
		})
	})
	span.add(cmd)
	return cmd
}

// usage is `kith admin usage`: the usage of all members, without names.
func (o *operator) usage() *cobra.Command {
	var span spanFlags
	cmd := command("kith admin usage", func(ctx context.Context, _ []string) error {
		in, err := span.read()
		if err != nil {
			return err
		}
		hub := api.HubSpan{Days: in.Days, By: in.By}
		return ask(ctx, o.socket("show the usage"), api.OperatorGetUsage.With(hub), func(usage api.HubUsage) {
			days := convert(usage.Steps, func(step api.HubStep) api.UsageOfDay { return step.UsageOfDay })
			o.showUsage("Calls of "+count(usage.Members, "member"), api.UsagePage{Days: usage.Days, By: usage.By, Since: usage.Since},
				api.UsageSide{Total: usage.Total, Days: days, Models: usage.Models, Codes: usage.Codes})
		})
	})
	span.add(cmd)
	return cmd
}

// spanFlags are the flags for the time span of usage.
type spanFlags struct {
	days    int
	by      string
	changed func(flag string) bool
}

func (s *spanFlags) add(cmd *cobra.Command) {
	s.changed = cmd.Flags().Changed
	cmd.Flags().IntVar(&s.days, "days", 30, "how many days back, including today; the default is 1 by hour and 84 by week")
	cmd.Flags().StringVar(&s.by, "by", "day", "what a bar is: hour, day or week")
}

func (s *spanFlags) read() (api.Span, error) {
	if !slices.Contains([]string{"hour", "day", "week"}, s.by) {
		return api.Span{}, wrongUse("cannot show usage by %q: --by takes hour, day or week", s.by)
	}
	in := api.Span{By: api.Step(s.by)}
	if s.changed("days") {
		in.Days = strconv.Itoa(s.days)
	}
	return in, nil
}

// showUsage prints one side of the usage: the total on a line, on a terminal a bar per
// day, and tables by model and by machine.
func (a *app) showUsage(title string, page api.UsagePage, side api.UsageSide) {
	total := side.Total
	a.say("%s  %s\n", strong(title), faint(fmt.Sprintf("%s, since %s", count(page.Days, "day"), page.Since)))
	if total.Calls == 0 {
		a.note("none")
		return
	}
	a.say("%s, %s in, %s out; %s with others\n", count(total.Calls, "call"), count(total.TokensIn, "token"), short(total.TokensOut), short(total.Others))
	if terminal(a.out) {
		a.chart(page, side)
	}
	row := func(name string, s api.UsageSum) []string {
		return []string{
			name, short(s.Calls), short(s.Refused), short(s.TokensIn), short(s.TokensOut), waited(s), first(s.FirstP50MS), first(s.FirstP95MS),
		}
	}
	const columns = " CALLS FAILED TOKENS-IN TOKENS-OUT WAITED FIRST-P50 P95"
	a.table("MODEL"+columns, convert(side.Models, func(m api.UsageOfModel) []string { return row(cmp.Or(m.Model, "(not read)"), m.UsageSum) }))
	a.tableIfAny("MACHINE"+columns, convert(side.Machines, func(m api.UsageOfMachine) []string {
		if m.Name == "" {
			return row("(gone)", m.UsageSum)
		}
		return row(m.Owner+"/"+m.Name, m.UsageSum)
	}))
	a.tableIfAny("KEY"+columns, convert(side.Keys, func(k api.UsageOfKey) []string {
		return row(k.Title(), k.UsageSum)
	}))
	a.tableIfAny("REASON CODE CALLS", convert(side.Codes, func(c api.UsageOfCode) []string {
		return []string{api.Title(c.Code), c.Code, short(c.Calls)}
	}))
}

// tableIfAny prints a table unless it has no rows.
func (a *app) tableIfAny(headings string, rows [][]string) {
	if len(rows) > 0 {
		a.table(headings, rows)
	}
}

// chartWidth is the longest bar, in characters.
const chartWidth = 40

// chart prints a bar for each hour, day or week with the tokens in and out; there are
// none for those without calls.
func (a *app) chart(page api.UsagePage, side api.UsageSide) {
	tokens := map[string]int64{}
	var most int64
	for _, d := range side.Days {
		tokens[d.Day] = d.TokensIn + d.TokensOut
		most = max(most, tokens[d.Day])
	}
	shown := "_2 Jan"
	if page.By == api.Hour {
		shown = "_2 Jan 15:04"
	}
	at, err1 := page.By.Parse(side.Days[0].Day, page.Zone)
	last, err2 := page.By.Parse(side.Days[len(side.Days)-1].Day, page.Zone)
	if err1 != nil || err2 != nil || most == 0 {
		return
	}
	for ; !at.After(last); at = page.By.Next(at) {
		n := tokens[page.By.Name(at)]
		a.say("%s %s %s\n", faint(at.Format(shown)), accent(bar(n, most)), short(n))
	}
}

// first formats a time to the first token.
func first(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).Round(10 * time.Millisecond).String()
}

// bar returns a bar for n of most, in eighths of a character.
func bar(n, most int64) string {
	eighths := int(float64(n) / float64(most) * chartWidth * 8)
	if n > 0 {
		eighths = max(eighths, 1)
	}
	text := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		text += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return text
}

// count formats a number of things for people: 1 model, 12.3k calls.
func count[N int | int64](n N, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return short(int64(n)) + " " + thing
}

// short formats a number in at most five characters: 999, 12.3k, 4.0M.
func short(n int64) string {
	value, unit := float64(n), ""
	for _, next := range []string{"k", "M", "G", "T"} {
		if value < 999.5 {
			break
		}
		value, unit = value/1000, next
	}
	switch {
	case unit == "":
		return strconv.FormatInt(n, 10)
	case value < 99.95:
		return strconv.FormatFloat(value, 'f', 1, 64) + unit
	default:
		return strconv.FormatFloat(value, 'f', 0, 64) + unit
	}
}

func waited(s api.UsageSum) string {
	if s.WaitedMS == 0 {
		return "-"
	}
	mean := time.Duration(s.WaitedMS/s.Calls) * time.Millisecond
	if mean < time.Second {
		return "<1s"
	}
	return mean.Round(time.Second).String()
}
