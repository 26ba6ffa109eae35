package site

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// person is a member who can use machines of the owner.
type person struct {
	Member   string
	Key      string      // suffix of the element ids of the row
	By       []accessRow // for machines that the member reaches in different ways
	Machines []string
	Whole    bool        // Machines are all of the owner's, which are several
	Ways     []accessWay // to any of the machines
	Idle     []accessWay
	Warnings []accessWarning
	Share    *api.Share // nil: only by groups
	Today    int64      // calls since midnight UTC
}

// state returns through what the member has access, or that the calls of the day are used
// up.
func (p person) state() words {
	switch {
	case slices.ContainsFunc(p.Ways, accessWay.Spent):
		return words{"used up today", "warn"}
	case p.Share != nil:
		return words{"share", ""}
	}
	return words{"by group", ""}
}

// people is who can use the owner's machines, by member.
type people struct {
	all      []person
	disabled []api.Share // given to disabled members, who cannot use them
	machines []api.Machine
	live     liveContent
}

// people returns who can use the member's machines.
func (s *Site) people(v *visit) (people, error) {
	shares, noShares := call(s, v, api.ListShares, api.None{})
	machines, noMachines := call(s, v, api.ListMachines, api.None{})
	usage, noUsage := call(s, v, api.GetUsage, api.Span{Days: "1"})
	groups, noGroups := call(s, v, api.ListGroups, api.None{})
	if err := cmp.Or(noShares, noMachines, noUsage, noGroups); err != nil {
		return people{}, err
	}
	now := s.DB.Now()
	out := people{machines: machines.Data, live: accessContent(s, s.hubView(now), v.caller())}
	var given []api.Share
	for _, share := range shares.Data {
		switch {
		case share.Direction == "given" && share.Disabled:
			out.disabled = append(out.disabled, share)
		case share.Direction == "given":
			given = append(given, share)
		}
	}
	today := map[string]int64{}
	for _, m := range usage.On.Members {
		today[m.Member] = m.Calls
	}
	for _, row := range accessList(v.me.Name, machines.Data, given, groups.Data) {
		if n := len(out.all); n == 0 || out.all[n-1].Member != row.Member {
			p := person{Member: row.Member, Key: nameKey(row.Member), Today: today[row.Member]}
			if i := slices.IndexFunc(given, func(share api.Share) bool { return share.With == row.Member }); i >= 0 {
				p.Share = &given[i]
			}
			out.all = append(out.all, p)
		}
		out.all[len(out.all)-1].add(row)
	}
	for i := range out.all {
		s.countUses(v.caller().Member, out.all[i], groups.Data, now)
		out.all[i].Whole = len(machines.Data) > 1 && len(out.all[i].Machines) == len(machines.Data)
	}
	return out, nil
}

// add adds machines that the member reaches in the same ways.
func (p *person) add(row accessRow) {
	p.By = append(p.By, row)
	p.Machines = append(p.Machines, row.Machines...)
	union := func(all *[]accessWay, more []accessWay) {
		for _, way := range more {
			if !slices.ContainsFunc(*all, func(w accessWay) bool { return w.Group == way.Group }) {
				*all = append(*all, way)
			}
		}
		slices.SortFunc(*all, func(a, b accessWay) int { return compareNames(a.Group, b.Group) })
	}
	union(&p.Ways, row.Ways)
	union(&p.Idle, row.Idle)
	for _, w := range row.warnings() {
		if !slices.ContainsFunc(p.Warnings, func(o accessWarning) bool { return o.Group == w.Group && o.By == w.By }) {
			p.Warnings = append(p.Warnings, w)
		}
	}
}

// countUses sets, for each way of a member that has a daily limit, how many of today's
// calls count against it.
func (s *Site) countUses(owner fleet.MemberID, p person, groups []api.Group, now time.Time) {
	snapshot := s.Snapshot()
	for i := range p.Ways {
		way := &p.Ways[i]
		if way.Limits.PerDay == nil {
			continue
		}
		var limits *fleet.Limits
		if way.Group == "" {
			with, id := fleet.MemberID(p.Share.WithID), fleet.ShareID(p.Share.ID)
			if share := snapshot.ShareOf(with, id); share != nil {
				limits = &share.Limits
			}
		} else if at := slices.IndexFunc(groups, func(g api.Group) bool { return g.Name == way.Group }); at >= 0 {
			if g := snapshot.Group(fleet.GroupID(groups[at].ID)); g != nil {
				limits = g.Limits[owner]
			}
		}
		if limits != nil {
			way.Used = limits.Load.Started(now)
		}
	}
}

// peopleData is the content of /access.
type peopleData struct {
	People   []person // on this page of the list
	Any      bool     // someone can use a machine
	Machines int      // number of the member's own
	Disabled []api.Share
	List     list
	Live     liveContent
	Panel    *sharePanel // nil: none is open
}

// sharePanel is the form for the share with one member.
type sharePanel struct {
	Person *person  // nil: a share with anyone
	With   string   // typed
	Known  []string // members to share with who are named on the pages
	Edit   limitFields
}

// personColumns are the columns of the list of people.
var personColumns = []column{
	{Head: "Member", Name: "name"}, {Head: "Access"}, {Head: "Machines"}, {Head: "Limits"}, {Head: "Running"},
	{Head: "Today", Class: "n", Name: "today", Most: true}, {Head: "Actions", Class: "do"},
}

// personList are the rules of the list of people.
var personList = listRules[person]{
	texts: func(p person) []string {
		texts := append([]string{p.Member, p.state().text}, p.Machines...)
		for _, way := range slices.Concat(p.Ways, p.Idle) {
			texts = append(texts, cmp.Or(way.Group, "share"), limitWords(way.Limits))
		}
		return texts
	},
	state: person.state,
	by: map[string]func(a, b person) int{
		"name":  func(a, b person) int { return compareNames(a.Member, b.Member) },
		"today": func(a, b person) int { return cmp.Compare(a.Today, b.Today) },
	},
}

// memberAddress returns the address of the form for the share with a member.
func memberAddress(name string) string {
	return accessPath + "?" + url.Values{"member": {name}}.Encode()
}

// peoplePage handles GET /access, and shows a form of it that was refused.
func (s *Site) peoplePage(v *visit) (reply, error) {
	asked := v.URL.Query()
	if group := asked.Get("group"); group != "" { // an address of before groups had a page
		return reply{to: groupAddress(group)}, nil
	}
	who, err := s.people(v)
	if err != nil {
		return reply{title: "Access"}, err
	}
	data := peopleData{Any: len(who.all) > 0, Machines: len(who.machines), Disabled: who.disabled, Live: who.live,
		List: list{ID: "people", Path: accessPath, Label: "Who can use your machines", One: "member", Many: "members",
			Find: "Name, group, machine or limit", Query: readList(asked, ""), Columns: personColumns}}
	data.People, data.List.Found, data.List.States = personList.cut(who.all, data.List.Query)
	named, typed := asked.Get("member"), url.Values(nil)
	if v.Method == http.MethodPost {
		named, typed = strings.TrimSpace(v.form.Get("with")), v.form
	}
	i := slices.IndexFunc(who.all, func(p person) bool { return p.Member == named })
	// The form to share with anyone leaves the other limits of a share as they are.
	anyone := i < 0 || v.URL.Path == "/sharing/share" && who.all[i].Share != nil
	if named != "" && i < 0 && typed == nil {
		return reply{title: "Access"}, fault.New(fault.NotFound,
			"%.80q cannot use your machines: share with them first", named)
	}
	offered := offeredModels(who.machines)
	switch {
	case named != "" && !anyone:
		var limits api.Limits
		if share := who.all[i].Share; share != nil {
			limits = share.Limits
		}
		data.Panel = &sharePanel{Person: &who.all[i], Edit: newLimitFields("with-", offered, limits, typed)}
	case asked.Has("share") || typed != nil && v.URL.Path != "/sharing/end":
		data.Panel = &sharePanel{With: named, Edit: newLimitFields("", offered, api.Limits{}, typed)}
		for _, p := range who.all {
			data.Panel.Known = append(data.Panel.Known, p.Member)
		}
		for _, row := range usableList(s.Snapshot(), v.caller().Member, nil, s.DB.Now()) {
			data.Panel.Known = append(data.Panel.Known, row.Owner)
		}
		slices.Sort(data.Panel.Known)
		data.Panel.Known = slices.Compact(data.Panel.Known)
	}
	return reply{page: "access", title: "Access", data: data}, nil
}

// forYouData is the content of /access/for-you.
type forYouData struct {
	Owners []ownerRow // on this page of the list
	Any    bool
	List   list
	Live   liveContent
}

// ownerRow is a member whose machines the caller can use.
type ownerRow struct {
	usableRow
	Key string // suffix of the element ids of the row
}

// state returns whether a machine is online, or that the calls of the day are used up.
func (r ownerRow) state() words {
	switch {
	case slices.ContainsFunc(r.Ways, accessWay.Spent):
		return words{"used up today", "warn"}
	case len(r.Machines) == 0:
		return words{"no machine", ""}
	case slices.ContainsFunc(r.Machines, func(m usableMachine) bool { return m.Online }):
		return words{"online", "good"}
	}
	return availabilityWords("offline")
}

// State and Tone are the state, for templates.
func (r ownerRow) State() string { return r.state().text }
func (r ownerRow) Tone() string  { return r.state().tone }

// ownerColumns are the columns of the list of what a member can use.
var ownerColumns = []column{
	{Head: "Owner", Name: "name"}, {Head: "State", Class: "status", Name: "state"}, {Head: "Access"}, {Head: "Machines"},
	{Head: "Models", Name: "models", Most: true}, {Head: "Limits"}, {Head: "Running"},
}

// ownerList are the rules of that list.
var ownerList = listRules[ownerRow]{
	texts: func(r ownerRow) []string {
		texts := append([]string{r.Owner, r.state().text}, r.Models...)
		for _, m := range r.Machines {
			texts = append(texts, m.Name)
		}
		for _, way := range r.Ways {
			texts = append(texts, cmp.Or(way.Group, "share"), limitWords(way.Limits))
		}
		return texts
	},
	state: ownerRow.state,
	by: map[string]func(a, b ownerRow) int{
		"name":   func(a, b ownerRow) int { return compareNames(a.Owner, b.Owner) },
		"state":  func(a, b ownerRow) int { return compareStates(a.state(), b.state()) },
		"models": func(a, b ownerRow) int { return cmp.Compare(len(a.Models), len(b.Models)) },
	},
}

func (s *Site) forYouData(v *visit) (forYouData, error) {
	shares, err := call(s, v, api.ListShares, api.None{})
	received := slices.DeleteFunc(shares.Data,
		func(share api.Share) bool { return share.Direction == "given" || share.Disabled })
	now := s.DB.Now()
	var rows []ownerRow
	for _, row := range usableList(s.Snapshot(), v.caller().Member, received, now) {
		rows = append(rows, ownerRow{row, nameKey(row.Owner)})
	}
	data := forYouData{Any: len(rows) > 0, Live: accessContent(s, s.hubView(now), v.caller()),
		List: list{ID: "owners", Path: forYouPath, Label: "What you can use", One: "member", Many: "members",
			Find: "Owner, machine or model", Brief: true, Query: readList(v.URL.Query(), ""), Columns: ownerColumns}}
	data.Owners, data.List.Found, data.List.States = ownerList.cut(rows, data.List.Query)
	return data, err
}

// invitesData is the content of /access/invites.
type invitesData struct {
	Invites []api.Invite // on this page of the list
	Any     bool
	List    list
	Edit    limitFields
	Limited bool        // the limits of the form are in sight
	Uses    string      // in the form
	Made    *api.Invite // a new one, shown only once; its code is the link
}

// inviteColumns are the columns of the list of invites.
var inviteColumns = []column{
	{Head: "Code"}, {Head: "State", Class: "status", Name: "state"}, {Head: "Used", Class: "n", Name: "used", Most: true}, {Head: "Limits"},
	{Head: "Expires", Class: "when", Name: "expires"}, {Head: "Actions", Class: "do"},
}

// inviteState returns the state of an invite.
func inviteState(i api.Invite) words {
	if i.State == "open" {
		return words{i.State, "good"}
	}
	return words{text: i.State}
}

// inviteList are the rules of the list of invites.
var inviteList = listRules[api.Invite]{
	texts: func(i api.Invite) []string { return []string{i.LastFour, i.State, limitWords(i.Limits)} },
	state: inviteState,
	by: map[string]func(a, b api.Invite) int{
		"state":   func(a, b api.Invite) int { return compareStates(inviteState(a), inviteState(b)) },
		"used":    func(a, b api.Invite) int { return cmp.Compare(a.Used, b.Used) },
		"expires": func(a, b api.Invite) int { return a.Expires.Compare(b.Expires) },
	},
}

// invitesData returns the member's invites, the open ones first, each newest first.
func (s *Site) invitesData(v *visit) (invitesData, error) {
	invites, noInvites := call(s, v, api.ListInvites, api.None{})
	machines, noMachines := call(s, v, api.ListMachines, api.None{})
	var typed url.Values
	if v.Method == http.MethodPost && v.URL.Path == "/sharing/invite" {
		typed = v.form // nil once it is done
	}
	slices.Reverse(invites.Data)
	slices.SortStableFunc(invites.Data, func(a, b api.Invite) int {
		return api.OnlineFirst(a.State == "open", b.State == "open")
	})
	data := invitesData{Any: len(invites.Data) > 0, Uses: cmp.Or(typed.Get("uses"), "1"), Limited: typed != nil,
		Edit: newLimitFields("invite-", offeredModels(machines.Data), api.Limits{}, typed),
		List: list{ID: "invites", Path: invitesPath, Label: "Your invites", One: "invite", Many: "invites",
			Find: "Code, state or limit", Brief: true, Query: readList(v.URL.Query(), ""), Columns: inviteColumns}}
	data.Invites, data.List.Found, data.List.States = inviteList.cut(invites.Data, data.List.Query)
	return data, cmp.Or(noInvites, noMachines)
}
