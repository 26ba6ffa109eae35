package dispatch

import (
	"fmt"
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

// Finished records a finished call: its usage, its traces, and that its machine has
// served a call.
func (d *Dispatcher) Finished(call *gateway.Call, out gateway.Outcome) {
	d.cfg.Ledger.End(usageOf(call, out))
	d.cfg.Traces.Add(tracesOf(call, out))
	if out.Code == "" {
		d.recordServed(call)
		d.speeds.measure(call, out, d.cfg.Registry.Now())
	}
}

// Refused records a call that the gateway refused before Do (spec/api.md#usage). A call over
// its rate limit is not recorded, because a flood of such calls would displace the others.
func (d *Dispatcher) Refused(call *gateway.Call, out gateway.Outcome) {
	if out.Code != string(fault.RateLimitExceeded) {
		d.cfg.Ledger.End(usageOf(call, out))
		d.cfg.Traces.Add(tracesOf(call, out))
	}
}

// runningUsage returns the usage record of a call as far as it is known while the call
// runs.
func runningUsage(call *gateway.Call) account.Usage {
	return account.Usage{
		CallID: call.ID, Attempt: max(1, call.Trace.Attempts), Started: call.Started.UTC(),
		MemberID: string(call.Caller.Member), KeyID: keyOf(call.Caller),
		MachineID: string(call.Trace.Machine), OwnerID: string(call.Trace.Owner), GroupID: string(call.Trace.Group),
		Model: string(call.Model), Endpoint: call.Endpoint.Path(), Stream: call.Stream,
		Waited: within(call.Trace.Waited, maxDuration),
	}
}

// keyOf returns the KeyID for the records of the caller's calls.
func keyOf(caller fleet.Caller) string {
	if caller.KeyID == "" && caller.Machine != "" {
		return account.MachineKey(string(caller.Machine), string(caller.Program))
	}
	return caller.KeyID
}

// usageOf returns the usage record of a finished call. It contains nothing of the call's
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
	if call.Stream && out.Frames > 0 {
		u.FirstToken = within(out.FirstToken, maxDuration)
	}
	u.TokensIn, u.TokensOut = within(out.TokensIn, maxTokens), within(out.TokensOut, maxTokens)
	return u
}

// Limits of the values in a usage record, as the store requires: an engine may report any
// number of tokens, and a clock may jump.
const (
	maxTokens   = math.MaxInt32
	maxDuration = 24 * time.Hour
)

func within[N int64 | time.Duration](n, most N) N { return min(max(n, 0), most) }

// decisionTrace returns a decision in the form of the call's trace.
func decisionTrace(d fleet.Decision, query *fleet.Query) gateway.Decision {
	out := gateway.Decision{Row: d.Row, Verdict: d.Verdict, Tally: d.Tally, Prompt: query.Work.Prompt}
	if len(d.Candidates) > 1 {
		out.Best, out.Second = d.Candidates[0], d.Candidates[1]
	}
	return out
}

// recordDecision adds a decision to the call's trace, which keeps the first and the last.
func (c *activeCall) recordDecision(decision gateway.Decision) {
	trace := &c.call.Trace
	decision.After = time.Since(c.call.Arrived)
	if trace.Last = decision; trace.First.Row == 0 {
		trace.First = decision
	}
}

// recordAttempt adds an attempt to the call's trace.
func (c *activeCall) recordAttempt(a *attempt, out outcome) {
	trace := &c.call.Trace
	trace.Tries = append(trace.Tries, gateway.Attempt{
		Machine: a.Machine, Class: a.Class, Circle: a.Circle(), After: a.began.Sub(c.call.Arrived), Took: time.Since(a.began), Outcome: a.describe(out),
		Prompt: a.gotBody, Began: out == answered, Waited: trace.Waited, Running: a.running, Sent: a.had.Bytes, Since: a.had.Since,
	})
	trace.Route = routeHeader(trace.Tries)
}

// outcomeText describes how an attempt ended.
var outcomeText = [...]string{
	answered:    account.Answered,
	failed:      "failed",
	busy:        "did not take it: busy",
	unsent:      "had disconnected before it was asked",
	notTaken:    "was gone, or its engine was, before it started",
	notAdmitted: "did not take it: no reply in time",
	revoked:     "was no longer available to the caller",
	vanished:    "disconnected during the answer",
}

// describe returns a description of how the attempt ended.
func (a *attempt) describe(out outcome) string {
	if a.daemonReason != "" && (out == busy || out == notTaken) {
		return "did not take it: " + strings.ReplaceAll(string(a.daemonReason), "_", " ")
	}
	return outcomeText[out]
}

// routeHeader returns the value of X-Kith-Route (spec/api.md#x-kith-route): each machine
// that received some of the request's body, once, in the order of the last time.
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

// headerText returns a name in the form for a header: as a quoted ASCII string if it
// contains anything except letters, digits and "-_.".
func headerText(name string) string {
	for _, c := range name {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' {
			continue
		}
		return strconv.QuoteToASCII(name)
	}
	return name
}

// tracesOf returns the traces of a finished call: first that of its caller, then one for
// each owner of a machine that it was attempted on, with what this owner may know.
func tracesOf(call *gateway.Call, out gateway.Outcome) []account.Trace {
	trace := &call.Trace
	owners := account.Trace{
		CallID: call.ID, Started: call.Started.UTC(), Caller: call.Caller.Name,
		Model: string(call.Model), Endpoint: call.Endpoint.Path(), Stream: call.Stream, Sealed: call.Sealed != nil,
	}
	mine := owners
	mine.MemberID, mine.Mine = string(call.Caller.Member), true
	mine.Status, mine.Code, mine.Message = out.Status, out.Code, out.Message
	mine.WaitedMS, mine.Place, mine.TookMS = trace.Waited.Milliseconds(), trace.Place, out.Duration.Milliseconds()
	mine.KeyID, mine.TokensIn, mine.TokensOut = keyOf(call.Caller), out.TokensIn, out.TokensOut
	if call.Stream && out.Frames > 0 {
		mine.FirstMS = max(1, out.FirstToken.Milliseconds())
	}
	for _, decision := range [...]gateway.Decision{trace.First, trace.Last} {
		if decision.Row != 0 && (len(mine.Decisions) == 0 || decision != trace.First) {
			mine.Decisions = append(mine.Decisions, forCaller(decision, call.Endpoint.Family()))
		}
	}
	mine.Tries = make([]account.Attempt, 0, len(trace.Tries))
	all := []account.Trace{mine}
	for i, try := range trace.Tries {
		shown := account.Attempt{
			Machine: try.Machine.Name, Owner: try.Machine.OwnerName, Via: try.Class.String(),
			AfterMS: try.After.Milliseconds(), TookMS: try.Took.Milliseconds(), Outcome: try.Outcome, Prompt: try.Prompt,
		}
		if try.Began && call.Stream { // its attempt was recorded when the answer began
			shown.TookMS = max(shown.TookMS, mine.TookMS-shown.AfterMS)
		}
		switch {
		case try.Began && out.Code != "":
			shown.Outcome = unfinished(out.Code)
		case try.Outcome == outcomeText[failed] && out.Code == gateway.Cancelled:
			shown.Outcome = "did not answer before the caller left"
		case try.Began && out.Truncated:
			shown.Outcome += fmt.Sprintf("; its engine read only a part of the conversation (prompt_tokens=%d)", out.TokensIn)
		}
		all[0].Tries = append(all[0].Tries, shown)
		owner := string(try.Machine.Owner)
		at := slices.IndexFunc(all, func(t account.Trace) bool { return t.MemberID == owner })
		switch at {
		case 0: // the caller's own machine
			continue
		case -1:
			at, all = len(all), append(all, owners)
		}
		theirs := &all[at]
		theirs.MemberID = owner
		theirs.Tries, theirs.WaitedMS = append(theirs.Tries, shown), try.Waited.Milliseconds()
		if i == len(trace.Tries)-1 && trace.Machine == try.Machine.ID { // the call ended on this machine
			theirs.Status, theirs.Code, theirs.TookMS = mine.Status, mine.Code, mine.TookMS-shown.AfterMS
			theirs.TokensIn, theirs.TokensOut, theirs.FirstMS = mine.TokensIn, mine.TokensOut, max(0, mine.FirstMS-shown.AfterMS)
		}
	}
	return all
}

// unfinished describes an incomplete answer of a call that ended with that code.
func unfinished(code string) string {
	if code == gateway.Cancelled {
		return account.BeganToAnswer + "; the caller left"
	}
	return account.BeganToAnswer + " and did not finish: " + code
}

// forCaller returns the part of a decision that the caller may see.
func forCaller(decision gateway.Decision, family fleet.Family) account.Decision {
	t := account.Decision{
		AfterMS: decision.After.Milliseconds(), Verdict: decision.Verdict.String(), Row: fleet.ShownRow(decision.Row, family),
		Order: orderText(&decision),
	}
	for class, counts := range decision.Tally.Counts {
		for state, n := range counts {
			if n > 0 {
				t.Seen = append(t.Seen, account.StateCount{Via: fleet.Class(class).String(), State: fleet.State(state).String(), Machines: int(n)})
			}
		}
	}
	return t
}
