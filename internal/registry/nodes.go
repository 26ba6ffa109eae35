package registry

import (
	"context"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
)

// AliveFor is how long a node counts as alive after its beat changed. A node that cannot
// beat for that long grants nothing either.
const AliveFor = confirmedFor

// Node is a hub node as seen by this one.
type Node struct {
	account.Node
	// Alive reports whether this node saw the other's beat change within AliveFor. It
	// uses only this node's monotonic clock, so the nodes' clocks need not agree.
	Alive bool
	// Seen is when its beat was last seen to change, or zero if never.
	Seen time.Time
}

// deadFor is how long a node's beat must be unchanged before this node removes it from
// the store. A node that shuts down normally removes itself.
const deadFor = 24 * time.Hour

// seenNode is a node with what this one has seen of its beat.
type seenNode struct {
	account.Node
	beatChanged    time.Time // zero if it never was seen to change
	unchangedSince time.Time // beatChanged or, if that is zero, when the node was first seen
}

// Nodes returns all nodes in the store by name, including this one and those of other
// regions. There are none if only one process uses the store.
func (r *Registry) Nodes(now time.Time) []Node {
	seen := r.nodes.Load()
	if seen == nil {
		return nil
	}
	nodes := make([]Node, len(*seen))
	for i, n := range *seen {
		alive := !n.beatChanged.IsZero() && now.Sub(n.beatChanged) <= AliveFor
		nodes[i] = Node{Node: n.Node, Alive: alive, Seen: n.beatChanged}
	}
	return nodes
}

// Peers returns the other nodes of this region that link to this one, alive or not.
func (r *Registry) Peers(now time.Time) []Node {
	return slices.DeleteFunc(r.Nodes(now), func(n Node) bool {
		return n.Region != r.config.Region || n.Name == r.config.Node || n.Pin == "" || n.Address == ""
	})
}

// seeNodes publishes the nodes that were returned by a poll begun at that time.
func (r *Registry) seeNodes(nodes []account.Node, at time.Time) {
	before := make(map[string]seenNode)
	if seen := r.nodes.Load(); seen != nil {
		for _, n := range *seen {
			before[n.Name] = n
		}
	}
	seen := make([]seenNode, len(nodes))
	for i, n := range nodes {
		last, known := before[n.Name]
		seen[i] = seenNode{n, last.beatChanged, last.unchangedSince}
		switch moves := n.Incarnation != last.Incarnation || n.Beat != last.Beat; {
		case !known:
			seen[i].unchangedSince = at
		case moves:
			seen[i].beatChanged, seen[i].unchangedSince = at, at
		}
		if n.Name == r.config.Node && n.State == account.NodeDraining {
			r.drainOnce.Do(func() { close(r.drained) })
		}
	}
	r.nodes.Store(&seen)
}

// removeDeadNodes removes nodes from the store whose beat has not changed for deadFor.
func (r *Registry) removeDeadNodes(ctx context.Context, now time.Time) {
	seen := r.nodes.Load()
	if seen == nil {
		return
	}
	for _, n := range *seen {
		if n.Name == r.config.Node || now.Sub(n.unchangedSince) < deadFor {
			continue
		}
		if err := r.config.Facts.RemoveNode(ctx, n.Node); err != nil {
			r.config.Log.Warn("cannot remove a hub node that has ended; trying again", "node", n.Name, "error", err)
			return
		}
		r.config.Log.Info("removed a hub node that has not been seen for a day", "node", n.Name)
	}
}
