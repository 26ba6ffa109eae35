package hub

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

const (
	// storyPause is how long stories gather for one transaction. They explain and
	// account for nothing: what a kill loses of them is lost.
	storyPause = time.Second
	// storyBacklog is how many wait while the database cannot be written; past it
	// the oldest are dropped.
	storyBacklog = 10_000
	// storyAgain is how soon a write that failed is tried again.
	storyAgain = 5 * time.Second
)

// stories keeps what happened to each call, for those it concerns. Calls append
// to pending under mu; run writes.
type stories struct {
	records Records
	log     *slog.Logger

	mu      sync.Mutex
	pending []account.Story // oldest first
}

// add takes the stories of one call in.
func (s *stories) add(of []account.Story) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, of...)
	if over := len(s.pending) - storyBacklog; over > 0 {
		s.pending = s.pending[over:]
	}
}

// run writes what gathers until ctx ends, then what is left.
func (s *stories) run(ctx context.Context) error {
	wait := storyPause
	for ctx.Err() == nil {
		pause(ctx, wait)
		wait = storyPause
		if err := s.flush(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("cannot keep what happened to calls; it is tried again", "error", err)
			wait = storyAgain
		}
	}
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledgerFarewell)
	defer cancel()
	if err := s.flush(rest); err != nil {
		s.log.Warn("cannot keep what happened to the last calls", "error", err)
	}
	return nil
}

// flush writes what is pending. It stays there to be read until it is written.
func (s *stories) flush(ctx context.Context) error {
	s.mu.Lock()
	batch := slices.Clone(s.pending)
	s.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	if err := s.records.SaveStories(ctx, batch, time.Now()); err != nil {
		return err
	}
	last := batch[len(batch)-1]
	s.mu.Lock()
	defer s.mu.Unlock()
	// The oldest may have been dropped meanwhile: what was written ends at last.
	at := slices.IndexFunc(s.pending, func(p account.Story) bool { return p.CallID == last.CallID && p.MemberID == last.MemberID })
	s.pending = slices.Clone(s.pending[at+1:])
	return nil
}

// story is what the member may know of the call, also while it is not written
// yet; account.ErrNotFound where that is nothing.
func (s *stories) story(ctx context.Context, callID, memberID string) (account.Story, error) {
	s.mu.Lock()
	at := slices.IndexFunc(s.pending, func(p account.Story) bool { return p.CallID == callID && p.MemberID == memberID })
	if at >= 0 {
		defer s.mu.Unlock()
		return s.pending[at], nil
	}
	s.mu.Unlock()
	return s.records.Story(ctx, callID, memberID)
}

// storiesOf is what each of those a finished call concerns may know of it: its
// caller, and the owners of the machines it was tried on.
func storiesOf(call *gateway.Call, out gateway.Outcome) []account.Story {
	trace := &call.Trace
	mine := account.Story{
		CallID: call.ID, MemberID: string(call.Caller.Member), Started: call.Arrived.UTC(), Mine: true, Caller: call.Caller.Name,
		Model: string(call.Model), Endpoint: call.Endpoint.Path(), Stream: call.Stream,
		Status: out.Status, Code: out.Code, WaitedMS: trace.Waited.Milliseconds(), TookMS: out.Duration.Milliseconds(),
		Tries: make([]account.StoryTry, len(trace.Tries)),
	}
	for _, j := range [...]gateway.Judged{trace.First, trace.Last} {
		if j.Row != 0 && (len(mine.Judgements) == 0 || j != trace.First) {
			mine.Judgements = append(mine.Judgements, tellable(j, call.Endpoint.Family()))
		}
	}
	all := []account.Story{mine}
	for i, try := range trace.Tries {
		mine.Tries[i] = account.StoryTry{
			Machine: try.Machine.Name, Owner: try.Machine.OwnerName, Via: try.Class.String(),
			AfterMS: try.After.Milliseconds(), TookMS: try.Took.Milliseconds(), Outcome: try.Outcome, Prompt: try.Prompt,
		}
		if try.Began && out.Code != "" {
			mine.Tries[i].Outcome = unfinished(out.Code)
		}
		if try.Machine.Owner != call.Caller.Member {
			all = ownersOf(all, string(try.Machine.Owner), mine.Tries[i], try.Waited)
		}
	}
	if n := len(trace.Tries); n > 0 && trace.Machine == trace.Tries[n-1].Machine.ID { // it ended there
		for i := range all[1:] {
			if theirs := &all[1+i]; theirs.MemberID == string(trace.Owner) {
				theirs.Status, theirs.Code, theirs.TookMS = mine.Status, mine.Code, mine.TookMS-mine.Tries[n-1].AfterMS
			}
		}
	}
	return all
}

// ownersOf adds a try, and how long its call waited before it, to its owner's
// story, the first of them after the caller's.
func ownersOf(all []account.Story, owner string, try account.StoryTry, waited time.Duration) []account.Story {
	at := slices.IndexFunc(all, func(s account.Story) bool { return s.MemberID == owner })
	if at < 0 {
		s := all[0]
		at, all = len(all), append(all, account.Story{
			CallID: s.CallID, MemberID: owner, Started: s.Started, Caller: s.Caller,
			Model: s.Model, Endpoint: s.Endpoint, Stream: s.Stream,
		})
	}
	all[at].Tries, all[at].WaitedMS = append(all[at].Tries, try), waited.Milliseconds()
	return all
}

// unfinished says what became of an answer that a machine began, of a call that
// ended with that code.
func unfinished(code string) string {
	if code == gateway.Cancelled {
		return "began to answer; the caller left"
	}
	return "began to answer and did not finish: " + code
}

// tellable is a decision as its caller may be told it.
func tellable(j gateway.Judged, family fleet.Family) account.Judgement {
	t := account.Judgement{
		AfterMS: j.After.Milliseconds(), Verdict: j.Verdict.String(), Row: fleet.ReasonOf(j.Row, family).Row,
	}
	for class, counts := range j.Tally.Counts {
		for state, n := range counts {
			if n > 0 {
				t.Seen = append(t.Seen, account.Sight{Via: fleet.Class(class).String(), State: fleet.State(state).String(), Machines: int(n)})
			}
		}
	}
	return t
}

// judgement is a decision as the call's trace keeps it.
func judgement(d fleet.Decision) gateway.Judged {
	return gateway.Judged{Row: d.Row, Verdict: d.Verdict, Tally: d.Tally}
}

// judged notes a decision about the call.
func (d *dispatch) judged(j gateway.Judged) {
	trace := &d.call.Trace
	j.After = time.Since(d.call.Arrived)
	if trace.Last = j; trace.First.Row == 0 {
		trace.First = j
	}
}

// tried notes an attempt and what it came to, and which machines have the prompt
// now.
func (d *dispatch) tried(c *held, began time.Time, out outcome) {
	trace := &d.call.Trace
	trace.Tries = append(trace.Tries, gateway.Try{
		Machine: c.Machine, Class: c.Class, After: began.Sub(d.call.Arrived), Took: time.Since(began), Outcome: c.words(out),
		Prompt: c.prompt, Began: out == served, Waited: trace.Waited,
	})
	trace.Route = routeOf(trace.Tries)
}

// words says what an attempt came to.
func (h *held) words(out outcome) string {
	switch {
	case out == served:
		return "answered"
	case out == failed:
		return "failed"
	case out == vanished:
		return "went away in the middle of the answer"
	case h.refused != "":
		return "did not take it: " + strings.ReplaceAll(string(h.refused), "_", " ")
	case out == refusedBusy:
		return "did not take it: busy"
	default:
		return "was gone, or its engine was, before it started"
	}
}
