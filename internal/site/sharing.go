package site

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// sharingData is what /sharing shows.
type sharingData struct {
	Given, Received []api.Share
	Groups          []api.Group // with other members
	Invites         []api.Invite
	Link            string   // of the invite just made, shown this once
	Warnings        []string // about its limits
	Live            scene
}

func (s *Site) sharingData(v *visit) (sharingData, error) {
	shares, err := call(s, v, api.ListShares, api.None{})
	if err != nil {
		return sharingData{}, err
	}
	invites, err := call(s, v, api.ListInvites, api.None{})
	if err != nil {
		return sharingData{}, err
	}
	groups, err := call(s, v, api.ListGroups, api.None{})
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

// number reads a field that holds an integer; empty is 0.
func (v *visit) number(name string) (int, error) {
	text := strings.TrimSpace(v.form.Get(name))
	n, err := strconv.Atoi(cmp.Or(text, "0"))
	if err != nil {
		return 0, fault.New(fault.InvalidRequest, "%s is a whole number, not %.20q", name, text).WithParam(name)
	}
	return n, nil
}

// limits reads the limits of a form. In a form of limits that exist (ends), an
// empty field ends its limit; elsewhere it says nothing.
func (v *visit) limits(ends bool) (api.LimitChange, error) {
	var c api.LimitChange
	var models []string
	for line := range strings.Lines(v.form.Get("models")) { // ids hold commas and spaces, but no line ends
		// As it was written: what is no id is refused, never turned into one.
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
		n, err := v.number(field.name)
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

// share is POST /sharing/share with, and the limits that are new or change.
func (s *Site) share(v *visit) (reply, error) { return s.putShare(v, "Shared with ", false) }

// limitShare is POST /sharing/limits with, and all limits of that share.
func (s *Site) limitShare(v *visit) (reply, error) {
	return s.putShare(v, "These are now the limits of the share with ", true)
}

func (s *Site) putShare(v *visit, done string, ends bool) (reply, error) {
	limits, err := v.limits(ends)
	if err != nil {
		return reply{}, err
	}
	made, err := call(s, v, api.PutShare, api.NewShare{With: strings.TrimSpace(v.form.Get("with")), LimitChange: limits})
	return reply{to: "/sharing", done: done + made.With + "." + afterLimits(made.Cut, made.Warnings)}, err
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
	act, err := call(s, v, api.EndShare, api.MemberName{Member: v.form.Get("with")})
	return reply{to: "/sharing", done: "The share with " + act.With + " has ended. " + cutWords(act.Cut)}, err
}

// makeInvite is POST /sharing/invite: the answer is the only one that shows the
// invite's link.
func (s *Site) makeInvite(v *visit) (reply, error) {
	uses, err := v.number("uses")
	if err != nil {
		return reply{}, err
	}
	limits, err := v.limits(false)
	if err != nil {
		return reply{}, err
	}
	made, err := call(s, v, api.CreateInvite, api.NewInvite{Uses: uses, Expires: v.form.Get("expires"), LimitChange: limits})
	if err != nil {
		return reply{}, err
	}
	v.form = nil // the form below begins empty
	data, err := s.sharingData(v)
	data.Link, data.Warnings = s.inviteLink(made.Code), made.Warnings
	return reply{page: "sharing", title: "Sharing", data: data}, err
}

func (s *Site) endInvite(v *visit) (reply, error) {
	done := "The invite is revoked: it can no longer be accepted. It cuts no call; shares that it made stay until you end them."
	return did(s, v, reply{to: "/sharing", done: done}, api.RevokeInvite, api.InviteID{Invite: v.form.Get("invite")})
}

func (s *Site) accept(v *visit) (reply, error) {
	made, err := call(s, v, api.AcceptInvite, api.InviteCode{Code: inviteIn(v.form.Get("code"))})
	done := "Accepted: these machines are yours to use now."
	if made.State != "accepted" {
		done = made.Owner + " shares with you already: that share and its limits are as they were, and the invite is not used."
	}
	return reply{to: "/sharing", done: done}, err
}
