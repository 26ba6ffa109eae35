package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
)

// update is one change from the store. It is prepared without the lock, and takes the
// snapshot and returns the next one.
type update func(*fleet.Snapshot) *fleet.Snapshot

// follow updates the snapshot from the store until ctx ends, and then returns nil. It
// returns account.ErrReplaced if another process takes this node's name.
func (r *Registry) follow(ctx context.Context) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	purge := time.NewTicker(purgeEvery)
	defer purge.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-purge.C:
			r.purge(r.Now())
			r.removeDeadNodes(ctx, time.Now())
			continue
		case <-ticker.C:
		case <-r.nudged:
		}
		err := r.poll(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, account.ErrReplaced):
			return err
		case err != nil && !failing:
			r.config.Log.Error("cannot read keys, shares and machines in the database; after 5 s of this all calls are refused", "error", err)
		case err == nil && failing:
			r.config.Log.Info("the database is read again")
		}
		failing = err != nil
		select {
		case <-time.After(pollGap):
		case <-ctx.Done():
			return nil
		}
	}
}

// poll reads what changed in the store and publishes it.
func (r *Registry) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	began := time.Now()
	r.polls.begin()
	state, changes, err := r.config.Facts.Poll(ctx, r.position)
	if errors.Is(err, account.ErrBehind) {
		if err := r.readAll(ctx, time.Time{}); err != nil {
			return err
		}
		r.notifyStore(nil, nil, nil)
		r.notifyFailedOver()
		began = time.Now()
		state, changes, err = r.config.Facts.Poll(ctx, r.position)
	}
	if err != nil {
		return err
	}
	r.seeNodes(state.Nodes, began)
	r.seeClock(state.ClockAhead)
	if state.FailedOver {
		r.notifyFailedOver()
	}
	if r.others != nil {
		if r.others.Silent(began) {
			if err := r.endReplaced(ctx); err != nil {
				return err
			}
		}
		r.others.Polled()
	}
	var updates []update
	if len(changes) > 0 {
		var notified sync.WaitGroup
		notified.Go(func() { r.notifyCommitted(changes) })
		updates, err = r.readChanges(ctx, changes)
		notified.Wait()
	}
	if err != nil {
		return err
	}
	var before, after *fleet.Snapshot
	var notify []fleet.MachineID
	if len(changes) > 0 {
		r.publish(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
			before = s
			for _, u := range updates {
				s = u(s)
			}
			after = s
			for _, c := range changes {
				if c.Kind == fleet.MachineChanged {
					notify = append(notify, fleet.MachineID(c.ID))
				}
			}
			return s, notify
		})
	}
	r.position = state.Position
	r.confirmed.Store(&began)
	if len(changes) > 0 {
		// Calls that end because of a change get that change's error first. The end of a
		// revoked machine's tunnel would give them another.
		r.notifyStore(before, after, changes)
		r.endTunnels()
		for _, id := range notify {
			r.notifyMachine(id)
		}
	}
	r.polls.end()
	return nil
}

func (r *Registry) notifyCommitted(changes []fleet.Change) {
	if r.observer.Committed != nil {
		r.observer.Committed(changes)
	}
}

func (r *Registry) notifyStore(before, after *fleet.Snapshot, changes []fleet.Change) {
	if r.observer.Store != nil {
		r.observer.Store(changes, fleet.AffectedBy(before, after, changes))
	}
}

func (r *Registry) notifyFailedOver() {
	if r.observer.FailedOver != nil {
		r.observer.FailedOver()
	}
}

// readChanges reads each changed fact once. The snapshot holds no members and keys: when
// a member is disabled, there are changes for everything that this affects.
func (r *Registry) readChanges(ctx context.Context, changes []fleet.Change) ([]update, error) {
	updates := make([]update, len(changes))
	seen := make(map[fleet.Change]bool, len(changes))
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(readsAtOnce)
	for i, c := range changes {
		c.Epoch = 0
		if seen[c] {
			continue
		}
		seen[c] = true
		reads.Go(func() (err error) {
			switch c.Kind {
			case fleet.MachineChanged:
				updates[i], err = r.readMachine(ctx, fleet.MachineID(c.ID))
			case fleet.SharesChanged:
				updates[i], err = r.readShares(ctx, fleet.MemberID(c.ID))
			case fleet.GroupChanged:
				updates[i], err = r.readGroup(ctx, fleet.GroupID(c.ID))
			}
			if err != nil {
				return fmt.Errorf("cannot read the %s that changed: %w", c.Kind, err)
			}
			return nil
		})
	}
	err := reads.Wait()
	return slices.DeleteFunc(updates, func(u update) bool { return u == nil }), err
}

func (r *Registry) readMachine(ctx context.Context, id fleet.MachineID) (update, error) {
	stored, ok, err := r.config.Facts.ActiveMachine(ctx, id)
	if err != nil {
		return nil, err
	}
	if !ok {
		return func(s *fleet.Snapshot) *fleet.Snapshot { return r.forget(s, id) }, nil
	}
	return r.storedMachine(stored, time.Time{}), nil
}

func (r *Registry) readShares(ctx context.Context, member fleet.MemberID) (update, error) {
	shares, err := r.config.Facts.SharesTo(ctx, member)
	return func(s *fleet.Snapshot) *fleet.Snapshot {
		if len(shares) == 0 {
			delete(r.shared, member)
		} else {
			r.shared[member] = struct{}{}
		}
		return s.WithShares(member, shares)
	}, err
}

func (r *Registry) readGroup(ctx context.Context, id fleet.GroupID) (update, error) {
	group, err := r.config.Facts.Group(ctx, id)
	return func(s *fleet.Snapshot) *fleet.Snapshot {
		if group == nil {
			delete(r.groups, id)
			return s.WithoutGroup(id)
		}
		r.groups[id] = struct{}{}
		return s.WithGroup(group)
	}, err
}

// storedMachine returns the update for a machine's stored record. A machine that is not
// known yet becomes offline, but counts as returning until the given time.
func (r *Registry) storedMachine(stored account.Machine, returning time.Time) update {
	id := fleet.MachineID(stored.ID)
	state, err := restore(stored)
	if err != nil {
		r.config.Log.Warn("left out a stored machine", "machine", id, "error", err)
	}
	return func(s *fleet.Snapshot) *fleet.Snapshot {
		e, m := r.entries[id], s.Machine(id)
		if e == nil {
			e = new(entry)
		}
		e.stored, e.changedSinceAttach = withoutOffers(stored), true
		switch {
		case m != nil: // online or not, this state is newer than the store's
			named := *m
			e.setStored(&named)
			s = s.WithMachine(&named)
		case state != nil:
			state.ReturningUntil = returning
			e.setStored(state)
			s = s.WithMachine(state)
		default:
			return s // never advertised; if attached, it is in entries already
		}
		r.entries[id] = e
		return s
	}
}

// forget removes a machine that may no longer connect, and ends its tunnels.
func (r *Registry) forget(s *fleet.Snapshot, id fleet.MachineID) *fleet.Snapshot {
	if e := r.entries[id]; e != nil && e.client != nil {
		r.closing = append(r.closing, e.client)
	}
	for client, kept := range r.retired {
		if kept.machine == id {
			r.closing = append(r.closing, client)
		}
	}
	delete(r.entries, id)
	r.dropLine(id)
	return s.WithoutMachine(id)
}

// readAll reads everything in the store and publishes it at once, on top of what is known
// already. Machines that are not known yet count as returning until the given time. The
// next poll confirms the result.
func (r *Registry) readAll(ctx context.Context, returning time.Time) error {
	facts := r.config.Facts
	position, err := facts.Position(ctx)
	if err != nil {
		return err
	}
	machines, err := facts.ActiveMachines(ctx, facts.Now().Add(-keepFor))
	if err != nil {
		return err
	}
	shares, err := facts.Shares(ctx)
	if err != nil {
		return err
	}
	groups, err := facts.Groups(ctx)
	if err != nil {
		return err
	}
	removed, err := r.removed(ctx, machines)
	if err != nil {
		return err
	}
	r.notifyCommitted(nil)
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		var notify []fleet.MachineID
		for _, id := range removed {
			s = r.forget(s, id)
			notify = append(notify, id)
		}
		for _, m := range machines {
			s = r.storedMachine(m, returning)(s)
			notify = append(notify, fleet.MachineID(m.ID))
		}
		return r.withGroups(r.withShares(s, shares), groups), notify
	})
	r.position = position
	return nil
}

// removed returns the machines that are known here but no longer in the store.
func (r *Registry) removed(ctx context.Context, stored []account.Machine) ([]fleet.MachineID, error) {
	known := make(map[fleet.MachineID]bool)
	r.mu.Lock()
	for id := range r.entries {
		known[id] = true
	}
	r.mu.Unlock()
	for _, m := range stored {
		delete(known, fleet.MachineID(m.ID))
	}
	var removed []fleet.MachineID
	for id := range known { // not seen for a long time, or revoked
		_, ok, err := r.config.Facts.ActiveMachine(ctx, id)
		if err != nil {
			return nil, err
		}
		if !ok {
			removed = append(removed, id)
		}
	}
	return removed, nil
}

// withShares replaces every share.
func (r *Registry) withShares(s *fleet.Snapshot, shares []*fleet.Share) *fleet.Snapshot {
	byMember := make(map[fleet.MemberID][]*fleet.Share)
	for member := range r.shared {
		byMember[member] = nil
	}
	for _, share := range shares {
		byMember[share.Member] = append(byMember[share.Member], share)
	}
	clear(r.shared)
	for member, list := range byMember {
		s = s.WithShares(member, list)
		if len(list) > 0 {
			r.shared[member] = struct{}{}
		}
	}
	return s
}

// withGroups replaces every group.
func (r *Registry) withGroups(s *fleet.Snapshot, groups []*fleet.Group) *fleet.Snapshot {
	gone := r.groups
	r.groups = make(map[fleet.GroupID]struct{}, len(groups))
	for _, g := range groups {
		s = s.WithGroup(g)
		r.groups[g.ID] = struct{}{}
		delete(gone, g.ID)
	}
	for id := range gone {
		s = s.WithoutGroup(id)
	}
	return s
}

// purge removes machines that were not seen for 30 days.
func (r *Registry) purge(now time.Time) {
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		var notify []fleet.MachineID
		for id, e := range r.entries {
			if e.client == nil && e.home == "" && now.Sub(e.stored.LastSeen) >= keepFor {
				s = r.forget(s, id)
				notify = append(notify, id)
			}
		}
		return s, notify
	})
}
