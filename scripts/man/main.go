// Command man writes kith's man pages, one a command, into the folder that it
// is given.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra/doc"

	"github.com/kith/kith/internal/cli"
)

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "man: "+err.Error())
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("no folder for the pages: name one folder")
	}
	if err := os.MkdirAll(args[0], 0o755); err != nil {
		return fmt.Errorf("cannot make the folder: %w", err)
	}
	root := cli.Commands()
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Title: "KITH", Section: "1", Source: "kith"}, args[0]); err != nil {
		return fmt.Errorf("cannot write the pages: %w", err)
	}
	return nil
}
