package site

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// homeDays is how many days the picture of calls on the first page shows.
const homeDays = 14

// mostRefusals is how many refusals the first page lists.
const mostRefusals = 5

// homeData is what / shows to a member.
type homeData struct {
	Steps     []step // empty: all are done
	Done      int
	Keys      int // live ones
	Models    int
	Calls     int64 // today
	Bars      []bar
	BarsText  string // the same for who does not see it
	Machines  []api.Machine
	Live      scene
	Attention []concern
	Refusals  []api.CallTrace
}

// step is one line of the checklist of a new member.
type step struct {
	Text, Help string
	Href, Do   string // where it is done, and the button's words
	Done       bool
}

// bar is one day in the picture of calls: its place, and its height of 40.
type bar struct {
	X, Y, Height int
	None         bool
	Day          string
	Calls        int64
}

// concern is what needs the member's attention, and where.
type concern struct{ Text, Href string }

func (s *Site) home(v *visit) (reply, error) {
	if v.me.ID == "" {
		return reply{page: "start", title: "Welcome", data: s.hasMembers(v)}, nil
	}
	keys, noKeys := call(s, v, api.ListKeys, api.None{})
	machines, noMachines := call(s, v, api.ListMachines, api.None{})
	models, noModels := call(s, v, api.ListModels, api.None{})
	shares, noShares := call(s, v, api.ListShares, api.None{})
	invites, noInvites := call(s, v, api.ListInvites, api.None{})
	groups, noGroups := call(s, v, api.ListGroups, api.None{})
	requests, noRequests := call(s, v, api.ListRequests, api.RequestFilter{})
	usage, noUsage := call(s, v, api.GetUsage, api.Span{Days: fmt.Sprint(homeDays)})
	if err := cmp.Or(noKeys, noMachines, noModels, noShares, noInvites, noGroups, noRequests, noUsage); err != nil {
		return reply{}, err
	}
	now := time.Now()
	data := homeData{
		Models: len(models.Data), Machines: machines.Data, Live: machinesScene(s, s.glance(now), v.caller()),
		Bars: dayBars(usage.As.Days, now), Attention: slices.Concat(s.concerns(v, machines.Data, now), s.spent(v, shares.Data, now)),
	}
	for _, k := range keys.Data {
		if k.State == "live" {
			data.Keys++
		}
	}
	data.Calls = data.Bars[len(data.Bars)-1].Calls
	var texts []string
	for _, b := range data.Bars {
		if b.Calls > 0 {
			texts = append(texts, b.Day+": "+number(b.Calls))
		}
	}
	data.BarsText = cmp.Or(strings.Join(texts, "; "), "None")
	for _, t := range requests.Data {
		if t.Mine && t.Code != "" && len(data.Refusals) < mostRefusals {
			data.Refusals = append(data.Refusals, api.CallTrace{Trace: t, Meaning: api.Meaning(t.Code)})
		}
	}
	called := usage.As.Total.Calls > usage.As.Total.Refused || slices.ContainsFunc(requests.Data, func(t account.Trace) bool { return t.Mine && t.Code == "" })
	invited := len(invites.Data) > 0 || slices.ContainsFunc(shares.Data, func(sh api.Share) bool { return sh.Direction == "given" }) ||
		slices.ContainsFunc(groups.Data, func(g api.Group) bool { return g.In && g.Size > 1 })
	data.Steps = []step{
		{"Connect a machine", "Install kith on a computer that runs models, and sign it in. Not needed to use models that others share with you.", "/machines#connect", "Connect", len(machines.Data) > 0},
		{"Reach a model", "One on your machine, or one that a member shares with you.", "/access#accept-invite", "Accept an invite", len(models.Data) > 0},
		{"Create a key", "It lets a program call models in your name, with lines to paste.", "/applications#create", "Create a key", data.Keys > 0},
		{"Make a first call", "From a program, or here.", "/try", "Chat", called},
		{"Invite someone", "They can then use your machines, within limits that you set.", "/access#invite-person", "Invite", invited},
	}
	for _, st := range data.Steps {
		if st.Done {
			data.Done++
		}
	}
	if data.Done == len(data.Steps) {
		data.Steps = nil
	}
	return reply{page: "home", title: "Home", data: data}, nil
}

// dayBars draws the calls of the last days, today's last, the highest bar 40 high.
func dayBars(days []api.UsageOfDay, now time.Time) []bar {
	bars, most := make([]bar, homeDays), int64(1)
	for i := range bars {
		b := bar{X: i * 10, Day: now.UTC().AddDate(0, 0, i+1-homeDays).Format(time.DateOnly)}
		if at := slices.IndexFunc(days, func(d api.UsageOfDay) bool { return d.Day == b.Day }); at >= 0 {
			b.Calls = days[at].Calls
		}
		most = max(most, b.Calls)
		bars[i] = b
	}
	for i := range bars {
		b := &bars[i]
		b.None, b.Height = b.Calls == 0, max(2, int(b.Calls*40/most))
		b.Y = 40 - b.Height
	}
	return bars
}

// backupOld is when a backup is old enough to say so.
const backupOld = 7 * 24 * time.Hour

// canSignIn reports whether the member can sign in again without a link; where the
// database does not say, it may be.
func (s *Site) canSignIn(v *visit) bool {
	_, err := s.DB.Password(v.Context(), v.me.ID)
	if !errors.Is(err, account.ErrNotFound) {
		return true
	}
	passkeys, noPasskeys := s.DB.Passkeys(v.Context(), v.me.ID)
	identities, noIdentities := s.DB.Identities(v.Context(), v.me.ID)
	return len(passkeys)+len(identities) > 0 || cmp.Or(noPasskeys, noIdentities) != nil
}

// concerns are a way in that is missing, the member's machines that take no calls, and
// for an operator the state of the hub.
func (s *Site) concerns(v *visit, machines []api.Machine, now time.Time) (all []concern) {
	if !s.canSignIn(v) {
		all = append(all, concern{"You cannot sign in again yet: set a password.", "/account"})
	}
	for _, m := range machines {
		at := "/machines/" + m.ID
		switch {
		case !m.Online && m.LastSeen.IsZero():
			all = append(all, concern{m.Name + " has never connected.", at})
		case !m.Online:
			all = append(all, concern{m.Name + " is offline, last seen " + ago(m.LastSeen, now) + ".", at})
		case m.Paused:
			all = append(all, concern{m.Name + " is paused.", at})
		}
	}
	if n := s.countNotices(v); n > 0 {
		all = append(all, concern{"Your groups have something new for you.", "/access"})
	}
	if !v.me.Operator {
		return all
	}
	for _, part := range s.Health(v.Context()) {
		if !part.Good {
			all = append(all, concern{part.Name + " of this hub is not well.", operatorPath})
		}
	}
	if !s.DB.MakesBackups() {
		return all
	}
	if backup, err := s.DB.LastBackup(v.Context()); err != nil || now.Sub(backup.At) > backupOld || backup.Fault != "" {
		all = append(all, concern{"This hub has no sound backup of the last 7 days.", operatorPath})
	}
	return all
}

// spent are the shares, given and received, whose calls of the day are used up.
func (s *Site) spent(v *visit, shares []api.Share, now time.Time) (all []concern) {
	snapshot := s.Snapshot()
	for _, sh := range shares {
		if sh.Disabled || sh.Limits.PerDay == nil {
			continue
		}
		share := snapshot.ShareOf(fleet.MemberID(sh.WithID), fleet.ShareID(sh.ID))
		if share == nil || share.Limits.Load.Started(now) < *sh.Limits.PerDay {
			continue
		}
		if sh.Direction == "given" {
			all = append(all, concern{fmt.Sprintf("%s has used up the %s calls that you allow a day.", sh.With, number(*sh.Limits.PerDay)), accessPath + "?member=" + url.QueryEscape(sh.With)})
		} else {
			all = append(all, concern{fmt.Sprintf("You have used up the %s calls a day that %s allows you, until midnight UTC.", number(*sh.Limits.PerDay), sh.Owner), accessPath})
		}
	}
	return all
}

// hasMembers reports whether the hub has an account yet; where the database does not
// say, it may.
func (s *Site) hasMembers(v *visit) bool {
	members, disabled, err := s.DB.CountMembers(v.Context())
	return err != nil || members+disabled > 0
}
