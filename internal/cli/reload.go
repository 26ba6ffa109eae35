package cli

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
)

// reloadable are the sections of config.toml that a running daemon can apply. The others
// take effect at the next start.
var reloadable = []string{"ratelimit", "discovery", "share"}

func (a *app) reload() *cobra.Command {
	return command("kith reload", func(ctx context.Context, _ []string) error {
		config, err := loadLocalFile(a.home)
		if err != nil {
			return err
		}
		daemonOf := requester{a, func() (*client, error) { return control(config.Daemon.Data), nil }}
		return ask(ctx, daemonOf, "reload", api.Request[daemon.ReloadResult]{Method: http.MethodPost, Path: "/reload"}, func(done daemon.ReloadResult) {
			a.showReloaded("daemon", done.Applied, done.Restart)
		})
	})
}

// showReloaded prints which settings of a process have changed.
func (a *app) showReloaded(process string, applied, restart []string) {
	if len(applied)+len(restart) == 0 {
		a.say("nothing has changed\n")
	}
	if len(applied) > 0 {
		a.say("in effect now: %s\n", strong(strings.Join(applied, ", ")))
	}
	if len(restart) > 0 {
		a.say("from the next start of the %s: %s\n", process, strong(strings.Join(restart, ", ")))
	}
}

// reload reads the configuration again and applies the settings that can change. On error
// nothing changes.
func (m *daemonProcess) reload(ctx context.Context) (daemon.ReloadResult, error) {
	m.reloading.Lock()
	defer m.reloading.Unlock()
	done := daemon.ReloadResult{Applied: []string{}, Restart: []string{}}
	next, err := m.read()
	if err != nil {
		return done, err
	}
	for _, key := range changed(reflect.ValueOf(*m.config), reflect.ValueOf(*next), "") {
		section, _, _ := strings.Cut(key, ".")
		if slices.Contains(reloadable, section) {
			done.Applied = append(done.Applied, key)
		} else {
			done.Restart = append(done.Restart, key)
		}
	}
	after := *m.config
	after.RateLimit, after.Discovery, after.Share = next.RateLimit, next.Discovery, next.Share
	if err := m.daemon.Reload(ctx, (&daemonProcess{config: &after, log: m.log}).daemonConfig()); err != nil {
		return done, err
	}
	m.config = &after
	m.engines.look()
	m.log.Info("the configuration was read again", "applied", done.Applied, "restart", done.Restart)
	return done, nil
}

// changed returns the dotted keys whose values differ.
func changed(before, after reflect.Value, prefix string) []string {
	var keys []string
	for field := range before.Type().Fields() {
		x, y := before.FieldByIndex(field.Index), after.FieldByIndex(field.Index)
		key := prefix + field.Tag.Get("toml")
		switch {
		case field.Type.Kind() == reflect.Struct && section(field.Type):
			keys = append(keys, changed(x, y, key+".")...)
		case !reflect.DeepEqual(x.Interface(), y.Interface()):
			keys = append(keys, key)
		}
	}
	return keys
}

// reloadOnHangup reads the configuration again at each SIGHUP until ctx ends.
func (m *daemonProcess) reloadOnHangup(ctx context.Context) error {
	if m.read == nil {
		return nil
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	return onHangup(ctx, hangups, m.log, func() error { _, err := m.reload(ctx); return err })
}

// onHangup calls reload for each signal until ctx ends.
func onHangup(ctx context.Context, hangups <-chan os.Signal, log *slog.Logger, reload func() error) error {
	for {
		select {
		case <-hangups:
			if err := reload(); err != nil {
				log.Error("cannot apply the configuration; nothing has changed", "error", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}
