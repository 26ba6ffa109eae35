package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/daemon"
)

func (a *app) login() *cobra.Command {
	var hub, token string
	cmd := &cobra.Command{
		Use: "login --token TOKEN [--hub URL]", Short: "Sign this machine in to a hub", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if token == "" {
				return wrongUse("cannot sign in through the browser yet; ask the hub's operator for a token (`kith admin machine token --member NAME`) and run `kith login --hub URL --token TOKEN`")
			}
			if token == "-" {
				text, err := io.ReadAll(io.LimitReader(a.in, 4<<10))
				if err != nil {
					return fmt.Errorf("cannot read the token from standard input: %w", err)
				}
				token = strings.TrimSpace(string(text))
			}
			config, err := loadDaemonFile(a.home, "")
			if err != nil {
				return err
			}
			named := cmp.Or(hub, os.Getenv("KITH_HUB"), config.Hub.URL.Text)
			if named == "" {
				return wrongUse("cannot tell which hub to sign in to; name it with --hub URL, KITH_HUB, or [hub] url in config.toml")
			}
			address, err := hubAddress(named)
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

// signIn redeems the token, keeps the credential in data, and tells a daemon
// that runs there.
func (a *app) signIn(ctx context.Context, data, address, token string) error {
	saved, err := redeem(ctx, toHub(address, ""), token)
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
