package site

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// counted returns the text for a number of things: none, one, or many with the number.
func counted(n int, none, one, many string) string {
	switch n {
	case 0:
		return none
	case 1:
		return one
	}
	return fmt.Sprintf(many, n)
}

// cutWords describes how many running calls an action ends.
func cutWords(n int) string {
	return counted(n, "No running call is stopped.", "1 running call is stopped within 5 seconds.",
		"%d running calls are stopped within 5 seconds.")
}

// limitShape extends the shape by limits, and by whether their daily calls are used up.
func limitShape(h shape, l *fleet.Limits, now time.Time) shape {
	spent := l.PerDay > 0 && l.Load.Started(now) >= l.PerDay
	return h.with(fmt.Sprint(l.Concurrent, l.PerDay, spent), fmt.Sprintf("%q", l.Models), l.Hours.String())
}

// shareShapes returns, for each member, the shape of the shares with that member. It is a
// sum, so that the order does not matter.
func shareShapes(s *fleet.Snapshot, now time.Time) map[fleet.MemberID]shape {
	of := map[fleet.MemberID]shape{}
	for share := range s.Shares() {
		h := limitShape(shape(0).with(string(share.ID)), &share.Limits, now)
		of[share.Owner] += h
		of[share.Member] += h
	}
	return of
}

// accessShape returns the shape of everything that decides who can use whose machines, as
// far as it concerns the member.
func accessShape(hub *hubView, member fleet.MemberID) shape {
	sum := hub.shares()[member]
	for g := range hub.snapshot.GroupsOf(member) {
		group := shape(0).with(string(g.ID), g.Name)
		for _, fellow := range g.Members {
			sum += group.with("member", string(fellow))
		}
		for _, machine := range g.KeptOut {
			sum += group.with("kept out", string(machine))
		}
		for _, machine := range g.Pinned {
			sum += group.with("pinned", string(machine))
		}
		for owner, limits := range g.Limits {
			sum += limitShape(group.with(string(owner)), limits, hub.now)
		}
	}
	for m := range hub.snapshot.Reach(member, fleet.Everything) {
		texts := []string{string(m.ID), m.Name, fmt.Sprint(m.Online, m.KeptOut, len(m.Groups), m.Groups == nil)}
		for i := range m.Offers {
			texts = append(texts, string(m.Offers[i].ID))
		}
		sum += shape(0).with(append(texts, m.Groups...)...)
	}
	return sum
}

// accessContent shows current use by share or group: by each member on the caller's
// machines, and by the caller on other members' machines.
func accessContent(_ *Site, hub *hubView, who fleet.Caller) liveContent {
	out := liveContent{shape: accessShape(hub, who.Member), texts: map[string]words{}}
	all := map[string]map[string]int{}
	for _, u := range hub.uses {
		id := ""
		switch {
		case u.Machine.Owner == u.Caller:
			continue
		case u.Machine.Owner == who.Member:
			id = "use-" + nameKey(u.Name)
		case u.Caller == who.Member:
			id = "using-" + nameKey(u.Machine.OwnerName)
		default:
			continue
		}
		if all[id] == nil {
			all[id] = map[string]int{}
		}
		all[id][string(u.Model)+" on "+u.Machine.Name]++
	}
	for id, lines := range all {
		var texts []string
		for text, n := range lines {
			if n > 1 {
				text += fmt.Sprintf(" (%d calls)", n)
			}
			texts = append(texts, text)
		}
		slices.Sort(texts)
		out.texts[id] = words{strings.Join(texts, "; "), "good"}
	}
	return out
}

// notSetUp is the state of a machine that was signed in and has never connected.
var notSetUp = words{text: "not set up"}

// machineState returns a machine's state as words with a tone. It contains no time: those
// are separate elements, which the page's script converts to the reader's time zone.
func machineState(m *api.Machine) words {
	switch {
	case !m.Online && m.LastSeen.IsZero():
		return notSetUp
	case !m.Online:
		return availabilityWords("offline")
	case m.Paused:
		return words{"paused", "warn"}
	case !m.Open:
		return words{"outside hours", "warn"}
	case len(m.Models) == 0:
		return words{"no model", "warn"}
	case m.Slots > 0 && m.Running >= m.Slots:
		return words{fmt.Sprintf("busy %d/%d", m.Running, m.Slots), "warn"}
	default:
		return words{"ready", "good"}
	}
}

// kindOfState returns a machine's state without its numbers.
func kindOfState(m *api.Machine) words {
	state := machineState(m)
	if strings.HasPrefix(state.text, "busy ") {
		state.text = "busy"
	}
	return state
}

// machinesContent is the live content for the caller's machines.
func machinesContent(s *Site, hub *hubView, who fleet.Caller) liveContent {
	out := liveContent{texts: map[string]words{}}
	users := map[fleet.MachineID][]string{}
	for _, u := range hub.uses {
		if u.Machine.Owner == who.Member {
			users[u.Machine.ID] = append(users[u.Machine.ID], u.Name+": "+string(u.Model))
		}
	}
	for live := range hub.snapshot.Reach(who.Member, fleet.OwnOnly) {
		m := s.LiveMachine(live, hub.now)
		id := string(live.ID)
		out.shape = out.shape.with(id, m.Name, fmt.Sprint(m.Online, m.Paused, m.PausedUntil, m.KeptOut, m.Slots,
			m.Groups != nil), m.Hours, m.Timezone).with(m.Groups...)
		out.texts["state-"+id] = machineState(&m)
		if !m.Online {
			continue
		}
		running := fmt.Sprint(m.Running)
		if m.Slots > 0 {
			running = fmt.Sprintf("%d of %d slots", m.Running, m.Slots)
		}
		out.texts["running-"+id] = words{text: running}
		out.texts["queue-"+id] = words{text: fmt.Sprint(m.Queued)}
		if names := users[live.ID]; len(names) > 0 {
			slices.Sort(names)
			out.texts["users-"+id] = words{text: strings.Join(names, "; ")}
		}
		for i, model := range m.Models {
			out.shape = out.shape.with(string(model.ID), fmt.Sprint(model.ContextLength, model.Slots))
			if model.FirstTokenMS > 0 {
				out.texts[fmt.Sprintf("first-%s-%d", id, i)] = words{text: seconds(model.FirstTokenMS)}
			}
		}
	}
	return out
}

// seconds returns a time to the first token as text.
func seconds(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%d ms", ms)
	}
	return fmt.Sprintf("%d.%02d s", ms/1000, ms%1000/10)
}

// availabilityWords returns a model's availability as words with a tone.
func availabilityWords(a string) words {
	switch a {
	case "ready":
		return words{a, "good"}
	case "offline":
		return words{a, "bad"}
	}
	return words{strings.ReplaceAll(cmp.Or(fleet.StateText(a), "unknown"), "_", " "), "warn"}
}
