package site

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
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
	Backup                              *account.Backup // the newest; nil: none was ever made
}

func (s *Site) operatorPage(v *visit) (reply, error) {
	data := operatorData{Parts: s.Health(v.Context()), Limits: s.Limits, Region: s.Region}
	out := reply{page: "operator", title: "Operator"}
	var err error
	if data.Members, data.Disabled, err = s.DB.CountMembers(v.Context()); err != nil {
		return out, err
	}
	if data.Machines, err = s.DB.CountMachines(v.Context()); err != nil {
		return out, err
	}
	switch backup, err := s.DB.LastBackup(v.Context()); {
	case err == nil:
		data.Backup = &backup
	case !errors.Is(err, account.ErrNotFound):
		return out, err
	}
	for m := range s.Snapshot().Machines() {
		if m.Online {
			data.Online++
		}
	}
	out.data = data
	return out, nil
}

// membersData is what /operator/members shows.
type membersData struct {
	Members  []account.Member
	Next     string // the before of the next page; empty: this is the last
	Name     string // what was searched for
	NeedsOld bool   // the operator's own password has to be given to make a link
	// Link is the one just made, shown this once, and For which member.
	Link, For string
}

func (s *Site) membersPage(v *visit) (reply, error) {
	data, err := s.membersData(v)
	return reply{page: "operator-members", title: "Members", data: data}, err
}

func (s *Site) membersData(v *visit) (membersData, error) {
	data := membersData{Name: v.URL.Query().Get("name")}
	from, err := api.PageStart(v.URL.Query().Get("before"))
	if err != nil {
		return data, err
	}
	members, err := s.DB.MembersBefore(v.Context(), from, searched(data.Name), mostListed+1)
	if err != nil {
		return data, err
	}
	data.Members, data.Next = api.PageOf(members, mostListed, func(m account.Member) account.Place { return account.Place{At: m.Created, ID: m.ID} })
	own, err := s.accountData(v)
	data.NeedsOld = own.NeedsOld
	return data, err
}

// searched is what a search for names looks for; no name holds what no database
// keeps.
func searched(name string) string {
	return strings.TrimSpace(strings.ReplaceAll(strings.ToValidUTF8(name, "\ufffd"), "\x00", "\ufffd"))
}

// named is the member that a form of /operator/members names.
func (s *Site) named(v *visit) (account.Member, error) {
	m, err := s.DB.Member(v.Context(), v.form.Get("member"))
	return m, api.NotFound(err, "there is no such member")
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
	if err := s.DB.SetMemberDisabled(s.act(v, what, m.Name), m.ID, disabled); err != nil {
		return reply{}, err
	}
	s.Log.Info("operator act", "operator", v.me.ID, "act", what, "member", m.ID)
	s.Changed()
	return reply{to: operatorPath + "/members", done: done}, nil
}

// linkMember is POST /operator/members/link: a one-time link that signs the member
// in, as where a password is forgotten. Its holder is that member, so the
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
	link, err := s.NewLink(s.act(v, "make a sign-in link", m.Name), m.ID)
	if err != nil {
		return reply{}, err
	}
	s.Log.Info("operator act", "operator", v.me.ID, "act", "make a sign-in link", "member", m.ID)
	data, err := s.membersData(v)
	data.Link, data.For = link, m.Name
	return reply{page: "operator-members", title: "Members", data: data}, err
}

// machineLine is one machine of the hub.
type machineLine struct {
	ID, Name, Owner   string
	Online, Revoked   bool
	Models, Slots     int
	Created, LastSeen time.Time
}

// allMachinesData is what /operator/machines shows.
type allMachinesData struct {
	Machines []machineLine
	Next     string // the before of the next page; empty: this is the last
	Name     string // what was searched for
}

func (s *Site) allMachines(v *visit) (reply, error) {
	data := allMachinesData{Name: v.URL.Query().Get("name")}
	out := reply{page: "operator-machines", title: "All machines"}
	from, err := api.PageStart(v.URL.Query().Get("before"))
	if err != nil {
		return out, err
	}
	kept, err := s.DB.MachinesBefore(v.Context(), from, searched(data.Name), mostListed+1)
	kept, data.Next = api.PageOf(kept, mostListed, func(k account.Kept) account.Place { return account.Place{At: k.Machine.Created, ID: k.Machine.ID} })
	snapshot := s.Snapshot()
	for _, k := range kept {
		m := k.Machine
		line := machineLine{ID: m.ID, Name: m.Name, Owner: k.OwnerName, Revoked: !m.Revoked.IsZero(), Created: m.Created, LastSeen: m.LastSeen}
		if live := snapshot.Machine(fleet.MachineID(m.ID)); live != nil && live.Online {
			line.Online, line.Models, line.Slots = true, len(live.Offers), live.Slots
		}
		data.Machines = append(data.Machines, line)
	}
	out.data = data
	return out, err
}

// auditData is what /operator/audit shows.
type auditData struct {
	Acts []account.Act
	Next string // the before of the next page; empty: this is the last
}

func (s *Site) auditPage(v *visit) (reply, error) {
	from, err := api.PageStart(v.URL.Query().Get("before"))
	if err != nil {
		return reply{}, err
	}
	acts, err := s.DB.Acts(v.Context(), from, mostListed+1)
	var data auditData
	data.Acts, data.Next = api.PageOf(acts, mostListed, func(a account.Act) account.Place { return account.Place{At: a.At, ID: a.ID} })
	return reply{page: "operator-audit", title: "Audit log", data: data}, err
}
