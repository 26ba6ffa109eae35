// Package cli contains kith's commands and configuration files, and connects the other
// packages into running programs. A command prints text for people or, with --json, only
// a JSON document (for streams, one per line). An error is a single line `kith: cannot …`
// on standard error.
package cli

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	module "github.com/kith/kith"
	"github.com/kith/kith/internal/api"
)

// The exit statuses. Scripts rely on them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitWrongUse    = 2
	exitNotSignedIn = 3
	exitNoCapacity  = 4 // nothing can serve the model now
)

// failure is an error with an exit status other than exitFailed.
type failure struct {
	exit int
	error
}

func (f failure) Unwrap() error { return f.error }

func wrongUse(format string, args ...any) error {
	return failure{exitWrongUse, fmt.Errorf(format, args...)}
}

func notSignedIn(format string, args ...any) error {
	return failure{exitNotSignedIn, fmt.Errorf(format, args...)}
}

// app is one run of the program: its streams and the flags common to all commands.
type app struct {
	in            io.Reader
	out, err      screen
	home          string // KITH_HOME
	json          bool
	begun         bool // cobra has accepted the flags and arguments and runs the command
	waiting       sync.Mutex
	progressShown bool   // on the terminal; guarded by waiting
	doing         string // what the command is waiting for, or ""; guarded by waiting
}

// Main runs one command until it or ctx ends, and returns the exit status of the process.
func Main(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	a := &app{in: in, out: screen{out}, err: screen{errs}}
	root := a.root()
	a.track(root)
	strictCompletion(root)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	status := exitFailed
	var f failure
	if e, ok := errors.AsType[ended](err); ok {
		return e.status
	}
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		err = errors.New("cannot finish: interrupted")
	case errors.As(err, &f):
		status = f.exit
	case !a.begun:
		status = exitWrongUse
		err = misused(ran, err)
	}
	a.progress("")
	fmt.Fprintln(a.err, "kith: "+oneLine(err.Error()))
	return status
}

// misused rewrites cobra's error for a command that cobra did not run.
func misused(cmd *cobra.Command, err error) error {
	err = plainMisuse(err)
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if like := nameLike(unknown.GetSpecifiedName(), names); like != "" {
			err = fmt.Errorf("%w, did you mean --%s?", err, like)
		}
	}
	usage := ""
	if strings.Contains(cmd.Use, " ") { // it takes arguments
		usage = "write `" + strings.TrimSuffix(cmd.UseLine(), " [flags]") + "`, "
	}
	return fmt.Errorf("cannot understand the command: %w; %ssee `%s --help`", err, usage, cmd.CommandPath())
}

// cobraTexts maps cobra's messages about flags to kith's.
var cobraTexts = []struct {
	cobra *regexp.Regexp
	plain string
}{
	{regexp.MustCompile(`^required flag\(s\) "(\w+)" not set$`), "--$1 is missing"},
	{regexp.MustCompile(`^required flag\(s\) "(\w+)", "(\w+)" not set$`), "--$1 and --$2 are missing"},
	{regexp.MustCompile(`^if any flags in the group \[(\S+) (\S+)\] are set none .*$`), "give --$1 or --$2, not both"},
}

// plainMisuse rewrites errors of cobra and pflag about arguments and flags in plain
// words.
func plainMisuse(err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		takes := map[string]string{"int": "a number", "duration": "a time like 2h or 45m"}[invalid.GetFlag().Value.Type()]
		if takes != "" {
			return fmt.Errorf("--%s takes %s, not %q", invalid.GetFlag().Name, takes, invalid.GetValue())
		}
	}
	for _, text := range cobraTexts {
		if text.cobra.MatchString(err.Error()) {
			return errors.New(text.cobra.ReplaceAllString(err.Error(), text.plain))
		}
	}
	return err
}

// oneLine returns a message as a single line that starts with "cannot".
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if !strings.HasPrefix(text, "cannot ") {
		text = "cannot continue: " + text
	}
	return text
}

func (a *app) root() *cobra.Command {
	var version bool
	root := group("kith")
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetHelpFunc(a.fitHelp(root.HelpFunc()))
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if version {
			return a.showVersion(cmd.Context(), args)
		}
		return cmd.Help()
	}
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON and nothing else on standard output")
	for _, part := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Try it", []*cobra.Command{a.dev(), a.rehearse()}},
		{"Call models", []*cobra.Command{a.run(), a.models(), a.env(), a.launch(), a.keys(), a.usage(), a.why()}},
		{"This machine", []*cobra.Command{
			a.pull(), a.engineCommand(), a.serve(), a.service(), a.status(), a.doctor(), a.pause(), a.resume(), a.hours(), a.reload(), a.config(),
		}},
		{"Your hub, and the people you share with", []*cobra.Command{a.login(), a.logout(), a.share(), a.accept(), a.trust(), a.groups()}},
		{"For a hub's operator", []*cobra.Command{a.hub(), a.admin()}},
	} {
		root.AddGroup(&cobra.Group{ID: part.title, Title: part.title + ":"})
		for _, cmd := range part.commands {
			cmd.GroupID = part.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(command("kith version", a.showVersion))
	return root
}

// known rejects an unknown subcommand and suggests one with a similar name.
func known(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := cobra.NoArgs(cmd, args)
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if like := nameLike(args[0], names); like != "" {
		err = fmt.Errorf("%w, did you mean %q?", err, like)
	}
	return err
}

// nameLike returns the name that is most similar to the text, or "" if none is similar.
func nameLike(text string, names []string) (like string) {
	nearest := max(2, len(text)/3) + 1
	for _, name := range names {
		d := api.Distance(text, name)
		if strings.HasPrefix(name, text) {
			d = 1
		}
		if d < nearest {
			like, nearest = name, d
		}
	}
	return like
}

// track wraps every command to set begun and home before it runs.
func (a *app) track(cmd *cobra.Command) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		own := args
		if dash := cmd.ArgsLenAtDash(); dash >= 0 { // the rest is for another program
			own = args[:dash]
		}
		if slices.Contains(own, "") {
			return errors.New("an argument is empty")
		}
		a.begun = true
		if a.home, err = kithHome(); err != nil {
			return err
		}
		return run(cmd, args)
	}
	for _, sub := range cmd.Commands() {
		a.track(sub)
	}
}

// kithHome returns the folder of the member's files: KITH_HOME or, if it is not set,
// ~/.kith.
func kithHome() (string, error) {
	if home := os.Getenv("KITH_HOME"); home != "" {
		return filepath.Abs(pathHere(home))
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("cannot find your home folder: %w; set KITH_HOME", err)
	}
	return filepath.Join(home, ".kith"), nil
}

func (a *app) printJSON(v any) error {
	line, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("cannot write the answer as JSON: %w", err)
	}
	return a.writeJSON(line)
}

// writeJSON writes a document on its own line. It writes control characters, which a
// terminal might execute, as JSON escapes, which mean the same.
func (a *app) writeJSON(document []byte) error {
	var b strings.Builder
	for _, r := range string(document) { // only strings in the document can contain such characters
		switch {
		case !isControl(r):
			b.WriteRune(r)
		case r >= ' ': // in no text otherwise
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	_, err := fmt.Fprintln(a.out, b.String())
	return err
}

// print prints the document with --json, and otherwise calls show.
func (a *app) print(document any, show func()) error {
	if a.json {
		return a.printJSON(document)
	}
	show()
	return nil
}

// say prints text for people. lipgloss removes styles unless the output is a terminal,
// and colors if NO_COLOR is set.
func (a *app) say(format string, args ...any) {
	_, _ = fmt.Fprintf(a.out, format, args...)
}

func terminal(stream any) bool {
	if s, ok := stream.(screen); ok {
		stream = s.raw
	}
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Commands returns the tree of all commands, for scripts/man.
func Commands() *cobra.Command { return new(app).root() }

// Version is the version that scripts/release and the image's build set by the linker.
var Version string

// build is the output of `kith version --json`.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitzero"` // of the source code
	Modified bool   `json:"modified,omitzero"` // built from uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// thisBuild returns what the toolchain recorded in the binary.
func thisBuild() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return buildOf(Version, info)
}

// release is the module's version of a commit with a release's tag.
var release = regexp.MustCompile(`^v(\d+\.\d+\.\d+)$`)

// buildOf returns the build of a binary in which the linker set that version. One that is
// of no release has the version before the next one, as scripts/release names it.
func buildOf(linked string, info *debug.BuildInfo) build {
	b := build{Version: linked, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			b.Revision = setting.Value
		case "vcs.modified":
			b.Modified = setting.Value == "true"
		}
	}
	if m := release.FindStringSubmatch(info.Main.Version); b.Version == "" && m != nil {
		b.Version = m[1]
	} else if b.Version == "" {
		b.Version = module.Version() + "-dev"
		if b.Revision != "" {
			b.Version += ".g" + b.Revision[:min(len(b.Revision), 12)]
		}
		if b.Modified {
			b.Version += ".modified"
		}
	}
	return b
}

func (a *app) showVersion(context.Context, []string) error {
	b := thisBuild()
	return a.print(b, func() { a.say("kith %s %s\n", strong(b.Version), faint(b.Go+" "+b.Platform)) })
}
