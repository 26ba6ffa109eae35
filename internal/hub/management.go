package hub

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/cluster"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/site"
)

// newAPI returns the management API for this hub's database and registry.
func (h *Hub) newAPI() *api.API {
	return api.New(api.Config{
		DB:       h.cfg.DB,
		Region:   h.cfg.Region,
		Regions:  h.cfg.Regions,
		Identify: h.Identify,
		Snapshot: h.live.Snapshot,
		Models:   h.accountModels,
		Running:  h.calls.Running,
		Waiting:  h.calls.Waiting,
		Queued:   h.calls.Queued,
		KeyLoad:  h.calls.KeyLoad,
		Control:  h.live.Control,
		Seal:     h.live.Seal,
		Files:    h.live.FileAct,
		Ready:    h.Ready,
		Nodes:    h.nodes, Home: h.home, DrainNode: h.drainNode,
		Reload:    h.cfg.ReloadConfig,
		Changed:   h.live.Settle,
		Admit:     h.edge.Admit,
		Miss:      h.edge.Miss,
		Guess:     h.guess,
		Confirmed: h.live.Confirmed,
		Trace:     h.traces.Get,
		Flush:     func(ctx context.Context) error { return errors.Join(h.ledger.Flush(ctx), h.traces.Flush(ctx)) },
		Open:      h.ledger.Open,
		Log:       h.log,
	})
}

// accountModels returns the models that the account can reach, including those of the
// machine that asks.
func (h *Hub) accountModels(ctx context.Context, c fleet.Caller) ([]api.Model, error) {
	c.Machine = ""
	models, err := h.calls.Models(ctx, c)
	out := make([]api.Model, len(models))
	for i, m := range models {
		out[i] = api.Model{
			ID: m.ID, ContextLength: m.ContextLength, Capabilities: m.Capabilities,
			Availability: string(m.Availability), Via: m.Via.String(), Owner: m.Owner, Chat: m.Chat, Machines: m.Machines,
		}
	}
	return out, err
}

// newSite returns the members' pages, which use the management API.
func (h *Hub) newSite() *site.Site {
	c := h.cfg.Site
	c.Edge, c.Health, c.Limits, c.BusyClients = h.drain.counted(h.edge.ServeHTTP), h.health, h.limits, h.busyClients
	c.Call = func(w http.ResponseWriter, r *http.Request, who fleet.Caller) {
		h.drain.counted(func(w http.ResponseWriter, r *http.Request) { h.edge.ServeAs(w, r, who) })(w, r)
	}
	return site.New(h.api, c)
}

// Operator returns the operator's part of the management API, for the socket in the hub's
// data directory.
func (h *Hub) Operator() http.Handler { return h.api.Operator() }

// FirstLink returns the address of a new one-time link to the account of the hub's first
// operator, or "" if an operator can already sign in.
func (h *Hub) FirstLink(ctx context.Context) (string, error) { return h.api.FirstLink(ctx) }

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
