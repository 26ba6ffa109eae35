package web

import (
	"net/url"
	"strings"
)

// homeData is what / shows to who is signed in: how far they have come.
type homeData struct {
	Keys, Machines, Online, Models int
}

func (s *Site) home(v *visit) (reply, error) {
	if v.me.ID == "" {
		return reply{page: "start", title: "Welcome"}, nil
	}
	keys, err := ask[list[Key]](s, v, "GET", "/api/keys", nil, nil)
	if err != nil {
		return reply{}, err
	}
	machines, err := ask[list[Machine]](s, v, "GET", "/api/machines", nil, nil)
	if err != nil {
		return reply{}, err
	}
	models, err := ask[list[Model]](s, v, "GET", "/api/models", nil, nil)
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
// answer told it.
func (s *Site) requestsPage(v *visit) (reply, error) {
	if id := strings.TrimSpace(v.URL.Query().Get("id")); id != "" {
		return reply{to: "/requests/" + url.PathEscape(id)}, nil
	}
	requests, err := ask[Requests](s, v, "GET", "/api/requests", nil, nil)
	return reply{page: "requests", title: "Requests", data: requests}, err
}

func (s *Site) requestPage(v *visit) (reply, error) {
	told, err := ask[*Told](s, v, "GET", "/api/why/{call}", map[string]string{"call": v.values["call"]}, nil)
	return reply{page: "request", title: "Request", data: told}, err
}
