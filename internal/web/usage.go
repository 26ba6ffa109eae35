package web

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
	as, err := a.usageSide(r, since, a.Accounts.DaysOfCaller, func(d account.UsageDay) string { return d.OwnerID })
	if err != nil {
		return nil, err
	}
	on, err := a.usageSide(r, since, a.Accounts.DaysOfOwner, func(d account.UsageDay) string { return d.MemberID })
	return UsagePage{days, since.Format(time.DateOnly), as, on}, err
}

// usageSide adds up one side: its days, which come in order, and who was on the
// other end of each sum.
func (a *API) usageSide(r *request, since time.Time,
	read func(context.Context, string, time.Time, func(account.UsageDay)) error, other func(account.UsageDay) string,
) (UsageSide, error) {
	side := UsageSide{Days: []UsageOfDay{}}
	models, machines, members, codes := sums{}, sums{}, sums{}, sums{}
	var day time.Time
	err := read(r.Context(), r.me, since, func(d account.UsageDay) {
		sum := sumOf(d)
		side.Total.add(sum)
		if !d.Day.Equal(day) {
			day = d.Day
			side.Days = append(side.Days, UsageOfDay{Day: day.Format(time.DateOnly)})
		}
		side.Days[len(side.Days)-1].add(sum)
		models.add(d.Model, sum)
		machines.add(d.MachineID, sum)
		members.add(other(d), sum)
		codes.add(d.Code, sum)
	})
	if err != nil {
		return side, err
	}
	for _, none := range []sums{machines, members, codes} { // no machine took it, or it was served whole
		delete(none, "")
	}
	side.Models = sorted(models, func(name string, s UsageSum) UsageOfModel { return UsageOfModel{name, s} })
	side.Codes = sorted(codes, func(name string, s UsageSum) UsageOfCode { return UsageOfCode{name, s.Calls} })
	known := a.Snapshot()
	side.Machines = sorted(machines, func(id string, s UsageSum) UsageOfMachine {
		m := UsageOfMachine{Machine: id, UsageSum: s}
		if machine := known.Machine(fleet.MachineID(id)); machine != nil {
			m.Name, m.Owner = machine.Name, machine.OwnerName
		}
		return m
	})
	side.Members = sorted(members, func(id string, s UsageSum) UsageOfMember { return UsageOfMember{id, id == r.me, s} })
	side.Members = side.Members[:min(len(side.Members), mostOthers)]
	for i := range side.Members {
		m, err := a.Accounts.Member(r.Context(), side.Members[i].Member)
		if err != nil && !errors.Is(err, account.ErrNotFound) {
			return side, err
		}
		side.Members[i].Member = m.Name // none: the ledger alone still knows the id
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
