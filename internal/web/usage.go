package web

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// The days of usage that are told: at most a year, a month when not asked.
const (
	maxUsageDays     = 366
	defaultUsageDays = 30
)

// mostOthers is how many members one side of usage tells apart, those with most
// calls.
const mostOthers = 100

// UsagePage is a member's usage in the days since Since, today included, as GET
// /api/usage tells it: both sides, and nothing of any content.
type UsagePage struct {
	Days  int       `json:"days"`
	Since string    `json:"since"`     // the first day, UTC, as 2026-11-21
	As    UsageSide `json:"as_caller"` // of the member's calls
	On    UsageSide `json:"as_owner"`  // what ran on the member's machines, for whomever
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
	Refused int64 `json:"refused"` // or broke off: those that were not served whole
	// Others is how many of these calls crossed from one member to another: they
	// ran on somebody else's machine, or somebody else's ran on one's own.
	Others    int64 `json:"others"`
	WaitedMS  int64 `json:"waited_ms"`
	TokensIn  int64 `json:"tokens_in"`
	TokensOut int64 `json:"tokens_out"`
}

func (s *UsageSum) add(d account.UsageDay) {
	s.Calls += d.Calls
	if d.Code != "" {
		s.Refused += d.Calls
	}
	if d.OwnerID != "" && d.OwnerID != d.MemberID {
		s.Others += d.Calls
	}
	s.WaitedMS += d.Waited.Milliseconds()
	s.TokensIn += d.TokensIn
	s.TokensOut += d.TokensOut
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

// usage is GET /api/usage?days=N.
func (a *API) usage(r *request) (any, error) {
	days := defaultUsageDays
	if asked := r.URL.Query().Get("days"); asked != "" {
		var err error
		if days, err = strconv.Atoi(asked); err != nil || days < 1 || days > maxUsageDays {
			return nil, fault.New(fault.InvalidRequest, "days is a whole number from 1 to %d, not %.20q", maxUsageDays, asked).WithParam("days")
		}
	}
	since := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1-days)
	as, err := a.usageSide(r, since, a.Accounts.DaysOfCaller, a.Accounts.OwnersOfCaller)
	if err != nil {
		return nil, err
	}
	on, err := a.usageSide(r, since, a.Accounts.DaysOfOwner, a.Accounts.CallersOnOwner)
	return UsagePage{days, since.Format(time.DateOnly), as, on}, err
}

// usageSide reads one side: its days, and the members on the other end.
func (a *API) usageSide(r *request, since time.Time,
	days func(context.Context, string, time.Time) ([]account.UsageDay, error),
	others func(context.Context, string, time.Time, int) ([]account.UsageWith, error),
) (UsageSide, error) {
	sums, err := days(r.Context(), r.me, since)
	if err != nil {
		return UsageSide{}, err
	}
	side := sideOf(sums, a.Snapshot())
	side.Members = []UsageOfMember{}
	with, err := others(r.Context(), r.me, since, mostOthers)
	for _, o := range with {
		sum := UsageSum{Calls: o.Calls, Refused: o.Refused, WaitedMS: o.Waited.Milliseconds(), TokensIn: o.TokensIn, TokensOut: o.TokensOut}
		if o.MemberID != r.me {
			sum.Others = o.Calls
		}
		side.Members = append(side.Members, UsageOfMember{o.Name, o.MemberID == r.me, sum})
	}
	return side, err
}

// sideOf adds up the days, which are in order.
func sideOf(days []account.UsageDay, known *fleet.Snapshot) UsageSide {
	side := UsageSide{Days: []UsageOfDay{}}
	models, machines, codes := map[string]*UsageSum{}, map[string]*UsageSum{}, map[string]*UsageSum{}
	of := func(sums map[string]*UsageSum, name string) *UsageSum {
		if sums[name] == nil {
			sums[name] = new(UsageSum)
		}
		return sums[name]
	}
	for _, d := range days {
		side.Total.add(d)
		day := d.Day.Format(time.DateOnly)
		if last := len(side.Days) - 1; last < 0 || side.Days[last].Day != day {
			side.Days = append(side.Days, UsageOfDay{Day: day})
		}
		side.Days[len(side.Days)-1].add(d)
		of(models, d.Model).add(d)
		if d.MachineID != "" {
			of(machines, d.MachineID).add(d)
		}
		if d.Code != "" {
			of(codes, d.Code).add(d)
		}
	}
	side.Models = sorted(models, func(name string, s UsageSum) UsageOfModel { return UsageOfModel{name, s} })
	side.Codes = sorted(codes, func(name string, s UsageSum) UsageOfCode { return UsageOfCode{name, s.Calls} })
	side.Machines = sorted(machines, func(id string, s UsageSum) UsageOfMachine {
		m := UsageOfMachine{Machine: id, UsageSum: s}
		if machine := known.Machine(fleet.MachineID(id)); machine != nil {
			m.Name, m.Owner = machine.Name, machine.OwnerName
		}
		return m
	})
	return side
}

// sorted makes rows of sums, most calls first.
func sorted[Row any](sums map[string]*UsageSum, row func(string, UsageSum) Row) []Row {
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
