package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// The naive twin: docs/spec/routing.md once more, over plain lists, with nothing of the
// package's own code but its names for ids, states and codes. It is slow and
// written to be read beside the page.

type world struct {
	now      time.Time
	machines []wMachine
	shares   []wShare
	groups   []wGroup
}

type wMachine struct {
	id, owner               string
	online, paused, keptOut bool
	limited                 bool          // to the groups of only
	only                    []string      // ids, which are the names, too
	backIn, outFor          time.Duration // from now; 0: none
	hours                   []wWindow
	zone                    string
	slots, inFlight, local  int
	keys                    []string // that calls can be sealed for
	offers                  []wOffer
}

type wOffer struct {
	model                  string
	families               []Family
	slots, inFlight, local int
	speed                  *wSpeed       // nil: not measured
	triedAgo               time.Duration // since it was sent a call to measure it; 0: never
	standing               Standing      // in groups
	unknownTo              []string      // circles that know nothing of these three: "own", "shared", "group g"
	leftOut, leftOutOwner  time.Duration // for others, for the owner, from now; 0: not
}

// to is what the offer has proven to a circle.
func (o wOffer) to(circle string) wOffer {
	if slices.Contains(o.unknownTo, circle) {
		o.speed, o.triedAgo, o.standing = nil, 0, Unserved
	}
	return o
}

// wSpeed is what was measured of a machine at a model; the times are in seconds.
type wSpeed struct {
	start, prefill float64
	decode         map[int]float64 // by calls at once: 1, 2, 4, 8; those that were measured
	// Of what was sent there before, the part that is cached, until tokens of other prompts
	// fill its room, and after that.
	hit, lost float64
	room      int
	dueIn     time.Duration // from now: to be measured again
}

// wSent is how many tokens of the prompt were sent to a machine, and of others since.
type wSent struct{ tokens, since int }

type wWindow struct {
	days     []time.Weekday
	from, to int // minutes of the day
}

type wShare struct {
	id, owner, member        string
	models                   []string
	hours                    []wWindow
	concurrent, running      int
	perDay, today, yesterday int
}

type wGroup struct {
	id      string
	members []string
	keptOut []string
	pinned  []string
	limits  []wShare // what owners limit it to, one of each; id and member are empty
}

type wAsk struct {
	caller, exclude, model    string
	narrow                    KeyReach
	family                    Family
	avoid                     []string
	unconfirmed, waited, gone bool
	full                      []string
	prompt, output            int
	sent                      map[string][]wSent // by machine
	turns                     []string           // groups
	typical                   *wSpeed
	sealed                    bool
	declined                  []string
	only                      bool        // for to alone
	to                        [][2]string // machines and keys
}

// wDecision is what docs/spec/routing.md says; ready lists the ready machines.
type wDecision struct {
	verdict string // "try", "wait" or a code
	row     int
	waited  bool // wait_elapsed
	noRetry bool
	ready   []wSeen
	seen    []wSeen
}

type wSeen struct {
	machine string
	class   Class
	by      string // the share's id or the group's
	limited bool   // by a group that its owner limits
	state   State
	known   bool // not by a group, or established there
	turn    bool // a newcomer in a group, which comes first this time
	measure bool // it comes first, to be measured
	seconds float64
}

// before reports whether x has to be tried before y. Where neither has to, the draw decides.
func (x wSeen) before(y wSeen) bool {
	place := func(s wSeen) int {
		switch {
		case s.turn:
			return 0
		case !s.known:
			return 3
		case s.measure:
			return 1
		default:
			return 2
		}
	}
	if by := cmp.Or(cmp.Compare(x.class, y.class), cmp.Compare(place(x), place(y))); by != 0 {
		return by < 0
	}
	return x.known && x.seconds*1.1 < y.seconds
}

// expect sets how long the call takes there, and whether it comes first to be measured.
func (s *wSeen) expect(m wMachine, o wOffer, a wAsk) {
	speed := o.speed
	if speed == nil {
		if speed = a.typical; speed == nil {
			speed = &wSpeed{start: 0.3, prefill: 0.001, decode: map[int]float64{1: 0.02}, hit: 1, lost: 1}
		}
	}
	cached := 0
	for _, sent := range a.sent[m.id] {
		part := speed.hit
		if sent.since >= speed.room {
			part = speed.lost
		}
		cached = max(cached, int(float64(sent.tokens)*part))
	}
	cached = min(cached, a.prompt)
	running := 1 + max(o.inFlight+o.local, m.inFlight+m.local)
	s.seconds = speed.start + float64(a.prompt-cached)*speed.prefill*(0.5+float64(running)/2) + float64(a.output)*speed.perToken(running)
	due := o.speed == nil || o.speed.dueIn <= 0
	s.measure = due && a.prompt-cached <= 2000 && (o.triedAgo == 0 || o.triedAgo >= 10*time.Minute)
}

// perToken is the seconds a token while so many calls run.
func (s *wSpeed) perToken(running int) float64 {
	at := 1
	for _, n := range []int{2, 4, 8} {
		if running >= n {
			at = n
		}
	}
	nearest := 0
	for _, n := range []int{8, 4, 2, 1} { // the nearest above, and rather one below
		if s.decode[n] > 0 && n > at {
			nearest = n
		}
	}
	for _, n := range []int{1, 2, 4, 8} {
		if s.decode[n] > 0 && n <= at {
			nearest = n
		}
	}
	if nearest == 0 {
		return 0.02 * float64(3+at) / 4
	}
	return s.decode[nearest] * float64(3+at) / float64(3+nearest)
}

func (w *world) decide(a wAsk) wDecision {
	if !a.sealed || !a.only {
		return w.decideAmong(a)
	}
	narrow := w.decideAmong(a)
	a.only = false
	wide := w.decideAmong(a)
	switch {
	case narrow.verdict == "try":
		return narrow
	case wide.verdict == "try", narrow.verdict != "wait" && wide.verdict == "wait":
		narrow.verdict, narrow.waited, narrow.noRetry = "stale_seal", false, false
		return narrow
	case wide.verdict != "wait" && len(wide.seen) == 0:
		a.sealed = false
		if _, _, seen := w.tally(a); len(seen) > 0 { // only those that its daemon would not seal for
			narrow.verdict, narrow.waited, narrow.noRetry = "stale_seal", false, false
			return narrow
		}
	}
	return wide
}

func (w *world) decideAmong(a wAsk) wDecision {
	offered, offeredOnline, seen := w.tally(a)
	d := wDecision{seen: seen}
	count := func(keep func(wSeen) bool) (n int) {
		for _, s := range seen {
			if keep(s) {
				n++
			}
		}
		return n
	}
	in := func(states ...State) int {
		return count(func(s wSeen) bool { return slices.Contains(states, s.state) })
	}
	usable := func(states ...State) int {
		return count(func(s wSeen) bool {
			return slices.Contains(states, s.state) && !slices.Contains(a.avoid, s.machine)
		})
	}
	foreignOnline := count(func(s wSeen) bool { return s.class != Own && s.state != Offline && s.state != Returning })
	foreignOutside := count(func(s wSeen) bool { return s.class != Own && s.state == OutsideHours })
	allOutside := foreignOnline > 0 && foreignOutside == foreignOnline
	own := count(func(s wSeen) bool { return s.class == Own })
	is := func(row int, verdict, forOthers string) wDecision {
		d.row, d.verdict = row, verdict
		if a.family != Chat {
			d.verdict = forOthers
		}
		d.waited = a.waited && row >= 8
		d.noRetry = row == 7 && d.verdict == "CASCADE_EXHAUSTED" || d.verdict == "outside_sharing_hours" && own == 0
		return d
	}

	if a.family == Audio && !w.speaks(a.exclude) {
		return is(1, "", "invalid_request")
	}
	if offered == 0 {
		return is(1, "model_not_found", "model_not_found")
	}
	if a.unconfirmed {
		return is(2, "CASCADE_EXHAUSTED", "CASCADE_EXHAUSTED")
	}
	if usable(Ready) > 0 {
		for _, s := range seen {
			if s.state == Ready && !slices.Contains(a.avoid, s.machine) {
				d.ready = append(d.ready, s)
			}
		}
		return is(3, "try", "try")
	}
	if usable(Busy, Returning) > 0 && !a.waited {
		return is(4, "wait", "wait")
	}
	if len(seen) == 0 {
		switch {
		case offeredOnline == 0:
			return is(5, "model_not_found", "model_not_found")
		case !w.sharedWith(a.caller):
			return is(6, "NOT_IN_CIRCLE", "model_not_found")
		default:
			return is(7, "CASCADE_EXHAUSTED", "model_not_found")
		}
	}
	// A machine that would run the call, if the wait had not ended or the
	// attempt at it had not failed, belongs to rows 11 and 12.
	ended := in(Ready, Busy, Returning) > 0 && (a.waited || a.gone)
	if !ended {
		switch {
		case in(Offline) == len(seen):
			return is(8, "machine_offline", "machine_offline")
		case allOutside && in(Ready, Busy, Returning) == 0:
			return is(9, "outside_sharing_hours", "outside_sharing_hours")
		default:
			return is(10, "CASCADE_EXHAUSTED", "CASCADE_EXHAUSTED")
		}
	}
	if a.gone || in(Paused, Spent) == 0 {
		return is(11, "CAPACITY_FULL", "CASCADE_EXHAUSTED")
	}
	if allOutside {
		return is(12, "outside_sharing_hours", "outside_sharing_hours")
	}
	return is(12, "CASCADE_EXHAUSTED", "CASCADE_EXHAUSTED")
}

// survey counts who offers what is asked for, and shows what the caller sees of it.
func (w *world) tally(a wAsk) (offered, online int, seen []wSeen) {
	for _, m := range w.machines {
		o := m.offerFor(a)
		if o == nil || m.id == a.exclude || a.sealed && len(m.keys) == 0 {
			continue
		}
		offered++
		if m.online {
			online++
		}
		if a.sealed && (slices.Contains(a.declined, m.id) || a.only && !m.isRecipient(a.to)) {
			continue
		}
		if s, ok := w.see(m, *o, a); ok {
			seen = append(seen, s)
		}
	}
	return offered, online, seen
}

func (m wMachine) isRecipient(to [][2]string) bool {
	for _, r := range to {
		if r[0] == m.id && slices.Contains(m.keys, r[1]) {
			return true
		}
	}
	return false
}

// speaks reports whether any machine except one offers a model for audio.
func (w *world) speaks(except string) bool {
	return slices.ContainsFunc(w.machines, func(m wMachine) bool {
		return m.id != except && slices.ContainsFunc(m.offers, func(o wOffer) bool { return slices.Contains(o.families, Audio) })
	})
}

func (m wMachine) offerFor(a wAsk) *wOffer {
	for i, o := range m.offers {
		if o.model == a.model && slices.Contains(o.families, a.family) {
			return &m.offers[i]
		}
	}
	return nil
}

func (w *world) sharedWith(caller string) bool {
	for _, s := range w.shares {
		if s.member == caller && s.owner != caller {
			return true
		}
	}
	for _, g := range w.groups {
		if slices.Contains(g.members, caller) && slices.ContainsFunc(g.members, func(m string) bool { return m != caller }) {
			return true
		}
	}
	return false
}

// see is the best of the caller's ways to the machine; false: it has none.
func (w *world) see(m wMachine, o wOffer, a wAsk) (wSeen, bool) {
	var ways []wSeen
	add := func(class Class, circle, by string, limits *wShare) {
		o := o.to(circle)
		if limits != nil && len(limits.models) > 0 && !slices.Contains(limits.models, a.model) {
			return
		}
		s := wSeen{machine: m.id, class: class, by: by, limited: class == Grouped && limits != nil, known: true}
		if class == Grouped {
			if w.group(by).pins(m) {
				o.standing = Established
			}
			s.known = o.standing == Established
			s.turn = !s.known && slices.Contains(a.turns, by)
		}
		s.state = w.state(m, o, class, limits, a)
		s.expect(m, o, a)
		ways = append(ways, s)
	}
	if m.owner == a.caller {
		add(Own, "own", "", nil)
	}
	alone := false // a share of this owner with this caller decides alone
	for i, s := range w.shares {
		alone = alone || s.owner == m.owner && s.member == a.caller && m.owner != a.caller
		if m.owner != a.caller && s.owner == m.owner && s.member == a.caller && a.narrow != OwnOnly {
			add(Shared, "shared", s.id, &w.shares[i])
		}
	}
	for _, g := range w.groups {
		if g.serves(m, a.caller) && a.narrow == Everything && !alone {
			add(Grouped, "group "+g.id, g.id, g.limitsOf(m.owner))
		}
	}
	if len(ways) == 0 {
		return wSeen{}, false
	}
	best := ways[0]
	for _, s := range ways[1:] {
		if s.state > best.state || s.state == best.state && best.limited && !s.limited {
			best = s
		}
	}
	return best, true
}

// serves reports whether the caller and the machine's owner are in the group and
// the machine is not kept out of it.
func (g wGroup) serves(m wMachine, caller string) bool {
	both := slices.Contains(g.members, caller) && slices.Contains(g.members, m.owner) && m.owner != caller
	return both && !m.keptOut && !slices.Contains(g.keptOut, m.id) && (!m.limited || slices.Contains(m.only, g.id))
}

func (w *world) group(id string) wGroup {
	return w.groups[slices.IndexFunc(w.groups, func(g wGroup) bool { return g.id == id })]
}

// pins reports whether the group's admins pinned the machine.
func (g wGroup) pins(m wMachine) bool { return slices.Contains(g.pinned, m.id) }

// limitsOf is what the owner limits the group to; nil: nothing.
func (g wGroup) limitsOf(owner string) *wShare {
	for i := range g.limits {
		if g.limits[i].owner == owner {
			return &g.limits[i]
		}
	}
	return nil
}

// common reports whether some group serves the caller by that machine, for the
// model.
func (w *world) common(caller, machine, model string) bool {
	m := w.machines[slices.IndexFunc(w.machines, func(m wMachine) bool { return m.id == machine })]
	return slices.ContainsFunc(w.groups, func(g wGroup) bool {
		l := g.limitsOf(m.owner)
		return g.serves(m, caller) && (l == nil || len(l.models) == 0 || slices.Contains(l.models, model))
	})
}

func (w *world) state(m wMachine, o wOffer, class Class, share *wShare, a wAsk) State {
	free := m.slots - m.inFlight - m.local
	if o.slots > 0 {
		free = min(free, o.slots-o.inFlight-o.local)
	}
	if slices.Contains(a.full, m.id) {
		free = 0
	}
	if class == Own && o.leftOutOwner > 0 || class != Own && o.leftOut > 0 {
		free = 0
	}
	if class == Grouped && o.standing == Unserved && o.inFlight > 0 {
		free = 0
	}
	switch {
	case !m.online && m.backIn > 0:
		return Returning
	case !m.online, m.outFor > 0:
		return Offline
	case class != Own && !open(m.hours, m.zone, w.now):
		return OutsideHours
	case share != nil && !open(share.hours, m.zone, w.now):
		return OutsideHours
	case m.paused:
		return Paused
	case share != nil && share.perDay > 0 && share.today >= share.perDay:
		return Spent
	case free <= 0, share != nil && share.concurrent > 0 && share.running >= share.concurrent:
		return Busy
	}
	return Ready
}

// open counts minutes of the week from each window's start.
func open(windows []wWindow, zone string, now time.Time) bool {
	if len(windows) == 0 {
		return true
	}
	const day, week = 24 * 60, 7 * 24 * 60
	local := now.In(zones[zone].zone)
	minute := int(local.Weekday())*day + local.Hour()*60 + local.Minute()
	for _, w := range windows {
		length := w.to - w.from
		if length < 0 {
			length += day
		}
		for _, d := range w.days {
			if since := (minute - int(d)*day - w.from + 2*week) % week; since < length {
				return true
			}
		}
	}
	return false
}

func text(windows []wWindow) string {
	out := ""
	for i, w := range windows {
		if i > 0 {
			out += "; "
		}
		for j, d := range w.days {
			if j > 0 {
				out += ","
			}
			out += d.String()[:3]
		}
		out += fmt.Sprintf(" %02d:%02d-%02d:%02d", w.from/60, w.from%60, w.to/60, w.to%60)
	}
	return out
}
