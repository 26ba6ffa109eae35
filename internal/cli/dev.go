package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/llamaserver"
	"github.com/kith/kith/internal/postgres"
)

const (
	devMember = "you"      // owns everything in `kith dev`
	devKey    = "kith dev" // the name of its key; a new key replaces the old one
	tunnelUp  = "acked"    // tunnel.Acked
	// devReady limits the time until the network is ready.
	devReady = 2 * time.Minute
	// slowStart is how long a start may take before a message reports what it is waiting
	// for.
	slowStart = 2 * time.Second
)

type devFlags struct {
	data, listen, local string
	nodes               int
}

// network is the output of `kith dev --json`.
type network struct {
	Hub string `json:"hub"`
	// Hubs are the base URLs of all nodes if there are several; the first one is Hub.
	Hubs         []string `json:"hubs,omitempty"`
	MessagesBase string   `json:"messages_base"`
	Local        string   `json:"local"`
	Site         string   `json:"site"`
	APIKey       string   `json:"api_key"`
	Models       []string `json:"models"`
	// SignIn is a one-time link to sign in on the site as the member.
	SignIn string `json:"sign_in"`
}

func (a *app) dev() *cobra.Command {
	var flags devFlags
	cmd := command("kith dev", func(ctx context.Context, _ []string) error {
		if flags.data == "" {
			flags.data = filepath.Join(a.home, "dev")
		}
		return a.runDev(ctx, flags)
	})
	cmd.Flags().StringVar(&flags.data, "data", "", "the folder of all data (default: dev in KITH_HOME)")
	cmd.Flags().StringVar(&flags.listen, "listen", defaultHub, "the hub's address, on loopback")
	cmd.Flags().StringVar(&flags.local, "local", defaultLocal, "the daemon's local address, on loopback")
	cmd.Flags().IntVar(&flags.nodes, "nodes", 1, "how many hub nodes; more than one need PostgreSQL's server programs")
	return cmd
}

// runDev starts the network, prints its addresses once it is ready, and serves until ctx
// ends.
func (a *app) runDev(ctx context.Context, flags devFlags) (err error) {
	defer func() { err = devFailure(err, flags.data) }()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP) // when the terminal is closed
	defer stop()
	hubConfig, daemonConfig, err := devConfig(flags)
	if err != nil {
		return err
	}
	log, closeLog, err := devLog(flags.data)
	if err != nil {
		return err
	}
	defer closeLog()
	engines := newOwnEngines(daemonConfig, llama.Available() == nil, log)
	a.progress("starting the hub")
	if !a.json {
		go a.sayWhenSlow(ctx, flags.data, engines)
	}
	nodes, err := openNodes(ctx, hubConfig, flags.nodes, log)
	defer nodes.close()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return nodes.run(ctx) })
	group.Go(func() error { return a.runDevDaemon(ctx, flags.data, nodes.bases(), engines) })
	err = group.Wait()
	a.progress("")
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// runDevDaemon prepares the account, runs the daemon with the last hub, and prints the
// network's addresses once every hub can serve a call.
func (a *app) runDevDaemon(ctx context.Context, data string, hubs []string, engines *ownEngines) error {
	key, err := a.prepareAccount(ctx, hubs[len(hubs)-1], data)
	if err != nil {
		return err
	}
	a.progress("starting the engine and the daemon")
	m := &daemonProcess{config: engines.config, engines: engines, flag: "--local", log: engines.log}
	server, _ := llamaserver.Find(ctx)
	hasEngine := engines.builtinOnly || server != ""
	if hasEngine {
		if _, err := llama.Tiny(filepath.Join(data, "models")); err != nil {
			return err
		}
	}
	m.ready = func(d *daemon.Daemon) error {
		a.progress("connecting the daemon to the hub")
		now := network{
			Hub: hubs[0] + "/v1", MessagesBase: hubs[0], Local: d.Status().Local, Site: hubs[0], APIKey: key.Secret,
		}
		for _, base := range hubs {
			if now.Models, err = awaitModels(ctx, d, toHub(base, key.Secret), hasEngine, engines); err != nil {
				return err
			}
			if len(hubs) > 1 {
				now.Hubs = append(now.Hubs, base+"/v1")
			}
		}
		if now.SignIn, err = newSignIn(ctx, data); err != nil {
			return err
		}
		a.progress("")
		return a.print(now, func() { a.showNetwork(now, data) })
	}
	return m.run(ctx)
}

// devConfig returns the configurations of hub and daemon: the defaults, on loopback, with
// a common data folder.
func devConfig(flags devFlags) (*hubFile, *daemonFile, error) {
	var listen, local loopback
	if listen.UnmarshalText([]byte(flags.listen)) != nil {
		return nil, nil, wrongUse("cannot use --listen %s: it takes %s; this network is for this machine alone, and `kith hub` runs one for others", flags.listen, listen.takes())
	}
	if err := local.UnmarshalText([]byte(flags.local)); err != nil {
		return nil, nil, wrongUse("cannot use --local %s: it %w", flags.local, err)
	}
	if flags.nodes < 1 || flags.nodes > maxDevNodes {
		return nil, nil, wrongUse("cannot use --nodes %d: it takes 1 to %d", flags.nodes, maxDevNodes)
	}
	h, d := defaultHubFile(flags.data), defaultDaemonFile(flags.data)
	h.Hub.Listen, h.Hub.Data = listen.address, flags.data
	h.Hub.Drain.Duration = shutdownGrace
	d.Daemon.Listen = local
	d.Share.Timezone.find()
	return h, d, nil
}

// devLog opens the log of hub and daemon in the data folder, so that the terminal only
// shows what the user needs.
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

// prepareAccount creates the member if necessary, replaces the key, and signs this
// machine in at the hub at base if necessary. It uses the operator socket in data.
func (a *app) prepareAccount(ctx context.Context, base, data string) (key api.OperatorKey, err error) {
	operator := devOperator(data)
	members, _, err := fetch(ctx, operator, "look for the member", api.OperatorListMembers.With(api.None{}))
	if err != nil {
		return key, err
	}
	if !slices.ContainsFunc(members, func(m api.Member) bool { return m.Name == devMember }) {
		if _, _, err := fetch(ctx, operator, "make the member", api.OperatorCreateMember.With(api.NewMember{Name: devMember, Operator: true})); err != nil {
			return key, err
		}
	}
	if key, err = replaceKey(ctx, operator); err != nil {
		return key, err
	}
	return key, ensureSignedIn(ctx, operator, base, data)
}

// devOperator returns a client for the operator socket of this process's hub.
func devOperator(data string) *client {
	return overSocket(filepath.Join(data, "admin.sock"), "the hub just started", "see "+filepath.Join(data, "log"))
}

// newSignIn returns a sign-in link for the member.
func newSignIn(ctx context.Context, data string) (string, error) {
	made, _, err := fetch(ctx, devOperator(data), "make the link to the site", api.OperatorCreateLink.With(api.Named{Name: devMember}))
	return made.Link, err
}

// replaceKey revokes the keys of earlier starts and creates a new one.
func replaceKey(ctx context.Context, operator *client) (api.OperatorKey, error) {
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
	made, _, err := fetch(ctx, operator, "create the key", api.OperatorCreateKey.With(api.NewKey{Member: devMember, Name: devKey}))
	return made, err
}

// ensureSignedIn keeps the machine credential of an earlier start if the hub knows it,
// with the hub's current address. Otherwise it creates a machine.
func ensureSignedIn(ctx context.Context, operator *client, base, data string) error {
	saved, err := daemon.LoadCredential(data)
	if err == nil {
		saved.Hub = base
		if _, err = toHub(base, saved.Secret).list(ctx); err == nil {
			return daemon.SaveCredential(data, saved)
		}
		if f, refused := errors.AsType[failure](err); !refused || f.exit != exitNotSignedIn {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return addMachine(ctx, operator, base, data, api.NewToken{Member: devMember})
}

// addMachine creates a machine at the hub at base and saves its credential in data.
func addMachine(ctx context.Context, operator *client, base, data string, in api.NewToken) error {
	made, _, err := fetch(ctx, operator, "make a machine", api.OperatorCreateToken.With(in))
	if err != nil {
		return err
	}
	saved, err := redeem(ctx, toHub(base, ""), made.Token)
	if err != nil {
		return err
	}
	return daemon.SaveCredential(data, saved)
}

// awaitModels waits until the hub lists the daemon's models, and returns them. If
// expected is false and the daemon has no models, it only waits for the tunnel. It fails
// if the engines fail.
func awaitModels(ctx context.Context, d *daemon.Daemon, hub *client, expected bool, engines *ownEngines) (models []string, err error) {
	err = poll(ctx, devReady, func() (bool, error) {
		if problem, final := engines.problem(); final {
			return false, fmt.Errorf("cannot run the small model: %w", problem)
		}
		list, err := hub.list(ctx)
		models = convert(list, func(m listed) string { return m.ID })
		status := d.Status()
		return len(models) > 0 || !expected && len(status.Models) == 0 && status.Tunnel.State == tunnelUp, err
	})
	if errors.Is(err, errTimeout) {
		err = fmt.Errorf("cannot start the network: after %s the hub still lists no model; see the log in the data folder", devReady)
	}
	return models, err
}

var errTimeout = errors.New("the time is over")

// poll calls done until it returns true or an error, or ctx ends, or timeout has passed
// (errTimeout).
func poll(ctx context.Context, timeout time.Duration, done func() (bool, error)) error {
	_, err := backoff.Retry(ctx, func() (bool, error) {
		ok, err := done()
		switch {
		case err != nil:
			err = backoff.Permanent(err)
		case !ok:
			err = errTimeout
		}
		return ok, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(20*time.Millisecond)), backoff.WithMaxElapsedTime(timeout))
	return err
}

// progress shows what the command is waiting for, if the output is a terminal; "" clears
// it.
func (a *app) progress(what string) {
	a.waiting.Lock()
	defer a.waiting.Unlock()
	a.doing = what
	a.showProgress(what)
}

func (a *app) showProgress(what string) {
	if !terminal(a.err) || what == "" && !a.progressShown {
		return
	}
	if a.progressShown = what != ""; a.progressShown {
		what = faint(what + " …")
	}
	_, _ = fmt.Fprint(a.err, ours("\r\x1b[K")+what)
}

// sayWhenSlow writes a line to standard error if the network is not ready after
// slowStart, and then every 10 s: what it is waiting for and where the log is. It returns
// when the start is complete.
func (a *app) sayWhenSlow(ctx context.Context, data string, engines *ownEngines) {
	began := time.Now()
	for pause := slowStart; ; pause = 10 * time.Second {
		if wait(ctx, pause) != nil {
			return
		}
		a.waiting.Lock()
		doing := a.doing
		if doing == "" { // the start is complete
			a.waiting.Unlock()
			return
		}
		cause := ""
		if err, _ := engines.problem(); err != nil {
			cause = " (" + err.Error() + ")"
		}
		a.showProgress("")
		fmt.Fprintf(a.err, "kith: still %s after %s%s; the log is in %s\n", doing, time.Since(began).Round(time.Second), cause, filepath.Join(data, "log"))
		a.showProgress(doing)
		a.waiting.Unlock()
	}
}

// errDiskFull is ERROR_DISK_FULL on Windows, where syscall.ENOSPC has a different value.
const errDiskFull = syscall.Errno(112)

// devFailure adds what to do to an error because of a full disk.
func devFailure(err error, data string) error {
	full := errors.Is(err, syscall.ENOSPC) || runtime.GOOS == "windows" && errors.Is(err, errDiskFull)
	if full || err != nil && strings.Contains(err.Error(), "disk is full") {
		return fmt.Errorf("%w; make room on the disk of %s (it takes about 100 MB), or choose another folder with --data", err, data)
	}
	return err
}

// installEngine describes how to install a llama-server on the system.
func installEngine(system string) string {
	how := map[string]string{"darwin": "`brew install llama.cpp`", "windows": "`winget install llama.cpp`"}[system]
	return "To run the small model, " + cmp.Or(how, "install llama.cpp's llama-server on the PATH") + " and start again."
}

// showNetwork prints lines for copying.
func (a *app) showNetwork(n network, data string) {
	a.say("%s\n\n", strong("kith is up: a hub, a member, a key and this machine, all on loopback"))
	line := func(label, value, note string) { a.say("  %-9s %s  %s\n", label, accent(value), faint(note)) }
	line("hub", n.Hub, "chat dialect; needs the key")
	for _, other := range n.Hubs[min(1, len(n.Hubs)):] {
		line("", other, "another node of the hub")
	}
	line("messages", n.MessagesBase, "base of the messages dialect; needs the key")
	line("local", n.Local, "this machine's daemon; needs no key")
	line("key", n.APIKey, "new at each start")
	line("site", n.SignIn, "signs you in, once")
	if len(n.Models) == 0 {
		a.say("\n%s\n", "No model to serve: this build has no engine and none was found on this machine.")
		a.note(installEngine(runtime.GOOS))
		a.note("Or start Ollama, LM Studio or vLLM here; it is found within 15 s. Ctrl-C ends.")
		return
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
	a.note("Data, and the log, in " + data + ". Ctrl-C ends.")
}

const (
	maxDevNodes = 9
	anyLoopback = "127.0.0.1:0"
)

// devNodes are the hub nodes that `kith dev` runs in this process. A single node uses
// SQLite.
type devNodes struct {
	nodes    []*hubProcess
	database *postgres.Server // nil: a single node
}

// openNodes opens n hub nodes. The first has the given configuration. The others use any
// free port, and folders inside the first one's. The caller must close the devNodes, even
// after an error.
func openNodes(ctx context.Context, first *hubFile, n int, log *slog.Logger) (*devNodes, error) {
	opened := new(devNodes)
	if n > 1 {
		if err := opened.startDatabase(filepath.Join(first.Hub.Data, "postgres")); err != nil {
			return opened, err
		}
		first.Database.URL.text = opened.database.URL("postgres") // every PostgreSQL server has this database
	}
	for i := range n {
		config := *first
		if n > 1 {
			config.Hub.Node.Text = fmt.Sprintf("node%d", i+1)
			config.Peer.Listen.Text = anyLoopback
		}
		if i > 0 {
			config.Hub.Data = filepath.Join(first.Hub.Data, config.Hub.Node.Text)
			config.Hub.Listen.Text = anyLoopback
		}
		p, err := openHub(ctx, &config, log)
		if err != nil {
			return opened, err
		}
		opened.nodes = append(opened.nodes, p)
	}
	return opened, nil
}

// startDatabase starts PostgreSQL with its data in the given folder.
func (d *devNodes) startDatabase(data string) (err error) {
	d.database, err = postgres.Start(postgres.Config{Data: data})
	if errors.Is(err, postgres.ErrMissing) {
		return fmt.Errorf("cannot start several nodes: %w", err)
	}
	if err != nil {
		// The error contains the server's long log.
		first, _, _ := strings.Cut(err.Error(), "\n")
		return fmt.Errorf("%s; see that no other kith dev uses %s, or choose another folder with --data", first, data)
	}
	return nil
}

// bases returns the addresses of the nodes.
func (d *devNodes) bases() []string {
	return convert(d.nodes, func(p *hubProcess) string { return p.base })
}

// run serves all nodes until ctx ends (nil) or one of them fails.
func (d *devNodes) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range d.nodes {
		group.Go(func() error { return p.run(ctx) })
	}
	return group.Wait()
}

// close closes the nodes, then their database.
func (d *devNodes) close() {
	for _, p := range d.nodes {
		p.close()
	}
	if d.database != nil {
		_ = d.database.Close()
	}
}
