package hub

import (
	"context"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/cluster"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/registry"
)

// nodes returns the nodes as seen by this one. A hub that uses its database alone is the
// only node.
func (h *Hub) nodes() []api.Node {
	now := time.Now()
	seen := h.live.Nodes(now)
	if len(seen) == 0 {
		state := account.NodeServing
		if h.drain.begun.Load() {
			state = account.NodeDraining
		}
		return []api.Node{{
			Name: h.cfg.Node, Region: h.cfg.Region, Address: h.cfg.Site.Base, Version: h.cfg.Edge.Version, State: state, Started: h.started,
			Alive: true, Seen: now, Linked: true, Here: true, Machines: h.live.MachinesHere(), Calls: h.Calls(),
		}}
	}
	nodes, machines := make([]api.Node, len(seen)), h.live.MachinesByNode()
	var peers []cluster.Peer
	if h.cfg.Cluster != nil {
		peers = h.cfg.Cluster.Peers(now)
	}
	for i, n := range seen {
		nodes[i] = api.Node{
			Name: n.Name, Region: n.Region, Address: n.Address, Version: n.Version, State: n.State, Started: n.Started,
			Alive: n.Alive, Seen: n.Seen, Here: n.Name == h.cfg.Node, Machines: machines[n.Name],
		}
		if nodes[i].Here {
			nodes[i].Linked, nodes[i].Calls = true, h.Calls()
		} else if at := slices.IndexFunc(peers, func(p cluster.Peer) bool { return p.Name == n.Name }); at >= 0 {
			nodes[i].Linked, nodes[i].Calls = peers[at].Connected, peers[at].Calls
		}
	}
	return nodes
}

// drainNode makes a node drain: the node reads this at its next heartbeat.
func (h *Hub) drainNode(ctx context.Context, name string) error {
	now := time.Now()
	nodes := h.live.Nodes(now)
	switch {
	case len(nodes) == 0:
		return fault.New(fault.InvalidRequest, "this hub is the only node: no other one takes its machines; end it with SIGTERM, and it lets the calls that run end")
	case !slices.ContainsFunc(nodes, func(n registry.Node) bool { return n.Name == name && n.Alive }):
		return fault.New(fault.NotFound, "no node named %q is alive; kith admin nodes shows which are", name)
	case !h.live.HasSuccessor(name, now):
		return fault.New(fault.InvalidRequest, "node %q is the last of its region that serves: start another one first, or end it with SIGTERM", name)
	}
	return h.cfg.DB.SetNodeState(ctx, name, account.NodeDraining)
}

// home returns the name of the node with the machine's tunnel, or "" if it has no tunnel.
func (h *Hub) home(id fleet.MachineID) string {
	line, ok := h.live.Line(id)
	if ok && line.Home == "" {
		return h.cfg.Node
	}
	return line.Home
}
