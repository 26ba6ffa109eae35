package e2e_test

import (
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// page HEADING LANGUAGE FILE writes what the members' page says under that
// heading in that language to FILE, with the script's hub as the hub.
func page(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 3, "page HEADING LANGUAGE FILE")
	text, err := os.ReadFile(ts.MkAbs(ts.Getenv("PAGE")))
	ts.Check(err)
	_, section, _ := strings.Cut(string(text), "\n## "+args[0]+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, block, found := strings.Cut(section, "\n```"+args[1]+"\n")
	block, _, _ = strings.Cut(block, "```")
	if !found {
		ts.Fatalf("the page has no %s under %q", args[1], args[0])
	}
	block = strings.ReplaceAll(block, "https://hub.example", ts.Getenv("SITE"))
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(block), 0o600))
}
