package cli

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
)

func (a *app) groups() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List your groups, your invitations, and the groups open to anyone", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), a.account(), "list the groups", api.ListGroups.With(api.None{}), func(l api.List[api.Group]) { a.showGroups(l.Data) })
		},
	}
	var kind string
	create := &cobra.Command{
		Use: "create NAME --kind org|open", Short: "Create a group, with you as its admin", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if kind != "org" && kind != "open" {
				return wrongUse("cannot create a group of kind %q; use --kind org (its admins run it) or --kind open (anyone can join)", kind)
			}
			in := api.NewGroup{Name: args[0], Kind: account.GroupKind(kind)}
			return ask(cmd.Context(), a.account(), "create the group", api.CreateGroup.With(in), func(api.Group) {
				a.say("group %s created; you are its admin\n", strong(args[0]))
			})
		},
	}
	create.Flags().StringVar(&kind, "kind", "", "org (its admins run it) or open (anyone can join)")
	_ = create.MarkFlagRequired("kind")
	inside := func(g api.Group) bool { return g.In }
	outside := func(g api.Group) bool { return !g.In && g.Kind == "open" }
	invited := func(g api.Group) bool { return g.Invited != nil }
	runs := func(g api.Group) bool { return g.Admin }
	mine := func(use, short, done string, act api.Route[api.GroupName, api.GroupAct], passes func(api.Group) bool) *cobra.Command {
		return &cobra.Command{
			Use: use + " NAME", Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeGroups(passes, false),
			RunE: func(cmd *cobra.Command, args []string) error {
				doing := use + " the group"
				if use == "accept" || use == "decline" {
					doing = use + " the invitation"
				}
				return ask(cmd.Context(), a.account(), doing, act.With(api.GroupName{Group: args[0]}), func(api.GroupAct) {
					a.say(done+"\n", strong(args[0]))
				})
			},
		}
	}
	admin := &cobra.Command{
		Use: "admin NAME MEMBER", Short: "Make a member of an org that you run an admin", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeGroups(runs, true),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.GroupMemberName{Group: args[0], Member: args[1]}
			return ask(cmd.Context(), a.account(), "make an admin", api.MakeAdmin.With(in), func(api.GroupAct) {
				a.say("%s is now an admin of group %s\n", strong(args[1]), strong(args[0]))
			})
		},
	}
	remove := &cobra.Command{
		Use: "remove NAME MEMBER", Short: "Take a member out of an org, within 5 s, or withdraw an invitation", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeGroups(runs, true),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.GroupMemberName{Group: args[0], Member: args[1]}
			return ask(cmd.Context(), a.account(), "take out of the group", api.RemoveFromGroup.With(in), func(api.GroupAct) {
				a.say("%s is neither in group %s nor invited to it\n", strong(args[1]), strong(args[0]))
			})
		},
	}
	return group("group", "Groups of members who reach each other's machines", list, create,
		a.groupMachine("pin", account.MachinePinned, "Let a member's machine count as established in a group that you run", "is pinned in", "is no longer pinned in", runs),
		a.groupMachine("exclude", account.MachineExcluded, "Exclude a member's machine from a group that you run, within 5 s", "is excluded from", "is no longer excluded from", runs),
		mine("join", "Join an open group", "you are in group %s: its members reach your machines, and you theirs", api.JoinGroup, outside),
		mine("leave", "Leave a group", "you are no longer in group %s", api.LeaveGroup, inside),
		a.inviteToGroup(runs),
		mine("accept", "Accept an invitation to an org", "you are in group %s: its members reach your machines, and you theirs", api.AcceptGroup, invited),
		mine("decline", "Decline an invitation to an org", "you declined: nothing is shared with group %s", api.DeclineGroup, invited),
		remove, admin, a.limitGroup(), a.keepOut())
}

// inviteToGroup invites a member to an org. There is no command that adds a member
// directly.
func (a *app) inviteToGroup(runs func(api.Group) bool) *cobra.Command {
	return &cobra.Command{
		Use: "invite NAME MEMBER", Short: "Invite a member to an org that you run", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeGroups(runs, true),
		Long: "Invite a member to an org that you manage. Until the member accepts, neither side can use the other's\n" +
			"machines. An invitation is valid for 30 days; `kith group remove` withdraws it.",
		Example: "  kith group invite lab bob\n  kith group accept lab     # as bob; or: kith group decline lab",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.GroupMemberName{Group: args[0], Member: args[1]}
			return ask(cmd.Context(), a.account(), "invite to the group", api.InviteToGroup.With(in), func(done api.GroupAct) {
				if done.State == "joined" {
					a.say("%s is in group %s already\n", strong(args[1]), strong(args[0]))
					return
				}
				a.say("%s is invited to group %s, and is in it after accepting: on the site, or with `kith group accept`\n", strong(args[1]), strong(args[0]))
			})
		},
	}
}

// groupMachine is `kith group pin` and `kith group exclude`.
func (a *app) groupMachine(use string, rule account.MachineRule, short, done, undone string, runs func(api.Group) bool) *cobra.Command {
	var undo bool
	cmd := &cobra.Command{
		Use: use + " NAME OWNER/MACHINE", Short: short, Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeGroups(runs, false),
		Example: "  kith group " + use + " lab bob/desk\n  kith group " + use + " lab bob/desk --undo",
		RunE: func(cmd *cobra.Command, args []string) error {
			owner, machine, ok := strings.Cut(args[1], "/")
			if !ok || owner == "" || machine == "" {
				return wrongUse("cannot %s %q: name the owner and the machine, as in bob/desk", use, args[1])
			}
			in := api.GroupMachine{Group: args[0], Owner: owner, Machine: machine, Rule: rule}
			if undo {
				in.Rule, done = account.NoRule, undone
			}
			return ask(cmd.Context(), a.account(), use+" the machine", api.SetGroupMachine.With(in), func(api.GroupMachine) {
				a.say("%s of %s %s group %s\n", strong(machine), strong(owner), done, strong(args[0]))
			})
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "end it")
	return cmd
}

// limitGroup sets limits for all of the member's machines together, for calls of a
// group's other members.
func (a *app) limitGroup() *cobra.Command {
	var flags limitFlags
	cmd := &cobra.Command{
		Use: "limit NAME", Short: "Limit what a group's members may call on your machines", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeGroups(func(g api.Group) bool { return g.In }, false),
		Long: "Limit the calls that the other members of a group, all together, may make on your machines through the\n" +
			"group. The limits that you give change, and all others stay; --models all, --hours always, --concurrent none\n" +
			"and --per-day none remove a limit. A member you share with (`kith share add`) has only the limits of that\n" +
			"share.",
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := flags.change(cmd)
			if err != nil {
				return err
			}
			in := api.GroupLimitChange{Group: args[0], LimitChange: change}
			made, err := answer(cmd.Context(), a.account(), "limit the group", api.LimitGroup.With(in), func(made api.GroupLimits) {
				a.say("all other members of group %s together may use your machines: %s\n", strong(made.Group), limitsText(&made.Limits))
			})
			a.warn(made.Warnings)
			return err
		},
	}
	flags.flags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("models", a.completeModelFlag)
	return cmd
}

func (a *app) showGroups(groups []api.Group) {
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
		var pinned []string
		for _, m := range g.Machines {
			if name := m.Owner + "/" + m.Machine; m.Rule == account.MachinePinned {
				pinned = append(pinned, name)
			} else {
				kept = append(kept, name+" ("+string(m.Rule)+")")
			}
		}
		mine := "-"
		if g.Limits != nil {
			mine = limitsText(g.Limits)
		}
		rows = append(rows, []string{g.Name, string(g.Kind), you, mine, cmp.Or(strings.Join(kept, ", "), "-"), cmp.Or(strings.Join(pinned, ", "), "-"), members})
	}
	a.table("GROUP KIND YOU YOUR-LIMITS KEPT-OUT PINNED MEMBERS", rows)
	if waiting {
		a.say("%s\n", faint("Answer an invitation with `kith group accept NAME` or `kith group decline NAME`."))
	}
}

// keepOut always uses this machine's own credential, whatever the environment contains,
// because it is about this machine.
func (a *app) keepOut() *cobra.Command {
	var in api.KeepOut
	cmd := &cobra.Command{
		Use: "keep-out NAME|--all [--undo]", Short: "Keep this machine out of a group, or out of all", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeGroups(func(g api.Group) bool { return g.In }, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == in.All {
				return wrongUse("which groups? name one, or give --all")
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
			in.Machine = saved.Machine
			machine := command{a, func() (*client, error) { return asMachine(saved), nil }}
			return ask(cmd.Context(), machine, "keep the machine out", api.KeepMachineOut.With(in), func(api.KeptOut) {
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
