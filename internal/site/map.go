package site

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// mapPath is the page with the picture of the machines that a member can use.
const mapPath = "/map"

// mapMachine is a machine on the map.
type mapMachine struct {
	ID, Name string
	Owner    string // empty: the reader
	Through  string // "share", or the names of groups; empty: the reader's own
	Online   bool
	State    words
	// Mine is the number of the reader's calls that run on it, and Theirs that of others'
	// calls, which only the owner sees.
	Mine, Theirs int
	Uses         []string // what runs, such as "you: tiny"
}

// mapMachines returns the machines that the caller can use: own ones first, then by owner,
// online ones first.
func mapMachines(s *Site, hub *hubView, who fleet.Caller) (all []mapMachine) {
	for m, access := range hub.snapshot.Reach(who.Member, fleet.Everything) {
		machine := mapMachine{ID: string(m.ID), Name: m.Name, Online: m.Online, State: availabilityWords("offline")}
		if m.Owner == who.Member {
			live := s.LiveMachine(m, hub.now)
			machine.State = machineState(&live)
		} else {
			machine.Owner, machine.Through = m.OwnerName, "share"
			if access.Class == fleet.Grouped {
				var groups []string
				for g := range access.Groups(m) {
					groups = append(groups, g.Name)
				}
				machine.Through = strings.Join(groups, ", ")
			}
			machine.State = stateFor(m, access, hub)
		}
		all = append(all, machine)
	}
	slices.SortStableFunc(all, func(a, b mapMachine) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), api.OnlineFirst(a.Online, b.Online), cmp.Compare(a.Name, b.Name))
	})
	at := map[fleet.MachineID]int{}
	for i := range all {
		at[fleet.MachineID(all[i].ID)] = i
	}
	for _, use := range hub.uses {
		if use.Machine == nil || use.Caller != who.Member && use.Machine.Owner != who.Member {
			continue
		}
		i, known := at[use.Machine.ID]
		if !known {
			continue
		}
		name := use.Name
		if use.Caller == who.Member {
			name = "you"
			all[i].Mine++
		} else {
			all[i].Theirs++
		}
		all[i].Uses = append(all[i].Uses, name+": "+string(use.Model))
	}
	return all
}

// stateFor returns the state of another member's machine for the caller: the best of its
// models'.
func stateFor(m *fleet.Machine, access fleet.Access, hub *hubView) words {
	best, found := fleet.State(0), false
	for i := range m.Offers {
		if seen, ok := access.State(m, &m.Offers[i], hub.now); ok && (!found || seen.State > best) {
			best, found = seen.State, true
		}
	}
	switch {
	case found:
		return availabilityWords(best.String())
	case m.Online:
		return words{"no model", "warn"}
	}
	return availabilityWords("offline")
}

// mapContent is the live content of the map: states and running calls. Machines that come
// or go change its shape.
func mapContent(s *Site, hub *hubView, who fleet.Caller) liveContent {
	out := liveContent{texts: map[string]words{}}
	for _, m := range mapMachines(s, hub, who) {
		out.shape = out.shape.with(m.ID, m.Name, m.Owner, m.Through, fmt.Sprint(m.Online))
		m.texts(out.texts)
	}
	return out
}

// texts adds the machine's live texts. Those of the calls decide how many dots move.
func (m mapMachine) texts(to map[string]words) {
	to["map-state-"+m.ID], to["map-row-"+m.ID] = m.State, m.State
	for name, n := range map[string]int{"map-mine-": m.Mine, "map-theirs-": m.Theirs} {
		if n > 0 {
			to[name+m.ID] = words{fmt.Sprint(n), fmt.Sprint("calls-", min(n, mostDots))}
		}
	}
	if len(m.Uses) > 0 {
		slices.Sort(m.Uses)
		to["map-uses-"+m.ID] = words{text: strings.Join(m.Uses, "; ")}
	}
}

// networkMap is the picture: the hub in the middle, the reader's machines at its left and
// those of others at its right, by owner.
type networkMap struct {
	Height int
	HubY   int
	Spots  []mapSpot
	Labels []mapLabel
	Words  string // the picture as text
	Live   liveContent
}

// mapSpot is the place of a machine, or of More machines of Owner that are not shown
// singly. The line from the hub to it has that Length and Angle, in degrees.
type mapSpot struct {
	mapMachine
	Left          bool
	X, Y, NameX   int
	Length, Angle string
	More          int
}

// Short returns the machine's name, cut to what fits.
func (m mapSpot) Short() string { return clip(m.Name, longName+8) }

// mapLabel is the name of an owner over the owner's machines.
type mapLabel struct {
	Left   bool
	X, Y   int
	Text   string
	Groups string // through which groups, or empty
}

// The measures of the map, in the units of its picture.
const (
	mapWidth  = 1000
	hubRadius = 40
	spotPitch = 40  // from a machine to the next
	spotX     = 690 // of the machines at the right; those at the left mirror it
	labelX    = 710 // of their names
)

const (
	mostSpots  = 50 // machines shown singly
	mostOwners = 12 // owners whose other machines are shown as a sum
	mostDots   = 3  // dots that move on a line
)

// drawMap places the machines, which are in the order of mapMachines.
func drawMap(machines []mapMachine, live liveContent) networkMap {
	p := networkMap{Live: live, Words: "The hub, connected with " + counted(len(machines), "no machine", "1 machine", "%d machines")}
	type cluster struct {
		owner, groups string
		spots         []mapSpot
	}
	var clusters []cluster
	shown, rest := 0, 0
	for _, part := range byOwner(machines) {
		c := cluster{owner: part[0].Owner, groups: throughGroups(part)}
		n := min(len(part), mostSpots-shown)
		for _, m := range part[:n] {
			c.spots = append(c.spots, mapSpot{mapMachine: m})
		}
		shown += n
		switch more := len(part) - n; {
		case more == 0:
		case len(clusters) < mostOwners:
			c.spots = append(c.spots, mapSpot{mapMachine: mapMachine{Owner: c.owner}, More: more})
		default:
			rest += more
		}
		if len(c.spots) > 0 {
			clusters = append(clusters, c)
		}
	}
	if rest > 0 {
		clusters = append(clusters, cluster{owner: "others", spots: []mapSpot{{More: rest}}})
	}
	var left, right int // the lower ends of the columns
	for _, c := range clusters {
		isLeft := c.owner == "" || right > left+spotPitch*len(c.spots)
		y := &right
		label := mapLabel{Left: isLeft, Text: cmp.Or(c.owner, "You"), Groups: c.groups}
		if isLeft {
			y = &left
		}
		*y += spotPitch / 2
		label.Y = *y
		p.Labels = append(p.Labels, label)
		for _, spot := range c.spots {
			*y += spotPitch
			spot.Left, spot.Y = isLeft, *y-spotPitch/4
			p.Spots = append(p.Spots, spot)
		}
		*y += spotPitch / 2
	}
	p.place(left, right)
	return p
}

// Alone returns where a hint stands if all machines are the reader's, else 0.
func (p networkMap) Alone() int {
	if slices.ContainsFunc(p.Labels, func(l mapLabel) bool { return !l.Left }) {
		return 0
	}
	return hubRadius + mapWidth/2 + spotPitch
}

// place centers the columns, which have these heights, and draws the lines.
func (p *networkMap) place(left, right int) {
	p.Height = max(left, right, 4*hubRadius) + spotPitch/2
	p.HubY = p.Height / 2
	shift := func(isLeft bool) int {
		if isLeft {
			return (p.Height - left) / 2
		}
		return (p.Height - right) / 2
	}
	side := func(isLeft bool, x int) int {
		if isLeft {
			return mapWidth - x
		}
		return x
	}
	for i := range p.Labels {
		l := &p.Labels[i]
		l.X, l.Y = side(l.Left, labelX), l.Y+shift(l.Left)
	}
	for i := range p.Spots {
		m := &p.Spots[i]
		m.X, m.Y, m.NameX = side(m.Left, spotX), m.Y+shift(m.Left), side(m.Left, labelX)
		dx, dy := float64(m.X-mapWidth/2), float64(m.Y-p.HubY)
		m.Length = fmt.Sprintf("%.1f", math.Hypot(dx, dy))
		m.Angle = fmt.Sprintf("%.2f", math.Atan2(dy, dx)*180/math.Pi)
	}
}

// byOwner returns the machines of each owner: the reader's first, then those of owners who
// have one online.
func byOwner(machines []mapMachine) (parts [][]mapMachine) {
	for len(machines) > 0 {
		n := 1
		for n < len(machines) && machines[n].Owner == machines[0].Owner {
			n++
		}
		parts = append(parts, machines[:n])
		machines = machines[n:]
	}
	slices.SortStableFunc(parts, func(a, b []mapMachine) int {
		return cmp.Or(api.OnlineFirst(a[0].Owner == "", b[0].Owner == ""), api.OnlineFirst(a[0].Online, b[0].Online))
	})
	return parts
}

// throughGroups returns the groups that give machines of one owner, or "" if a share does.
func throughGroups(machines []mapMachine) string {
	if through := machines[0].Through; through != "share" {
		return through
	}
	return ""
}

// mapData is the content of /map. The table has only the machines of the picture.
type mapData struct {
	Map      networkMap
	Machines []mapMachine
}

func (s *Site) mapPage(v *visit) (reply, error) {
	data := mapData{Map: s.networkMap(v, mapContent(s, s.hubView(s.DB.Now()), v.caller()))}
	for _, spot := range data.Map.Spots {
		if spot.More == 0 {
			data.Machines = append(data.Machines, spot.mapMachine)
		}
	}
	return reply{page: "map", title: "Map", data: data}, nil
}

// networkMap returns the map of the visitor, with that live content.
func (s *Site) networkMap(v *visit, live liveContent) networkMap {
	return drawMap(mapMachines(s, s.hubView(s.DB.Now()), v.caller()), live)
}
