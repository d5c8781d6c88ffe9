package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/dial"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/topicstore/inspect"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/restore"
)

const restoreHelp = `  Run it after the tables were restored, all to the same second, and before any server or worker starts.
  It refuses while processes run, and tables that are not of one moment. It looks for chats whose last change
  is incomplete, compares durable topics with Kafka, and with --execute begins another line of history: each
  client that was shown anything of the other one starts over. It may be repeated.
`

func (p *program) restoreCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "restore [--execute]", Short: "begin another line of history after the tables were restored", Long: restoreHelp,
		Args: cobra.ArbitraryArgs,
	}
	execute := c.Flags().Bool("execute", false, "do it; otherwise it says what it would do")
	torn := c.Flags().Bool("accept-torn", false, "begin although the last change of some chats is incomplete")
	c.RunE = func(c *cobra.Command, args []string) error {
		s, err := p.settings()
		if err != nil {
			return err
		}
		if len(args) > 0 {
			return cmdline.Usagef("restore takes no arguments, not %.40q", args[0])
		}
		if s.Redis.URL == "" || len(s.Kafka.Brokers) == 0 {
			return cmdline.Usage(errors.New("restore needs redis and kafka-brokers: they have a later state than the tables"))
		}
		return s.restore(c.Context(), restore.Config{Execute: *execute, AcceptTorn: *torn, Out: c.OutOrStdout()})
	}
	return c
}

func (s settings) restore(ctx context.Context, cfg restore.Config) (err error) {
	tables, err := backend.OpenRestored(ctx, *s.backend)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tables.Close()) }()
	cfg.Installation, cfg.Store = tables, tables.Store
	cfg.Clock = time.Now
	cfg.Records = func(ctx context.Context, since time.Time, each func(topic, key string)) error {
		return s.records(ctx, tables.Store, since, each)
	}
	cfg.CheckTopics = func(ctx context.Context) error {
		a, err := dial.Connect(ctx, s.backend.Kafka, dialTime)
		if err != nil {
			return err
		}
		defer a.Close()
		return checkTopics(ctx, a, tables)
	}
	cfg.Slots = func(ctx context.Context) ([]inspect.Slot, error) {
		return inspect.Slots(ctx, s.backend.Kafka.Addr(), s.backend.Kafka.Options()...)
	}
	return restore.Run(ctx, cfg)
}

// records reads the keys of the events that Kafka has from a time on.
func (s settings) records(ctx context.Context, st store.Store, since time.Time, each func(topic, key string)) error {
	addr, options := s.backend.Kafka.Addr(), s.backend.Kafka.Options()
	state, err := versions.Load(ctx, st)
	if err != nil {
		return err
	}
	for _, base := range kafka.ReadBy(kafka.FanoutGroup) {
		for _, topic := range state.Readable(base) {
			spans, err := lag.SpansSince(ctx, addr, topic, since, options...)
			if err == nil {
				err = lag.Read(ctx, addr, spans, func(r *kafka.Record) error {
					each(base, string(r.Key))
					return nil
				}, options...)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// checkTopics refuses a Kafka without the topics that the tables say are in use: a migration that
// ended after the copy may have removed one.
func checkTopics(ctx context.Context, a *kafka.Admin, tables *backend.Restored) error {
	state, err := versions.Load(ctx, tables.Store)
	if err != nil {
		return err
	}
	a.Use(state.Required())
	return a.Check(ctx)
}
