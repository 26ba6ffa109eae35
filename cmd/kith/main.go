// Command kith is the whole program: hub, daemon and every command.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/kith/kith/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
