package site

import (
	"cmp"
	"encoding/base64"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"rsc.io/qr"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// accessData is the content of /access: who reaches the member's machines and whose
// machines the member reaches, by shares and groups, and the forms to change it.
type accessData struct {
	Given    []accessLine
	Disabled []api.Share // given to disabled members, who cannot use them
	Received []receivedLine
	Machines int // number of the member's own
	Groups   groupsData
	Invites  []api.Invite
	Link     string   // the link of a new invite, shown only once
	Warnings []string // about the limits of the new invite
	Live     liveContent
	Known    []string // members who are named on the page
}

// accessLine is one row about who reaches the member's machines.
type accessLine struct {
	accessRow
	Key      string     // prefix of the element ids in it
	Share    *api.Share // nil: only by groups
	First    bool       // the first of the member's rows, which has the form
	Today    int64      // calls since midnight UTC
	Warnings []accessWarning
	Open     bool // the form is open
}

// receivedLine is one row about whose machines the member reaches.
type receivedLine struct {
	usableRow
	Key string
}

func (s *Site) accessData(v *visit) (accessData, error) {
	shares, noShares := call(s, v, api.ListShares, api.None{})
	invites, noInvites := call(s, v, api.ListInvites, api.None{})
	machines, noMachines := call(s, v, api.ListMachines, api.None{})
	usage, noUsage := call(s, v, api.GetUsage, api.Span{Days: "1"})
	groups, all, noGroups := s.groupsData(v)
	if err := cmp.Or(noShares, noInvites, noMachines, noUsage, noGroups); err != nil {
		return accessData{}, err
	}
	now := s.DB.Now()
	data := accessData{Machines: len(machines.Data), Groups: groups, Invites: invites.Data,
		Live: accessContent(s, s.hubView(now), v.caller())}
	slices.Reverse(data.Invites)
	var given, received []api.Share
	for _, share := range shares.Data {
		switch {
		case share.Direction != "given" && !share.Disabled:
			received = append(received, share)
		case share.Direction == "given" && share.Disabled:
			data.Disabled = append(data.Disabled, share)
		case share.Direction == "given":
			given = append(given, share)
		}
	}
	today := map[string]int64{}
	for _, m := range usage.On.Members {
		today[m.Member] = m.Calls
	}
	last := ""
	for _, row := range accessList(v.me.Name, machines.Data, given, all) {
		line := accessLine{accessRow: row, Key: nameKey(row.Member), First: row.Member != last,
			Today: today[row.Member], Open: v.URL.Query().Get("member") == row.Member}
		if i := slices.IndexFunc(given, func(share api.Share) bool { return share.With == row.Member }); i >= 0 {
			line.Share = &given[i]
		}
		line.Warnings, last = row.warnings(), row.Member
		s.countUses(v.caller().Member, line, all, now)
		data.Given = append(data.Given, line)
	}
	for _, row := range usableList(s.Snapshot(), v.caller().Member, received, now) {
		data.Received = append(data.Received, receivedLine{row, nameKey(row.Owner)})
		data.Known = append(data.Known, row.Owner)
	}
	for _, line := range data.Given {
		data.Known = append(data.Known, line.Member)
	}
	slices.Sort(data.Known)
	data.Known = slices.Compact(data.Known)
	return data, nil
}

// countUses sets, for each way of a line that has a daily limit, how many of today's
// calls count against it.
func (s *Site) countUses(owner fleet.MemberID, line accessLine, groups []api.Group, now time.Time) {
	snapshot := s.Snapshot()
	for i := range line.Ways {
		way := &line.Ways[i]
		if way.Limits.PerDay == nil {
			continue
		}
		var limits *fleet.Limits
		if way.Group == "" {
			with, id := fleet.MemberID(line.Share.WithID), fleet.ShareID(line.Share.ID)
			if share := snapshot.ShareOf(with, id); share != nil {
				limits = &share.Limits
			}
		} else if at := slices.IndexFunc(groups, func(g api.Group) bool { return g.Name == way.Group }); at >= 0 {
			if g := snapshot.Group(fleet.GroupID(groups[at].ID)); g != nil {
				limits = g.Limits[owner]
			}
		}
		if limits != nil {
			way.Used = limits.Load.Started(now)
		}
	}
}

// number returns the integer in a form field; an empty field is 0.
func number(form url.Values, name string) (int, error) {
	text := strings.TrimSpace(form.Get(name))
	n, err := strconv.Atoi(cmp.Or(text, "0"))
	if err != nil {
		return 0, fault.New(fault.InvalidRequest, "%s must be a whole number, not %.20q", name, text).WithParam(name)
	}
	return n, nil
}

// limits reads the limits from a form. If the form changes existing limits (ends), an
// empty field removes its limit; otherwise it sets none.
func (v *visit) limits(ends bool) (api.LimitChange, error) {
	var c api.LimitChange
	var models []string
	for line := range strings.Lines(v.form.Get("models")) { // ids can contain commas and spaces, but no line breaks
		// The text is not normalized: an invalid id is refused, never changed into a
		// valid one.
		if id := strings.TrimRight(line, "\r\n"); id != "" {
			models = append(models, id)
		}
	}
	c.Models = limitField(models, models == nil, ends)
	hours := strings.TrimSpace(v.form.Get("hours"))
	c.Hours = limitField(hours, hours == "", ends)
	for _, field := range []struct {
		name string
		into *api.Given[int]
	}{{"concurrent", &c.Concurrent}, {"per_day", &c.PerDay}} {
		n, err := number(v.form, field.name)
		if err != nil {
			return c, err
		}
		*field.into = limitField(n, strings.TrimSpace(v.form.Get(field.name)) == "", ends)
	}
	return c, nil
}

func limitField[T any](value T, empty, ends bool) api.Given[T] {
	switch {
	case !empty:
		return api.Give(value)
	case ends:
		return api.End[T]()
	}
	return api.Given[T]{}
}

// newShare reads a member and the limits of the share from the form. With ends, they are
// all limits of the share; without, only those that are new or change.
func newShare(ends bool) func(*visit) (api.NewShare, error) {
	return func(v *visit) (api.NewShare, error) {
		limits, err := v.limits(ends)
		return api.NewShare{With: strings.TrimSpace(v.form.Get("with")), LimitChange: limits}, err
	}
}

// shareToEnd reads the member of a share from the form.
func shareToEnd(v *visit) (api.MemberName, error) {
	return api.MemberName{Member: v.form.Get("with")}, nil
}

// endShareQuestion returns the confirmation page for ending a share.
func (s *Site) endShareQuestion(v *visit) (question, error) {
	with := v.URL.Query().Get("with")
	data, err := s.accessData(v)
	named := func(line accessLine) bool { return line.Member == with && line.Share != nil }
	line, err := pick(data.Given, err, named, "you do not share with %.80q", with)
	if err != nil {
		return question{}, err
	}
	q := question{
		Title: "End the share with " + with + "?", Button: "End the share", Action: "/sharing/end", Back: accessPath,
		Field: "with", Value: with,
	}
	for _, idle := range line.Idle {
		q.Cuts = append(q.Cuts,
			with+" can use your machines through the group "+idle.Group+" all the same: "+limitWords(idle.Limits)+".")
	}
	if len(line.Idle) == 0 {
		q.Cuts = append(q.Cuts, with+" cannot use your machines any more, within 5 seconds.")
	}
	q.Cuts = append(q.Cuts, cutWords(s.CutByShareEnd(v.me.ID, line.Share.WithID)),
		"What "+with+" shares with you stays. You can share again at any time.")
	return q, nil
}

// endGroupQuestion returns the confirmation page for ending a group.
func (s *Site) endGroupQuestion(v *visit) (question, error) {
	name := v.URL.Query().Get("group")
	groups, err := call(s, v, api.ListGroups, api.None{})
	led := func(g api.Group) bool { return g.Name == name && g.Admin }
	g, err := pick(groups.Data, err, led, "you are not an admin of a group named %.80q", name)
	return question{
		Title: "End the group " + name + "?", Button: "End the group", Action: "/groups/end", Back: accessPath,
		Field: "group", Value: name,
		Cuts: []string{
			cutWords(s.CutByGroupEnd(g.ID)),
			"Its members can no longer use each other's machines through it. Shares between them stay.",
			"It cannot be brought back: a new group begins without members.",
		},
	}, err
}

// afterLimits returns the end of the confirmation message for new limits: how many calls
// it cut off, and warnings.
func afterLimits(cut int, warnings []string) string {
	text := "."
	if cut > 0 {
		text += " " + cutWords(cut)
	}
	for _, w := range warnings {
		text += " Note: " + w + "."
	}
	return strings.ReplaceAll(text, "?.", "?")
}

// makeInvite handles POST /sharing/invite. Only its response shows the invite's link.
func (s *Site) makeInvite(v *visit) (reply, error) {
	uses, err := number(v.form, "uses")
	if err != nil {
		return reply{}, err
	}
	limits, err := v.limits(false)
	if err != nil {
		return reply{}, err
	}
	data, err := s.accessData(v) // first, so that an invite is only created if it can be shown
	if err != nil {
		return reply{}, err
	}
	made, err := call(s, v, api.CreateInvite,
		api.NewInvite{Uses: uses, Expires: v.form.Get("expires"), LimitChange: limits})
	if err != nil {
		return reply{}, err
	}
	v.form = nil // clears the form
	data.Invites = append([]api.Invite{made}, data.Invites...)
	data.Link, data.Warnings = s.inviteLink(made.Code), made.Warnings
	return reply{page: "access", title: "Access", data: data}, nil
}

// acceptInvite handles POST /sharing/accept.
func (s *Site) acceptInvite(v *visit) (reply, error) {
	made, err := call(s, v, api.AcceptInvite, api.InviteCode{Code: api.InviteIn(v.form.Get("code"))})
	if err != nil {
		return reply{}, err
	}
	if made.State != "accepted" {
		return reply{to: accessPath, done: made.Owner +
			" shares with you already: that share and its limits are as they were, and the invite is not used."}, nil
	}
	return s.invited(v, v.me, made.Owner, accessPath), nil
}

// qrCode returns a data URL with a QR code of the text, or "" if the text is too long.
func qrCode(text string) template.URL {
	code, err := qr.Encode(text, qr.M)
	if err != nil {
		return ""
	}
	return template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(code.PNG()))
}
