package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/disk"
	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/llamaserver"
	"github.com/kith/kith/internal/outbound"
)

// The limits of kith doctor.
const (
	checkTimeout = 5 * time.Second     // for each request to a daemon or hub
	clockSkew    = 30 * time.Second    // difference from the hub's clock
	diskNeeded   = 64 << 20            // bytes, for the state and the log
	diskForModel = 2 << 30             // bytes, for a small model
	renewWithin  = 14 * 24 * time.Hour // before its expiry a certificate should be renewed
	socketPath   = 100                 // bytes, maximum length
)

// finding is the result of one check.
type finding struct {
	Check string `json:"check"`
	State string `json:"state"` // "ok", "note" or "fail"
	Found string `json:"found"`
	Do    string `json:"do,omitzero"` // what the user can do about it
}

type doctor struct {
	*app
	findings []finding
	away     map[string]bool // addresses that did not answer like a hub
	viaProxy bool            // the environment sets a proxy for the hub
	// free returns how many bytes can be written to a folder, write writes a file there,
	// and lookup resolves a host. Tests replace them.
	free   func(folder string) (uint64, error)
	write  func(folder string) error
	lookup func(ctx context.Context, host string) ([]string, error)
}

func (a *app) doctor() *cobra.Command {
	return command("kith doctor", func(ctx context.Context, _ []string) error {
		d := &doctor{app: a, away: map[string]bool{}, free: freeSpace, write: tryWrite, lookup: net.DefaultResolver.LookupHost}
		d.examine(ctx)
		return d.report()
	})
}

func (d *doctor) ok(check, format string, args ...any) {
	d.findings = append(d.findings, finding{check, "ok", fmt.Sprintf(format, args...), ""})
}

func (d *doctor) note(check, do, format string, args ...any) {
	d.findings = append(d.findings, finding{check, "note", fmt.Sprintf(format, args...), do})
}

func (d *doctor) fail(check, do, format string, args ...any) {
	d.findings = append(d.findings, finding{check, "fail", strings.TrimPrefix(fmt.Sprintf(format, args...), "cannot continue: "), do})
}

// failed reports whether one of the named checks has failed or, without names, any check.
func (d *doctor) failed(checks ...string) bool {
	return slices.ContainsFunc(d.findings, func(f finding) bool {
		return f.State == "fail" && (len(checks) == 0 || slices.Contains(checks, f.Check))
	})
}

// report prints the findings and returns an error if any of them is a failure.
func (d *doctor) report() error {
	var failed []string
	for _, f := range d.findings {
		if f.State == "fail" {
			failed = append(failed, f.Check)
		}
	}
	err := d.print(struct {
		OK     bool      `json:"ok"`
		Checks []finding `json:"checks"`
	}{failed == nil, d.findings}, func() {
		for _, f := range d.findings {
			mark := map[string]string{"ok": "ok  ", "note": "note", "fail": "FAIL"}[f.State]
			d.hang(fmt.Sprintf("%s  %-13s  ", toned(mark), f.Check), f.Found)
			if f.Do != "" {
				d.hang(fmt.Sprintf("      %-13s  ", ""), "→ "+f.Do)
			}
		}
	})
	if failed == nil || err != nil {
		return err
	}
	return fmt.Errorf("this machine has failures: %s; follow the steps above, then run `kith doctor` again", strings.Join(failed, ", "))
}

// examine runs all checks. Later checks use the results of earlier ones, so that a
// reported failure does not cause further ones.
func (d *doctor) examine(ctx context.Context) {
	config, err := loadDaemonFile(d.home, "")
	if onlySecrets(err) {
		d.note("configuration", "a daemon that a service runs may have it in its environment", "%v", err)
	} else if err != nil {
		d.fail("configuration", "correct it; `kith config check` lists all problems, docs/configuration.md all keys", "%v", err)
		config = defaultDaemonFile(d.home) // the other checks use the defaults
	} else {
		d.ok("configuration", "%s", goodConfig(filepath.Join(d.home, "config.toml")))
	}
	d.folders(config)
	saved, err := daemon.LoadCredential(config.Daemon.Data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.note("credential", "to use and serve a hub: `kith login --hub URL`", "this machine is not signed in; it serves its own programs only")
	case err != nil:
		d.fail("credential", "do as it says, or sign in again with `kith login`", "%v", err)
	default:
		d.ok("credential", "%s, for its owner only", saved)
	}
	status, running := d.daemon(ctx, config)
	if running || !d.failed("configuration") { // without its configuration the engines' addresses are unknown
		d.engines(ctx, config, status, running)
	}
	if err == nil {
		accepted := d.hub(ctx, "hub", toHub(saved.Hub, saved.Secret), "sign in again: `kith login --hub "+saved.Hub+"`")
		if running && (accepted || status.Tunnel.State == tunnelUp) { // otherwise this is why the tunnel is lost or refused
			d.line(status.Tunnel)
		}
		if running && status.Sealed != nil {
			d.sealed(ctx, toHub(saved.Hub, saved.Secret), status.Sealed)
		}
	}
	d.key(ctx)
}

// folders checks the folders of the daemon and of the models.
func (d *doctor) folders(config *daemonFile) {
	data := config.Daemon.Data
	if n := len(filepath.Join(data, "daemon.sock")); n > socketPath && runtime.GOOS != "windows" {
		d.fail("folder", "set KITH_HOME, or [daemon] data, to a shorter path", "the path of the daemon's socket under %s has %d bytes; systems take about %d", data, n, socketPath)
	}
	info, err := os.Stat(data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.note("folder", "", "%s is not there yet; `kith serve` and `kith login` make it", data)
		return
	case err != nil:
		d.fail("folder", "give yourself access to it, or set KITH_HOME", "cannot look at %s: %v", data, err)
		return
	case info.Mode().Perm()&0o022 != 0 && runtime.GOOS != "windows":
		d.fail("folder", "run `chmod 700 "+data+"`", "other users can change %s: its mode is %04o", data, info.Mode().Perm())
	}
	d.space("disk", data, diskNeeded, "free some: the daemon keeps its state there", true)
	full := d.failed("disk")
	switch err := d.write(data); {
	case err == nil:
		d.ok("folder", "%s can be written", data)
	case !full:
		d.fail("folder", "make the folder yours"+ownerCommand(runtime.GOOS, data)+"; or set KITH_HOME to another", "nothing can be written in %s: %v", data, err)
	}
	for _, place := range config.Engine.Models {
		switch info, err := os.Stat(place); {
		case errors.Is(err, fs.ErrNotExist) && filepath.Ext(place) != ".gguf":
		case err != nil:
			d.fail("models folder", "correct [engine] models, or give yourself access to it", "cannot look at %s: %v", place, err)
		case info.IsDir():
			if _, err := os.ReadDir(place); err != nil {
				d.fail("models folder", "give yourself access to it", "cannot look into %s: %v", place, err)
				continue
			}
			if full {
				continue
			}
			d.space("models folder", place, diskForModel, "free some before you add a model", false)
		}
	}
}

// sealed checks how this machine's calls to others are sealed.
func (d *doctor) sealed(ctx context.Context, hub *client, now *daemon.SealedStatus) {
	const check = "sealed calls"
	switch last := now.LastClear; {
	case now.Error != "":
		d.fail(check, "correct that, then run `kith reload`", "no call can be sealed: %s", now.Error)
		return
	case !now.Mode.IsOn():
		d.note(check, `set [privacy] sealed = "prefer" in config.toml, then run `+"`kith reload`", "off: the hub can read calls to other machines")
		return
	case last != nil:
		d.note(check, "`kith trust` and docs/privacy.md", "%s", sealedText(now))
	default:
		d.ok(check, "%s; %s of others, %d of them compared", sealedText(now), count(now.Keys, "key"), now.Confirmed)
	}
	if now.Approved {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if mine, _, err := fetch(ctx, hub, "list your machines", api.ListMachines.With(api.None{})); err == nil && len(mine.Data) > 1 {
		d.note(check, "run `kith trust` here, and the line that it prints on another machine of yours",
			"this machine has an account key of its own; your other machines do not know it")
	}
}

// startAtSignIn describes how to start the daemon when the user signs in.
func startAtSignIn(system string) string {
	if _, ok := managers[system]; ok {
		return "start it with `kith serve`, or at each sign-in with `kith service install`"
	}
	return "start it with `kith serve`, or have the system's task scheduler run that at each sign-in"
}

// ownerCommand describes how to become the owner of a folder, to be appended to a text.
func ownerCommand(system, folder string) string {
	if system == "windows" {
		return " (its properties, Security)"
	}
	return ": `chown -R $USER " + folder + "`"
}

// freeSpace returns how many bytes this user can still write to the folder.
func freeSpace(folder string) (uint64, error) {
	usage, err := disk.Usage(folder)
	if err != nil {
		return 0, err
	}
	return usage.Free, nil
}

func tryWrite(folder string) error {
	f, err := os.CreateTemp(folder, "doctor.*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, 64<<10))
	return errors.Join(err, f.Sync(), f.Close())
}

// space checks the free space in a folder. Too little is a failure if vital is set, and
// otherwise a note.
func (d *doctor) space(check, folder string, need uint64, do string, vital bool) {
	free, err := d.free(folder)
	switch {
	case err != nil:
		d.note(check, "", "the free space of %s is not known: %v", folder, err)
	case free >= need:
		d.ok(check, "%s free under %s", short(int64(free)), folder)
	case vital || free < diskNeeded:
		d.fail(check, do, "the disk under %s is full: %s bytes are free", folder, short(int64(free)))
	default:
		d.note(check, do, "the disk under %s has room for no model: %s bytes are free", folder, short(int64(free)))
	}
}

// daemon checks whether this machine's daemon runs or could run.
func (d *doctor) daemon(ctx context.Context, config *daemonFile) (status daemon.Status, running bool) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	_, err := control(config.Daemon.Data).call(ctx, "ask the daemon", request{http.MethodGet, "/status", nil}, &status)
	if err == nil {
		d.ok("daemon", "listens on %s, version %s", status.Local, status.Version)
		if mine := thisBuild().Version; status.Version != mine {
			d.note("daemon", "end it and start it again: `kith serve`", "the daemon that runs is version %s, this kith is %s", status.Version, mine)
		}
		if !status.Open || status.Sharing.Paused {
			d.note("sharing", "`kith resume`, `kith hours`", "%s", sharing(status.Sharing, status.Open))
		}
		if why := zoneUnknown(status); why != "" {
			d.note("time zone", "`kith hours set`", "%s", why)
		}
		return status, true
	}
	listen := config.Daemon.Listen.Text
	if _, off := errors.AsType[unreachable](err); !off {
		d.fail("daemon", "end it and start it again: `kith serve`", "the daemon's answer is not valid: %v", err)
	} else if d.failed() {
		d.note("daemon", "start it with `kith serve` once what failed above is corrected", "the daemon does not run")
	} else if listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen); err != nil {
		d.fail("port", "end the other program, or set [daemon] listen to another port; then `kith serve`",
			"the daemon does not run, and could not: %v", err)
	} else {
		_ = listener.Close() // opened only to check the address
		d.fail("daemon", startAtSignIn(runtime.GOOS), "the daemon does not run; %s is free for it", listen)
	}
	return status, false
}

// engines checks whether there are an engine and a model. It uses the status of a running
// daemon, or otherwise looks for engines itself.
func (d *doctor) engines(ctx context.Context, config *daemonFile, status daemon.Status, running bool) {
	found, models := status.Engines, len(status.Models)
	if !running {
		files, _ := modelFiles(config.Engine.Models) // folders has reported unreadable ones
		server, _ := llamaserver.Find(ctx)
		if llama.Available() == nil && config.Engine.Builtin || server != "" {
			models = len(files)
		}
		m := &daemonProcess{config: config, log: slog.New(slog.DiscardHandler)}
		look := m.daemonConfig()
		look.Discovery.Log = look.Log
		finder, err := engine.NewFinder(look.Discovery)
		if err != nil {
			d.fail("engines", "correct [discovery] endpoints", "%v", err)
			return
		}
		finder.Probe(ctx) // it limits its own time, and an interrupted one has no result
		if finder.Late() {
			finder.ProbeAgain(ctx)
		}
		for _, f := range finder.Report() {
			found = append(found, f)
			models += f.Models
		}
	}
	for _, e := range found {
		switch {
		case e.Model != "":
			d.fail("models", "fetch it again with `kith pull`, or remove it with `kith models rm "+e.Model+"`; `kith pull` lists models that fit this machine",
				"the model %s cannot be served: %s", e.Model, e.Why)
		case isStarting(e) && e.Why == llama.ErrStarting.Error():
			d.note("engines", "look again in a minute", "%s", e.Why)
			models += e.Models
		case isStarting(e):
			d.fail("engines", "find the cause in the daemon's log: `kith models rm` removes a model file that it cannot read, `kith engine remove` a library for graphics cards", "%s", e.Why)
		case e.Why == "":
			d.ok("engines", "%s at %s: %s", cmp.Or(e.Name, e.Kind), e.Place, count(e.Models, "model"))
			d.graphics(e.Graphics)
		case e.Configured:
			d.fail("engines", "start the engine there, or correct the configuration", "no engine can be used at %s: %s", e.Place, e.Why)
		case e.Kind != "":
			d.note("engines", "", "the engine at %s cannot be used: %s", e.Place, e.Why)
		}
	}
	if config.Engine.Builtin && llama.Available() != nil {
		d.note("engines", "", "this build has no built-in engine")
	}
	switch {
	case models == 0 && d.failed("engines", "models", "models folder"): // this is the reason
		return
	case models == 0:
		d.fail("models", "fetch one: `kith pull` lists models that fit this machine; or start an engine with a model, or put a GGUF file into "+strings.Join(config.Engine.Models, " or "), "there is no model on this machine")
		return
	}
	d.ok("models", "%d", models)
	for _, id := range status.Models {
		if id.IsPath() {
			d.note("models", "start llama-server with --alias NAME", "%s", pathWarning(string(id)))
		}
	}
}

// pathWarning describes a model whose id is the path of its file.
func pathWarning(id string) string {
	return fmt.Sprintf("the id %s is a path on this computer, and everyone who may use the model sees it; llama-server takes another with --alias NAME", id)
}

// hub checks that the hub responds, is a kith hub and accepts the secret, and compares
// the clocks. accepted is whether it accepts the secret. again is what to do if the
// secret is invalid.
func (d *doctor) hub(ctx context.Context, check string, hub *client, again string) (accepted bool) {
	if d.away[hub.base] {
		return false
	}
	d.away[hub.base] = true // until it answers like a hub
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	address, err := url.Parse(hub.base)
	if err != nil {
		d.fail(check, again, "%v", err)
		return false
	}
	through, found := d.nameFound(ctx, check, address)
	if !found {
		return false
	}
	asked := time.Now()
	res, err := hub.try(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		d.fail(check, whenUnreachable(err, again, through), "%v", err)
		return false
	}
	defer res.Body.Close()
	var list struct {
		Object string `json:"object"`
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	kith := res.Header.Get("X-Correlation-Id") != "" && json.Unmarshal(text, &list) == nil
	switch {
	case !kith && res.StatusCode >= http.StatusBadGateway && res.StatusCode <= http.StatusGatewayTimeout:
		d.fail(check, "ask its operator to start it; try again in a while", "a proxy at %s answers %d: it does not reach the hub behind it", hub.base, res.StatusCode)
		return false
	case !kith:
		d.fail(check, "correct the address: "+again, "the response of %s is not a kith hub's (status %d)", hub.base, res.StatusCode)
		return false
	case res.StatusCode == http.StatusUnauthorized:
		d.fail(check, again, "%s does not know the secret: it was revoked, or made for another hub", hub.base)
	case res.StatusCode != http.StatusOK:
		d.fail(check, "try again in a while; then ask its operator", "%s answers %d", hub.base, res.StatusCode)
	default:
		accepted = true
		d.ok(check, "%s responds%s and accepts the secret", hub.base, through)
	}
	delete(d.away, hub.base)
	if check == "hub" {
		d.certificate(res.TLS, asked)
		d.clock(res.Header.Get("Date"), asked)
	}
	return accepted
}

// nameFound looks up the host in the hub's address. If the environment sets a proxy for
// it, it looks up the proxy instead, because this machine's name servers may only know
// that. It returns the proxy as part of a sentence, and reports a failure.
func (d *doctor) nameFound(ctx context.Context, check string, address *url.URL) (through string, found bool) {
	via, err := outbound.ProxyOf(address)
	if err != nil {
		d.fail(check, "correct HTTPS_PROXY", "the proxy in the environment cannot be used: %v", err)
		return "", false
	}
	host, what := address.Hostname(), "name"
	do := "check the address and this machine's network and name servers"
	if via != nil {
		d.viaProxy, through, host, what = true, " through the proxy "+via.Host, via.Hostname(), "proxy's name"
		do = "correct HTTPS_PROXY, or check this machine's network and name servers; the proxy itself looks up the hub"
	}
	if _, err := d.lookup(ctx, host); err != nil {
		d.fail(check, do, "the %s %s cannot be found: %v", what, host, err)
		return "", false
	}
	return through, true
}

// whenUnreachable returns what to do after a request to the hub failed with err. through
// names the proxy, if there is one.
func whenUnreachable(err error, again, through string) string {
	if outbound.IsProxyFailure(err) {
		return "correct HTTPS_PROXY and NO_PROXY, start that proxy, or have its operator let this machine through to the hub"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "have this machine trust that authority, if you know it: a private one, or a proxy that reads what passes; else do not connect"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "use the name in the certificate: " + again
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "check this machine's clock; if it is right, ask the hub's operator to renew the certificate"
	}
	if through != "" {
		return "try another way than" + through + ": it may cut the connection; if others reach the hub, correct its address: " + again
	}
	return "check the network; if others reach it, the hub's address: " + again
}

// certificate checks that the hub's certificate does not expire soon.
func (d *doctor) certificate(connection *tls.ConnectionState, now time.Time) {
	if connection == nil || len(connection.PeerCertificates) == 0 {
		return
	}
	end := connection.PeerCertificates[0].NotAfter
	if left := end.Sub(now); left < renewWithin {
		d.fail("certificate", "ask the hub's operator to renew it: afterwards no machine and no program reaches the hub",
			"the certificate of %s ends in %s, on %s", connection.ServerName, count(int(left/(24*time.Hour)), "day"), moment(end))
		return
	}
	d.ok("certificate", "valid until %s", moment(end))
}

func (d *doctor) clock(date string, asked time.Time) {
	theirs, err := http.ParseTime(date)
	ahead := asked.Sub(theirs)
	switch {
	case err != nil:
		d.note("clock", "", "the hub's response has no date")
	case ahead.Abs() <= clockSkew:
		d.ok("clock", "in sync")
	default:
		word := map[bool]string{false: "behind", true: "ahead of"}[ahead > 0]
		d.fail("clock", "set it by the network (on Linux: `timedatectl set-ntp true`): hours, pauses and certificates depend on it",
			"this machine's clock is %s %s the hub's", ahead.Abs().Round(5*time.Second), word)
	}
}

func (d *doctor) line(line daemon.TunnelStatus) {
	switch line.State {
	case tunnelUp:
		d.ok("connection", "online since %s", moment(line.Since))
	case daemon.TunnelUnshared:
		d.note("connection", "set [share] enabled = true to open it", "closed by the configuration")
	case daemon.TunnelRefused:
		d.fail("connection", "sign in again with `kith login`; if the hub was at fault and works again, `kith reload` tries now", "the hub refused this machine: %s", connectionText(line))
	case daemon.TunnelFenced:
		d.fail("connection", "give each its own: `kith login` on one of them", "another daemon uses this machine's credential: %s", connectionText(line))
	default:
		if d.viaProxy {
			d.fail("connection", "start the daemon with the same HTTPS_PROXY (`kith service install` keeps it), "+
				"or have the proxy's operator let long connections pass", "%s; this command reached the hub through a proxy", connectionText(line))
			return
		}
		d.fail("connection", "check the network, and what is between this machine and the hub", "%s", connectionText(line))
	}
}

func (d *doctor) key(ctx context.Context) {
	hub, found, err := d.byKey()
	if err != nil {
		d.fail("API key", "set KITH_HUB to the address of the key's hub, or unset KITH_API_KEY", "%v", err)
		return
	}
	if found {
		d.hub(ctx, "API key", hub, "set KITH_API_KEY to a key of that hub, or unset it")
	}
}
