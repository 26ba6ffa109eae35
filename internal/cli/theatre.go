package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
)

// curtain is how long the staging of a rehearsal may take, or the wait for an
// answer, before it is given up.
const curtain = 30 * time.Second

// theatre is a throw-away hub in a folder of its own, with the members of a
// rehearsal. Everything in it is real but the engines.
type theatre struct {
	dir      string
	hub      *hubProcess
	log      *slog.Logger
	operator *client
	members  map[string]*client // each with a key of the member's
	group    *errgroup.Group    // of the hub
	end      context.CancelFunc
}

// openTheatre starts the hub and makes its members. Close it, unless it failed.
func openTheatre(ctx context.Context) (_ *theatre, err error) {
	t := &theatre{log: slog.New(slog.DiscardHandler), members: map[string]*client{}, end: func() {}}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if t.dir, err = os.MkdirTemp("", "kith-stage-"); err != nil {
		return nil, fmt.Errorf("cannot make a folder for the rehearsal: %w; set TMPDIR", err)
	}
	config := defaultHubFile(t.dir)
	config.Hub.Listen.Text = "127.0.0.1:0"
	config.RateLimit.RPS = 0 // await asks often
	if t.hub, err = openHub(ctx, config, t.log); err != nil {
		return nil, err
	}
	ctx, t.end = context.WithCancel(ctx)
	t.group, ctx = errgroup.WithContext(ctx)
	t.group.Go(func() error { return t.hub.run(ctx) })
	t.operator = overSocket(filepath.Join(config.Hub.Data, "admin.sock"), "the rehearsal's hub", "run it again")
	return t, t.cast(ctx)
}

// cast makes the members, and ada's share with ben.
func (t *theatre) cast(ctx context.Context) error {
	for _, name := range []string{"ada", "ben", "eve"} {
		if _, _, err := fetch(ctx, t.operator, "make a member", api.OperatorCreateMember.With(api.NewMember{Name: name})); err != nil {
			return err
		}
		key, _, err := fetch(ctx, t.operator, "make a key", api.OperatorCreateKey.With(api.NewKey{Member: name}))
		if err != nil {
			return err
		}
		t.members[name] = toHub(t.hub.base, key.Secret)
	}
	_, _, err := fetch(ctx, t.operator, "share", api.OperatorAddShare.With(api.BetweenMembers{Owner: "ada", With: "ben"}))
	return err
}

// close ends the hub and leaves nothing behind.
func (t *theatre) close() {
	t.end()
	if t.group != nil {
		_ = t.group.Wait() // what failed while it ran was told by a scene
	}
	if t.hub != nil {
		t.hub.close()
	}
	if t.dir != "" {
		if err := os.RemoveAll(t.dir); err != nil {
			t.log.Error("cannot clear the rehearsal away", "error", err)
		}
	}
}

// stage is one scene while it is played.
type stage struct {
	*theatre
	*scene
	group  *errgroup.Group // what runs until the scene is over
	data   string          // the machine's folder
	double *enginetest.Engine
	end    func() error // ends the machine and waits for it
}

// play sets the scene, makes the call, and says what came of it. What it
// started has ended when it returns.
func (t *theatre) play(ctx context.Context, s *scene, stream bool) (take, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*curtain, errors.New("it took too long"))
	group, ctx := errgroup.WithContext(ctx)
	g := &stage{theatre: t, scene: s, group: group, end: func() error { return nil }}
	defer func() {
		cancel()
		_ = group.Wait() // it was cancelled, or failed and cancelled the scene
		if g.double != nil {
			_ = g.double.Close()
		}
	}()
	err := g.set(ctx)
	var told take
	if err == nil {
		told, err = g.ask(ctx, stream)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return told, err
}

// set brings the scene's machine up and lets go wrong what is to go wrong.
func (s *stage) set(ctx context.Context) error {
	if s.machine == "" {
		return nil
	}
	if err := s.bring(ctx); err != nil {
		return err
	}
	if err := s.await(ctx, "ada", "ready"); err != nil {
		return err
	}
	if s.spoil != nil {
		if err := s.spoil(ctx, s); err != nil {
			return err
		}
	}
	return s.await(ctx, s.caller, s.seen)
}

// bring starts the machine's engine, signs the machine in as ada's and starts
// its daemon.
func (s *stage) bring(ctx context.Context) error {
	s.double = enginetest.New(enginetest.LlamaCpp, enginetest.Options{Models: []enginetest.Model{{ID: s.model}}})
	if err := s.double.Start(); err != nil {
		return err
	}
	made, _, err := fetch(ctx, s.operator, "make a machine", api.OperatorCreateToken.With(api.NewToken{Member: "ada", Name: s.machine}))
	if err != nil {
		return err
	}
	saved, err := redeem(ctx, toHub(s.hub.base, ""), made.Token)
	if err != nil {
		return err
	}
	s.data = filepath.Join(s.dir, s.machine)
	if err := daemon.SaveCredential(s.data, saved); err != nil {
		return err
	}
	config := defaultDaemonFile(s.data)
	config.Daemon.Listen.Text = "127.0.0.1:0"
	config.Engine.Builtin, config.Discovery.Enabled = false, false
	config.Discovery.Endpoints = []web{{s.double.URL()}}
	config.Share.Slots, config.Share.Timezone.Text = 1, "UTC"
	if s.closed {
		config.Share.Hours.Text = closedToday(time.Now())
	}
	m := &machine{config: config, flag: "--local", log: s.log, ready: func(*daemon.Daemon) error { return nil }}
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	s.group.Go(func() error {
		defer close(ended)
		return m.run(running)
	})
	s.end = func() error {
		stop()
		<-ended
		return nil
	}
	return nil
}

// await waits until the hub lists the scene's model to the member so; empty:
// until it does not list it.
func (s *stage) await(ctx context.Context, member, availability string) error {
	late := time.NewTimer(curtain)
	defer late.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		var list listing
		if _, err := s.members[member].call(ctx, "list the models", request{http.MethodGet, "/v1/models", nil}, &list); err != nil {
			return err
		}
		seen := ""
		for _, m := range list.Data {
			if m.ID == s.model {
				seen = m.Availability
			}
		}
		if seen == availability {
			return nil
		}
		select {
		case <-again.C:
		case <-late.C:
			return fmt.Errorf("after %s the hub lists the model to %s as %q, not as %q", curtain, member, seen, availability)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
