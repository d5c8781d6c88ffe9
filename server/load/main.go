// Command load drives a running server and measures it, or searches what durable topics hold on this machine. It is a
// program of its own: servers do without what only tests of them need.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(interruptible()) }

func interruptible() int {
	// The first signal ends the measurement; stop gives the second its usual effect.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
}
