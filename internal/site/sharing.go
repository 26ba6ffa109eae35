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
	shares, noShares := call(s, v, api.ListShares, api.None{})
	invites, noInvites := call(s, v, api.ListInvites, api.None{})
	groups, noGroups := call(s, v, api.ListGroups, api.None{})
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
	return data, cmp.Or(noShares, noInvites, noGroups)
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

// newShare reads a member and the limits of the share: those that are new or change,
// or all of them (ends).
func newShare(ends bool) func(*visit) (api.NewShare, error) {
	return func(v *visit) (api.NewShare, error) {
		limits, err := v.limits(ends)
		return api.NewShare{With: strings.TrimSpace(v.form.Get("with")), LimitChange: limits}, err
	}
}

// shareToEnd reads the member whose share ends.
func shareToEnd(v *visit) (api.MemberName, error) {
	return api.MemberName{Member: v.form.Get("with")}, nil
}

// afterLimits ends the sentence on a change of limits: what it cuts, and what of it
// names nothing.
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
	data, err := s.sharingData(v) // first: what cannot be shown is not made
	if err != nil {
		return reply{}, err
	}
	made, err := call(s, v, api.CreateInvite, api.NewInvite{Uses: uses, Expires: v.form.Get("expires"), LimitChange: limits})
	if err != nil {
		return reply{}, err
	}
	v.form = nil // the form below begins empty
	data.Invites = append([]api.Invite{made}, data.Invites...)
	data.Link, data.Warnings = s.inviteLink(made.Code), made.Warnings
	return reply{page: "sharing", title: "Sharing", data: data}, nil
}

func inviteCode(v *visit) (api.InviteCode, error) {
	return api.InviteCode{Code: inviteIn(v.form.Get("code"))}, nil
}

func acceptedInvite(made api.Accepted) string {
	if made.State != "accepted" {
		return made.Owner + " shares with you already: that share and its limits are as they were, and the invite is not used."
	}
	return "Accepted: these machines are yours to use now."
}
