package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
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
	cmd := group("admin", "Manage a hub: its members, keys, machines, shares, groups, nodes, backups and database",
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

// command returns a command for the hub's socket.
func (o *operator) command() command { return command{o.app, o.hub} }

// table prints rows of cells under headings, in aligned columns.
func (a *app) table(headings string, rows [][]string) {
	if len(rows) == 0 {
		a.say("%s\n", faint("none"))
		return
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(headings, " ", "\t"))
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
}

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
	create := &cobra.Command{
		Use: "create NAME", Short: "Add a member", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
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
			return ask(cmd.Context(), o.command(), "add the member", api.OperatorCreateMember.With(in), func(made api.Member) {
				o.say("member %s added\n", strong(made.Name))
			})
		},
	}
	create.Flags().BoolVar(&asOperator, "operator", false, "may run the hub's site as its operator")
	create.Flags().BoolVar(&withPassword, "password-stdin", false, "read the member's password, one line, from standard input")
	link := &cobra.Command{
		Use: "link NAME", Short: "Make a link that signs a member in on the site, once, within a day", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), o.command(), "make the link", api.OperatorCreateLink.With(api.Named{Name: args[0]}), func(made api.SignInLink) {
				o.say("%s\n%s\n", strong(made.Link), faint("Give it to "+made.Member+" alone: it signs in as them, and can set a new password."))
			})
		},
	}
	list := &cobra.Command{
		Use: "list", Short: "List the members", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), o.command(), "list the members", api.OperatorListMembers.With(api.None{}), func(members []api.Member) {
				var rows [][]string
				for _, m := range members {
					rows = append(rows, []string{m.Name, yes(m.Operator, "operator"), yes(m.Disabled, "disabled"), moment(m.Created), m.ID})
				}
				o.table("MEMBER ROLE STATE SINCE ID", rows)
			})
		},
	}
	disable := &cobra.Command{
		Use: "disable NAME", Short: "Refuse a member's keys and machines, within 5 s", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), o.command(), "disable the member", api.OperatorDisableMember.With(api.Named{Name: args[0]}), func(api.Member) {
				o.say("member %s disabled: its keys and machines are refused everywhere within 5 s\n", strong(args[0]))
			})
		},
	}
	enable := &cobra.Command{
		Use: "enable NAME", Short: "Let a disabled member back in", Args: cobra.ExactArgs(1),
		Long:    "Enable a disabled member again: the member's keys, machines and shares work again within 5 s.",
		Example: "  kith admin member enable bob",
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), o.command(), "enable the member", api.OperatorEnableMember.With(api.Named{Name: args[0]}), func(api.Member) {
				o.say("member %s enabled: its keys and machines work again within 5 s\n", strong(args[0]))
			})
		},
	}
	role := &cobra.Command{
		Use: "role NAME operator|member", Short: "Make a member an operator, or take that role away", Args: cobra.ExactArgs(2),
		Long: "Make a member an operator, who sees the site's operator pages, or remove that role. The last operator keeps\n" +
			"it.",
		Example:   "  kith admin member role bob operator",
		ValidArgs: []string{"operator", "member"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(cmd.ValidArgs, args[1]) {
				return wrongUse("cannot change the role: it is operator or member, not %q", args[1])
			}
			in := api.Role{Name: args[0], Operator: args[1] == "operator"}
			return ask(cmd.Context(), o.command(), "change the role", api.OperatorSetRole.With(in), func(api.Member) {
				o.say("%s now has the role %s\n", strong(args[0]), args[1])
			})
		},
	}
	return group("member", "Members of the hub", create, list, link, role, disable, enable)
}

func (o *operator) keys() *cobra.Command {
	var in api.NewKey
	create := &cobra.Command{
		Use: "create --member NAME", Short: "Create an API key and print its secret, this once", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), o.command(), "create the key", api.OperatorCreateKey.With(in), func(made api.OperatorKey) {
				o.say("%s\n", strong(made.Secret))
				o.say("%s\n", faint("A key of "+made.Member+" in region "+made.Region+", base URL "+made.BaseURL+". It is shown this once; revoke it with `kith admin key revoke "+made.ID+"`."))
			})
		},
	}
	create.Flags().StringVar(&in.Member, "member", "", "whose key it is")
	create.Flags().StringVar(&in.Name, "name", "", "what the key is for")
	create.Flags().StringVar(&in.Region, "region", "", "the region it works in (default: this hub's)")
	create.Flags().StringVar((*string)(&in.Reach), "reach", "all", "what it reaches: all, shared (own and shared) or own")
	create.Flags().BoolVar(&in.Manage, "manage", false, "let it manage the member's account, beside inference")
	create.Flags().StringVar(&in.Expires, "expires", "", "when it ends: after a time like 90d or 12h, or at a time like 2027-01-31T18:00:00Z (default: never)")
	_ = create.MarkFlagRequired("member")

	var member string
	list := &cobra.Command{
		Use: "list --member NAME", Short: "List a member's keys", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), o.command(), "list the keys", api.OperatorListKeys.With(api.OfMember{Member: member}), func(keys []api.OperatorKey) {
				views := make([]api.Key, len(keys))
				for i, k := range keys {
					views[i] = k.Key
				}
				o.keyTable(views)
			})
		},
	}
	list.Flags().StringVar(&member, "member", "", "whose keys")
	_ = list.MarkFlagRequired("member")
	return group("key", "API keys", create, list, o.revoke("key", api.OperatorRevokeKey, "it is refused everywhere within 5 s"))
}

// revoke returns the command that revokes a key or a machine by id.
func (o *operator) revoke(what string, act api.Route[api.ID, api.Revoked], effect string) *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "End a " + what + ", within 5 s", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), o.command(), "revoke the "+what, act.With(api.ID{ID: args[0]}), func(api.Revoked) {
				o.say("%s %s revoked: %s\n", what, strong(args[0]), effect)
			})
		},
	}
}

func (o *operator) machines() *cobra.Command {
	var in api.NewToken
	token := &cobra.Command{
		Use: "token --member NAME", Short: "Make a single-use token for `kith login --token`", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), o.command(), "make the token", api.OperatorCreateToken.With(in), func(made api.LoginToken) {
				o.say("%s\n", strong(made.Token))
				if terminal(o.out) {
					o.say("%s\n", faint("On the machine: kith login --hub ADDRESS --token TOKEN. It works once."))
				}
			})
		},
	}
	token.Flags().StringVar(&in.Member, "member", "", "whose machine it will be")
	token.Flags().StringVar(&in.Name, "name", "", "the machine's name (default: what it calls itself)")
	_ = token.MarkFlagRequired("member")
	list := &cobra.Command{
		Use: "list", Short: "List the machines", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), o.command(), "list the machines", api.OperatorListMachines.With(api.OfMember{}), func(machines []api.OperatorMachine) {
				var rows [][]string
				for _, m := range machines {
					state, seen := "offline", moment(m.LastSeen)
					switch {
					case !m.Revoked.IsZero():
						state = "revoked"
					case m.Online:
						state, seen = "online", "now"
					}
					rows = append(rows, []string{m.Name, m.Owner, state, cmp.Or(m.Node, "-"), seen, m.ID})
				}
				o.table("MACHINE OWNER STATE NODE SEEN ID", rows)
			})
		},
	}
	return group("machine", "Members' machines", token, list, o.revoke("machine", api.OperatorRevokeMachine, "its tunnel ends within 5 s"))
}

func (o *operator) shares() *cobra.Command {
	change := func(use, short, doing, done string, request func(owner, with string) api.Request[api.OperatorShare]) *cobra.Command {
		var owner, with string
		cmd := &cobra.Command{
			Use: use + " --owner A --with B", Short: short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return ask(cmd.Context(), o.command(), doing, request(owner, with), func(api.OperatorShare) {
					o.say(done+"\n", strong(owner), strong(with))
				})
			},
		}
		cmd.Flags().StringVar(&owner, "owner", "", "whose machines")
		cmd.Flags().StringVar(&with, "with", "", "who may use them")
		_ = cmd.MarkFlagRequired("owner")
		_ = cmd.MarkFlagRequired("with")
		return cmd
	}
	return group("share", "Who may use whose machines",
		change("add", "Let a member use another's machines", "add the share", "%s now shares with %s", func(owner, with string) api.Request[api.OperatorShare] {
			return api.OperatorAddShare.With(api.BetweenMembers{Owner: owner, With: with})
		}),
		change("remove", "End a share, within 5 s", "end the share", "%s no longer shares with %s", func(owner, with string) api.Request[api.OperatorShare] {
			return api.OperatorEndShare.With(api.BetweenMembers{Owner: owner, With: with})
		}))
}

func (o *operator) groups() *cobra.Command {
	var kind, admin string
	create := &cobra.Command{
		Use: "create NAME --kind org|open --admin MEMBER", Short: "Create a group", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if kind != "org" && kind != "open" {
				return wrongUse("cannot create a group of kind %q; use --kind org (its admins run it) or --kind open (anyone can join)", kind)
			}
			in := api.NewOperatorGroup{Name: args[0], Kind: account.GroupKind(kind), Admin: admin}
			return ask(cmd.Context(), o.command(), "create the group", api.OperatorCreateGroup.With(in), func(api.OperatorGroup) {
				o.say("group %s created; %s is invited to be its admin, and is in it after accepting: on the site, or with `kith group accept`\n", strong(args[0]), strong(admin))
			})
		},
	}
	create.Flags().StringVar(&kind, "kind", "", "org (its admins run it) or open (anyone can join)")
	create.Flags().StringVar(&admin, "admin", "", "who is invited to be its first member and admin")
	_ = create.MarkFlagRequired("kind")
	_ = create.MarkFlagRequired("admin")
	add := &cobra.Command{
		Use: "add NAME MEMBER", Short: "Invite a member to an org", Args: cobra.ExactArgs(2),
		Long: "Invite a member to an org. The member joins only by accepting, on the site or with `kith group accept`: an\n" +
			"operator cannot put anyone's machines within the reach of others. Members join open groups themselves.",
		Example: "  kith admin group add lab bob\n  kith group accept lab    # as bob",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.MemberOfGroup{Name: args[0], Member: args[1]}
			return ask(cmd.Context(), o.command(), "invite to the group", api.OperatorInviteToGroup.With(in), func(api.GroupAct) {
				o.say("%s is invited to group %s, and is in it after accepting: on the site, or with `kith group accept`\n", strong(args[1]), strong(args[0]))
			})
		},
	}
	remove := &cobra.Command{
		Use: "remove NAME MEMBER", Short: "Take a member out of a group, within 5 s, or withdraw an invitation", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.MemberOfGroup{Name: args[0], Member: args[1]}
			return ask(cmd.Context(), o.command(), "take out of the group", api.OperatorRemoveFromGroup.With(in), func(api.GroupAct) {
				o.say("%s is neither in group %s nor invited to it\n", strong(args[1]), strong(args[0]))
			})
		},
	}
	name := &cobra.Command{
		Use: "admin NAME MEMBER", Short: "Make a member of an org its admin, where all its admins are disabled", Args: cobra.ExactArgs(2),
		Long: "Make a member of an org its admin if all its admins are disabled, so that no one else can invite, remove\n" +
			"members or name an admin. If one is enabled, that admin names others.",
		Example: "  kith admin group admin lab bob",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.MemberOfGroup{Name: args[0], Member: args[1]}
			return ask(cmd.Context(), o.command(), "name an admin", api.OperatorNameAdmin.With(in), func(api.GroupAct) {
				o.say("%s is now an admin of group %s\n", strong(args[1]), args[0])
			})
		},
	}
	return group("group", "Groups of members who reach each other's machines", create, add, remove, name)
}
