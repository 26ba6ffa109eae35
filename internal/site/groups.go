package site

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// groupsData is the content of /access/groups.
type groupsData struct {
	Invited []api.Group // invitations that the member may accept or decline
	Groups  []api.Group // the member's own, and open ones, on this page of the list
	Any     bool
	List    list
	Live    liveContent
}

// groupColumns are the columns of the list of groups.
var groupColumns = []column{
	{Head: "Name", Name: "name"}, {Head: "Your role", Class: "status", Name: "state"}, {Head: "Kind"},
	{Head: "Members", Class: "n", Name: "members", Most: true}, {Head: "Limits on your machines"}, {Head: "Actions", Class: "do"},
}

// groupState returns what the member is in a group.
func groupState(g api.Group) words {
	switch {
	case g.In && g.Admin:
		return words{"admin", "good"}
	case g.In:
		return words{"member", "good"}
	}
	return words{text: "open to join"}
}

// groupList are the rules of the list of groups.
var groupList = listRules[api.Group]{
	texts: func(g api.Group) []string {
		texts := []string{g.Name, groupState(g).text, string(g.Kind)}
		for _, m := range g.Members {
			texts = append(texts, m.Name)
		}
		return texts
	},
	state: groupState,
	by: map[string]func(a, b api.Group) int{
		"name":    func(a, b api.Group) int { return compareNames(a.Name, b.Name) },
		"state":   func(a, b api.Group) int { return compareStates(groupState(a), groupState(b)) },
		"members": func(a, b api.Group) int { return cmp.Compare(a.Size, b.Size) },
	},
}

// groupsData returns the member's groups, and then those that are open to join.
func (s *Site) groupsData(v *visit) (groupsData, error) {
	groups, err := call(s, v, api.ListGroups, api.None{})
	data := groupsData{Live: accessContent(s, s.hubView(s.DB.Now()), v.caller()),
		List: list{ID: "groups", Path: groupsPath, Label: "Groups", One: "group", Many: "groups",
			Find: "Name, kind or member", Brief: true, Query: readList(v.URL.Query(), ""), Columns: groupColumns}}
	var rows []api.Group
	for _, g := range groups.Data {
		if g.Invited != nil {
			data.Invited = append(data.Invited, g)
		} else {
			rows = append(rows, g)
		}
	}
	slices.SortStableFunc(rows, func(a, b api.Group) int { return api.OnlineFirst(a.In, b.In) })
	data.Any = len(rows) > 0
	data.Groups, data.List.Found, data.List.States = groupList.cut(rows, data.List.Query)
	return data, err
}

// groupData is the content of the page of a group.
type groupData struct {
	api.Group
	Runs     bool              // the member invites and removes others
	Fellows  []api.GroupMember // on this page of the list
	Members  list
	Shown    []groupMachine // on this page of the list
	Machines list
	Edit     *limitFields // nil: the form is not open
	Live     liveContent
}

// fellowColumns are the columns of the list of a group's members.
var fellowColumns = []column{
	{Head: "Member", Name: "name"}, {Head: "Role", Class: "status", Name: "role"}, {Head: "Actions", Class: "do"},
}

// fellowList are the rules of the list of a group's members.
var fellowList = listRules[api.GroupMember]{
	texts: func(m api.GroupMember) []string { return []string{m.Name, fellowState(m).text} },
	state: fellowState,
	by: map[string]func(a, b api.GroupMember) int{
		"name": func(a, b api.GroupMember) int { return compareNames(a.Name, b.Name) },
		"role": func(a, b api.GroupMember) int { return compareStates(fellowState(a), fellowState(b)) },
	},
}

// fellowState returns the role of a member of a group.
func fellowState(m api.GroupMember) words {
	if m.Admin {
		return words{text: "admin"}
	}
	return words{text: "member"}
}

// groupMachineColumns are the columns of the list of the machines of a group.
var groupMachineColumns = []column{
	{Head: "Machine", Name: "name"}, {Head: "Owner", Name: "owner"}, {Head: "Status", Class: "status", Name: "state"},
	{Head: "Actions", Class: "do"},
}

// groupMachineList are the rules of the list of the machines of a group.
var groupMachineList = listRules[groupMachine]{
	texts: func(m groupMachine) []string { return []string{m.Machine, m.Owner, m.state().text} },
	state: groupMachine.state,
	by: map[string]func(a, b groupMachine) int{
		"name":  func(a, b groupMachine) int { return compareNames(a.Machine, b.Machine) },
		"owner": func(a, b groupMachine) int { return compareNames(a.Owner, b.Owner) },
		"state": func(a, b groupMachine) int { return compareStates(a.state(), b.state()) },
	},
}

// state returns the decision of the group's admins about a machine, or its standing.
func (m groupMachine) state() words {
	switch m.Rule {
	case account.MachinePinned:
		return words{"pinned", "good"}
	case account.MachineExcluded:
		return words{"excluded", "warn"}
	}
	return words{text: m.Standing}
}

// State and Tone are the state, for templates.
func (m groupMachine) State() string { return m.state().text }
func (m groupMachine) Tone() string  { return m.state().tone }

// groupAddress returns the address of the page of a group.
func groupAddress(name string) string { return groupPath + "?" + url.Values{"group": {name}}.Encode() }

// groupPage handles GET /access/group, and shows a form of it that was refused.
func (s *Site) groupPage(v *visit) (reply, error) {
	asked := v.URL.Query()
	name, typed := asked.Get("group"), url.Values(nil)
	if v.Method == http.MethodPost {
		name = v.form.Get("group")
	}
	if v.URL.Path == "/groups/limit" {
		typed = v.form
	}
	if name == "" {
		return reply{to: groupsPath}, nil
	}
	groups, err := call(s, v, api.ListGroups, api.None{})
	g, err := pick(groups.Data, err, func(g api.Group) bool { return g.Name == name },
		"you can see no group named %.80q", name)
	if err != nil {
		return reply{title: "Group"}, err
	}
	data := groupData{Group: g, Runs: g.Admin && g.Kind == account.GroupOrg,
		Live: accessContent(s, s.hubView(s.DB.Now()), v.caller())}
	members, machines := readList(asked, ""), readList(asked, "machine-")
	also := url.Values{"group": {name}}
	data.Members = list{ID: "members", Path: groupPath, Also: also, Brief: true, Label: "Members of " + name,
		One: "member", Many: "members", Find: "Name or role", Query: members, Columns: fellowColumns}
	data.Machines = list{ID: "machines", Path: groupPath, Also: also, Brief: true, Label: "Machines of " + name,
		One: "machine", Many: "machines", Find: "Name, owner or state", Prefix: "machine-", Query: machines,
		Columns: groupMachineColumns}
	if g.In {
		data.Fellows, data.Members.Found, data.Members.States = fellowList.cut(g.Members, members)
		data.Shown, data.Machines.Found, data.Machines.States = groupMachineList.cut(groupMachines(s.Snapshot(), g), machines)
	}
	if g.In && (asked.Has("limits") || typed != nil) {
		mine, noMachines := call(s, v, api.ListMachines, api.None{})
		data.Edit, err = new(newLimitFields("limit-", offeredModels(mine.Data), *g.Limits, typed)), noMachines
	}
	return reply{page: "access-group", title: name, data: data}, err
}

// createGroup handles POST /groups/create.
func (s *Site) createGroup(v *visit) (reply, error) {
	made, err := fields[api.NewGroup](v)
	if err == nil {
		_, err = call(s, v, api.CreateGroup, made)
	}
	return reply{to: groupAddress(made.Name), done: "Group created. You are its admin."}, err
}

// groupMachine is a group member's machine, as the page shows it.
type groupMachine struct {
	Owner, Machine string
	Rule           account.MachineRule // empty: no decision of the group's admins
	Standing       string              // a text based on what it served in the group; empty: unknown
}

// ruleOf returns what the group's admins decided about a machine, or "" if nothing.
func ruleOf(g api.Group, owner, machine string) account.MachineRule {
	for _, m := range g.Machines {
		if m.Owner == owner && m.Machine == machine {
			return m.Rule
		}
	}
	return ""
}

// groupMachines returns the machines of a group that the member may see.
func groupMachines(s *fleet.Snapshot, g api.Group) (all []groupMachine) {
	id := fleet.GroupID(g.ID)
	for _, m := range g.Machines {
		all = append(all, groupMachine{Owner: m.Owner, Machine: m.Machine, Rule: m.Rule})
	}
	if g.Admin {
		for m := range s.MachinesOf(id) {
			at := slices.IndexFunc(all[:len(g.Machines)],
				func(o groupMachine) bool { return o.Owner == m.OwnerName && o.Machine == m.Name })
			if at < 0 {
				at, all = len(all), append(all, groupMachine{Owner: m.OwnerName, Machine: m.Name})
			}
			all[at].Standing = standingWords(m, id)
		}
	}
	slices.SortFunc(all, func(a, b groupMachine) int {
		return cmp.Or(strings.Compare(a.Owner, b.Owner), strings.Compare(a.Machine, b.Machine))
	})
	return all
}

// standingWords describes a machine's standing in a group, based on what it served there.
func standingWords(m *fleet.Machine, group fleet.GroupID) string {
	established, circle := 0, fleet.Circle{Class: fleet.Grouped, Group: group}
	for i := range m.Offers {
		if standing, _, _ := m.Offers[i].Load.Standing(circle); standing == fleet.Established {
			established++
		}
	}
	switch established {
	case 0:
		return "new"
	case len(m.Offers):
		return "established"
	}
	return fmt.Sprintf("established with %d of %d models", established, len(m.Offers))
}

// groupLimits reads a group and all of the member's limits for it from the form.
func groupLimits(v *visit) (api.GroupLimitChange, error) {
	limits, err := v.limits(true)
	return api.GroupLimitChange{Group: v.form.Get("group"), LimitChange: limits}, err
}

// decidedOn returns the confirmation message after an admin's decision about a machine.
func decidedOn(m api.GroupMachine) string {
	name := m.Machine + " of " + m.Owner
	switch m.Rule {
	case account.MachinePinned:
		return name + " is pinned: it is used before new machines in " + m.Group + "."
	case account.MachineExcluded:
		return name + " is excluded: within 5 seconds the members of " + m.Group +
			" can no longer use it through the group, and running calls are stopped."
	}
	return name + " is no longer pinned or excluded in " + m.Group + "."
}
