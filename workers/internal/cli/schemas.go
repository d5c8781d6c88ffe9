package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/pipeline"
)

func (p *program) schemaCommands() *cobra.Command {
	return cmdline.Group("schemas", "commands on the schemas of what this version publishes",
		p.command("register", "register the schemas of what this version publishes", "",
			func(ctx context.Context, s settings, stdout io.Writer) error {
				return s.schemas(ctx, true, stdout)
			}),
		p.command("verify", "check that the schemas of what this version publishes are registered", verifyHelp,
			func(ctx context.Context, s settings, stdout io.Writer) error {
				return s.schemas(ctx, false, stdout)
			}),
	)
}

// schemas registers or checks the schemas of what this version publishes. It needs the
// store only.
func (s settings) schemas(ctx context.Context, register bool, stdout io.Writer) (err error) {
	tables := s.backend.Tables
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	backend, err := backend.Open(backend.Config{Distributed: &backend.Distributed{Tables: tables},
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(tables.Explain(err), backend.Close()) }()
	own, err := resolve(ctx, backend.Store, register)
	var missing *registry.MissingError
	if errors.As(err, &missing) {
		return reportDifferences(stdout, []string{missing.Error()}, "")
	}
	if err != nil {
		return err
	}
	return printLines(stdout, schemaLines(own), "")
}

func resolve(ctx context.Context, st store.Store, register bool) (registry.Own, error) {
	topics, err := versions.Load(ctx, st)
	if err != nil {
		return registry.Own{}, err
	}
	return pipeline.Resolve(ctx, registry.New(st), topics, register)
}

// schemaLines says which schema has which id.
func schemaLines(own registry.Own) (list []string) {
	for _, eventType := range slices.Sorted(maps.Keys(own.Events)) {
		list = append(list, fmt.Sprintf("%s: id %d", eventType, own.Events[eventType]))
	}
	for i, m := range pipeline.Messages() {
		list = append(list, fmt.Sprintf("%s: id %d", m.Subject(), own.Messages[i]))
	}
	return list
}
