package cli

import (
	"bytes"
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

const chatPath = "/v1/chat/completions"

func (s *scenario) question(stream bool) chatRequest {
	return chatRequest{Model: s.model, Stream: stream, Messages: []message{{"user", "Hello"}}}
}

// rehearsalResult is the response to a rehearsed call and the output of `kith rehearse
// --json`.
type rehearsalResult struct {
	Code   string `json:"code"`   // the required code
	Staged string `json:"staged"` // a description of the circumstances
	// The call: the caller, the path, the accepted wait and the body.
	Caller  string         `json:"caller"`
	Path    string         `json:"path"`
	Prefer  string         `json:"prefer,omitempty"`
	Request jsontext.Value `json:"request"`
	// The response, with only those headers that affect a client.
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Answer  string            `json:"answer"` // the body, or the stream
	Error   jsontext.Value    `json:"error"`  // its error; null: none
	// Wrong describes how the response differs from the required one; empty if it does
	// not.
	Wrong string `json:"wrong"`
}

// shownHeaders are the response headers that affect a client.
var shownHeaders = []string{"Content-Type", "Retry-After", "X-Should-Retry", "X-Correlation-Id"}

// resultError is the error of an answer, in a body or a frame.
type resultError struct {
	Code          string `json:"code"`
	Message       string `json:"message"`
	Type          string `json:"type"`
	CorrelationID string `json:"correlation_id"`
	Reason        string `json:"reason"` // in a body
	Details       *struct {
		Reason string `json:"reason"`
	} `json:"details"` // in a frame
}

// ask makes the scenario's call like a client.
func (s *scenarioRun) ask(ctx context.Context, stream bool) (rehearsalResult, error) {
	caller := s.members[s.caller]
	body, err := json.Marshal(s.question(stream))
	if err != nil {
		return rehearsalResult{}, err
	}
	t := rehearsalResult{Code: s.code, Staged: s.staged, Caller: s.caller, Path: chatPath, Request: body, Headers: map[string]string{}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, caller.base+chatPath, bytes.NewReader(body))
	if err != nil {
		return rehearsalResult{}, err
	}
	r.Header.Set("Authorization", "Bearer "+caller.bearer)
	r.Header.Set("Content-Type", "application/json")
	wait := s.wait[0]
	if stream {
		wait = s.wait[1]
	}
	if wait > 0 {
		t.Prefer = "wait=" + strconv.Itoa(wait)
		r.Header.Set("Prefer", t.Prefer)
	}
	response, err := caller.http.Do(r)
	if err != nil {
		return rehearsalResult{}, err
	}
	defer response.Body.Close()
	// After a frame with an error, the connection ends without HTTP's end marker.
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	t.Status, t.Answer = response.StatusCode, string(text)
	for _, name := range shownHeaders {
		if value := response.Header.Get(name); value != "" {
			t.Headers[name] = value
		}
	}
	t.Wrong = t.judge(s.scenario, stream && s.waits)
	return t, nil
}

// judge compares the response with the scenario, either as a status or as a frame of a
// stream. It returns "" if the response is correct.
func (t *rehearsalResult) judge(s *scenario, frame bool) string {
	var got resultError
	var problems []string
	want := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	status, kind := s.status, "application/json"
	if frame {
		status, kind = http.StatusOK, "text/event-stream"
	}
	want(t.Status == status, "status %d, not %d", t.Status, status)
	want(t.Headers["Content-Type"] == kind, "a body of type %q, not %s", t.Headers["Content-Type"], kind)
	text := t.Answer
	if frame {
		want(strings.HasPrefix(text, ":"), "no comment while the call waited")
		want(!strings.Contains(text, "[DONE]"), "an end mark after the error")
		text = lastFrame(text)
	}
	var envelope struct {
		Error jsontext.Value `json:"error"`
	}
	if json.Unmarshal([]byte(text), &envelope) != nil || json.Unmarshal(envelope.Error, &got) != nil {
		return strings.Join(append(problems, "no error in the answer"), "; ")
	}
	t.Error = envelope.Error
	want(got.Code == s.code, "code %s, not %s", got.Code, s.code)
	want(got.CorrelationID != "" && got.CorrelationID == t.Headers["X-Correlation-Id"], "the correlation id is not the header's")
	reason := got.Reason
	if frame {
		want(got.Details != nil, "no details in the frame")
		if got.Details != nil {
			reason = got.Details.Reason
		}
	} else {
		retry := t.Headers["Retry-After"] != ""
		want(retry == (s.status == http.StatusServiceUnavailable), "Retry-After %q with a %d", t.Headers["Retry-After"], t.Status)
		want((t.Headers["X-Should-Retry"] == "false") == s.noRetry, "x-should-retry %q", t.Headers["X-Should-Retry"])
	}
	want(reason == s.reason, "reason %q, not %q", reason, s.reason)
	return strings.Join(problems, "; ")
}

// lastFrame returns the data of a stream's last frame.
func lastFrame(stream string) string {
	last := ""
	for line := range strings.Lines(stream) {
		if data, ok := strings.CutPrefix(line, "data:"); ok {
			last = data
		}
	}
	return last
}
