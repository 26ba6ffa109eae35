package site

import (
	"cmp"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// groupsData is what /access shows of groups.
type groupsData struct {
	Invited []api.Group // which the member may accept or decline
	Groups  []groupLine // that the member is in
	Others  []api.Group // open ones
	Joins   []api.Notice
	Newest  string // the time of the newest of Joins
}

// groupLine is one group of the member's.
type groupLine struct {
	api.Group
	Open bool // its limits
}

// groupsData returns what the page shows of groups, and all of them.
func (s *Site) groupsData(v *visit) (groupsData, []api.Group, error) {
	groups, noGroups := call(s, v, api.ListGroups, api.None{})
	notices, noNotices := call(s, v, api.ListNotices, api.None{})
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
	for _, n := range notices.Data {
		if n.Kind == "joined" {
			data.Joins = append(data.Joins, n)
		}
	}
	if len(data.Joins) > 0 {
		data.Newest = data.Joins[0].At.Format(time.RFC3339Nano)
	}
	return data, groups.Data, cmp.Or(noGroups, noNotices)
}

// groupLimits reads a group, and all the member's limits for it.
func groupLimits(v *visit) (api.GroupLimitChange, error) {
	limits, err := v.limits(true)
	return api.GroupLimitChange{Group: v.form.Get("group"), LimitChange: limits}, err
}

// seenUntil reads the time of the newest notice that the page showed.
func seenUntil(v *visit) (api.SeenUntil, error) {
	until, err := time.Parse(time.RFC3339Nano, v.form.Get("until"))
	if err != nil {
		err = fault.New(fault.InvalidRequest, "the form does not say up to when").WithParam("until")
	}
	return api.SeenUntil{Until: until}, err
}
