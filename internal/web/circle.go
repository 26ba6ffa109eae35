package web

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/fault"
)

// The pages of who shares what with whom: machines, shares, groups, models.

// machinesData is what /machines shows.
type machinesData struct {
	Machines []machineRow
	Live     scene
}

// machineRow is one machine on /machines.
type machineRow struct {
	Machine
	Week   week
	Rows   []hoursRow
	Asked  bool // a form of it was refused just now
	Serves []groupRow
}

// groupRow says what a machine is to a group of its owner's.
type groupRow struct {
	Name    string
	KeptOut bool // by its owner, here
	Beyond  bool // its own configuration leaves the group out
	Limits  *Limits
}

func (s *Site) machinesPage(v *visit) (reply, error) {
	now := time.Now()
	machines, err := ask[list[Machine]](s, v, "GET", "/api/machines", nil, nil)
	if err != nil {
		return reply{}, err
	}
	groups, err := ask[list[Group]](s, v, "GET", "/api/groups", nil, nil)
	data := machinesData{Live: machinesScene(s, s.glance(now), v.caller())}
	for _, m := range machines.Data {
		row := machineRow{Machine: m, Rows: hoursRows(m.Hours), Asked: v.form.Get("machine") == m.ID}
		if !m.LastSeen.IsZero() {
			row.Week = drawWeek(m.Hours, m.Timezone, now)
		}
		for _, g := range groups.Data {
			if g.In {
				row.Serves = append(row.Serves, groupRow{g.Name, slices.Contains(g.KeptOut, m.Name), m.Groups != nil && !slices.Contains(m.Groups, g.Name), g.Limits})
			}
		}
		data.Machines = append(data.Machines, row)
	}
	return reply{page: "machines", title: "Machines", data: data}, err
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

// setHours is POST /machines/hours machine, timezone, and the rows of the editor.
func (s *Site) setHours(v *visit) (reply, error) {
	hours, zone := readRows(v.form), strings.TrimSpace(v.form.Get("timezone"))
	change := Control{Hours: &hours}
	if zone != "" {
		change.Timezone = &zone
	}
	return s.onMachine(v, "The machine has its new hours, and this page shows them as soon as the machine tells; what runs now finishes.", "POST", "/control", change)
}

// setSlots is POST /machines/slots machine, slots.
func (s *Site) setSlots(v *visit) (reply, error) {
	slots, err := v.whole("slots")
	if err != nil {
		return reply{}, err
	}
	return s.onMachine(v, "The limit is set.", "POST", "/control", Control{Slots: &slots})
}

func (s *Site) rename(v *visit) (reply, error) {
	return s.onMachine(v, "The machine has its new name.", "POST", "/name", map[string]string{"name": strings.TrimSpace(v.form.Get("name"))})
}

func (s *Site) endMachine(v *visit) (reply, error) {
	values := map[string]string{"machine": v.form.Get("machine")}
	act, err := ask[machineAct](s, v, "DELETE", "/api/machines/{machine}", values, nil)
	return reply{to: "/machines", done: "The machine " + act.Name + " is revoked. " + cutWords(act.Cut)}, err
}

func (s *Site) keepMachineOut(v *visit) (reply, error) {
	body := map[string]any{"undo": v.form.Get("undo") != ""}
	if group := v.form.Get("group"); group != "" {
		body["group"] = group
	} else {
		body["all"] = true
	}
	values := map[string]string{"machine": v.form.Get("machine")}
	act, err := ask[keptOut](s, v, "POST", "/api/machines/{machine}/keep-out", values, body)
	done := act.Machine + " is kept out of " + cmp.Or(act.Group, "every group") + ". " + cutWords(act.Cut)
	if !act.KeptOut {
		done = act.Machine + " may serve " + cmp.Or(act.Group, "your groups") + " again, within 5 seconds."
	}
	return reply{to: "/machines", done: done}, err
}

// sharingData is what /sharing shows.
type sharingData struct {
	Given, Received []Share
	Groups          []Group // that have other members, too
	Invites         []Invite
	Link            string   // of the invite just made, shown this once
	Warnings        []string // about its limits
	Live            scene
}

func (s *Site) sharingData(v *visit) (sharingData, error) {
	shares, err := ask[list[Share]](s, v, "GET", "/api/shares", nil, nil)
	if err != nil {
		return sharingData{}, err
	}
	invites, err := ask[list[Invite]](s, v, "GET", "/api/invites", nil, nil)
	if err != nil {
		return sharingData{}, err
	}
	groups, err := ask[list[Group]](s, v, "GET", "/api/groups", nil, nil)
	data := sharingData{Invites: invites.Data, Live: sharingScene(s, s.glance(time.Now()), v.caller())}
	slices.Reverse(data.Invites)
	for _, g := range groups.Data {
		if g.In && g.Size > 1 {
			data.Groups = append(data.Groups, g)
		}
	}
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

// limits puts the limits of a form into a body. In a form of limits that are there
// (ends), a field that is empty ends its limit; elsewhere it says nothing.
func (v *visit) limits(body map[string]any, ends bool) error {
	var models []string
	for line := range strings.Lines(v.form.Get("models")) { // ids hold commas and spaces, but no line ends
		// As it was written: what is no id is refused, never made into one.
		if id := strings.TrimRight(line, "\r\n"); id != "" {
			models = append(models, id)
		}
	}
	if models != nil {
		body["models"] = models
	} else if ends {
		body["models"] = nil
	}
	for _, name := range []string{"hours", "concurrent", "per_day"} {
		switch text := strings.TrimSpace(v.form.Get(name)); {
		case text == "" && ends:
			body[name] = nil
		case text == "":
		case name == "hours":
			body[name] = text
		default:
			n, err := v.whole(name)
			if err != nil {
				return err
			}
			body[name] = n
		}
	}
	return nil
}

// share is POST /sharing/share with, and the limits that are new or change.
func (s *Site) share(v *visit) (reply, error) { return s.putShare(v, "Shared with ", false) }

// limitShare is POST /sharing/limits with, and all limits of that share.
func (s *Site) limitShare(v *visit) (reply, error) {
	return s.putShare(v, "These are now the limits of the share with ", true)
}

func (s *Site) putShare(v *visit, done string, ends bool) (reply, error) {
	body := map[string]any{"with": strings.TrimSpace(v.form.Get("with"))}
	if err := v.limits(body, ends); err != nil {
		return reply{}, err
	}
	made, err := ask[Share](s, v, "POST", "/api/shares", nil, body)
	return reply{to: "/sharing", done: done + made.With + "." + afterLimits(made.Cut, made.Warnings)}, err
}

// limitGroup is POST /groups/limit group, and all the member's limits for it.
func (s *Site) limitGroup(v *visit) (reply, error) {
	body := map[string]any{}
	if err := v.limits(body, true); err != nil {
		return reply{}, err
	}
	made, err := ask[GroupLimits](s, v, "POST", "/api/groups/{group}/limits", map[string]string{"group": v.form.Get("group")}, body)
	return reply{to: "/groups", done: "These are now your limits for " + made.Group + "." + afterLimits(made.Cut, made.Warnings)}, err
}

// afterLimits says what a change of limits cuts, and what of it names nothing.
func afterLimits(cut int, warnings []string) string {
	text := ""
	if cut > 0 {
		text = " " + cutWords(cut)
	}
	for _, w := range warnings {
		text += " Note: " + w + "."
	}
	return strings.ReplaceAll(text, "?.", "?")
}

func (s *Site) endShare(v *visit) (reply, error) {
	act, err := ask[endedShare](s, v, "DELETE", "/api/shares/{member}", map[string]string{"member": v.form.Get("with")}, nil)
	return reply{to: "/sharing", done: "The share with " + act.With + " has ended. " + cutWords(act.Cut)}, err
}

// makeInvite is POST /sharing/invite: the answer is the only one that shows the
// invite's link.
func (s *Site) makeInvite(v *visit) (reply, error) {
	uses, err := v.whole("uses")
	if err != nil {
		return reply{}, err
	}
	body := map[string]any{"uses": uses, "expires": v.form.Get("expires")}
	if err := v.limits(body, false); err != nil {
		return reply{}, err
	}
	made, err := ask[Invite](s, v, "POST", "/api/invites", nil, body)
	if err != nil {
		return reply{}, err
	}
	v.form = nil // the form below begins anew
	data, err := s.sharingData(v)
	data.Link, data.Warnings = s.inviteLink(made.Code), made.Warnings
	return reply{page: "sharing", title: "Sharing", data: data}, err
}

func (s *Site) endInvite(v *visit) (reply, error) {
	return s.did(v, "The invite is revoked: nobody can accept it any more. It cuts no call; shares that it made stay until you end them.", "/sharing",
		"DELETE", "/api/invites/{invite}", map[string]string{"invite": v.form.Get("invite")}, nil)
}

func (s *Site) accept(v *visit) (reply, error) {
	made, err := ask[accepted](s, v, "POST", "/api/invites/accept", nil, map[string]string{"code": inviteIn(v.form.Get("code"))})
	done := "Accepted: these machines are yours to use now."
	if made.State != "accepted" {
		done = made.Owner + " shares with you already: that share and its limits are as they were, and the invite is not used."
	}
	return reply{to: "/sharing", done: done}, err
}

// groupsData is what /groups shows.
type groupsData struct {
	Invited []Group // which the member may accept or decline
	Groups  []Group // the others
	Joins   []Notice
	Newest  string // the time of the newest of Joins
}

func (s *Site) groupsPage(v *visit) (reply, error) {
	groups, err := ask[list[Group]](s, v, "GET", "/api/groups", nil, nil)
	if err != nil {
		return reply{}, err
	}
	notices, err := ask[list[Notice]](s, v, "GET", "/api/notices", nil, nil)
	var data groupsData
	for _, g := range groups.Data {
		if g.Invited != nil {
			data.Invited = append(data.Invited, g)
		} else {
			data.Groups = append(data.Groups, g)
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
	return reply{page: "groups", title: "Groups", data: data}, err
}

// inGroup does what a form of /groups asks of the group it names.
func (s *Site) inGroup(v *visit, done, method, path string, body any) (reply, error) {
	act, err := s.groupAct(v, method, path, body)
	if act.State == "removed" {
		done += " " + cutWords(act.Cut)
	}
	return reply{to: "/groups", done: done}, err
}

func (s *Site) groupAct(v *visit, method, path string, body any) (groupAct, error) {
	values := map[string]string{"group": v.form.Get("group"), "member": v.form.Get("member")}
	return ask[groupAct](s, v, method, "/api/groups/{group}"+path, values, body)
}

func (s *Site) makeGroup(v *visit) (reply, error) {
	body := map[string]string{"name": strings.TrimSpace(v.form.Get("name")), "kind": v.form.Get("kind")}
	return s.did(v, "The group is there, and you are its admin.", "/groups", "POST", "/api/groups", nil, body)
}

func (s *Site) join(v *visit) (reply, error) {
	return s.inGroup(v, "You are in the group.", "POST", "/join", nil)
}

func (s *Site) leave(v *visit) (reply, error) {
	act, err := s.groupAct(v, "POST", "/leave", nil)
	return reply{to: "/groups", done: "You left " + act.Group + ": neither side reaches the other's machines through it. " + cutWords(act.Cut)}, err
}

func (s *Site) dissolve(v *visit) (reply, error) {
	act, err := s.groupAct(v, "DELETE", "", nil)
	return reply{to: "/groups", done: "The group " + act.Group + " has ended: nobody reaches machines through it. " + cutWords(act.Cut)}, err
}

// acceptGroup is POST /groups/accept group.
func (s *Site) acceptGroup(v *visit) (reply, error) {
	return s.inGroup(v, "You are in the group: its members reach your machines, and you reach theirs.", "POST", "/accept", nil)
}

// declineGroup is POST /groups/decline group.
func (s *Site) declineGroup(v *visit) (reply, error) {
	return s.inGroup(v, "Declined: nothing is shared.", "POST", "/decline", nil)
}

// inviteMember is POST /groups/invite group, member.
func (s *Site) inviteMember(v *visit) (reply, error) {
	act, err := s.groupAct(v, "POST", "/invitations", memberName{strings.TrimSpace(v.form.Get("member"))})
	done := act.Member + " is invited, and is in the group after accepting."
	if act.State == "joined" {
		done = act.Member + " is in the group already."
	}
	return reply{to: "/groups", done: done}, err
}

// withdraw is POST /groups/withdraw group, member: the member's invitation ends.
func (s *Site) withdraw(v *visit) (reply, error) {
	act, err := s.groupAct(v, "DELETE", "/members/{member}", nil)
	return reply{to: "/groups", done: "The invitation of " + act.Member + " is withdrawn."}, err
}

// seeNotices is POST /groups/seen until.
func (s *Site) seeNotices(v *visit) (reply, error) {
	until, err := time.Parse(time.RFC3339Nano, v.form.Get("until"))
	if err != nil {
		return reply{}, fault.New(fault.InvalidRequest, "the form does not say up to when").WithParam("until")
	}
	return s.did(v, "Marked as seen.", "/groups", "POST", "/api/notices/seen", nil, seenUntil{until})
}

func (s *Site) removeMember(v *visit) (reply, error) {
	return s.inGroup(v, "Removed.", "DELETE", "/members/{member}", nil)
}

func (s *Site) promote(v *visit) (reply, error) {
	return s.inGroup(v, "There is another admin.", "POST", "/admins", memberName{v.form.Get("member")})
}

func (s *Site) demote(v *visit) (reply, error) {
	return s.inGroup(v, "That member is no admin any more, and stays in the group.", "DELETE", "/admins/{member}", nil)
}

// modelsData is what /models shows.
type modelsData struct {
	Models []modelRow
	Live   scene
	Why    *Why // for the model that was asked about
}

func (s *Site) modelsPage(v *visit) (reply, error) {
	models, err := ask[list[Model]](s, v, "GET", "/api/models", nil, nil)
	if err != nil {
		return reply{}, err
	}
	data := modelsData{Models: modelRows(models.Data), Live: sceneOf(models.Data)}
	if v.URL.Query().Get("model") != "" {
		why, err := ask[Why](s, v, "GET", "/api/why", nil, nil)
		if err != nil {
			return reply{page: "models", title: "Models", data: data}, err
		}
		data.Why = &why
	}
	return reply{page: "models", title: "Models", data: data}, nil
}
