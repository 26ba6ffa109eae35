package site

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// noticesPath is the page with the member's notices.
const noticesPath = "/notices"

// noticesData is the content of that page.
type noticesData struct {
	New, Earlier []noticeLine
	Newest       string // time of the newest that can be marked as seen; empty: none
}

// noticeLine is a notice with a link to act on it.
type noticeLine struct {
	api.Notice
	Href, Do string // Do is the link's text
}

func (s *Site) noticesData(v *visit) (data noticesData, err error) {
	notices, err := call(s, v, api.ListNotices, api.None{})
	for _, n := range notices.Data {
		line := s.noticeLine(v, n)
		if !n.New {
			data.Earlier = append(data.Earlier, line)
			continue
		}
		data.New = append(data.New, line)
		if n.Kind != account.NoticeInvited {
			data.Newest = cmp.Or(data.Newest, n.At.Format(time.RFC3339Nano))
		}
	}
	return data, err
}

// noticeLine returns a notice with the page for acting on it.
func (s *Site) noticeLine(v *visit, n api.Notice) noticeLine {
	member := fleet.MemberID(v.me.ID)
	switch n.Kind {
	case account.NoticeInvited:
		return noticeLine{n, groupsPath, "Answer"}
	case account.NoticeJoined:
		return noticeLine{n, groupAddress(n.Group), "See the group"}
	case account.NoticeAccess, account.NoticeSpent:
		for g := range s.Snapshot().GroupsOf(member) {
			if string(g.ID) == n.Subject {
				return noticeLine{n, groupAddress(g.Name), "See the group"}
			}
		}
		switch {
		case strings.HasPrefix(n.Subject, "grp_"): // the member left it
			return noticeLine{n, groupsPath, "See the groups"}
		case strings.HasPrefix(n.Subject, "key_"):
			return noticeLine{n, "/applications", "See the keys"}
		case n.Direction == "received", s.Snapshot().ShareOf(member, fleet.ShareID(n.Subject)) != nil:
			return noticeLine{n, forYouPath, "See what you can use"}
		}
		return noticeLine{n, accessPath, "See who has access"}
	case account.NoticeEnding:
		return noticeLine{n, "/applications", "See the keys"}
	case account.NoticeBackup:
		return noticeLine{n, operatorPath, "See the backups"}
	}
	if s.Snapshot().Machine(fleet.MachineID(n.Subject)) == nil { // it was revoked in between
		return noticeLine{n, "/machines", "See the machines"}
	}
	return noticeLine{n, "/machines/" + n.Subject, "See the machine"}
}

// seenUntil reads from the form the time of the newest notice that the page showed.
func seenUntil(v *visit) (api.SeenUntil, error) {
	until, err := time.Parse(time.RFC3339Nano, v.form.Get("until"))
	if err != nil {
		err = fault.New(fault.InvalidRequest, "the form has no time").WithParam("until")
	}
	return api.SeenUntil{Until: until}, err
}

// noticeChoice is a kind of notice, and where the member wants to get it.
type noticeChoice struct {
	Kind       account.NoticeKind
	Text       string
	Site, Mail bool
}

// noticeChoices returns the kinds of notices that can concern the member.
func (s *Site) noticeChoices(v *visit) (all []noticeChoice, err error) {
	off, err := call(s, v, api.GetNotified, api.None{})
	for _, c := range []noticeChoice{
		{Kind: account.NoticeInvited, Text: "You are invited to a group"},
		{Kind: account.NoticeJoined, Text: "Someone joined one of your groups"},
		{Kind: account.NoticeAccess, Text: "Sharing changes: a new share, a group you joined, a machine pinned or excluded by an admin"},
		{Kind: account.NoticeSpent, Text: "The daily calls of a share, group or key are used up"},
		{Kind: account.NoticeFiles, Text: "Models on your machine were changed from elsewhere"},
		{Kind: account.NoticeOffline, Text: "Your machine has been offline for more than an hour"},
		{Kind: account.NoticeEnding, Text: "A key expires within 7 days"},
		{Kind: account.NoticeBackup, Text: "The hub has had no good backup for 7 days"},
	} {
		if c.Kind != account.NoticeBackup || v.me.Operator {
			c.Site, c.Mail = !slices.Contains(off.Site, c.Kind), !slices.Contains(off.Mail, c.Kind)
			all = append(all, c)
		}
	}
	return all, err
}

// switchedNotices reads the kinds that the form shows and that are not checked. If the
// form has no column for mail, that setting stays the same.
func switchedNotices(v *visit) (in api.NoticeSwitch, _ error) {
	unmarked := func(column string) api.Given[[]account.NoticeKind] {
		off := []account.NoticeKind{}
		for _, kind := range v.form["kind"] {
			if !slices.Contains(v.form[column], kind) {
				off = append(off, account.NoticeKind(kind))
			}
		}
		return api.Give(off)
	}
	in.Site = unmarked("site")
	if v.form.Get("mails") != "" {
		in.Mail = unmarked("mail")
	}
	return in, nil
}
