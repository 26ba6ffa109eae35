package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/fleet"
)

// listing is the part of GET /v1/models that kith shows.
type listing struct {
	Data []listed `json:"data"`
}

// listed is a model in a listing.
type listed struct {
	ID            string   `json:"id"`
	ContextLength int      `json:"context_length"`
	Capabilities  []string `json:"capabilities"`
	Availability  string   `json:"availability"`
	Via           string   `json:"via"`
	Machines      int      `json:"machines"`
}

// isReady reports whether a call to the model would start now. Surfaces without remote
// machines do not report an availability.
func (l *listed) isReady() bool { return l.Availability == "" || l.Availability == "ready" }

// takesCalls reports whether a call to the model would start now or wait.
func (l *listed) takesCalls() bool { return l.isReady() || l.Availability == "busy" }

// others returns how many kinds of calls other than chat the model is known to serve.
func (l *listed) others() (n int) {
	for _, kind := range [...]string{"embeddings", "transcription"} {
		if slices.Contains(l.Capabilities, kind) {
			n++
		}
	}
	return n
}

// tools returns how the model calls tools: yes, in its own form; default; no; or - if that
// is not known.
func (l *listed) tools() string {
	for _, is := range [...]struct{ capability, text string }{{"default_tools", "default"}, {"no_tools", "no"}, {"tools", "yes"}} {
		if slices.Contains(l.Capabilities, is.capability) {
			return is.text
		}
	}
	return "-"
}

// list returns the models of a surface.
func (c *client) list(ctx context.Context) ([]listed, error) {
	var l listing
	_, err := c.call(ctx, "list the models", request{http.MethodGet, "/v1/models", nil}, &l)
	return l.Data, err
}

// toDaemon returns a client for this machine's daemon: over its socket or, if no process
// serves that, at its configured address. The latter may be a `kith dev` with its data in
// another folder.
func (a *app) toDaemon() (*client, error) {
	config, err := loadLocalFile(a.home)
	if err != nil {
		return nil, err
	}
	socket, listen := filepath.Join(config.Daemon.Data, "daemon.sock"), config.Daemon.Listen.Text
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if conn, err := daemon.DialSocket(ctx, socket); err == nil {
			return conn, nil
		}
		return new(net.Dialer).DialContext(ctx, "tcp", listen)
	}
	return &client{
		base: "http://" + listen, who: "this machine's daemon", unreachable: "start it with `kith serve`",
		http: &http.Client{Transport: &http.Transport{DialContext: dial}},
	}, nil
}

// signedIn returns this machine's configuration and credential, unless it has none or
// KITH_HUB names another hub.
func (a *app) signedIn() (config *daemonFile, saved daemon.Credential, ok bool) {
	config, saved, err := a.credential()
	if err != nil {
		return nil, saved, false
	}
	named := os.Getenv("KITH_HUB")
	if named != "" {
		named, err = hubAddress(named)
	}
	return config, saved, err == nil && (named == "" || named == saved.Hub)
}

// toModels returns a client for calls of models, and whether it is for this machine's
// daemon: that is used if it is running and signed in, since it seals the calls, or if there
// is no API key.
func (a *app) toModels() (surface *client, local bool, err error) {
	if config, _, ok := a.signedIn(); !a.mustSeal() && (!ok || !daemonRuns(config.Daemon.Data)) {
		if surface, ok, err = a.byKey(); ok || err != nil {
			return surface, false, err
		}
	}
	surface, err = a.toDaemon()
	return surface, true, err
}

// mustSeal reports whether this machine's configuration requires sealed calls, which go by
// its daemon alone.
func (a *app) mustSeal() bool {
	config, err := loadLocalFile(a.home)
	return err == nil && config.Privacy.Sealed.Text == string(sealed.Require)
}

// toAccount returns a client for the hub, as the member. If KITH_HUB is set it uses
// KITH_API_KEY. Otherwise it prefers this machine's credential, because the key in a
// program's environment is for inference, and then the key. If there is neither, the
// error is that of a member who is not signed in.
func (a *app) toAccount() (*client, error) {
	_, saved, err := a.credential()
	signedIn := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	named := os.Getenv("KITH_HUB")
	if named != "" {
		if named, err = hubAddress(named); err != nil {
			return nil, err
		}
	}
	if byKey := named != "" && os.Getenv("KITH_API_KEY") != ""; !byKey && signedIn && (named == "" || named == saved.Hub) {
		return asMachine(saved), nil
	}
	hub, found, err := a.byKey()
	switch {
	case found, err != nil:
		return hub, err
	case signedIn:
		return nil, notSignedIn("cannot use your account at %s, which KITH_HUB names: this machine is signed in to %s; set KITH_API_KEY to a key of that hub that may manage the account, or unset KITH_HUB", named, saved.Hub)
	}
	return nil, notSignedIn("cannot use your account: this machine is not signed in; run `kith login --hub URL`, or set KITH_HUB and KITH_API_KEY")
}

// byKey returns a client with KITH_API_KEY, if that is set, for the hub in KITH_HUB, that
// of this machine's sign-in or that in config.toml, in this order.
func (a *app) byKey() (hub *client, found bool, err error) {
	key := os.Getenv("KITH_API_KEY")
	if key == "" {
		return nil, false, nil
	}
	named := os.Getenv("KITH_HUB")
	if named == "" {
		config, saved, err := a.credential()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, false, err
		}
		named = cmp.Or(saved.Hub, config.Hub.URL.Text)
	}
	if named == "" {
		return nil, false, wrongUse("cannot determine which hub KITH_API_KEY is for: set KITH_HUB, or [hub] url in config.toml")
	}
	address, err := hubAddress(named)
	if err != nil {
		return nil, false, err
	}
	return toHub(address, key), true, nil
}

// credential reads this machine's configuration and credential. The error is
// fs.ErrNotExist if the machine is not signed in.
func (a *app) credential() (*daemonFile, daemon.Credential, error) {
	config, err := loadLocalFile(a.home)
	if err != nil {
		return nil, daemon.Credential{}, err
	}
	saved, err := daemon.LoadCredential(config.Daemon.Data)
	return config, saved, err
}

func (a *app) models() *cobra.Command {
	var account bool
	var on string
	cmd := command("kith models", func(ctx context.Context, _ []string) error {
		if on != "" {
			return a.listFilesOn(ctx, on)
		}
		from, path := a.toDaemon, "/v1/models"
		if account {
			from, path = a.toAccount, api.ListModels.With(api.None{}).Path
		}
		surface, err := from()
		if err != nil {
			return err
		}
		var list listing
		text, err := surface.call(ctx, "list the models", request{http.MethodGet, path, nil}, &list)
		if err != nil {
			return err
		}
		if a.json {
			return a.writeJSON(text)
		}
		a.showModels(list, account)
		if !account {
			a.showOwnPulls(ctx)
		}
		if len(list.Data) == 0 && !account {
			_, _ = fmt.Fprintln(a.err, "`kith pull` lists models that fit this machine") // only a hint
		}
		return nil
	})
	cmd.Flags().BoolVar(&account, "account", false, "what your account can reach through its hub")
	a.onFlag(cmd, &on)
	cmd.MarkFlagsMutuallyExclusive("account", "on")
	return withCommands(cmd, a.removeModel(), a.orderModel("load", fleet.ActLoad), a.orderModel("unload", fleet.ActUnload))
}

func (a *app) showModels(list listing, account bool) {
	var rows [][]string
	for _, m := range list.Data {
		row := []string{m.ID, number(m.ContextLength), m.tools()}
		if account {
			row = append(row, strings.ReplaceAll(m.Availability, "_", " "), number(m.Machines), m.Via)
		}
		rows = append(rows, row)
	}
	headings := "MODEL CONTEXT TOOLS"
	if account {
		headings += " AVAILABILITY MACHINES ACCESS"
	}
	a.table(headings, rows)
}
