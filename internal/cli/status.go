package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/daemon"
)

// control is a client to the control API of the daemon on data, over its
// socket alone: whoever may open that is the owner.
func control(data string) *client {
	return overSocket(filepath.Join(data, "daemon.sock"), "this machine's daemon", "start it with `kith serve`")
}

// report is what `kith status --json` prints: the daemon's own words when it
// runs, else what is saved.
type report struct {
	Running bool `json:"running"`
	daemon.Status
}

func (a *app) status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show this machine's daemon, its engines and its line to the hub", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := loadDaemonFile(a.home, "")
			if err != nil {
				return err
			}
			data := config.Daemon.Data
			var now report
			_, err = control(data).call(cmd.Context(), "ask for the status", http.MethodGet, "/status", nil, &now.Status)
			if now.Running = err == nil; !now.Running {
				if _, off := errors.AsType[unreachable](err); !off {
					return err
				}
				if err := saved(data, &now); err != nil {
					return err
				}
			}
			if a.json {
				return a.printJSON(now)
			}
			a.showStatus(now)
			return nil
		},
	}
}

// saved fills in what is known of a daemon that does not run.
func saved(data string, now *report) error {
	signedIn, err := daemon.LoadCredential(data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	now.Line.SignedIn, now.Line.Hub = err == nil, signedIn.Hub
	now.Line.Machine, now.Line.Name = signedIn.Machine, signedIn.Name
	return err
}

func (a *app) showStatus(now report) {
	line := func(label, format string, args ...any) {
		a.say("%s  %s\n", strong(fmt.Sprintf("%-8s", label)), fmt.Sprintf(format, args...))
	}
	hub := "not signed in; `kith login --hub URL --token TOKEN` connects this machine to a hub"
	if now.Line.SignedIn {
		hub = fmt.Sprintf("%s as machine %s", now.Line.Hub, now.Line.Name)
	}
	if !now.Running {
		line("daemon", "not running; start it with `kith serve`")
		line("hub", "%s", hub)
		return
	}
	line("daemon", "%s since %s, version %s", now.Local, day(now.Started), now.Version)
	if now.Line.SignedIn {
		hub += ", " + now.Line.State
		if now.Line.Trouble != "" {
			hub += ": " + now.Line.Trouble
		}
	}
	line("hub", "%s", hub)
	line("slots", "%d, of which %d run calls from the hub and %d your own", now.Slots, now.Routed, now.Own)
	line("sharing", "%s", sharing(now.Status))
	for i, found := range now.Engines {
		label := ""
		if i == 0 {
			label = "engines"
		}
		if found.Why != "" {
			line(label, "%s: %s", found.Place, faint(found.Why))
			continue
		}
		line(label, "%s: %s, %d models", found.Place, found.Kind, len(found.Place))
	}
	names := make([]string, len(now.Models))
	for i, id := range now.Models {
		names[i] = string(id)
	}
	line("models", "%s", strings.Join(names, ", "))
	for _, trouble := range now.Troubles {
		line("trouble", "%s %s", day(trouble.At), trouble.What)
	}
}

// sharing says whether others' calls run here now, and why not.
func sharing(now daemon.Status) string {
	when := "always"
	if now.Sharing.Hours != "" {
		when = now.Sharing.Hours + " " + now.Sharing.Timezone
	}
	switch {
	case now.Sharing.Paused:
		return "paused; hours: " + when
	case !now.Open:
		return "outside its hours: " + when
	}
	return "open; hours: " + when
}
