package web

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// operatorPath begins the path of each page that only operators see.
const operatorPath = "/operator"

// mostListed is how many lines an operator's page shows at once.
const mostListed = 200

// operatorData is what /operator shows.
type operatorData struct {
	Parts                               []Part
	Limits                              []Limit
	Members, Disabled, Machines, Online int
	Region                              string
}

func (s *Site) operatorPage(v *visit) (reply, error) {
	data := operatorData{Parts: s.Health(v.Context()), Limits: s.Limits, Region: s.Region}
	members, err := s.Accounts.Members(v.Context())
	if err != nil {
		return reply{page: "operator", title: "Operator", data: data}, err
	}
	for _, m := range members {
		data.Members++
		if m.Disabled {
			data.Disabled++
		}
	}
	machines, err := s.everyMachine(v.Context(), members)
	for _, m := range machines {
		if !m.Revoked {
			data.Machines++
		}
		if m.Online {
			data.Online++
		}
	}
	return reply{page: "operator", title: "Operator", data: data}, err
}

// membersData is what /operator/members shows.
type membersData struct {
	Members  []account.Member
	More     int    // that are not shown
	Name     string // what was searched for
	NeedsOld bool   // the operator's own password has to be given to make a link
	// Link is the one just made, shown this once, and For whom.
	Link, For string
}

func (s *Site) membersPage(v *visit) (reply, error) {
	data, err := s.membersData(v)
	return reply{page: "operator-members", title: "Members", data: data}, err
}

func (s *Site) membersData(v *visit) (membersData, error) {
	data := membersData{Name: v.URL.Query().Get("name")}
	members, err := s.Accounts.Members(v.Context())
	if err != nil {
		return data, err
	}
	members = slices.DeleteFunc(members, func(m account.Member) bool { return !holds(m.Name, data.Name) })
	slices.Reverse(members) // the newest first
	data.Members, data.More = cut(members)
	own, err := s.accountData(v)
	data.NeedsOld = own.NeedsOld
	return data, err
}

// holds reports whether a name holds what was searched for, whatever its case.
func holds(name, part string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(strings.TrimSpace(part)))
}

// cut is as many as are shown, and how many are not.
func cut[T any](all []T) ([]T, int) {
	n := min(len(all), mostListed)
	return all[:n], len(all) - n
}

// named is the member that a form of /operator/members names.
func (s *Site) named(v *visit) (account.Member, error) {
	m, err := s.Accounts.Member(v.Context(), v.form.Get("member"))
	return m, notFound(err, "there is no such member")
}

// act is a context in which the store notes what the operator does.
func (s *Site) act(v *visit, what, subject string) context.Context {
	return account.Acting(v.Context(), &account.Act{
		ID: account.NewID("act_"), At: time.Now().UTC(), By: v.me.ID, ByName: v.me.Name, What: what, Subject: subject,
	})
}

func (s *Site) disableMember(v *visit) (reply, error) {
	m, err := s.named(v)
	if err != nil {
		return reply{}, err
	}
	if m.ID == v.me.ID {
		return reply{}, fault.New(fault.InvalidRequest, "an operator cannot disable the own account: another operator can")
	}
	return s.setDisabled(v, m, true, "disable a member", m.Name+" is disabled: sessions, keys and machines are refused within 5 seconds.")
}

func (s *Site) enableMember(v *visit) (reply, error) {
	m, err := s.named(v)
	if err != nil {
		return reply{}, err
	}
	return s.setDisabled(v, m, false, "enable a member", m.Name+" is enabled again.")
}

func (s *Site) setDisabled(v *visit, m account.Member, disabled bool, what, done string) (reply, error) {
	if err := s.Accounts.SetMemberDisabled(s.act(v, what, m.Name), m.ID, disabled); err != nil {
		return reply{}, err
	}
	s.Log.Info("operator act", "operator", v.me.ID, "act", what, "member", m.ID)
	s.Changed()
	return reply{to: operatorPath + "/members", done: done}, nil
}

// linkMember is POST /operator/members/link: a one-time link that signs the member
// in, as where a password is forgotten. Whoever has it is that member, so the
// operator's own password is asked for.
func (s *Site) linkMember(v *visit) (reply, error) {
	m, err := s.named(v)
	if err != nil {
		return reply{}, err
	}
	if err := s.checkOld(v); err != nil {
		return reply{}, err
	}
	if m.Disabled {
		return reply{}, fault.New(fault.InvalidRequest, "the member is disabled: enable the account first")
	}
	path, err := s.NewLink(s.act(v, "make a sign-in link", m.Name), m.ID)
	if err != nil {
		return reply{}, err
	}
	s.Log.Info("operator act", "operator", v.me.ID, "act", "make a sign-in link", "member", m.ID)
	data, err := s.membersData(v)
	data.Link, data.For = s.Base+path, m.Name
	return reply{page: "operator-members", title: "Members", data: data}, err
}

// machineLine is one machine of the hub, whoever's.
type machineLine struct {
	ID, Name, Owner   string
	Online, Revoked   bool
	Models, Slots     int
	Created, LastSeen time.Time
}

// everyMachine is every machine of the hub, the newest first.
func (s *Site) everyMachine(ctx context.Context, members []account.Member) ([]machineLine, error) {
	kept, err := s.Accounts.Machines(ctx, "")
	if err != nil {
		return nil, err
	}
	names := make(map[string]string, len(members))
	for _, m := range members {
		names[m.ID] = m.Name
	}
	snapshot := s.Snapshot()
	all := make([]machineLine, len(kept))
	for i, m := range kept {
		line := machineLine{ID: m.ID, Name: m.Name, Owner: names[m.OwnerID], Revoked: !m.Revoked.IsZero(), Created: m.Created, LastSeen: m.LastSeen}
		if live := snapshot.Machine(fleet.MachineID(m.ID)); live != nil && live.Online {
			line.Online, line.Models, line.Slots = true, len(live.Offers), live.Slots
		}
		all[len(kept)-1-i] = line
	}
	return all, nil
}

// allMachinesData is what /operator/machines shows.
type allMachinesData struct {
	Machines []machineLine
	More     int
	Name     string
}

func (s *Site) allMachines(v *visit) (reply, error) {
	data := allMachinesData{Name: v.URL.Query().Get("name")}
	members, err := s.Accounts.Members(v.Context())
	if err != nil {
		return reply{}, err
	}
	machines, err := s.everyMachine(v.Context(), members)
	machines = slices.DeleteFunc(machines, func(m machineLine) bool { return !holds(m.Name, data.Name) && !holds(m.Owner, data.Name) })
	data.Machines, data.More = cut(machines)
	return reply{page: "operator-machines", title: "All machines", data: data}, err
}

// auditData is what /operator/audit shows.
type auditData struct {
	Acts   []account.Act
	Before string // of the next page; empty: this is the last
}

func (s *Site) auditPage(v *visit) (reply, error) {
	before := time.Now().Add(time.Hour) // a hub's clock may be ahead
	if text := v.URL.Query().Get("before"); text != "" {
		var err error
		if before, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return reply{}, fault.New(fault.InvalidRequest, "before is a time like 2026-11-21T10:30:00Z, not %.40q", text).WithParam("before")
		}
	}
	acts, err := s.Accounts.Acts(v.Context(), before, mostListed)
	data := auditData{Acts: acts}
	if len(acts) == mostListed {
		data.Before = acts[mostListed-1].At.Format(time.RFC3339Nano)
	}
	return reply{page: "operator-audit", title: "Audit log", data: data}, err
}
