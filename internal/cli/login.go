package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
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
			a.say("the machine of the sign-in before, %s of %s, is revoked at %s\n", before.Machine, before.Member, before.Hub)
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
