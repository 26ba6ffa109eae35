package sim

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/cluster"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/registry"
)

var clusterSeedsFlag = flag.Int("cluster-seeds", 0, "how many histories of several nodes to play; 0: 100, with -short 8")

// nodeTable is what the nodes of a world know of each other: the table of nodes, which
// PostgreSQL has in the product.
type nodeTable struct {
	seats []*seat

	mu   sync.Mutex
	rows []account.Node
	cuts map[*seat]time.Time // nodes whose peers do not reach them, until then
}

// seat is the node of one name, in its present life.
type seat struct{ atomic.Pointer[node] }

// nodes returns the hub nodes that there are.
func (w *world) nodes() []*node {
	if w.cluster == nil {
		return []*node{w.node}
	}
	var all []*node
	for _, s := range w.cluster.seats {
		all = append(all, s.Load())
	}
	return all
}

// join makes a node one of the cluster.
func (c *nodeTable) join(w *world, n *node, config *registry.Config) {
	n.peers = newNetwork()
	others, err := cluster.New(cluster.Config{Log: config.Log, Dial: func(ctx context.Context, address string) (net.Conn, error) { return c.dial(ctx, n.name, address) }})
	w.must(err)
	n.others = others
	n.notifies.Store(true)
	config.Facts = clusterFacts{config.Facts.(facts), c, others.Pin()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows = slices.DeleteFunc(c.rows, func(r account.Node) bool { return r.Name == n.name })
	c.rows = append(c.rows, account.Node{Name: n.name, Incarnation: others.Pin(), Region: region, Address: n.name + ":8703", Pin: others.Pin()})
	at := slices.IndexFunc(c.seats, func(s *seat) bool { return s.Load().name == n.name })
	if at < 0 {
		at = len(c.seats)
		c.seats = append(c.seats, new(seat))
	}
	c.seats[at].Store(n)
}

// dial is the way of one node to another.
func (c *nodeTable) dial(ctx context.Context, from, address string) (net.Conn, error) {
	c.mu.Lock()
	at := slices.IndexFunc(c.seats, func(s *seat) bool { return s.Load().name+":8703" == address })
	to := c.seats[at]
	away := time.Now().Before(c.cuts[to])
	c.mu.Unlock()
	if away {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: errNoRoute}
	}
	peers := to.Load().peers
	conn, err := peers.dial(ctx)
	if err != nil {
		return nil, err
	}
	peers.mu.Lock()
	conn.link.from = from
	peers.mu.Unlock()
	return conn, nil
}

// links returns the links over which one node sends calls to another; none if they are
// the same.
func (c *nodeTable) links(from, to *seat) []*link {
	peers, name := to.Load().peers, from.Load().name
	peers.mu.Lock()
	defer peers.mu.Unlock()
	var found []*link
	for l := range peers.links {
		if l.from == name {
			found = append(found, l)
		}
	}
	return found
}

// cut breaks the links to a node; no other is made for so long.
func (c *nodeTable) cut(to *seat, away time.Duration) {
	c.mute(to, away)
	to.Load().peers.cut()
}

// swallow makes the links to a node lose everything from now on.
func (c *nodeTable) swallow(to *seat) {
	n := to.Load().peers
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.links {
		l.lost.Store(true)
	}
}

// clusterFacts is the store as one node of a cluster has it.
type clusterFacts struct {
	facts
	cluster     *nodeTable
	incarnation string
}

// Poll is a beat of the node, as on PostgreSQL.
func (f clusterFacts) Poll(ctx context.Context, after account.Position) (account.StoreState, []fleet.Change, error) {
	state, changes, err := f.facts.Poll(ctx, after)
	if err != nil {
		return state, changes, err
	}
	f.cluster.mu.Lock()
	defer f.cluster.mu.Unlock()
	for i := range f.cluster.rows {
		if f.cluster.rows[i].Incarnation == f.incarnation {
			f.cluster.rows[i].Beat++
		}
	}
	state.Nodes = slices.Clone(f.cluster.rows)
	return state, changes, nil
}

// inCluster runs a test in a world of so many nodes. The first is the world's own.
func inCluster(t *testing.T, nodes int, test func(w *world, seats []*seat)) {
	inBubble(t, func(w *world) {
		w.stopHub()
		w.cluster = &nodeTable{}
		w.startHub()
		for i := 2; i <= nodes; i++ {
			w.startNode(fmt.Sprint("hub", i), w.db)
		}
		defer func() {
			for _, m := range w.machines {
				m.stop()
			}
			for _, s := range w.cluster.seats[1:] {
				s.Load().stop()
			}
		}()
		time.Sleep(5 * time.Second) // each has seen the others beat
		synctest.Wait()
		test(w, w.cluster.seats)
	})
}

// moveTo makes the machine dial that node from now on, and waits until all nodes know.
func (m *machine) moveTo(to *seat) {
	m.at.Store(to)
	m.cut()
	for range 200 {
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		known := 0
		for _, n := range m.w.nodes() {
			if line, ok := n.live.Line(fleet.MachineID(m.id)); ok && (line.Home == "") == (n == to.Load()) {
				known++
			}
		}
		if known == len(m.w.nodes()) {
			return
		}
	}
	m.w.t.Fatalf("not all nodes know that %s is at %s", m.name, to.Load().name)
}

// A call at one node runs on a machine at another, once, and is in the ledger once.
func TestPeersServe(t *testing.T) {
	for _, stream := range []bool{true, false} {
		inCluster(t, 3, func(w *world, seats []*seat) {
			ann, bob, box := w.addShared(1)
			for _, home := range seats {
				box.moveTo(home)
				for _, by := range []*member{ann, bob} {
					for _, via := range seats {
						a := w.do(ask{by: by, model: "m", stream: stream, via: via})
						w.wantServed(a, 1)
						w.wantRecord(a, "", box)
					}
				}
			}
			w.settled()
		})
	}
}

// Each node knows what a machine of another node reports of itself.
func TestPeersKnowFacts(t *testing.T) {
	inCluster(t, 3, func(w *world, seats []*seat) {
		_, box := w.addBox(1)
		for _, home := range seats {
			box.moveTo(home)
			w.settled()
			for _, s := range seats {
				m := s.Load().live.Snapshot().Machine(fleet.MachineID(box.id))
				assert.Require(w.t, m.Facts != nil && m.Facts.Kith == "sim" && len(m.Facts.Engines) == 1 && m.Remote == (s != home), m)
			}
		}
	})
}

// A call for several answers holds a slot for each at the home of its machine.
func TestPeersCountAnswers(t *testing.T) {
	inCluster(t, 2, func(w *world, seats []*seat) {
		ann, box := w.addBox(4)
		box.moveTo(seats[1])
		w.set(slow(10 * time.Second))
		a := w.begin(ask{by: ann, model: "m", n: 3})
		w.begun(a)
		held := func() int {
			return int(seats[1].Load().live.Snapshot().Machine(fleet.MachineID(box.id)).Load.InFlight())
		}
		assert.Equal(w.t, held(), 3, "slots are held for 3 answers")
		<-a.over
		w.settled()
		assert.Equal(w.t, held(), 0, "afterwards", "slots are held")
	})
}

// The home of a machine checks the caller's reach by its own snapshot: an entry that
// does not know of a revocation yet gives no more than the home does.
func TestPeersReachIsCheckedAtHome(t *testing.T) {
	inCluster(t, 2, func(w *world, seats []*seat) {
		ann, bob, box := w.addShared(1)
		box.moveTo(seats[1])
		w.wantServed(w.do(ask{by: bob, model: "m"}), 1)
		w.down.Store(true) // the entry cannot read what changes
		w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
		time.Sleep(1100 * time.Millisecond)
		a := w.do(ask{by: bob, model: "m"})
		assert.That(w.t, !a.served() && len(w.runs.of(a.tag)) == 0, "it ran out of reach", a)
		w.down.Store(false)
	})
}

// A share that ends, ends the runs of other nodes' calls within 5 s, also if the node
// that has the caller cannot read that.
func TestPeersHomeEndsRevoked(t *testing.T) {
	for _, blind := range []bool{false, true} {
		for _, stream := range []bool{true, false} {
			inCluster(t, 2, func(w *world, seats []*seat) {
				ann, bob, box := w.addShared(1)
				box.moveTo(seats[1])
				w.set(paced(time.Second))
				a := w.begin(ask{by: bob, model: "m", stream: stream, words: 100})
				w.begun(a)
				time.Sleep(10 * time.Second)
				w.down.Store(blind)
				ended := time.Now()
				w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
				<-a.over
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				assert.That(w.t, !a.done && a.code != "" && a.err == nil, "blind", blind, a)
				if r := w.runs.of(a.tag)[0]; r.live || r.left.Sub(ended) > bound {
					w.t.Errorf("blind %v: it ran on for %s: %s", blind, r.left.Sub(ended), a)
				}
				w.down.Store(false)
				w.settled()
			})
		}
	}
}

// A call whose caller leaves ends on the machine of another node.
func TestPeersClientLeaves(t *testing.T) {
	inCluster(t, 2, func(w *world, seats []*seat) {
		ann, box := w.addBox(1)
		box.moveTo(seats[1])
		w.set(paced(time.Second))
		a := w.begin(ask{by: ann, model: "m", stream: true, words: 100, leave: 5 * time.Second})
		<-a.over
		w.stopped(box)
		w.settled()
	})
}

// Row 22 of docs/faults.md: the node of the machine is gone before the first byte.
func TestFault22OtherHubDiesBeforeFirstByte(t *testing.T) {
	for name, die := range faultsOfNodes {
		both := []bool{true, false}
		for _, stream := range both {
			inCluster(t, 2, func(w *world, seats []*seat) {
				ann, box := w.addBox(1)
				spare := w.addMachine(ann, "spare", 1, "m")
				box.moveTo(seats[1])
				spare.setAway(true)
				time.Sleep(30 * time.Second)
				box.engine.Set(slow(time.Minute))
				a := w.begin(ask{by: ann, model: "m", stream: stream})
				w.begun(a)
				spare.setAway(false)
				w.routable(spare)
				die(w, seats[1])
				<-a.over
				if w.wantServed(a, 2); w.on(a) != spare || a.took() > time.Minute {
					w.t.Errorf("%s: %s", name, a)
				}
				w.wantRecord(a, "", spare)
			})
		}
	}
}

// A call whose key is revoked fails for that also where the machine's node is the first
// to know: it does not move on while its own node comes to know, too.
func TestPeersKeyRevokedUnderway(t *testing.T) {
	inCluster(t, 2, func(w *world, seats []*seat) {
		ann, box := w.addBox(1)
		box.moveTo(seats[1])
		box.lingers = time.Second
		box.engine.Set(slow(time.Minute))
		a := w.begin(ask{by: ann, model: "m"})
		w.begun(a)
		w.addMachine(ann, "spare", 1, "m")
		w.down.Store(true) // the entry cannot read what changes
		w.must(w.db.RevokeKey(w.t.Context(), ann.key.ID, time.Now()))
		seats[1].Load().live.Settle(w.t.Context())
		time.Sleep(500 * time.Millisecond)
		w.down.Store(false)
		w.live.Settle(w.t.Context())
		<-a.over
		w.wantCode(a, "invalid_api_key", "")
		assert.Equal(w.t, w.runs.where(a.tag), "box ", "it ran on")
	})
}

// A call whose link to the node of its machine loses everything begins elsewhere only when
// the machine has stopped: while other links live, and when they are lost a moment later
// (spec/peers.md#link-lost).
func TestPeersLinksLostInTurn(t *testing.T) {
	for _, stream := range []bool{true, false} {
		for _, all := range []bool{true, false} {
			inCluster(t, 2, func(w *world, seats []*seat) {
				ann, box := w.addBox(1)
				box.moveTo(seats[1])
				box.lingers = time.Second
				box.engine.Set(slow(time.Minute))
				time.Sleep(17 * time.Millisecond) // no ping is sent now
				a := w.begin(ask{by: ann, model: "m", stream: stream})
				w.begun(a)
				spare := w.addMachine(ann, "spare", 1, "m")
				lost := 0
				for _, l := range w.cluster.links(seats[0], seats[1]) {
					if l.used.Load() == a.began.UnixNano() {
						l.lost.Store(true)
						lost++
					}
				}
				assert.Require(w.t, lost == 1, lost, "links carry the call")
				if all {
					time.Sleep(2 * time.Second)
					w.cluster.swallow(seats[1])
				}
				<-a.over
				time.Sleep(10 * time.Second)
				w.wantServed(a, 2)
				if got := w.runs.of(a.tag); got[1].machine != spare || got[1].at.Before(got[0].left) {
					w.t.Errorf("all links %v: it ran from %s to %s, then from %s: %s", all, got[0].at, got[0].left, got[1].at, a)
				}
			})
		}
	}
}

// faultsOfNodes are the ways in which a node goes away.
var faultsOfNodes = map[string]func(*world, *seat){
	"cut off":     func(w *world, s *seat) { w.cluster.cut(s, time.Minute) },
	"black-holed": func(w *world, s *seat) { w.cluster.swallow(s); w.cluster.mute(s, time.Minute) },
	"dead":        func(w *world, s *seat) { s.Load().stop() },
}

// mute lets no new link to a node be made for so long.
func (c *nodeTable) mute(to *seat, away time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cuts == nil {
		c.cuts = map[*seat]time.Time{}
	}
	c.cuts[to] = time.Now().Add(away)
}

// Row 23 of docs/faults.md: the node of the machine is gone in the middle of a stream.
func TestFault23OtherHubDiesUnderway(t *testing.T) {
	for name, die := range faultsOfNodes {
		inCluster(t, 2, func(w *world, seats []*seat) {
			ann, box := w.addBox(1)
			w.addMachine(ann, "spare", 1, "n")
			box.moveTo(seats[1])
			w.set(paced(2 * time.Second))
			a := w.begin(ask{by: ann, model: "m", stream: true, words: 50})
			w.begun(a)
			time.Sleep(10 * time.Second)
			died := time.Now()
			die(w, seats[1])
			<-a.over
			w.wantCode(a, "machine_offline", "")
			if !a.framed || a.text == "" || !strings.HasPrefix(a.said, a.text) || len(w.runs.of(a.tag)) != 1 || a.ended.Sub(died) > 6*time.Second {
				w.t.Errorf("%s, after %s: %s", name, a.ended.Sub(died), a)
			}
			w.wantRecord(a, "machine_offline", box)
			if found := w.live.Snapshot().Machine(fleet.MachineID(box.id)); found.Online || !found.ReturningUntil.After(time.Now()) {
				w.t.Errorf("%s: the machine is not returning", name)
			}
			box.at.Store(seats[0]) // as its load balancer does
			box.cut()
			time.Sleep(20 * time.Second)
			box.engine.Set(paced(0))
			w.wantServed(w.do(ask{by: ann, model: "m"}), 1)
		})
	}
}

// happens does one thing to the nodes.
func (c *nodeTable) happens(w *world) {
	at := pick(w.rng, c.seats...)
	for _, m := range w.machines {
		m.disturb()
	}
	switch w.rng.IntN(4) {
	case 0:
		c.cut(at, 0)
	case 1:
		c.cut(at, time.Duration(w.rng.Int64N(int64(8*time.Second))))
	case 2:
		c.swallow(at)
	default:
		m := pick(w.rng, w.machines...)
		m.at.Store(at)
		m.cut()
	}
}

// TestClusterSeeds plays the histories of TestSeeds on two or three nodes: calls and
// machines come to any of them, machines move, links break.
func TestClusterSeeds(t *testing.T) {
	all := new(delays)
	t.Cleanup(func() { t.Logf("from the commit to the end of what it ended, in false time:\n%s", all) })
	eachSeed(t, cmp.Or(*clusterSeedsFlag, unlessShort(100, 8)), func(t *testing.T, seed uint64) {
		inCluster(t, 2+int(seed%2), func(w *world, _ []*seat) {
			w.rng = rand.New(rand.NewPCG(seed, 1))
			w.play(seed, all)
		})
	})
}
