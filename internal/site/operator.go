package site

import (
	"cmp"
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

// operatorPath is the prefix of the pages that only operators see.
const operatorPath = "/operator"

// mostListed is the number of lines on one page of an operator's list.
const mostListed = 50

// operatorData is the content of /operator.
type operatorData struct {
	Parts                               []Part
	Limits                              []Limit
	Members, Disabled, Machines, Online int
	Region                              string
	Nodes                               []api.Node
	BusyClients                         []BusyClient
	Chart                               usageChart // of the last 24 hours
	Active                              int64      // members who made calls in them
	Recent                              recentCalls
	Capacity                            capacity
	api.Backups
}

// recentCalls are the calls of all members in this hour and the one before, which began
// Minutes ago.
type recentCalls struct {
	api.UsageSum
	Minutes int64
}

// Rate returns the number of calls a minute.
func (r recentCalls) Rate() string {
	if rate := float64(r.Calls) / float64(r.Minutes); rate < 10 {
		return fmt.Sprintf("%.1f", rate)
	}
	return api.Number(r.Calls / r.Minutes)
}

// ErrorRate returns the part of the calls that were refused or broken off, in percent.
func (r recentCalls) ErrorRate() string {
	if r.Calls == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(r.Refused)/float64(r.Calls))
}

// recent sums the last two bars of a chart of hours.
func recent(c usageChart, now time.Time) recentCalls {
	bars := c.Bars[len(c.Bars)-2:]
	sum := recentCalls{Minutes: max(1, int64(now.Sub(bars[0].At).Minutes()))}
	for _, b := range bars {
		sum.Calls += b.Sum.Calls
		sum.Refused += b.Sum.Refused
	}
	return sum
}

// capacity is how many slots the machines that are online have, and how many of these are in
// use. It leaves out machines without a limit of slots.
type capacity struct{ Used, Slots int }

func (s *Site) operatorData(v *visit) (data operatorData, err error) {
	data = operatorData{Parts: s.Health(v.Context()), Limits: s.Limits(), BusyClients: s.BusyClients(), Region: s.Region}
	if data.Nodes, err = call(s, v, api.OperatorListNodes, api.None{}); err != nil {
		return data, err
	}
	if data.Members, data.Disabled, err = s.DB.CountMembers(v.Context()); err != nil {
		return data, err
	}
	if data.Machines, err = s.DB.CountMachines(v.Context()); err != nil {
		return data, err
	}
	now := s.DB.Now()
	if data.Backups, err = s.Backups(v.Context(), now); err != nil {
		return data, err
	}
	usage, err := call(s, v, api.OperatorGetUsage, api.Span{By: api.Hour})
	if err != nil {
		return data, err
	}
	data.Chart = chartOf(api.UsagePage{By: usage.By, Since: usage.Since}, stepsOf(usage), now)
	data.Active, data.Recent = usage.Members, recent(data.Chart, now)
	for m := range s.Snapshot().Machines() {
		if m.Online {
			data.Online++
		}
		if m.Online && m.Slots > 0 {
			data.Capacity.Used += m.Load.Used()
			data.Capacity.Slots += m.Slots
		}
	}
	return data, nil
}

// drainQuestion returns the confirmation page for draining a hub node.
func (s *Site) drainQuestion(v *visit) (question, error) {
	nodes, err := call(s, v, api.OperatorListNodes, api.None{})
	name := v.URL.Query().Get("node")
	node, err := pick(nodes, err, func(n api.Node) bool { return n.Name == name }, "there is no such node")
	return question{
		Title: "Drain " + name + "?", Button: "Drain the node", Action: operatorPath + "/drain", Back: operatorPath,
		Field: "name", Value: name,
		Cuts: []string{
			counted(node.Machines, "The calls that wait there move to the other nodes.",
				"Its machine and the calls that wait there move to the other nodes.",
				"Its %d machines and the calls that wait there move to the other nodes."),
			counted(node.Calls, "It serves no call now: the process ends at once.",
				"The call that it serves ends by itself; then the process ends.",
				"The %d calls that it serves end by themselves; then the process ends."),
			"It serves again once it is started again.",
		},
	}, err
}

// membersData is the content of /operator/members.
type membersData struct {
	Members  []memberLine
	Next     string // parameter before of the next page; empty: this is the last
	Name     string // the search text
	NeedsOld bool   // creating a link requires the operator's own password
	// Link is the link that was just created, shown only once. For is its member, who may
	// be New.
	Link, For string
	New       bool
}

// memberLine is one member of the hub.
type memberLine struct {
	account.Member
	Machines int
	Active   time.Time // when the member last used the site, a key or a model
}

func (s *Site) membersData(v *visit) (membersData, error) {
	data := membersData{Name: v.URL.Query().Get("name")}
	search := searched(data.Name)
	find := func(from account.Place, most int) ([]account.Member, error) {
		return s.DB.MembersBefore(v.Context(), from, longestWord(search), most)
	}
	place := func(m account.Member) account.Place { return account.Place{At: m.Created, ID: m.ID} }
	shown := func(m account.Member) bool { return api.Finds(search, m.Name) }
	members, next, err := api.Paged(v.URL.Query().Get("before"), mostListed, only(shown, find, place), place)
	data.Next = next
	for i := 0; err == nil && i < len(members); i++ {
		line := memberLine{Member: members[i]}
		line.Machines, line.Active, err = s.DB.MemberActivity(v.Context(), line.ID)
		data.Members = append(data.Members, line)
	}
	own, noAccount := s.accountData(v)
	data.NeedsOld = own.NeedsOld
	return data, cmp.Or(err, noAccount)
}

// searched returns the text to search for. It replaces what no database can store, as in
// the stored names.
func searched(name string) string {
	return strings.TrimSpace(strings.ReplaceAll(strings.ToValidUTF8(name, "\ufffd"), "\x00", "\ufffd"))
}

// longestWord returns the longest word of a search: the database looks for it alone.
func longestWord(search string) (longest string) {
	for word := range strings.FieldsSeq(search) {
		if len(word) > len(longest) {
			longest = word
		}
	}
	return longest
}

// only returns find without the records that are not shown. It reads on, 500 at a time, until
// it has as many as it is asked for.
func only[T any](shown func(T) bool, find func(account.Place, int) ([]T, error), place func(T) account.Place) func(account.Place, int) ([]T, error) {
	return func(from account.Place, most int) (all []T, err error) {
		for chunk := max(most, 500); ; {
			found, err := find(from, chunk)
			for _, one := range found {
				if shown(one) && len(all) < most {
					all = append(all, one)
				}
			}
			if err != nil || len(found) < chunk || len(all) == most {
				return all, err
			}
			from = place(found[len(found)-1])
		}
	}
}

// named returns the member that a form of /operator/members names.
func (s *Site) named(v *visit) (account.Member, error) {
	m, err := s.DB.Member(v.Context(), v.form.Get("member"))
	return m, api.NotFound(err, "there is no such member")
}

// disableMemberQuestion returns the confirmation page for disabling a member.
func (s *Site) disableMemberQuestion(v *visit) (question, error) {
	m, err := s.DB.Member(v.Context(), v.URL.Query().Get("member"))
	return question{
		Title: "Disable " + m.Name + "?", Button: "Disable the member", Action: operatorPath + "/members/disable",
		Back: operatorPath + "/members", Field: "member", Value: m.ID,
		Cuts: []string{"Sessions, keys and machines of " + m.Name + " are refused within 5 seconds.",
			"Nothing is deleted: the member can be enabled again."},
	}, api.NotFound(err, "there is no such member")
}

func (s *Site) disableMember(v *visit) (reply, error) {
	m, err := s.named(v)
	if err != nil {
		return reply{}, err
	}
	if m.ID == v.me.ID {
		return reply{}, fault.New(fault.InvalidRequest,
			"operators cannot disable their own account; another operator can")
	}
	_, err = call(s, v, api.OperatorDisableMember, api.Named{Name: m.Name})
	return reply{to: operatorPath + "/members",
		done: m.Name + " is disabled: sessions, keys and machines are refused within 5 seconds."}, err
}

// addMember handles POST /operator/members. It creates an account and a link that signs
// the member in.
func (s *Site) addMember(v *visit) (reply, error) {
	if err := s.checkOld(v); err != nil {
		return reply{}, err
	}
	made, err := call(s, v, api.OperatorCreateMember,
		api.NewMember{Name: strings.TrimSpace(v.form.Get("name")), Operator: v.form.Get("operator") != ""})
	if err != nil {
		return reply{}, err
	}
	link, err := call(s, v, api.OperatorCreateLink, api.Named{Name: made.Name})
	if err != nil {
		return reply{}, err
	}
	v.form = nil // clears the form
	data, err := s.membersData(v)
	data.Link, data.For, data.New = link.Link, made.Name, true
	return reply{page: "operator-members", title: "Members", data: data}, err
}

// setRole handles POST /operator/members/role.
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

// linkMember handles POST /operator/members/link. It creates a one-time link that signs
// the member in, for example after a forgotten password. Anyone with the link can act as
// the member, so the operator's own password is required.
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
	data, err := s.membersData(v) // first, so that a link is only created if it can be shown
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
	State, Tone       string // if it is online
	Models, Slots     int
	Created, LastSeen time.Time
	Facts             *fleet.MachineFacts // nil: unknown
}

// allMachinesData is the content of /operator/machines: the machines that are online, then
// the rest, each newest first.
type allMachinesData struct {
	Machines []machineLine
	Next     string // parameter before of the next page; empty: this is the last
	Rest     bool   // the next page has no machine that is online
	Name     string // the search text
}

func (s *Site) allMachines(v *visit) (allMachinesData, error) {
	query := v.URL.Query()
	data := allMachinesData{Name: query.Get("name"), Rest: query.Get("rest") != ""}
	search, before, snapshot := searched(data.Name), query.Get("before"), s.Snapshot()
	place := func(m machineLine) account.Place { return account.Place{At: m.Created, ID: m.ID} }
	if !data.Rest {
		var err error
		data.Machines, data.Next, err = api.Paged(before, mostListed, s.onlineMachines(snapshot, search), place)
		if err != nil || data.Next != "" {
			return data, err
		}
		data.Rest, before = true, ""
	}
	find := func(from account.Place, most int) ([]account.Machine, error) {
		return s.DB.MachinesBefore(v.Context(), from, longestWord(search), most)
	}
	shown := func(m account.Machine) bool {
		live := snapshot.Machine(fleet.MachineID(m.ID))
		return (live == nil || !live.Online) && api.Finds(search, m.Name, m.OwnerName)
	}
	recorded := func(m account.Machine) account.Place { return account.Place{At: m.Created, ID: m.ID} }
	rest, next, err := api.Paged(before, mostListed, only(shown, find, recorded), recorded)
	data.Next = next
	for _, m := range rest {
		line := machineLine{ID: m.ID, Name: m.Name, Owner: m.OwnerName,
			Revoked: !m.Revoked.IsZero(), Created: m.Created, LastSeen: m.LastSeen}
		if live := snapshot.Machine(fleet.MachineID(m.ID)); live != nil {
			line.Facts = live.Facts
		}
		data.Machines = append(data.Machines, line)
	}
	return data, err
}

// onlineMachines returns a function that lists the machines that are online and that the
// search finds, newest first.
func (s *Site) onlineMachines(snapshot *fleet.Snapshot, search string) func(from account.Place, most int) ([]machineLine, error) {
	order := func(at time.Time, id string, from account.Place) int {
		return cmp.Or(from.At.Compare(at), strings.Compare(from.ID, id))
	}
	return func(from account.Place, most int) (all []machineLine, _ error) {
		for m := range snapshot.Machines() {
			if m.Online && api.Finds(search, m.Name, m.OwnerName) &&
				(from == account.Place{} || order(m.Created, string(m.ID), from) > 0) {
				all = append(all, machineLine{ID: string(m.ID), Name: m.Name, Owner: m.OwnerName, Online: true,
					Models: len(m.Offers), Slots: m.Slots, Created: m.Created, Facts: m.Facts})
			}
		}
		slices.SortFunc(all, func(a, b machineLine) int {
			return order(a.Created, a.ID, account.Place{At: b.Created, ID: b.ID})
		})
		all = all[:min(most, len(all))]
		for i := range all {
			live := s.LiveMachine(snapshot.Machine(fleet.MachineID(all[i].ID)), s.DB.Now())
			state := machineState(&live)
			all[i].State, all[i].Tone = state.text, state.tone
		}
		return all, nil
	}
}

// auditData is the content of /operator/audit.
type auditData struct {
	Acts      []account.Act
	Next      string // parameter before of the next page; empty: this is the last
	Who, What []string
	Filter    url.Values // as requested
}

func (s *Site) auditData(v *visit) (data auditData, err error) {
	asked := v.URL.Query()
	filter, before, err := readAudit(asked)
	if err != nil {
		return data, err
	}
	data.Filter = url.Values{"who": {filter.Who}, "what": {filter.What}, "from": {asked.Get("from")},
		"to": {asked.Get("to")}}
	if data.Who, data.What, err = s.DB.ActFields(v.Context()); err != nil {
		return data, err
	}
	find := func(from account.Place, most int) ([]account.Act, error) {
		return s.DB.Acts(v.Context(), from, filter, most)
	}
	data.Acts, data.Next, err = api.Paged(before, mostListed, find,
		func(a account.Act) account.Place { return account.Place{At: a.At, ID: a.ID} })
	return data, err
}

// Older returns the URL of the next page.
func (d auditData) Older() string {
	next := url.Values{"before": {d.Next}}
	for name, value := range d.Filter {
		if value[0] != "" && name != "to" { // before is earlier than it
			next[name] = value
		}
	}
	return operatorPath + "/audit?" + next.Encode()
}

// readAudit reads the filter of the audit log and the start of the list from the query.
// Days are in UTC and include the last one.
func readAudit(asked url.Values) (f account.ActFilter, before string, err error) {
	f, before = account.ActFilter{Who: searched(asked.Get("who")), What: searched(asked.Get("what"))},
		asked.Get("before")
	day := func(name string) (at time.Time) {
		if text := asked.Get(name); text != "" && err == nil {
			if at, err = time.Parse(time.DateOnly, text); err != nil {
				err = fault.New(fault.InvalidRequest, "%s must be a day such as 2026-11-21, not %.20q", name,
					text).WithParam(name)
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
