package site

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
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
	Nodes                               []api.Node
	Near                                []Near
	// MakesBackups is whether the hub makes backups itself; with PostgreSQL it does not.
	MakesBackups bool
	// Backup is the newest attempt, and Made the newest backup that is sound; nil: there
	// was none.
	Backup, Made *account.Backup
}

func (s *Site) operatorData(v *visit) (data operatorData, err error) {
	data = operatorData{Parts: s.Health(v.Context()), Limits: s.Limits(), Near: s.Near(), Region: s.Region, MakesBackups: s.DB.MakesBackups()}
	if data.Nodes, err = call(s, v, api.OperatorListNodes, api.None{}); err != nil {
		return data, err
	}
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

// drainQuestion asks before a hub node drains.
func (s *Site) drainQuestion(v *visit) (question, error) {
	nodes, err := call(s, v, api.OperatorListNodes, api.None{})
	name := v.URL.Query().Get("node")
	at := slices.IndexFunc(nodes, func(n api.Node) bool { return n.Name == name })
	if err == nil && at < 0 {
		err = fault.New(fault.NotFound, "there is no such node")
	}
	if err != nil {
		return question{}, err
	}
	return question{
		Title: "Drain " + name + "?", Button: "Drain the node", Action: operatorPath + "/drain", Back: operatorPath, Field: "name", Value: name,
		Cuts: []string{
			fmt.Sprintf("Its %d machines and the calls that wait there move to the other nodes.", nodes[at].Machines),
			fmt.Sprintf("The %d calls that it serves end by themselves; then the process ends.", nodes[at].Calls),
			"It serves again once it is started again.",
		},
	}, nil
}

// membersData is what /operator/members shows.
type membersData struct {
	Members  []account.Member
	Next     string // the before of the next page; empty: this is the last
	Name     string // what was searched for
	NeedsOld bool   // the operator's own password has to be given to make a link
	// Link is the one just made, shown this once, and For which member, who may be New.
	Link, For string
	New       bool
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

// addMember is POST /operator/members: a member's account, and a link that signs the
// member in.
func (s *Site) addMember(v *visit) (reply, error) {
	if err := s.checkOld(v); err != nil {
		return reply{}, err
	}
	made, err := call(s, v, api.OperatorCreateMember, api.NewMember{Name: strings.TrimSpace(v.form.Get("name")), Operator: v.form.Get("operator") != ""})
	if err != nil {
		return reply{}, err
	}
	link, err := call(s, v, api.OperatorCreateLink, api.Named{Name: made.Name})
	if err != nil {
		return reply{}, err
	}
	v.form = nil // the form begins empty
	data, err := s.membersData(v)
	data.Link, data.For, data.New = link.Link, made.Name, true
	return reply{page: "operator-members", title: "Members", data: data}, err
}

// setRole is POST /operator/members/role.
func (s *Site) setRole(v *visit) (reply, error) {
	m, err := s.named(v)
	if err != nil {
		return reply{}, err
	}
	if err := s.checkOld(v); err != nil {
		return reply{}, err
	}
	operator := v.form.Get("operator") != ""
	_, err = call(s, v, api.OperatorSetRole, api.Role{Name: m.Name, Operator: operator})
	done := m.Name + " is an operator now, and sees these pages."
	if !operator {
		done = m.Name + " is no operator any more."
	}
	if m.ID == v.me.ID && !operator {
		return reply{to: "/", done: "You are no operator any more."}, err
	}
	return reply{to: operatorPath + "/members", done: done}, err
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
	Acts      []account.Act
	Next      string // the before of the next page; empty: this is the last
	Who, What []string
	Filter    url.Values // as it was asked for
}

func (s *Site) auditData(v *visit) (data auditData, err error) {
	asked := v.URL.Query()
	filter, before, err := readAudit(asked)
	if err != nil {
		return data, err
	}
	data.Filter = url.Values{"who": {filter.Who}, "what": {filter.What}, "from": {asked.Get("from")}, "to": {asked.Get("to")}}
	if data.Who, data.What, err = s.DB.ActFields(v.Context()); err != nil {
		return data, err
	}
	find := func(from account.Place, most int) ([]account.Act, error) {
		return s.DB.Acts(v.Context(), from, filter, most)
	}
	data.Acts, data.Next, err = api.Paged(before, mostListed, find, func(a account.Act) account.Place { return account.Place{At: a.At, ID: a.ID} })
	return data, err
}

// Older is the address of the next page.
func (d auditData) Older() string {
	next := url.Values{"before": {d.Next}}
	for name, value := range d.Filter {
		if value[0] != "" && name != "to" { // before is earlier
			next[name] = value
		}
	}
	return operatorPath + "/audit?" + next.Encode()
}

// readAudit reads what the audit log is to be narrowed to, and where its list begins.
// Days are UTC, the last one included.
func readAudit(asked url.Values) (f account.ActFilter, before string, err error) {
	f, before = account.ActFilter{Who: searched(asked.Get("who")), What: searched(asked.Get("what"))}, asked.Get("before")
	day := func(name string) (at time.Time) {
		if text := asked.Get(name); text != "" && err == nil {
			if at, err = time.Parse(time.DateOnly, text); err != nil {
				err = fault.New(fault.InvalidRequest, "%s is a day like 2026-11-21, not %.20q", name, text).WithParam(name)
			}
		}
		return at
	}
	f.Since = day("from")
	if last := day("to"); before == "" && !last.IsZero() {
		before = last.AddDate(0, 0, 1).Format(time.RFC3339)
	}
	return f, before, err
}
