package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/daemon"
)

func (a *app) login() *cobra.Command {
	var hub, token string
	cmd := &cobra.Command{
		Use: "login [--hub URL] [--token TOKEN]", Short: "Sign this machine in to a hub", Args: cobra.NoArgs,
		Long: "Sign this machine in to a hub: it prints a code and an address, and waits until you approve it in the\n" +
			"browser there. Where there is no browser, --token takes a token from the hub's operator.",
		RunE: func(cmd *cobra.Command, _ []string) error {
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
			config, err := loadDaemonFile(a.home, "")
			if err != nil {
				return err
			}
			return a.signIn(cmd.Context(), config.Daemon.Data, address, token)
		},
	}
	cmd.Flags().StringVar(&hub, "hub", "", "the hub's address")
	cmd.Flags().StringVar(&token, "token", "", "a single-use token from the hub's operator; - reads it from standard input")
	return cmd
}

// signIn becomes a machine of the hub, by the token or else by approval in the
// browser, keeps the credential in data, and tells a daemon that runs there.
func (a *app) signIn(ctx context.Context, data, address, token string) error {
	become := a.askToJoin
	if token != "" {
		become = func(ctx context.Context, hub *client) (daemon.Credential, error) { return redeem(ctx, hub, token) }
	}
	saved, err := become(ctx, toHub(address, ""))
	if err != nil {
		return err
	}
	if err := daemon.SaveCredential(data, saved); err != nil {
		return err
	}
	next := "its daemon connects now"
	if _, err := control(data).call(ctx, "tell the daemon of the sign-in", http.MethodPost, "/signin", nil, nil); err != nil {
		if _, off := errors.AsType[unreachable](err); !off {
			return err
		}
		next = "start its daemon with `kith serve`"
	}
	if a.json {
		return a.printJSON(struct {
			Hub     string `json:"hub"`
			Machine string `json:"machine"`
			Member  string `json:"member"`
			Region  string `json:"region"`
		}{saved.Hub, saved.Machine, saved.Member, saved.Region})
	}
	a.say("signed in to %s as a machine of %s; %s\n", saved.Hub, strong(saved.Member), next)
	return nil
}

// askToJoin waits for a member to approve this computer as a machine.
func (a *app) askToJoin(ctx context.Context, hub *client) (daemon.Credential, error) {
	made, err := a.approved(ctx, hub, "sign in", url.Values{"scope": {"machine"}, "name": {hostName()}})
	return daemon.Credential{Hub: hub.base, Secret: made.Secret, Machine: made.ID, Member: made.Member, Region: made.Region}, err
}

// signedInTo is the hub of the credential in data; empty: there is none.
func signedInTo(data string) string {
	saved, err := daemon.LoadCredential(data)
	if err != nil {
		return ""
	}
	return saved.Hub
}

// redeem turns a login token into a machine, called as this computer is, and
// its credential.
func redeem(ctx context.Context, hub *client, token string) (daemon.Credential, error) {
	var made daemon.Credential
	in := map[string]string{"token": token, "name": hostName()}
	if _, err := hub.call(ctx, "sign in", http.MethodPost, "/login", in, &made); err != nil {
		return daemon.Credential{}, err
	}
	made.Hub = hub.base
	return made, nil
}
