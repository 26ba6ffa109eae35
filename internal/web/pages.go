package web

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/fault"
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

// machinesData is what /machines shows.
type machinesData struct {
	Machines []Machine
	Groups   []Group // that the member is in
}

func (s *Site) machinesPage(v *visit) (reply, error) {
	machines, err := ask[list[Machine]](s, v, "GET", "/api/machines", nil, nil)
	if err != nil {
		return reply{}, err
	}
	groups, err := ask[list[Group]](s, v, "GET", "/api/groups", nil, nil)
	in := slices.DeleteFunc(groups.Data, func(g Group) bool { return !g.In })
	return reply{page: "machines", title: "Machines", data: machinesData{machines.Data, in}}, err
}

// onMachine does what a form of /machines asks of the machine it names.
func (s *Site) onMachine(v *visit, done, method, path string, body any) (reply, error) {
	return s.did(v, done, "/machines", method, "/api/machines/{machine}"+path, map[string]string{"machine": v.form.Get("machine")}, body)
}

// pauseMachine is POST /machines/pause machine, for ("", "30m", "2h", "8h").
func (s *Site) pauseMachine(v *visit) (reply, error) {
	paused := true
	change := Control{Paused: &paused}
	if length := v.form.Get("for"); length != "" {
		d, err := time.ParseDuration(length)
		if err != nil || d <= 0 {
			return reply{}, fault.New(fault.InvalidRequest, "a pause lasts a time like 2h, not %.20q", length).WithParam("for")
		}
		until := time.Now().Add(d).UTC().Truncate(time.Second)
		change.Until = &until
	}
	return s.onMachine(v, "The machine pauses; what runs on it finishes.", "POST", "/control", change)
}

func (s *Site) resumeMachine(v *visit) (reply, error) {
	paused := false
	return s.onMachine(v, "The machine takes calls again.", "POST", "/control", Control{Paused: &paused})
}

func (s *Site) setHours(v *visit) (reply, error) {
	hours, zone := strings.TrimSpace(v.form.Get("hours")), strings.TrimSpace(v.form.Get("timezone"))
	change := Control{Hours: &hours}
	if zone != "" {
		change.Timezone = &zone
	}
	return s.onMachine(v, "The sharing hours are set.", "POST", "/control", change)
}

func (s *Site) rename(v *visit) (reply, error) {
	return s.onMachine(v, "The machine has its new name.", "POST", "/name", map[string]string{"name": strings.TrimSpace(v.form.Get("name"))})
}

func (s *Site) endMachine(v *visit) (reply, error) {
	return s.onMachine(v, "The machine is revoked: its line and what runs on it end within 5 seconds.", "DELETE", "", nil)
}

func (s *Site) keepMachineOut(v *visit) (reply, error) {
	body := map[string]any{"undo": v.form.Get("undo") != ""}
	if group := v.form.Get("group"); group != "" {
		body["group"] = group
	} else {
		body["all"] = true
	}
	return s.onMachine(v, "Done: it holds within 5 seconds.", "POST", "/keep-out", body)
}

// sharingData is what /sharing shows.
type sharingData struct {
	Given, Received []Share
	Invites         []Invite
	Link            string // of the invite just made, shown this once
}

func (s *Site) sharingData(v *visit) (sharingData, error) {
	shares, err := ask[list[Share]](s, v, "GET", "/api/shares", nil, nil)
	if err != nil {
		return sharingData{}, err
	}
	invites, err := ask[list[Invite]](s, v, "GET", "/api/invites", nil, nil)
	data := sharingData{Invites: invites.Data}
	slices.Reverse(data.Invites)
	for _, share := range shares.Data {
		if share.Direction == "given" {
			data.Given = append(data.Given, share)
		} else {
			data.Received = append(data.Received, share)
		}
	}
	return data, err
}

func (s *Site) sharingPage(v *visit) (reply, error) {
	data, err := s.sharingData(v)
	return reply{page: "sharing", title: "Sharing", data: data}, err
}

// whole reads a field that holds a whole number; empty is 0.
func (v *visit) whole(name string) (int, error) {
	text := strings.TrimSpace(v.form.Get(name))
	n, err := strconv.Atoi(cmp.Or(text, "0"))
	if err != nil {
		return 0, fault.New(fault.InvalidRequest, "%s is a whole number, not %.20q", name, text).WithParam(name)
	}
	return n, nil
}

func (s *Site) share(v *visit) (reply, error) {
	body := struct {
		With string `json:"with"`
		Limits
	}{With: strings.TrimSpace(v.form.Get("with"))}
	body.Hours, body.Models = strings.TrimSpace(v.form.Get("hours")), []string{}
	for line := range strings.Lines(v.form.Get("models")) { // ids hold commas and spaces, but no line ends
		// As it was written: what is no id is refused, never made into one.
		if id := strings.TrimRight(line, "\r\n"); id != "" {
			body.Models = append(body.Models, id)
		}
	}
	var err error
	if body.Concurrent, err = v.whole("concurrent"); err != nil {
		return reply{}, err
	}
	if body.PerDay, err = v.whole("per_day"); err != nil {
		return reply{}, err
	}
	return s.did(v, "Shared with "+body.With+".", "/sharing", "POST", "/api/shares", nil, body)
}

func (s *Site) endShare(v *visit) (reply, error) {
	with := v.form.Get("with")
	return s.did(v, "The share with "+with+" has ended: what "+with+" runs on your machines stops within 5 seconds.", "/sharing",
		"DELETE", "/api/shares/{member}", map[string]string{"member": with}, nil)
}

// makeInvite is POST /sharing/invite: the answer is the only one that shows the
// invite's link.
func (s *Site) makeInvite(v *visit) (reply, error) {
	uses, err := v.whole("uses")
	if err != nil {
		return reply{}, err
	}
	made, err := ask[Invite](s, v, "POST", "/api/invites", nil, map[string]any{"uses": uses, "expires": v.form.Get("expires")})
	if err != nil {
		return reply{}, err
	}
	data, err := s.sharingData(v)
	data.Link = s.inviteLink(made.Code)
	return reply{page: "sharing", title: "Sharing", data: data}, err
}

func (s *Site) endInvite(v *visit) (reply, error) {
	return s.did(v, "The invite is revoked; shares that it made stay.", "/sharing",
		"DELETE", "/api/invites/{invite}", map[string]string{"invite": v.form.Get("invite")}, nil)
}

func (s *Site) accept(v *visit) (reply, error) {
	return s.did(v, "Accepted: these machines are yours to use now.", "/sharing",
		"POST", "/api/invites/accept", nil, map[string]string{"code": inviteIn(v.form.Get("code"))})
}

func (s *Site) groupsPage(v *visit) (reply, error) {
	groups, err := ask[list[Group]](s, v, "GET", "/api/groups", nil, nil)
	return reply{page: "groups", title: "Groups", data: groups.Data}, err
}

// inGroup does what a form of /groups asks of the group it names.
func (s *Site) inGroup(v *visit, done, method, path string, body any) (reply, error) {
	values := map[string]string{"group": v.form.Get("group"), "member": v.form.Get("member")}
	return s.did(v, done, "/groups", method, "/api/groups/{group}"+path, values, body)
}

func (s *Site) makeGroup(v *visit) (reply, error) {
	body := map[string]string{"name": strings.TrimSpace(v.form.Get("name")), "kind": v.form.Get("kind")}
	return s.did(v, "The group is there, and you are its admin.", "/groups", "POST", "/api/groups", nil, body)
}

func (s *Site) join(v *visit) (reply, error) {
	return s.inGroup(v, "You are in the group.", "POST", "/join", nil)
}

func (s *Site) leave(v *visit) (reply, error) {
	return s.inGroup(v, "You left: neither side reaches the other's machines through it within 5 seconds.", "POST", "/leave", nil)
}

func (s *Site) dissolve(v *visit) (reply, error) {
	return s.inGroup(v, "The group has ended: nobody reaches machines through it within 5 seconds.", "DELETE", "", nil)
}

func (s *Site) addMember(v *visit) (reply, error) {
	return s.inGroup(v, "Added.", "POST", "/members", memberName{strings.TrimSpace(v.form.Get("member"))})
}

func (s *Site) removeMember(v *visit) (reply, error) {
	return s.inGroup(v, "Removed: it holds within 5 seconds.", "DELETE", "/members/{member}", nil)
}

func (s *Site) promote(v *visit) (reply, error) {
	return s.inGroup(v, "There is another admin.", "POST", "/admins", memberName{v.form.Get("member")})
}

// modelsData is what /models shows.
type modelsData struct {
	Models []Model
	Why    *Why // for the model that was asked about
}

func (s *Site) modelsPage(v *visit) (reply, error) {
	models, err := ask[list[Model]](s, v, "GET", "/api/models", nil, nil)
	if err != nil {
		return reply{}, err
	}
	data := modelsData{Models: models.Data}
	if v.URL.Query().Get("model") != "" {
		why, err := ask[Why](s, v, "GET", "/api/why", nil, nil)
		if err != nil {
			return reply{page: "models", title: "Models", data: data}, err
		}
		data.Why = &why
	}
	return reply{page: "models", title: "Models", data: data}, nil
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
