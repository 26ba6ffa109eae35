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

// Comfort is what this machine does for its owner of itself. The zero Comfort
// does nothing.
type Comfort struct {
	// Computer is where the readings come from.
	Computer host.Computer
	// OnBattery, OnBusyGPU and OnHotCPU pause this machine for as long as it runs
	// on its battery, another program holds its GPU, its processor is hot. Such a
	// pause is like the owner's: what runs ends, nothing of the hub's begins.
	OnBattery, OnBusyGPU, OnHotCPU bool
	// Yield lets no call of the hub's begin while the owner's local calls use
	// the engines here, and for lull after.
	Yield bool
	// Awake is the command that keeps this computer from falling asleep in the
	// middle of an answer (host.Wakelock); nil: it may.
	Awake []string
}

const (
	// comfortEvery is how often this computer's state is read.
	comfortEvery = 10 * time.Second
	// lull is how long this machine is still the owner's after a local call: an
	// agent's next step follows within seconds, and would else queue behind a
	// stranger's long answer.
	lull = 5 * time.Second
)

// comfort keeps the pauses that this machine makes by itself.
type comfort struct {
	wakelock host.Wakelock
	// pausedBy says in words why this machine has paused by itself; empty: it
	// has not. Guarded by Daemon.mu.
	pausedBy []string
}

// keepComfort pauses this machine by itself and lets it go on.
func (d *Daemon) keepComfort(ctx context.Context) error {
	hot := false
	for {
		c := d.policy.Load().comfort
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
			d.pauseItself(why)
		}
		select {
		case <-time.After(comfortEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

// pauseItself brings into force why this machine has paused by itself.
func (d *Daemon) pauseItself(why []string) {
	d.mu.Lock()
	same := slices.Equal(d.comfort.pausedBy, why)
	d.comfort.pausedBy = why
	d.mu.Unlock()
	if !same {
		d.log.Info("this machine pauses by itself", "why", why)
		d.board.touch()
	}
}

// pausedBy is why this machine has paused by itself; empty: it has not.
func (d *Daemon) pausedBy() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.comfort.pausedBy
}

// isPaused reports whether the owner has paused this machine, or it itself, or
// the configuration has since the line was opened.
func (d *Daemon) isPaused(s Sharing) bool {
	return s.Paused || d.policy.Load().unshared || len(d.pausedBy()) > 0
}

// enginePorts are those that the engines found here listen on.
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

// wakeful is the daemon behind the local surface: the computer stays awake until
// a call's answer is told whole, wherever it comes from.
type wakeful struct{ *Daemon }

// Do is the Daemon's, awake.
func (w wakeful) Do(ctx context.Context, call *gateway.Call) (*gateway.Answer, error) {
	release := sync.OnceFunc(w.comfort.wakelock.Hold())
	answer, err := w.Daemon.Do(ctx, call)
	if err != nil {
		release()
		return nil, err
	}
	answer.Body = &body{ReadCloser: answer.Body, closed: release, broken: func(err error) error { return err }}
	return answer, nil
}

// yield takes every slot of an advertisement for the owner: the hub sees a busy
// machine, and its callers wait.
func yield(ad *tunnel.Advertisement) {
	ad.Free, ad.Local = 0, max(ad.Local, ad.Slots)
	for i := range ad.Models {
		m := &ad.Models[i]
		m.Free, m.Local = 0, max(m.Local, m.Slots)
	}
}
