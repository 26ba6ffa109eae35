package site

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// mostRefusals is the number of refusals that the first page lists. mostMachines is the
// number of machines that it lists, and mostConcerns the number of unavailable ones that it
// mentions individually.
const (
	mostRefusals = 5
	mostMachines = 8
	mostConcerns = 3
)

// homeData is the content of / for a member.
type homeData struct {
	Steps     []step // empty: all are done
	Done      int
	Keys      int // not revoked
	Models    int
	Online    int        // machines
	Chart     usageChart // of the last 24 hours
	Machines  []api.Machine
	Live      liveContent
	Map       networkMap
	Attention []concern
	Refusals  []refusal
}

// Listed returns the machines that the page lists.
func (d homeData) Listed() []api.Machine { return d.Machines[:min(len(d.Machines), mostMachines)] }

// homeContent is the live content of /: the caller's machines, and the map.
func homeContent(s *Site, hub *hubView, who fleet.Caller) liveContent {
	out, network := machinesContent(s, hub, who), mapContent(s, hub, who)
	out.shape = out.shape.with(network.shape.String())
	maps.Copy(out.texts, network.texts)
	return out
}

// refusal is a refused call, and the number of consecutive calls for its model that were
// refused with the same code.
type refusal struct {
	account.Trace
	Cause string
	Times int
}

// step is one line of the checklist for a new member.
type step struct {
	Text, Help string
	Href, Do   string // the page for it, and the button's label
	Done       bool
	Optional   bool // not needed to complete the list
}

// concern is a problem that needs the member's attention, and what the member can do.
type concern struct {
	Text string
	Do   remedy
}

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
	usage, noUsage := call(s, v, api.GetUsage, api.Span{By: api.Hour})
	if err := cmp.Or(noKeys, noMachines, noModels, noShares, noInvites, noGroups, noRequests, noUsage); err != nil {
		return reply{}, err
	}
	models.Data = s.markSpent(models.Data, v.caller())
	now := s.DB.Now()
	live := homeContent(s, s.hubView(now), v.caller())
	data := homeData{
		Models: len(models.Data), Machines: machines.Data, Live: live, Map: s.networkMap(v, live),
		Chart:     chartOf(usage, usage.As.Days, chartViews[0], now),
		Attention: slices.Concat(s.concerns(v, machines.Data, now), s.spent(v, shares.Data, now)),
	}
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
	for _, t := range requests.Data {
		if !t.Mine || !account.Unserved(t.Code) {
			continue
		}
		n := len(data.Refusals)
		if n > 0 && data.Refusals[n-1].Code == t.Code && data.Refusals[n-1].Model == t.Model {
			data.Refusals[n-1].Times++
		} else if n < mostRefusals {
			trace, err := call(s, v, api.ExplainCall, api.CallID{Call: t.CallID})
			if err != nil { // it was just deleted; a listing has no decisions
				trace = api.CallTrace{Trace: t, Meaning: api.Meaning(t.Code)}
			}
			data.Refusals = append(data.Refusals, refusal{t, causeBrief(&trace), 1})
		}
	}
	called, err := s.hasCalled(v, usage.As.Total)
	if err != nil {
		return reply{}, err
	}
	invited := len(invites.Data) > 0 ||
		slices.ContainsFunc(shares.Data, func(sh api.Share) bool { return sh.Direction == "given" }) ||
		slices.ContainsFunc(groups.Data, func(g api.Group) bool { return g.In && g.Size > 1 })
	data.Steps = steps(models.Data, machines.Data, shares.Data, data.Keys > 0, called, invited)
	for _, st := range data.Steps {
		if st.Done {
			data.Done++
		}
	}
	if !slices.ContainsFunc(data.Steps, func(st step) bool { return !st.Done && !st.Optional }) {
		data.Steps = nil
	}
	return reply{page: "home", title: "Home", data: data}, nil
}

// hasCalled reports whether the member made a call in the last year that was served, or
// stopped while it was. today is the usage of the last 24 hours.
func (s *Site) hasCalled(v *visit, today api.UsageSum) (bool, error) {
	if today.Calls > today.Refused {
		return true, nil
	}
	year, err := call(s, v, api.GetUsage, api.Span{Days: "366", By: api.Week})
	return year.As.Total.Calls > year.As.Total.Refused, err
}

// steps returns the checklist for a new member. A member who has no machine, and uses those
// of others, chats with a model first; connecting a machine is optional and comes last.
func steps(models []api.Model, machines []api.Machine, shares []api.Share, hasKey, called, invited bool) []step {
	connect := step{Text: "Connect a machine", Help: "Install kith on a computer that runs models, and sign it in.",
		Href: "/machines#connect", Do: "Connect", Done: len(machines) > 0}
	reach := reachStep(len(models), machines, shares)
	key := step{Text: "Create a key", Help: "It lets a program call models in your name, with lines to paste.",
		Href: "/applications#create", Do: "Create a key", Done: hasKey}
	chat := step{Text: "Make a first call", Help: "From a program, or here.", Href: "/try", Do: "Chat", Done: called}
	if len(machines) == 0 && (len(models) > 0 || receives(shares) >= 0) {
		connect.Optional, connect.Help = true,
			"Only to run models yourself. You can use others' machines without one."
		return []step{reach, chatStep(chat, models), key, connect}
	}
	invite := step{Text: "Invite someone", Help: "They can then use your machines, within limits that you set.",
		Href: invitesPath + "#invite-person", Do: "Invite", Done: invited}
	return []step{connect, reach, key, chat, invite}
}

// chatStep returns the step to make a first call, with the model of another member that Chat
// would choose.
func chatStep(chat step, models []api.Model) step {
	first := api.FirstChoice(models)
	if first == nil {
		if len(models) > 0 {
			chat.Help = "No chat model is ready right now. Chat lists models as they come back."
		}
		return chat
	}
	chat.Text = fmt.Sprintf("Chat with %s's `%s`", first.Owner, first.ID)
	chat.Help = "Here on the site, without a key. The owner of the machine that answers could read it."
	if first.Availability != "ready" {
		chat.Help += " It is busy, so you wait in line."
	}
	chat.Href = "/try?model=" + url.QueryEscape(string(first.ID))
	return chat
}

// receives returns the index of the first share that lets the member use machines, or -1.
func receives(shares []api.Share) int {
	return slices.IndexFunc(shares, usable)
}

// usable reports whether a share lets the member use machines.
func usable(sh api.Share) bool { return sh.Direction != "given" && !sh.Disabled }

// reachStep returns the step to reach a first model. Its text depends on what exists
// already. A machine of the member's that is offline still has its models.
func reachStep(models int, machines []api.Machine, shares []api.Share) step {
	has := slices.ContainsFunc(machines, func(m api.Machine) bool { return len(m.Models) > 0 })
	reach := step{Text: "Get access to a model", Help: "One on your machine, or one that a member shares with you.",
		Href: invitesPath + "#accept-invite", Do: "Accept an invite", Done: models > 0 || has}
	if reach.Done {
		return reach
	}
	if i := receives(shares); i >= 0 {
		reach.Help, reach.Href, reach.Do = shares[i].Owner+" shares with you but has no model online right now. "+
			"Wait for one, or connect a machine of your own.", forYouPath, "See what you can use"
	} else if len(machines) > 0 {
		reach.Help, reach.Href, reach.Do = "Your machine has none yet: run `kith pull` on it.", "/machines",
			"See your machines"
	}
	return reach
}

// canSignIn reports whether the member can sign in again without a link. It returns true
// if the database fails.
func (s *Site) canSignIn(v *visit) bool {
	if has, err := s.hasPassword(v); has || err != nil {
		return true
	}
	passkeys, noPasskeys := s.DB.Passkeys(v.Context(), v.me.ID)
	identities, noIdentities := s.DB.Identities(v.Context(), v.me.ID)
	return len(passkeys)+len(identities) > 0 || cmp.Or(noPasskeys, noIdentities) != nil
}

// concerns returns problems: a missing sign-in method, the member's unavailable machines,
// and for an operator the state of the hub.
func (s *Site) concerns(v *visit, machines []api.Machine, now time.Time) (all []concern) {
	if !s.canSignIn(v) {
		all = append(all, concern{"You cannot sign in again yet: set a password.",
			remedy{Text: "Set a password", Href: "/account"}})
	}
	var idle []concern
	for _, m := range machines {
		see := remedy{Text: "View", Href: "/machines/" + m.ID}
		switch {
		case !m.Online && m.LastSeen.IsZero():
			idle = append(idle, concern{m.Name + " is not set up: run `kith serve` on it.", see})
		case !m.Online:
			idle = append(idle, concern{m.Name + " is offline, last seen " + ago(m.LastSeen, now) + ".", see})
		case m.Paused:
			idle = append(idle, concern{m.Name + " is paused.", remedy{Text: "Resume", Resume: m.ID}})
		case len(m.Models) == 0:
			idle = append(idle, concern{m.Name + " has no model: run `kith pull` on it.",
				remedy{Text: "Pull a model", Href: machineAddress(m.ID, modelsTab) + "#files-title"}})
		}
	}
	if len(idle) > mostConcerns+1 {
		more := concern{api.Number(len(idle)-mostConcerns) + " more of your machines are offline or paused, or have no model.",
			remedy{Text: "View all", Href: "/machines"}}
		idle = append(idle[:mostConcerns], more)
	}
	all = append(all, idle...)
	if !v.me.Operator {
		return all
	}
	for _, part := range s.Health(v.Context()) {
		if !part.Good {
			all = append(all, concern{part.Name + " of this hub is not working.",
				remedy{Text: "View", Href: operatorPath}})
		}
	}
	if backups, err := s.Backups(v.Context(), now); err != nil || len(backups.Due) > 0 {
		all = append(all, concern{"No backup of the hub succeeded in the last 7 days.",
			remedy{Text: "View", Href: operatorPath + "#backup-title"}})
	}
	return all
}

// spent returns the shares, given and received, whose daily calls are used up.
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
		calls := api.Number(*sh.Limits.PerDay) + " calls"
		if *sh.Limits.PerDay == 1 {
			calls = "1 call"
		}
		if sh.Direction == "given" {
			all = append(all, concern{fmt.Sprintf("%s has used up the %s that you allow a day.", sh.With, calls),
				remedy{Text: "Change", Href: memberAddress(sh.With)}})
		} else {
			all = append(all,
				concern{fmt.Sprintf("You have used up the %s a day that %s allows you, until 00:00 UTC.",
					calls, sh.Owner), remedy{Text: "View", Href: forYouPath}})
		}
	}
	return all
}

// hasMembers reports whether the hub has any account. It returns true if the database
// fails.
func (s *Site) hasMembers(v *visit) bool {
	members, disabled, err := s.DB.CountMembers(v.Context())
	return err != nil || members+disabled > 0
}
