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

// ErrorRate returns the part of the calls that failed, in percent.
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
	usage, err := call(s, v, api.OperatorGetUsage, api.HubSpan{By: api.Hour})
	if err != nil {
		return data, err
	}
	data.Chart = chartOf(api.UsagePage{By: usage.By, Since: usage.Since}, stepsOf(usage), chartViews[0], now)
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
			counted(node.Calls, "It has no running calls: the process ends at once.",
				"Its running call finishes; then the process ends.",
				"Its %d running calls finish; then the process ends."),
			"It serves again after a restart.",
		},
	}, err
}

// membersData is the content of /operator/members.
type membersData struct {
	Members  []account.MemberActivity // on this page of the list
	List     list
	NeedsOld bool // adding a member requires the operator's own password
	// Link is the link that was just created, shown only once. For is its member, who may
	// be New.
	Link, For string
	New       bool
}

// memberColumns are the columns of the list of members. The database sorts by them:
// account.MemberQuery.
var memberColumns = []column{
	{Head: "Name", Name: "name"}, {Head: "State", Class: "status", Name: "state"}, {Head: "Last active", Class: "when", Name: "active", Most: true},
	{Head: "Machines", Class: "n", Name: "machines", Most: true}, {Head: "Since", Class: "when", Name: "created", Most: true},
	{Head: "Actions", Class: "do"},
}

func (s *Site) membersData(v *visit) (membersData, error) {
	q := readList(v.URL.Query(), "")
	words := strings.Fields(q.Text)
	all, disabled, err := s.DB.CountMembers(v.Context(), words...)
	if err != nil {
		return membersData{}, err
	}
	l := list{ID: "members", Path: operatorPath + "/members", Label: "Members", One: "member", Many: "members", Find: "Name",
		Query: q, Columns: memberColumns, Found: all,
		States: []stateCount{{account.MemberActive, "good", all - disabled}, {account.MemberDisabled, "bad", disabled}}}
	switch q.State {
	case "":
	case account.MemberActive:
		l.Found = all - disabled
	case account.MemberDisabled:
		l.Found = disabled
	default:
		l.Found = 0
	}
	data := membersData{List: l}
	if l.Found > 0 {
		data.Members, err = s.DB.ListMembers(v.Context(), account.MemberQuery{
			Words: words, State: q.State, Sort: q.Sort, Skip: q.skip(l.Found), Most: pageSize})
	}
	own, noAccount := s.accountData(v)
	data.NeedsOld = own.NeedsOld
	return data, cmp.Or(err, noAccount)
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

// named returns the member that a form of /operator/members names.
func (s *Site) named(v *visit) (account.Member, error) {
	m, err := s.DB.Member(v.Context(), v.form.Get("member"))
	return m, api.NotFound(err, "there is no such member")
}

// askAbout returns the confirmation page for a form of /operator/members about the member
// that the address names.
func (s *Site) askAbout(v *visit, form string) (question, account.Member, error) {
	m, err := s.DB.Member(v.Context(), v.URL.Query().Get("member"))
	return question{Action: operatorPath + "/members/" + form, Back: operatorPath + "/members", Field: "member", Value: m.ID},
		m, api.NotFound(err, "there is no such member")
}

// disableMemberQuestion returns the confirmation page for disabling a member.
func (s *Site) disableMemberQuestion(v *visit) (question, error) {
	q, m, err := s.askAbout(v, "disable")
	q.Title, q.Button = "Disable "+m.Name+"?", "Disable the member"
	q.Cuts = []string{"Sessions, keys and machines of " + m.Name + " are refused within 5 seconds.",
		"Nothing is deleted. You can enable the member again."}
	return q, err
}

// linkMemberQuestion returns the confirmation page for a link that signs a member in.
func (s *Site) linkMemberQuestion(v *visit) (question, error) {
	q, m, err := s.askAbout(v, "link")
	if err != nil {
		return q, err
	}
	q.Title, q.Button = "Create a sign-in link for "+m.Name+"?", "Create the link"
	q.Cuts = []string{"It signs " + m.Name + " in once, within a day, for example after a forgotten password.",
		"Anyone with the link can act as " + m.Name + ". It is shown only once, for you to pass on."}
	own, err := s.accountData(v)
	q.Password = own.NeedsOld
	return q, err
}

// roleQuestion returns the confirmation page for making a member an operator, or for taking
// that role away.
func (s *Site) roleQuestion(v *visit) (question, error) {
	q, m, err := s.askAbout(v, "role")
	if err != nil {
		return q, err
	}
	if m.Operator {
		q.Title, q.Button = "Remove "+m.Name+" as an operator?", "Remove as operator"
		q.Cuts = []string{m.Name + " no longer sees the operator's pages. The last operator keeps the role."}
	} else {
		q.Title, q.Button = "Make "+m.Name+" an operator?", "Make an operator"
		q.Cuts = []string{m.Name + " sees these pages, and can do all that you can do here."}
		q.More = []hiddenField{{"operator", "yes"}}
	}
	own, err := s.accountData(v)
	q.Password = own.NeedsOld
	return q, err
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
	done := m.Name + " is now an operator and sees these pages."
	if !operator {
		done = m.Name + " is no longer an operator."
	}
	if m.ID == v.me.ID && !operator {
		return reply{to: "/", done: "You are no longer an operator."}, err
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
	account.Machine
	Online        bool
	Text, Tone    string // its state
	kind          words  // of the state, without numbers
	Models, Slots int
	Facts         *fleet.MachineFacts // nil: unknown
}

// allMachinesData is the content of /operator/machines.
type allMachinesData struct {
	Machines []machineLine // on this page of the list
	List     list
}

// allMachinesColumns are the columns of the list of all machines.
var allMachinesColumns = []column{
	{Head: "Name", Name: "name"}, {Head: "Owner", Name: "owner"}, {Head: "State", Class: "status", Name: "state"},
	{Head: "Models", Class: "n", Name: "models", Most: true}, {Head: "Slots", Class: "n", Name: "slots", Most: true},
	{Head: "Computer", Class: "spare"}, {Head: "Last seen", Class: "when", Name: "seen", Most: true}, {Head: "ID", Class: "spare"},
}

// allMachinesList are the rules of the list of all machines.
var allMachinesList = listRules[machineLine]{
	texts: func(m machineLine) []string { return []string{m.Name, m.OwnerName} },
	state: func(m machineLine) words { return m.kind },
	by: map[string]func(a, b machineLine) int{
		"name":   func(a, b machineLine) int { return compareNames(a.Name, b.Name) },
		"owner":  func(a, b machineLine) int { return compareNames(a.OwnerName, b.OwnerName) },
		"state":  func(a, b machineLine) int { return compareStates(a.kind, b.kind) },
		"models": func(a, b machineLine) int { return cmp.Compare(a.Models, b.Models) },
		"slots":  func(a, b machineLine) int { return cmp.Compare(a.Slots, b.Slots) },
		"seen":   func(a, b machineLine) int { return a.LastSeen.Compare(b.LastSeen) },
	},
}

// allMachines lists the machines of the hub: those that are online, those that are offline,
// and those that are revoked, each newest first. The hub's memory has their states, so that
// it counts and sorts them, and not the database.
func (s *Site) allMachines(v *visit) (allMachinesData, error) {
	data := allMachinesData{List: list{ID: "machines", Path: operatorPath + "/machines", Label: "Machines", One: "machine", Many: "machines",
		Find: "Name of the machine or its owner", Query: readList(v.URL.Query(), ""), Columns: allMachinesColumns}}
	records, err := s.DB.ListMachines(v.Context(), longestWord(data.List.Query.Text))
	snapshot, now := s.Snapshot(), s.DB.Now()
	rows := make([]machineLine, len(records))
	for i, record := range records {
		row, state := machineLine{Machine: record}, availabilityWords("offline")
		if record.LastSeen.IsZero() {
			state = notSetUp
		}
		row.kind = state
		live := snapshot.Machine(fleet.MachineID(record.ID))
		if live != nil {
			row.Facts = live.Facts
		}
		switch {
		case !record.Revoked.IsZero():
			state = words{"revoked", "bad"}
			row.kind = state
		case live != nil && live.Online:
			m := s.LiveMachine(live, now)
			state, row.kind = machineState(&m), kindOfState(&m)
			row.Online, row.Models, row.Slots, row.LastSeen = true, len(m.Models), m.Slots, now
		}
		row.Text, row.Tone = state.text, state.tone
		rows[i] = row
	}
	slices.SortStableFunc(rows, func(a, b machineLine) int {
		return cmp.Or(api.OnlineFirst(a.Online, b.Online), api.OnlineFirst(a.Revoked.IsZero(), b.Revoked.IsZero()))
	})
	data.Machines, data.List.Found, data.List.States = allMachinesList.cut(rows, data.List.Query)
	return data, err
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
