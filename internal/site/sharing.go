package site

import (
	"cmp"
	"encoding/base64"
	"html/template"
	"net/url"
	"strconv"
	"strings"

	"rsc.io/qr"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// numberLabels are the labels of the form fields that number reads.
var numberLabels = map[string]string{
	"uses": "How many people", "per_day": "Calls a day", "concurrent": "Calls at once", "slots": "Calls at once",
}

// number returns the integer in a form field; an empty field is 0, and a 0 is refused.
func number(form url.Values, name string) (int, error) {
	text := strings.TrimSpace(form.Get(name))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > api.MaxLimit {
		return 0, fault.New(fault.InvalidRequest, "%s is a whole number from 1 to %s, or empty",
			numberLabels[name], api.Number(api.MaxLimit)).WithParam(name)
	}
	return n, nil
}

// limits reads the limits from a form. If the form changes existing limits (ends), an
// empty field removes its limit; otherwise it sets none.
func (v *visit) limits(ends bool) (api.LimitChange, error) {
	var c api.LimitChange
	models := typedModels(v.form)
	c.Models = limitField(models, models == nil, ends)
	rows, err := readRows(v.form)
	if err != nil {
		return c, err
	}
	hours := cmp.Or(strings.TrimSpace(v.form.Get("hours")), rows)
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
	who, err := s.people(v)
	shared := func(p person) bool { return p.Member == with && p.Share != nil }
	p, err := pick(who.all, err, shared, "you do not share with %.80q", with)
	if err != nil {
		return question{}, err
	}
	q := question{
		Title: "Stop sharing with " + with + "?", Button: "Stop sharing", Action: "/sharing/end",
		Back: memberAddress(with), Field: "with", Value: with,
	}
	for _, idle := range p.Idle {
		q.Cuts = append(q.Cuts,
			with+" can still use your machines through the group "+idle.Group+": "+limitWords(idle.Limits)+".")
	}
	if len(p.Idle) == 0 {
		q.Cuts = append(q.Cuts, with+" can no longer use your machines, within 5 seconds.")
	}
	q.Cuts = append(q.Cuts, cutWords(s.CutByShareEnd(v.me.ID, p.Share.WithID)),
		"What "+with+" shares with you does not change. You can share again at any time.")
	return q, nil
}

// endGroupQuestion returns the confirmation page for ending a group.
func (s *Site) endGroupQuestion(v *visit) (question, error) {
	name := v.URL.Query().Get("group")
	groups, err := call(s, v, api.ListGroups, api.None{})
	led := func(g api.Group) bool { return g.Name == name && g.Admin }
	g, err := pick(groups.Data, err, led, "you are not an admin of a group named %.80q", name)
	return question{
		Title: "Delete the group " + name + "?", Button: "Delete group", Action: "/groups/end",
		Back: groupAddress(name), Field: "group", Value: name,
		Cuts: []string{
			cutWords(s.CutByGroupEnd(g.ID)),
			"Its members can no longer use each other's machines through it. Shares between them stay.",
			"This cannot be undone.",
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
	data, err := s.invitesData(v) // first, so that an invite is only created if it can be shown
	if err != nil {
		return reply{}, err
	}
	made, err := call(s, v, api.CreateInvite,
		api.NewInvite{Uses: uses, Expires: v.form.Get("expires"), LimitChange: limits})
	if err != nil {
		return reply{}, err
	}
	v.form = nil // clears the form
	made.Code = s.inviteLink(made.Code)
	data, err = s.invitesData(v)
	data.Made = &made
	return reply{page: "access-invites", title: "Invites", data: data}, err
}

// acceptInvite handles POST /sharing/accept. A member who used the invite up is redirected as
// after accepting it.
func (s *Site) acceptInvite(v *visit) (reply, error) {
	code := api.InviteIn(v.form.Get("code"))
	made, err := call(s, v, api.AcceptInvite, api.InviteCode{Code: code})
	if err != nil && fault.Of(err).Code == fault.NotFound {
		if seen, unknown := s.SeeInvite(v.Context(), code); unknown == nil {
			if accepted, _ := s.sharesAlready(v, seen.Owner); accepted {
				return s.invited(v, v.me, seen.Owner, forYouPath), nil
			}
		}
	}
	if err != nil {
		return reply{}, err
	}
	if made.State != "accepted" {
		return reply{to: forYouPath, done: made.Owner +
			" already shares with you: nothing changed, and the invite was not used."}, nil
	}
	return s.invited(v, v.me, made.Owner, forYouPath), nil
}

// qrCode returns a data URL with a QR code of the text, or "" if the text is too long.
func qrCode(text string) template.URL {
	code, err := qr.Encode(text, qr.M)
	if err != nil {
		return ""
	}
	return template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(code.PNG()))
}
