package cli

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/fleet"
)

// askAccount makes one request of the hub as the member; with --json its answer
// is printed as it came, otherwise show says it for a person from out.
func (a *app) askAccount(ctx context.Context, doing, method, path string, in, out any, show func()) error {
	hub, err := a.toAccount()
	if err != nil {
		return err
	}
	return a.ask(ctx, hub, doing, method, path, in, out, show)
}

// ask is askAccount for any surface.
func (a *app) ask(ctx context.Context, at *client, doing, method, path string, in, out any, show func()) error {
	text, err := at.call(ctx, doing, method, path, in, out)
	if err != nil {
		return err
	}
	if !a.json {
		show()
		return nil
	}
	if len(text) == 0 {
		text = []byte("{}")
	}
	_, err = a.out.Write(append(text, '\n'))
	return err
}

// api is a path of the members' API below a collection.
func api(parts ...string) string { return "/api" + under(parts...) }

// rowsOf is a listing of the members' API.
type rowsOf[T any] struct {
	Data []T `json:"data"`
}

// limits are what a share, or the calls of a group, may be limited to; empty and
// zero are none.
type limits struct {
	Models     []string `json:"models"`
	Hours      string   `json:"hours"`
	Concurrent int      `json:"concurrent"`
	PerDay     int      `json:"per_day"`
}

// String is the limits as a person reads them.
func (l limits) String() string {
	var words []string
	if len(l.Models) > 0 {
		words = append(words, "models "+strings.Join(l.Models, ", "))
	}
	if l.Hours != "" {
		words = append(words, "hours "+l.Hours)
	}
	if l.Concurrent > 0 {
		words = append(words, fmt.Sprintf("%d at once", l.Concurrent))
	}
	if l.PerDay > 0 {
		words = append(words, fmt.Sprintf("%d a day", l.PerDay))
	}
	if words == nil {
		return "no limits"
	}
	return strings.Join(words, "; ")
}

// limitChange is a change of limits as the hub reads it: what is absent stays as it
// is, null ends a limit.
type limitChange struct {
	Models     jsontext.Value `json:"models,omitzero"`
	Hours      jsontext.Value `json:"hours,omitzero"`
	Concurrent jsontext.Value `json:"concurrent,omitzero"`
	PerDay     jsontext.Value `json:"per_day,omitzero"`
}

// limitFlags are the limits as a command takes them.
type limitFlags struct {
	models                    []string
	hours, concurrent, perDay string
}

// The words that end a limit.
const (
	allModels   = "all"
	alwaysHours = "always"
	noLimit     = "none"
)

func (l *limitFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&l.models, "models", nil, `only these models, by their exact ids, separated by commas; "all" ends the limit`)
	cmd.Flags().StringVar(&l.hours, "hours", "", `only in these hours of each machine's zone, like "Mon-Fri 18:00-23:00"; "always" ends the limit`)
	cmd.Flags().StringVar(&l.concurrent, "concurrent", "", `at most so many calls at once; "none" ends the limit`)
	cmd.Flags().StringVar(&l.perDay, "per-day", "", `at most so many calls a day (UTC); "none" ends the limit`)
}

// change is what the flags given to the command say; what the hub would refuse is
// refused before it is asked.
func (l *limitFlags) change(cmd *cobra.Command) (limitChange, error) {
	var c limitChange
	value := func(flag string, ends bool, v any) jsontext.Value {
		switch {
		case !cmd.Flags().Changed(flag):
			return nil
		case ends:
			return jsontext.Value("null")
		}
		text, _ := json.Marshal(v) // of text and numbers, which cannot fail
		return text
	}
	c.Models = value("models", len(l.models) == 0 || len(l.models) == 1 && l.models[0] == allModels, l.models)
	always := l.hours == "" || l.hours == alwaysHours
	if _, err := fleet.ParseHours(l.hours, ""); err != nil && !always {
		return c, failure{exitWrongUse, err}
	}
	c.Hours = value("hours", always, l.hours)
	for _, number := range []struct {
		flag, text string
		into       *jsontext.Value
	}{{"concurrent", l.concurrent, &c.Concurrent}, {"per-day", l.perDay, &c.PerDay}} {
		n, err := strconv.Atoi(number.text)
		ends := number.text == noLimit
		if cmd.Flags().Changed(number.flag) && !ends && (err != nil || n < 1) {
			return c, wrongUse("cannot limit to --%s %.20q; give a number from 1, or none for no limit; "+
				"to let no call in, use `kith share remove`, `kith group keep-out` or `kith pause`", number.flag, number.text)
		}
		*number.into = value(number.flag, ends, n)
	}
	return c, nil
}

// warned is the part of an answer that says what is odd about limits that were taken.
type warned struct {
	Warnings []string `json:"warnings"`
}

// warn prints each on standard error.
func (a *app) warn(w warned) {
	for _, text := range w.Warnings {
		fmt.Fprintf(a.err, "warning: %s\n", text)
	}
}

type shareRow struct {
	Owner     string    `json:"owner"`
	With      string    `json:"with"`
	Direction string    `json:"direction"`
	Created   time.Time `json:"created"`
	limits
}

// inviteRow is an invite as its owner is told of it.
type inviteRow struct {
	ID       string    `json:"id"`
	LastFour string    `json:"last_four"`
	State    string    `json:"state"`
	Uses     int       `json:"uses"`
	Used     int       `json:"used"`
	Expires  time.Time `json:"expires"`
	limits
}

// inviteID is what an invite's id looks like, which no command takes for a
// member's name.
var inviteID = regexp.MustCompile(`^inv_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (a *app) share() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List who may use your machines, whose you may use, and your open invites", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listShares(cmd.Context()) },
	}
	remove := &cobra.Command{
		Use: "remove MEMBER|INVITE", Short: "Stop sharing with a member, within 5 s, or end an invite", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeGivenShares,
		Long: "Stop sharing with a member, within 5 s, or end an invite by its id in `kith share list`. Shares that\n" +
			"were made by the invite stay.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if inviteID.MatchString(args[0]) {
				return a.askAccount(cmd.Context(), "end the invite", http.MethodDelete, api("invites", args[0]), nil, nil, func() {
					a.say("nobody can accept invite %s any more\n", strong(args[0]))
				})
			}
			return a.askAccount(cmd.Context(), "end the share", http.MethodDelete, api("shares", args[0]), nil, nil, func() {
				a.say("%s can no longer use your machines\n", strong(args[0]))
			})
		},
	}
	return group("share", "Who may use your machines", list, a.addShare(), remove, a.invite())
}

// listShares prints the shares and, of the invites, those that can still be
// accepted; with --json all of them.
func (a *app) listShares(ctx context.Context) error {
	hub, err := a.toAccount()
	if err != nil {
		return err
	}
	var shares, invites rowsOf[jsontext.Value]
	if _, err := hub.call(ctx, "list the shares", http.MethodGet, api("shares"), nil, &shares); err != nil {
		return err
	}
	if _, err := hub.call(ctx, "list the invites", http.MethodGet, api("invites"), nil, &invites); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			Object  string           `json:"object"`
			Data    []jsontext.Value `json:"data"`
			Invites []jsontext.Value `json:"invites"`
		}{"list", shares.Data, invites.Data})
	}
	var rows, open [][]string
	for _, text := range shares.Data {
		var s shareRow
		if err := json.Unmarshal(text, &s); err != nil {
			return fmt.Errorf("cannot list the shares: cannot understand the answer of %s: %w", hub.who, err)
		}
		way, who := "you share with", s.With
		if s.Direction == "received" {
			way, who = "shares with you", s.Owner
		}
		rows = append(rows, []string{who, way, s.limits.String(), day(s.Created)})
	}
	for _, text := range invites.Data {
		var i inviteRow
		if err := json.Unmarshal(text, &i); err != nil {
			return fmt.Errorf("cannot list the invites: cannot understand the answer of %s: %w", hub.who, err)
		}
		if i.State == "open" {
			open = append(open, []string{i.ID, "…" + i.LastFour, fmt.Sprintf("%d of %d", i.Used, i.Uses), i.limits.String(), day(i.Expires)})
		}
	}
	a.table("MEMBER SHARE LIMITS SINCE", rows)
	if len(open) > 0 {
		a.say("\n")
		a.table("INVITE CODE USED LIMITS UNTIL", open)
	}
	return nil
}

func (a *app) addShare() *cobra.Command {
	var flags limitFlags
	cmd := &cobra.Command{
		Use: "add MEMBER", Short: "Let a member use your machines, or change the limits", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeMembers,
		Long: "Let a member use your machines, within the limits given. Of a member you share with already, the limits\n" +
			"given here change and all others stay; --models all, --hours always, --concurrent none and --per-day none\n" +
			"end a limit.",
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := flags.change(cmd)
			if err != nil {
				return err
			}
			in := struct {
				With string `json:"with"`
				limitChange
			}{args[0], change}
			var made struct {
				shareRow
				warned
			}
			err = a.askAccount(cmd.Context(), "share", http.MethodPost, api("shares"), in, &made, func() {
				a.say("%s may use your machines: %s\n", strong(made.With), made.limits)
			})
			a.warn(made.warned)
			return err
		},
	}
	flags.flags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("models", a.completeModelFlag)
	return cmd
}

func (a *app) invite() *cobra.Command {
	in := struct {
		Uses    int    `json:"uses"`
		Expires string `json:"expires"`
		limitChange
	}{}
	var flags limitFlags
	cmd := &cobra.Command{
		Use: "invite", Short: "Make a code that shares your machines with whoever accepts it", Args: cobra.NoArgs,
		Long: "Make a code that shares your machines with whoever accepts it, within the limits given.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if in.limitChange, err = flags.change(cmd); err != nil {
				return err
			}
			if in.Uses < 1 {
				return wrongUse("cannot make an invite for %d; give --uses 1 or more", in.Uses)
			}
			var made struct {
				Code    string    `json:"code"`
				Uses    int       `json:"uses"`
				Expires time.Time `json:"expires"`
				limits
				warned
			}
			err = a.askAccount(cmd.Context(), "make the invite", http.MethodPost, api("invites"), in, &made, func() {
				a.say("%s\n", strong(made.Code))
				times := "once"
				if made.Uses > 1 {
					times = fmt.Sprintf("%d times", made.Uses)
				}
				a.say("%s\n", faint(fmt.Sprintf("Whoever runs `kith accept CODE` may use your machines: %s. It works %s, until %s, and is shown this once; `kith share list` and `kith share remove` end it sooner.", made.limits, times, day(made.Expires))))
			})
			a.warn(made.warned)
			return err
		},
	}
	cmd.Flags().IntVar(&in.Uses, "uses", 1, "how many may accept it")
	cmd.Flags().StringVar(&in.Expires, "expires", "7d", "how long it works, like 7d or 12h")
	flags.flags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("models", a.completeModelFlag)
	return cmd
}

func (a *app) accept() *cobra.Command {
	return &cobra.Command{
		Use: "accept CODE", Short: "Accept an invite: use the machines of who made it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var made struct {
				Owner string `json:"owner"`
				State string `json:"state"`
				limits
			}
			return a.askAccount(cmd.Context(), "accept the invite", http.MethodPost, api("invites", "accept"), map[string]string{"code": args[0]}, &made, func() {
				if made.State != "accepted" { // the share that is there, and its limits, stay as they are
					a.say("%s shares with you already: the invite is not used and the limits stay, which `kith share list` shows\n", strong(made.Owner))
					return
				}
				a.say("%s shares with you: %s; `kith models --account` lists what you can use\n", strong(made.Owner), made.limits)
			})
		},
	}
}
