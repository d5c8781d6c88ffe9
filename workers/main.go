// Command workers runs what stands behind Parley's servers when they are more than one:
// the way of every change to Kafka and back, and the care of what crashes left. Any
// number of it may run.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/parley-chat/parley/workers/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	// The first signal drains; stop gives the second its usual effect.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return cli.Run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
}
