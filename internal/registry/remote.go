package registry

import (
	"context"
	"fmt"
	"net/http"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/peer"
)

// applyState publishes what another node announced of its machines. Of two tunnels of a
// machine, at two nodes, the one of the higher generation stays: supersede says how a
// tunnel here that is older ends.
func (r *Registry) applyState(ctx context.Context, p *peer.Peer, st *state) error {
	unknown, err := r.readUnknown(ctx, st.Machines)
	if err != nil {
		return err
	}
	home := p.Node.Name
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		freed := st.Left
		if st.After == 0 {
			freed = r.absent(home, st.Machines)
		}
		for _, id := range freed {
			if e := r.entries[id]; e != nil && e.home == home {
				e.home = ""
				s, _ = r.lose(s, id, returnAfterLoss)
			}
		}
		for i := range st.Machines {
			s = r.applyMachine(s, p, &st.Machines[i], unknown)
			freed = append(freed, st.Machines[i].ID)
		}
		for _, l := range st.Loads {
			if e, m := r.entries[l.ID], s.Machine(l.ID); e != nil && e.home == home && m != nil {
				setUsed(m, l)
				freed = append(freed, l.ID)
			}
		}
		return s, freed
	})
	return nil
}

// readUnknown reads from the store what it keeps of the machines that are not known
// here yet.
func (r *Registry) readUnknown(ctx context.Context, machines []announced) (map[fleet.MachineID]fleet.StoredMachine, error) {
	var ids []fleet.MachineID
	r.mu.Lock()
	for i := range machines {
		if r.entries[machines[i].ID] == nil {
			ids = append(ids, machines[i].ID)
		}
	}
	r.mu.Unlock()
	unknown := make(map[fleet.MachineID]fleet.StoredMachine, len(ids))
	for _, id := range ids {
		kept, ok, err := r.config.Facts.KeptMachine(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("cannot read machine %s: %w", id, err)
		}
		if ok {
			unknown[id] = kept
		}
	}
	return unknown, nil
}

// absent returns the machines known to be connected at a node that its complete state
// lacks. Needs mu.
func (r *Registry) absent(home string, machines []announced) (gone []fleet.MachineID) {
	there := make(map[fleet.MachineID]bool, len(machines))
	for i := range machines {
		there[machines[i].ID] = true
	}
	for id, e := range r.entries {
		if e.home == home && !there[id] {
			gone = append(gone, id)
		}
	}
	return gone
}

// applyMachine publishes a machine that is connected at another node, unless a newer
// tunnel of it is known. Needs mu.
func (r *Registry) applyMachine(s *fleet.Snapshot, p *peer.Peer, a *announced, unknown map[fleet.MachineID]fleet.StoredMachine) *fleet.Snapshot {
	e, home := r.entries[a.ID], p.Node.Name
	if e == nil {
		kept, ok := unknown[a.ID]
		if !ok { // revoked
			return s
		}
		e = &entry{kept: withoutOffers(kept), refreshed: true}
		r.entries[a.ID] = e
	}
	elsewhere := e.client != nil || e.home != "" && e.home != home
	if a.Generation < e.generation || a.Generation == e.generation && elsewhere {
		return s
	}
	m, _, err := accept(a.Advertisement)
	if err != nil {
		r.config.Log.Warn("left out a machine of another hub node", "node", home, "machine", a.ID, "error", err)
		return s
	}
	arrival := e.generation != a.Generation
	moved := e.home != home || arrival
	if moved && (e.client != nil || e.home != "") {
		r.supersede(a.ID, e, a.Instance)
		s, _ = r.lose(s, a.ID, returnAfterLoss)
	}
	e.home, e.generation, e.instance, e.kept.LastSeen = home, a.Generation, a.Instance, r.Now()
	m.Online, m.Elsewhere, m.Generation = true, true, a.Generation
	e.name(m)
	s = s.WithMachine(m)
	setUsed(m, a.Load)
	if arrival {
		r.countArrival(e, m)
	}
	if moved {
		r.lines.Store(a.ID, &connection{
			RoundTripper: &remoteLine{registry: r, peer: p, machine: a.ID, generation: a.Generation}, home: home, lost: make(chan struct{}),
		})
	}
	return s
}

// setUsed sets how many slots of a machine at another node are in use by others than
// this node. What this node uses it counts itself: the announcement is older. The offers
// are in the order of the advertisement.
func setUsed(m *fleet.Machine, l machineLoad) {
	m.Load.SetLocal(max(l.Used-m.Load.InFlight(), 0))
	for i := range min(len(m.Offers), len(l.Models)) {
		of := m.Offers[i].Load
		of.SetLocal(max(l.Models[i]-of.InFlight(), 0))
	}
}

// loseNode makes every machine that is connected at a node a returning one.
func (r *Registry) loseNode(home string) {
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		gone := r.absent(home, nil)
		for _, id := range gone {
			r.entries[id].home = ""
			s, _ = r.lose(s, id, returnAfterNode)
		}
		return s, gone
	})
}

// loseRemote makes a machine a returning one whose home says that its tunnel of that
// generation has ended. What the home announces next says more.
func (r *Registry) loseRemote(l *remoteLine) {
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		e := r.entries[l.machine]
		if e == nil || e.home != l.peer.Node.Name || e.generation != l.generation {
			return s, nil
		}
		e.home = ""
		return r.lose(s, l.machine, returnAfterLoss)
	})
}

// remoteLine is the way to a machine whose tunnel ends at another node: an
// http.RoundTripper that forwards requests to that node.
type remoteLine struct {
	registry   *Registry
	peer       *peer.Peer
	machine    fleet.MachineID
	generation int64
}

// RoundTrip sends a request to the machine by way of its home. Beside the errors of
// peer.Peer it fails as the home refused: with ErrRefused or ErrNotTaken; or with ErrLost,
// also a read of the response's body, if the machine's tunnel ended.
func (l *remoteLine) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	r.Header.Set(headerMachine, fmt.Sprintf("%s %d", l.machine, l.generation))
	response, err := l.peer.RoundTrip(r)
	if err != nil {
		l.registry.forwards.add(forwardError(r.Context(), err))
		return nil, lostBy(err)
	}
	if reason := Refusal(response.Header.Get(headerRefused)); reason != "" {
		l.registry.forwards.add(reason)
		response.Body.Close()
		return nil, l.ended(reason)
	}
	response.Body = &forwardedBody{ReadCloser: response.Body, response: response, line: l, ctx: r.Context()}
	return response, nil
}

// ended returns the error of an exchange that the home ended for that reason.
func (l *remoteLine) ended(how Refusal) error {
	if how == RefusedGone || how == RefusedMoved || how == EndedLost {
		l.registry.loseRemote(l)
	}
	return how.err()
}
