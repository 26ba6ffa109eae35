package dispatch

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// Finished records a call that is over: its usage, its traces, and for the machine
// that it served one.
func (d *Dispatcher) Finished(call *gateway.Call, out gateway.Outcome) {
	d.cfg.Ledger.End(usageOf(call, out))
	d.cfg.Traces.Add(tracesOf(call, out))
	if out.Code == "" {
		d.recordServed(call)
	}
}

// Refused records a call that the gateway refused before Do. A call over its rate
// leaves no trace: a flood of those would push out the others.
func (d *Dispatcher) Refused(call *gateway.Call, out gateway.Outcome) {
	if out.Code != string(fault.RateLimitExceeded) {
		d.cfg.Traces.Add(tracesOf(call, out))
	}
}

// runningUsage is the usage record of a call as far as it is known while it runs.
func runningUsage(call *gateway.Call) account.Usage {
	return account.Usage{
		CallID: call.ID, Attempt: max(1, call.Trace.Attempts), Started: call.Arrived.UTC(),
		MemberID: string(call.Caller.Member), KeyID: call.Caller.KeyID,
		MachineID: string(call.Trace.Machine), OwnerID: string(call.Trace.Owner), GroupID: string(call.Trace.Group),
		Model: string(call.Model), Endpoint: call.Endpoint.Path(), Stream: call.Stream,
		Waited: within(call.Trace.Waited, maxDuration),
	}
}

// usageOf is the record of a finished call: who, what, how it ended; nothing of its
// content.
func usageOf(call *gateway.Call, out gateway.Outcome) account.Usage {
	u := runningUsage(call)
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

// Bounds of a usage record, within which the store takes it: an engine may report
// any number of tokens, and a clock may jump.
const (
	maxTokens   = math.MaxInt32
	maxDuration = 24 * time.Hour
)

func within[N int64 | time.Duration](n, most N) N { return min(max(n, 0), most) }

// judgement is a decision as the call's trace keeps it.
func judgement(d fleet.Decision) gateway.Decision {
	return gateway.Decision{Row: d.Row, Verdict: d.Verdict, Tally: d.Tally}
}

// recordDecision adds a decision to the call's trace, which keeps the first and the
// last.
func (c *activeCall) recordDecision(j gateway.Decision) {
	trace := &c.call.Trace
	j.After = time.Since(c.call.Arrived)
	if trace.Last = j; trace.First.Row == 0 {
		trace.First = j
	}
}

// recordAttempt adds an attempt to the call's trace.
func (c *activeCall) recordAttempt(a *attempt, out outcome) {
	trace := &c.call.Trace
	trace.Tries = append(trace.Tries, gateway.Attempt{
		Machine: a.Machine, Class: a.Class, After: a.began.Sub(c.call.Arrived), Took: time.Since(a.began), Outcome: a.describe(out),
		Prompt: a.gotBody, Began: out == answered, Waited: trace.Waited,
	})
	trace.Route = routeHeader(trace.Tries)
}

// describe says in words how the attempt ended.
func (a *attempt) describe(out outcome) string {
	switch {
	case out == answered:
		return "answered"
	case out == failed:
		return "failed"
	case out == revoked:
		return "was no longer available to the caller"
	case out == notAdmitted:
		return "did not take it: no reply in time"
	case out == vanished:
		return "went away in the middle of the answer"
	case a.refusal != "":
		return "did not take it: " + strings.ReplaceAll(string(a.refusal), "_", " ")
	case out == busy:
		return "did not take it: busy"
	default:
		return "was gone, or its engine was, before it started"
	}
}

// routeHeader is the value of X-Kith-Route (spec/api.md#x-kith-route): each machine that was given some of the
// request's body, once, in the order in which they got it last.
func routeHeader(tries []gateway.Attempt) string {
	var parts []string
	for i, t := range tries {
		again := slices.ContainsFunc(tries[i+1:], func(later gateway.Attempt) bool { return later.Prompt && later.Machine.ID == t.Machine.ID })
		if t.Prompt && !again {
			parts = append(parts, t.Class.String()+"; machine="+headerText(t.Machine.Name)+"; owner="+headerText(t.Machine.OwnerName))
		}
	}
	return strings.Join(parts, ", ")
}

// headerText returns a name as a header holds it: a quoted ASCII string if it holds
// anything but letters, digits and "-_.".
func headerText(name string) string {
	for _, c := range name {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' {
			continue
		}
		return strconv.QuoteToASCII(name)
	}
	return name
}

// tracesOf returns the traces of a finished call: one for its caller, and one for each
// owner of machines that it was tried on, of what that member may know.
func tracesOf(call *gateway.Call, out gateway.Outcome) []account.Trace {
	trace := &call.Trace
	mine := account.Trace{
		CallID: call.ID, MemberID: string(call.Caller.Member), Started: call.Arrived.UTC(), Mine: true, Caller: call.Caller.Name,
		Model: string(call.Model), Endpoint: call.Endpoint.Path(), Stream: call.Stream,
		Status: out.Status, Code: out.Code, WaitedMS: trace.Waited.Milliseconds(), TookMS: out.Duration.Milliseconds(),
		Tries: make([]account.Attempt, len(trace.Tries)),
	}
	for _, j := range [...]gateway.Decision{trace.First, trace.Last} {
		if j.Row != 0 && (len(mine.Decisions) == 0 || j != trace.First) {
			mine.Decisions = append(mine.Decisions, forCaller(j, call.Endpoint.Family()))
		}
	}
	all := []account.Trace{mine}
	for i, try := range trace.Tries {
		mine.Tries[i] = account.Attempt{
			Machine: try.Machine.Name, Owner: try.Machine.OwnerName, Via: try.Class.String(),
			AfterMS: try.After.Milliseconds(), TookMS: try.Took.Milliseconds(), Outcome: try.Outcome, Prompt: try.Prompt,
		}
		if try.Began && out.Code != "" {
			mine.Tries[i].Outcome = unfinished(out.Code)
		}
		if try.Machine.Owner != call.Caller.Member {
			all = addForOwner(all, string(try.Machine.Owner), mine.Tries[i], try.Waited)
		}
	}
	if n := len(trace.Tries); n > 0 && trace.Machine == trace.Tries[n-1].Machine.ID { // it ended there
		for i := range all[1:] {
			if owners := &all[1+i]; owners.MemberID == string(trace.Owner) {
				owners.Status, owners.Code, owners.TookMS = mine.Status, mine.Code, mine.TookMS-mine.Tries[n-1].AfterMS
			}
		}
	}
	return all
}

// addForOwner adds a try, and how long its call had waited before it, to the trace
// of the machine's owner. The first trace is the caller's.
func addForOwner(all []account.Trace, owner string, try account.Attempt, waited time.Duration) []account.Trace {
	at := slices.IndexFunc(all, func(s account.Trace) bool { return s.MemberID == owner })
	if at < 0 {
		s := all[0]
		at, all = len(all), append(all, account.Trace{
			CallID: s.CallID, MemberID: owner, Started: s.Started, Caller: s.Caller,
			Model: s.Model, Endpoint: s.Endpoint, Stream: s.Stream,
		})
	}
	all[at].Tries, all[at].WaitedMS = append(all[at].Tries, try), waited.Milliseconds()
	return all
}

// unfinished describes an answer that a machine began, of a call that ended with
// that code.
func unfinished(code string) string {
	if code == gateway.Cancelled {
		return "began to answer; the caller left"
	}
	return "began to answer and did not finish: " + code
}

// forCaller is a decision as the call's caller may see it.
func forCaller(j gateway.Decision, family fleet.Family) account.Decision {
	t := account.Decision{
		AfterMS: j.After.Milliseconds(), Verdict: j.Verdict.String(), Row: fleet.ReasonOf(j.Row, family).Row,
	}
	for class, counts := range j.Tally.Counts {
		for state, n := range counts {
			if n > 0 {
				t.Seen = append(t.Seen, account.StateCount{Via: fleet.Class(class).String(), State: fleet.State(state).String(), Machines: int(n)})
			}
		}
	}
	return t
}
