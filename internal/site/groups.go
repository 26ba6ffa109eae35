package site

import "github.com/kith/kith/internal/api"

// groupsData is what /access shows of groups.
type groupsData struct {
	Invited []api.Group // which the member may accept or decline
	Groups  []groupLine // that the member is in
	Others  []api.Group // open ones
}

// groupLine is one group of the member's.
type groupLine struct {
	api.Group
	Open bool // its limits
}

// groupsData returns what the page shows of groups, and all of them.
func (s *Site) groupsData(v *visit) (groupsData, []api.Group, error) {
	groups, noGroups := call(s, v, api.ListGroups, api.None{})
	var data groupsData
	for _, g := range groups.Data {
		switch {
		case g.Invited != nil:
			data.Invited = append(data.Invited, g)
		case g.In:
			data.Groups = append(data.Groups, groupLine{g, v.URL.Query().Get("group") == g.Name})
		default:
			data.Others = append(data.Others, g)
		}
	}
	return data, groups.Data, noGroups
}

// groupLimits reads a group, and all the member's limits for it.
func groupLimits(v *visit) (api.GroupLimitChange, error) {
	limits, err := v.limits(true)
	return api.GroupLimitChange{Group: v.form.Get("group"), LimitChange: limits}, err
}
