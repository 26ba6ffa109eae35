package hub

import (
	"context"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// nodes returns the nodes as this one sees them. A hub that has its database to itself
// is the only one.
func (h *Hub) nodes() []api.Node {
	now := time.Now()
	survey := h.live.Survey(now)
	if len(survey) == 0 {
		state := fleet.NodeServing
		if h.drain.begun.Load() {
			state = fleet.NodeDraining
		}
		return []api.Node{{
			Name: h.cfg.Node, Region: h.cfg.Region, Address: h.cfg.Site.Base, Version: h.cfg.Edge.Version, State: state, Started: h.started,
			Alive: true, Seen: now, Linked: true, Here: true, Machines: h.live.Here(), Calls: h.Calls(),
		}}
	}
	nodes := make([]api.Node, len(survey))
	for i, n := range survey {
		nodes[i] = api.Node{
			Name: n.Name, Region: n.Region, Address: n.Address, Version: n.Version, State: n.State, Started: n.Started,
			Alive: n.Alive, Seen: n.Seen, Linked: n.Linked, Here: n.Name == h.cfg.Node, Machines: n.Machines, Calls: n.Calls,
		}
	}
	return nodes
}

// drainNode has a node drain: it reads that with its next beat.
func (h *Hub) drainNode(ctx context.Context, name string) error {
	survey := h.live.Survey(time.Now())
	alive, successor := false, false
	for _, n := range survey {
		switch {
		case n.Name == name:
			alive = n.Alive
		case n.Alive && n.State != fleet.NodeDraining:
			successor = true
		}
	}
	switch {
	case len(survey) == 0:
		return fault.New(fault.InvalidRequest, "this hub is the only node: no other one takes its machines; end it with SIGTERM, and it lets the calls that run end")
	case !alive:
		return fault.New(fault.RouteNotFound, "no node named %q is alive; kith admin nodes shows which are", name)
	case !successor:
		return fault.New(fault.InvalidRequest, "node %q is the last that serves: start another one first, or end it with SIGTERM", name)
	}
	return h.cfg.DB.SetNodeState(ctx, name, fleet.NodeDraining)
}

// home returns the name of the node at which the machine's tunnel ends; empty if it has
// none.
func (h *Hub) home(id fleet.MachineID) string {
	line, ok := h.live.Line(id)
	if ok && line.Home == "" {
		return h.cfg.Node
	}
	return line.Home
}
