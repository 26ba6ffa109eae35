package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// helpText is what --help prints about each command: a heading with its usage, its line in
// lists, an explanation, and indented examples.
//
//go:embed help.txt
var helpText string

var (
	// lineEnd is the end of a line that is not the last one of its paragraph.
	lineEnd = regexp.MustCompile(`(\S)\n(\S)`)
	// helpEntry is the beginning of a line of help, beside which the rest wraps: the indent, and
	// the flag or command that the rest describes.
	helpEntry = regexp.MustCompile(`^ *(\S.*? {2,})?`)
)

// fitHelp returns a function that prints the help that print prints. In a terminal it wraps
// at words.
func (a *app) fitHelp(print func(*cobra.Command, []string)) func(*cobra.Command, []string) {
	return func(cmd *cobra.Command, args []string) {
		if a.width() == 0 {
			print(cmd, args)
			return
		}
		var text strings.Builder
		cmd.SetOut(&text)
		cmd.Long = lineEnd.ReplaceAllString(cmd.Long, "$1 $2")
		print(cmd, args)
		cmd.SetOut(a.out)
		for line := range strings.Lines(text.String()) {
			head := helpEntry.FindString(line)
			a.hang(head, strings.TrimSuffix(line[len(head):], "\n"))
		}
	}
}

// action runs a command.
type action = func(ctx context.Context, args []string) error

// command returns the command that helpText describes under the name, such as "kith admin
// member list". It takes the arguments in its usage.
func command(name string, run action) *cobra.Command {
	at := strings.Index("\n"+helpText, "\n# "+name+"\n")
	if at < 0 { // its usage has arguments, and it has no subcommands
		at = strings.Index("\n"+helpText, "\n# "+name+" ")
	}
	part, _, _ := strings.Cut(helpText[at:], "\n\n# ")
	usage, text, _ := strings.Cut(part, "\n")
	short, text, _ := strings.Cut(text, "\n")
	long, example, _ := strings.Cut(text, "\n  ")
	usage = usage[len("# ")+strings.LastIndex(name, " ")+1:]
	return &cobra.Command{
		Use: usage, Short: short, Long: strings.TrimSpace(long), Example: "  " + strings.TrimSpace(example),
		Args: argumentsOf(strings.Fields(usage)[1:]...),
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), args) },
	}
}

// argumentsOf returns the check for the number of arguments in a usage: those before the
// first flag, of which the ones in brackets may be missing and the one with an ellipsis
// repeated.
func argumentsOf(usage ...string) cobra.PositionalArgs {
	least, most := 0, 0
	for _, word := range usage {
		if strings.HasPrefix(strings.TrimPrefix(word, "["), "-") {
			break
		}
		if most++; word[0] != '[' {
			least++
		}
		if strings.Contains(word, "…") {
			most = 1 << 10
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n >= least && n <= most:
			return nil
		case most == 0:
			return cobra.NoArgs(cmd, args)
		case least == 1 && n == 0:
			return errors.New("its argument is missing")
		case least < most:
			return fmt.Errorf("it takes at most %s, not %d", count(most, "argument"), n)
		default:
			return fmt.Errorf("it takes %s, not %d", count(most, "argument"), n)
		}
	}
}

// group returns a command that only has subcommands.
func group(name string, commands ...*cobra.Command) *cobra.Command {
	cmd := command(name, nil)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return withCommands(cmd, commands...)
}

// requiring returns the command, which does not run without the flags.
func requiring(cmd *cobra.Command, flags ...string) *cobra.Command {
	for _, flag := range flags {
		_ = cmd.MarkFlagRequired(flag) // it has them
	}
	return cmd
}

// withCommands adds subcommands to a command that takes no argument.
func withCommands(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.Args = known
	cmd.AddCommand(commands...)
	return cmd
}
