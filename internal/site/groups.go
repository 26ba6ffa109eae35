package site

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// groupsData is the part of /access about groups.
type groupsData struct {
	Invited []api.Group // invitations that the member may accept or decline
	Groups  []groupLine // groups with the member
	Others  []api.Group // open ones
}

// groupLine is one of the member's groups.
type groupLine struct {
	api.Group
	Open bool // its limits
	// Shown are the machines that the group's admins pinned or excluded and, for an
	// admin, all others that the group reaches.
	Shown []groupMachine
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

// groupsData returns the part of the page about groups, and all groups.
func (s *Site) groupsData(v *visit) (groupsData, []api.Group, error) {
	groups, noGroups := call(s, v, api.ListGroups, api.None{})
	var data groupsData
	for _, g := range groups.Data {
		switch {
		case g.Invited != nil:
			data.Invited = append(data.Invited, g)
		case g.In:
			data.Groups = append(data.Groups,
				groupLine{g, v.URL.Query().Get("group") == g.Name, groupMachines(s.Snapshot(), g)})
		default:
			data.Others = append(data.Others, g)
		}
	}
	return data, groups.Data, noGroups
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
		return name + " is pinned: it counts as established in " + m.Group + "."
	case account.MachineExcluded:
		return name + " is excluded: within 5 seconds the members of " + m.Group +
			" do not reach it by the group, and running calls are stopped."
	}
	return name + " is neither pinned nor excluded in " + m.Group + " any more."
}
