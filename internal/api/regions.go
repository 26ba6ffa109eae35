package api

import (
	"maps"
	"slices"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// Region is a region of the hubs that share the database (spec/api.md#regions), with the
// address of its hubs, without /v1.
type Region struct{ Name, Address string }

// AllRegions returns the regions for which members can create keys: this hub's region,
// then the others by name.
func (a *API) AllRegions() []Region {
	all := []Region{{a.Region, a.Base}}
	for _, name := range slices.Sorted(maps.Keys(a.Regions)) {
		all = append(all, Region{name, a.Regions[name].String()})
	}
	return all
}

// Address returns the address of a region's hubs, without /v1, or "" if it is unknown.
func (a *API) Address(region string) string {
	if region == a.Region {
		return a.Base
	}
	if at := a.Regions[region]; at != nil {
		return at.String()
	}
	return ""
}

// BaseURL returns the base URL for programs with a key of the region, or "" if it is
// unknown.
func (a *API) BaseURL(region string) string {
	if at := a.Address(region); at != "" {
		return at + "/v1"
	}
	return ""
}

// checkRegion rejects a region for which keys cannot be created here.
func (a *API) checkRegion(region string) *fault.Fault {
	if region == a.Region || a.Regions[region] != nil {
		return nil
	}
	var names []string
	for _, r := range a.AllRegions() {
		names = append(names, r.Name)
	}
	return fault.New(fault.InvalidRequest, "there is no region %.40q: a key is of %s", region, strings.Join(names, ", ")).WithParam("region")
}
