package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/llama"
)

const (
	devMember = "you"      // who owns everything in `kith dev`
	devKey    = "kith dev" // what its key is called; the one before is revoked by it
	lineUp    = "acked"    // the daemon's line is routable (tunnel.Acked)
	// devReady is how long the network may take to be able to serve.
	devReady = 2 * time.Minute
)

// devFlags are what `kith dev` is told.
type devFlags struct{ data, listen, local string }

// network is what `kith dev --json` prints, and people read in another shape.
type network struct {
	Hub          string   `json:"hub"`
	MessagesBase string   `json:"messages_base"`
	Local        string   `json:"local"`
	Site         string   `json:"site"`
	APIKey       string   `json:"api_key"`
	Models       []string `json:"models"`
	// SignIn is a link to the site that signs the member in, once.
	SignIn string `json:"sign_in"`
}

func (a *app) dev() *cobra.Command {
	var flags devFlags
	cmd := &cobra.Command{
		Use: "dev", Short: "Run a whole network on this machine: hub, member, key, daemon and a small model", Args: cobra.NoArgs,
		Long: "Run a whole network in one process, on loopback: a hub, a member, an API key, and this machine's\n" +
			"daemon with the built-in engine and its small model. It prints what to paste and serves until interrupted.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.data == "" {
				flags.data = filepath.Join(a.home, "dev")
			}
			return a.runDev(cmd.Context(), flags)
		},
	}
	cmd.Flags().StringVar(&flags.data, "data", "", "where everything is kept (default: dev in KITH_HOME)")
	cmd.Flags().StringVar(&flags.listen, "listen", defaultHub, "the hub's address, on loopback")
	cmd.Flags().StringVar(&flags.local, "local", defaultLocal, "the daemon's local address, on loopback")
	return cmd
}

// runDev brings the network up, says where it is once a call would be served,
// and serves until ctx ends.
func (a *app) runDev(ctx context.Context, flags devFlags) error {
	hubConfig, daemonConfig, err := devConfig(flags)
	if err != nil {
		return err
	}
	log, closeLog, err := devLog(flags.data)
	if err != nil {
		return err
	}
	defer closeLog()
	a.progress("starting the hub")
	p, err := openHub(ctx, hubConfig, log)
	if err != nil {
		return err
	}
	defer p.close()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.run(ctx) })
	group.Go(func() error {
		key, err := a.settle(ctx, p.base, flags.data)
		if err != nil {
			return err
		}
		a.progress("starting the engine and the daemon")
		m := &machine{config: daemonConfig, flag: "--local", log: log}
		if llama.Available() == nil {
			small, err := llama.Tiny(filepath.Join(flags.data, "models"))
			if err != nil {
				return err
			}
			m.files = []llama.ModelFile{small}
		}
		m.ready = func(d *daemon.Daemon) error {
			a.progress("connecting the daemon to the hub")
			models, err := awaitModels(ctx, d, toHub(p.base, key.Secret), len(m.files) > 0)
			if err != nil {
				return err
			}
			link, err := newSignIn(ctx, flags.data)
			if err != nil {
				return err
			}
			a.progress("")
			return a.announce(network{
				Hub: p.base + "/v1", MessagesBase: p.base, Local: d.Status().Local, Site: p.base,
				APIKey: key.Secret, Models: models, SignIn: link,
			}, flags.data)
		}
		return m.run(ctx)
	})
	err = group.Wait()
	a.progress("")
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// devConfig is the configuration of both halves: the defaults, on loopback, all
// in one folder.
func devConfig(flags devFlags) (*hubFile, *daemonFile, error) {
	var listen, local loopback
	if listen.UnmarshalText([]byte(flags.listen)) != nil {
		return nil, nil, wrongUse("cannot use --listen %s: it takes %s; this network is for this machine alone, and `kith hub` runs one for others", flags.listen, listen.takes())
	}
	if err := local.UnmarshalText([]byte(flags.local)); err != nil {
		return nil, nil, wrongUse("cannot use --local %s: it %w", flags.local, err)
	}
	h, d := defaultHubFile(flags.data), defaultDaemonFile(flags.data)
	h.Hub.Listen, h.Hub.Data = listen.address, flags.data
	d.Daemon.Listen = local
	d.Share.Timezone.Text = localZone()
	return h, d, nil
}

// devLog keeps what both halves log beside the data, out of the way of the few
// lines a newcomer reads.
func devLog(data string) (*slog.Logger, func(), error) {
	folder := filepath.Join(data, "log")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, nil, fmt.Errorf("cannot make the data folder: %w; choose another with --data", err)
	}
	file, err := os.OpenFile(filepath.Join(folder, "dev.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot write the log: %w", err)
	}
	return logTo(file, slog.LevelInfo), func() { _ = file.Close() }, nil
}

// settle makes sure of the member, mints the key anew and signs this machine in
// if it is not yet, all as an operator and a member would: over the hub's own
// socket and address.
func (a *app) settle(ctx context.Context, base, data string) (api.OperatorKey, error) {
	operator := devOperator(data)
	members, _, err := fetch(ctx, operator, "look for the member", api.OperatorListMembers.With(api.None{}))
	if err != nil {
		return api.OperatorKey{}, err
	}
	found := false
	for _, m := range members {
		found = found || m.Name == devMember
	}
	if !found {
		if _, _, err := fetch(ctx, operator, "make the member", api.OperatorCreateMember.With(api.NewMember{Name: devMember, Operator: true})); err != nil {
			return api.OperatorKey{}, err
		}
	}
	key, err := mintAnew(ctx, operator)
	if err != nil {
		return api.OperatorKey{}, err
	}
	return key, signInOnce(ctx, operator, base, data)
}

// devOperator is the operator of the hub that this process runs.
func devOperator(data string) *client {
	return overSocket(filepath.Join(data, "admin.sock"), "the hub just started", "see "+filepath.Join(data, "log"))
}

// newSignIn makes the link that signs the member in on the site.
func newSignIn(ctx context.Context, data string) (string, error) {
	made, _, err := fetch(ctx, devOperator(data), "make the link to the site", api.OperatorCreateLink.With(api.Named{Name: devMember}))
	return made.Link, err
}

// mintAnew makes the key of this start and ends those of starts before.
func mintAnew(ctx context.Context, operator *client) (api.OperatorKey, error) {
	keys, _, err := fetch(ctx, operator, "look for old keys", api.OperatorListKeys.With(api.OfMember{Member: devMember}))
	if err != nil {
		return api.OperatorKey{}, err
	}
	for _, old := range keys {
		if old.Name != devKey || !old.Revoked.IsZero() {
			continue
		}
		if _, _, err := fetch(ctx, operator, "revoke the old key", api.OperatorRevokeKey.With(api.ID{ID: old.ID})); err != nil {
			return api.OperatorKey{}, err
		}
	}
	made, _, err := fetch(ctx, operator, "make the key", api.OperatorCreateKey.With(api.NewKey{Member: devMember, Name: devKey}))
	return made, err
}

// signInOnce keeps the machine credential of an earlier start where the hub
// still knows it, under the hub's address of this start, else makes a machine.
func signInOnce(ctx context.Context, operator *client, base, data string) error {
	saved, err := daemon.LoadCredential(data)
	if err == nil {
		saved.Hub = base
		if _, err = toHub(base, saved.Secret).call(ctx, "use the machine's credential", request{http.MethodGet, "/v1/models", nil}, nil); err == nil {
			return daemon.SaveCredential(data, saved)
		}
		if f, refused := errors.AsType[failure](err); !refused || f.exit != exitNotSignedIn {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	made, _, err := fetch(ctx, operator, "make a machine", api.OperatorCreateToken.With(api.NewToken{Member: devMember}))
	if err != nil {
		return err
	}
	if saved, err = redeem(ctx, toHub(base, ""), made.Token); err != nil {
		return err
	}
	return daemon.SaveCredential(data, saved)
}

// awaitModels waits until a call through the hub would be served: the daemon's
// line is up and the hub lists what it offers. Without an engine, built in or
// found, there is nothing to wait for but the line.
func awaitModels(ctx context.Context, d *daemon.Daemon, hub *client, expected bool) ([]string, error) {
	late := time.NewTimer(devReady)
	defer late.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		var list listing
		if _, err := hub.call(ctx, "list the models", request{http.MethodGet, "/v1/models", nil}, &list); err != nil {
			return nil, err
		}
		if status := d.Status(); len(list.Data) > 0 || !expected && len(status.Models) == 0 && status.Tunnel.State == lineUp {
			models := make([]string, len(list.Data))
			for i, m := range list.Data {
				models[i] = m.ID
			}
			return models, nil
		}
		select {
		case <-again.C:
		case <-late.C:
			return nil, fmt.Errorf("cannot bring the network up: after %s the hub still lists no model; see the log in the data folder", devReady)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// progress says on a terminal what is being waited for; "" wipes it away.
func (a *app) progress(what string) {
	if !terminal(a.err) || what == "" && !a.waiting {
		return
	}
	if a.waiting = what != ""; a.waiting {
		what = faint(what + " …")
	}
	_, _ = lipgloss.Fprint(a.err, "\r\x1b[K"+what)
}

// announce prints the network: one JSON line, or what a newcomer pastes.
func (a *app) announce(n network, data string) error {
	if a.json {
		return a.printJSON(n)
	}
	a.say("%s\n\n", strong("kith is up: a hub, a member, a key and this machine, all on loopback"))
	line := func(label, value, note string) { a.say("  %-9s %s  %s\n", label, accent(value), faint(note)) }
	line("hub", n.Hub, "chat dialect; needs the key")
	line("messages", n.MessagesBase, "base of the messages dialect; needs the key")
	line("local", n.Local, "this machine's daemon; needs no key")
	line("key", n.APIKey, "new at each start")
	line("site", n.SignIn, "signs you in, once")
	if len(n.Models) == 0 {
		a.say("\n%s\n", "No model to serve: this build has no engine and none was found on this machine.")
		a.say("%s\n", faint("Start Ollama, llama.cpp's server, LM Studio or vLLM here; it is found within 15 s. Ctrl-C ends."))
		return nil
	}
	for i, m := range n.Models {
		line([]string{"models", ""}[min(i, 1)], m, "")
	}
	a.say("\nPaste into another terminal:\n\n")
	a.say("  curl -N %s/chat/completions \\\n    -H 'Authorization: Bearer %s' \\\n    -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"model\":\"%s\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]}'\n\n", n.Hub, n.APIKey, n.Models[0])
	a.say("  curl %s%s \\\n    -H 'Authorization: Bearer %s' -H 'anthropic-version: %s' \\\n    -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"model\":\"%s\",\"max_tokens\":100,\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}]}'\n\n",
		n.MessagesBase, messagesPath, n.APIKey, messagesVersion, n.Models[0])
	a.say("  curl %s/chat/completions \\\n    -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}]}'\n\n", n.Local, n.Models[0])
	a.say("%s\n", faint("Data, and the log, in "+data+". Ctrl-C ends."))
	return nil
}
