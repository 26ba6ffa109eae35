package registry

import (
	"context"
	"slices"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// aliveFor is how long a node is alive after its beat moved. A node that cannot beat
// for that time grants nothing either.
const aliveFor = confirmedFor

// Node is a hub node as this one sees it.
type Node struct {
	fleet.Node
	// Alive is whether this node saw the beat of the other move lately, by its own
	// monotonic clock: no clocks of two nodes are compared.
	Alive bool
	// Seen is when its beat was last seen to move; the zero time if it was not.
	Seen time.Time
	// Machines is how many machines have their tunnel there, as far as this node knows.
	Machines int
}

// deadFor is how long this node sees the beat of another one not move before it removes
// it from the store. A node in order removes itself when it ends.
const deadFor = 24 * time.Hour

// seenNode is a node with the time at which its beat was last seen to move; the zero
// time if it was not.
type seenNode struct {
	fleet.Node
	moved time.Time
	still time.Time // since when this node sees the beat as it is
}

// Nodes returns every node of the store, this one and those of other regions included,
// by name. There are none where one process has the store to itself.
func (r *Registry) Nodes(now time.Time) []Node {
	seen := r.nodes.Load()
	if seen == nil {
		return nil
	}
	nodes := make([]Node, len(*seen))
	for i, n := range *seen {
		nodes[i] = Node{Node: n.Node, Alive: !n.moved.IsZero() && now.Sub(n.moved) <= aliveFor, Seen: n.moved}
	}
	return nodes
}

// NodeDetails returns Nodes with what this node knows of each beside its row.
func (r *Registry) NodeDetails(now time.Time) []Node {
	machines := make(map[string]int)
	r.mu.Lock()
	for _, e := range r.entries {
		switch {
		case e.client != nil:
			machines[r.config.Node]++
		case e.home != "":
			machines[e.home]++
		}
	}
	r.mu.Unlock()
	nodes := r.Nodes(now)
	for i := range nodes {
		nodes[i].Machines = machines[nodes[i].Name]
	}
	return nodes
}

// Peers returns the other nodes of this region, which link to this one, alive or not.
func (r *Registry) Peers(now time.Time) []Node {
	return slices.DeleteFunc(r.Nodes(now), func(n Node) bool {
		return n.Region != r.config.Region || n.Name == r.config.Node || n.Pin == "" || n.Address == ""
	})
}

// seeNodes publishes the nodes that a poll returned at that time.
func (r *Registry) seeNodes(nodes []fleet.Node, at time.Time) {
	before := make(map[string]seenNode)
	if seen := r.nodes.Load(); seen != nil {
		for _, n := range *seen {
			before[n.Name] = n
		}
	}
	seen := make([]seenNode, len(nodes))
	for i, n := range nodes {
		last, known := before[n.Name]
		seen[i] = seenNode{n, last.moved, last.still}
		switch moves := n.Incarnation != last.Incarnation || n.Beat != last.Beat; {
		case !known:
			seen[i].still = at
		case moves:
			seen[i].moved, seen[i].still = at, at
		}
		if n.Name == r.config.Node && n.State == fleet.NodeDraining {
			r.drainOnce.Do(func() { close(r.drained) })
		}
	}
	r.nodes.Store(&seen)
}

// removeDeadNodes removes the nodes from the store whose beat has not moved for deadFor.
func (r *Registry) removeDeadNodes(ctx context.Context, now time.Time) {
	seen := r.nodes.Load()
	if seen == nil {
		return
	}
	for _, n := range *seen {
		if n.Name == r.config.Node || now.Sub(n.still) < deadFor {
			continue
		}
		if err := r.config.Facts.RemoveNode(ctx, n.Node); err != nil {
			r.config.Log.Warn("cannot remove a hub node that has ended; trying again", "node", n.Name, "error", err)
			return
		}
		r.config.Log.Info("removed a hub node that has not been seen for a day", "node", n.Name)
	}
}
