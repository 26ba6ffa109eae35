package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
)

// rehearsalTimeout limits the setup of a scenario, and the wait for a response.
const rehearsalTimeout = 30 * time.Second

// rehearsalNetwork is a hub in a temporary folder, with the members of a rehearsal. Only
// the engines are simulated.
type rehearsalNetwork struct {
	dir      string
	hub      *hubProcess
	log      *slog.Logger
	operator *client
	members  map[string]*client // by name, each with the member's key
	group    *errgroup.Group    // of the hub
	end      context.CancelFunc
}

// openRehearsalNetwork starts the hub and creates its members. The caller must close the
// network, unless there was an error.
func openRehearsalNetwork(ctx context.Context) (_ *rehearsalNetwork, err error) {
	t := &rehearsalNetwork{log: slog.New(slog.DiscardHandler), members: map[string]*client{}, end: func() {}}
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
	config.RateLimit.RPS = 0 // because await polls
	if t.hub, err = openHub(ctx, config, t.log); err != nil {
		return nil, err
	}
	ctx, t.end = context.WithCancel(ctx)
	t.group, ctx = errgroup.WithContext(ctx)
	t.group.Go(func() error { return t.hub.run(ctx) })
	t.operator = overSocket(filepath.Join(config.Hub.Data, "admin.sock"), "the rehearsal's hub", "run it again")
	return t, t.createMembers(ctx)
}

// createMembers creates the members, and ada's share with ben.
func (t *rehearsalNetwork) createMembers(ctx context.Context) error {
	for _, name := range []string{"ada", "ben", "eve"} {
		if _, _, err := fetch(ctx, t.operator, "make a member", api.OperatorCreateMember.With(api.NewMember{Name: name})); err != nil {
			return err
		}
		key, _, err := fetch(ctx, t.operator, "create a key", api.OperatorCreateKey.With(api.NewKey{Member: name}))
		if err != nil {
			return err
		}
		t.members[name] = toHub(t.hub.base, key.Secret)
	}
	_, _, err := fetch(ctx, t.operator, "share", api.OperatorAddShare.With(api.BetweenMembers{Owner: "ada", With: "ben"}))
	return err
}

// close ends the hub and removes its folder.
func (t *rehearsalNetwork) close() {
	t.end()
	if t.group != nil {
		_ = t.group.Wait() // an error while it was running is reported by a scenario
	}
	if t.hub != nil {
		t.hub.close()
	}
	if t.dir != "" {
		_ = os.RemoveAll(t.dir) // it is among the temporary files
	}
}

// scenarioRun is a running scenario.
type scenarioRun struct {
	*rehearsalNetwork
	*scenario
	group  *errgroup.Group // ends with the scenario
	data   string          // the machine's folder
	double *enginetest.Engine
	end    func() // ends the machine and waits for it
}

// run sets up the scenario, makes the call and returns its result. Everything that it
// started has ended when it returns.
func (t *rehearsalNetwork) run(ctx context.Context, s *scenario, stream bool) (rehearsalResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*rehearsalTimeout, errors.New("it took too long"))
	group, ctx := errgroup.WithContext(ctx)
	g := &scenarioRun{rehearsalNetwork: t, scenario: s, group: group, end: func() {}}
	defer func() {
		cancel()
		_ = group.Wait() // either cancelled here, or failed and so ended the scenario
		if g.double != nil {
			_ = g.double.Close()
		}
	}()
	err := g.setUp(ctx)
	var result rehearsalResult
	if err == nil {
		result, err = g.ask(ctx, stream)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return result, err
}

// setUp starts the scenario's machine and calls disrupt.
func (s *scenarioRun) setUp(ctx context.Context) error {
	if s.machine == "" {
		return nil
	}
	if err := s.startMachine(ctx); err != nil {
		return err
	}
	if err := s.await(ctx, "ada", "ready"); err != nil {
		return err
	}
	if s.disrupt != nil {
		if err := s.disrupt(ctx, s); err != nil {
			return err
		}
	}
	return s.await(ctx, s.caller, s.seen)
}

// startMachine starts the machine's engine, signs the machine in as ada's and starts its
// daemon.
func (s *scenarioRun) startMachine(ctx context.Context) error {
	s.double = enginetest.New(enginetest.LlamaCpp, enginetest.Options{Models: []enginetest.Model{{ID: s.model}}})
	if err := s.double.Start(); err != nil {
		return err
	}
	s.data = filepath.Join(s.dir, s.machine)
	if err := addMachine(ctx, s.operator, s.hub.base, s.data, api.NewToken{Member: "ada", Name: s.machine}); err != nil {
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
	m := &daemonProcess{config: config, flag: "--local", log: s.log, ready: func(*daemon.Daemon) error { return nil }}
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	s.group.Go(func() error {
		defer close(ended)
		return m.run(running)
	})
	s.end = func() {
		stop()
		<-ended
	}
	return nil
}

// await waits until the hub lists the scenario's model to the member with the given
// availability or, if that is empty, does not list it.
func (s *scenarioRun) await(ctx context.Context, member, availability string) error {
	var seen string
	err := poll(ctx, rehearsalTimeout, func() (bool, error) {
		models, err := s.members[member].list(ctx)
		seen = ""
		for _, m := range models {
			if m.ID == s.model {
				seen = m.Availability
			}
		}
		return err == nil && seen == availability, err
	})
	if errors.Is(err, errTimeout) {
		err = fmt.Errorf("after %s the hub lists the model to %s as %q, not as %q", rehearsalTimeout, member, seen, availability)
	}
	return err
}
