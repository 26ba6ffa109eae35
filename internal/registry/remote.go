package registry

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// Others is the other hub nodes of the region (package cluster). The registry calls its
// methods while it holds its lock, unless noted otherwise.
type Others interface {
	// Connected is called when a machine connects here, and when it advertises a change
	// other than its load.
	Connected(*Announced)
	// LoadChanged is called when a machine that is connected here has reserved or released
	// slots itself.
	LoadChanged(fleet.MachineID)
	// Disconnected is called when a machine is no longer connected here.
	Disconnected(fleet.MachineID)
	// Polled is called after each poll of the store, without the lock.
	Polled()
	// Silent reports, without the lock, whether another node is alive but has not been
	// heard for a while: a machine may have moved there.
	Silent(now time.Time) bool
}

// Announced is a machine that is connected to a hub node, as the node announces it.
type Announced struct {
	ID            fleet.MachineID      `json:"id"`
	Generation    int64                `json:"generation"`
	Instance      string               `json:"instance"`      // id of the daemon's process
	Advertisement tunnel.Advertisement `json:"advertisement"` // as accepted by the node
	Load          MachineLoad          `json:"load"`
}

// MachineLoad is the number of a machine's slots in use, by any node or the machine
// itself: in total, and for each model in the order of the advertisement.
type MachineLoad struct {
	ID     fleet.MachineID `json:"id"`
	Used   int             `json:"used"`
	Models []int           `json:"models,omitempty"`
}

// NodeState is what another hub node announced about the machines that are connected to
// it.
type NodeState struct {
	// Complete means that Machines are all machines that are connected there.
	Complete bool
	Machines []Announced
	Left     []fleet.MachineID
	Loads    []MachineLoad
	// Way returns a RoundTripper that sends requests to one of the machines.
	Way func(*Announced) http.RoundTripper
}

// ApplyState publishes what another node announced. If a machine has tunnels at two
// nodes, the one with the higher generation stays; replaceTunnel ends an older one at this
// node. ApplyState fails if the store cannot be read, and then publishes nothing.
func (r *Registry) ApplyState(ctx context.Context, node string, st *NodeState) error {
	unknown, err := r.readUnknown(ctx, st.Machines)
	if err != nil {
		return err
	}
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		notify := st.Left
		if st.Complete {
			notify = r.absent(node, st.Machines)
		}
		for _, id := range notify {
			if e := r.entries[id]; e != nil && e.home == node {
				e.home = ""
				s, _ = r.lose(s, id, returnAfterLoss)
			}
		}
		for i := range st.Machines {
			s = r.setMachine(s, node, st, &st.Machines[i], unknown)
			notify = append(notify, st.Machines[i].ID)
		}
		for _, l := range st.Loads {
			if e, m := r.entries[l.ID], s.Machine(l.ID); e != nil && e.home == node && m != nil {
				setUsed(m, l)
				notify = append(notify, l.ID)
			}
		}
		return s, notify
	})
	return nil
}

// readUnknown reads the stored records of the machines that this node does not know yet.
func (r *Registry) readUnknown(ctx context.Context, machines []Announced) (map[fleet.MachineID]account.Machine, error) {
	var ids []fleet.MachineID
	r.mu.Lock()
	for i := range machines {
		if r.entries[machines[i].ID] == nil {
			ids = append(ids, machines[i].ID)
		}
	}
	r.mu.Unlock()
	unknown := make(map[fleet.MachineID]account.Machine, len(ids))
	for _, id := range ids {
		stored, ok, err := r.config.Facts.ActiveMachine(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("cannot read machine %s: %w", id, err)
		}
		if ok {
			unknown[id] = stored
		}
	}
	return unknown, nil
}

// absent returns the machines that are connected to that node as far as this one knows,
// but are missing from the machines of its complete state. mu must be held.
func (r *Registry) absent(node string, machines []Announced) (gone []fleet.MachineID) {
	there := make(map[fleet.MachineID]bool, len(machines))
	for i := range machines {
		there[machines[i].ID] = true
	}
	for id, e := range r.entries {
		if e.home == node && !there[id] {
			gone = append(gone, id)
		}
	}
	return gone
}

// setMachine publishes a machine that is connected to another node, unless a newer tunnel
// of it is known. mu must be held.
func (r *Registry) setMachine(s *fleet.Snapshot, node string, st *NodeState, a *Announced, unknown map[fleet.MachineID]account.Machine) *fleet.Snapshot {
	e := r.entries[a.ID]
	if e == nil {
		stored, ok := unknown[a.ID]
		if !ok { // revoked
			return s
		}
		e = &entry{stored: withoutOffers(stored), changedSinceAttach: true}
		r.entries[a.ID] = e
	}
	elsewhere := e.client != nil || e.home != "" && e.home != node
	if a.Generation < e.generation || a.Generation == e.generation && elsewhere {
		return s
	}
	m, _, err := accept(a.Advertisement)
	if err != nil {
		r.config.Log.Warn("left out a machine of another hub node", "node", node, "machine", a.ID, "error", err)
		return s
	}
	arrival := e.generation != a.Generation
	moved := e.home != node || arrival
	if moved && (e.client != nil || e.home != "") {
		r.replaceTunnel(a.ID, e, a.Instance)
		s, _ = r.lose(s, a.ID, returnAfterLoss)
	}
	e.home, e.generation, e.instance, e.stored.LastSeen = node, a.Generation, a.Instance, r.Now()
	m.Online, m.Remote, m.Generation = true, true, a.Generation
	e.setStored(m)
	s = s.WithMachine(m)
	setUsed(m, a.Load)
	if arrival {
		r.countArrival(e, m)
	}
	if moved {
		r.lines.Store(a.ID, &connection{RoundTripper: st.Way(a), home: node, gone: make(chan struct{})})
	}
	return s
}

// setUsed sets how many slots of a machine at another node are in use by anyone but this
// node: these count as local there, as the slots that a machine of this node uses itself.
// This node counts the slots of its own calls itself, because the announcement is older.
// The offers are in the order of the advertisement.
func setUsed(m *fleet.Machine, l MachineLoad) {
	m.Load.SetLocal(max(l.Used-m.Load.InFlight(), 0))
	for i := range min(len(m.Offers), len(l.Models)) {
		load := m.Offers[i].Load
		load.SetLocal(max(l.Models[i]-load.InFlight(), 0))
	}
}

// LoseNode marks all machines that are connected to that node as returning.
func (r *Registry) LoseNode(node string) {
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		gone := r.absent(node, nil)
		for _, id := range gone {
			r.entries[id].home = ""
			s, _ = r.lose(s, id, returnAfterNode)
		}
		return s, gone
	})
}

// LoseMachine marks a machine as returning, after its home reported the end of its
// tunnel of that generation. Anything that the home announces afterwards is newer.
func (r *Registry) LoseMachine(node string, id fleet.MachineID, generation int64) {
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		e := r.entries[id]
		if e == nil || e.home != node || e.generation != generation {
			return s, nil
		}
		e.home = ""
		return r.lose(s, id, returnAfterLoss)
	})
}
