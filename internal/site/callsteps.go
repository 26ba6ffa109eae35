package site

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// callStep is a moment of a call, or a span of it.
type callStep struct {
	AfterMS, TookMS int64 // since the call's arrival; TookMS is 0 for a moment
	What, More      string
	Row             int    // the routing rule of a decision that something would change; else 0
	Bar             string // its label in the picture; empty: only the table has it
	Tone            string // class of its bar
}

// verdictWords describe the decision about a call.
var verdictWords = map[string]string{
	fleet.Refuse.String(): "Refused",
	fleet.Try.String():    "Machine chosen",
	fleet.Wait.String():   "Waits for a machine",
}

// timesOf returns when the first token and the end of a call were, in milliseconds since
// its arrival. A time that is unknown is 0. The trace of an owner has these times since the
// beginning of the last attempt.
func timesOf(t *account.Trace) (first, end int64) {
	first, end = t.FirstMS, t.TookMS
	if n := len(t.Tries); !t.Mine && n > 0 {
		began := t.Tries[n-1].AfterMS
		end += began
		if first > 0 {
			first += began
		}
	}
	return first, end
}

// waitOf returns when a call began to wait for a machine, in milliseconds since its
// arrival: by the decision that made it wait, else so that the wait ended with the last
// attempt or with the call.
func waitOf(t *api.CallTrace) int64 {
	for _, d := range t.Decisions {
		if d.Verdict == fleet.Wait.String() {
			return d.AfterMS
		}
	}
	_, until := timesOf(&t.Trace)
	if n := len(t.Tries); n > 0 {
		until = t.Tries[n-1].AfterMS
	}
	return max(0, until-t.WaitedMS)
}

// callSteps returns what happened to a call, in order; nil if it ended before any machine was
// looked for.
func callSteps(t *api.CallTrace) []callStep {
	if len(t.Decisions) == 0 && len(t.Tries) == 0 && t.WaitedMS == 0 && t.FirstMS == 0 {
		return nil
	}
	first, end := timesOf(&t.Trace)
	received := callStep{What: "Received", More: t.Endpoint, Bar: "Received"}
	if len(t.Decisions) > 0 {
		received.TookMS = t.Decisions[0].AfterMS
	}
	steps := []callStep{received}
	for _, d := range t.Decisions {
		step := decisionStep(d)
		if !account.Unserved(t.Code) {
			step.Row = 0 // it needs no help
		}
		steps = append(steps, step)
	}
	if t.WaitedMS > 0 {
		wait := callStep{AfterMS: waitOf(t), TookMS: t.WaitedMS, What: "Waited", Bar: "Waited", Tone: "warn"}
		if t.Place > 0 {
			wait.More = fmt.Sprintf("from place %d in line", t.Place)
			wait.Bar += ", " + wait.More
		}
		steps = append(steps, wait)
	}
	for i := range t.Tries {
		try := &t.Tries[i]
		what, prompt := fmt.Sprint("Attempt ", i+1), "prompt not sent"
		if try.Prompt {
			prompt = "prompt sent"
		}
		_, tone := resultOf(t, i)
		if first > 0 && i == len(t.Tries)-1 { // the bars of its parts follow
			tone += " outer"
		}
		steps = append(steps, callStep{AfterMS: try.AfterMS, TookMS: try.TookMS, What: what,
			More: fmt.Sprintf("%s of %s, %s; %s; %s", try.Machine, try.Owner, try.Via, prompt, strings.TrimSuffix(try.Outcome, ": "+t.Code)),
			Bar:  what + " on " + clip(try.Machine, longName), Tone: tone})
	}
	if first > 0 {
		var began int64
		stream := callStep{AfterMS: first, TookMS: max(0, end-first), What: "Stream", Bar: "Stream"}
		if n := len(t.Tries); n > 0 { // only the last attempt can answer
			began = t.Tries[n-1].AfterMS
			_, stream.Tone = resultOf(t, n-1)
		}
		if t.TokensOut > 0 {
			stream.More = api.Number(t.TokensOut) + " tokens"
		}
		if speed := t.Speed(); speed > 0 {
			stream.More += ", " + rate(speed) + " tokens/s"
		}
		prompt := callStep{AfterMS: began, TookMS: max(0, first-began), What: "To first token", Bar: "To first token"}
		if t.TokensIn > 0 {
			prompt.More = api.Number(t.TokensIn) + " prompt tokens"
		}
		steps = append(steps, prompt, stream)
	}
	if t.Status != 0 {
		steps = append(steps, callStep{AfterMS: end, What: "Ended", More: api.Outcome(t.Trace)})
	}
	slices.SortStableFunc(steps, func(a, b callStep) int { return cmp.Compare(a.AfterMS, b.AfterMS) })
	return steps
}

// decisionStep returns a routing decision as a step.
func decisionStep(d api.TracedDecision) callStep {
	var seen []string
	for _, c := range d.Seen {
		seen = append(seen, seenWords(c, past))
	}
	more := cmp.Or(strings.Join(seen, "; "), d.Reason)
	if d.Order != "" {
		more += "; " + d.Order
	}
	step := callStep{AfterMS: d.AfterMS, What: verdictWords[d.Verdict], More: more}
	if d.Verdict != fleet.Try.String() {
		step.Row = d.Row
	}
	return step
}

// resultOf returns the result of the attempt i in a word or two, and its tone.
func resultOf(t *api.CallTrace, i int) (word, tone string) {
	last := i == len(t.Tries)-1
	switch began := t.Tries[i].Began(); {
	case !last:
		return "no answer", "bad"
	case began && t.Code == "":
		return "answered", "good"
	case t.Code == account.Cancelled && began:
		return "stopped", ""
	case t.Code == account.Cancelled:
		return "no answer", ""
	case t.Code == account.Interrupted:
		return "hub stopped", "bad"
	case began:
		return "interrupted", "bad"
	}
	return "no answer", "bad"
}

// causeText describes how a call ended and why, in a sentence from its trace: the states of
// the machines, the attempts, the message that its caller received, or the reason of the
// last decision. It returns "" if the hub knows no more than the code.
func causeText(t *api.CallTrace) string {
	switch {
	case t.Code == account.Cancelled, t.Code == account.Interrupted:
		return stopText(t)
	case t.Status == 0, t.Code == "":
		return sentence(strings.Join(append(waitClauses(t), attemptClauses(t)...), "; "))
	}
	var last api.TracedDecision
	if n := len(t.Decisions); n > 0 && t.Decisions[n-1].Verdict == fleet.Refuse.String() {
		last = t.Decisions[n-1]
	}
	tried := attemptClauses(t)
	if states := statesText(t, last.Seen); states != "" {
		return sentence(strings.Join(append([]string{states}, tried...), "; "))
	}
	cause := cmp.Or(t.Message, last.Reason)
	if code := fault.Code(t.Code); cause == "" && code.Known() && code.Quotes() {
		cause = "the response gave the reason, which the hub does not keep because it may quote the call"
	}
	clauses := append(waitClauses(t), tried...)
	if len(tried) > 0 && cause != "" {
		return sentence(strings.Join(clauses, "; ") + ": " + cause)
	}
	if cause != "" {
		clauses = append(clauses, cause)
	}
	return sentence(strings.Join(clauses, "; "))
}

// waitClauses describes how long a call waited, if it did.
func waitClauses(t *api.CallTrace) []string {
	switch {
	case t.WaitedMS == 0:
		return nil
	case t.Place > 0:
		return []string{fmt.Sprintf("it waited %s for a machine, from place %d in line", duration(t.WaitedMS), t.Place)}
	}
	return []string{"it waited " + duration(t.WaitedMS) + " for a machine"}
}

// attemptClauses describes the attempts at a call: how each ended, and when the last did.
func attemptClauses(t *api.CallTrace) (clauses []string) {
	for i := range t.Tries {
		try := &t.Tries[i]
		clause := tryName(t, try) + " " + try.Outcome
		if i == len(t.Tries)-1 && try.Began() {
			clause = tryName(t, try) + " " + answerWords(t, try)
		}
		clauses = append(clauses, clause)
	}
	return clauses
}

// answerWords describes the answer of the last attempt: complete, or interrupted.
func answerWords(t *api.CallTrace, try *account.Attempt) string {
	first, end := timesOf(&t.Trace)
	if t.Code != "" {
		if first == 0 {
			return "began to answer, and was interrupted after " + duration(end)
		}
		return fmt.Sprintf("began to answer after %s, and was interrupted after %s", duration(first), duration(end))
	}
	words := "answered after " + duration(end)
	if first > 0 && duration(first) != duration(end) {
		words = fmt.Sprintf("began to answer after %s and finished after %s", duration(first), duration(end))
	}
	return words + strings.TrimPrefix(try.Outcome, account.Answered)
}

// tryName names the machine of an attempt for the reader of a trace.
func tryName(t *api.CallTrace, try *account.Attempt) string {
	if !t.Mine || try.Via == fleet.Own.String() {
		return "your `" + try.Machine + "`"
	}
	return "`" + try.Machine + "` of " + try.Owner
}

// stopText describes how a call ended that its caller stopped, or that ended with its hub.
func stopText(t *api.CallTrace) string {
	ended := "the hub stopped"
	if t.Code == account.Cancelled {
		ended = "its caller " + t.Caller + " stopped it"
		if t.Mine {
			ended = "you or your program stopped it"
		}
		if n := len(t.Tries); n > 0 && t.Tries[n-1].Began() {
			ended += ", or read it too slowly,"
		}
	}
	if _, end := timesOf(&t.Trace); end > 0 {
		ended += " after " + duration(end) + ","
	}
	n := len(t.Tries)
	switch {
	case n > 0 && t.Code == account.Interrupted:
		return sentence(ended + " while " + tryName(t, &t.Tries[n-1]) + " ran it; how much of its answer arrived is not known")
	case n > 0 && t.Tries[n-1].Began():
		return sentence(ended + " while " + tryName(t, &t.Tries[n-1]) + " answered")
	case n > 0:
		return sentence(ended + " before " + tryName(t, &t.Tries[n-1]) + " answered")
	case t.WaitedMS > 0:
		return sentence(ended + " while it waited for a machine")
	}
	return sentence(ended + " before a machine was found")
}

// statesText describes the machines that a refused call could have used; "" if there were
// none.
func statesText(t *api.CallTrace, machines []account.StateCount) string {
	states, within := statesBrief(machines), ""
	if states == "" {
		return ""
	}
	if t.WaitedMS > 0 {
		within = " within " + duration(t.WaitedMS)
	}
	return fmt.Sprintf("no machine with `%s` took the call%s: %s", t.Model, within, states)
}

// statesBrief lists the machines in states that are known to prevent a call.
func statesBrief(machines []account.StateCount) string {
	var parts []string
	for _, seen := range machines {
		if _, known := stateWords[seen.State]; known {
			parts = append(parts, seenWords(seen, past))
		}
	}
	return strings.Join(parts, "; ")
}

// causeBrief explains why a call was not served, for a line that names its model already,
// without what to do next.
func causeBrief(t *api.CallTrace) string {
	var last api.TracedDecision
	if n := len(t.Decisions); n > 0 && t.Decisions[n-1].Verdict == fleet.Refuse.String() {
		last = t.Decisions[n-1]
	}
	if states := statesBrief(last.Seen); states != "" {
		return sentence(states)
	}
	cause, _, _ := strings.Cut(cmp.Or(t.Message, last.Reason), "; ")
	if cause == "" {
		cause, _, _ = strings.Cut(t.Meaning, "; ")
		cause, _, _ = strings.Cut(cause, ": ")
	}
	cause = strings.Replace(cause, fmt.Sprintf("model %q", t.Model), "it", 1)
	return sentence(strings.TrimSuffix(cause, "."))
}
