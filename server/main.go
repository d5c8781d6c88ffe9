// Command server runs Parley: all of it in one process, on the data directory,
// with nothing else installed.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/parley-chat/parley/server/internal/app"
)

func main() { os.Exit(run()) }

func run() int {
	// The first signal drains; stop gives the second its usual effect.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	keepPrivate()
	return app.Run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
}
