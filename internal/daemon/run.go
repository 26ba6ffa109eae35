package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

const (
	// lookEvery is how often the engines are looked at.
	lookEvery = 15 * time.Second
	// othersEvery is how often while other programs use them.
	othersEvery = 3 * time.Second
	// lookPace is the least time between two looks that a failing engine asks for.
	lookPace = time.Second
	// farewell is how long running answers may go on once the daemon is to end.
	farewell = 5 * time.Second
	// maxTroubles is how many of the last errors status remembers.
	maxTroubles = 16
)

// listen opens the local surface and the socket, and fixes the surface to the
// port it got.
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
	port := int(d.address.Port())
	if tcp, ok := local.Addr().(*net.TCPAddr); ok {
		port = tcp.Port
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	host := net.JoinHostPort(d.address.Addr().String(), strconv.Itoa(port))
	d.base = "http://" + host + "/v1"
	d.port, d.surface = port, d.newSurface(port)
	return local, socket, nil
}

// listenOn opens a listener of this computer; a unix socket is for its owner's
// programs alone, and a dead one in its place is cleared away.
func listenOn(network, address string) (net.Listener, error) {
	if network != "unix" {
		return net.Listen(network, address)
	}
	if c, err := net.Dial("unix", address); err == nil {
		c.Close()
		return nil, fmt.Errorf("cannot open %s: another daemon runs on this folder", address)
	}
	if err := os.Remove(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot open the daemon's socket: %w", err)
	}
	// The folder is 0700 where it was made by us; the mode of the socket is what
	// holds where it was not.
	l, err := net.Listen("unix", address)
	if err != nil {
		return nil, fmt.Errorf("cannot open the daemon's socket: %w", err)
	}
	if err := os.Chmod(address, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("cannot keep the daemon's socket private: %w", err)
	}
	return l, nil
}

// serve serves one listener until ctx ends.
func (d *Daemon) serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := gateway.NewServer(handler, d.log)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
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

// watchEngines carries the Finder's changes to the board.
func (d *Daemon) watchEngines(ctx context.Context) error {
	for {
		changed := d.finder.Changed()
		d.board.touch()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// keepLooking looks at the engines every lookEvery, sooner while other programs
// use them or when a call found one changed. Run has looked once before.
func (d *Daemon) keepLooking(ctx context.Context) error {
	offered := d.board.offers(d.board.engines())
	for {
		wait := lookEvery
		if d.board.others() > 0 {
			wait = othersEvery // what they hold is free again soon
		}
		select {
		case <-time.After(wait):
		case <-d.relook:
		case <-ctx.Done():
			return nil
		}
		d.finder.ProbeAgain(ctx)
		// A server that kith runs comes, goes and learns without a word.
		if now := d.board.offers(d.board.engines()); !reflect.DeepEqual(now, offered) {
			offered = now
			d.board.touch()
		}
		select {
		case <-time.After(lookPace):
		case <-ctx.Done():
			return nil
		}
	}
}

// engineGone notes an engine that could not be reached.
func (d *Daemon) engineGone(e *engine.Engine, err error) {
	d.trouble("%s at %s cannot be reached: %v", e.Name(), e.Base(), err)
	d.askLook()
	d.askCheck()
}

// engineFailed notes an engine that failed on a call: perhaps it died.
func (d *Daemon) engineFailed(e *engine.Engine, model fleet.ModelID, err error) {
	d.trouble("%s failed on a call for %q: %s", e.Name(), model, fault.Of(err).Code)
	d.askLook()
}

// engineRefused notes an engine's refusal that says its offers may be wrong: the
// engine is looked at now (decisions 2). A model that it still lists stays offered,
// since what it said of one call may concern only that call.
func (d *Daemon) engineRefused(e *engine.Engine, model fleet.ModelID, status int) {
	switch status {
	case http.StatusNotFound:
		d.trouble("%s lists %q and answers that it does not have it", e.Name(), model)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
	default:
		return
	}
	d.askLook()
}

// askLook asks for a look soon; asking twice is asking once.
func (d *Daemon) askLook() {
	select {
	case d.relook <- struct{}{}:
	default:
	}
}

// trouble remembers an error for status and logs it; one that repeats is
// remembered once, at its newest time. The text holds nothing of a call's
// content.
func (d *Daemon) trouble(format string, args ...any) {
	now := Trouble{At: time.Now(), What: fmt.Sprintf(format, args...)}
	d.log.Warn("trouble", "what", now.What)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.troubles = slices.DeleteFunc(d.troubles, func(t Trouble) bool { return t.What == now.What })
	d.troubles = append(d.troubles, now)
	if len(d.troubles) > maxTroubles {
		d.troubles = d.troubles[1:]
	}
}
