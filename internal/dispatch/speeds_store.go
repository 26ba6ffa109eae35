package dispatch

import (
	"context"
	"encoding/json/v2"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fleet"
)

const (
	// saveEvery is the interval of storing measured speeds and reading those of other
	// nodes.
	saveEvery = time.Minute
	// saveWithin is the time limit of the last save, when the hub stops.
	saveWithin = 5 * time.Second
	// readAgain is the overlap with the previous reading, because other nodes store their
	// speeds later and their clocks differ.
	readAgain = 5 * time.Minute
)

// RunSpeeds stores the measured speeds of machines, reads those of other nodes, and
// changes the secret of the fingerprints every day (UTC), until ctx ends. Each node
// measures the calls that it sees; for a machine and model, all nodes use the latest
// measurements.
func (d *Dispatcher) RunSpeeds(ctx context.Context) error {
	select {
	case <-d.cfg.Registry.Ready():
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	var read time.Time
	for {
		d.updateKey(ctx)
		d.saveSpeeds(ctx)
		read = d.readSpeeds(ctx, read)
		select {
		case <-tick.C:
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveWithin)
			defer cancel()
			d.saveSpeeds(ctx)
			return nil
		}
	}
}

// saveSpeeds stores the new measurements. If that fails, it stores them the next time.
func (d *Dispatcher) saveSpeeds(ctx context.Context) {
	changed := d.speeds.takeMarked()
	var speeds []account.Speed
	for key := range changed {
		load := d.loadOf(key.machine, key.model)
		if load == nil {
			continue
		}
		proofs, at := load.Proofs()
		text, err := json.Marshal(proofs)
		if err != nil { // no number is NaN
			continue
		}
		speeds = append(speeds, account.Speed{MachineID: string(key.machine), Model: string(key.model), Measured: at, Samples: string(text)})
	}
	if len(speeds) == 0 {
		return
	}
	if err := d.cfg.SaveSpeeds(ctx, speeds, d.cfg.Registry.Now()); err != nil {
		d.cfg.Log.Warn("cannot store the measured speeds; the next try is in a minute", "error", err)
		for key := range changed {
			d.speeds.mark(key)
		}
	}
}

// takeMarked returns the keys of the measurements to store and forgets them.
func (s *speeds) takeMarked() map[speedKey]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = nil
	return changed
}

// mark marks measurements to be stored.
func (s *speeds) mark(key speedKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(map[speedKey]struct{})
	}
	s.changed[key] = struct{}{}
}

// readSpeeds reads measurements that are newer than those of this node. It returns
// since for the next call.
func (d *Dispatcher) readSpeeds(ctx context.Context, since time.Time) time.Time {
	now := d.cfg.Registry.Now()
	stored, err := d.cfg.Speeds(ctx, since)
	if err != nil {
		d.cfg.Log.Warn("cannot read the measured speeds; the next try is in a minute", "error", err)
		return since
	}
	for _, row := range stored {
		var proofs map[fleet.Circle]fleet.Proof
		id, model := fleet.MachineID(row.MachineID), fleet.ModelID(row.Model)
		load := d.loadOf(id, model)
		if load == nil || json.Unmarshal([]byte(row.Samples), &proofs) != nil || !load.SetProofs(proofs) {
			continue
		}
		for circle := range proofs {
			d.speeds.learn(model, provenTo{id, circle}, load.Speed(circle))
		}
	}
	return now.Add(-readAgain)
}

// updateKey sets the secret of the day. If the database cannot be read, the last one
// remains. Prompts are not looked up with the previous day's secret: engines' caches for
// callers start empty at the same moment (tunnel.CacheName), so a match would be wrong
// for all calls except the owner's.
func (d *Dispatcher) updateKey(ctx context.Context) {
	secret, err := d.cfg.PrefixKey(ctx, d.cfg.Registry.Now())
	if err != nil {
		d.cfg.Log.Warn("cannot read the day's secret of fingerprints; the next try is in a minute", "error", err)
		return
	}
	var key prefix.Key
	copy(key[:], secret)
	if now := d.key.Load(); now == nil || *now != key {
		d.key.Store(&key)
	}
}
