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
	defaultUsageDays = 30
)

// maxOthers is how many members one side of usage lists: those with most calls.
const maxOthers = 100

// UsagePage is a member's usage in the days since Since, today included: both
// sides, and nothing of any content.
type UsagePage struct {
	Days  int       `json:"days"`
	Since string    `json:"since"`     // the first day, UTC, as 2026-11-21
	As    UsageSide `json:"as_caller"` // of the member's calls
	On    UsageSide `json:"as_owner"`  // what ran on the member's machines, for any member
}

// UsageSide is one side of it: in all, by day (each one that had calls, in
// order), and by model, machine, member and code (most calls first).
type UsageSide struct {
	Total    UsageSum         `json:"total"`
	Days     []UsageOfDay     `json:"days"`
	Models   []UsageOfModel   `json:"models"`
	Machines []UsageOfMachine `json:"machines"`
	// Members are those whose machines took the caller's calls, or who called on
	// the owner's machines: at most 100.
	Members []UsageOfMember `json:"members"`
	Codes   []UsageOfCode   `json:"codes"`
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

// UsageOfDay sums one day, UTC.
type UsageOfDay struct {
	Day string `json:"day"` // as 2026-11-21
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

// UsageOfCode counts the calls that ended with one code.
type UsageOfCode struct {
	Code  string `json:"code"`
	Calls int64  `json:"calls"`
}

// Span is a span of days, today included.
type Span struct {
	Days string `json:"-" query:"days"` // a number; empty: 30
}

// getUsage adds up the caller's usage in the span.
func (a *API) getUsage(ctx context.Context, c Caller, in Span) (UsagePage, error) {
	days := defaultUsageDays
	if in.Days != "" {
		var err error
		if days, err = strconv.Atoi(in.Days); err != nil || days < 1 || days > maxUsageDays {
			return UsagePage{}, fault.New(fault.InvalidRequest, "days is a whole number from 1 to %d, not %.20q", maxUsageDays, in.Days).WithParam("days")
		}
	}
	since := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1-days)
	as := adding(func(d account.UsageDay) string { return d.OwnerID })
	on := adding(func(d account.UsageDay) string { return d.MemberID })
	if err := cmp.Or(a.DB.DaysOfCaller(ctx, c.id(), since, as.add), a.DB.DaysOfOwner(ctx, c.id(), since, on.add)); err != nil {
		return UsagePage{}, err
	}
	asCaller, err := a.usageSide(ctx, c, as)
	asOwner, err2 := a.usageSide(ctx, c, on)
	return UsagePage{days, since.Format(time.DateOnly), asCaller, asOwner}, cmp.Or(err, err2)
}

// addition adds up one side's days, which come in order.
type addition struct {
	other                            func(account.UsageDay) string // the member at the other end
	day                              time.Time
	side                             UsageSide
	models, machines, members, codes sums
}

func adding(other func(account.UsageDay) string) *addition {
	return &addition{other: other, side: UsageSide{Days: []UsageOfDay{}}, models: sums{}, machines: sums{}, members: sums{}, codes: sums{}}
}

func (a *addition) add(d account.UsageDay) {
	sum := sumOf(d)
	a.side.Total.add(sum)
	if !d.Day.Equal(a.day) {
		a.day = d.Day
		a.side.Days = append(a.side.Days, UsageOfDay{Day: d.Day.Format(time.DateOnly)})
	}
	a.side.Days[len(a.side.Days)-1].add(sum)
	a.models.add(d.Model, sum)
	a.machines.add(d.MachineID, sum)
	a.members.add(a.other(d), sum)
	a.codes.add(d.Code, sum)
}

// usageSide is what one side came to, with names in the place of ids.
func (a *API) usageSide(ctx context.Context, c Caller, of *addition) (UsageSide, error) {
	for _, none := range []sums{of.machines, of.members, of.codes} { // no machine took it, or it was served
		delete(none, "")
	}
	side := of.side
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
	return side, nil
}

// sums are what calls came to, by some name.
type sums map[string]*UsageSum

func (s sums) add(name string, sum UsageSum) {
	if s[name] == nil {
		s[name] = new(UsageSum)
	}
	s[name].add(sum)
}

// sorted makes rows of sums, most calls first.
func sorted[Row any](sums sums, row func(string, UsageSum) Row) []Row {
	names := make([]string, 0, len(sums))
	for name := range sums {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[b].Calls, sums[a].Calls), cmp.Compare(a, b))
	})
	rows := make([]Row, len(names))
	for i, name := range names {
		rows[i] = row(name, *sums[name])
	}
	return rows
}
