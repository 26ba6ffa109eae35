package cli

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/fleet"
)

// sharingNow is the --json output of the commands about this machine's sharing.
type sharingNow struct {
	Running bool `json:"running"` // the daemon
	daemon.Sharing
	Open    bool `json:"open"`             // now inside the sharing hours
	Drained bool `json:"drained,omitzero"` // no call of the hub is running
}

// changeSharing sends in to this machine's daemon. If no daemon is running, it applies
// the same change to the saved state.
func (a *app) changeSharing(ctx context.Context, doing, path string, in any, change fleet.Control) (sharingNow, error) {
	config, err := loadLocalFile(a.home)
	if err != nil {
		return sharingNow{}, err
	}
	now := sharingNow{Running: true}
	send := func() error {
		_, err := control(config.Daemon.Data).call(ctx, doing, request{http.MethodPost, path, in}, &now.Sharing)
		return err
	}
	err = send()
	if _, off := errors.AsType[unreachable](err); off {
		if now.Sharing, err = daemon.ChangeSaved(config.Daemon.Data, config.sharing(), change); err != nil {
			return sharingNow{}, err
		}
		now.Running = send() == nil // a daemon that has just started read the old state
	}
	if err != nil {
		return sharingNow{}, err
	}
	now.Open, err = isOpen(now.Sharing)
	return now, err
}

func isOpen(s daemon.Sharing) (bool, error) {
	hours, err := fleet.ParseHours(s.Hours, s.Timezone)
	return hours.Open(time.Now()), err
}

// printSharing prints now as JSON or calls say.
func (a *app) printSharing(now sharingNow, say func()) error {
	return a.print(now, func() {
		say()
		if !now.Running {
			a.note("The daemon is not running (" + startDaemon(a.home) + "); this takes effect at its next start.")
		}
	})
}

func (a *app) pause() *cobra.Command {
	var length time.Duration
	var until string
	var drain bool
	var cmd *cobra.Command
	cmd = command("kith pause", func(ctx context.Context, _ []string) error {
		end, err := pauseEnd(time.Now(), length, cmd.Flags().Changed("for"), until)
		if err != nil {
			return err
		}
		yes := true
		now, err := a.changeSharing(ctx, "pause this machine", "/pause",
			daemon.PauseChange{Until: end}, fleet.Control{Paused: &yes, Until: &end})
		if err != nil {
			return err
		}
		if drain {
			return a.drain(ctx, now)
		}
		return a.printSharing(now, func() { a.sayPaused(now) })
	})
	cmd.Flags().DurationVar(&length, "for", 0, "end the pause after this time, like 2h or 45m")
	cmd.Flags().StringVar(&until, "until", "", "end the pause at this time of today or tomorrow, like 18:30")
	cmd.Flags().BoolVar(&drain, "drain", false, "wait until every call from the hub has ended")
	cmd.MarkFlagsMutuallyExclusive("for", "until")
	return cmd
}

func (a *app) sayPaused(now sharingNow) {
	if now.Until.IsZero() {
		a.say("paused, until `kith resume`; running calls finish\n")
		return
	}
	a.say("paused until %s; running calls finish\n", strong(moment(now.Until)))
}

// pauseEnd returns when a pause that starts now ends; the zero time means never.
func pauseEnd(now time.Time, length time.Duration, limited bool, until string) (time.Time, error) {
	switch {
	case limited && length <= 0:
		return time.Time{}, wrongUse("cannot pause for %s: give a positive time, like --for 2h", length)
	case limited:
		return now.Add(length).Round(time.Second), nil
	case until == "":
		return time.Time{}, nil
	}
	clock, err := time.Parse("15:04", until)
	if err != nil {
		return time.Time{}, wrongUse("cannot pause until %q: give a time of the day, like --until 18:30", until)
	}
	at := func(days int) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+days, clock.Hour(), clock.Minute(), 0, 0, now.Location())
	}
	if today := at(0); today.After(now) {
		return today, nil
	}
	return at(1), nil
}

func (a *app) drain(ctx context.Context, now sharingNow) error {
	if now.Running {
		config, err := loadLocalFile(a.home)
		if err != nil {
			return err
		}
		if !a.json {
			a.sayPaused(now)
		}
		a.progress("waiting for the running calls to end")
		_, err = control(config.Daemon.Data).call(ctx, "drain this machine", request{http.MethodPost, "/drain", nil}, &now.Sharing)
		a.progress("")
		if err != nil {
			return err
		}
	}
	now.Drained = true
	return a.printSharing(now, func() { a.say("drained: no call from the hub runs here\n") })
}

func (a *app) resume() *cobra.Command {
	return command("kith resume", func(ctx context.Context, _ []string) error {
		no := false
		now, err := a.changeSharing(ctx, "resume", "/resume", nil, fleet.Control{Paused: &no})
		if err != nil {
			return err
		}
		return a.printSharing(now, func() { a.say("taking calls from the hub again\n") })
	})
}

func (a *app) hours() *cobra.Command {
	var zone string
	set := command("kith hours set", func(ctx context.Context, args []string) error {
		read, err := fleet.ParseHours(args[0], zone)
		if err != nil {
			return failure{exitWrongUse, err}
		}
		return a.setHours(ctx, read.String(), zone)
	})
	set.Flags().StringVar(&zone, "tz", "", "the IANA time zone of the hours, like Europe/Lisbon")
	set.Args = argumentsOf("HOURS")
	always := command("kith hours clear", func(ctx context.Context, _ []string) error {
		return a.setHours(ctx, "", "")
	})
	return withCommands(command("kith hours", a.showHours), command("kith hours show", a.showHours), set, always)
}

func (a *app) setHours(ctx context.Context, hours, zone string) error {
	change := fleet.Control{Hours: &hours}
	if zone != "" {
		change.Timezone = &zone
	}
	now, err := a.changeSharing(ctx, "set the hours", "/hours", daemon.HoursChange{Hours: hours, Timezone: zone}, change)
	if err != nil {
		return err
	}
	return a.printSharing(now, func() { a.sayHours(now) })
}

func (a *app) showHours(ctx context.Context, _ []string) error {
	_, status, running, err := a.daemonStatus(ctx, "ask for the hours")
	if err != nil {
		return err
	}
	now := sharingNow{Running: running, Sharing: status.Sharing, Open: status.Open}
	return a.printSharing(now, func() {
		a.sayHours(now)
		if why := zoneUnknown(status); why != "" {
			a.say("%s\n", why)
		}
	})
}

func (a *app) sayHours(now sharingNow) {
	if now.Hours == "" {
		a.say("others may use this machine at %s\n", strong("any time"))
		return
	}
	state := "closed now"
	if now.Open {
		state = "open now"
	}
	a.say("others may use this machine %s, in %s: %s\n", strong(now.Hours), now.Timezone, state)
}
