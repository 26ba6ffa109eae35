package site

import (
	"cmp"
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
	// Backup is the newest attempt, and Made the newest backup that is sound; nil: there
	// was none.
	Backup, Made *account.Backup
}

func (s *Site) operatorData(v *visit) (data operatorData, err error) {
	data = operatorData{Parts: s.Health(v.Context()), Limits: s.Limits(), Region: s.Region}
	if data.Members, data.Disabled, err = s.DB.CountMembers(v.Context()); err != nil {
		return data, err
	}
	if data.Machines, err = s.DB.CountMachines(v.Context()); err != nil {
		return data, err
	}
	if data.Backup, err = found(s.DB.LastBackup(v.Context())); err != nil {
		return data, err
	}
	if data.Made, err = found(s.DB.LastGoodBackup(v.Context())); err != nil {
		return data, err
	}
	for m := range s.Snapshot().Machines() {
		if m.Online {
			data.Online++
		}
	}
	return data, nil
}

// found returns nil for what is not there.
func found(b account.Backup, err error) (*account.Backup, error) {
	if errors.Is(err, account.ErrNotFound) {
		return nil, nil
	}
	return &b, err
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

func (s *Site) membersData(v *visit) (membersData, error) {
	data := membersData{Name: v.URL.Query().Get("name")}
	find := func(from account.Place, most int) ([]account.Member, error) {
		return s.DB.MembersBefore(v.Context(), from, searched(data.Name), most)
	}
	var err error
	data.Members, data.Next, err = api.Paged(v.URL.Query().Get("before"), mostListed, find, func(m account.Member) account.Place { return account.Place{At: m.Created, ID: m.ID} })
	own, noAccount := s.accountData(v)
	data.NeedsOld = own.NeedsOld
	return data, cmp.Or(err, noAccount)
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

// disableMemberQuestion asks before a member is disabled.
func (s *Site) disableMemberQuestion(v *visit) (question, error) {
	m, err := s.DB.Member(v.Context(), v.URL.Query().Get("member"))
	return question{
		Title: "Disable " + m.Name + "?", Button: "Disable the member", Action: operatorPath + "/members/disable", Back: operatorPath + "/members", Field: "member", Value: m.ID,
		Cuts: []string{"Sessions, keys and machines of " + m.Name + " are refused within 5 seconds.", "Nothing is deleted: the member can be enabled again."},
	}, api.NotFound(err, "there is no such member")
}

func (s *Site) disableMember(v *visit) (reply, error) {
	m, err := s.named(v)
	if err != nil {
		return reply{}, err
	}
	if m.ID == v.me.ID {
		return reply{}, fault.New(fault.InvalidRequest, "an operator cannot disable the own account: another operator can")
	}
	_, err = call(s, v, api.OperatorDisableMember, api.Named{Name: m.Name})
	return reply{to: operatorPath + "/members", done: m.Name + " is disabled: sessions, keys and machines are refused within 5 seconds."}, err
}

func (s *Site) enableMember(v *visit) (reply, error) {
	m, err := s.named(v)
	if err != nil {
		return reply{}, err
	}
	_, err = call(s, v, api.OperatorEnableMember, api.Named{Name: m.Name})
	return reply{to: operatorPath + "/members", done: m.Name + " is enabled again."}, err
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
	data, err := s.membersData(v) // first: what cannot be shown is not made
	if err != nil {
		return reply{}, err
	}
	made, err := call(s, v, api.OperatorCreateLink, api.Named{Name: m.Name})
	data.Link, data.For = made.Link, m.Name
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

func (s *Site) allMachines(v *visit) (allMachinesData, error) {
	data := allMachinesData{Name: v.URL.Query().Get("name")}
	find := func(from account.Place, most int) ([]account.Kept, error) {
		return s.DB.MachinesBefore(v.Context(), from, searched(data.Name), most)
	}
	place := func(k account.Kept) account.Place { return account.Place{At: k.Machine.Created, ID: k.Machine.ID} }
	kept, next, err := api.Paged(v.URL.Query().Get("before"), mostListed, find, place)
	data.Next = next
	snapshot := s.Snapshot()
	for _, k := range kept {
		m := k.Machine
		line := machineLine{ID: m.ID, Name: m.Name, Owner: k.OwnerName, Revoked: !m.Revoked.IsZero(), Created: m.Created, LastSeen: m.LastSeen}
		if live := snapshot.Machine(fleet.MachineID(m.ID)); live != nil && live.Online {
			line.Online, line.Models, line.Slots = true, len(live.Offers), live.Slots
		}
		data.Machines = append(data.Machines, line)
	}
	return data, err
}

// auditData is what /operator/audit shows.
type auditData struct {
	Acts []account.Act
	Next string // the before of the next page; empty: this is the last
}

func (s *Site) auditData(v *visit) (data auditData, err error) {
	find := func(from account.Place, most int) ([]account.Act, error) { return s.DB.Acts(v.Context(), from, most) }
	data.Acts, data.Next, err = api.Paged(v.URL.Query().Get("before"), mostListed, find, func(a account.Act) account.Place { return account.Place{At: a.At, ID: a.ID} })
	return data, err
}
