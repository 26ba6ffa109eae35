package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
)

// control is a client to the control API of the daemon on data, over its
// socket alone: whoever may open that is the owner.
func control(data string) *client {
	return overSocket(filepath.Join(data, "daemon.sock"), "this machine's daemon", "start it with `kith serve`")
}

// running is what `kith status --json` prints of a daemon that runs: its own
// words.
type running struct {
	Running bool `json:"running"`
	daemon.Status
}

// resting is what it prints of one that does not: what is saved.
type resting struct {
	Running bool `json:"running"` // false
	Line    struct {
		SignedIn bool   `json:"signed_in"`
		Hub      string `json:"hub,omitempty"`
		Machine  string `json:"machine,omitempty"`
	} `json:"line"`
	Sharing daemon.Sharing `json:"sharing"`
	Open    bool           `json:"open"` // inside the sharing hours just now
	Groups  []string       `json:"groups,omitzero"`
}

func (a *app) status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show this machine's daemon, its engines and its line to the hub", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := loadDaemonFile(a.home, "")
			if err != nil {
				return err
			}
			now := running{Running: true}
			_, err = control(config.Daemon.Data).call(cmd.Context(), "ask for the status", request{http.MethodGet, "/status", nil}, &now.Status)
			if _, off := errors.AsType[unreachable](err); off {
				return a.showSaved(config)
			}
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(now)
			}
			a.showStatus(now.Status)
			return nil
		},
	}
}

// fact prints one labelled line of a status.
func (a *app) fact(label, format string, args ...any) {
	a.say("%s  %s\n", strong(fmt.Sprintf("%-8s", label)), fmt.Sprintf(format, args...))
}

const signedOut = "not signed in; `kith login --hub URL` connects this machine to a hub"

// showSaved prints what is known of a daemon that does not run: what it starts
// with.
func (a *app) showSaved(config *daemonFile) error {
	saved, missing := daemon.LoadCredential(config.Daemon.Data)
	if missing != nil && !errors.Is(missing, fs.ErrNotExist) {
		return missing
	}
	now := resting{Groups: config.Share.Groups}
	now.Line.SignedIn, now.Line.Hub, now.Line.Machine = missing == nil, saved.Hub, saved.Machine
	var err error
	if now.Sharing, err = daemon.ChangeSaved(config.Daemon.Data, config.sharing(), daemon.Change{}); err != nil {
		return err
	}
	hours, err := fleet.ParseHours(now.Sharing.Hours, now.Sharing.Timezone)
	if err != nil {
		return err
	}
	now.Open = hours.Open(time.Now())
	if a.json {
		return a.printJSON(now)
	}
	a.fact("daemon", "not running; start it with `kith serve`")
	hub := signedOut
	if now.Line.SignedIn {
		hub = fmt.Sprintf("%s, as machine %s of %s", saved.Hub, saved.Machine, saved.Member)
	}
	a.fact("hub", "%s", hub)
	a.fact("sharing", "%s, once it runs", sharing(now.Sharing, now.Open))
	a.showServed(now.Groups)
	return nil
}

// showServed prints the groups that the configuration names, if it does.
func (a *app) showServed(groups []string) {
	if groups != nil {
		a.fact("groups", "%s", cmp.Or(strings.Join(groups, ", "), "none")+" ([share] groups of config.toml)")
	}
}

func (a *app) showStatus(now daemon.Status) {
	a.fact("daemon", "%s since %s, version %s", now.Local, day(now.Started), now.Version)
	hub := signedOut
	if now.Tunnel.SignedIn {
		hub = fmt.Sprintf("%s as machine %s: %s", now.Tunnel.Hub, cmp.Or(now.Tunnel.Name, now.Tunnel.Machine), lineWords(now.Tunnel))
	}
	a.fact("hub", "%s", hub)
	a.fact("slots", "%d; calls from the hub take %d, your own %d", now.Slots, now.Routed, now.Own)
	a.fact("sharing", "%s", sharing(now.Sharing, now.Open))
	a.showComfort(now)
	a.showServed(now.Groups)
	a.showEngines(now.Engines)
	models := "none; start an engine, or put a GGUF file into a folder of [engine] models"
	if len(now.Models) > 0 {
		models = strings.Trim(fmt.Sprint(now.Models), "[]")
	}
	a.fact("models", "%s", models)
	for _, trouble := range now.RecentErrors {
		a.fact("trouble", "%s %s", day(trouble.At), trouble.What)
	}
}

// showEngines prints what was found and what was not; the usual ports where
// nothing listens are not worth a line each.
func (a *app) showEngines(engines []daemon.EngineStatus) {
	label := "engines"
	for _, found := range engines {
		switch {
		case !found.Configured && found.Why == engine.NothingListens:
			continue
		case found.Why != "":
			a.fact(label, "%s: %s", strings.TrimSpace(found.Name+" "+found.Place), faint(found.Why))
		case found.Others > 0:
			a.fact(label, "%s at %s: %s; %s of other programs", cmp.Or(found.Name, found.Kind), found.Place, count(found.Models, "model"), count(found.Others, "call"))
		default:
			a.fact(label, "%s at %s: %s", cmp.Or(found.Name, found.Kind), found.Place, count(found.Models, "model"))
		}
		label = ""
	}
	if label != "" {
		a.fact(label, "none found; start one, or name its place in [discovery] endpoints")
	}
}

// lineWords says for a person how the line to the hub is.
func lineWords(line daemon.TunnelStatus) string {
	state := line.State
	if state == lineUp {
		state = "connected"
	}
	if line.Error != "" {
		state += ", " + line.Error
	}
	return state
}

// sharing says whether others' calls run here now, and why not.
func sharing(now daemon.Sharing, open bool) string {
	when := "always"
	if now.Hours != "" {
		when = now.Hours + " " + now.Timezone
	}
	switch {
	case now.Paused && !now.Until.IsZero():
		return "paused until " + day(now.Until) + "; hours: " + when
	case now.Paused:
		return "paused; hours: " + when
	case !open:
		return "outside its hours: " + when
	}
	return "open; hours: " + when
}
