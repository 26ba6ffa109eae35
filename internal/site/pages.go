package site

import (
	"net/url"
	"strings"

	"github.com/kith/kith/internal/api"
)

// homeData is what / shows to who is signed in: how far they have come.
type homeData struct {
	Keys, Machines, Online, Models int
}

func (s *Site) home(v *visit) (reply, error) {
	if v.me.ID == "" {
		return reply{page: "start", title: "Welcome"}, nil
	}
	keys, err := call(s, v, api.ListKeys, api.None{})
	if err != nil {
		return reply{}, err
	}
	machines, err := call(s, v, api.ListMachines, api.None{})
	if err != nil {
		return reply{}, err
	}
	models, err := call(s, v, api.ListModels, api.None{})
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
	return reply{page: "home", title: "Home", data: data}, err
}

// requestsPage is GET /requests[?before=PLACE], or ?id= of one request, as an
// answer names it.
func (s *Site) requestsPage(v *visit) (reply, error) {
	if id := strings.TrimSpace(v.URL.Query().Get("id")); id != "" {
		return reply{to: "/requests/" + url.PathEscape(id)}, nil
	}
	requests, err := call(s, v, api.ListRequests, api.Page{Before: v.URL.Query().Get("before")})
	return reply{page: "requests", title: "Requests", data: requests}, err
}

func (s *Site) requestPage(v *visit) (reply, error) {
	out := reply{page: "request", title: "Request"}
	trace, err := call(s, v, api.ExplainCall, api.CallID{Call: v.PathValue("call")})
	if err == nil {
		out.data = trace
	}
	return out, err
}
