package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
)

// truth is what the records say at one moment, read by the plainest means; it
// shares nothing with the rules that it checks.
type truth struct {
	from     time.Time
	disabled map[string]bool
	shares   map[[2]string]bool // owner, member
	groups   [][]string
	gone     map[string]bool // machines revoked
	keys     map[string]account.Reach
}

func (w *world) readTruth() truth {
	ctx := w.t.Context()
	v := truth{
		from: time.Now(), disabled: map[string]bool{}, shares: map[[2]string]bool{},
		gone: map[string]bool{}, keys: map[string]account.Reach{},
	}
	members, err := w.db.Members(ctx)
	w.must(err)
	for _, m := range members {
		v.disabled[m.ID] = m.Disabled
		shares, err := w.db.NamedShares(ctx, m.ID)
		w.must(err)
		for _, s := range shares {
			v.shares[[2]string{s.OwnerID, s.MemberID}] = true
		}
		keys, err := w.db.Keys(ctx, m.ID)
		w.must(err)
		for _, k := range keys {
			if k.Revoked.IsZero() && !m.Disabled {
				v.keys[k.ID] = k.Reach
			}
		}
	}
	machines, err := w.db.Machines(ctx, "")
	w.must(err)
	for _, m := range machines {
		v.gone[m.ID] = !m.Revoked.IsZero()
	}
	groups, err := w.db.GroupList(ctx)
	w.must(err)
	for _, g := range groups {
		var ids []string
		for _, m := range g.Members {
			ids = append(ids, m.MemberID)
		}
		v.groups = append(v.groups, ids)
	}
	return v
}

// there says whether the region has the machine at all.
func (v *truth) there(m *machine) bool { return !v.gone[m.id] && !v.disabled[m.owner.ID] }

// together says whether two members have a group in common, neither disabled.
func (v *truth) together(a, b string) bool {
	return slices.ContainsFunc(v.groups, func(ids []string) bool {
		return slices.Contains(ids, a) && slices.Contains(ids, b)
	}) && !v.disabled[a] && !v.disabled[b]
}

// way is how a key of that reach gets its member to the machine: own, shared,
// group, or not. Whether the key is any good is another matter: a hub may have
// asked for the one a moment ago and know of the other what was so before.
func (v *truth) way(by *member, reach account.Reach, m *machine) string {
	switch {
	case !v.there(m):
		return ""
	case m.owner.ID == by.ID:
		return "own"
	case reach != account.ReachOwn && v.shares[[2]string{m.owner.ID, by.ID}] && !v.disabled[by.ID]:
		return "shared"
	case reach == account.ReachAll && v.together(m.owner.ID, by.ID):
		return "group"
	}
	return ""
}

// knows says whether the hub takes calls of the one who made the call.
func (v *truth) knows(a *answer) bool {
	if a.at != nil {
		return !v.disabled[a.by.ID]
	}
	_, known := v.keys[a.key.ID]
	return known
}

// allows says whether the call may run on the machine.
func (v *truth) allows(a *answer, m *machine) bool {
	return v.knows(a) && v.way(a.by, a.key.Reach, m) != ""
}

// shared reports whether another member shares with the member.
func (v *truth) shared(w *world, by *member) bool {
	return !v.disabled[by.ID] && slices.ContainsFunc(w.people, func(other *member) bool {
		return other != by && !v.disabled[other.ID] && (v.shares[[2]string{other.ID, by.ID}] || v.together(other.ID, by.ID))
	})
}

// open says whether the machine serves others then. The windows of a world are
// on its first day, from one minute to another.
func (m *machine) open(at time.Time) bool {
	minute := at.Hour()*60 + at.Minute()
	return m.until == 0 || minute >= m.from && minute < m.until
}

// verdict is what becomes of a call while nothing moves and nothing is busy:
// empty, it is served.
func (v *truth) verdict(w *world, by *member, model string, now time.Time) string {
	if _, ok := v.keys[by.key.ID]; !ok {
		return "invalid_api_key"
	}
	return v.verdictFor(w, by, by.key.Reach, model, now)
}

// verdictFor is verdict for a caller who is known.
func (v *truth) verdictFor(w *world, by *member, reach account.Reach, model string, now time.Time) string {
	var known, elsewhere, reached, offline, others, outside int
	for _, m := range w.machines {
		if !v.there(m) || !slices.Contains(m.models, model) {
			continue
		}
		known++
		up := m.end != nil
		way := v.way(by, reach, m)
		switch {
		case way == "" && up:
			elsewhere++
		case way == "":
		case !up:
			reached, offline = reached+1, offline+1
		default:
			reached++
			if way != "own" {
				others++
			}
			switch {
			case way != "own" && !m.open(now):
				outside++
			case !m.paused:
				return ""
			}
		}
	}
	embeds := strings.HasPrefix(model, "emb")
	switch {
	case known == 0, reached == 0 && elsewhere == 0, reached == 0 && embeds:
		return "model_not_found"
	case reached == 0 && !v.shared(w, by):
		return "NOT_IN_CIRCLE"
	case reached == 0:
		return "CASCADE_EXHAUSTED"
	case offline == reached:
		return "machine_offline"
	case others > 0 && outside == others:
		return "outside_sharing_hours"
	default:
		return "CASCADE_EXHAUSTED"
	}
}

// within yields what the records said at any time in the last d before at.
func (w *world) truths(at time.Time, d time.Duration) []truth {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []truth
	for i, v := range w.history {
		ended := i+1 < len(w.history) && w.history[i+1].from.Before(at.Add(-d))
		if !ended && !v.from.After(at) {
			out = append(out, v)
		}
	}
	return out
}

// untold is how long a hub may not have heard of a pause: until then it sends
// calls to the machine, which declines them.
const untold = time.Second

func (m *machine) pausedWithin(from, to time.Time) bool {
	return slices.ContainsFunc(m.pauses, func(at time.Time) bool { return !at.Before(from) && !at.After(to) })
}

// mayRefuse says whether a call that ended in the storm may have ended with its
// code: whether records of the last 5 s, with machines as they may have been
// known, have that row. unsettled machines may be thought offline or without
// engine; nothing else may be thought of any machine.
func (w *world) mayRefuse(a *answer) bool {
	const stale = 5 * time.Second
	embeds := strings.HasPrefix(a.model, "emb")
	ran := len(w.runs.of(a.tag)) > 0
	window := stale + a.ended.Sub(a.began)
	for _, v := range w.truths(a.ended, window) {
		key := v.knows(a)
		if !key && (a.code == "invalid_api_key" || a.at != nil && a.code == "CASCADE_EXHAUSTED") { // a daemon's own key
			return true
		}
		var reached, offline, elsewhere, outside, unready, unsettled, declined int
		for _, m := range w.machines {
			if !v.there(m) || !slices.Contains(m.models, a.model) {
				continue
			}
			shaky := w.unsettled(m, a.began, a.ended)
			switch way := v.way(a.by, a.key.Reach, m); {
			case way == "":
				if m.steady(a.ended) || shaky {
					elsewhere++
				}
				if shaky {
					unsettled++
				}
			case way != "":
				reached++
				if shaky {
					offline, unsettled = offline+1, unsettled+1
				}
				if way != "own" && m.until != 0 {
					outside++
				}
				if m.pausedWithin(a.began.Add(-untold), a.ended) {
					declined++
				}
				if len(m.pauses) > 0 || way != "own" && m.until != 0 {
					unready++
				}
			}
		}
		none := reached == 0 || offline == reached // an engine that is gone offers nothing
		switch a.code {
		case "model_not_found":
			if none && (embeds || elsewhere == 0 || unsettled > 0) {
				return true
			}
		case "NOT_IN_CIRCLE":
			if none && elsewhere > 0 && !embeds && !v.shared(w, a.by) {
				return true
			}
		case "CASCADE_EXHAUSTED":
			if none && elsewhere > 0 && v.shared(w, a.by) || unready > 0 || embeds && reached > 0 {
				return true
			}
		case "machine_offline":
			if reached > 0 && offline == reached || (ran || !a.stream) && unsettled > 0 { // an unary call may have started
				return true
			}
		case "outside_sharing_hours":
			if outside > 0 {
				return true
			}
		case "CAPACITY_FULL":
			if reached > 0 && !embeds && (a.reason == "wait_elapsed" || unsettled > 0 || declined > 0) {
				return true
			}
		}
	}
	return false
}
