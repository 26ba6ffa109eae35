package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/engine"
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
			_, err = control(config.Daemon.Data).call(cmd.Context(), "ask for the status", http.MethodGet, "/status", nil, &now.Status)
			if _, off := errors.AsType[unreachable](err); off {
				return a.showSaved(config.Daemon.Data)
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

const signedOut = "not signed in; `kith login --hub URL --token TOKEN` connects this machine to a hub"

// showSaved prints what is known of a daemon that does not run.
func (a *app) showSaved(data string) error {
	saved, err := daemon.LoadCredential(data)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if a.json {
		var now resting
		now.Line.SignedIn, now.Line.Hub, now.Line.Machine = err == nil, saved.Hub, saved.Machine
		return a.printJSON(now)
	}
	a.fact("daemon", "not running; start it with `kith serve`")
	if err != nil {
		a.fact("hub", signedOut)
		return nil
	}
	a.fact("hub", "%s, as machine %s of %s", saved.Hub, saved.Machine, saved.Member)
	return nil
}

func (a *app) showStatus(now daemon.Status) {
	a.fact("daemon", "%s since %s, version %s", now.Local, day(now.Started), now.Version)
	hub := signedOut
	if now.Line.SignedIn {
		hub = fmt.Sprintf("%s as machine %s: %s", now.Line.Hub, cmp.Or(now.Line.Name, now.Line.Machine), lineWords(now.Line))
	}
	a.fact("hub", "%s", hub)
	a.fact("slots", "%d, of which %d run calls from the hub and %d your own", now.Slots, now.Routed, now.Own)
	a.fact("sharing", "%s", sharing(now))
	a.showComfort(now)
	if now.Groups != nil {
		a.fact("groups", "%s", cmp.Or(strings.Join(now.Groups, ", "), "none")+" ([share] groups of config.toml)")
	}
	a.showEngines(now.Engines)
	models := "none; start an engine, or put a GGUF file into a folder of [engine] models"
	if len(now.Models) > 0 {
		models = strings.Trim(fmt.Sprint(now.Models), "[]")
	}
	a.fact("models", "%s", models)
	for _, trouble := range now.Troubles {
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
			a.fact(label, "%s at %s: %d models; %d calls of other programs", cmp.Or(found.Name, found.Kind), found.Place, found.Models, found.Others)
		default:
			a.fact(label, "%s at %s: %d models", cmp.Or(found.Name, found.Kind), found.Place, found.Models)
		}
		label = ""
	}
	if label != "" {
		a.fact(label, "none found; start one, or name its place in [discovery] endpoints")
	}
}

// lineWords says for a person how the line to the hub is.
func lineWords(line daemon.LineStatus) string {
	state := line.State
	if state == lineUp {
		state = "connected"
	}
	if line.Trouble != "" {
		state += ", " + line.Trouble
	}
	return state
}

// sharing says whether others' calls run here now, and why not.
func sharing(now daemon.Status) string {
	when := "always"
	if now.Sharing.Hours != "" {
		when = now.Sharing.Hours + " " + now.Sharing.Timezone
	}
	switch {
	case now.Sharing.Paused:
		if !now.Sharing.Until.IsZero() {
			return "paused until " + day(now.Sharing.Until) + "; hours: " + when
		}
		return "paused; hours: " + when
	case !now.Open:
		return "outside its hours: " + when
	}
	return "open; hours: " + when
}
