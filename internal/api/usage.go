package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// The limits for the number of days: at most a year, by default a month.
const (
	maxUsageDays     = 366
	maxHourDays      = 14 // for sums by hour
	defaultUsageDays = 30
)

// maxOthers is the maximum number of members on one side of the usage: those with the
// most calls.
const maxOthers = 100

// UsagePage is a member's usage from Since until today, on both sides. It contains
// nothing of the calls' content.
type UsagePage struct {
	Days  int       `json:"days"`
	By    Step      `json:"by"`
	Zone  string    `json:"zone"`      // the time zone of days, weeks and Week
	Since string    `json:"since"`     // the first hour, day or week, in the format of UsageOfDay
	As    UsageSide `json:"as_caller"` // the member's own calls
	On    UsageSide `json:"as_owner"`  // all calls on the member's machines
}

// UsageSide is one side of the usage: in total, by hour, day or week (only those with
// calls, in order), and by model, machine, member, key and code (most calls first).
type UsageSide struct {
	Total    UsageSum         `json:"total"`
	Days     []UsageOfDay     `json:"days"` // or hours, or weeks
	Models   []UsageOfModel   `json:"models"`
	Machines []UsageOfMachine `json:"machines"`
	// Members are the owners of the machines that served the caller's calls, or the
	// callers on the owner's machines; at most 100.
	Members []UsageOfMember `json:"members"`
	// Keys are the caller's keys, for at most the last 13 weeks; absent for the owner's
	// side.
	Keys  []UsageOfKey  `json:"keys,omitzero"`
	Codes []UsageOfCode `json:"codes"`
	// Week is the number of calls by day of the week, Monday first, and by hour of the day,
	// for at most the last 13 weeks; absent without calls and where the steps are hours.
	Week [][]int64 `json:"week,omitzero"`
}

// UsageSum is a sum over calls.
type UsageSum struct {
	Calls   int64 `json:"calls"`
	Refused int64 `json:"refused"` // failed, see Outcome
	// Others is how many of these calls involved another member: calls on another member's
	// machine, or another member's calls on one's own.
	Others int64 `json:"others"`
	// Stopped is how many their caller ended before the answer was complete.
	Stopped   int64 `json:"stopped"`
	WaitedMS  int64 `json:"waited_ms"`
	TokensIn  int64 `json:"tokens_in"`
	TokensOut int64 `json:"tokens_out"`
	// FirstP50MS and FirstP95MS are percentiles of the times from a call's arrival to the
	// first token, for the streamed answers of at most the last 13 weeks, with an error of
	// about a fifth; absent: there were none.
	FirstP50MS int64 `json:"first_token_p50_ms,omitzero"`
	FirstP95MS int64 `json:"first_token_p95_ms,omitzero"`
}

// Served returns the number of calls that were completely served.
func (s UsageSum) Served() int64 { return s.Calls - s.Refused - s.Stopped }

// sumOf returns the sum for one UsageDay.
func sumOf(d account.UsageDay) UsageSum {
	sum := UsageSum{Calls: d.Calls, WaitedMS: d.Waited.Milliseconds(), TokensIn: d.TokensIn, TokensOut: d.TokensOut}
	switch {
	case account.Unserved(d.Code):
		sum.Refused = d.Calls
	case d.Code != "":
		sum.Stopped = d.Calls
	}
	if d.OwnerID != "" && d.OwnerID != d.MemberID {
		sum.Others = d.Calls
	}
	return sum
}

func (s *UsageSum) add(more UsageSum) {
	s.Calls += more.Calls
	s.Refused += more.Refused
	s.Stopped += more.Stopped
	s.Others += more.Others
	s.WaitedMS += more.WaitedMS
	s.TokensIn += more.TokensIn
	s.TokensOut += more.TokensOut
}

// UsageOfDay is the sum for an hour, a day or a week.
type UsageOfDay struct {
	Day string `json:"day"` // like 2026-11-21; an hour like 2026-11-21T14:00, UTC; a week is its Monday
	UsageSum
	// Parts divide the sum as Span.Split asks: those of the models or members with the most
	// calls in the span, at most 7 and in that order. The rest of the sum is of others.
	Parts []UsagePart `json:"parts,omitzero"`
}

// UsagePart is the part of a sum that is of one model or member.
type UsagePart struct {
	Name      string `json:"name"`
	Calls     int64  `json:"calls"`
	TokensIn  int64  `json:"tokens_in"`
	TokensOut int64  `json:"tokens_out"`
}

// mostParts is the maximum number of parts of a sum.
const mostParts = 7

// UsageOfModel is the sum for a model.
type UsageOfModel struct {
	Model string `json:"model"`
	UsageSum
}

// UsageOfMachine is the sum for a machine. It includes the machine's names as long as the
// hub knows the machine.
type UsageOfMachine struct {
	Machine string `json:"machine"` // its id
	Name    string `json:"name"`
	Owner   string `json:"owner"`
	UsageSum
}

// UsageOfMember is the sum of calls between the member and another member, or the
// member's own.
type UsageOfMember struct {
	Member string `json:"member"` // name
	Me     bool   `json:"me"`     // the member's own
	UsageSum
}

// UsageOfKey is the sum for a key, or for calls without one: those that programs made at
// the daemon of a machine of the member's, and those from the site.
type UsageOfKey struct {
	// Key is the id of the key, or what selects the calls in the list of calls; empty: calls
	// of some machine, from before it was recorded.
	Key  string `json:"key"`
	Name string `json:"name"` // of the key; empty for calls without one
	// Machine is the name of the machine, also if it was revoked, and Program the command of
	// kith that made the calls there, "run" or "launch"; absent: calls with a key, or of
	// other programs.
	Machine string `json:"machine,omitempty"`
	Program string `json:"program,omitempty"`
	UsageSum
}

// SiteKey is the prefix of the key ids of callers who are signed in to the site. The
// member's id follows. No API key has an id with this prefix.
const SiteKey = "site of "

// Title names the key to its member, without an id.
func (k UsageOfKey) Title() string {
	switch {
	case k.Machine != "":
		return MadeAt(k.Machine, k.Program)
	case k.Key == "":
		return "a machine of yours"
	case strings.HasPrefix(k.Key, SiteKey):
		return "chat on this site"
	}
	return cmp.Or(k.Name, "(no name)")
}

// MadeAt returns the text for the machine and the program in a UsageOfKey or a Trace, such
// as "desk, kith run"; "" if there is no machine.
func MadeAt(machine, program string) string {
	if program != "" {
		return machine + ", kith " + program
	}
	return machine
}

// UsageOfCode is the number of calls that ended with a code.
type UsageOfCode struct {
	Code  string `json:"code"`
	Calls int64  `json:"calls"`
}

// Span is a number of days until today, and the step of its sums.
type Span struct {
	Days string `json:"-" query:"days"` // a number; empty: 1 for hours, 30 for days, 84 for weeks
	By   Step   `json:"-" query:"by"`   // empty: Day
	// Zone is the IANA name of the time zone of days and weeks; empty: UTC. Sums from before
	// the last 13 weeks are of days UTC, and so is then everything.
	Zone  string `json:"-" query:"zone"`
	Split Split  `json:"-" query:"split"` // empty: sums have no parts
}

// HubSpan is a Span for the usage of all members, whose days are UTC.
type HubSpan struct {
	Days  string `json:"-" query:"days"`
	By    Step   `json:"-" query:"by"`
	Split Split  `json:"-" query:"split"` // by model only, since no member is named
}

// Split is what the parts of a sum are of.
type Split string

// The splits. Members are the owners of the machines that served the caller's calls, or the
// callers on the owner's machines.
const (
	ByModel  Split = "model"
	ByMember Split = "member"
)

// Step is the period of each sum: an hour, a day or a week.
type Step string

// The steps.
const (
	Hour Step = "hour"
	Day  Step = "day"
	Week Step = "week"
)

// Begin returns the start of the step that contains t: of an hour in UTC, of a day or a week
// in the zone of t.
func (s Step) Begin(t time.Time) time.Time {
	if s == Hour {
		return t.UTC().Truncate(time.Hour)
	}
	day := time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, t.Location())
	if s == Week {
		return day.AddDate(0, 0, -weekday(t))
	}
	return day
}

// weekday returns the day of the week of t, from 0 for Monday.
func weekday(t time.Time) int { return (int(t.Weekday()) + 6) % 7 }

// Next returns the start of the following step.
func (s Step) Next(begin time.Time) time.Time {
	switch s {
	case Hour:
		return begin.Add(time.Hour)
	case Week:
		return begin.AddDate(0, 0, 7)
	}
	return begin.AddDate(0, 0, 1)
}

// layout returns the format for the start of a step.
func (s Step) layout() string {
	if s == Hour {
		return "2006-01-02T15:04"
	}
	return time.DateOnly
}

// Name returns the step's name in UsageOfDay.
func (s Step) Name(begin time.Time) string { return begin.Format(s.layout()) }

// Parse returns the start of the step with the given name. The zone is that of UsagePage.
func (s Step) Parse(name, zone string) (time.Time, error) {
	at, err := time.LoadLocation(zone)
	if err != nil || s == Hour {
		at = time.UTC
	}
	return time.ParseInLocation(s.layout(), name, at)
}

// steps is a parsed Span.
type steps struct {
	Step
	days  int
	since time.Time // start of the first step
	zone  *time.Location
	split Split
	hours bool // the hourly sums reach back to since
}

// of returns the start of the step that contains t.
func (s steps) of(t time.Time) time.Time { return s.Begin(t.In(s.zone)) }

// read parses the span, with now as its end.
func (in Span) read(now time.Time) (steps, error) {
	zone, err := fleet.ParseZone(in.Zone)
	if err != nil {
		return steps{}, fault.New(fault.InvalidRequest, "%v", err).WithParam("zone")
	}
	s := steps{Step: cmp.Or(in.By, Day), zone: zone, split: in.Split}
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
		if s.days, err = strconv.Atoi(in.Days); err != nil || s.days < 1 || s.days > most {
			return steps{}, fault.New(fault.InvalidRequest, "days is a whole number from 1 to %d, not %.20q", most, in.Days).WithParam("days")
		}
	}
	if s.split != "" && s.split != ByModel && s.split != ByMember {
		return steps{}, fault.New(fault.InvalidRequest, "split is model or member, not %.20q", s.split).WithParam("split")
	}
	s.begin(now)
	if s.hours = s.since.After(now.Add(-account.UsageHoursLife)); !s.hours {
		s.zone = time.UTC
		s.begin(now)
	}
	return s, nil
}

// begin sets the start of the first step, so that the last one contains now.
func (s *steps) begin(now time.Time) {
	if s.Step == Hour {
		s.since = Hour.Begin(now).Add(time.Hour - time.Duration(s.days)*24*time.Hour)
	} else {
		s.since = s.of(Day.Begin(now.In(s.zone)).AddDate(0, 0, 1-s.days))
	}
}

// getUsage sums the caller's usage in the span, from the hourly sums as far as they reach,
// else from the daily ones. Keys, times to the first token and the week always come from the
// hourly sums.
func (a *API) getUsage(ctx context.Context, c fleet.Caller, in Span) (UsagePage, error) {
	steps, err := in.read(a.DB.Now())
	if err != nil {
		return UsagePage{}, err
	}
	as := adding(steps, func(d account.UsageDay) string { return d.OwnerID })
	on := adding(steps, func(d account.UsageDay) string { return d.MemberID })
	as.keys = sums{}
	if err = a.DB.HoursOfCaller(ctx, string(c.Member), steps.since, as.addHour); err == nil {
		err = a.DB.HoursOfOwner(ctx, string(c.Member), steps.since, on.addHour)
	}
	if err == nil && !steps.hours {
		if err = a.DB.DaysOfCaller(ctx, string(c.Member), steps.since, as.add); err == nil {
			err = a.DB.DaysOfOwner(ctx, string(c.Member), steps.since, on.add)
		}
	}
	if err != nil {
		return UsagePage{}, err
	}
	asCaller, err := a.usageSide(ctx, c, as)
	asOwner, err2 := a.usageSide(ctx, c, on)
	return UsagePage{steps.days, steps.Step, steps.zone.String(), steps.Name(steps.since), asCaller, asOwner}, cmp.Or(err, err2)
}

// HubUsage is the usage of all members since Since. It contains no names of members or
// machines (spec/security.md#operator-usage).
type HubUsage struct {
	Days    int            `json:"days"`
	By      Step           `json:"by"`
	Since   string         `json:"since"`   // the same as in UsagePage, UTC
	Members int64          `json:"members"` // members who made calls
	Total   UsageSum       `json:"total"`
	Steps   []HubStep      `json:"steps"` // the hours, days or weeks with calls, in order
	Models  []UsageOfModel `json:"models"`
	Codes   []UsageOfCode  `json:"codes"`
	Week    [][]int64      `json:"week,omitzero"` // as in UsageSide
}

// HubStep is the sum for an hour, a day or a week.
type HubStep struct {
	UsageOfDay
	Members int64 `json:"members"` // members who made calls in it
}

// operatorGetUsage sums the usage of all members in the span, in the same way as getUsage
// for one member.
func (a *API) operatorGetUsage(ctx context.Context, _ fleet.Caller, in HubSpan) (HubUsage, error) {
	steps, err := Span{Days: in.Days, By: in.By, Split: in.Split}.read(a.DB.Now())
	if err == nil && in.Split == ByMember {
		err = fault.New(fault.InvalidRequest, "split is model, not %.20q: the hub's usage names no member", in.Split).WithParam("split")
	}
	if err != nil {
		return HubUsage{}, err
	}
	all := adding(steps, func(account.UsageDay) string { return "" })
	err = a.DB.HoursOfHub(ctx, steps.since, all.addHour)
	if err == nil && !steps.hours {
		err = a.DB.DaysOfHub(ctx, steps.since, all.add)
	}
	if err != nil {
		return HubUsage{}, err
	}
	members, active, err := a.DB.ActiveMembers(ctx, steps.since, steps.Next(steps.since).Sub(steps.since))
	if err != nil {
		return HubUsage{}, err
	}
	side, err := a.usageSide(ctx, fleet.Caller{}, all)
	usage := HubUsage{Days: steps.days, By: steps.Step, Since: steps.Name(steps.since), Members: members, Total: side.Total, Models: side.Models, Codes: side.Codes, Week: side.Week}
	at := map[string]int64{}
	for begin, n := range active {
		at[steps.Name(begin)] = n
	}
	usage.Steps = views(side.Days, func(d UsageOfDay) HubStep { return HubStep{d, at[d.Day]} })
	return usage, err
}

// addition sums the calls of one side.
type addition struct {
	steps                                  steps
	other                                  func(account.UsageDay) string // returns the other member of a call
	total                                  tally
	days, models, machines, members, codes sums
	keys                                   sums            // nil: the keys of this side are not the member's
	parts                                  map[string]sums // of each step, as the span asks
	week                                   [][]int64       // nil: no calls, or the steps are hours
}

func adding(s steps, other func(account.UsageDay) string) *addition {
	return &addition{steps: s, other: other, days: sums{}, models: sums{}, machines: sums{}, members: sums{}, codes: sums{}, parts: map[string]sums{}}
}

// add adds a daily sum.
func (a *addition) add(d account.UsageDay) {
	sum := sumOf(d)
	for _, t := range a.of(d) {
		t.add(sum)
	}
	a.codes.of(d.Code).add(sum)
	if a.steps.split == "" {
		return
	}
	name, step := d.Model, a.steps.Name(a.steps.of(d.Day))
	if a.steps.split == ByMember {
		name = a.other(d)
	}
	if a.parts[step] == nil {
		a.parts[step] = sums{}
	}
	a.parts[step].of(name).add(sum)
}

// addHour adds an hourly sum: its times to the first token, its key and, if the hourly sums
// reach back far enough, everything else.
func (a *addition) addHour(h account.UsageHour) {
	d := account.UsageDay{
		Day: h.Hour, MemberID: h.MemberID, OwnerID: h.OwnerID, MachineID: h.MachineID, Model: h.Model, Code: h.Code,
		Calls: h.Calls, Waited: h.Waited, TokensIn: h.TokensIn, TokensOut: h.TokensOut,
	}
	if a.steps.hours {
		a.add(d)
	}
	if a.steps.Step != Hour {
		if a.week == nil {
			for range 7 {
				a.week = append(a.week, make([]int64, 24))
			}
		}
		at := h.Hour.In(a.steps.zone)
		a.week[weekday(at)][at.Hour()] += h.Calls
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

// of returns the tallies that include the calls, except that for their code.
func (a *addition) of(d account.UsageDay) [5]*tally {
	return [...]*tally{
		&a.total, a.days.of(a.steps.Name(a.steps.of(d.Day))), a.models.of(d.Model), a.machines.of(d.MachineID), a.members.of(a.other(d)),
	}
}

// usageSide returns the sums of one side, with names instead of ids.
func (a *API) usageSide(ctx context.Context, c fleet.Caller, of *addition) (UsageSide, error) {
	for _, none := range []sums{of.machines, of.members, of.codes} { // no machine accepted the call, or it was served
		delete(none, "")
	}
	side := UsageSide{Total: of.total.sum(), Week: of.week}
	side.Days = sorted(of.days, func(day string, s UsageSum) UsageOfDay { return UsageOfDay{Day: day, UsageSum: s} })
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
	side.Members = sorted(of.members, func(id string, s UsageSum) UsageOfMember { return UsageOfMember{id, id == string(c.Member), s} })
	side.Members = side.Members[:min(len(side.Members), maxOthers)]
	largest := views(side.Models[:min(len(side.Models), mostParts)], func(m UsageOfModel) string { return m.Model })
	if of.steps.split == ByMember {
		largest = views(side.Members[:min(len(side.Members), mostParts)], func(m UsageOfMember) string { return m.Member })
	}
	for i := range side.Members {
		m, err := a.DB.Member(ctx, side.Members[i].Member)
		if err != nil && !errors.Is(err, account.ErrNotFound) {
			return side, err
		}
		side.Members[i].Member = m.Name // empty: only the ledger still has the id
	}
	for i := range side.Days {
		for j, name := range largest {
			sum := of.parts[side.Days[i].Day].get(name)
			if sum.Calls == 0 {
				continue
			}
			if of.steps.split == ByMember {
				name = side.Members[j].Member
			}
			side.Days[i].Parts = append(side.Days[i].Parts, UsagePart{name, sum.Calls, sum.TokensIn, sum.TokensOut})
		}
	}
	if of.keys == nil {
		return side, nil
	}
	keys, err := a.DB.Keys(ctx, string(c.Member))
	machines, err2 := a.DB.Machines(ctx, string(c.Member))
	side.Keys = sorted(of.keys, func(id string, s UsageSum) UsageOfKey {
		k := UsageOfKey{Key: id, UsageSum: s}
		if i := slices.IndexFunc(keys, func(key account.Key) bool { return key.ID == id }); i >= 0 {
			k.Name = keys[i].Name
		}
		k.Machine, k.Program = madeAt(id, machines)
		return k
	})
	return side, cmp.Or(err, err2)
}

// madeAt returns the name of the machine and the program of calls with that KeyID; "" if it
// is not that of a machine. machines are those of the caller, revoked ones too.
func madeAt(keyID string, machines []account.Machine) (name, program string) {
	id, program := account.ParseMachineKey(keyID)
	i := slices.IndexFunc(machines, func(m account.Machine) bool { return m.ID == id })
	if i < 0 {
		return "", ""
	}
	return machines[i].Name, program
}

// tally is a sum in progress.
type tally struct {
	UsageSum
	first map[time.Duration]int64 // streamed answers by range of the time to the first token
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

// sum returns the sum with its percentiles.
func (t *tally) sum() UsageSum {
	sum := t.UsageSum
	sum.FirstP50MS, sum.FirstP95MS = percentile(t.first, 0.50), percentile(t.first, 0.95)
	return sum
}

// percentile returns the time, in milliseconds, within which the given part of the
// answers arrived, or 0 if there are none. It assumes that answers are evenly distributed
// within a range.
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

// sums are tallies by name.
type sums map[string]*tally

func (s sums) of(name string) *tally {
	if s[name] == nil {
		s[name] = new(tally)
	}
	return s[name]
}

// get returns the sum with a name, or zero.
func (s sums) get(name string) UsageSum {
	if t := s[name]; t != nil {
		return t.UsageSum
	}
	return UsageSum{}
}

// sorted converts sums to rows, most calls first.
func sorted[Row any](sums sums, row func(string, UsageSum) Row) []Row {
	names := make([]string, 0, len(sums))
	for name, t := range sums {
		if t.Calls > 0 { // skip sums that are not complete yet
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
