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
	// saveEvery is how often measured speeds are stored, and those of other nodes read.
	saveEvery = time.Minute
	// saveWithin bounds the last time, when the hub ends.
	saveWithin = 5 * time.Second
	// readAgain is how much older than the last reading the speeds are that are read again:
	// other nodes store theirs later, by other clocks.
	readAgain = 5 * time.Minute
)

// RunSpeeds stores what was measured of machines, reads what other nodes measured, and
// changes the secret of fingerprints with the day (UTC), until ctx ends. Each of several nodes
// measures what it sees; of one machine and model all use the youngest measurements.
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

// saveSpeeds stores the measurements that are new. After a failure they are stored the next
// time.
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

// takeMarked returns the measurements that are to be stored, once.
func (s *speeds) takeMarked() map[speedKey]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = nil
	return changed
}

// mark notes measurements that are to be stored.
func (s *speeds) mark(key speedKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(map[speedKey]struct{})
	}
	s.changed[key] = struct{}{}
}

// readSpeeds takes over measurements that are younger than this node's own. It returns since
// when it read: the next reading begins there.
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

// updateKey takes over the secret of the day. Without the database the last one stays.
// Prompts are not looked up under the secret of the day before: the caches that engines keep by
// caller begin again at the same moment (tunnel.CacheName), so that a match would be wrong for
// all but the owner's calls.
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
