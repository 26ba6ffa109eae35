package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/cluster"
	"github.com/kith/kith/internal/gateway"
)

// grants is what the nodes offered to calls of other nodes.
func (w *world) grants() (all cluster.Grants) {
	for _, n := range w.nodes() {
		addGrants(&all, n.others.Grants())
	}
	return all
}

func addGrants(to *cluster.Grants, g cluster.Grants) {
	to.Offered += g.Offered
	to.Taken += g.Taken
	to.Gone += g.Gone
	to.Declined += g.Declined
	to.Lost += g.Lost
	to.Expired += g.Expired
}

// The calls of several nodes wait for a machine in one order, whichever node it is
// connected to, and no call that comes later passes one that waits.
func TestPeersQueueIsOne(t *testing.T) {
	for home := range 3 {
		inCluster(t, 3, func(w *world, seats []*seat) {
			ann, bob, cid := w.addMember("ann"), w.addMember("bob"), w.addMember("cid")
			box := w.addMachine(ann, "box", 1, "m")
			w.share(ann, bob)
			w.share(ann, cid)
			box.moveTo(seats[home])
			w.inOrder(6, func(i int) *seat { return seats[i%3] }, bob, cid)
			if g := w.grants(); g.Offered != g.Taken || g.Taken < 3 || g.Expired != 0 {
				w.t.Errorf("%+v", g)
			}
			w.settled()
		})
	}
}

// A machine's owner goes ahead of others on that machine also from another node.
func TestPeersOwnerGoesAhead(t *testing.T) {
	inCluster(t, 2, func(w *world, seats []*seat) {
		ann, bob, box := w.addShared(1)
		box.moveTo(seats[0])
		time.Sleep(5 * time.Second)
		w.set(slow(10 * time.Second))
		w.begun(w.begin(ask{by: bob, model: "m", via: seats[0]}))
		var others []*answer
		for _, via := range seats {
			time.Sleep(time.Second)
			others = append(others, w.begin(ask{by: bob, model: "m", via: via}))
		}
		time.Sleep(time.Second)
		owners := w.begin(ask{by: ann, model: "m", via: seats[1]})
		<-owners.over
		w.wantServed(owners, 1)
		for _, a := range others {
			<-a.over
			w.wantServed(a, 1)
			assert.That(w.t, !a.ended.Before(owners.ended), "before the owner", a)
		}
	})
}

// mostPassed is by how much a call may have waited longer than one that is served before
// it, if nothing fails.
const mostPassed = 250 * time.Millisecond

// TestClusterWaits plays histories in which more calls come to several nodes than the
// machines can serve. Nothing fails in them, so that one central queue says what each
// slot is to be used for. What holds:
//
//   - no call is served that arrived more than 250 ms after one which waits for the same
//     machine and goes on waiting, except on its own machine; the same for the owner's
//     calls among themselves;
//   - no machine runs more calls than it has slots, and no call runs out of reach;
//   - no slot is idle for longer than that while a call waits that may use it;
//   - each call runs once, is served, and is in the ledger once.
func TestClusterWaits(t *testing.T) {
	var mu sync.Mutex
	sum := new(tally)
	t.Cleanup(func() { t.Log(sum) })
	eachSeed(t, cmp.Or(*clusterSeedsFlag, unlessShort(100, 8)), func(t *testing.T, seed uint64) {
		inCluster(t, 2+int(seed%3), func(w *world, _ []*seat) {
			w.rng, w.draw = rand.New(rand.NewPCG(seed, 2)), seed
			w.cluster.distance(w, time.Duration(seed%3)*time.Millisecond)
			h := w.crowd(crowd{members: 3 + w.rng.IntN(3), machines: 2 + w.rng.IntN(4), slots: 2, calls: 40 + w.rng.IntN(40), load: 1.1 + w.rng.Float64()})
			h.check()
			mu.Lock()
			defer mu.Unlock()
			sum.add(h)
		})
	})
}

// distance connects the nodes again, each so far from the others.
func (c *nodeTable) distance(w *world, each time.Duration) {
	for _, n := range w.nodes() {
		n.peers.delay.Store(int64(each))
		n.peers.cut()
	}
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

// Nodes lose each other while they connect, again and again.
func TestNodesPartWhileTheyConnect(t *testing.T) {
	inCluster(t, 3, func(w *world, _ []*seat) {
		w.cluster.distance(w, 50*time.Millisecond)
		for i := range 20 {
			for _, n := range w.nodes() {
				n.peers.cut()
			}
			time.Sleep(2*time.Second + time.Duration(i)*17*time.Millisecond)
		}
		for _, n := range w.nodes() { // the world ends with nothing on its way
			n.peers.delay.Store(0)
			n.peers.cut()
		}
		time.Sleep(5 * time.Second)
	})
}

// crowd is how many calls come for what.
type crowd struct {
	members, machines, slots, calls int
	load                            float64 // of all slots
}

// crowded is what happened to a crowd.
type crowded struct {
	w       *world
	answers []*answer
	records truth
	grants  cluster.Grants

	passed    []time.Duration // of each run: by how much it passed the call that waited longest
	overtaken []*answer       // of each run: that call
	idle      []time.Duration // of each run whose call waited: how long its slot was free
}

// crowd lets the calls come, at any node, and returns when all are over.
func (w *world) crowd(c crowd) *crowded {
	for i := range c.members {
		w.people = append(w.people, w.addMember(fmt.Sprint("member", i)))
	}
	slots := 0
	for i := range c.machines {
		n := 1 + w.rng.IntN(c.slots)
		slots += n
		w.addMachine(pick(w.rng, w.people...), fmt.Sprint("box", i), n, pick(w.rng, []string{"m1"}, []string{"m1", "m2"})...)
	}
	for _, owner := range w.people {
		for _, with := range w.people {
			if owner != with && w.rng.IntN(3) > 0 {
				w.share(owner, with)
			}
		}
	}
	w.changed("")
	time.Sleep(30 * time.Second)
	h := &crowded{w: w, records: w.readTruth()}
	w.runs.check = w.checkRun
	takes := time.Duration(500+w.rng.IntN(1500)) * time.Millisecond
	gap := float64(takes) / float64(slots) / c.load
	for range c.calls {
		for _, m := range w.machines {
			m.engine.Set(slow(takes/2 + time.Duration(w.rng.Int64N(int64(takes)))))
		}
		by := pick(w.rng, w.people...)
		q := ask{by: by, model: pick(w.rng, "m1", "m1", "m2"), stream: true, via: pick(w.rng, w.cluster.seats...)}
		if h.records.verdict(w, by, q.model, time.Now()) == "" {
			if w.rng.IntN(10) == 0 {
				q.leave = time.Duration(1 + w.rng.Int64N(int64(5*time.Second)))
			}
			h.answers = append(h.answers, w.begin(q))
		}
		time.Sleep(time.Duration(w.rng.ExpFloat64() * gap))
	}
	for _, a := range h.answers {
		<-a.over
	}
	time.Sleep(2 * time.Second) // holds end
	synctest.Wait()
	h.grants = w.grants()
	h.compare()
	w.settled()
	w.checkLedger(h.answers)
	return h
}

// started returns when the call began to run on a machine; its end if it never did.
func (h *crowded) started(a *answer) time.Time {
	if runs := h.w.runs.of(a.tag); len(runs) > 0 {
		return runs[0].at
	}
	return a.ended
}

// compare looks at each run as one central queue would have decided.
func (h *crowded) compare() {
	starts := make(map[*answer]time.Time, len(h.answers))
	for _, a := range h.answers {
		starts[a] = h.started(a)
	}
	way := func(a *answer, m *machine) string {
		if !slices.Contains(m.models, a.model) {
			return ""
		}
		return h.records.way(a.by, a.key.Reach, m)
	}
	all := h.w.runs.all
	for i, r := range all {
		a := h.w.asked(r.call)
		passed, passedOf := time.Duration(0), (*answer)(nil)
		for _, b := range h.answers {
			its := way(b, r.machine)
			if b == a || its == "" || !b.began.Before(r.at) {
				continue
			}
			ahead := a.began.Sub(b.began) // by how much b was there before
			switch mine := way(a, r.machine) == "own"; {
			case mine && its != "own":
				continue
			case !mine && its == "own":
				ahead = r.at.Sub(b.began)
			}
			// A call that begins to run at that time elsewhere does not wait any more.
			by := min(ahead, starts[b].Sub(r.at))
			if by > passed && (by <= mostPassed || !h.refused(b)) {
				passed, passedOf = by, b
			}
		}
		h.passed, h.overtaken = append(h.passed, passed), append(h.overtaken, passedOf)
		freed := h.freed(all[:i], r)
		if !freed.IsZero() && a.began.Before(freed) {
			h.idle = append(h.idle, r.at.Sub(freed))
		}
	}
}

// refused reports whether a machine refused the call before it ran, or it ran on several.
// Such a machine is left out for a while (spec/routing.md#left-out), which a central queue
// does not know.
func (h *crowded) refused(a *answer) bool {
	why, _ := h.w.why(a.by, a)
	return len(why.Tries) > 1
}

// freed returns when the slot of a run became free: the latest end of a run after which a
// slot was free; zero if a slot was free all the time.
func (h *crowded) freed(earlier []*run, r *run) (at time.Time) {
	var ends []time.Time
	for _, e := range earlier {
		if e.machine == r.machine {
			ends = append(ends, e.left)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	if n := len(ends) - r.machine.config.Sharing.Slots; n >= 0 {
		return ends[n]
	}
	return at
}

// check fails the test where the history is not what a central queue gives.
func (h *crowded) check() {
	most := mostPassed
	for i, passed := range h.passed {
		if r := h.w.runs.all[i]; passed > most {
			h.w.t.Errorf("on %s after %s a call passed another one by %s: %s passed %s, which ran on %s", r.machine.name, r.at.Sub(h.answers[0].began), passed,
				h.w.asked(r.call), h.overtaken[i], h.w.runs.where(h.overtaken[i].tag))
		}
	}
	for _, idle := range h.idle {
		assert.That(h.w.t, idle <= most, "a slot was idle for", idle, "while a call waited for it")
	}
	for _, a := range h.answers {
		if runs := len(h.w.runs.of(a.tag)); runs > 1 || !a.served() && a.leave == 0 {
			h.w.t.Errorf("%d runs: %s", runs, a)
		}
	}
}

// tally sums up several histories.
type tally struct {
	runs, inOrder int
	passed, idle  []time.Duration
	grants        cluster.Grants
}

func (t *tally) add(h *crowded) {
	for _, passed := range h.passed {
		t.runs++
		if passed <= 20*time.Millisecond {
			t.inOrder++
		}
	}
	t.passed, t.idle = append(t.passed, h.passed...), append(t.idle, h.idle...)
	addGrants(&t.grants, h.grants)
}

func (t *tally) String() string {
	if t.runs == 0 || len(t.idle) == 0 {
		return "nothing ran"
	}
	slices.Sort(t.idle)
	return fmt.Sprintf("%d runs, %.2f %% in order, passed by %s at most; a freed slot idle for %s at the median, %s at 99 %%, %s at most; grants %+v",
		t.runs, 100*float64(t.inOrder)/float64(t.runs), slices.Max(t.passed), t.idle[len(t.idle)/2], t.idle[len(t.idle)*99/100], t.idle[len(t.idle)-1], t.grants)
}

// TestClusterCrowd plays one history of four nodes with 110 % of the load that their
// machines can serve: the figures of docs/performance.md, with -short those of fewer calls.
func TestClusterCrowd(t *testing.T) {
	inCluster(t, 4, func(w *world, _ []*seat) {
		w.rng, w.draw = rand.New(rand.NewPCG(1, 3)), 1
		w.cluster.distance(w, 500*time.Microsecond)
		h := w.crowd(crowd{members: 8, machines: 16, slots: 2, calls: unlessShort(300, 100), load: 1.1})
		h.check()
		sum := new(tally)
		sum.add(h)
		t.Log(sum)
	})
}

// The limits of a share hold for the calls on all machines of its owner together, at
// whichever nodes these are: calls at once, and calls a day.
func TestPeersLimits(t *testing.T) {
	inCluster(t, 3, func(w *world, seats []*seat) {
		ann, bob := w.addMember("ann"), w.addMember("bob")
		for i, home := range seats {
			w.addMachine(ann, fmt.Sprint("box", i), 2, "m").moveTo(home)
		}
		w.must(w.db.AddShare(w.t.Context(), account.Share{
			ID: w.newID("shr_"), OwnerID: ann.ID, MemberID: bob.ID, Created: time.Now().UTC(), Limits: account.Limits{Concurrent: 2, PerDay: 9},
		}))
		w.live.Settle(w.t.Context())
		time.Sleep(40 * time.Second) // the day's calls of each node have been read
		w.set(slow(2 * time.Second))
		most := 0
		w.runs.check = func(r *run, earlier []*run) {
			running := 1
			for _, e := range earlier {
				if e.live {
					running++
				}
			}
			most = max(most, running)
		}
		var all []*answer
		for i := range 12 {
			all = append(all, w.begin(ask{by: bob, model: "m", via: seats[i%3]}))
			time.Sleep(300 * time.Millisecond)
		}
		served := 0
		for _, a := range all {
			<-a.over
			if a.served() {
				served++
			} else if a.code != "CASCADE_EXHAUSTED" {
				w.t.Error(a)
			}
		}
		assert.That(w.t, most == 2 && served == 9, most, "calls at once", served, "served")
		w.settled()
		seats[2].Load().stop() // one that starts reads what was used from the ledger
		w.startNode("hub3", w.db)
		time.Sleep(10 * time.Second)
		for _, via := range seats {
			w.wantCode(w.do(ask{by: bob, model: "m", via: via}), "CASCADE_EXHAUSTED", "")
		}
	})
}

// A key has its rate once, whatever nodes its requests come to (spec/peers.md#rates).
func TestPeersRates(t *testing.T) {
	inCluster(t, 3, func(w *world, seats []*seat) {
		ann := w.addMember("ann")
		w.addMachine(ann, "box", 20, "m").moveTo(seats[0])
		config := w.config
		config.Edge.Rate = gateway.Rate{PerSecond: 10, Burst: 40}
		for _, n := range w.nodes() {
			n.hub.Reload(config)
		}
		const seconds = 30
		var all []*answer
		for range seconds * 10 {
			for _, via := range seats {
				all = append(all, w.begin(ask{by: ann, model: "m", via: via}))
			}
			time.Sleep(100 * time.Millisecond)
		}
		served, due := 0, 40+seconds*10
		for _, a := range all {
			<-a.over
			if a.served() {
				served++
			} else if a.code != "rate_limit_exceeded" {
				w.t.Error(a)
			}
		}
		if served < due*95/100 || served > due*110/100 {
			w.t.Errorf("%d requests served of %d, want about %d", served, len(all), due)
		}
		w.settled()
	})
}
