package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kith/kith/internal/assert"
)

// TestCommandsPage: docs/commands.md has each command, as its help describes it.
func TestCommandsPage(t *testing.T) {
	var page strings.Builder
	page.WriteString("# Commands\n\n" +
		"`--help` after any command shows its options and examples; `man kith` has them as well. `--json` prints one JSON document and nothing else on standard output. An error is one line\n" +
		"with its cause and what to do. The exit status is 0 for done, 1 for failed, 2 for wrong use, 3 for not signed in, 4 where nothing can serve the model just now.\n\n" +
		"`KITH_HOME` is the folder of this machine's configuration, credential and models (default `~/.kith`), `KITH_HUB` and `KITH_API_KEY` are a hub's address and a key. `NO_COLOR` switches\n" +
		"colours off.\n\n" +
		"This page is made from the commands' own help (`internal/cli`).\n")
	root := new(app).root()
	var list func(*cobra.Command)
	list = func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() || cmd.Name() == "models" || cmd.Name() == "engine" { // which also do something alone
			var options []string
			cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
				if !f.Hidden && f.Name != "help" {
					options = append(options, "`--"+f.Name+"`")
				}
			})
			fmt.Fprintf(&page, "| `%s` | %s | %s |\n", escaped(strings.TrimSuffix(cmd.UseLine(), " [flags]")), escaped(cmd.Short), strings.Join(options, " "))
		}
		for _, sub := range cmd.Commands() {
			list(sub)
		}
	}
	for _, group := range root.Groups() {
		fmt.Fprintf(&page, "\n## %s\n\n| Command | What it does | Options |\n|---|---|---|\n", strings.TrimSuffix(group.Title, ":"))
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID {
				list(cmd)
			}
		}
	}
	page.WriteString("\nEach `kith admin` command takes `--data` or `--config`, which names the hub. `kith version` and `kith --version` print the version; `kith completion bash` prints a script for bash, and likewise for zsh, fish and powershell.\n")

	const path = "../../docs/commands.md"
	if *update {
		assert.OK(t, os.WriteFile(path, []byte(page.String()), 0o644))
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != page.String() {
		t.Errorf("docs/commands.md is not what the commands' help says (%v): run go test ./internal/cli -run CommandsPage -update", err)
	}
}

// escaped is text in a cell of a table.
func escaped(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
