// Schemacheck is the gate that every schema change passes: it compares protobuf
// schemas and says what would break whom, why, and what to do instead.
//
//	go run ./schemacheck --base origin/main
//	go run ./schemacheck ci
//	go run ./schemacheck diff --base origin/main
//	go run ./schemacheck rules
//	go run ./schemacheck help
//
// It exits with 0 for compatible, 2 for findings and 1 if it could not do its work.
// "schemacheck help" has its flags, "schemacheck help events" how an event is added,
// changed and replaced, "schemacheck help json" the schema of its JSON output;
// README.md beside this file is the way in for other repositories.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/parley-chat/parley/schemacheck/internal/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "schemacheck:", err)
		os.Exit(command.Failed)
	}
	code := command.Run(ctx, os.Args[1:], command.Env{Dir: dir, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv})
	stop()
	os.Exit(code)
}
