package cli

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// operator is one run of `kith admin`: it speaks to a running hub over the
// socket in the hub's data folder, which only the hub's own user can open.
type operator struct {
	*app
	data, file string // --data, --config
}

func (a *app) admin() *cobra.Command {
	o := &operator{app: a}
	cmd := group("admin", "For a hub's operator: members, keys, machines, shares, groups and backups",
		o.members(), o.keys(), o.machines(), o.devices(), o.shares(), o.groups(), o.backup())
	cmd.PersistentFlags().StringVar(&o.data, "data", "", "the hub's data folder")
	cmd.PersistentFlags().StringVar(&o.file, "config", "", "the hub's configuration file, which names its data folder")
	return cmd
}

// hub is a client to the hub whose data folder the flags name.
func (o *operator) hub() (*client, error) {
	data := o.data
	if data == "" {
		config, err := loadHubFile(o.home, o.file)
		if err != nil {
			return nil, err
		}
		data = config.Hub.Data
	}
	socket := filepath.Join(data, "admin.sock")
	return overSocket(socket, "the hub at "+socket,
		"start it with `kith hub`, or name its data folder with --data"), nil
}

// ask makes one request of the hub; with --json its answer is printed as it
// came, otherwise show says it for a person from out.
func (o *operator) ask(ctx context.Context, doing, method, path string, in, out any, show func()) error {
	hub, err := o.hub()
	if err != nil {
		return err
	}
	return o.app.ask(ctx, hub, doing, method, path, in, out, show)
}

// under is a path of the operator's API below a collection.
func under(parts ...string) string {
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return "/" + strings.Join(parts, "/")
}

// table prints rows of cells under headings, aligned.
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

// day shows a time to a person, in this computer's zone; never for none.
func day(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Local().Format("2006-01-02 15:04")
}

func yes(b bool, word string) string {
	if b {
		return word
	}
	return "-"
}

// signInLink is the answer to a request for a one-time link.
type signInLink struct {
	Member string `json:"member"`
	Link   string `json:"link"`
}

type memberRow struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Operator bool      `json:"operator"`
	Disabled bool      `json:"disabled"`
	Created  time.Time `json:"created"`
}

func (o *operator) members() *cobra.Command {
	var asOperator, withPassword bool
	create := &cobra.Command{
		Use: "create NAME", Short: "Add a member", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := struct {
				Name     string `json:"name"`
				Operator bool   `json:"operator"`
				Password string `json:"password,omitempty"`
			}{args[0], asOperator, ""}
			if withPassword {
				line, err := bufio.NewReader(io.LimitReader(o.in, 4<<10)).ReadString('\n')
				if in.Password = strings.TrimRight(line, "\r\n"); in.Password == "" {
					return fmt.Errorf("cannot read a password from standard input: %w", cmp.Or(err, io.ErrUnexpectedEOF))
				}
			}
			var made memberRow
			return o.ask(cmd.Context(), "add the member", http.MethodPost, "/members", in, &made, func() {
				o.say("member %s added\n", strong(made.Name))
			})
		},
	}
	create.Flags().BoolVar(&asOperator, "operator", false, "may run the hub's site as its operator")
	create.Flags().BoolVar(&withPassword, "password-stdin", false, "read the member's password, one line, from standard input")
	link := &cobra.Command{
		Use: "link NAME", Short: "Make a link that signs a member in on the site, once, within a day", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var made signInLink
			return o.ask(cmd.Context(), "make the link", http.MethodPost, under("members", args[0], "link"), nil, &made, func() {
				o.say("%s\n%s\n", strong(made.Link), faint("Give it to "+made.Member+" alone: whoever opens it is signed in as them, and can set a new password."))
			})
		},
	}
	list := &cobra.Command{
		Use: "list", Short: "List the members", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer []memberRow
			return o.ask(cmd.Context(), "list the members", http.MethodGet, "/members", nil, &answer, func() {
				var rows [][]string
				for _, m := range answer {
					rows = append(rows, []string{m.Name, yes(m.Operator, "operator"), yes(m.Disabled, "disabled"), day(m.Created), m.ID})
				}
				o.table("MEMBER ROLE STATE SINCE ID", rows)
			})
		},
	}
	disable := &cobra.Command{
		Use: "disable NAME", Short: "Refuse a member's keys and machines, within 5 s", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.ask(cmd.Context(), "disable the member", http.MethodPost, under("members", args[0], "disable"), nil, nil, func() {
				o.say("member %s disabled: its keys and machines are refused everywhere within 5 s\n", strong(args[0]))
			})
		},
	}
	return group("member", "Members of the hub", create, list, link, disable)
}

type keyRow struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Reach    string    `json:"reach"`
	Region   string    `json:"region"`
	LastFour string    `json:"last_four"`
	Created  time.Time `json:"created"`
	LastUsed time.Time `json:"last_used"`
	Revoked  time.Time `json:"revoked"`
}

// newKey asks for an API key; mintedKey is the answer, the only time the
// secret is told.
type newKey struct {
	Member string `json:"member"`
	Name   string `json:"name,omitempty"`
	Region string `json:"region,omitempty"`
	Reach  string `json:"reach,omitempty"`
}

type mintedKey struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
	Member string `json:"member"`
	Region string `json:"region"`
}

func (o *operator) keys() *cobra.Command {
	var in newKey
	create := &cobra.Command{
		Use: "create --member NAME", Short: "Make an API key and print its secret, this once", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var made mintedKey
			return o.ask(cmd.Context(), "make the key", http.MethodPost, "/keys", in, &made, func() {
				o.say("%s\n", strong(made.Secret))
				o.say("%s\n", faint("A key of "+made.Member+" in region "+made.Region+". It is shown this once; revoke it with `kith admin key revoke "+made.ID+"`."))
			})
		},
	}
	create.Flags().StringVar(&in.Member, "member", "", "whose key it is")
	create.Flags().StringVar(&in.Name, "name", "", "what the key is for")
	create.Flags().StringVar(&in.Region, "region", "", "the region it works in (default: this hub's)")
	create.Flags().StringVar(&in.Reach, "reach", "all", "what it reaches: all, shared (own and shared) or own")
	_ = create.MarkFlagRequired("member")

	var member string
	list := &cobra.Command{
		Use: "list --member NAME", Short: "List a member's keys", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer []keyRow
			path := "/keys?" + url.Values{"member": {member}}.Encode()
			return o.ask(cmd.Context(), "list the keys", http.MethodGet, path, nil, &answer, func() {
				o.keyTable(answer)
			})
		},
	}
	list.Flags().StringVar(&member, "member", "", "whose keys")
	_ = list.MarkFlagRequired("member")
	return group("key", "API keys", create, list, o.revoke("key", "keys", "it is refused everywhere within 5 s"))
}

// revoke is the command that ends a key or a machine by its id.
func (o *operator) revoke(what, collection, effect string) *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "End a " + what + ", within 5 s", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.ask(cmd.Context(), "revoke the "+what, http.MethodPost, under(collection, args[0], "revoke"), nil, nil, func() {
				o.say("%s %s revoked: %s\n", what, strong(args[0]), effect)
			})
		},
	}
}

type machineRow struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Owner    string    `json:"owner"`
	Online   bool      `json:"online"`
	LastSeen time.Time `json:"last_seen"`
	Revoked  time.Time `json:"revoked"`
}

// newMachine asks for a login token; machineToken is the answer.
type newMachine struct {
	Member string `json:"member"`
	Name   string `json:"name,omitempty"`
}

type machineToken struct {
	Token string `json:"token"`
}

func (o *operator) machines() *cobra.Command {
	var in newMachine
	token := &cobra.Command{
		Use: "token --member NAME", Short: "Make a single-use token for `kith login --token`", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var made machineToken
			return o.ask(cmd.Context(), "make the token", http.MethodPost, "/machines/token", in, &made, func() {
				o.say("%s\n", strong(made.Token))
				o.say("%s\n", faint("On the machine: kith login --hub ADDRESS --token TOKEN. It works once."))
			})
		},
	}
	token.Flags().StringVar(&in.Member, "member", "", "whose machine it will be")
	token.Flags().StringVar(&in.Name, "name", "", "the machine's name (default: what it calls itself)")
	_ = token.MarkFlagRequired("member")
	list := &cobra.Command{
		Use: "list", Short: "List the machines", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer []machineRow
			return o.ask(cmd.Context(), "list the machines", http.MethodGet, "/machines", nil, &answer, func() {
				var rows [][]string
				for _, m := range answer {
					state := "offline"
					switch {
					case !m.Revoked.IsZero():
						state = "revoked"
					case m.Online:
						state = "online"
					}
					rows = append(rows, []string{m.Name, m.Owner, state, day(m.LastSeen), m.ID})
				}
				o.table("MACHINE OWNER STATE SEEN ID", rows)
			})
		},
	}
	return group("machine", "Members' machines", token, list, o.revoke("machine", "machines", "its tunnel ends within 5 s"))
}

func (o *operator) shares() *cobra.Command {
	change := func(use, short, doing, method, done string) *cobra.Command {
		var owner, with string
		cmd := &cobra.Command{
			Use: use + " --owner A --with B", Short: short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				path, in := "/shares", any(map[string]string{"owner": owner, "with": with})
				if method == http.MethodDelete {
					path, in = "/shares?"+url.Values{"owner": {owner}, "with": {with}}.Encode(), nil
				}
				return o.ask(cmd.Context(), doing, method, path, in, nil, func() {
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
		change("add", "Let a member use another's machines", "add the share", http.MethodPost, "%s now shares with %s"),
		change("remove", "End a share, within 5 s", "end the share", http.MethodDelete, "%s no longer shares with %s"))
}

func (o *operator) groups() *cobra.Command {
	var kind, admin string
	create := &cobra.Command{
		Use: "create NAME --kind org|open --admin MEMBER", Short: "Make a group", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if kind != "org" && kind != "open" {
				return wrongUse("cannot make a group of kind %q; use --kind org (its admins run it) or --kind open (anyone can join)", kind)
			}
			in := map[string]string{"name": args[0], "kind": kind, "admin": admin}
			return o.ask(cmd.Context(), "make the group", http.MethodPost, "/groups", in, nil, func() {
				o.say("group %s made; %s is invited to be its admin, and is in it after accepting: on the site, or with `kith group accept`\n", strong(args[0]), strong(admin))
			})
		},
	}
	create.Flags().StringVar(&kind, "kind", "", "org (its admins run it) or open (anyone can join)")
	create.Flags().StringVar(&admin, "admin", "", "who is invited to be its first member and admin")
	_ = create.MarkFlagRequired("kind")
	_ = create.MarkFlagRequired("admin")
	add := &cobra.Command{
		Use: "add NAME MEMBER", Short: "Invite a member to an org", Args: cobra.ExactArgs(2),
		Long: "Invite a member to an org. The member is in it only after accepting, on the site or with `kith group accept`:\n" +
			"no operator puts anyone's machines within the reach of others. An open group is joined by its members.",
		Example: "  kith admin group add lab bob\n  kith group accept lab    # as bob",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := map[string]string{"member": args[1]}
			return o.ask(cmd.Context(), "invite to the group", http.MethodPost, under("groups", args[0], "invitations"), in, nil, func() {
				o.say("%s is invited to group %s, and is in it after accepting: on the site, or with `kith group accept`\n", strong(args[1]), strong(args[0]))
			})
		},
	}
	remove := &cobra.Command{
		Use: "remove NAME MEMBER", Short: "Take a member out of a group, within 5 s, or withdraw an invitation", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := under("groups", args[0], "members", args[1])
			return o.ask(cmd.Context(), "take out of the group", http.MethodDelete, path, nil, nil, func() {
				o.say("%s is neither in group %s nor invited to it\n", strong(args[1]), strong(args[0]))
			})
		},
	}
	return group("group", "Groups of members who reach each other's machines", create, add, remove)
}
