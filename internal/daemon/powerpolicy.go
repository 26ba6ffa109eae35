package daemon

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/tunnel"
)

// PowerPolicy configures when this machine pauses automatically, yields to its owner and
// stays awake. The zero PowerPolicy does nothing.
type PowerPolicy struct {
	// Computer is the source of the readings.
	Computer host.Computer
	// OnBattery, OnBusyGPU and OnHotCPU pause this machine while it runs on battery, while
	// another program uses its GPU, and while its processor is hot. Such a pause has the
	// same effect as one by the owner.
	OnBattery, OnBusyGPU, OnHotCPU bool
	// Yield refuses new calls of the hub while local calls use the engines here, and for
	// yieldGrace after that.
	Yield bool
	// Awake is the command that keeps this computer from sleeping during a call
	// (host.Wakelock); nil: it may sleep.
	Awake []string
}

const (
	// powerCheckInterval is how often this computer's state is read.
	powerCheckInterval = 10 * time.Second
	// yieldGrace is how long this machine keeps yielding after a local call. The next call
	// of an agent follows within seconds and would otherwise have to wait for another
	// member's long call.
	yieldGrace = 5 * time.Second
)

// powerState is the current effect of the PowerPolicy.
type powerState struct {
	wakelock host.Wakelock
	// pausedBy are descriptions of why this machine paused automatically; empty if it did
	// not. Guarded by Daemon.mu.
	pausedBy []string
}

// runPowerPolicy pauses and resumes this machine according to its PowerPolicy until ctx
// ends.
func (d *Daemon) runPowerPolicy(ctx context.Context) error {
	hot := false
	for {
		c := d.policy.Load().power
		var why []string
		if c.OnBattery && c.Computer.OnBattery(ctx) {
			why = append(why, "it runs on its battery")
		}
		if c.OnBusyGPU {
			if program := c.Computer.GPUUser(ctx, d.enginePorts()); program != "" {
				why = append(why, program+" holds its GPU")
			}
		}
		if hot = c.OnHotCPU && c.Computer.HotCPU(ctx, hot); hot {
			why = append(why, "its processor is hot")
		}
		if ctx.Err() == nil {
			d.setPausedBy(why)
		}
		if !sleep(ctx, powerCheckInterval, nil) {
			return nil
		}
	}
}

// setPausedBy pauses this machine for the given reasons. Without reasons it ends such a
// pause.
func (d *Daemon) setPausedBy(why []string) {
	d.mu.Lock()
	same := slices.Equal(d.power.pausedBy, why)
	d.power.pausedBy = why
	d.mu.Unlock()
	switch {
	case same:
		return
	case len(why) > 0:
		d.log.Info("this machine pauses automatically", "why", why)
	default:
		d.log.Info("this machine's automatic pause has ended")
	}
	d.offers.setChanged()
}

// isPaused reports whether this machine is paused by its owner, its PowerPolicy or its
// configuration.
func (d *Daemon) isPaused(s Sharing) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return s.Paused || d.policy.Load().unshared || len(d.power.pausedBy) > 0
}

// enginePorts returns the ports of the engines found on this machine.
func (d *Daemon) enginePorts() (ports []uint16) {
	for _, e := range d.finder.Engines() {
		if u, err := url.Parse(e.Base()); err == nil {
			if port, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
				ports = append(ports, uint16(port))
			}
		}
	}
	return ports
}

// awakeBackend wraps the Daemon as the backend of the local surface. It keeps the
// computer awake until a call's response is complete, wherever it is served.
type awakeBackend struct{ *Daemon }

func (b awakeBackend) Do(ctx context.Context, call *gateway.Call) (*gateway.Answer, error) {
	release := sync.OnceFunc(b.power.wakelock.Hold())
	answer, err := b.Daemon.Do(ctx, call)
	if err != nil {
		release()
		return nil, err
	}
	answer.Body = &responseBody{ReadCloser: answer.Body, onClose: release}
	return answer, nil
}

// offerNoSlots reserves all slots of an advertisement for the owner: the hub sees a busy
// machine, and its callers wait.
func offerNoSlots(ad *tunnel.Advertisement) {
	ad.Free, ad.Local = 0, max(ad.Local, ad.Slots)
	for i := range ad.Models {
		m := &ad.Models[i]
		m.Free, m.Local = 0, max(m.Local, m.Slots)
	}
}
