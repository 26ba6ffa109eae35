package daemon

import (
	"context"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/host"
)

// hardwareInterval is how often the computer is read: a graphics card may be plugged in.
const hardwareInterval = 10 * time.Minute

// runHardware reads what this computer has until ctx ends, and notifies the hub of
// changes.
func (d *Daemon) runHardware(ctx context.Context) error {
	if d.config.Computer == nil {
		return nil
	}
	for {
		facts := hardwareFacts(d.config.Computer.Hardware(ctx))
		if ctx.Err() == nil && !reflect.DeepEqual(d.hardware.Swap(&facts), &facts) {
			d.offers.setChanged()
		}
		if !sleep(ctx, hardwareInterval, nil) {
			return nil
		}
	}
}

func hardwareFacts(h host.Hardware) fleet.MachineFacts {
	facts := fleet.MachineFacts{System: h.System, CPU: h.CPU, Cores: h.Cores, Memory: int64(h.Memory)}
	for _, card := range h.GPUs {
		facts.GPUs = append(facts.GPUs, fleet.GPU{Name: card.Name, Memory: int64(card.Total)})
	}
	return facts
}

// facts describes this machine as far as it is known now.
func (d *Daemon) facts() *fleet.MachineFacts {
	var facts fleet.MachineFacts
	if hardware := d.hardware.Load(); hardware != nil {
		facts = *hardware
	}
	facts.Arch, facts.Kith = runtime.GOARCH, d.config.Version
	for _, e := range d.offers.engines() {
		if v := (fleet.EngineVersion{Kind: e.Kind(), Version: e.Version()}); !slices.Contains(facts.Engines, v) {
			facts.Engines = append(facts.Engines, v)
		}
	}
	facts = facts.Checked()
	return &facts
}

const (
	// gaugesAge is how old gauges may be: reading them runs a program on some computers.
	gaugesAge = 2 * time.Second
	// gaugesWait is how long a request waits for a reading. The reading goes on without it.
	gaugesWait = 500 * time.Millisecond
)

// gaugeReader reads how busy the computer is when that is asked for, and not otherwise.
type gaugeReader struct {
	mu      sync.Mutex
	now     *fleet.Gauges // nil: not read yet
	at      time.Time     // when now was read
	reading chan struct{} // closed when the current reading ends; nil: there is none
}

// read returns how busy the computer is, or nil if that is not known in time. A driver
// that hangs delays only the first request.
func (r *gaugeReader) read(ctx context.Context, computer host.Computer) *fleet.Gauges {
	r.mu.Lock()
	if r.now != nil && time.Since(r.at) < gaugesAge {
		defer r.mu.Unlock()
		return r.now
	}
	reading := r.reading
	if reading == nil {
		reading = make(chan struct{})
		r.reading = reading
		go func() {
			defer close(reading)
			// The reading outlives its first request: others may wait for it.
			gauges := gaugesOf(context.WithoutCancel(ctx), computer)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.now, r.at, r.reading = &gauges, time.Now(), nil
		}()
	}
	r.mu.Unlock()
	select {
	case <-reading:
	case <-time.After(gaugesWait):
		return nil
	case <-ctx.Done():
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func gaugesOf(ctx context.Context, computer host.Computer) fleet.Gauges {
	gauges := fleet.Gauges{CPU: -1, Memory: useOf(computer.RAM(ctx))}
	if part, ok := computer.CPUBusy(ctx); ok {
		gauges.CPU = part
	}
	for _, card := range computer.GPUs(ctx) {
		gauges.GPUs = append(gauges.GPUs, useOf(card.Memory))
	}
	return gauges
}

func useOf(m host.Memory) fleet.MemoryUse {
	return fleet.MemoryUse{Used: int64(m.Total - m.Free), Total: int64(m.Total)}
}
