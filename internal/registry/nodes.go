package registry

import (
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
}

// seenNode is a node with the time at which its beat was last seen to move; the zero
// time if it was not.
type seenNode struct {
	fleet.Node
	moved time.Time
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
		nodes[i] = Node{n.Node, !n.moved.IsZero() && now.Sub(n.moved) <= aliveFor}
	}
	return nodes
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
		seen[i] = seenNode{n, last.moved}
		if known && (n.Incarnation != last.Incarnation || n.Beat != last.Beat) {
			seen[i].moved = at
		}
	}
	r.nodes.Store(&seen)
}
