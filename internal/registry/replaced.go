package registry

import (
	"context"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

const (
	// idleFor is how long a replaced tunnel must be without calls before it is closed. A
	// call that chose the tunnel just before it was replaced starts within that time.
	idleFor = time.Second
	// idleCheck is the interval of these checks.
	idleCheck = 100 * time.Millisecond
)

// replaceTunnel stops using the machine's current tunnel, because a newer tunnel from that
// daemon instance exists (spec/tunnel.md#instance). What happens to the old tunnel:
//
//  1. If the newer tunnel is from another instance, the credential was copied: endTunnels
//     fences the old one.
//  2. If the same daemon was asked to move, endWhenIdle closes it after its last call.
//  3. If the same daemon dialed again by itself, its older tunnel is dead: endTunnels
//     closes it.
//  4. If it ends at another node, that node ends it. Calls on it continue if it is from the
//     same daemon, so its gone channel stays open; otherwise lose closes that.
//
// mu must be held.
func (r *Registry) replaceTunnel(id fleet.MachineID, e *entry, instance string) {
	client, same := e.client, instance == e.instance
	switch e.client = nil; {
	case client == nil:
		if same && e.home != "" { // its home ends the tunnel; calls on it continue
			r.lines.Delete(id)
		}
	case same && e.moving:
		r.retire(id, client)
	case same:
		r.closing = append(r.closing, client)
	default:
		r.fencing = append(r.fencing, client)
	}
	e.moving = false
}

// retired is a tunnel that is kept open for its running calls.
type retired struct {
	*connection
	machine fleet.MachineID
}

// retire stops using a tunnel for new calls. Running calls continue. mu must be held.
func (r *Registry) retire(id fleet.MachineID, client *tunnel.Client) {
	c := &connection{RoundTripper: client, gone: make(chan struct{})} // not acknowledged yet
	if found, ok := r.lines.LoadAndDelete(id); ok {
		c = found.(*connection)
		r.disconnected(id)
	}
	r.retired[client] = retired{c, id}
	go r.endWhenIdle(client, c)
}

// endWhenIdle closes a retired tunnel after no call has run on it for idleFor.
func (r *Registry) endWhenIdle(client *tunnel.Client, c *connection) {
	ticker := time.NewTicker(idleCheck)
	defer ticker.Stop()
	var idleSince time.Time // the first check without calls; zero while calls run
	for open := true; open; {
		select {
		case <-client.Done():
			open = false
		case now := <-ticker.C:
			switch {
			case client.Calls() > 0:
				idleSince = time.Time{}
			case idleSince.IsZero():
				idleSince = now
			default:
				open = now.Sub(idleSince) < idleFor
			}
		}
	}
	client.Close()
	close(c.gone)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.retired, client)
}

// isRetired reports whether a tunnel is kept open for its running calls.
func (r *Registry) isRetired(client *tunnel.Client) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.retired[client]
	return ok
}

// endReplaced ends each tunnel here that is older than the machine's newest one in the
// store. Normally the newer tunnel's node announces it sooner, unless that node is
// unreachable (spec/peers.md#newest).
func (r *Registry) endReplaced(ctx context.Context) error {
	var ids []fleet.MachineID
	r.mu.Lock()
	for id, e := range r.entries {
		if e.client != nil {
			ids = append(ids, id)
		}
	}
	r.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	newest, err := r.config.Facts.Generations(ctx, ids)
	if err != nil {
		return err
	}
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		var gone []fleet.MachineID
		for id, generation := range newest {
			e := r.entries[id]
			if e == nil || e.client == nil || generation <= e.generation {
				continue
			}
			// The instance of the newer tunnel is not known. If this daemon is the
			// original of a clone, it will dial again, and the clone is fenced then.
			if e.moving {
				r.retire(id, e.client)
			} else {
				r.closing = append(r.closing, e.client)
			}
			e.client, e.moving = nil, false
			s, _ = r.lose(s, id, returnAfterNode)
			gone = append(gone, id)
		}
		return s, gone
	})
	return nil
}
