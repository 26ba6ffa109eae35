package cli

import (
	"cmp"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
)

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
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return granted{}, ctx.Err()
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
	create := command("kith keys create", func(ctx context.Context, _ []string) error {
		address, err := a.hubToAsk(hub)
		if err != nil {
			return err
		}
		form := url.Values{"scope": {"key"}, "name": {cmp.Or(name, "kith keys")}, "reach": {reach}, "region": {region}, "expires": {expires}, "manage": {strconv.FormatBool(manage)}}
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
	create.Flags().StringVar(&hub, "hub", "", "the hub's address (default: the one this machine is signed in to)")
	list := command("kith keys list", func(ctx context.Context, _ []string) error {
		return ask(ctx, a.account(), "list the keys", api.ListKeys.With(api.None{}), func(l api.List[api.Key]) { a.keyTable(l.Data) })
	})
	revoke := command("kith keys revoke", func(ctx context.Context, args []string) error {
		return ask(ctx, a.account(), "revoke the key", api.RevokeKey.With(api.KeyID{Key: args[0]}), func(api.Revoked) {
			a.say("key %s revoked: it is refused everywhere within 5 s\n", strong(args[0]))
		})
	})
	return group("kith keys", create, list, revoke)
}

func (a *app) keyTable(keys []api.Key) {
	scope := map[bool]string{false: "inference", true: "manage"}
	a.table("KEY NAME SECRET REGION REACH SCOPE STATE EXPIRES USED CALLS-30D BASE-URL", convert(keys, func(k api.Key) []string {
		return []string{
			k.ID, k.Name, "…" + k.LastFour, k.Region, string(k.Reach), scope[k.Manage], k.State, moment(k.Expires), moment(k.LastUsed),
			short(k.Calls), k.BaseURL,
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
		return ask(ctx, o.socket(), "list what waits", api.OperatorListDevices.With(api.None{}), func(waiting []api.Device) {
			o.table("CODE FOR NAME FROM SINCE PROGRAM", convert(waiting, func(g api.Device) []string {
				return []string{g.Code, g.Kind, g.Name, g.Address, moment(g.Created), g.Client}
			}))
		})
	})
	var member string
	approve := command("kith admin device approve", func(ctx context.Context, args []string) error {
		in := api.DeviceApproval{Code: args[0], Member: member}
		return ask(ctx, o.socket(), "approve it", api.OperatorApproveDevice.With(in), func(api.Device) {
			o.say("approved in the name of %s\n", strong(member))
		})
	})
	approve.Flags().StringVar(&member, "member", "", "in whose name")
	requiring(approve, "member")
	return group("kith admin device", list, approve)
}
