package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Bounds of a span of days: at most a year, a month by default.
const (
	maxUsageDays     = 366
	maxHourDays      = 14 // of sums by the hour
	defaultUsageDays = 30
)

// maxOthers is how many members one side of usage lists: those with most calls.
const maxOthers = 100

// UsagePage is a member's usage in the days since Since, today included: both
// sides, and nothing of any content.
type UsagePage struct {
	Days  int       `json:"days"`
	By    Step      `json:"by"`
	Since string    `json:"since"`     // the first hour, day or week, UTC, as UsageOfDay has it
	As    UsageSide `json:"as_caller"` // of the member's calls
	On    UsageSide `json:"as_owner"`  // what ran on the member's machines, for any member
}

// UsageSide is one side of it: in all, by hour, day or week (each one that had calls, in
// order), and by model, machine, member, key and code (most calls first).
type UsageSide struct {
	Total    UsageSum         `json:"total"`
	Days     []UsageOfDay     `json:"days"` // or hours or weeks
	Models   []UsageOfModel   `json:"models"`
	Machines []UsageOfMachine `json:"machines"`
	// Members are those whose machines took the caller's calls, or who called on
	// the owner's machines: at most 100.
	Members []UsageOfMember `json:"members"`
	// Keys are the caller's, of the last 13 weeks at most; absent for the owner.
	Keys  []UsageOfKey  `json:"keys,omitzero"`
	Codes []UsageOfCode `json:"codes"`
}

// UsageSum is what calls came to.
type UsageSum struct {
	Calls   int64 `json:"calls"`
	Refused int64 `json:"refused"` // or broke off: those that were not served to their end
	// Others is how many of these calls crossed from one member to another: they
	// ran on another member's machine, or another member's ran on one's own.
	Others    int64 `json:"others"`
	WaitedMS  int64 `json:"waited_ms"`
	TokensIn  int64 `json:"tokens_in"`
	TokensOut int64 `json:"tokens_out"`
	// FirstP50MS and FirstP95MS are the times from a call's arrival to the first token
	// within which half of the streamed answers of the last 13 weeks came, and 95 of 100,
	// to about a fifth; absent: there were none.
	FirstP50MS int64 `json:"first_token_p50_ms,omitzero"`
	FirstP95MS int64 `json:"first_token_p95_ms,omitzero"`
}

// sumOf is what one day's calls of one kind came to.
func sumOf(d account.UsageDay) UsageSum {
	sum := UsageSum{Calls: d.Calls, WaitedMS: d.Waited.Milliseconds(), TokensIn: d.TokensIn, TokensOut: d.TokensOut}
	if d.Code != "" {
		sum.Refused = d.Calls
	}
	if d.OwnerID != "" && d.OwnerID != d.MemberID {
		sum.Others = d.Calls
	}
	return sum
}

func (s *UsageSum) add(more UsageSum) {
	s.Calls += more.Calls
	s.Refused += more.Refused
	s.Others += more.Others
	s.WaitedMS += more.WaitedMS
	s.TokensIn += more.TokensIn
	s.TokensOut += more.TokensOut
}

// UsageOfDay sums one day, hour or week, UTC.
type UsageOfDay struct {
	Day string `json:"day"` // as 2026-11-21; an hour as 2026-11-21T14:00; a week by its Monday
	UsageSum
}

// UsageOfModel sums the calls for one model.
type UsageOfModel struct {
	Model string `json:"model"`
	UsageSum
}

// UsageOfMachine sums the calls on one machine. Its names are there as long as
// the hub knows the machine.
type UsageOfMachine struct {
	Machine string `json:"machine"` // its id
	Name    string `json:"name"`
	Owner   string `json:"owner"`
	UsageSum
}

// UsageOfMember sums the calls between the member and another, or itself.
type UsageOfMember struct {
	Member string `json:"member"` // by name
	Me     bool   `json:"me"`     // it is the member itself
	UsageSum
}

// UsageOfKey sums the calls by one key. Name is empty for what is no key of the member's:
// the site, or, where Key is empty too, a machine's credential.
type UsageOfKey struct {
	Key  string `json:"key"` // its id
	Name string `json:"name"`
	UsageSum
}

// UsageOfCode counts the calls that ended with one code.
type UsageOfCode struct {
	Code  string `json:"code"`
	Calls int64  `json:"calls"`
}

// Span is a span of days, today included, and what its sums are of.
type Span struct {
	Days string `json:"-" query:"days"` // a number; empty: 1 by the hour, 30 by the day, 84 by the week
	By   Step   `json:"-" query:"by"`   // empty: Day
}

// Step is what the sums of a span are of: an hour, a day or a week, UTC.
type Step string

// The steps.
const (
	Hour Step = "hour"
	Day  Step = "day"
	Week Step = "week"
)

// Begin returns the begin of the step that a time is in.
func (s Step) Begin(t time.Time) time.Time {
	switch t = t.UTC(); s {
	case Hour:
		return t.Truncate(time.Hour)
	case Week:
		t = t.Truncate(24 * time.Hour)
		return t.AddDate(0, 0, -(int(t.Weekday())+6)%7)
	}
	return t.Truncate(24 * time.Hour)
}

// Next returns the begin of the step after the one that begins then.
func (s Step) Next(begin time.Time) time.Time {
	switch s {
	case Hour:
		return begin.Add(time.Hour)
	case Week:
		return begin.AddDate(0, 0, 7)
	}
	return begin.AddDate(0, 0, 1)
}

// layout is how the begin of a step is written.
func (s Step) layout() string {
	if s == Hour {
		return "2006-01-02T15:04"
	}
	return time.DateOnly
}

// Name is how UsageOfDay names the step that begins then.
func (s Step) Name(begin time.Time) string { return begin.Format(s.layout()) }

// Parse returns the begin of the step of that name.
func (s Step) Parse(name string) (time.Time, error) { return time.Parse(s.layout(), name) }

// steps is a Span that was read.
type steps struct {
	Step
	days  int
	since time.Time // the first step
}

// read returns the steps of a span that ends now.
func (in Span) read(now time.Time) (steps, error) {
	s := steps{Step: cmp.Or(in.By, Day)}
	most := maxUsageDays
	switch s.Step {
	case Hour:
		s.days, most = 1, maxHourDays
	case Day:
		s.days = defaultUsageDays
	case Week:
		s.days = 12 * 7
	default:
		return steps{}, fault.New(fault.InvalidRequest, "by is hour, day or week, not %.20q", in.By).WithParam("by")
	}
	if in.Days != "" {
		var err error
		if s.days, err = strconv.Atoi(in.Days); err != nil || s.days < 1 || s.days > most {
			return steps{}, fault.New(fault.InvalidRequest, "days is a whole number from 1 to %d, not %.20q", most, in.Days).WithParam("days")
		}
	}
	s.since = s.Begin(Day.Begin(now).AddDate(0, 0, 1-s.days))
	if s.Step == Hour { // the last one is that of now
		s.since = Hour.Begin(now).Add(time.Hour - time.Duration(s.days)*24*time.Hour)
	}
	return s, nil
}

// getUsage adds up the caller's usage in the span. Days and weeks are of the daily sums;
// hours, keys and times to the first token of the hourly ones.
func (a *API) getUsage(ctx context.Context, c Caller, in Span) (UsagePage, error) {
	steps, err := in.read(a.DB.Now())
	if err != nil {
		return UsagePage{}, err
	}
	as := adding(steps, func(d account.UsageDay) string { return d.OwnerID })
	on := adding(steps, func(d account.UsageDay) string { return d.MemberID })
	as.keys = sums{}
	if err = a.DB.HoursOfCaller(ctx, c.id(), steps.since, as.addHour); err == nil {
		err = a.DB.HoursOfOwner(ctx, c.id(), steps.since, on.addHour)
	}
	if err == nil && steps.Step != Hour {
		if err = a.DB.DaysOfCaller(ctx, c.id(), steps.since, as.add); err == nil {
			err = a.DB.DaysOfOwner(ctx, c.id(), steps.since, on.add)
		}
	}
	if err != nil {
		return UsagePage{}, err
	}
	asCaller, err := a.usageSide(ctx, c, as)
	asOwner, err2 := a.usageSide(ctx, c, on)
	return UsagePage{steps.days, steps.Step, steps.Name(steps.since), asCaller, asOwner}, cmp.Or(err, err2)
}

// HubUsage is what all members called since Since. No member is named, and no machine
// (spec/security.md#operator-usage).
type HubUsage struct {
	Days    int            `json:"days"`
	By      Step           `json:"by"`
	Since   string         `json:"since"`   // as in UsagePage
	Members int64          `json:"members"` // who made calls
	Total   UsageSum       `json:"total"`
	Steps   []HubStep      `json:"steps"` // each hour, day or week that had calls, in order
	Models  []UsageOfModel `json:"models"`
	Codes   []UsageOfCode  `json:"codes"`
}

// HubStep sums one hour, day or week.
type HubStep struct {
	UsageOfDay
	Members int64 `json:"members"` // who made calls in it
}

// operatorGetUsage adds up the usage of all members in the span, as getUsage does one
// member's.
func (a *API) operatorGetUsage(ctx context.Context, _ Caller, in Span) (HubUsage, error) {
	steps, err := in.read(a.DB.Now())
	if err != nil {
		return HubUsage{}, err
	}
	all := adding(steps, func(account.UsageDay) string { return "" })
	err = a.DB.HoursOfHub(ctx, steps.since, all.addHour)
	if err == nil && steps.Step != Hour {
		err = a.DB.DaysOfHub(ctx, steps.since, all.add)
	}
	if err != nil {
		return HubUsage{}, err
	}
	members, active, err := a.DB.ActiveMembers(ctx, steps.since, steps.Next(steps.since).Sub(steps.since))
	if err != nil {
		return HubUsage{}, err
	}
	side, err := a.usageSide(ctx, Caller{}, all)
	usage := HubUsage{Days: steps.days, By: steps.Step, Since: steps.Name(steps.since), Members: members, Total: side.Total, Models: side.Models, Codes: side.Codes}
	at := map[string]int64{}
	for begin, n := range active {
		at[steps.Name(begin)] = n
	}
	usage.Steps = views(side.Days, func(d UsageOfDay) HubStep { return HubStep{d, at[d.Day]} })
	return usage, err
}

// addition adds up one side's calls.
type addition struct {
	steps                                  steps
	other                                  func(account.UsageDay) string // the member at the other end
	total                                  tally
	days, models, machines, members, codes sums
	keys                                   sums // nil: the side's keys are not the member's
}

func adding(s steps, other func(account.UsageDay) string) *addition {
	return &addition{steps: s, other: other, days: sums{}, models: sums{}, machines: sums{}, members: sums{}, codes: sums{}}
}

// add adds a daily sum.
func (a *addition) add(d account.UsageDay) {
	sum := sumOf(d)
	for _, t := range a.of(d) {
		t.add(sum)
	}
	a.codes.of(d.Code).add(sum)
}

// addHour adds an hourly sum: its times to the first token, what is of a key, and the
// rest where the steps are hours.
func (a *addition) addHour(h account.UsageHour) {
	d := account.UsageDay{
		Day: h.Hour, MemberID: h.MemberID, OwnerID: h.OwnerID, MachineID: h.MachineID, Model: h.Model, Code: h.Code,
		Calls: h.Calls, Waited: h.Waited, TokensIn: h.TokensIn, TokensOut: h.TokensOut,
	}
	if a.steps.Step == Hour {
		a.add(d)
	}
	if a.keys != nil {
		a.keys.of(h.KeyID).add(sumOf(d))
		a.keys.of(h.KeyID).addFirst(h)
	}
	if h.First > 0 {
		for _, t := range a.of(d) {
			t.addFirst(h)
		}
	}
}

// of are the tallies that calls count in, but that of their code.
func (a *addition) of(d account.UsageDay) [5]*tally {
	return [...]*tally{
		&a.total, a.days.of(a.steps.Name(a.steps.Begin(d.Day))), a.models.of(d.Model), a.machines.of(d.MachineID), a.members.of(a.other(d)),
	}
}

// usageSide is what one side came to, with names in the place of ids.
func (a *API) usageSide(ctx context.Context, c Caller, of *addition) (UsageSide, error) {
	for _, none := range []sums{of.machines, of.members, of.codes} { // no machine took it, or it was served
		delete(none, "")
	}
	side := UsageSide{Total: of.total.sum()}
	side.Days = sorted(of.days, func(day string, s UsageSum) UsageOfDay { return UsageOfDay{day, s} })
	slices.SortFunc(side.Days, func(a, b UsageOfDay) int { return cmp.Compare(a.Day, b.Day) })
	side.Models = sorted(of.models, func(name string, s UsageSum) UsageOfModel { return UsageOfModel{name, s} })
	side.Codes = sorted(of.codes, func(name string, s UsageSum) UsageOfCode { return UsageOfCode{name, s.Calls} })
	known := a.Snapshot()
	side.Machines = sorted(of.machines, func(id string, s UsageSum) UsageOfMachine {
		m := UsageOfMachine{Machine: id, UsageSum: s}
		if machine := known.Machine(fleet.MachineID(id)); machine != nil {
			m.Name, m.Owner = machine.Name, machine.OwnerName
		}
		return m
	})
	side.Members = sorted(of.members, func(id string, s UsageSum) UsageOfMember { return UsageOfMember{id, id == c.id(), s} })
	side.Members = side.Members[:min(len(side.Members), maxOthers)]
	for i := range side.Members {
		m, err := a.DB.Member(ctx, side.Members[i].Member)
		if err != nil && !errors.Is(err, account.ErrNotFound) {
			return side, err
		}
		side.Members[i].Member = m.Name // empty: only the ledger still knows the id
	}
	if of.keys == nil {
		return side, nil
	}
	keys, err := a.DB.Keys(ctx, c.id())
	side.Keys = sorted(of.keys, func(id string, s UsageSum) UsageOfKey {
		k := UsageOfKey{Key: id, UsageSum: s}
		if i := slices.IndexFunc(keys, func(key account.Key) bool { return key.ID == id }); i >= 0 {
			k.Name = keys[i].Name
		}
		return k
	})
	return side, err
}

// tally is what calls came to, while they are added up.
type tally struct {
	UsageSum
	first map[time.Duration]int64 // streamed answers by the step of their time to the first token
}

func (t *tally) addFirst(h account.UsageHour) {
	if h.First == 0 {
		return
	}
	if t.first == nil {
		t.first = map[time.Duration]int64{}
	}
	t.first[h.First] += h.Calls
}

// sum is the sum with its percentiles.
func (t *tally) sum() UsageSum {
	sum := t.UsageSum
	sum.FirstP50MS, sum.FirstP95MS = percentile(t.first, 0.50), percentile(t.first, 0.95)
	return sum
}

// percentile is the time, in milliseconds, within which the part of the answers came;
// 0 if there are none. Within a step the answers count as evenly spread.
func percentile(first map[time.Duration]int64, part float64) int64 {
	var all int64
	for _, n := range first {
		all += n
	}
	left := part * float64(all)
	for i, step := range account.FirstSteps {
		n := float64(first[step])
		if n > 0 && left <= n {
			next := account.FirstSteps[min(i+1, len(account.FirstSteps)-1)]
			return max(1, (step + time.Duration(float64(next-step)*left/n)).Milliseconds())
		}
		left -= n
	}
	return 0
}

// sums are what calls came to, by some name.
type sums map[string]*tally

func (s sums) of(name string) *tally {
	if s[name] == nil {
		s[name] = new(tally)
	}
	return s[name]
}

// sorted makes rows of sums, most calls first.
func sorted[Row any](sums sums, row func(string, UsageSum) Row) []Row {
	names := make([]string, 0, len(sums))
	for name, t := range sums {
		if t.Calls > 0 { // or a daily sum is not there yet
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[b].Calls, sums[a].Calls), cmp.Compare(a, b))
	})
	rows := make([]Row, len(names))
	for i, name := range names {
		rows[i] = row(name, sums[name].sum())
	}
	return rows
}
