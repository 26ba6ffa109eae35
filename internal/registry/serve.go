package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// Serve publishes a machine's advertisements as long as its tunnel is open, and closes
// the tunnel at the end. The machine's Generation is that of the tunnel. Serve
// acknowledges the first advertisement. If a machine has two tunnels, the one with the
// higher generation stays; attach or replaceTunnel ends the other. Serve returns why the
// tunnel ended, or ErrTunnelReplaced.
func (r *Registry) Serve(ctx context.Context, machine account.Machine, client *tunnel.Client) error {
	defer client.Close()
	if !r.attach(machine, client) {
		<-client.Done()
		return ErrTunnelReplaced
	}
	id := fleet.MachineID(machine.ID)
	defer r.detach(id, client)
	// From here on a revocation finds the tunnel. This read detects an earlier one.
	stored, ok, err := r.config.Facts.ActiveMachine(ctx, id)
	switch {
	case err != nil:
		return fmt.Errorf("cannot check machine %s: %w", id, err)
	case !ok:
		return ErrRevoked
	}
	r.identify(stored, client)
	saver := r.newOfferSaver(stored)
	defer saver.close(ctx)
	err = r.publishAll(ctx, client, id, saver)
	if r.isRetired(client) {
		<-client.Done()
	}
	if reason := client.Err(); reason != nil {
		err = reason
	}
	client.Close()
	r.detach(id, client) // before saver saves, which may take long
	return err
}

// publishAll publishes the machine's advertisements until there are no further ones.
func (r *Registry) publishAll(ctx context.Context, client *tunnel.Client, id fleet.MachineID, saver *offerSaver) error {
	var before tunnel.Advertisement
	acked, zoneKnown := false, true
	for ad, err := range client.Offers(ctx) {
		if err != nil {
			return err
		}
		state, ad, err := accept(ad)
		if err != nil {
			return fmt.Errorf("cannot use the advertisement of machine %s: %w", id, err)
		}
		// Without hours and a time zone there is nothing to correct.
		known := state.Hours.ZoneKnown() || ad.Hours == "" && ad.Timezone == ""
		if !acked {
			within, cancel := context.WithTimeout(ctx, ackWithin)
			err := client.Ack(within)
			cancel()
			if err != nil {
				return err
			}
			acked = true
		} else if sameButLoad(ad, before) {
			state = nil // only slots changed: nothing to publish
		}
		if !r.advertise(id, client, state, ad) {
			return ErrTunnelReplaced
		}
		if known != zoneKnown {
			zoneKnown = known
			r.notifyZone(ctx, client, id, ad, known)
		}
		saver.schedule(ctx, ad)
		before = ad
	}
	return ctx.Err()
}

// notifyZone logs and reports to the machine that this hub does not know its time zone,
// so that it is outside its hours for others, or that it knows the zone that is set now.
func (r *Registry) notifyZone(ctx context.Context, client *tunnel.Client, id fleet.MachineID, ad tunnel.Advertisement, known bool) {
	if !known {
		r.config.Log.Warn("a machine's time zone is not known here: it is closed to others in every sharing hour",
			"machine", id, "name", ad.Name, "timezone", ad.Timezone, "hours", ad.Hours)
	}
	within, cancel := context.WithTimeout(ctx, ackWithin)
	defer cancel()
	if err := client.Notify(within, tunnel.Notice{ZoneUnknown: !known}); err != nil {
		r.config.Log.Warn("cannot notify a machine of its time zone", "machine", id, "error", err)
	}
}

// attach makes a tunnel the machine's current one. If the machine has a newer tunnel,
// attach ends this one and returns false.
func (r *Registry) attach(machine account.Machine, client *tunnel.Client) (ok bool) {
	id := fleet.MachineID(machine.ID)
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		e := r.entries[id]
		if e == nil {
			e = new(entry)
			r.entries[id] = e
		}
		connected := e.client != nil || e.home != ""
		if connected && e.generation >= machine.Generation {
			if client.Instance() != e.instance {
				r.fencing = append(r.fencing, client)
			} else {
				r.closing = append(r.closing, client)
			}
			return s, nil
		}
		ok = true
		r.replaceTunnel(id, e, client.Instance())
		e.client, e.home, e.generation, e.instance = client, "", machine.Generation, client.Instance()
		e.stored, e.changedSinceAttach = withoutOffers(machine), false
		if !connected {
			return s, nil
		}
		return r.lose(s, id, returnAfterLoss)
	})
	return ok
}

// Attached reports whether the machine has a tunnel, here or at another node.
func (r *Registry) Attached(id fleet.MachineID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[id]
	return e != nil && (e.client != nil || e.home != "")
}

// identify sets the stored record that was read after the machine was attached, unless a
// change has already set a newer one.
func (r *Registry) identify(stored account.Machine, client *tunnel.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[fleet.MachineID(stored.ID)]; e != nil && e.client == client && !e.changedSinceAttach {
		e.stored = withoutOffers(stored)
	}
}

// advertise publishes an advertisement of an acknowledged tunnel: the machine's state, or
// only its load if state is nil. It returns false if the tunnel is no longer the
// machine's.
func (r *Registry) advertise(id fleet.MachineID, client *tunnel.Client, state *fleet.Machine, ad tunnel.Advertisement) bool {
	current := false
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		e := r.entries[id]
		if e == nil || e.client != client {
			return s, nil
		}
		current = true
		m := s.Machine(id)
		arrival := state != nil && (m == nil || !m.Online)
		if state != nil {
			state.Online, state.Generation = true, e.generation
			e.setStored(state)
			s, m = s.WithMachine(state), state
		}
		setLocal(m, ad)
		if r.others != nil && state != nil {
			r.others.Connected(&Announced{ID: id, Generation: e.generation, Instance: e.instance, Advertisement: withoutLoad(ad)})
		} else if r.others != nil {
			r.others.LoadChanged(id)
		}
		if arrival {
			r.lines.Store(id, &connection{RoundTripper: client, gone: make(chan struct{})})
			r.countArrival(e, m)
		}
		return s, []fleet.MachineID{id}
	})
	return current
}

// detach removes the tunnel from its machine.
func (r *Registry) detach(id fleet.MachineID, client *tunnel.Client) {
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		e := r.entries[id]
		if e == nil || e.client != client {
			return s, nil
		}
		e.client, e.moving, e.stored.LastSeen = nil, false, r.Now()
		if s.Machine(id) == nil { // it has never advertised
			delete(r.entries, id)
			return s, nil
		}
		return r.lose(s, id, returnAfterLoss)
	})
}

// lose marks a connected machine as returning for the given time. mu must be held.
func (r *Registry) lose(s *fleet.Snapshot, id fleet.MachineID, within time.Duration) (*fleet.Snapshot, []fleet.MachineID) {
	r.dropLine(id)
	m := s.Machine(id)
	if m == nil || !m.Online {
		return s, nil
	}
	lost := *m
	lost.Online, lost.LastSeen = false, r.Now()
	lost.ReturningUntil = r.Now().Add(within)
	r.notifyAfter(id, within)
	return s.WithMachine(&lost), []fleet.MachineID{id}
}

// notifyAfter calls notifyMachine after d.
func (r *Registry) notifyAfter(id fleet.MachineID, d time.Duration) {
	time.AfterFunc(d, func() { r.notifyMachine(id) })
}

// setStored sets the machine's fields that come from the store.
func (e *entry) setStored(m *fleet.Machine) {
	m.ID, m.Owner, m.OwnerName = fleet.MachineID(e.stored.ID), fleet.MemberID(e.stored.OwnerID), e.stored.OwnerName
	m.Name, m.KeptOut, m.Created = e.stored.Name, e.stored.KeptOut, e.stored.Created
	m.ShowsClass = e.stored.ShowsClass
	if e.stored.LastSeen.After(m.LastSeen) { // the store may be half an hour behind
		m.LastSeen = e.stored.LastSeen
	}
}

// countArrival records a connection. If the machine flaps, it gets no calls for a while.
func (r *Registry) countArrival(e *entry, m *fleet.Machine) {
	if e.flaps(time.Since(r.made)) {
		m.Load.HoldOut(r.Now().Add(flapWindow))
		r.notifyAfter(m.ID, flapWindow)
	}
}

// flaps records a connection and reports whether the machine connects too often.
func (e *entry) flaps(now time.Duration) bool {
	oldest := &e.arrivals[e.arrived%flapCount]
	often := e.arrived >= flapCount && now-*oldest < flapWindow
	e.arrived++
	*oldest = now
	return often
}

func withoutOffers(m account.Machine) account.Machine {
	m.Offers = nil
	return m
}
