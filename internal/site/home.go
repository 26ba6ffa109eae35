package site

import (
	"cmp"

	"github.com/kith/kith/internal/api"
)

// homeData is what / shows to a member: how far they have come.
type homeData struct {
	Keys, Machines, Online, Models int
}

func (s *Site) home(v *visit) (reply, error) {
	if v.me.ID == "" {
		return reply{page: "start", title: "Welcome"}, nil
	}
	keys, noKeys := call(s, v, api.ListKeys, api.None{})
	machines, noMachines := call(s, v, api.ListMachines, api.None{})
	models, noModels := call(s, v, api.ListModels, api.None{})
	if err := cmp.Or(noKeys, noMachines, noModels); err != nil {
		return reply{}, err
	}
	data := homeData{Machines: len(machines.Data), Models: len(models.Data)}
	for _, k := range keys.Data {
		if k.State == "live" {
			data.Keys++
		}
	}
	for _, m := range machines.Data {
		if m.Online {
			data.Online++
		}
	}
	return reply{page: "home", title: "Home", data: data}, nil
}
