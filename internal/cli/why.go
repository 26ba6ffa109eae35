package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// correlationID is what an answer's X-Correlation-ID looks like.
var correlationID = regexp.MustCompile(`^req_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (a *app) why() *cobra.Command {
	var family string
	cmd := &cobra.Command{
		Use: "why MODEL|CORRELATION_ID", Short: "Say why a call goes, or went, where it does, and what would change that", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeModels,
		Long: "With a model: whether a call would be served now and by whom, or which rule refuses it and what would\n" +
			"change that. With the X-Correlation-ID of an answer: what happened to that call; the owner of a machine\n" +
			"sees what happened on it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := a.toAccount()
			if err != nil {
				return err
			}
			var now whyNow
			var past story
			path := "/api/why?" + url.Values{"model": {args[0]}, "family": {family}}.Encode()
			into, show := any(&now), func() { a.showWhy(now) }
			if correlationID.MatchString(args[0]) {
				path, into, show = "/api/why/"+args[0], &past, func() { a.showStory(past) }
			}
			text, err := hub.call(cmd.Context(), "say why", http.MethodGet, path, nil, into)
			switch {
			case err != nil:
				return err
			case a.json:
				_, err := a.out.Write(append(text, '\n'))
				return err
			}
			show()
			return nil
		},
	}
	cmd.Flags().StringVar(&family, "family", "chat", "what the model is for: chat, embeddings or audio")
	return cmd
}

// whyNow is GET /api/why.
type whyNow struct {
	Model    string `json:"model"`
	Family   string `json:"family"`
	Verdict  string `json:"verdict"`
	Row      int    `json:"row"`
	Reason   string `json:"reason"`
	Change   string `json:"change"`
	Code     string `json:"code"`
	Status   int    `json:"status"`
	NoRetry  bool   `json:"no_retry"`
	Machines []struct {
		Machine string `json:"machine"`
		Owner   string `json:"owner"`
		Via     string `json:"via"`
		Group   string `json:"group"`
		State   string `json:"state"`
		Limits  limits `json:"limits"` // that the calls count against
		Order   int    `json:"order"`
	} `json:"machines"`
}

func (a *app) showWhy(w whyNow) {
	switch w.Verdict {
	case "try":
		first := w.Machines[0]
		a.say("%s would be served now, by %s's machine %s\n", strong(w.Model), first.Owner, strong(first.Machine))
	case "wait":
		a.say("%s would wait for a machine now\n", strong(w.Model))
	default:
		a.say("%s would be refused now: %d %s\n", strong(w.Model), w.Status, strong(w.Code))
	}
	a.fact("why", "%s", because(w.Reason, w.Row))
	a.fact("change", "%s", w.Change)
	if len(w.Machines) == 0 {
		return
	}
	a.say("\n")
	var rows [][]string
	for _, m := range w.Machines {
		via, order := m.Via, "-"
		if m.Group != "" {
			via += " " + m.Group
		}
		if text := m.Limits.String(); text != (limits{}).String() {
			via += " (" + text + ")"
		}
		if m.Order > 0 {
			order = strconv.Itoa(m.Order)
		}
		rows = append(rows, []string{m.Machine, m.Owner, via, m.State, order})
	}
	a.table("MACHINE OWNER THROUGH STATE TRIED", rows)
}

// because is a reason with the number of its row in the rules.
func because(reason string, row int) string {
	return reason + faint(fmt.Sprintf(" (row %d)", row))
}

// story is GET /api/why/{call}.
type story struct {
	Call      string    `json:"call"`
	Started   time.Time `json:"started"`
	Mine      bool      `json:"mine"`
	Caller    string    `json:"caller"`
	Model     string    `json:"model"`
	Endpoint  string    `json:"endpoint"`
	Stream    bool      `json:"stream"`
	Status    int       `json:"status"`
	Code      string    `json:"code"`
	WaitedMS  int64     `json:"waited_ms"`
	TookMS    int64     `json:"took_ms"`
	Decisions []struct {
		AfterMS int64  `json:"after_ms"`
		Row     int    `json:"row"`
		Verdict string `json:"verdict"`
		Reason  string `json:"reason"`
		Change  string `json:"change"`
		Seen    []struct {
			Via      string `json:"via"`
			State    string `json:"state"`
			Machines int    `json:"machines"`
		} `json:"seen"`
	} `json:"decisions"`
	Tries []struct {
		Machine string `json:"machine"`
		Owner   string `json:"owner"`
		Via     string `json:"via"`
		AfterMS int64  `json:"after_ms"`
		TookMS  int64  `json:"took_ms"`
		Outcome string `json:"outcome"`
		Prompt  bool   `json:"prompt"`
	} `json:"tries"`
}

func (a *app) showStory(s story) {
	who, streamed := s.Caller, ""
	if s.Mine {
		who = "you"
	}
	if s.Stream {
		streamed = ", streamed"
	}
	a.say("%s  %s asked %s of %s%s\n", faint(s.Started.Local().Format(time.DateTime)), who, s.Endpoint, strong(s.Model), streamed)
	switch {
	case s.Status == 0:
		a.fact("end", "not on your machine")
	case s.Code == "":
		a.fact("end", "served after %s", millis(s.TookMS))
	default:
		a.fact("end", "%d %s after %s", s.Status, strong(s.Code), millis(s.TookMS))
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
			seen = append(seen, fmt.Sprintf("%d %s %s", m.Machines, m.Via, m.State))
		}
		in := strings.Join(seen, ", ")
		if in != "" {
			in = " [" + in + "]"
		}
		a.fact(label, "after %s: %s: %s%s", millis(d.AfterMS), d.Verdict, because(d.Reason, d.Row), in)
	}
	if n := len(s.Decisions); n > 0 && s.Decisions[n-1].Verdict == "refuse" {
		a.fact("change", "%s", s.Decisions[n-1].Change)
	}
	if len(s.Tries) == 0 {
		return
	}
	a.say("\n")
	var rows [][]string
	for _, t := range s.Tries {
		prompt := "no"
		if t.Prompt {
			prompt = "yes"
		}
		rows = append(rows, []string{t.Machine, t.Owner, t.Via, millis(t.AfterMS), millis(t.TookMS), prompt, t.Outcome})
	}
	a.table("MACHINE OWNER THROUGH AFTER TOOK GOT-PROMPT OUTCOME", rows)
}

// millis shows a span to a person.
func millis(n int64) string { return (time.Duration(n) * time.Millisecond).String() }
