package daemon

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// The states of the tunnel to the hub in addition to the phases of tunnel.State.
const (
	TunnelOff      = "off"        // not signed in
	TunnelUnshared = "not shared" // signed in; the configuration keeps the tunnel closed
	TunnelRefused  = "refused"    // the hub does not know the credential; retried slowly
	TunnelFenced   = "fenced"     // another daemon connected with this credential; retried slowly
)

// runTunnels keeps a tunnel to the hub open while this machine is signed in, and opens a
// new one at each reconnect.
func (d *Daemon) runTunnels(ctx context.Context) error {
	for {
		running, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.runTunnel(running)
		}()
		select {
		case <-d.reconnectNow:
		case <-ctx.Done():
		}
		cancel()
		<-ended
		if ctx.Err() != nil {
			return nil
		}
	}
}

// runTunnel reads the credential and keeps a tunnel open with it until ctx ends. The
// local surface does not depend on it.
func (d *Daemon) runTunnel(ctx context.Context) {
	c, err := LoadCredential(d.config.Home)
	if err != nil {
		d.hubClient.Store(nil)
		d.setTunnel(func(t *TunnelStatus) { *t = TunnelStatus{State: TunnelOff} })
		if !errors.Is(err, fs.ErrNotExist) {
			d.tunnelFailed(err)
		}
		return
	}
	if before := d.hubClient.Load(); before == nil || before.credential != c { // the same login keeps its keys
		d.hubClient.Store(&hubClient{
			credential: c, home: d.config.Home, transport: d.hubTransport, recordError: d.recordError,
			reach: func() fleet.KeyReach { return d.policy.Load().reach },
			mode:  func() sealed.Mode { return d.policy.Load().sealed },
		})
	}
	d.setTunnel(func(t *TunnelStatus) {
		*t = TunnelStatus{SignedIn: true, Hub: c.Hub, Machine: c.Machine, State: TunnelUnshared}
	})
	if d.policy.Load().unshared {
		return
	}
	dialer := &tunnel.Dialer{
		HubURL:     c.Hub,
		Credential: func() string { return c.Secret },
		Instance:   d.instance,
		Handler:    d.machineHandler(),
		Advertise:  d.advertise,
		Control:    d.control,
		Files:      d.filesForHub(),
		Notice:     d.onNotice,
		OnState:    d.onTunnelState,
		Log:        d.log,
		TLS:        d.config.TLS,
		Dial:       d.config.Dial,
		Draw:       d.config.Draw,
	}
	if err = dialer.Run(ctx); err != nil {
		d.tunnelFailed(err)
	}
}

// control applies a change from the hub.
func (d *Daemon) control(_ context.Context, change fleet.Control) error {
	if change.Account != "" {
		if err := d.acceptAccount(change.Account); err != nil {
			return err
		}
		if change.Account = ""; change == (fleet.Control{}) {
			return nil
		}
	}
	return d.change(change)
}

// onTunnelState records and logs a step of the tunnel.
func (d *Daemon) onTunnelState(s tunnel.State) {
	d.setTunnel(func(t *TunnelStatus) {
		if s.Phase == tunnel.Dialing && isRefused(t.State) {
			return // keep showing it until the attempt has a result
		}
		t.State, t.Retry = string(s.Phase), time.Time{}
		if s.Phase == tunnel.Dialing {
			t.ZoneUnknown = false // unless this hub node reports it again
		}
		switch {
		case s.Phase == tunnel.Acked:
			t.Error, t.Node = "", s.Node
		case s.Err != nil:
			t.Error = s.Err.Error()
		}
		if s.Retry > 0 {
			t.Retry = time.Now().Add(s.Retry)
		}
		switch {
		case s.Phase != tunnel.Lost:
		case errors.Is(s.Err, tunnel.ErrRefused):
			t.State = TunnelRefused
		case errors.Is(s.Err, tunnel.ErrFenced):
			t.State = TunnelFenced
		}
	})
	switch {
	case s.Phase == tunnel.Acked:
		d.log.Info("connected to the hub", "node", s.Node)
	case errors.Is(s.Err, tunnel.ErrRefused), errors.Is(s.Err, tunnel.ErrFenced):
		d.recordError("%v; this machine retries automatically, and at once after `kith reload`", s.Err)
	case s.Phase == tunnel.Lost && s.Retry > 0:
		d.log.Warn("lost the connection to the hub", "cause", s.Err, "retry", s.Retry)
	}
}

// onNotice records which part of this machine's state the hub cannot use.
func (d *Daemon) onNotice(n tunnel.Notice) {
	d.setTunnel(func(t *TunnelStatus) { t.ZoneUnknown = n.ZoneUnknown })
	if n.ZoneUnknown {
		sharing, _ := d.settings.current(time.Now())
		d.recordError("the hub does not know the time zone %q of this machine, "+
			"which others cannot use in its sharing hours; "+
			"set them in a zone that it knows: `kith hours set %q --tz ZONE`", sharing.Timezone, sharing.Hours)
	}
}

// isRefused reports whether a tunnel in this state is retried only slowly.
func isRefused(state string) bool { return state == TunnelRefused || state == TunnelFenced }

// reconnect reads the credential again, ends the tunnel and opens a new one.
func (d *Daemon) reconnect() { d.reconnectNow.request() }

// retryRefused reconnects if the tunnel would otherwise be retried only slowly.
func (d *Daemon) retryRefused() {
	d.mu.Lock()
	state := d.tunnel.State
	d.mu.Unlock()
	if isRefused(state) {
		d.reconnect()
	}
}

// tunnelFailed records why the daemon stops opening tunnels.
func (d *Daemon) tunnelFailed(err error) {
	d.setTunnel(func(t *TunnelStatus) { t.Error = err.Error() })
	d.recordError("the connection to the hub has ended: %v", err)
}

func (d *Daemon) setTunnel(set func(*TunnelStatus)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.tunnel.State
	if set(&d.tunnel); d.tunnel.State != before {
		d.tunnel.Since = time.Now()
	}
}

// advertise returns the machine's complete state for the hub, and a channel that is
// closed when the state has changed. The hub's own calls only change the number of free
// slots, which the hub counts itself.
func (d *Daemon) advertise() (tunnel.Advertisement, <-chan struct{}) {
	changed := d.offers.watch() // first, so that no change is missed while reading
	sharing, _ := d.settings.current(time.Now())
	ofHub, local := d.admission.running("")
	slots, open := d.slots(sharing), d.openSlots(sharing)
	ad := tunnel.Advertisement{
		Name: d.config.Name, Paused: d.isPaused(sharing), Hours: sharing.Hours, Timezone: sharing.Timezone,
		Slots: slots, Free: max(0, open-ofHub-local), Local: local + slots - open, Groups: d.policy.Load().groups,
		Seals: d.sealKeys(), Facts: d.facts(),
	}
	if sharing.Paused {
		ad.PausedUntil = sharing.Until
	}
	for _, m := range d.offers.models(d.offers.forHub()) {
		if d.shares(fleet.ModelID(m.ID)) {
			ad.Models = append(ad.Models, m)
		}
	}
	for i := range ad.Models {
		m := &ad.Models[i]
		ofHub, local := d.admission.running(fleet.ModelID(m.ID))
		others := d.offers.otherCallsFor(fleet.ModelID(m.ID)) // the hub reads this as local
		m.Local, m.Free = local+others, min(ad.Free, max(0, m.Slots-others-ofHub-local))
	}
	if d.admission.ownerOnly() {
		offerNoSlots(&ad)
	}
	return ad, changed
}

// shares reports whether calls of the hub may use the model.
func (d *Daemon) shares(model fleet.ModelID) bool {
	only := d.policy.Load().models
	return len(only) == 0 || slices.Contains(only, model)
}

// slots returns how many calls may run concurrently.
func (d *Daemon) slots(s Sharing) int { return d.limitSlots(s, d.offers.slots()) }

// limitSlots returns the owner's number of slots, or the engines'. A number set on the
// site can only lower that, because the hub could have set it.
func (d *Daemon) limitSlots(s Sharing, engines int) int {
	switch {
	case s.Slots == 0:
		return engines
	case d.settings.configuredSlots() == 0:
		return min(s.Slots, engines)
	default:
		return s.Slots
	}
}

// openSlots returns how many slots are left by calls of other programs. These do not
// lower the owner's own number; each engine's slots limit it.
func (d *Daemon) openSlots(s Sharing) int {
	return d.limitSlots(s, max(0, d.offers.slots()-d.offers.otherCalls()))
}
