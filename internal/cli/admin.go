package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
)

// operator is one run of `kith admin`. It connects to a running hub over the socket in
// the hub's data folder, which only the hub's own user can open.
type operator struct {
	*app
	data, file string // --data, --config
}

func (a *app) admin() *cobra.Command {
	o := &operator{app: a}
	cmd := group("kith admin",
		o.members(), o.keys(), o.machines(), o.devices(), o.shares(), o.groups(), o.backup(), o.restore(), o.migrate(), o.copy(), o.health(), o.nodes(), o.drain(), o.reload(), o.top(), o.usage())
	cmd.PersistentFlags().StringVar(&o.data, "data", "", "the hub's data folder")
	cmd.PersistentFlags().StringVar(&o.file, "config", "", "the hub's configuration file, which names its data folder")
	return cmd
}

// folder returns the hub's data folder according to the flags.
func (o *operator) folder() (string, error) {
	if o.data != "" {
		return filepath.Abs(pathHere(o.data))
	}
	config, err := loadHubFile(o.home, pathHere(o.file))
	if err != nil && !onlySecrets(err) { // only the hub needs the secrets, and this shell may not have them
		return "", err
	}
	return config.Hub.Data, nil
}

// hub returns a client for the hub in the data folder given by the flags.
func (o *operator) hub() (*client, error) {
	data, err := o.folder()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(data, "admin.sock")
	return overSocket(socket, "the hub at "+socket,
		"start it with `kith hub`, or name its data folder with --data"), nil
}

// socket returns a requester for the hub's socket.
func (o *operator) socket(doing string) requester { return requester{o.app, o.hub, doing} }

// moment formats a time for people, in this computer's zone; the zero time is "never".
func moment(t time.Time) string { return api.Moment(t, time.Now()) }

func yes(b bool, word string) string {
	if b {
		return word
	}
	return "-"
}

func (o *operator) members() *cobra.Command {
	var asOperator, withPassword bool
	create := command("kith admin member create", func(ctx context.Context, args []string) error {
		in := api.NewMember{Name: args[0], Operator: asOperator}
		if withPassword {
			line, err := bufio.NewReader(io.LimitReader(o.in, 4<<10)).ReadString('\n')
			if in.Password = strings.TrimRight(line, "\r\n"); in.Password == "" {
				if err != nil && !errors.Is(err, io.EOF) {
					return fmt.Errorf("cannot read a password from standard input: %w", err)
				}
				return errors.New("no password came on standard input: type or pipe one line, of 10 characters or more")
			}
		}
		return ask(ctx, o.socket("add the member"), api.OperatorCreateMember.With(in), func(made api.Member) {
			o.say("member %s added\n", strong(made.Name))
		})
	})
	create.Flags().BoolVar(&asOperator, "operator", false, "may run the hub's site as its operator")
	create.Flags().BoolVar(&withPassword, "password-stdin", false, "read the member's password, one line, from standard input")
	link := command("kith admin member link", func(ctx context.Context, args []string) error {
		return ask(ctx, o.socket("make the link"), api.OperatorCreateLink.With(api.Named{Name: args[0]}), func(made api.SignInLink) {
			o.say("%s\n%s\n", strong(made.Link), faint("Give it to "+made.Member+" alone: it signs in as them, and can set a new password."))
		})
	})
	list := command("kith admin member list", func(ctx context.Context, _ []string) error {
		return ask(ctx, o.socket("list the members"), api.OperatorListMembers.With(api.None{}), func(members []api.Member) {
			o.table("MEMBER ROLE STATE SINCE (ID)", convert(members, func(m api.Member) []string {
				return []string{m.Name, yes(m.Operator, "operator"), yes(m.Disabled, "disabled"), moment(m.Created), m.ID}
			}))
		})
	})
	disable := command("kith admin member disable", func(ctx context.Context, args []string) error {
		return confirm(ctx, o.socket("disable the member"), api.OperatorDisableMember.With(api.Named{Name: args[0]}),
			"member %s disabled: its keys and machines are refused everywhere within 5 s", strong(args[0]))
	})
	enable := command("kith admin member enable", func(ctx context.Context, args []string) error {
		return confirm(ctx, o.socket("enable the member"), api.OperatorEnableMember.With(api.Named{Name: args[0]}),
			"member %s enabled: its keys and machines work again within 5 s", strong(args[0]))
	})
	roles := []string{"operator", "member"}
	role := command("kith admin member role", func(ctx context.Context, args []string) error {
		if !slices.Contains(roles, args[1]) {
			return wrongUse("cannot change the role: it is operator or member, not %q", args[1])
		}
		in := api.Role{Name: args[0], Operator: args[1] == "operator"}
		return confirm(ctx, o.socket("change the role"), api.OperatorSetRole.With(in),
			"%s now has the role %s", strong(args[0]), args[1])
	})
	role.ValidArgs = roles
	return group("kith admin member", create, list, link, role, disable, enable)
}

func (o *operator) keys() *cobra.Command {
	var in api.NewKey
	create := command("kith admin key create", func(ctx context.Context, _ []string) error {
		return ask(ctx, o.socket("create the key"), api.OperatorCreateKey.With(in), func(made api.OperatorKey) {
			o.say("%s\n", strong(made.Secret))
			o.note("A key of " + made.Member + " in region " + made.Region + ", base URL " + made.BaseURL + ". It is shown this once; revoke it with `kith admin key revoke " + made.ID + "`.")
		})
	})
	create.Flags().StringVar(&in.Member, "member", "", "whose key it is")
	create.Flags().StringVar(&in.Name, "name", "", "what the key is for")
	create.Flags().StringVar(&in.Region, "region", "", "the region it works in (default: this hub's)")
	create.Flags().StringVar((*string)(&in.Reach), "reach", "all", "what it reaches: all, shared (own and shared) or own")
	create.Flags().BoolVar(&in.Manage, "manage", false, "let it manage the member's account, beside inference")
	create.Flags().StringVar(&in.Expires, "expires", "", "when it ends: after a time like 90d or 12h, or at a time like 2027-01-31T18:00:00Z (default: never)")
	create.Flags().IntVar(&in.PerDay, "per-day", 0, "maximum calls per day (UTC); 0 is no limit")
	requiring(create, "member")

	var member string
	list := command("kith admin key list", func(ctx context.Context, _ []string) error {
		return ask(ctx, o.socket("list the keys"), api.OperatorListKeys.With(api.OfMember{Member: member}), func(keys []api.OperatorKey) {
			o.keyTable(convert(keys, func(k api.OperatorKey) api.Key { return k.Key }))
		})
	})
	list.Flags().StringVar(&member, "member", "", "whose keys")
	requiring(list, "member")
	return group("kith admin key", create, list, o.revoke("key", api.OperatorRevokeKey, "it is refused everywhere within 5 s"))
}

// revoke returns the command that revokes a key or a machine by id.
func (o *operator) revoke(what string, act api.Route[api.ID, api.Revoked], effect string) *cobra.Command {
	return command("kith admin "+what+" revoke", func(ctx context.Context, args []string) error {
		return confirm(ctx, o.socket("revoke the "+what), act.With(api.ID{ID: args[0]}),
			"%s %s revoked: %s", what, strong(args[0]), effect)
	})
}

func (o *operator) machines() *cobra.Command {
	var in api.NewToken
	token := command("kith admin machine token", func(ctx context.Context, _ []string) error {
		return ask(ctx, o.socket("make the token"), api.OperatorCreateToken.With(in), func(made api.LoginToken) {
			o.say("%s\n", strong(made.Token))
			if terminal(o.out) {
				o.note("On the machine: kith login --hub ADDRESS --token TOKEN. It works once.")
			}
		})
	})
	token.Flags().StringVar(&in.Member, "member", "", "whose machine it will be")
	token.Flags().StringVar(&in.Name, "name", "", "the machine's name (default: what it calls itself)")
	requiring(token, "member")
	list := command("kith admin machine list", func(ctx context.Context, _ []string) error {
		return ask(ctx, o.socket("list the machines"), api.OperatorListMachines.With(api.OfMember{}), func(machines []api.OperatorMachine) {
			o.table("MACHINE OWNER STATE NODE SEEN [ID]", convert(machines, func(m api.OperatorMachine) []string {
				state, seen := "offline", moment(m.LastSeen)
				switch {
				case !m.Revoked.IsZero():
					state = "revoked"
				case m.Online:
					state, seen = "online", "now"
				}
				return []string{m.Name, m.Owner, state, cmp.Or(m.Node, "-"), seen, m.ID}
			}))
		})
	})
	return group("kith admin machine", token, list, o.revoke("machine", api.OperatorRevokeMachine, "its tunnel ends within 5 s"))
}

func (o *operator) shares() *cobra.Command {
	change := func(name, doing, done string, act api.Route[api.BetweenMembers, api.OperatorShare]) *cobra.Command {
		var in api.BetweenMembers
		cmd := command("kith admin share "+name, func(ctx context.Context, _ []string) error {
			return confirm(ctx, o.socket(doing), act.With(in), done, strong(in.Owner), strong(in.With))
		})
		cmd.Flags().StringVar(&in.Owner, "owner", "", "whose machines")
		cmd.Flags().StringVar(&in.With, "with", "", "who may use them")
		return requiring(cmd, "owner", "with")
	}
	return group("kith admin share",
		change("add", "add the share", "%s now shares with %s", api.OperatorAddShare),
		change("remove", "end the share", "%s no longer shares with %s", api.OperatorEndShare))
}

func (o *operator) groups() *cobra.Command {
	var kind, admin string
	create := command("kith admin group create", func(ctx context.Context, args []string) error {
		if kind != "org" && kind != "open" {
			return wrongUse("cannot create a group of kind %q; use --kind org (its admins run it) or --kind open (anyone can join)", kind)
		}
		in := api.NewOperatorGroup{Name: args[0], Kind: account.GroupKind(kind), Admin: admin}
		return confirm(ctx, o.socket("create the group"), api.OperatorCreateGroup.With(in),
			"group %s created; %s is invited to be its admin and joins by accepting, on the site or with `kith group accept`", strong(args[0]), strong(admin))
	})
	create.Flags().StringVar(&kind, "kind", "", "org (its admins run it) or open (anyone can join)")
	create.Flags().StringVar(&admin, "admin", "", "who is invited to be its first member and admin")
	requiring(create, "kind", "admin")
	add := command("kith admin group add", func(ctx context.Context, args []string) error {
		in := api.MemberOfGroup{Name: args[0], Member: args[1]}
		return confirm(ctx, o.socket("invite to the group"), api.OperatorInviteToGroup.With(in),
			"%s is invited to group %s and joins by accepting, on the site or with `kith group accept`", strong(args[1]), strong(args[0]))
	})
	remove := command("kith admin group remove", func(ctx context.Context, args []string) error {
		in := api.MemberOfGroup{Name: args[0], Member: args[1]}
		return confirm(ctx, o.socket("take out of the group"), api.OperatorRemoveFromGroup.With(in),
			"%s is neither in group %s nor invited to it", strong(args[1]), strong(args[0]))
	})
	name := command("kith admin group admin", func(ctx context.Context, args []string) error {
		in := api.MemberOfGroup{Name: args[0], Member: args[1]}
		return confirm(ctx, o.socket("name an admin"), api.OperatorNameAdmin.With(in),
			"%s is now an admin of group %s", strong(args[1]), args[0])
	})
	return group("kith admin group", create, add, remove, name)
}
