package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
)

// control returns a client for the API of the daemon on data, over its socket.
func control(data string) *client {
	return overSocket(filepath.Join(data, "daemon.sock"), "this machine's daemon", startDaemon(data))
}

// startDaemon describes how to start a daemon on data. While `kith dev` is running one in
// a folder there, it describes how to reach that.
func startDaemon(data string) string {
	dev := filepath.Join(data, "dev")
	if !daemonRuns(dev) {
		return "start it with `kith serve`"
	}
	return "`kith dev` runs one: set KITH_HOME=" + dev + " to reach that"
}

// daemonRuns reports whether a daemon on data serves its socket.
func daemonRuns(data string) bool {
	conn, err := daemon.DialSocket(context.Background(), filepath.Join(data, "daemon.sock"))
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// runningStatus is the output of `kith status --json` if a daemon is running.
type runningStatus struct {
	Running bool `json:"running"`
	daemon.Status
	Speeds []modelSpeed `json:"speeds,omitempty"`
}

// savedStatus is the output if no daemon is running: the saved state.
type savedStatus struct {
	Running bool `json:"running"` // false
	Tunnel  struct {
		SignedIn bool   `json:"signed_in"`
		Hub      string `json:"hub,omitempty"`
		Machine  string `json:"machine,omitempty"`
	} `json:"tunnel"`
	Sharing daemon.Sharing `json:"sharing"`
	Open    bool           `json:"open"` // now inside the sharing hours
	Groups  []string       `json:"groups,omitzero"`
}

func (a *app) status() *cobra.Command {
	return command("kith status", func(ctx context.Context, _ []string) error {
		config, now, running, err := a.daemonStatus(ctx, "ask for the status")
		if err != nil {
			return err
		}
		if !running {
			return a.showSaved(config, now)
		}
		status := runningStatus{Running: true, Status: now}
		if machine := a.atHub(ctx, now.Tunnel); machine != nil {
			status.Tunnel.Name, status.Speeds = machine.Name, speeds(machine)
		}
		return a.print(status, func() { a.showStatus(status) })
	})
}

// daemonStatus returns the status of this machine's daemon. If the daemon is not running,
// it only contains the saved sharing settings.
func (a *app) daemonStatus(ctx context.Context, doing string) (config *daemonFile, now daemon.Status, running bool, err error) {
	if config, err = loadLocalFile(a.home); err != nil {
		return nil, now, false, err
	}
	_, err = control(config.Daemon.Data).call(ctx, doing, request{http.MethodGet, "/status", nil}, &now)
	if _, off := errors.AsType[unreachable](err); !off {
		return config, now, true, err
	}
	if now.Sharing, err = daemon.ChangeSaved(config.Daemon.Data, config.sharing(), fleet.Control{}); err == nil {
		now.Open, err = isOpen(now.Sharing)
	}
	return config, now, false, err
}

// fact prints a line of the status with its label.
func (a *app) fact(label, format string, args ...any) {
	a.hang(strong(fmt.Sprintf("%-8s", label))+"  ", fmt.Sprintf(format, args...))
}

const signedOut = "not signed in; `kith login --hub URL` connects this machine to a hub"

// showSaved prints the saved state, which applies at the daemon's next start.
func (a *app) showSaved(config *daemonFile, state daemon.Status) error {
	saved, missing := daemon.LoadCredential(config.Daemon.Data)
	if missing != nil && !errors.Is(missing, fs.ErrNotExist) {
		return missing
	}
	now := savedStatus{Groups: config.Share.Groups, Sharing: state.Sharing, Open: state.Open}
	now.Tunnel.SignedIn, now.Tunnel.Hub, now.Tunnel.Machine = missing == nil, saved.Hub, saved.Machine
	return a.print(now, func() {
		a.fact("daemon", "not running; %s", startDaemon(config.Daemon.Data))
		hub := signedOut
		if now.Tunnel.SignedIn {
			hub = fmt.Sprintf("%s, as a machine of %s", saved.Hub, saved.Member)
		}
		a.fact("hub", "%s", hub)
		a.fact("sharing", "%s, once it runs", toned(sharing(now.Sharing, now.Open)))
		a.showServed(now.Groups)
	})
}

// showServed prints the groups in the configuration, if there are any.
func (a *app) showServed(groups []string) {
	if groups != nil {
		a.fact("groups", "%s", cmp.Or(strings.Join(groups, ", "), "none")+" ([share] groups of config.toml)")
	}
}

func (a *app) showStatus(now runningStatus) {
	a.fact("daemon", "%s since %s, version %s", now.Local, moment(now.Started), now.Version)
	hub := signedOut
	if now.Tunnel.SignedIn {
		if hub = now.Tunnel.Hub; now.Tunnel.Name != "" {
			hub += " as machine " + now.Tunnel.Name
		}
		hub += ": " + toned(connectionText(now.Tunnel))
	}
	a.fact("hub", "%s", hub)
	if now.Sealed != nil {
		a.fact("sealed", "%s", sealedText(now.Sealed))
	}
	a.showFacts(now.Facts)
	a.fact("slots", "%d; calls from the hub take %d, your own %d", now.Slots, now.Routed, now.Own)
	a.fact("sharing", "%s", toned(sharing(now.Sharing, now.Open)))
	if why := zoneUnknown(now.Status); why != "" {
		a.fact("time zone", "%s", why)
	}
	a.showSelfPause(now.Status)
	a.showServed(now.Groups)
	a.showEngines(now.Engines)
	models := "none; " + noModels
	switch {
	case len(now.Models) > 0:
		models = strings.Trim(fmt.Sprint(now.Models), "[]")
	case slices.ContainsFunc(now.Engines, isStarting):
		models = "none yet"
	}
	a.fact("models", "%s", models)
	for _, id := range now.Models {
		if id.IsPath() {
			a.fact("", "%s", pathWarning(string(id)))
		}
	}
	label := "lacks"
	for _, id := range slices.Sorted(maps.Keys(now.Lacks)) {
		a.fact(label, "%s: %s", id, now.Lacks[id])
		label = ""
	}
	label = "speed"
	for _, s := range now.Speeds {
		a.fact(label, "%s: %s", s.Model, s)
		label = ""
	}
	for _, e := range now.RecentErrors {
		a.fact("error", "%s %s", moment(e.At), e.What)
	}
}

// showFacts prints what this computer has, as its hub knows it.
func (a *app) showFacts(facts *fleet.MachineFacts) {
	if facts == nil { // an older daemon is still running
		return
	}
	var parts []string
	for _, part := range []string{facts.System, facts.CPU} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if facts.Cores > 0 {
		parts = append(parts, count(facts.Cores, "core"))
	}
	if facts.Memory > 0 {
		parts = append(parts, gibibytes(facts.Memory)+" memory")
	}
	if len(parts) > 0 {
		a.fact("machine", "%s", strings.Join(parts, ", "))
	}
	for _, card := range facts.GPUs {
		a.fact("gpu", "%s, %s", cmp.Or(card.Name, "a graphics card"), gibibytes(card.Memory))
	}
}

func gibibytes(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// showEngines prints the engines and the addresses without a usable engine, except usual
// ports that nothing listens on.
func (a *app) showEngines(engines []daemon.EngineStatus) {
	label := "engines"
	for _, found := range engines {
		switch {
		case !found.Configured && found.Why == engine.NothingListens:
			continue
		case isStarting(found):
			a.fact(label, "%s", faint(found.Why))
		case found.Why != "":
			a.fact(label, "%s: %s", strings.TrimSpace(found.Name+" "+found.Place), faint(found.Why))
		default:
			others := ""
			if found.Others > 0 {
				others = "; " + count(found.Others, "call") + " from other programs"
			}
			a.fact(label, "%s: %s%s%s%s", enginePlace(found), count(found.Models, "model"), versionText(found), others, graphicsText(found.Graphics))
			if found.LeftOut != "" {
				a.fact("", "left out: %s", found.LeftOut)
			}
		}
		label = ""
	}
	if label != "" {
		a.fact(label, "none found; start one, or add its address to [discovery] endpoints")
	}
}

// isStarting reports whether it is the built-in engine and has not started yet. Why
// describes what it is doing.
func isStarting(e daemon.EngineStatus) bool {
	return e.Kind == "builtin" && e.Model == "" && e.Why != ""
}

// enginePlace returns an engine's name and address; the built-in engine has no address.
func enginePlace(e daemon.EngineStatus) string {
	if e.Kind == "builtin" {
		return "built-in"
	}
	return cmp.Or(e.Name, e.Kind) + " at " + e.Place
}

// versionText returns an engine's version, to follow the number of its models.
func versionText(e daemon.EngineStatus) string {
	switch {
	case e.Version == "":
		return ""
	case e.Kind == "builtin": // it is that of llama.cpp, and names it
		return ", " + e.Version
	}
	return ", version " + e.Version
}

// connectionText describes the tunnel to the hub for people.
func connectionText(line daemon.TunnelStatus) string {
	state := line.State
	switch {
	case state == tunnelUp && line.Node != "":
		state = "connected, at its node " + line.Node
	case state == tunnelUp:
		state = "connected"
	}
	if line.Error != "" {
		state += ", " + line.Error
	}
	if !line.Retry.IsZero() && (line.State == daemon.TunnelRefused || line.State == daemon.TunnelFenced) {
		state += "; next try at " + moment(line.Retry) + ", and at once after `kith reload`"
	}
	return state
}

// zoneUnknown describes the effect of a time zone that this machine or its hub does not
// know. It returns "" if both know it.
func zoneUnknown(now daemon.Status) string {
	if now.Sharing.Timezone == "" {
		return "not known, so members whose share has hours cannot call; set timezone in [share] of config.toml"
	}
	if !now.Tunnel.ZoneUnknown {
		return ""
	}
	return fmt.Sprintf("the hub does not know %q, so others cannot use this machine; run `kith hours set %q --tz ZONE` with a zone that it knows",
		now.Sharing.Timezone, now.Sharing.Hours)
}

// sharing describes whether others' calls can run here now, and why not.
func sharing(now daemon.Sharing, open bool) string {
	when := "always"
	if now.Hours != "" {
		when = now.Hours + " " + now.Timezone
	}
	switch {
	case now.Paused && !now.Until.IsZero():
		return "paused until " + moment(now.Until) + "; hours: " + when
	case now.Paused:
		return "paused; hours: " + when
	case !open:
		return "outside its hours: " + when
	}
	return "open; hours: " + when
}

// modelSpeed is how fast this machine runs a model, as measured by its hub.
type modelSpeed struct {
	Model           fleet.ModelID `json:"model"`
	FirstTokenMS    int64         `json:"first_token_ms,omitzero"`
	TokensPerSecond float64       `json:"tokens_per_second,omitzero"`
}

// atHubWithin limits how long the hub may take to describe the machine, because the status
// does not require it.
const atHubWithin = 3 * time.Second

// atHub returns this machine as the hub knows it. It returns nil if the machine is not
// connected or the hub does not answer.
func (a *app) atHub(ctx context.Context, line daemon.TunnelStatus) *api.Machine {
	if line.State != tunnelUp {
		return nil
	}
	_, saved, err := a.credential()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, atHubWithin)
	defer cancel()
	machines, _, err := fetch(ctx, toHub(saved.Hub, saved.Secret), "read the speeds", api.ListMachines.With(api.None{}))
	if err != nil {
		return nil
	}
	for i := range machines.Data {
		if machines.Data[i].ID == saved.Machine {
			return &machines.Data[i]
		}
	}
	return nil
}

// speeds returns the hub's measurements of a machine's models.
func speeds(machine *api.Machine) (speeds []modelSpeed) {
	for _, m := range machine.Models {
		if m.FirstTokenMS > 0 || m.TokensPerSecond > 0 {
			speeds = append(speeds, modelSpeed{m.ID, m.FirstTokenMS, m.TokensPerSecond})
		}
	}
	return speeds
}

// String formats the speed: "about 0.4 s to first token, 48 tokens/s".
func (s modelSpeed) String() string {
	var parts []string
	switch first := time.Duration(s.FirstTokenMS) * time.Millisecond; {
	case first == 0:
	case first < 100*time.Millisecond:
		parts = append(parts, fmt.Sprintf("%d ms to first token", s.FirstTokenMS))
	default:
		parts = append(parts, estimate(first.Seconds())+" s to first token")
	}
	if s.TokensPerSecond > 0 {
		parts = append(parts, estimate(s.TokensPerSecond)+" tokens/s")
	}
	return "about " + strings.Join(parts, ", ")
}

// estimate formats an estimate. Numbers below 10 get one decimal.
func estimate(x float64) string {
	if text := fmt.Sprintf("%.1f", x); len(text) == len("1.0") {
		return text
	}
	return api.Number(int64(math.Round(x)))
}
