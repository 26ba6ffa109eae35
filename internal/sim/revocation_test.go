package sim

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

var roundsFlag = flag.Int("rounds", 0, "how often TestRevocations ends each kind of right; 0: 10, with -short 2")

// bound is how long after the commit of a change anything may be served that it
// ended (spec/routing.md#frame-share).
const bound = 5 * time.Second

// loss is a run that the records allow no more.
type loss struct {
	kind string // of the change
	at   time.Time
	run  *run
	back bool // allowed again, before it ended
}

// changed records a change and sometimes notifies the hub, which would find out
// by itself.
func (w *world) changed(kind string) {
	w.noted(kind)
	if w.rng.IntN(2) == 0 {
		w.live.Settle(w.t.Context())
	}
}

// noted keeps what the records say now, after a change of that kind, and what
// runs that they no longer allow.
func (w *world) noted(kind string) {
	v := w.readTruth()
	w.mu.Lock()
	w.history = append(w.history, v)
	before := w.history[max(0, len(w.history)-2)]
	w.mu.Unlock()
	w.runs.mu.Lock()
	for _, r := range w.runs.all {
		if !r.live {
			continue
		}
		a := w.asked(r.call)
		allowed := v.allows(a, r.machine)
		for _, l := range w.lost {
			l.back = l.back || l.run == r && allowed
		}
		if !allowed && before.allows(a, r.machine) {
			w.lost = append(w.lost, &loss{kind: kind, at: v.from, run: r})
		}
	}
	w.runs.mu.Unlock()
}

// checkLosses looks at how long what was no longer allowed went on, now that all
// calls are over. Those that the rules ended count in all.
func (w *world) checkLosses(all *delays) {
	for _, l := range w.lost {
		a, end := w.asked(l.run.call), l.run.left
		next, again := w.runs.after(l.run)
		// A machine whose link is lost does not know that its run was cancelled. Then
		// what its caller gets of it counts.
		if lost := l.run.link.lost.Load(); lost && again && next.at.Before(end) {
			end = next.at
		} else if lost && !again && a.ended.Before(end) {
			if a.text == "" {
				continue
			}
			end = a.ended
		}
		switch took := end.Sub(l.at); {
		case l.back:
		case took > bound:
			w.t.Errorf("%s, and it ran on for %s: %s", l.kind, took, a)
		case !a.done || again:
			all.add(l.kind, took)
		}
	}
}

// lostReach reports whether the records forbade the last run of the call before the
// call ended.
func (w *world) lostReach(a *answer) bool {
	runs := w.runs.of(a.tag)
	if len(runs) == 0 {
		return false
	}
	last := runs[len(runs)-1]
	return slices.ContainsFunc(w.truths(a.ended, a.ended.Sub(last.at)), func(v truth) bool { return !v.allows(a, last.machine) })
}

// after returns the next run of the run's call, if there is one.
func (s *runs) after(r *run) (next run, ok bool) {
	for _, next := range s.of(r.call) {
		if next.at.After(r.at) {
			return next, true
		}
	}
	return run{}, false
}

// delays is how long things took, by kind.
type delays struct {
	mu  sync.Mutex
	all map[string][]time.Duration
}

func (d *delays) add(kind string, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[string][]time.Duration{}
	}
	d.all[kind] = append(d.all[kind], took)
}

// String is their distribution.
func (d *delays) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out strings.Builder
	line := func(kind string, cells ...any) {
		fmt.Fprintf(&out, "%-46s"+strings.Repeat("%9v", len(cells))+"\n", append([]any{kind}, cells...)...)
	}
	line("", "count", "p50", "p90", "p99", "max")
	for _, kind := range slices.Sorted(maps.Keys(d.all)) {
		took := slices.Sorted(slices.Values(d.all[kind]))
		at := func(q int) time.Duration { return took[(len(took)-1)*q/100].Round(time.Millisecond) }
		line(kind, len(took), at(50), at(90), at(99), at(100))
	}
	return out.String()
}

// hearing is how a hub comes to know of a change.
type hearing struct {
	name string
	// begins runs before the commit, notifies after it.
	begins, notifies func(w *world)
}

var hearings = []hearing{
	{"notified", func(*world) {}, func(w *world) { w.live.Settle(w.t.Context()) }},
	{"polling", func(*world) {}, func(*world) {}},
	{"polling, database slow", func(w *world) {
		w.slow.Store(w.rng.Int64N(int64(1500 * time.Millisecond)))
	}, func(*world) {}},
	{"polling, database away", func(w *world) {
		w.down.Store(true)
		time.AfterFunc(time.Duration(w.rng.Int64N(int64(3*time.Second))), func() { w.down.Store(false) })
	}, func(*world) {}},
}

// revocations end the right of bob to run on box, which is ann's.
var revocations = map[string]func(w *world, ann, bob *member) error{
	"key revoked": func(w *world, _, bob *member) error { return w.db.RevokeKey(w.t.Context(), bob.key.ID, time.Now()) },
	"share ended": func(w *world, ann, bob *member) error { return w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID) },
	"group left": func(w *world, _, bob *member) error {
		return w.db.RemoveGroupMember(w.t.Context(), w.groups[0], bob.ID)
	},
	"caller disabled": func(w *world, _, bob *member) error { return w.db.SetMemberDisabled(w.t.Context(), bob.ID, true) },
	"owner disabled":  func(w *world, ann, _ *member) error { return w.db.SetMemberDisabled(w.t.Context(), ann.ID, true) },
	"machine revoked": func(w *world, _, _ *member) error {
		return w.db.RevokeMachine(w.t.Context(), w.machines[0].id, time.Now())
	},
}

// give gives bob the right that the revocation of that kind ends.
func (w *world) give(kind string, ann, bob *member) {
	if kind == "group left" {
		w.groups = []string{w.addGroup(account.GroupOrg, ann, bob)}
		return
	}
	w.must(w.db.AddShare(w.t.Context(), account.Share{ID: w.newID("shr_"), OwnerID: ann.ID, MemberID: bob.ID, Created: time.Now().UTC()}))
}

// TestRevocations ends rights at random instants, again and again, while calls
// run by them: nothing is served later than 5 s after the commit. It prints how
// late, in false time.
//
//	go test ./internal/sim -run TestRevocations -v -rounds 1000
func TestRevocations(t *testing.T) {
	all := new(delays)
	t.Cleanup(func() { t.Logf("from the commit to the end of what it ended, in false time:\n%s", all) })
	rounds := *roundsFlag
	if rounds == 0 {
		rounds = unlessShort(10, 1)
	}
	for i, kind := range slices.Sorted(maps.Keys(revocations)) {
		for j, how := range hearings {
			t.Run(kind+", "+how.name, func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(rounds) {
					inBubble(t, func(w *world) {
						w.rng = rand.New(rand.NewPCG(seed, uint64(len(hearings)*i+j)))
						w.revoke(kind, how, all)
					})
				}
			})
		}
	}
}

// revoke ends, at a random instant, the right by which four calls run.
func (w *world) revoke(kind string, how hearing, all *delays) {
	ann, bob := w.addMember("ann"), w.addMember("bob")
	w.people = []*member{ann, bob}
	w.addMachine(ann, "box", 4, "m")
	w.give(kind, ann, bob)
	w.noted("")
	time.Sleep(2 * time.Second)
	w.wantServed(w.do(ask{by: bob, model: "m"}), 1) // until it served one, a machine of a group runs one at once
	w.runs.check = w.checkRun
	w.set(paced(time.Duration(20+w.rng.IntN(1000)) * time.Millisecond))
	var calls []*answer
	for i := range 4 {
		calls = append(calls, w.begin(ask{by: bob, model: "m", stream: i > 0, words: 1000}))
		w.begun(calls[i])
	}
	time.Sleep(time.Duration(w.rng.Int64N(int64(3 * time.Second))))
	how.begins(w)
	w.must(revocations[kind](w, ann, bob))
	w.noted(kind + ", " + how.name)
	how.notifies(w)
	assert.Equal(w.t, len(w.lost), len(calls), "calls lost their right")
	for _, a := range calls {
		<-a.over
		assert.That(w.t, !a.done && a.err == nil && a.code != "", a)
	}
	synctest.Wait()
	w.checkLosses(all)
	w.down.Store(false)
	w.slow.Store(0)
	w.settled()
}

// A call that waits when its member is disabled gets the fault of its key, also where it is
// routed again before the key was looked up (spec/routing.md#wait-end).
func TestDisabledWhileWaiting(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob, _ := w.addShared(1)
		w.addMachine(bob, "den", 1, "m") // which leaves, so that the tick routes again
		w.set(slow(5 * time.Minute))
		w.begun(w.begin(ask{by: ann, model: "m", stream: true}))
		w.begun(w.begin(ask{by: bob, model: "m", stream: true}))
		waits := w.begin(ask{by: bob, model: "m"})
		time.Sleep(2 * time.Second)
		w.slow.Store(int64(1200 * time.Millisecond)) // longer than until the next tick
		w.must(w.db.SetMemberDisabled(w.t.Context(), bob.ID, true))
		<-waits.over
		w.slow.Store(0)
		w.wantCode(waits, "invalid_api_key", "")
	})
}

// A call whose share ended waits until its machine has stopped. If its key is revoked
// meanwhile, it gets the fault of the key (spec/routing.md#frame-key).
func TestKeyRevokedWhileTheMachineStops(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, bob := w.addMember("ann"), w.addMember("bob")
		w.addMachine(ann, "box", 1, "m").lingers = 1900 * time.Millisecond
		w.share(ann, bob)
		w.set(slow(time.Minute))
		a := w.begin(ask{by: bob, model: "m", stream: stream})
		w.begun(a)
		w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
		w.live.Settle(w.t.Context())
		time.Sleep(500 * time.Millisecond)
		w.must(w.db.RevokeKey(w.t.Context(), bob.key.ID, time.Now()))
		w.live.Settle(w.t.Context())
		<-a.over
		w.wantCode(a, "invalid_api_key", "")
	})
}
