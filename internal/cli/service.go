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
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

//go:embed service
var serviceTemplates embed.FS

// manager describes a system's service manager for the user's own services
// (docs/decisions/0007).
type manager struct {
	name     string // for people
	template string // path relative to service/
	file     string // path relative to the user's home
	variable string // format of an environment variable, given name and value
	escape   *strings.Replacer
	// Commands to check whether the manager serves this user, to start the service of an
	// installed file, to stop it, to reload the manager after its removal, and to check
	// whether it is running. FILE and UID are replaced by the file and the user's id.
	isThere             []string
	start, stop, reload [][]string
	isRunning           []string
	boot                string // for people: when the service starts
}

var managers = map[string]manager{
	"linux": {
		name: "systemd", template: "kith.service", file: ".config/systemd/user/kith.service",
		variable:  "\nEnvironment=\"%s=%s\"",
		escape:    strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, "\n", `\n`),
		isThere:   []string{"systemctl", "--user", "daemon-reload"},
		start:     [][]string{{"systemctl", "--user", "daemon-reload"}, {"systemctl", "--user", "enable", "--now", "kith.service"}},
		stop:      [][]string{{"systemctl", "--user", "disable", "--now", "kith.service"}},
		reload:    [][]string{{"systemctl", "--user", "daemon-reload"}},
		isRunning: []string{"systemctl", "--user", "is-active", "--quiet", "kith.service"},
		boot:      "it starts when you sign in to this computer; `loginctl enable-linger` has it start with the computer",
	},
	"darwin": {
		name: "launchd", template: "org.kith.daemon.plist", file: "Library/LaunchAgents/org.kith.daemon.plist",
		variable:  "<key>%s</key><string>%s</string>",
		isThere:   []string{"launchctl", "print", "gui/UID"},
		escape:    strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;"),
		start:     [][]string{{"launchctl", "bootstrap", "gui/UID", "FILE"}},
		stop:      [][]string{{"launchctl", "bootout", "gui/UID/org.kith.daemon"}},
		isRunning: []string{"launchctl", "print", "gui/UID/org.kith.daemon"},
		boot:      "it starts when you sign in to this computer",
	},
}

func (a *app) service() *cobra.Command {
	on := func(name string, act func(context.Context, *service) error) *cobra.Command {
		return command("kith service "+name, func(ctx context.Context, _ []string) error {
			s, err := a.newService(runtime.GOOS)
			if err != nil {
				return err
			}
			return act(ctx, s)
		})
	}
	return group("kith service",
		on("install", a.installService), on("uninstall", a.uninstallService), on("status", a.serviceStatus))
}

// service is the daemon as a service of this user.
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

// keptVariables are variables of the shell's environment that the service gets, too:
// proxies, certificate authorities, and the locations of programs, libraries and engines.
// Service managers start services with a short PATH and without the other variables.
var keptVariables = []string{
	"PATH", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "OLLAMA_HOST", "KITH_LLAMA_LIB",
}

// secretVariable matches the variables that the configuration names as "env:NAME".
var secretVariable = regexp.MustCompile(`["']env:(\w+)["']`)

// kept returns the names of the set variables that the service gets.
func (s *service) kept() (names []string) {
	all := slices.Clone(keptVariables)
	config, _ := os.ReadFile(filepath.Join(s.home, "config.toml")) // a missing file contains none
	for _, m := range secretVariable.FindAllSubmatch(config, -1) {
		all = append(all, string(m[1]))
	}
	for _, name := range all {
		if os.Getenv(name) != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// text returns the content of the service's file.
func (s *service) text(program string) ([]byte, error) {
	text, err := serviceTemplates.ReadFile("service/" + s.template)
	if err != nil {
		return nil, err
	}
	var environment strings.Builder
	for _, name := range s.kept() {
		value := os.Getenv(name)
		if name == "SSL_CERT_FILE" || name == "KITH_LLAMA_LIB" { // the service has a different working folder
			if value, err = filepath.Abs(value); err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(&environment, s.variable, name, s.escape.Replace(value))
	}
	return []byte(strings.NewReplacer(
		"{{program}}", s.escape.Replace(program), "{{home}}", s.escape.Replace(s.home), "{{environment}}", environment.String(),
	).Replace(string(text))), nil
}

// stableProgram returns a path of this program that stays valid after an upgrade: a link
// on the PATH, such as Homebrew's, or the path that it was started with, rather than the
// file that they point to.
func stableProgram(self, started string) (string, error) {
	file, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"kith", started} {
		found, err := exec.LookPath(name)
		if err == nil {
			found, err = filepath.Abs(found)
		}
		if info, statErr := os.Stat(found); err == nil && statErr == nil && os.SameFile(file, info) {
			return found, nil
		}
	}
	return filepath.EvalSymlinks(self)
}

// missingFolders returns the folders that os.MkdirAll(path) would create, innermost
// first.
func missingFolders(path string) (missing []string) {
	for ; ; path = filepath.Dir(path) {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return missing
		}
		missing = append(missing, path)
	}
}

func (a *app) installService(ctx context.Context, s *service) error {
	program, err := os.Executable()
	if err == nil {
		program, err = stableProgram(program, os.Args[0])
	}
	if err != nil {
		return fmt.Errorf("cannot find this program: %w; start kith by its full path", err)
	}
	if err := s.run(ctx, s.isThere); err != nil {
		return fmt.Errorf("cannot install the service, and nothing of it is left: %s does not serve this user here (%w); "+
			"sign in as this user, not by su or sudo; where there is no %[1]s, have `crontab -e` start the daemon: "+
			"@reboot KITH_HOME='%[3]s' '%[4]s' serve", s.name, err, s.home, program)
	}
	text, err := s.text(program)
	if err != nil {
		return fmt.Errorf("cannot install the service: %w", err)
	}
	if err := s.put(ctx, text); err != nil {
		return fmt.Errorf("cannot install the service: %w", err)
	}
	return a.printService(s, true, true, s.kept(), "installed and started: "+strong(s.path)+"\n"+
		"it starts "+program+"\nwith these variables of this shell: "+strings.Join(s.kept(), ", ")+"\n"+faint(s.boot))
}

// put writes the service's file and starts the service. On error it restores the previous
// state.
func (s *service) put(ctx context.Context, text []byte) (err error) {
	logs := filepath.Join(s.home, "log")
	made := append(missingFolders(filepath.Dir(s.path)), missingFolders(logs)...)
	older, err := os.ReadFile(s.path)
	installed := err == nil
	defer func() {
		if err == nil {
			return
		}
		if installed {
			_ = os.WriteFile(s.path, older, 0o600)
			_ = s.all(ctx, s.start)
			return
		}
		_ = os.Remove(s.path)
		_ = s.all(ctx, s.reload)
		for _, folder := range made {
			_ = os.Remove(folder) // if it is empty
		}
	}()
	for _, folder := range []string{filepath.Dir(s.path), logs} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(s.path, text, 0o600); err != nil {
		return err
	}
	_ = s.all(ctx, s.stop) // an older installation, possibly of another program
	return s.all(ctx, s.start)
}

func (a *app) uninstallService(ctx context.Context, s *service) error {
	if _, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) {
		return a.printService(s, false, false, nil, "not installed")
	}
	there := s.run(ctx, s.isThere) == nil // otherwise only the file of the service exists
	if err := s.all(ctx, s.stop); err != nil && there {
		return err
	}
	if err := os.Remove(s.path); err != nil {
		return fmt.Errorf("cannot remove the service: %w", err)
	}
	if err := s.all(ctx, s.reload); err != nil && there {
		return err
	}
	return a.printService(s, false, false, nil, "ended and removed")
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
		text = "installed in " + s.path + " and does not run; its log has the reason"
	}
	return a.printService(s, installed, running, nil, text)
}

func (a *app) printService(s *service, installed, running bool, variables []string, text string) error {
	return a.print(struct {
		Installed bool     `json:"installed"`
		Running   bool     `json:"running"`
		File      string   `json:"file"`
		Variables []string `json:"variables,omitempty"` // the names of the variables that it keeps
	}{installed, running, s.path, variables}, func() { a.say("%s\n", text) })
}

func (s *service) all(ctx context.Context, commands [][]string) error {
	for _, command := range commands {
		if err := s.run(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// managerTimeout is longer than the manager takes to stop a daemon.
const managerTimeout = 2 * time.Minute

// run runs one command of the manager. The error contains its output.
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
