package cli

import (
	"cmp"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

type groupRow struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	In      bool     `json:"in"`
	Admin   bool     `json:"admin"`
	Size    int      `json:"size"`
	KeptOut []string `json:"kept_out"`
	Limits  *limits  `json:"limits"` // one's own; nil: not in it
	Closed  []struct {
		Machine string `json:"machine"`
		By      string `json:"by"`
	} `json:"closed"`
	Members []struct {
		Name  string `json:"name"`
		Admin bool   `json:"admin"`
	} `json:"members"`
	Invited     *invitationRow  `json:"invited"`     // of the member who asks; nil: none
	Invitations []invitationRow `json:"invitations"` // of others, for an admin
}

// invitationRow is an invitation to an org that waits for an answer.
type invitationRow struct {
	Member  string    `json:"member"`
	By      string    `json:"by"` // empty: the hub's operator
	Expires time.Time `json:"expires"`
}

func (a *app) groups() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List your groups, your invitations, and the groups open to anyone", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer rowsOf[groupRow]
			return a.askAccount(cmd.Context(), "list the groups", http.MethodGet, api("groups"), nil, &answer, func() {
				a.showGroups(answer.Data)
			})
		},
	}
	var kind string
	create := &cobra.Command{
		Use: "create NAME --kind org|open", Short: "Make a group, with you as its admin", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if kind != "org" && kind != "open" {
				return wrongUse("cannot make a group of kind %q; use --kind org (its admins run it) or --kind open (anyone can join)", kind)
			}
			in := map[string]string{"name": args[0], "kind": kind}
			return a.askAccount(cmd.Context(), "make the group", http.MethodPost, api("groups"), in, nil, func() {
				a.say("group %s made; you are its admin\n", strong(args[0]))
			})
		},
	}
	create.Flags().StringVar(&kind, "kind", "", "org (its admins run it) or open (anyone can join)")
	_ = create.MarkFlagRequired("kind")
	inside := func(g groupRow) bool { return g.In }
	outside := func(g groupRow) bool { return !g.In && g.Kind == "open" }
	invited := func(g groupRow) bool { return g.Invited != nil }
	runs := func(g groupRow) bool { return g.Admin }
	mine := func(use, short, doing, act, done string, passes func(groupRow) bool) *cobra.Command {
		return &cobra.Command{
			Use: use + " NAME", Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeGroups(passes, false),
			RunE: func(cmd *cobra.Command, args []string) error {
				return a.askAccount(cmd.Context(), doing, http.MethodPost, api("groups", args[0], act), nil, nil, func() {
					a.say(done+"\n", strong(args[0]))
				})
			},
		}
	}
	admin := &cobra.Command{
		Use: "admin NAME MEMBER", Short: "Make a member of an org that you run an admin", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeGroups(runs, true),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := map[string]string{"member": args[1]}
			return a.askAccount(cmd.Context(), "make an admin", http.MethodPost, api("groups", args[0], "admins"), in, nil, func() {
				a.say("%s is now an admin of group %s\n", strong(args[1]), strong(args[0]))
			})
		},
	}
	remove := &cobra.Command{
		Use: "remove NAME MEMBER", Short: "Take a member out of an org, within 5 s, or withdraw an invitation", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeGroups(runs, true),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := api("groups", args[0], "members", args[1])
			return a.askAccount(cmd.Context(), "take out of the group", http.MethodDelete, path, nil, nil, func() {
				a.say("%s is neither in group %s nor invited to it\n", strong(args[1]), strong(args[0]))
			})
		},
	}
	return group("group", "Groups of members who reach each other's machines", list, create,
		mine("join", "Join an open group", "join the group", "join", "you are in group %s: its members reach your machines, and you theirs", outside),
		mine("leave", "Leave a group", "leave the group", "leave", "you are no longer in group %s", inside),
		a.inviteToGroup(runs),
		mine("accept", "Accept an invitation to an org", "accept the invitation", "accept", "you are in group %s: its members reach your machines, and you theirs", invited),
		mine("decline", "Decline an invitation to an org", "decline the invitation", "decline", "you declined: nothing is shared with group %s", invited),
		remove, admin, a.limitGroup(), a.keepOut())
}

// inviteToGroup asks a member into an org. No command puts a member into a group.
func (a *app) inviteToGroup(runs func(groupRow) bool) *cobra.Command {
	return &cobra.Command{
		Use: "invite NAME MEMBER", Aliases: []string{"add"}, Short: "Invite a member to an org that you run", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeGroups(runs, true),
		Long: "Invite a member to an org that you run. Until the member accepts, neither side reaches the other's machines. An\n" +
			"invitation waits for 30 days; `kith group remove` withdraws it.",
		Example: "  kith group invite lab bob\n  kith group accept lab     # as bob; or: kith group decline lab",
		RunE: func(cmd *cobra.Command, args []string) error {
			var done struct {
				State string `json:"state"`
			}
			in := map[string]string{"member": args[1]}
			return a.askAccount(cmd.Context(), "invite to the group", http.MethodPost, api("groups", args[0], "invitations"), in, &done, func() {
				if done.State == "joined" {
					a.say("%s is in group %s already\n", strong(args[1]), strong(args[0]))
					return
				}
				a.say("%s is invited to group %s, and is in it after accepting: on the site, or with `kith group accept`\n", strong(args[1]), strong(args[0]))
			})
		},
	}
}

// limitGroup is about the member's machines, all of them: what calls of the group's
// other members may come to them by it.
func (a *app) limitGroup() *cobra.Command {
	var flags limitFlags
	cmd := &cobra.Command{
		Use: "limit NAME", Short: "Limit what a group's members may call on your machines", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeGroups(func(g groupRow) bool { return g.In }, false),
		Long: "Limit what the other members of a group, all of them together, may call on your machines by it. The limits\n" +
			"given here change and all others stay; --models all, --hours always, --concurrent none and --per-day none\n" +
			"end a limit. A member you share with (`kith share add`) has the limits of that share alone.",
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := flags.change(cmd)
			if err != nil {
				return err
			}
			var made struct {
				Group string `json:"group"`
				limits
				warned
			}
			err = a.askAccount(cmd.Context(), "limit the group", http.MethodPost, api("groups", args[0], "limits"), in, &made, func() {
				a.say("all other members of group %s together may use your machines: %s\n", strong(made.Group), made.limits)
			})
			a.warn(made.warned)
			return err
		},
	}
	flags.flags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("models", a.completeModelFlag)
	return cmd
}

func (a *app) showGroups(groups []groupRow) {
	var rows [][]string
	waiting := false
	for _, g := range groups {
		you := "-"
		switch {
		case g.Admin:
			you = "admin"
		case g.In:
			you = "member"
		case g.Invited != nil:
			you = "invited by " + cmp.Or(g.Invited.By, "the operator")
			waiting = true
		}
		var names []string
		for _, m := range g.Members {
			name := m.Name
			if m.Admin {
				name += " (admin)"
			}
			names = append(names, name)
		}
		for _, i := range g.Invitations {
			names = append(names, i.Member+" (invited)")
		}
		members := strings.Join(names, ", ")
		if members == "" {
			members = strconv.Itoa(g.Size)
		}
		kept := slices.Clone(g.KeptOut)
		for _, m := range g.Closed {
			why := "out of all"
			if m.By == "configuration" {
				why = "[share] groups"
			}
			kept = append(kept, m.Machine+" ("+why+")")
		}
		mine := "-"
		if g.Limits != nil {
			mine = g.Limits.String()
		}
		rows = append(rows, []string{g.Name, g.Kind, you, mine, cmp.Or(strings.Join(kept, ", "), "-"), members})
	}
	a.table("GROUP KIND YOU YOUR-LIMITS KEPT-OUT MEMBERS", rows)
	if waiting {
		a.say("%s\n", faint("Answer an invitation with `kith group accept NAME` or `kith group decline NAME`."))
	}
}

// keepOut speaks with this machine's own credential, whatever the environment
// says: it is about this machine.
func (a *app) keepOut() *cobra.Command {
	in := struct {
		Group string `json:"group,omitempty"`
		All   bool   `json:"all,omitzero"`
		Undo  bool   `json:"undo,omitzero"`
	}{}
	cmd := &cobra.Command{
		Use: "keep-out NAME|--all [--undo]", Short: "Keep this machine out of a group, or out of all", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeGroups(func(g groupRow) bool { return g.In }, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == in.All {
				return wrongUse("cannot tell which groups: name one, or give --all")
			}
			where := "every group"
			if len(args) == 1 {
				in.Group, where = args[0], "group "+args[0]
			}
			_, saved, err := a.credential()
			if errors.Is(err, fs.ErrNotExist) {
				return notSignedIn("cannot keep this machine out of groups: it is not signed in; run `kith login --hub URL`")
			}
			if err != nil {
				return err
			}
			path := api("machines", saved.Machine, "keep-out")
			return a.ask(cmd.Context(), toHub(saved.Hub, saved.Secret), "keep the machine out", http.MethodPost, path, in, nil, func() {
				if in.Undo {
					a.say("this machine is no longer kept out of %s\n", strong(where))
					return
				}
				a.say("this machine is kept out of %s\n", strong(where))
			})
		},
	}
	cmd.Flags().BoolVar(&in.All, "all", false, "every group, those joined later too")
	cmd.Flags().BoolVar(&in.Undo, "undo", false, "let it in again")
	return cmd
}
