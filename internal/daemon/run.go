package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

const (
	// discoveryInterval is how often the engines are checked.
	discoveryInterval = 15 * time.Second
	// busyDiscoveryInterval is how often the engines are checked while other programs use
	// them, or after one ended, because it may be restarting.
	busyDiscoveryInterval = time.Second
	// minDiscoveryInterval is the minimum time between two requested checks.
	minDiscoveryInterval = time.Second
	// shutdownGrace is how long running responses may continue after the end of ctx.
	shutdownGrace = 5 * time.Second
	// maxRecentErrors is the number of errors in the status.
	maxRecentErrors = 16
)

// listen opens the listeners for the local surface and the socket, which determines the
// surface's port.
func (d *Daemon) listen() (local, socket net.Listener, err error) {
	open := d.config.ListenOn
	if open == nil {
		open = listenOn
	}
	if socket, err = open("unix", filepath.Join(d.config.Home, socketFile)); err != nil {
		return nil, nil, err
	}
	if local, err = open("tcp", d.address.String()); err != nil {
		socket.Close()
		return nil, nil, fmt.Errorf("cannot open the local surface: %w", err)
	}
	address := d.address
	if tcp, ok := local.Addr().(*net.TCPAddr); ok {
		address = tcp.AddrPort()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.base = "http://" + address.String() + "/v1"
	d.surface = d.newSurface(address.Port())
	return local, socket, nil
}

func listenOn(network, address string) (net.Listener, error) {
	if network == "unix" {
		return ListenSocket(address)
	}
	return net.Listen(network, address)
}

// serve serves one listener until ctx ends.
func (d *Daemon) serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := gateway.NewServer(handler, d.log)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if server.Shutdown(grace) != nil {
			server.Close()
		}
	})
	err := server.Serve(l)
	if !stop() {
		<-stopped
		return nil
	}
	return fmt.Errorf("cannot serve %s any longer: %w", l.Addr(), err)
}

// watchEngines forwards changes from the Finder to the offers.
func (d *Daemon) watchEngines(ctx context.Context) error {
	for {
		changed := d.finder.Changed()
		d.offers.setChanged()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// runDiscovery checks the engines every discoveryInterval, more often while other
// programs use them, and on request. Run has already checked them once.
func (d *Daemon) runDiscovery(ctx context.Context) error {
	offered := d.offers.models(d.offers.engines())
	for {
		wait := discoveryInterval
		if d.offers.otherCalls() > 0 || d.finder.Restarting() {
			wait = busyDiscoveryInterval // their slots will soon be free, or the engine back
		}
		if !sleep(ctx, wait, d.discoverNow) {
			return nil
		}
		d.finder.ProbeAgain(ctx)
		d.discoverLate()
		// The Finder does not report changes of servers that kith runs.
		if now := d.offers.models(d.offers.engines()); !reflect.DeepEqual(now, offered) {
			offered = now
			d.offers.setChanged()
		}
		if !sleep(ctx, minDiscoveryInterval, nil) {
			return nil
		}
	}
}

func (d *Daemon) engineGone(err error) {
	d.recordError("%v", err)
	d.discoverNow.request()
	d.checkAudioNow.request()
}

// engineFailed records that an engine failed during a call, and checks the engines.
func (d *Daemon) engineFailed(e *engine.Engine, model fleet.ModelID, err error) {
	d.recordError("%s failed on a call for %q: %s", e.Name(), model, fault.Of(err).Code)
	d.discoverNow.request()
}

// engineRefused checks the engines after a status that may mean that the offers are
// wrong. If the engine still lists the model, it stays offered: the refusal may only
// concern this call.
func (d *Daemon) engineRefused(e *engine.Engine, model fleet.ModelID, status int) {
	switch status {
	case http.StatusNotFound:
		d.recordError("%s lists %q but answers that it does not have it", e.Name(), model)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
	default:
		return
	}
	d.discoverNow.request()
}

// discoverLate checks the engines again soon if one of them was too late in the last
// probe.
func (d *Daemon) discoverLate() {
	if d.finder.Late() {
		d.discoverNow.request()
	}
}

// trigger is a channel of requests with capacity 1.
type trigger chan struct{}

// request sends a request, unless one is pending.
func (t trigger) request() {
	select {
	case t <- struct{}{}:
	default:
	}
}

// sleep waits for the given time or for a request on wake, which may be nil. It returns
// false if ctx ends.
func sleep(ctx context.Context, wait time.Duration, wake <-chan struct{}) bool {
	select {
	case <-time.After(wait):
	case <-wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// recordError logs an error and adds it to the status. A repeated error is listed only
// once, with its latest time. The text must not contain any of a call's content.
func (d *Daemon) recordError(format string, args ...any) {
	now := RecentError{At: time.Now(), What: fmt.Sprintf(format, args...)}
	d.log.Warn("error", "what", now.What)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recentErrors = slices.DeleteFunc(d.recentErrors, func(t RecentError) bool { return t.What == now.What })
	d.recentErrors = append(d.recentErrors, now)
	if len(d.recentErrors) > maxRecentErrors {
		d.recentErrors = d.recentErrors[1:]
	}
}
