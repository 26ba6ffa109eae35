package cli

import (
	"cmp"
	"context"
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
	list := command("kith group list", func(ctx context.Context, _ []string) error {
		return ask(ctx, a.account("list the groups"), api.ListGroups.With(api.None{}), func(l api.List[api.Group]) { a.showGroups(l.Data) })
	})
	var kind string
	create := command("kith group create", func(ctx context.Context, args []string) error {
		if kind != "org" && kind != "open" {
			return wrongUse("cannot create a group of kind %q; use --kind org (its admins run it) or --kind open (anyone can join)", kind)
		}
		in := api.NewGroup{Name: args[0], Kind: account.GroupKind(kind)}
		return confirm(ctx, a.account("create the group"), api.CreateGroup.With(in),
			"group %s created; you are its admin", strong(args[0]))
	})
	create.Flags().StringVar(&kind, "kind", "", "org (its admins run it) or open (anyone can join)")
	requiring(create, "kind")
	outside := func(g api.Group) bool { return !g.In && g.Kind == "open" }
	invited := func(g api.Group) bool { return g.Invited != nil }
	mine := func(name, what, done string, act api.Route[api.GroupName, api.GroupAct], passes func(api.Group) bool) *cobra.Command {
		run := func(ctx context.Context, args []string) error {
			return confirm(ctx, a.account(name+" the "+what), act.With(api.GroupName{Group: args[0]}),
				done, strong(args[0]))
		}
		return a.groupCommand(name, passes, false, run)
	}
	admin := a.groupCommand("admin", isAdmin, true, func(ctx context.Context, args []string) error {
		in := api.GroupMemberName{Group: args[0], Member: args[1]}
		return confirm(ctx, a.account("make an admin"), api.MakeAdmin.With(in),
			"%s is now an admin of group %s", strong(args[1]), strong(args[0]))
	})
	remove := a.groupCommand("remove", isAdmin, true, func(ctx context.Context, args []string) error {
		in := api.GroupMemberName{Group: args[0], Member: args[1]}
		return confirm(ctx, a.account("take out of the group"), api.RemoveFromGroup.With(in),
			"%s is neither in group %s nor invited to it", strong(args[1]), strong(args[0]))
	})
	const joined = "you are in group %s: its members can use your machines, and you can use theirs"
	return group("kith group", list, create,
		a.groupMachine("pin", account.MachinePinned, "pinned in"),
		a.groupMachine("exclude", account.MachineExcluded, "excluded from"),
		mine("join", "group", joined, api.JoinGroup, outside),
		mine("leave", "group", "you are no longer in group %s", api.LeaveGroup, isMember),
		a.inviteToGroup(),
		mine("accept", "invitation", joined, api.AcceptGroup, invited),
		mine("decline", "invitation", "you declined: nothing is shared with group %s", api.DeclineGroup, invited),
		remove, admin, a.limitGroup(), a.keepOut())
}

func isMember(g api.Group) bool { return g.In }

func isAdmin(g api.Group) bool { return g.Admin }

// groupCommand returns a command for a group that passes and, if members is set, a member.
func (a *app) groupCommand(name string, passes func(api.Group) bool, members bool, run action) *cobra.Command {
	cmd := command("kith group "+name, run)
	cmd.ValidArgsFunction = a.completeGroups(passes, members)
	return cmd
}

// inviteToGroup invites a member to an org. There is no command that adds a member
// directly.
func (a *app) inviteToGroup() *cobra.Command {
	return a.groupCommand("invite", isAdmin, true, func(ctx context.Context, args []string) error {
		in := api.GroupMemberName{Group: args[0], Member: args[1]}
		return ask(ctx, a.account("invite to the group"), api.InviteToGroup.With(in), func(done api.GroupAct) {
			if done.State == "joined" {
				a.say("%s is in group %s already\n", strong(args[1]), strong(args[0]))
				return
			}
			a.say("%s is invited to group %s and joins by accepting, on the site or with `kith group accept`\n", strong(args[1]), strong(args[0]))
		})
	})
}

// groupMachine is `kith group pin` and `kith group exclude`.
func (a *app) groupMachine(name string, rule account.MachineRule, done string) *cobra.Command {
	var undo bool
	cmd := a.groupCommand(name, isAdmin, false, func(ctx context.Context, args []string) error {
		owner, machine, ok := strings.Cut(args[1], "/")
		if !ok || owner == "" || machine == "" {
			return wrongUse("cannot %s %q: name the owner and the machine, as in bob/desk", name, args[1])
		}
		in, is := api.GroupMachine{Group: args[0], Owner: owner, Machine: machine, Rule: rule}, "is"
		if undo {
			in.Rule, is = account.NoRule, "is no longer"
		}
		return confirm(ctx, a.account(name+" the machine"), api.SetGroupMachine.With(in),
			"%s of %s %s %s group %s", strong(machine), strong(owner), is, done, strong(args[0]))
	})
	cmd.Flags().BoolVar(&undo, "undo", false, "end it")
	return cmd
}

// limitGroup sets limits for all of the member's machines together, for calls of a
// group's other members.
func (a *app) limitGroup() *cobra.Command {
	var flags limitFlags
	cmd := a.groupCommand("limit", isMember, false, func(ctx context.Context, args []string) error {
		change, err := flags.change()
		if err != nil {
			return err
		}
		in := api.GroupLimitChange{Group: args[0], LimitChange: change}
		made, err := answer(ctx, a.account("limit the group"), api.LimitGroup.With(in), func(made api.GroupLimits) {
			a.say("all other members of group %s together may use your machines: %s\n", strong(made.Group), limitsText(&made.Limits))
		})
		a.warn(made.Warnings)
		return err
	})
	flags.add(a, cmd)
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
		members := cmp.Or(strings.Join(names, ", "), strconv.Itoa(g.Size))
		kept := slices.Clone(g.KeptOut)
		for _, m := range g.Closed {
			why := map[bool]string{false: "out of all", true: "[share] groups"}[m.By == "configuration"]
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
		a.note("Answer an invitation with `kith group accept NAME` or `kith group decline NAME`.")
	}
}

// keepOut always uses this machine's own credential, whatever the environment contains,
// because it is about this machine.
func (a *app) keepOut() *cobra.Command {
	var in api.KeepOut
	cmd := a.groupCommand("keep-out", isMember, false, func(ctx context.Context, args []string) error {
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
		machine := requester{a, func() (*client, error) { return asMachine(saved), nil }, "keep the machine out"}
		state := map[bool]string{false: "kept out", true: "no longer kept out"}[in.Undo]
		return confirm(ctx, machine, api.KeepMachineOut.With(in), "this machine is %s of %s", state, strong(where))
	})
	cmd.Args = argumentsOf("[NAME]")
	cmd.Flags().BoolVar(&in.All, "all", false, "every group, those joined later too")
	cmd.Flags().BoolVar(&in.Undo, "undo", false, "let it in again")
	return cmd
}
