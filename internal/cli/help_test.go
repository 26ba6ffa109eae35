package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/assert"
)

// TestHelp walks all commands: each one says what it does, and has examples, which are
// commands that it understands.
func TestHelp(t *testing.T) {
	commands := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		commands++
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: its line in a list is %q", cmd.CommandPath(), cmd.Short)
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		assert.Contains(t, cmd.Example, cmd.CommandPath(), "has no example")
		for line := range strings.Lines(cmd.Example) {
			checkExample(t, cmd, strings.TrimSpace(line))
		}
	}
	walk(new(app).root())
	if n := strings.Count("\n"+helpText, "\n# "); n != commands {
		t.Errorf("help.txt is about %d commands; there are %d", n, commands)
	}
}

// checkExample checks each call of kith in a line of shell.
func checkExample(t *testing.T, of *cobra.Command, line string) {
	t.Helper()
	line, _, _ = strings.Cut(line, "    #")
	line = strings.NewReplacer(`eval "$(`, "", `)"`, "").Replace(line)
	for _, part := range strings.FieldsFunc(line, func(r rune) bool { return r == '|' || r == '<' || r == '&' || r == ';' }) {
		words := strings.Fields(strings.NewReplacer(`"`, "", `'`, "").Replace(part))
		if len(words) == 0 || words[0] != "kith" {
			continue
		}
		if i := indexOf(words, ">"); i > 0 {
			words = words[:i]
		}
		cmd, rest, err := new(app).root().Find(words[1:])
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil && cmd.Args != nil && !strings.ContainsAny(part, "<$") && !hasQuotedText(part) {
			err = cmd.Args(cmd, cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: its example %q: %v", of.CommandPath(), part, err)
		}
	}
}

func indexOf(words []string, word string) int {
	for i, w := range words {
		if strings.HasPrefix(w, word) {
			return i
		}
	}
	return -1
}

// hasQuotedText reports whether a quoted text of several words is in a line, which checkExample
// does not read as one.
func hasQuotedText(line string) bool {
	for i, text := range strings.Split(strings.ReplaceAll(line, `'`, `"`), `"`) {
		if i%2 == 1 && strings.Contains(text, " ") {
			return true
		}
	}
	return false
}

// TestMisuse: what is wrong in a line is said in plain words, before anything is asked of
// a hub or a daemon.
func TestMisuse(t *testing.T) {
	for line, want := range map[string]string{
		"accept":                       "its argument is missing; write `kith accept CODE`",
		"run":                          "its argument is missing; write `kith run MODEL",
		"accept a b":                   "it takes 1 argument, not 2; write",
		"group invite lab":             "it takes 2 arguments, not 1; write",
		"group create lab":             "--kind is missing; write",
		"admin share add":              "--owner and --with are missing; write",
		"pause --for x":                `--for takes a time like 2h or 45m, not "x"; write`,
		"pause --for 1h --until 18:30": "give --for or --until, not both; write",
		"usage --days x":               `--days takes a number, not "x"; see`,
		"usage --by year":              `cannot show usage by "year": --by takes hour, day or week`,
		"login --hub x":                `it takes an address such as "https://hub.example.org"` + "\n",
		"serve --listen x":             `it takes a loopback address such as "127.0.0.1:8701"` + "\n",
	} {
		check(t, kith(t, "", strings.Fields(line)...), said{2, "", want})
	}
	check(t, kith(t, "", "reload"), said{1, "", "cannot reach this machine's daemon: it does not run; start it with `kith serve`"})
	check(t, kith(t, "", "admin", "nodes"), said{1, "", "admin.sock: it does not run; start it with `kith hub`, or name its data folder with --data"})
}

// TestVersionFlag: kith --version is kith version.
func TestVersionFlag(t *testing.T) {
	want := kith(t, "", "version")
	if got := kith(t, "", "--version"); got != want || !strings.HasPrefix(got.out, "kith ") {
		t.Errorf("%+v, not %+v", got, want)
	}
	assert.Equal(t, kith(t, "", "--version", "--json"), kith(t, "", "version", "--json"))
}

// TestSuggestions: the nearest command or flag is named, and only one that is near.
func TestSuggestions(t *testing.T) {
	for line, want := range map[string]string{
		"serv": `did you mean "serve"?`, "stauts": `did you mean "status"?`, "admin memebr": `did you mean "member"?`, "share ad bob": `did you mean "add"?`,
		"status --jsn": "did you mean --json?", "hub --lisen 127.0.0.1:0": "did you mean --listen?", "admin backup --dat x y": "did you mean --data?",
		"dev --node 3": "did you mean --nodes?", "login --tokn x": "did you mean --token?",
	} {
		got := kith(t, "", strings.Fields(line)...)
		check(t, got, said{2, "", want})
	}
	for _, line := range []string{"frobnicate", "status --frobnicate"} {
		if got := kith(t, "", strings.Fields(line)...); got.status != 2 || strings.Contains(got.err, "did you mean") {
			t.Errorf("%s: %+v", line, got)
		}
	}
}
