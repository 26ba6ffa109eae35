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

// scene is the circumstances of one hosted code (S7): whom it needs, what goes
// wrong, and the answer that must come of it. Ada owns every machine and shares
// with ben; nobody shares with eve.
type scene struct {
	code   string
	status int
	staged string // for a person, in one line
	caller string
	model  string
	// machine is the one that offers the model; empty: none does.
	machine string
	closed  bool // its sharing hours leave today out
	spoil   func(context.Context, *stage) error
	// seen is the model's availability to the caller once all is staged; empty:
	// it is not listed.
	seen string
	// wait is how many seconds the caller is willing to wait, unary and streamed
	// (Prefer: wait); 0: it does not say.
	wait [2]int
	// waits says that the refusal comes after a wait, and so, streamed, as a
	// frame: nothing is sent before 5 s, then 200 and a comment.
	waits   bool
	reason  string // of the refusal; empty: it has none
	noRetry bool   // x-should-retry: false
}

// scenes are the six, in S7's order.
var scenes = []scene{
	{
		code: "model_not_found", status: http.StatusNotFound,
		staged: "ben asks for a model that no machine offers",
		caller: "ben", model: "offered-nowhere",
	},
	{
		code: "NOT_IN_CIRCLE", status: http.StatusForbidden,
		staged: "ada's machine offers the model, and nobody shares with eve",
		caller: "eve", model: "not-for-eve", machine: "den",
	},
	{
		code: "CASCADE_EXHAUSTED", status: http.StatusServiceUnavailable,
		staged: "ada shares her machine with ben and has paused it",
		caller: "ben", model: "paused", machine: "attic", spoil: pauseMachine, seen: "paused",
	},
	{
		code: "CAPACITY_FULL", status: http.StatusServiceUnavailable,
		staged: "ada's machine runs one call at a time and ada's own runs on it; ben's waits in vain",
		caller: "ben", model: "busy", machine: "desk", spoil: occupyMachine, seen: "busy",
		wait: [2]int{1, 6}, waits: true, reason: "wait_elapsed",
	},
	{
		code: "machine_offline", status: http.StatusServiceUnavailable,
		staged: "ada's machine went away just now; ben's call waits the 10 s in which it may come back",
		caller: "ben", model: "gone", machine: "garage", spoil: endMachine, waits: true,
	},
	{
		code: "outside_sharing_hours", status: http.StatusServiceUnavailable,
		staged: "ada shares her machine with ben on another day of the week",
		caller: "ben", model: "closed-today", machine: "office", closed: true, seen: "outside_hours", noRetry: true,
	},
}

func pauseMachine(ctx context.Context, s *stage) error {
	_, err := control(s.data).call(ctx, "pause the machine", request{http.MethodPost, "/pause", nil}, nil)
	return err
}

// occupyMachine has its owner make a call that does not end before the scene does.
func occupyMachine(ctx context.Context, s *stage) error {
	s.double.Set(enginetest.Behaviour{Fault: enginetest.Hang})
	s.group.Go(func() error {
		_, err := s.members["ada"].call(ctx, "keep the machine busy", request{http.MethodPost, chatPath, s.question(false)}, nil)
		return err
	})
	return s.double.Wait(ctx, func(c enginetest.Counts) bool { return c.Running == 1 })
}

func endMachine(_ context.Context, s *stage) error { return s.end() }

// closedToday are sharing hours that do not open for two days, in UTC.
func closedToday(now time.Time) string {
	return now.UTC().AddDate(0, 0, 3).Format("Mon") + " 00:00-24:00"
}

func (a *app) rehearse() *cobra.Command {
	codes := make([]string, len(scenes))
	for i, s := range scenes {
		codes[i] = s.code
	}
	var stream bool
	cmd := &cobra.Command{
		Use: "rehearse CODE|all", Short: "Stage a refusal for real and print the answer a client gets",
		Long: "Stage the circumstances of one of the six hosted error codes, or of each, with throw-away members,\n" +
			"machines, hours and failures in one process, make the call over HTTP, and print the real answer.\n\n" +
			"The codes: " + strings.Join(codes, ", ") + ".",
		ValidArgs: append(codes, "all"), Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "all" {
				return a.runRehearsal(cmd.Context(), scenes, stream)
			}
			at := slices.Index(codes, args[0])
			if at < 0 {
				return wrongUse("cannot stage %q: the codes are %s, or all for each; casing matters", args[0], strings.Join(codes, ", "))
			}
			return a.runRehearsal(cmd.Context(), scenes[at:at+1], stream)
		},
	}
	cmd.Flags().BoolVar(&stream, "stream", false, "make the call with stream: true")
	return cmd
}

// runRehearsal plays the scenes side by side and prints their answers in order.
// It fails if one is not the answer wanted.
func (a *app) runRehearsal(ctx context.Context, chosen []scene, stream bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.progress("raising the curtain")
	defer a.progress("")
	t, err := openTheatre(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	type ending struct {
		take
		err error
	}
	endings := make([]chan ending, len(chosen))
	for i := range chosen {
		endings[i] = make(chan ending, 1)
		go func() {
			take, err := t.play(ctx, &chosen[i], stream)
			endings[i] <- ending{take, err}
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
		if err := a.showTake(end.take); err != nil {
			return err
		}
		if end.Wrong != "" {
			wrong = append(wrong, chosen[i].code+" ("+end.Wrong+")")
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("cannot vouch for this build: wrong answers to %s; please report it", strings.Join(wrong, ", "))
	}
	return nil
}

// showTake prints one answer: with --json a document on a line, else what was
// staged and the answer as a client sees it.
func (a *app) showTake(t take) error {
	if a.json {
		return a.printJSON(t)
	}
	a.say("%s  %s\n", strong(t.Code), t.Staged)
	for _, line := range t.lines() {
		a.say("    %s\n", line)
	}
	if t.Wrong != "" {
		a.say("    %s\n", strong("wrong: "+t.Wrong))
	}
	a.say("\n")
	return nil
}
