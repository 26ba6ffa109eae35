package registry

import (
	"context"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

const (
	// moveSpread is the maximum duration of asking all machines of this node to move.
	// moveEvery is the maximum pause between two of them.
	moveSpread = time.Minute
	moveEvery  = 100 * time.Millisecond
	// moveWithin is the timeout for a machine's response.
	moveWithin = 5 * time.Second
)

// DrainAsked returns a channel that is closed when this node's row in the store has the
// state draining.
func (r *Registry) DrainAsked() <-chan struct{} { return r.drained }

// HasSuccessor reports whether another node can take over the machines and callers of a
// node. It has to be in the same region, because machines connect to no other.
func (r *Registry) HasSuccessor(name string, now time.Time) bool {
	nodes := r.Nodes(now)
	at := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == name })
	return at >= 0 && slices.ContainsFunc(nodes, func(n Node) bool {
		return n.Name != name && n.Region == nodes[at].Region && n.Alive && n.State != account.NodeDraining
	})
}

// MachinesByNode returns the number of machines whose tunnel ends at each node, as far as
// this node knows.
func (r *Registry) MachinesByNode() map[string]int {
	machines := make(map[string]int)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		switch {
		case e.client != nil:
			machines[r.config.Node]++
		case e.home != "":
			machines[e.home]++
		}
	}
	return machines
}

// MachinesHere returns the number of machines whose tunnel ends at this node, not
// counting tunnels that are only kept open for running calls.
func (r *Registry) MachinesHere() int { return r.MachinesByNode()[r.config.Node] }

// Move asks each machine whose tunnel ends here to open another tunnel, one machine after
// another, and returns when all were asked or ctx ends (spec/tunnel.md#move). A machine
// is used by its tunnel here until another node announces the new one; running calls then
// finish on the old one. A machine that cannot move is disconnected when no call runs on
// it.
func (r *Registry) Move(ctx context.Context) {
	type machine struct {
		id     fleet.MachineID
		client *tunnel.Client
	}
	var machines []machine
	r.mu.Lock()
	for id, e := range r.entries {
		if e.client != nil {
			machines = append(machines, machine{id, e.client})
		}
	}
	r.mu.Unlock()
	if len(machines) == 0 {
		return
	}
	pause := time.NewTicker(min(moveEvery, moveSpread/time.Duration(len(machines))))
	defer pause.Stop()
	for _, m := range machines {
		go r.move(ctx, m.id, m.client)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

// move asks one machine to open another tunnel.
func (r *Registry) move(ctx context.Context, id fleet.MachineID, client *tunnel.Client) {
	r.mu.Lock()
	e := r.entries[id]
	if e == nil || e.client != client {
		r.mu.Unlock()
		return
	}
	e.moving = true // before the new tunnel can be announced
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, moveWithin)
	defer cancel()
	err := client.Move(ctx)
	if err == nil {
		return
	}
	r.config.Log.Info("cannot make a machine move; disconnecting it after its calls", "machine", id, "error", err)
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		if e := r.entries[id]; e == nil || e.client != client {
			return s, nil
		}
		r.retire(id, client)
		r.entries[id].client, r.entries[id].moving = nil, false
		return r.lose(s, id, returnAfterNode)
	})
}
