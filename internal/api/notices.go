package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Notice is a message to the caller.
type Notice struct {
	Kind   account.NoticeKind `json:"kind"`
	Text   string             `json:"text"`            // a sentence
	New    bool               `json:"new"`             // not yet seen or answered
	Group  string             `json:"group,omitzero"`  // for an invitation or a join
	Member string             `json:"member,omitzero"` // the member who invites or joined; empty: the hub's operator
	At     time.Time          `json:"at"`
	// Subject is the id of the subject of other kinds, such as a machine.
	Subject string `json:"subject,omitzero"`
	// Direction is that of the share, "given" or "received", if the notice is about one.
	Direction string `json:"-"`
}

// maxNotices is the maximum number of joins, and of other notices, in one answer.
const maxNotices = 100

// listNotices lists the caller's pending invitations, joins in the caller's groups and
// stored notices, newest first, except the kinds that the caller switched off.
func (a *API) listNotices(ctx context.Context, c fleet.Caller, _ None) (List[Notice], error) {
	now := a.DB.Now()
	choices, noChoices := a.DB.NoticeChoices(ctx, string(c.Member))
	invited, noInvitations := a.invitedSince(ctx, string(c.Member), now, time.Time{})
	joins, noJoins := a.DB.Joins(ctx, string(c.Member), now, maxNotices)
	kept, noNotices := a.DB.Notices(ctx, string(c.Member), now.Add(-account.NoticeLife), now, maxNotices)
	notices := slices.Concat(invited, views(joins, viewJoin), views(kept, viewNotice))
	return listOf(wanted(notices, choices.OffSite)), cmp.Or(noChoices, noInvitations, noJoins, noNotices)
}

// NoticesToMail returns the member's new notices from the last mail until the given time,
// newest first, except the kinds that are not mailed.
func (a *API) NoticesToMail(ctx context.Context, of account.NewsFor, until time.Time) ([]Notice, error) {
	invited, noInvitations := a.invitedSince(ctx, of.Member.ID, a.DB.Now(), of.Since)
	joins, noJoins := a.DB.JoinsToMail(ctx, of.Member.ID, of.Since, until, maxNotices)
	kept, noNotices := a.DB.Notices(ctx, of.Member.ID, of.Since, until, maxNotices)
	kept = slices.DeleteFunc(kept, func(n account.Notice) bool { return !n.New })
	notices := slices.Concat(invited, views(joins, viewJoin), views(kept, viewNotice))
	notices = slices.DeleteFunc(notices, func(n Notice) bool { return n.At.After(until) })
	return wanted(notices, of.Off), cmp.Or(noInvitations, noJoins, noNotices)
}

// wanted sorts notices, newest first, and removes the given kinds.
func wanted(notices []Notice, off []account.NoticeKind) []Notice {
	notices = slices.DeleteFunc(notices, func(n Notice) bool { return slices.Contains(off, n.Kind) })
	slices.SortStableFunc(notices, func(x, y Notice) int { return y.At.Compare(x.At) })
	return notices
}

func viewNotice(n account.Notice) Notice {
	subject, more, _ := strings.Cut(n.Subject, " ") // only the id
	view := Notice{Kind: n.Kind, Text: n.Text, New: n.New, At: n.At, Subject: subject}
	if more == "given" || more == "received" {
		view.Direction = more
	}
	return view
}

func viewJoin(j account.GroupJoin) Notice {
	return Notice{Kind: account.NoticeJoined, Text: j.Member + " joined the group " + j.Group + ".", New: j.New, Group: j.Group, Member: j.Member, At: j.At}
}

// invitedSince returns the member's pending invitations from after the given time.
func (a *API) invitedSince(ctx context.Context, memberID string, now, since time.Time) (all []Notice, err error) {
	groups, err := a.DB.SeenGroups(ctx, memberID, "", now)
	for _, g := range groups {
		if g.Invited != nil && g.Invited.Created.After(since) {
			text := fmt.Sprintf("%s invites you to the group %s: accept or decline. Until you accept, nothing is shared.", cmp.Or(g.Invited.By, "The hub's operator"), g.Name)
			all = append(all, Notice{Kind: account.NoticeInvited, Text: text, New: true, Group: g.Name, Member: g.Invited.By, At: g.Invited.Created})
		}
	}
	return all, err
}

// SeenUntil is the time of the newest notice that the caller has seen.
type SeenUntil struct {
	Until time.Time `json:"until"`
}

// seeNotices marks the notices up to the given time as seen. The client sends the time of
// the newest notice that it listed, so that later ones are not missed. Invitations stay
// until they are answered.
func (a *API) seeNotices(ctx context.Context, c fleet.Caller, in SeenUntil) (SeenUntil, error) {
	if in.Until.UnixMilli() <= 0 || in.Until.After(a.DB.Now()) {
		return in, fault.New(fault.InvalidRequest, "until is the time of the newest notice that was seen").WithParam("until")
	}
	return in, a.DB.SeeNotices(ctx, string(c.Member), in.Until)
}

// NoticesOff are the kinds that the caller has switched off.
type NoticesOff struct {
	Site []account.NoticeKind `json:"site"`
	Mail []account.NoticeKind `json:"mail"`
}

// NoticeSwitch changes NoticesOff.
type NoticeSwitch struct {
	Site Given[[]account.NoticeKind] `json:"site,omitzero"`
	Mail Given[[]account.NoticeKind] `json:"mail,omitzero"`
}

func (a *API) getNotified(ctx context.Context, c fleet.Caller, _ None) (NoticesOff, error) {
	off, err := a.DB.NoticeChoices(ctx, string(c.Member))
	return viewOff(off), err
}

func viewOff(c account.NoticeChoices) NoticesOff {
	none := []account.NoticeKind{}
	return NoticesOff{Site: append(none, c.OffSite...), Mail: append(none, c.OffMail...)}
}

func (a *API) switchNotices(ctx context.Context, c fleet.Caller, in NoticeSwitch) (NoticesOff, error) {
	off, err := a.DB.NoticeChoices(ctx, string(c.Member))
	if err != nil {
		return NoticesOff{}, err
	}
	for _, change := range []struct {
		name string
		in   *[]account.NoticeKind
		to   *[]account.NoticeKind
	}{{"site", in.Site.change(), &off.OffSite}, {"mail", in.Mail.change(), &off.OffMail}} {
		if change.in == nil {
			continue
		}
		*change.to = nil
		for _, kind := range *change.in {
			if !slices.Contains(account.NoticeKinds, kind) {
				return NoticesOff{}, fault.New(fault.InvalidRequest, "unknown kind of notice %.40q: there are %s", string(kind), kindNames()).WithParam(change.name)
			}
			if !slices.Contains(*change.to, kind) {
				*change.to = append(*change.to, kind)
			}
		}
	}
	return viewOff(off), a.DB.SetNoticeChoices(ctx, string(c.Member), off)
}

// kindNames lists the kinds, for an error message.
func kindNames() string {
	names := views(account.NoticeKinds, func(k account.NoticeKind) string { return string(k) })
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// offlineSince limits how long ago a machine was last seen for its owner to be notified.
const offlineSince = 7 * 24 * time.Hour

// NoteWhatIsDue stores notices about machines that are offline, keys that expire soon,
// limits that are used up and missing backups, if there are none yet. settled is false
// for a hub that started recently: then machines may still be reconnecting.
func (a *API) NoteWhatIsDue(ctx context.Context, now time.Time, settled bool) error {
	var due []account.Notice
	if settled {
		machines, err := a.DB.MachinesOffline(ctx, now.Add(-offlineSince), now.Add(-account.OfflineFor))
		if err != nil {
			return err
		}
		due = append(due, views(machines, offlineNotice)...)
	}
	keys, noKeys := a.DB.KeysEnding(ctx, now, now.Add(account.KeyEndsWithin))
	spent, noSpent := a.DB.SpentLimits(ctx, now)
	backups, noBackups := a.missingBackup(ctx, now)
	if err := cmp.Or(noKeys, noSpent, noBackups); err != nil {
		return err
	}
	due = append(due, views(keys, endingNotice)...)
	for _, s := range spent {
		due = append(due, spentNotices(s, now)...)
	}
	return a.DB.AddNotices(ctx, append(due, backups...), now)
}

// noteShare notifies both members of a new share, so that they notice one that someone
// else created with the owner's key. how describes how it was created. It stores at most
// one notice a day for the same two members, so that creating shares repeatedly cannot
// use up a member's notices.
func (a *API) noteShare(ctx context.Context, owner, member account.Named, how string) {
	a.noteAccess(ctx,
		account.Notice{MemberID: owner.ID, Subject: member.ID + " given", Text: "You share your machines with " + member.Name + how + "."},
		account.Notice{MemberID: member.ID, Subject: owner.ID + " received", Text: owner.Name + " shares machines with you" + how + "."})
}

// noteAccess stores notices about who may use whose machines. The changes themselves have
// already been made, so it only logs an error.
func (a *API) noteAccess(ctx context.Context, notices ...account.Notice) {
	now := a.DB.Now().UTC()
	for i := range notices {
		notices[i].Kind, notices[i].Occasion = account.NoticeAccess, now.Truncate(24*time.Hour)
	}
	if err := a.DB.AddNotices(ctx, notices, now); err != nil {
		a.Log.Warn("cannot notify of a share or a group", "error", err)
	}
}

func offlineNotice(m account.OfflineMachine) account.Notice {
	return account.Notice{
		MemberID: m.OwnerID, Kind: account.NoticeOffline, Subject: m.ID, Occasion: m.LastSeen,
		Text: m.Name + " has been offline for more than an hour.",
	}
}

func endingNotice(k account.EndingKey) account.Notice {
	return account.Notice{
		MemberID: k.MemberID, Kind: account.NoticeEnding, Subject: k.ID, Occasion: k.Expires,
		Text: keyText(k.Name, k.LastFour) + " stops working on " + Moment(k.Expires, time.Time{}) + ".",
	}
}

// keyText returns the words for a key that begin a sentence.
func keyText(name, lastFour string) string {
	if name == "" {
		return "The key that ends in " + lastFour
	}
	return "The key " + name
}

// spentNotices returns the notices for the owner and, for a share, for the member who
// used it up. For a key it is the key's member.
func spentNotices(s account.SpentLimit, now time.Time) []account.Notice {
	calls := "calls"
	if s.PerDay == 1 {
		calls = "call"
	}
	n := account.Notice{MemberID: s.OwnerID, Kind: account.NoticeSpent, Subject: cmp.Or(s.ShareID, s.GroupID, s.KeyID), Occasion: now.UTC().Truncate(24 * time.Hour)}
	if s.KeyID != "" {
		n.Text = fmt.Sprintf("%s has used up its %s %s a day, until 00:00 UTC.", keyText(s.Key, s.LastFour), Number(s.PerDay), calls)
		return []account.Notice{n}
	}
	if s.ShareID == "" {
		n.Text = fmt.Sprintf("The members of %s have used up the %s %s a day that you allow the group.", s.Group, Number(s.PerDay), calls)
		return []account.Notice{n}
	}
	other := n
	n.Text = fmt.Sprintf("%s has used up the %s %s a day that you allow.", s.Member, Number(s.PerDay), calls)
	other.MemberID, other.Text = s.MemberID, fmt.Sprintf("You have used up the %s %s a day that %s allows you, until 00:00 UTC.", Number(s.PerDay), calls, s.Owner)
	return []account.Notice{n, other}
}

// Backups is the state of the hub's own backups, for its operators.
type Backups struct {
	MakesBackups bool // with PostgreSQL a hub makes none
	// Backup is the latest attempt, Made the latest valid backup; nil: there is none.
	Backup, Made *account.Backup
	// Due are the operators of a hub that should have a valid backup from the last days,
	// and has none.
	Due []string
}

// Backups returns the state of the hub's own backups.
func (a *API) Backups(ctx context.Context, now time.Time) (b Backups, err error) {
	if b.MakesBackups = a.DB.MakesBackups(); !b.MakesBackups {
		return b, nil
	}
	if b.Backup, err = found(a.DB.LastBackup(ctx)); err != nil {
		return b, err
	}
	if b.Made, err = found(a.DB.LastGoodBackup(ctx)); err != nil {
		return b, err
	}
	if old := now.Add(-account.BackupOldAfter); b.Made == nil || !b.Made.At.After(old) {
		b.Due, err = a.DB.OperatorsSince(ctx, old)
	}
	return b, err
}

// found returns nil without an error if the backup does not exist.
func found(b account.Backup, err error) (*account.Backup, error) {
	if errors.Is(err, account.ErrNotFound) {
		return nil, nil
	}
	return &b, err
}

// missingBackup returns notices for the operators, once a week while there is no valid
// backup from the last days.
func (a *API) missingBackup(ctx context.Context, now time.Time) ([]account.Notice, error) {
	backups, err := a.Backups(ctx, now)
	return views(backups.Due, func(id string) account.Notice {
		return account.Notice{
			MemberID: id, Kind: account.NoticeBackup, Subject: "hub", Occasion: now.UTC().Truncate(account.BackupOldAfter),
			Text: "This hub has no valid backup from the last 7 days.",
		}
	}), err
}
