package cli

import "github.com/spf13/cobra"

// examples are the examples for commands that need no further explanation, by the words
// of the command.
var examples = map[string][]string{
	"kith":                      {"kith dev        # everything on this machine, to try it", "kith pull       # models that fit this machine", "kith login --hub https://hub.example.org"},
	"kith admin":                {"kith admin health", "kith admin member list --data /var/lib/kith"},
	"kith admin device":         {"kith admin device list"},
	"kith admin group":          {"kith admin group create lab --kind org --admin ada"},
	"kith admin key":            {"kith admin key create --member ada"},
	"kith admin machine":        {"kith admin machine token --member ada"},
	"kith admin member":         {"kith admin member create ada --operator", "kith admin member link ada"},
	"kith admin share":          {"kith admin share add --owner ada --with bob"},
	"kith config":               {"kith config check"},
	"kith group":                {"kith group list", "kith group join lab"},
	"kith hours":                {"kith hours show", "kith hours set \"Mon-Fri 18:00-23:00\""},
	"kith keys":                 {"kith keys create --name editor", "kith keys list"},
	"kith service":              {"kith service install"},
	"kith share":                {"kith share invite    # a code for a friend", "kith share add bob"},
	"kith accept":               {"kith accept CODE"},
	"kith admin device approve": {"kith admin device approve WDJB-MJHT --member ada"},
	"kith admin device list":    {"kith admin device list"},
	"kith admin group create":   {"kith admin group create lab --kind org --admin ada"},
	"kith admin group remove":   {"kith admin group remove lab bob"},
	"kith admin key create":     {"kith admin key create --member ada --name editor", "kith admin key create --member ada --reach own --json"},
	"kith admin key list":       {"kith admin key list --member ada"},
	"kith admin key revoke":     {"kith admin key revoke ID    # of kith admin key list"},
	"kith admin machine list":   {"kith admin machine list"},
	"kith admin machine revoke": {"kith admin machine revoke ID    # of kith admin machine list"},
	"kith admin machine token":  {"kith admin machine token --member ada --name desk"},
	"kith admin member create":  {"kith admin member create ada --operator", "kith admin member create bob --password-stdin < password.txt"},
	"kith admin member disable": {"kith admin member disable bob"},
	"kith admin member link":    {"kith admin member link ada"},
	"kith admin member list":    {"kith admin member list", "kith admin member list --json"},
	"kith admin nodes":          {"kith admin nodes"},
	"kith admin share add":      {"kith admin share add --owner ada --with bob"},
	"kith admin share remove":   {"kith admin share remove --owner ada --with bob"},
	"kith config check":         {"kith config check", "kith config check /etc/kith/hub.toml"},
	"kith env":                  {"eval \"$(kith env)\"", "kith env --shell fish | source"},
	"kith group accept":         {"kith group accept lab"},
	"kith group admin":          {"kith group admin lab bob"},
	"kith group create":         {"kith group create lab --kind org"},
	"kith group decline":        {"kith group decline lab"},
	"kith group join":           {"kith group join lab"},
	"kith group keep-out":       {"kith group keep-out lab", "kith group keep-out --all"},
	"kith group leave":          {"kith group leave lab"},
	"kith group limit":          {"kith group limit lab --concurrent 2 --per-day 100"},
	"kith group list":           {"kith group list"},
	"kith group remove":         {"kith group remove lab bob"},
	"kith hours clear":          {"kith hours clear"},
	"kith hours set":            {"kith hours set \"Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00\" --tz Europe/Lisbon"},
	"kith hours show":           {"kith hours show"},
	"kith hub":                  {"kith hub", "kith hub --config /etc/kith/hub.toml --data /var/lib/kith"},
	"kith keys create":          {"kith keys create --name editor"},
	"kith keys list":            {"kith keys list"},
	"kith keys revoke":          {"kith keys revoke ID    # of kith keys list"},
	"kith launch":               {"kith launch claude", "kith launch codex --model qwen3-coder"},
	"kith login":                {"kith login --hub https://hub.example.org", "kith serve    # then this machine serves"},
	"kith logout":               {"kith logout"},
	"kith models":               {"kith models", "kith models --account"},
	"kith models rm":            {"kith models rm gemma-3-1b-it-Q4_K_M"},
	"kith pause":                {"kith pause --for 2h", "kith pause --until 18:30 --drain"},
	"kith rehearse":             {"kith rehearse all", "kith rehearse CAPACITY_FULL --stream"},
	"kith reload":               {"kith reload"},
	"kith resume":               {"kith resume"},
	"kith run":                  {"kith run gemma3", "kith run gemma3 \"Say hello.\""},
	"kith serve":                {"kith serve", "kith serve --listen 127.0.0.1:9000"},
	"kith service install":      {"kith service install"},
	"kith service status":       {"kith service status"},
	"kith service uninstall":    {"kith service uninstall"},
	"kith share add":            {"kith share add bob", "kith share add bob --models gemma3 --hours \"Mon-Fri 18:00-23:00\" --per-day 50"},
	"kith share invite":         {"kith share invite", "kith share invite --uses 3 --expires 7d"},
	"kith share list":           {"kith share list"},
	"kith share remove":         {"kith share remove bob"},
	"kith status":               {"kith status", "kith status --json"},
	"kith usage":                {"kith usage --days 7"},
	"kith why":                  {"kith why gemma3", "kith why req_0198c0de    # the correlation id of an answer"},
}

// addExamples sets the examples of commands that have none yet.
func addExamples(cmd *cobra.Command) {
	if cmd.Example == "" {
		for i, line := range examples[cmd.CommandPath()] {
			if i > 0 {
				cmd.Example += "\n"
			}
			cmd.Example += "  " + line
		}
	}
	for _, sub := range cmd.Commands() {
		addExamples(sub)
	}
}
