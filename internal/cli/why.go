package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/fleet"
)

// correlationID matches the X-Correlation-ID of an answer.
var correlationID = regexp.MustCompile(`^req_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (a *app) why() *cobra.Command {
	var family string
	cmd := a.completing(a.anyModel(), command("kith why", func(ctx context.Context, args []string) error {
		if correlationID.MatchString(args[0]) {
			return a.whyCall(ctx, args[0])
		}
		in := api.ModelQuestion{Model: fleet.ModelID(args[0]), Family: family}
		return a.whyModel(ctx, in)
	}))
	cmd.Flags().StringVar(&family, "family", "chat", "what the model is for: chat, embeddings or audio")
	return cmd
}

// whyModel shows what would happen to a call for a model: at the hub, and before it at this
// machine's daemon.
func (a *app) whyModel(ctx context.Context, in api.ModelQuestion) error {
	hub, err := a.toAccount()
	if err != nil {
		return err
	}
	why, text, err := fetch(ctx, hub, "say why", api.ExplainModel.With(in))
	if err != nil {
		return err
	}
	refused := a.refusedHere(ctx, &in)
	switch {
	case !a.json:
		a.showWhy(why, refused)
		return nil
	case refused != "":
		text, err = withMember(text, "refused_here", refused)
	}
	if err != nil {
		return err
	}
	return a.writeJSON(text)
}

// whyCall shows what happened to a call. For one that was made at this machine's daemon, it
// asks the hub by the hub's own id of it.
func (a *app) whyCall(ctx context.Context, id string) error {
	here := a.callHere(ctx, id)
	if here != nil && here.HubID == "" {
		return a.print(here, func() { a.showCallHere(here) })
	}
	if here != nil && correlationID.MatchString(here.HubID) {
		id = here.HubID
	}
	hub, err := a.toAccount()
	if err != nil {
		return err
	}
	trace, text, err := fetch(ctx, hub, "say why", api.ExplainCall.With(api.CallID{Call: id}))
	switch {
	case err != nil:
		return err
	case !a.json:
		a.showTrace(trace, here)
		return nil
	case here != nil:
		text, err = withMember(text, "here", here)
	}
	if err != nil {
		return err
	}
	return a.writeJSON(text)
}

// withMember adds a member to an answer of the hub, which is an object and is otherwise
// printed as it came.
func withMember(answer []byte, name string, value any) ([]byte, error) {
	member, err := json.Marshal(map[string]any{name: value})
	if err != nil {
		return nil, err
	}
	answer = bytes.TrimSuffix(bytes.TrimSpace(answer), []byte("}"))
	return slices.Concat(answer, []byte(","), member[1:]), nil
}

// callHere returns what this machine's daemon knows of a call; nil: nothing, or it does not run.
func (a *app) callHere(ctx context.Context, id string) *daemon.CallHere {
	config, err := loadLocalFile(a.home)
	if err != nil {
		return nil
	}
	var here daemon.CallHere
	query := url.Values{"id": {id}}
	if _, err := control(config.Daemon.Data).call(ctx, "say why", request{http.MethodGet, "/call?" + query.Encode(), nil}, &here); err != nil {
		return nil
	}
	return &here
}

// endText returns how a call ended, such as "failed after 9s: Machine offline (200
// machine_offline)".
func endText(t account.Trace) string {
	outcome := api.Outcome(t)
	switch end := strong(outcome) + " after " + millis(t.TookMS); {
	case t.Code == account.Interrupted: // how long it ran is not known
		return strong(outcome) + ": " + api.Meaning(t.Code)
	case outcome == "failed":
		return fmt.Sprintf("%s: %s (%d %s)", end, api.Title(t.Code), t.Status, t.Code)
	case t.Status == 0:
		return outcome
	default:
		return end
	}
}

// showCallHere prints what happened to a call that did not reach the hub.
func (a *app) showCallHere(s *daemon.CallHere) {
	a.say("%s  you called %s with %s%s, at this machine\n", faint(moment(s.Started)), s.Endpoint, strong(string(s.Model)), map[bool]string{true: ", streamed"}[s.Stream])
	a.fact("end", "%s", endText(account.Trace{Code: s.Code, Status: s.Status, TookMS: s.TookMS}))
	if s.Message != "" {
		a.fact("why", "%s", s.Message)
	}
	a.fact("sealed", "%s", cmp.Or(map[string]string{sealed.Here: "this machine served it"}[s.Sealed], sealedReason(s.Sealed), "off"))
}

// refusedHere returns why this machine's daemon would not send the call to others, of which
// the hub knows nothing; "": it would, or does not run.
func (a *app) refusedHere(ctx context.Context, in *api.ModelQuestion) string {
	keys, err := a.keyring("say why")
	if err != nil {
		return ""
	}
	query := url.Values{"model": {string(in.Model)}, "family": {in.Family}}
	var why daemon.Refused
	if _, err := keys.call(ctx, "say why", request{http.MethodGet, "/trust/refused?" + query.Encode(), nil}, &why); err != nil {
		return ""
	}
	return why.Message
}

// showWhy prints how a call would be routed. refused is why this machine would not send it.
func (a *app) showWhy(w api.Why, refused string) {
	notSent := refused != "" && (w.Verdict == "try" || w.Verdict == "wait")
	switch {
	case notSent:
		a.say("%s would be refused now, by this machine\n", strong(string(w.Model)))
		a.fact("why", "%s", refused)
	case w.Verdict == "try":
		first := w.Machines[0]
		a.say("%s would be served now, by %s's machine %s\n", strong(string(w.Model)), first.Owner, strong(first.Machine))
	case w.Verdict == "wait":
		a.say("%s would wait for a machine now\n", strong(string(w.Model)))
	default:
		a.say("%s would be refused now: %s (%d %s)\n", strong(string(w.Model)), strong(w.Code.Title()), w.Status, w.Code)
	}
	if !notSent {
		a.fact("why", "%s", w.Reason)
		a.fact("change", "%s", w.Change)
	}
	if len(w.Machines) == 0 {
		return
	}
	a.say("\n")
	a.table("MACHINE OWNER ACCESS STATE ORDER", convert(w.Machines, func(m api.WhyMachine) []string {
		via, order := m.Via, "-"
		if m.Group != "" {
			via += " " + m.Group
		}
		if m.Limits != nil {
			via += " (" + limitsText(m.Limits) + ")"
		}
		if m.Order > 0 {
			order = strconv.Itoa(m.Order)
		}
		return []string{m.Machine, m.Owner, via, fleet.StateText(m.State), order}
	}))
}

// showTrace prints what the hub knows of a call, and how it was sealed if this machine's
// daemon made it; here may be nil.
func (a *app) showTrace(s api.CallTrace, here *daemon.CallHere) {
	who, streamed := s.Caller, ""
	if s.Mine {
		who = "you"
	}
	if s.Stream {
		streamed = ", streamed"
	}
	a.say("%s  %s called %s with %s%s\n", faint(moment(s.Started)), who, s.Endpoint, strong(s.Model), streamed)
	a.fact("end", "%s", endText(s.Trace))
	if s.Message != "" {
		a.fact("why", "%s", s.Message)
	}
	if from := api.MadeAt(s.FromMachine, s.Program); from != "" {
		a.fact("from", "%s", from)
	}
	switch {
	case s.Sealed, here != nil && here.Sealed == sealed.Yes: // the hub's record may not have it yet
		a.fact("sealed", "yes: the hub could not read it")
	case here != nil && here.Sealed != "":
		a.fact("sealed", "no: %s", sealedReason(here.Sealed))
	}
	switch {
	case s.WaitedMS > 0 && s.Place > 0:
		a.fact("waited", "%s, from place %d in line", millis(s.WaitedMS), s.Place)
	case s.WaitedMS > 0:
		a.fact("waited", "%s", millis(s.WaitedMS))
	}
	for i, d := range s.Decisions {
		label := ""
		if i == 0 {
			label = "decided"
		}
		var seen []string
		for _, m := range d.Seen {
			seen = append(seen, fmt.Sprintf("%d %s %s", m.Machines, m.Via, fleet.StateText(m.State)))
		}
		in := strings.Join(seen, ", ")
		if in != "" {
			in = " [" + in + "]"
		}
		a.fact(label, "after %s: %s: %s%s", millis(d.AfterMS), d.Verdict, d.Reason, in)
		if d.Order != "" {
			a.fact("order", "%s", d.Order)
		}
	}
	if n := len(s.Decisions); n > 0 && s.Decisions[n-1].Verdict == "refuse" {
		a.fact("change", "%s", s.Decisions[n-1].Change)
	}
	if len(s.Tries) == 0 {
		return
	}
	a.say("\n")
	prompt := map[bool]string{false: "no", true: "yes"}
	a.table("MACHINE OWNER ACCESS AFTER TOOK PROMPT-SENT OUTCOME", convert(s.Tries, func(t account.Attempt) []string {
		return []string{t.Machine, t.Owner, t.Via, millis(t.AfterMS), millis(t.TookMS), prompt[t.Prompt], t.Outcome}
	}))
}

// millis formats a duration for people.
func millis(n int64) string { return (time.Duration(n) * time.Millisecond).String() }
