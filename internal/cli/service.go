package cli

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

//go:embed service
var serviceTemplates embed.FS

// manager describes a system's manager of the user's own services (docs/decisions/0009).
type manager struct {
	template string // below service/
	file     string // below the user's home
	escape   *strings.Replacer
	// The commands that start the service of an installed file, stop it, reload the
	// manager after its removal, and report whether it runs. FILE and UID are replaced by
	// the file and the user's id.
	start, stop, reload [][]string
	isRunning           []string
	boot                string // for people: when the service starts
}

var managers = map[string]manager{
	"linux": {
		template: "kith.service", file: ".config/systemd/user/kith.service",
		escape:    strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, `$`, `$$`),
		start:     [][]string{{"systemctl", "--user", "daemon-reload"}, {"systemctl", "--user", "enable", "--now", "kith.service"}},
		stop:      [][]string{{"systemctl", "--user", "disable", "--now", "kith.service"}},
		reload:    [][]string{{"systemctl", "--user", "daemon-reload"}},
		isRunning: []string{"systemctl", "--user", "is-active", "--quiet", "kith.service"},
		boot:      "it starts when you sign in to this computer; `loginctl enable-linger` has it start with the computer",
	},
	"darwin": {
		template: "org.kith.daemon.plist", file: "Library/LaunchAgents/org.kith.daemon.plist",
		escape:    strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;"),
		start:     [][]string{{"launchctl", "bootstrap", "gui/UID", "FILE"}},
		stop:      [][]string{{"launchctl", "bootout", "gui/UID/org.kith.daemon"}},
		isRunning: []string{"launchctl", "print", "gui/UID/org.kith.daemon"},
		boot:      "it starts when you sign in to this computer",
	},
}

func (a *app) service() *cobra.Command {
	on := func(use, short string, act func(context.Context, *service) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				s, err := a.newService(runtime.GOOS)
				if err != nil {
					return err
				}
				return act(cmd.Context(), s)
			},
		}
	}
	return group("service", "Have the system start the daemon at each sign-in, or no longer",
		on("install", "Have the system start the daemon now and at each sign-in", a.installService),
		on("uninstall", "Stop and remove the service", a.uninstallService),
		on("status", "Show whether it is installed and runs", a.serviceStatus))
}

// service is the daemon as this user's service.
type service struct {
	manager
	path string
	home string
}

func (a *app) newService(system string) (*service, error) {
	m, ok := managers[system]
	if !ok {
		return nil, fmt.Errorf("cannot install a service on %s; have its task scheduler run `kith serve` when you sign in", system)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, fmt.Errorf("cannot find your home folder: %w; set HOME", err)
	}
	s := &service{m, filepath.Join(home, filepath.FromSlash(m.file)), a.home}
	if config := os.Getenv("XDG_CONFIG_HOME"); system == "linux" && filepath.IsAbs(config) {
		s.path = filepath.Join(config, "systemd", "user", "kith.service")
	}
	return s, nil
}

// text returns the content of the service's file.
func (s *service) text(program string) ([]byte, error) {
	text, err := serviceTemplates.ReadFile("service/" + s.template)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"{{program}}": program, "{{home}}": s.home} {
		text = bytes.ReplaceAll(text, []byte(name), []byte(s.escape.Replace(value)))
	}
	return text, nil
}

func (a *app) installService(ctx context.Context, s *service) error {
	program, err := os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return fmt.Errorf("cannot find this program: %w; start kith by its full path", err)
	}
	text, err := s.text(program)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(s.path), 0o700)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(s.home, "log"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(s.path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot install the service: %w", err)
	}
	_ = s.all(ctx, s.stop) // an older installation, perhaps of another program
	if err := s.all(ctx, s.start); err != nil {
		return err
	}
	return a.printService(s, true, true, "installed and started: "+strong(s.path)+"\n"+faint(s.boot))
}

func (a *app) uninstallService(ctx context.Context, s *service) error {
	if _, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) {
		return a.printService(s, false, false, "not installed")
	}
	if err := s.all(ctx, s.stop); err != nil {
		return err
	}
	if err := os.Remove(s.path); err != nil {
		return fmt.Errorf("cannot remove the service: %w", err)
	}
	if err := s.all(ctx, s.reload); err != nil {
		return err
	}
	return a.printService(s, false, false, "ended and removed")
}

func (a *app) serviceStatus(ctx context.Context, s *service) error {
	_, err := os.Stat(s.path)
	installed := err == nil
	running := installed && s.run(ctx, s.isRunning) == nil
	text := "not installed; `kith service install` does it"
	switch {
	case running:
		text = "runs, by " + s.path
	case installed:
		text = "installed in " + s.path + " and does not run; its log says why"
	}
	return a.printService(s, installed, running, text)
}

func (a *app) printService(s *service, installed, running bool, text string) error {
	return a.print(struct {
		Installed bool   `json:"installed"`
		Running   bool   `json:"running"`
		File      string `json:"file"`
	}{installed, running, s.path}, func() { a.say("%s\n", text) })
}

func (s *service) all(ctx context.Context, commands [][]string) error {
	for _, command := range commands {
		if err := s.run(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// managerTimeout is longer than the manager takes to end a daemon.
const managerTimeout = 2 * time.Minute

// run runs one command of the manager. The error holds its output.
func (s *service) run(ctx context.Context, command []string) error {
	args := make([]string, len(command))
	for i, arg := range command {
		args[i] = strings.NewReplacer("FILE", s.path, "UID", strconv.Itoa(os.Getuid())).Replace(arg)
	}
	ctx, cancel := context.WithTimeout(ctx, managerTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot run `%s`: %w: %s; run it by hand to see more", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
