package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/fleet"
)

// correlationID matches the X-Correlation-ID of an answer.
var correlationID = regexp.MustCompile(`^req_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (a *app) why() *cobra.Command {
	var family string
	cmd := a.completing(a.anyModel(), command("kith why", func(ctx context.Context, args []string) error {
		if correlationID.MatchString(args[0]) {
			return ask(ctx, a.account("say why"), api.ExplainCall.With(api.CallID{Call: args[0]}), a.showTrace)
		}
		in := api.ModelQuestion{Model: fleet.ModelID(args[0]), Family: family}
		return ask(ctx, a.account("say why"), api.ExplainModel.With(in), func(w api.Why) {
			a.showWhy(w, a.refusedHere(ctx, &in))
		})
	}))
	cmd.Flags().StringVar(&family, "family", "chat", "what the model is for: chat, embeddings or audio")
	return cmd
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
	switch w.Verdict {
	case "try":
		first := w.Machines[0]
		a.say("%s would be served now, by %s's machine %s\n", strong(string(w.Model)), first.Owner, strong(first.Machine))
	case "wait":
		a.say("%s would wait for a machine now\n", strong(string(w.Model)))
	default:
		a.say("%s would be refused now: %s (%d %s)\n", strong(string(w.Model)), strong(w.Code.Title()), w.Status, w.Code)
	}
	a.fact("why", "%s", w.Reason)
	a.fact("change", "%s", w.Change)
	if refused != "" && (w.Verdict == "try" || w.Verdict == "wait") {
		a.fact("here", "this machine does not send it: %s", refused)
	}
	if len(w.Machines) == 0 {
		return
	}
	a.say("\n")
	a.table("MACHINE OWNER THROUGH STATE TRIED", convert(w.Machines, func(m api.WhyMachine) []string {
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

func (a *app) showTrace(s api.CallTrace) {
	who, streamed := s.Caller, ""
	if s.Mine {
		who = "you"
	}
	if s.Stream {
		streamed = ", streamed"
	}
	a.say("%s  %s asked %s of %s%s\n", faint(moment(s.Started)), who, s.Endpoint, strong(s.Model), streamed)
	switch {
	case s.Code == account.Interrupted:
		a.fact("end", "%s: %s", strong(s.Code), s.Meaning)
	case s.Status == 0:
		a.fact("end", "not on your machine")
	case s.Code == "":
		a.fact("end", "served after %s", millis(s.TookMS))
	default:
		a.fact("end", "%s (%d %s) after %s", strong(api.Title(s.Code)), s.Status, s.Code, millis(s.TookMS))
	}
	if s.Sealed {
		a.fact("sealed", "yes: the hub could not read it")
	}
	if s.WaitedMS > 0 {
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
	a.table("MACHINE OWNER THROUGH AFTER TOOK GOT-PROMPT OUTCOME", convert(s.Tries, func(t account.Attempt) []string {
		return []string{t.Machine, t.Owner, t.Via, millis(t.AfterMS), millis(t.TookMS), prompt[t.Prompt], t.Outcome}
	}))
}

// millis formats a duration for people.
func millis(n int64) string { return (time.Duration(n) * time.Millisecond).String() }
