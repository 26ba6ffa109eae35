// Command kith is the hub, the daemon and every other command.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // sharing hours need time zones wherever it runs

	"github.com/kith/kith/internal/cli"
	"github.com/kith/kith/internal/llama"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == llama.WorkerArg {
		os.Exit(cli.Worker())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
