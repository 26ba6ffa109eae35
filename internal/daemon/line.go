package daemon

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// The states of the line beside the phases of tunnel.State.
const (
	LineOff      = "off"        // not signed in
	LineUnshared = "not shared" // signed in; the configuration keeps the line closed
	LineRefused  = "refused"    // the hub does not know the credential; sign in again
	LineFenced   = "fenced"     // another daemon with this credential took over
)

// keepLine keeps the line to the hub for as long as this machine is signed in,
// and begins anew each time it signs in.
func (d *Daemon) keepLine(ctx context.Context) error {
	for {
		line, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.runLine(line)
		}()
		select {
		case <-d.signedIn:
		case <-ctx.Done():
		}
		cancel()
		<-ended
		if ctx.Err() != nil {
			return nil
		}
	}
}

// runLine reads the credential and holds one line under it until ctx ends or
// the line is over for good, which never ends the daemon: the local surface
// serves on.
func (d *Daemon) runLine(ctx context.Context) {
	c, err := LoadCredential(d.config.Home)
	if err != nil {
		d.up.Store(nil)
		d.setLine(func(l *LineStatus) { *l = LineStatus{State: LineOff} })
		if !errors.Is(err, fs.ErrNotExist) {
			d.lineTrouble(err)
		}
		return
	}
	d.up.Store(&uplink{credential: c, transport: d.hub, trouble: d.trouble})
	d.setLine(func(l *LineStatus) {
		*l = LineStatus{SignedIn: true, Hub: c.Hub, Machine: c.Machine, Name: d.config.Name, State: LineUnshared}
	})
	if d.policy.Load().unshared {
		return
	}
	dialer := &tunnel.Dialer{
		HubURL:     c.Hub,
		Credential: func() string { return c.Secret },
		Handler:    d.machine(),
		Advertise:  d.advertise,
		Control:    func(_ context.Context, change tunnel.Control) error { return d.change(change) },
		OnState:    d.onLine,
		Log:        d.log,
		TLS:        d.config.TLS,
		Dial:       d.config.Dial,
		Draw:       d.config.Draw,
	}
	err = dialer.Run(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, tunnel.ErrRefused):
		d.setLine(func(l *LineStatus) { l.State = LineRefused })
	case errors.Is(err, tunnel.ErrFenced):
		d.setLine(func(l *LineStatus) { l.State = LineFenced })
	}
	d.lineTrouble(err)
}

// onLine follows the line's steps.
func (d *Daemon) onLine(s tunnel.State) {
	d.setLine(func(l *LineStatus) {
		l.State = string(s.Phase)
		switch {
		case s.Phase == tunnel.Acked:
			l.Trouble = ""
		case s.Err != nil:
			l.Trouble = s.Err.Error()
		}
	})
	switch {
	case s.Phase == tunnel.Acked:
		d.log.Info("the line to the hub is up")
	case s.Phase == tunnel.Lost && s.Retry > 0:
		d.log.Warn("the line to the hub is lost", "cause", s.Err, "retry", s.Retry)
	}
}

// lineTrouble notes why the line is over for good.
func (d *Daemon) lineTrouble(err error) {
	d.setLine(func(l *LineStatus) { l.Trouble = err.Error() })
	d.trouble("the line to the hub has ended: %v", err)
}

func (d *Daemon) setLine(set func(*LineStatus)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.line.State
	if set(&d.line); d.line.State != before {
		d.line.Since = time.Now()
	}
}

// advertise is the machine's whole state for the hub, and a channel that is
// closed when it is no longer true. Calls of the hub's own change nothing but
// the free slots, which it counts for itself.
func (d *Daemon) advertise() (tunnel.Advertisement, <-chan struct{}) {
	changed := d.board.change() // first: a change while the rest is read counts
	sharing, _ := d.settings.current(time.Now())
	routed, local := d.desk.load("")
	slots := d.slots(sharing)
	ad := tunnel.Advertisement{
		Name: d.config.Name, Paused: d.isPaused(sharing), Hours: sharing.Hours, Timezone: sharing.Timezone,
		Slots: slots, Free: max(0, d.open(sharing)-routed-local), Local: local, Groups: d.policy.Load().groups,
	}
	for _, m := range d.board.offers(d.board.shared()) {
		if d.shares(fleet.ModelID(m.ID)) {
			ad.Models = append(ad.Models, m)
		}
	}
	for i := range ad.Models {
		m := &ad.Models[i]
		routed, local := d.desk.load(fleet.ModelID(m.ID))
		m.Local, m.Free = local, min(ad.Free, max(0, m.Slots-d.board.othersAt(fleet.ModelID(m.ID))-routed-local))
	}
	if d.desk.owners() {
		yield(&ad)
	}
	return ad, changed
}

// shares reports whether the model is for calls of the hub.
func (d *Daemon) shares(model fleet.ModelID) bool {
	only := d.policy.Load().models
	return len(only) == 0 || slices.Contains(only, model)
}

// slots is how many calls may run here at once: the owner's word, else the
// engines'. What was set on the site may be less and never more, for a hub could
// have set it.
func (d *Daemon) slots(s Sharing) int { return d.bounded(s, d.board.slots()) }

func (d *Daemon) bounded(s Sharing, engines int) int {
	switch {
	case s.Slots == 0:
		return engines
	case d.settings.owners() == 0:
		return min(s.Slots, engines)
	default:
		return s.Slots
	}
}

// open is how many of the slots other programs leave. The owner's own number
// stands whatever they do: each engine's is bound by its own.
func (d *Daemon) open(s Sharing) int { return d.bounded(s, max(0, d.board.slots()-d.board.others())) }
