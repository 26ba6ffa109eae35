package hub

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// usageOf is what is known of a call while it runs.
func usageOf(call *gateway.Call) account.Usage {
	return account.Usage{
		CallID: call.ID, Attempt: max(1, call.Trace.Attempts), Started: call.Arrived.UTC(),
		MemberID: string(call.Caller.Member), KeyID: call.Caller.KeyID,
		MachineID: string(call.Trace.Machine), OwnerID: string(call.Trace.Owner), GroupID: string(call.Trace.Group),
		Model: string(call.Model), Endpoint: call.Endpoint.Path(), Stream: call.Stream,
		Waited: within(call.Trace.Waited, maxDuration),
	}
}

// record turns a finished call into its usage record (decisions 7): who, what,
// how it ended; nothing of its content.
func record(call *gateway.Call, out gateway.Outcome) account.Usage {
	u := usageOf(call)
	switch {
	case out.Reported:
		u.TokensHow = account.TokensReported
	case out.TokensOut > 0:
		u.TokensHow = account.TokensCounted
	}
	u.Status, u.Code = out.Status, out.Code
	u.FirstByte, u.Duration = within(out.FirstByte, maxDuration), within(out.Duration, maxDuration)
	u.TokensIn, u.TokensOut = within(out.TokensIn, maxTokens), within(out.TokensOut, maxTokens)
	return u
}

// What a record may hold: an engine may claim any number of tokens, and a clock
// may jump. Within these the store takes every record.
const (
	maxTokens   = math.MaxInt32
	maxDuration = 24 * time.Hour
)

func within[N int64 | time.Duration](n, most N) N { return min(max(n, 0), most) }

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
	for _, j := range [...]gateway.Decision{trace.First, trace.Last} {
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
func tellable(j gateway.Decision, family fleet.Family) account.Judgement {
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
func judgement(d fleet.Decision) gateway.Decision {
	return gateway.Decision{Row: d.Row, Verdict: d.Verdict, Tally: d.Tally}
}

// judged notes a decision about the call.
func (d *dispatch) judged(j gateway.Decision) {
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
	trace.Tries = append(trace.Tries, gateway.Attempt{
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
