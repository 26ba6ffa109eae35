package sim

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/peer"
	"github.com/kith/kith/internal/registry"
)

// cluster is what the nodes of a world know of each other: the table of nodes, which
// PostgreSQL has in the product.
type cluster struct {
	mu    sync.Mutex
	rows  []fleet.Node
	nodes map[string]*node // by address
	all   []*node
}

// join makes a node one of the cluster.
func (c *cluster) join(w *world, n *node, config *registry.Config) {
	n.peers = newNetwork()
	address := n.name + ":8703"
	mesh, err := peer.New(peer.Config{Log: config.Log, Dial: func(ctx context.Context, address string) (net.Conn, error) {
		c.mu.Lock()
		to := c.nodes[address]
		c.mu.Unlock()
		conn, err := to.peers.dial(ctx)
		if err != nil {
			return nil, err
		}
		return conn, nil
	}})
	w.must(err)
	n.mesh, config.Peers = mesh, mesh
	config.Facts = clusterFacts{config.Facts.(facts), c, n.name}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows = slices.DeleteFunc(c.rows, func(r fleet.Node) bool { return r.Name == n.name })
	c.rows = append(c.rows, fleet.Node{Name: n.name, Incarnation: mesh.Pin(), Region: region, Address: address, Pin: mesh.Pin()})
	c.nodes[address] = n
	c.all = append(c.all, n)
}

// clusterFacts is the store as one node of a cluster has it.
type clusterFacts struct {
	facts
	cluster *cluster
	name    string
}

// Poll is a beat of the node, as on PostgreSQL.
func (f clusterFacts) Poll(ctx context.Context, after fleet.Position) (fleet.Update, error) {
	u, err := f.facts.Poll(ctx, after)
	if err != nil {
		return u, err
	}
	f.cluster.mu.Lock()
	defer f.cluster.mu.Unlock()
	for i := range f.cluster.rows {
		if f.cluster.rows[i].Name == f.name {
			f.cluster.rows[i].Beat++
		}
	}
	u.Nodes = slices.Clone(f.cluster.rows)
	return u, nil
}

// inCluster runs a test in a world of so many nodes. The first is the world's own.
func inCluster(t *testing.T, nodes int, test func(w *world, nodes []*node)) {
	inBubble(t, func(w *world) {
		w.stopHub()
		w.cluster = &cluster{nodes: map[string]*node{}}
		w.startHub()
		all := []*node{w.node}
		for i := 1; i < nodes; i++ {
			all = append(all, w.startNode("hub"+string(rune('1'+i)), w.db))
		}
		defer func() {
			for _, n := range all[1:] {
				n.stop()
			}
			for _, m := range w.machines {
				m.stop()
			}
		}()
		time.Sleep(5 * time.Second) // each has seen the others beat
		synctest.Wait()
		test(w, all)
	})
}

// moveTo makes the machine dial that node from now on.
func (m *machine) moveTo(n *node) {
	m.at.Store(n.net)
	m.cut()
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if e := n.live.Snapshot().Machine(fleet.MachineID(m.id)); e != nil && e.Online {
			if line, ok := n.live.Line(e.ID); ok && line.Home == "" {
				return
			}
		}
	}
	m.w.t.Fatalf("%s did not connect to %s", m.name, n.name)
}

// seenBy waits until the node can route to a machine at another node.
func (m *machine) seenBy(n *node) {
	for range 100 {
		if line, ok := n.live.Line(fleet.MachineID(m.id)); ok && line.Home != "" {
			synctest.Wait()
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	m.w.t.Fatalf("%s does not know where %s is", n.name, m.name)
}

// A call at one node runs on a machine at the other, once, and is in the ledger once.
func TestPeersServe(t *testing.T) {
	for _, stream := range []bool{true, false} {
		inCluster(t, 2, func(w *world, nodes []*node) {
			ann, bob := w.addMember("ann"), w.addMember("bob")
			box := w.addMachine(ann, "box", 1, "m")
			w.share(ann, bob)
			box.moveTo(nodes[1])
			box.seenBy(nodes[0])
			for _, by := range []*member{ann, bob} {
				a := w.do(ask{by: by, model: "m", stream: stream})
				w.wantServed(a, 1)
				w.wantRecord(a, "", box)
			}
			w.settled()
		})
	}
}
