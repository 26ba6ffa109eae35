package cli

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/enginetest"
)

// scenario sets up the circumstances for one hosted code and describes the response that
// a client must get. Ada owns every machine and shares with ben; no one shares with eve.
type scenario struct {
	code   string
	status int
	staged string // the circumstances in one line
	caller string
	model  string
	// machine is the name of the machine that offers the model; empty if none does.
	machine string
	closed  bool                                      // today is outside its sharing hours
	disrupt func(context.Context, *scenarioRun) error // after the machine is ready; nil: nothing
	// seen is the model's availability in the caller's list before the call; empty if it
	// is not listed.
	seen string
	// wait is how many seconds the caller accepts to wait, unary and streamed (Prefer:
	// wait); 0: do not send the header. The comment that is due after 5 s may be late on a
	// busy computer, but must be sent before the end of the streamed wait.
	wait [2]int
	// waits reports that the refusal follows a wait. In a stream the error is then a
	// frame, because the status 200 and a comment are sent after 5 s.
	waits   bool
	reason  string // of the refusal; empty if it has none
	noRetry bool   // x-should-retry: false
}

// scenarios are the scenarios for the six hosted codes.
var scenarios = []scenario{
	{
		code: "model_not_found", status: http.StatusNotFound,
		staged: "ben asks for a model that no machine offers",
		caller: "ben", model: "offered-nowhere",
	},
	{
		code: "NOT_IN_CIRCLE", status: http.StatusForbidden,
		staged: "ada's machine offers the model, and no one shares with eve",
		caller: "eve", model: "not-for-eve", machine: "den",
	},
	{
		code: "CASCADE_EXHAUSTED", status: http.StatusServiceUnavailable,
		staged: "ada shares her machine with ben and has paused it",
		caller: "ben", model: "paused", machine: "attic", disrupt: pauseMachine, seen: "paused",
	},
	{
		code: "CAPACITY_FULL", status: http.StatusServiceUnavailable,
		staged: "ada's machine runs one call at a time and ada's own runs on it; ben's waits in vain",
		caller: "ben", model: "busy", machine: "desk", disrupt: occupyMachine, seen: "busy",
		wait: [2]int{1, 15}, waits: true, reason: "wait_elapsed",
	},
	{
		code: "machine_offline", status: http.StatusServiceUnavailable,
		staged: "ada's machine has just disconnected; ben's call waits 10 s for it to come back",
		caller: "ben", model: "gone", machine: "garage", disrupt: endMachine, waits: true,
	},
	{
		code: "outside_sharing_hours", status: http.StatusServiceUnavailable,
		staged: "ada shares her machine with ben on another day of the week",
		caller: "ben", model: "closed-today", machine: "office", closed: true, seen: "outside_hours", noRetry: true,
	},
}

func pauseMachine(ctx context.Context, s *scenarioRun) error {
	_, err := control(s.data).call(ctx, "pause the machine", request{http.MethodPost, "/pause", nil}, nil)
	return err
}

// occupyMachine makes a call as the machine's owner that runs until the scenario ends.
func occupyMachine(ctx context.Context, s *scenarioRun) error {
	s.double.Set(enginetest.Behaviour{Fault: enginetest.Hang})
	s.group.Go(func() error {
		_, err := s.members["ada"].call(ctx, "keep the machine busy", request{http.MethodPost, chatPath, s.question(false)}, nil)
		return err
	})
	return s.double.Wait(ctx, func(c enginetest.Counts) bool { return c.Running == 1 })
}

func endMachine(_ context.Context, s *scenarioRun) error {
	s.end()
	return nil
}

// closedToday returns sharing hours, in UTC, that do not open for two days.
func closedToday(now time.Time) string {
	return now.UTC().AddDate(0, 0, 3).Format("Mon") + " 00:00-24:00"
}

func (a *app) rehearse() *cobra.Command {
	codes := convert(scenarios, func(s scenario) string { return s.code })
	var stream bool
	cmd := command("kith rehearse", func(ctx context.Context, args []string) error {
		if args[0] == "all" {
			return a.runRehearsal(ctx, scenarios, stream)
		}
		at := slices.Index(codes, args[0])
		if at < 0 {
			return wrongUse("cannot stage %q: the codes are %s, or all for each; casing matters", args[0], strings.Join(codes, ", "))
		}
		return a.runRehearsal(ctx, scenarios[at:at+1], stream)
	})
	cmd.ValidArgs = append(codes, "all")
	cmd.Flags().BoolVar(&stream, "stream", false, "make the call with stream: true")
	return cmd
}

// runRehearsal runs the scenarios concurrently and prints their responses in order. It
// fails if a response is wrong.
func (a *app) runRehearsal(ctx context.Context, chosen []scenario, stream bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.progress("starting the rehearsal's hub")
	defer a.progress("")
	network, err := openRehearsalNetwork(ctx)
	if err != nil {
		return err
	}
	defer network.close()
	type ending struct {
		rehearsalResult
		err error
	}
	endings := make([]chan ending, len(chosen))
	for i := range chosen {
		endings[i] = make(chan ending, 1)
		go func() {
			result, err := network.run(ctx, &chosen[i], stream)
			endings[i] <- ending{result, err}
		}()
	}
	var wrong []string
	for i := range chosen {
		a.progress("staging " + chosen[i].code)
		end := <-endings[i]
		a.progress("")
		if end.err != nil {
			return fmt.Errorf("cannot stage %s: %w", chosen[i].code, end.err)
		}
		if err := a.printResult(end.rehearsalResult); err != nil {
			return err
		}
		if end.Wrong != "" {
			wrong = append(wrong, chosen[i].code+" ("+end.Wrong+")")
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("this build gives wrong answers to %s; please report it", strings.Join(wrong, ", "))
	}
	return nil
}

// printResult prints a result: with --json a document on a line, otherwise the circumstances
// and the call and its response as a client sees them.
func (a *app) printResult(t rehearsalResult) error {
	return a.print(t, func() {
		a.say("%s  %s\n    > POST %s  %s\n", strong(t.Code), t.Staged, t.Path, t.Request)
		if t.Prefer != "" {
			a.say("    > Prefer: %s\n", t.Prefer)
		}
		a.say("    < %d %s\n", t.Status, http.StatusText(t.Status))
		for _, name := range shownHeaders {
			if value := t.Headers[name]; value != "" {
				a.say("    < %s: %s\n", name, value)
			}
		}
		for line := range strings.SplitSeq(t.Answer, "\n") {
			if line != "" {
				a.say("    < %s\n", line)
			}
		}
		if t.Wrong != "" {
			a.say("    %s\n", strong("wrong: "+t.Wrong))
		}
		a.say("\n")
	})
}
