package cli

import (
	"cmp"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
)

func (a *app) login() *cobra.Command {
	var hub, token string
	cmd := command("kith login", func(ctx context.Context, _ []string) error {
		if token == "-" {
			text, err := io.ReadAll(io.LimitReader(a.in, 4<<10))
			if err != nil {
				return fmt.Errorf("cannot read the token from standard input: %w", err)
			}
			token = strings.TrimSpace(string(text))
		}
		address, err := a.hubToAsk(hub)
		if err != nil {
			return err
		}
		config, err := loadLocalFile(a.home)
		if err != nil {
			return err
		}
		return a.signIn(ctx, config.Daemon.Data, address, token)
	})
	cmd.Flags().StringVar(&hub, "hub", "", "the hub's address")
	cmd.Flags().StringVar(&token, "token", "", "a single-use token from the hub's operator; - reads it from standard input")
	return cmd
}

// signIn registers this computer as a machine at the hub, with the token or by approval
// in the browser. It saves the credential in data and notifies a running daemon.
func (a *app) signIn(ctx context.Context, data, address, token string) error {
	become := a.askToJoin
	if token != "" {
		become = func(ctx context.Context, hub *client) (daemon.Credential, error) { return redeem(ctx, hub, token) }
	}
	saved, err := become(ctx, toHub(address, ""))
	if err != nil {
		return err
	}
	before, _ := daemon.LoadCredential(data) // if it cannot be read, there is nothing to revoke
	if err := daemon.SaveCredential(data, saved); err != nil {
		return err
	}
	next := "its daemon connects now"
	runs, err := readAgain(ctx, data)
	if err != nil {
		return err
	}
	if !runs {
		next = "start its daemon with `kith serve`"
	}
	out := struct {
		Hub     string `json:"hub"`
		Machine string `json:"machine"`
		Member  string `json:"member"`
		Region  string `json:"region"`
		// Before is this computer's machine from the previous sign-in. It was revoked,
		// unless Trouble is set.
		Before  string `json:"before,omitzero"`
		Trouble string `json:"trouble,omitzero"`
	}{Hub: saved.Hub, Machine: saved.Machine, Member: saved.Member, Region: saved.Region}
	if before.Secret != "" && before.Machine != saved.Machine {
		out.Before = before.Machine
		if err := revoke(ctx, before); err != nil {
			out.Trouble = oneLine(err.Error())
		}
	}
	return a.print(out, func() {
		a.say("signed in to %s as a machine of %s; %s\n", saved.Hub, strong(saved.Member), next)
		switch {
		case out.Trouble != "":
			a.say("the machine of the sign-in before is still valid at %s: %s. Revoke it there: %s\n", before.Hub, out.Trouble, before.Machine)
		case out.Before != "":
			a.say("the machine of %s of the sign-in before is revoked at %s\n", before.Member, before.Hub)
		}
	})
}

// askToJoin waits until a member approves this computer as a machine.
func (a *app) askToJoin(ctx context.Context, hub *client) (daemon.Credential, error) {
	made, err := a.approved(ctx, hub, "sign in", url.Values{"scope": {"machine"}, "name": {hostName()}})
	return daemon.Credential{Hub: hub.base, Secret: made.Secret, Machine: made.ID, Member: made.Member, Region: made.Region}, err
}

// readAgain makes a running daemon read the credential again.
func readAgain(ctx context.Context, data string) (runs bool, err error) {
	_, err = control(data).call(ctx, "notify the daemon", request{http.MethodPost, "/signin", nil}, nil)
	if _, off := errors.AsType[unreachable](err); off {
		return false, nil
	}
	return err == nil, err
}

// redeem redeems a login token for a machine with this computer's name, and returns its
// credential.
func redeem(ctx context.Context, hub *client, token string) (daemon.Credential, error) {
	var made daemon.Credential
	in := map[string]string{"token": token, "name": hostName()}
	if _, err := hub.call(ctx, "sign in", request{http.MethodPost, "/login", in}, &made); err != nil {
		return daemon.Credential{}, err
	}
	made.Hub = hub.base
	return made, nil
}

// revokeTimeout is how long a hub may take to revoke a credential before this machine
// removes it anyway.
const revokeTimeout = 15 * time.Second

func (a *app) logout() *cobra.Command {
	return command("kith logout", func(ctx context.Context, _ []string) error {
		config, err := loadLocalFile(a.home)
		if err != nil {
			return err
		}
		return a.signOut(ctx, config.Daemon.Data)
	})
}

// signOut revokes the credential in data at its hub, if the hub responds, and removes it
// in any case.
func (a *app) signOut(ctx context.Context, data string) error {
	saved, err := daemon.LoadCredential(data)
	if errors.Is(err, fs.ErrNotExist) {
		return notSignedIn("cannot sign out: this machine is not signed in; there is no credential here")
	}
	if err != nil {
		return err
	}
	trouble := revoke(ctx, saved)
	if err := daemon.RemoveCredential(data); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the credential: %w", err)
	}
	if _, err := readAgain(ctx, data); err != nil {
		return err
	}
	out := struct {
		Hub     string `json:"hub"`
		Machine string `json:"machine"`
		Revoked bool   `json:"revoked"` // at the hub
		Trouble string `json:"trouble,omitzero"`
	}{Hub: saved.Hub, Machine: saved.Machine, Revoked: trouble == nil}
	if trouble != nil {
		out.Trouble = oneLine(trouble.Error())
	}
	return a.print(out, func() {
		if out.Revoked {
			a.say("signed out of %s: the credential of this machine is revoked there and removed here\n", saved.Hub)
			return
		}
		a.say("the credential of this machine is removed here\n")
		a.say("%s still knows it: %s. Have its operator run `kith admin machine revoke %s`, or send it DELETE /api/machines/%s with an API key of yours.\n",
			saved.Hub, out.Trouble, saved.Machine, saved.Machine)
	})
}

// revoke revokes a credential at its hub. A credential that is no longer valid counts as
// revoked.
func revoke(ctx context.Context, c daemon.Credential) error {
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	_, _, err := fetch(ctx, toHub(c.Hub, c.Secret), "revoke the credential", api.RevokeMachine.With(api.MachineID{Machine: c.Machine}))
	if refused := (*refusal)(nil); errors.As(err, &refused) && refused.code == "invalid_api_key" {
		return nil
	}
	return err
}

// deviceCode is a request waiting for a member's approval in the browser (RFC 8628), as
// returned by the hub.
type deviceCode struct {
	DeviceCode string `json:"device_code"`
	UserCode   string `json:"user_code"`
	Address    string `json:"verification_uri"`
	ExpiresIn  int    `json:"expires_in"` // seconds
	Interval   int    `json:"interval"`   // seconds
}

// granted is what was approved. Secret is only returned once.
type granted struct {
	Secret string `json:"access_token"`
	ID     string `json:"id"`
	Name   string `json:"name"`
	Member string `json:"member"`
	Region string `json:"region"`
	// BaseURL is the base URL of the key's region.
	BaseURL string `json:"base_url"`
}

// grantRefusal is an error in the format of RFC 6749, section 5.2.
type grantRefusal struct {
	Code string `json:"error"`
	Text string `json:"error_description"`
}

// approved makes the request described by form, prints the code and the address for
// approving it, and waits until a member has decided or ctx ends.
func (a *app) approved(ctx context.Context, hub *client, doing string, form url.Values) (granted, error) {
	form.Set("client_id", "kith")
	var ask deviceCode
	if refused, err := hub.postForm(ctx, "/device/code", form, &ask); err != nil || refused != nil {
		return granted{}, wordsOf(doing, refused, err)
	}
	// To standard error, so that the result can be piped.
	fmt.Fprintf(a.err, "Open   %s\nType   %s\nwithin %d min, signed in as yourself. Waiting …\n", ask.Address, ask.UserCode, ask.ExpiresIn/60)
	poll := url.Values{"client_id": {"kith"}, "grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {ask.DeviceCode}}
	every := time.Duration(max(1, ask.Interval)) * time.Second
	for {
		if err := wait(ctx, every); err != nil {
			return granted{}, err
		}
		var got granted
		refused, err := hub.postForm(ctx, "/device/token", poll, &got)
		switch {
		case err == nil && refused == nil:
			return got, nil
		case refused != nil && refused.Code == "authorization_pending", refused != nil && refused.Code == "temporarily_unavailable":
		case refused != nil && refused.Code == "slow_down":
			every += 5 * time.Second // RFC 8628, section 3.5
		case errors.As(err, new(unreachable)): // the hub may be restarting
		default:
			return granted{}, wordsOf(doing, refused, err)
		}
	}
}

func wordsOf(doing string, refused *grantRefusal, err error) error {
	if refused == nil {
		return callFailure(doing, err)
	}
	switch refused.Code {
	case "access_denied":
		return fmt.Errorf("cannot %s: it was denied in the browser", doing)
	case "expired_token":
		return fmt.Errorf("cannot %s: it was not approved in time; run the command again", doing)
	}
	return fmt.Errorf("cannot %s: %s", doing, refused.Text)
}

// postForm posts a form and decodes the response into out. It returns refusals in the
// format of RFC 6749 separately from other errors.
func (c *client) postForm(ctx context.Context, path string, form url.Values, out any) (*grantRefusal, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, fmt.Errorf("cannot address %s: %w", c.who, err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("User-Agent", "kith/"+Version+" ("+runtime.GOOS+"; "+runtime.GOARCH+")")
	res, err := c.do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, unreachable{fmt.Errorf("cannot read the answer of %s: %w", c.who, err)}
	}
	if res.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, out); err != nil {
			return nil, fmt.Errorf("cannot understand the answer of %s: %w", c.who, err)
		}
		return nil, nil
	}
	var refused grantRefusal
	if json.Unmarshal(text, &refused) == nil && refused.Code != "" {
		return &refused, nil
	}
	return nil, refusalIn(res.StatusCode, text)
}

// keys is `kith keys`: the account's API keys.
func (a *app) keys() *cobra.Command {
	var name, reach, region, expires, hub string
	var manage bool
	var perDay int
	create := command("kith keys create", func(ctx context.Context, _ []string) error {
		address, err := a.hubToAsk(hub)
		if err != nil {
			return err
		}
		form := url.Values{"scope": {"key"}, "name": {cmp.Or(name, "kith keys")}, "reach": {reach}, "region": {region}, "expires": {expires}, "manage": {strconv.FormatBool(manage)}, "per_day": {strconv.Itoa(perDay)}}
		made, err := a.approved(ctx, toHub(address, ""), "create the key", form)
		if err != nil {
			return err
		}
		return a.print(struct {
			ID      string `json:"id"`
			Secret  string `json:"secret"`
			Member  string `json:"member"`
			Region  string `json:"region"`
			BaseURL string `json:"base_url,omitempty"`
		}{made.ID, made.Secret, made.Member, made.Region, made.BaseURL}, func() {
			a.say("%s\n", made.Secret)
			fmt.Fprintf(a.err, "A key of %s in region %s, base URL %s. It is shown this once; revoke it with `kith keys revoke %s`.\n",
				made.Member, made.Region, cmp.Or(made.BaseURL, address+"/v1"), made.ID)
		})
	})
	create.Flags().StringVar(&name, "name", "", "what the key is for (default \"kith keys\")")
	create.Flags().StringVar(&reach, "reach", "all", "what it reaches: all, shared (own and shared) or own")
	create.Flags().BoolVar(&manage, "manage", false, "let it manage the account, beside inference: shares, groups, machines, keys")
	create.Flags().StringVar(&region, "region", "", "the region whose machines it reaches (default: that of the hub)")
	create.Flags().StringVar(&expires, "expires", "", "when it ends: after a time like 90d or 12h, or at a time like 2027-01-31T18:00:00Z (default: never)")
	create.Flags().IntVar(&perDay, "per-day", 0, "maximum calls per day (UTC); 0 is no limit")
	create.Flags().StringVar(&hub, "hub", "", "the hub's address (default: the one this machine is signed in to)")
	list := command("kith keys list", func(ctx context.Context, _ []string) error {
		return ask(ctx, a.account("list the keys"), api.ListKeys.With(api.None{}), func(l api.List[api.Key]) { a.keyTable(l.Data) })
	})
	var calls string
	limit := command("kith keys limit", func(ctx context.Context, args []string) error {
		in := api.KeyLimit{Key: args[0], PerDay: api.End[int]()}
		if calls != noLimit {
			n, err := strconv.Atoi(calls)
			if err != nil || n < 0 {
				return wrongUse("cannot limit to --per-day %.20q; give a number from 1, or none for no limit; to let the key make no call, use `kith keys revoke`", calls)
			}
			in.PerDay = api.Give(n)
		}
		return ask(ctx, a.account("limit the key"), api.LimitKey.With(in), func(k api.Key) {
			if k.PerDay == 0 {
				a.say("key %s has no limit of calls a day\n", strong(k.ID))
				return
			}
			a.say("key %s is limited by the day (UTC): %s calls are used today\n", strong(k.ID), today(k))
		})
	})
	limit.Flags().StringVar(&calls, "per-day", "", `maximum calls per day (UTC); "none" removes the limit`)
	requiring(limit, "per-day")
	revoke := command("kith keys revoke", func(ctx context.Context, args []string) error {
		return confirm(ctx, a.account("revoke the key"), api.RevokeKey.With(api.KeyID{Key: args[0]}),
			"key %s revoked: it is refused everywhere within 5 s", strong(args[0]))
	})
	return group("kith keys", create, list, limit, revoke)
}

// today returns how many calls of the day a key has used, and of how many: "3 of 100".
func today(k api.Key) string {
	if k.PerDay == 0 {
		return api.Number(k.Today)
	}
	return api.Number(k.Today) + " of " + api.Number(k.PerDay)
}

func (a *app) keyTable(keys []api.Key) {
	scope := map[bool]string{false: "inference", true: "manage"}
	headings := "[KEY] NAME SECRET REGION REACH SCOPE STATE EXPIRES USED TODAY CALLS-30D BASE-URL"
	if !slices.ContainsFunc(keys, func(k api.Key) bool { return k.Region != keys[0].Region }) {
		headings = strings.NewReplacer("REGION", "(REGION)", "BASE-URL", "(BASE-URL)").Replace(headings)
	}
	if !slices.ContainsFunc(keys, func(k api.Key) bool { return k.Manage }) {
		headings = strings.Replace(headings, "SCOPE", "(SCOPE)", 1)
	}
	a.table(headings, convert(keys, func(k api.Key) []string {
		return []string{
			k.ID, k.Name, "…" + k.LastFour, k.Region, string(k.Reach), scope[k.Manage], k.State, moment(k.Expires), moment(k.LastUsed),
			today(k), short(k.Calls), k.BaseURL,
		}
	}))
}

// hubToAsk returns the hub's address from the flag, the environment, the configuration or
// this machine's credential, in this order.
func (a *app) hubToAsk(flag string) (string, error) {
	config, err := loadLocalFile(a.home)
	if err != nil {
		return "", err
	}
	saved, _ := daemon.LoadCredential(config.Daemon.Data) // without one the machine is not signed in
	named := cmp.Or(flag, os.Getenv("KITH_HUB"), config.Hub.URL.Text, saved.Hub)
	if named == "" {
		return "", wrongUse("cannot determine the hub; name it with --hub URL, KITH_HUB, or [hub] url in config.toml")
	}
	return hubAddress(named)
}

// devices is `kith admin device`: the requests waiting for approval.
func (o *operator) devices() *cobra.Command {
	list := command("kith admin device list", func(ctx context.Context, _ []string) error {
		return ask(ctx, o.socket("list what waits"), api.OperatorListDevices.With(api.None{}), func(waiting []api.Device) {
			o.table("CODE FOR NAME FROM SINCE PROGRAM", convert(waiting, func(g api.Device) []string {
				return []string{g.Code, g.Kind, g.Name, g.Address, moment(g.Created), g.Client}
			}))
		})
	})
	var member string
	approve := command("kith admin device approve", func(ctx context.Context, args []string) error {
		in := api.DeviceApproval{Code: args[0], Member: member}
		return confirm(ctx, o.socket("approve it"), api.OperatorApproveDevice.With(in),
			"approved in the name of %s", strong(member))
	})
	approve.Flags().StringVar(&member, "member", "", "in whose name")
	requiring(approve, "member")
	return group("kith admin device", list, approve)
}
