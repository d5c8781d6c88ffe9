package app

import (
	"context"
	"net/http"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/ops"
	"github.com/parley-chat/parley/workers/pipeline"
)

// The bytes and the time for which a fetch of fanout and the projector waits. In this process fanout repairs changes
// that the hub has mostly applied, so no client waits for it. An answer costs the broker about the same for any
// content.
const (
	minFetch     = 2 << 20
	maxFetchWait = 1 * time.Second
)

// buildPipeline makes the durable path of a server that is everything in one process.
func (p *program) buildPipeline(ctx context.Context) error {
	// The one process of this store brings its schemas itself.
	schemas, err := pipeline.LoadSchemas(ctx, p.backend.Store, true, p.log)
	if err != nil {
		return err
	}
	deliver := func(_ context.Context, d delivery.Delivery) error {
		p.hub.Deliver(d)
		return nil
	}
	operator := func(h http.Header) (string, error) {
		op, err := p.key.Operator(h, time.Now())
		if err == nil && !op.Role.Includes(auth.Admin) {
			err = auth.ErrInvalidToken // what schemas say is the installation's
		}
		return op.Name, err
	}
	topics, err := p.topics.OfOperators(ops.Operator)
	if err != nil {
		return err
	}
	keeper := p.backend.LogKeeper(p.log)
	keeper.Measure(p.metrics)
	reserve := func(bytes int64) error { return keeper.Reserve(kafka.Searches, bytes) }
	awaited := func() bool { return p.backend.LogWatched() || p.topics.ReadsEvents() }
	var deadLetters deadletter.TopicDeadLetters // stays nil where there are none
	if l := p.topics.DeadLetters(); l != nil {
		deadLetters = l
	}
	path, err := pipeline.New(ctx,
		pipeline.Config{Backend: p.backend, Process: p.process, Schemas: schemas, Metrics: p.metrics, Chats: p.counts,
			Logger: p.log},
		pipeline.Relay{Slots: 1, Exclusive: true, Awaited: awaited},
		pipeline.Search{Targets: p.cfg.searchTargets, Attempts: p.cfg.SearchAttempts, Exclusive: true,
			Reserve: reserve, Awaited: awaited},
		pipeline.Fanout{Deliver: deliver, Applied: p.hub.Applied, MinFetch: minFetch, MaxWait: maxFetchWait},
		pipeline.Projector{Exclusive: true, MinFetch: minFetch, MaxWait: maxFetchWait, Live: &p.sends},
		pipeline.Reconcile{Chats: p.chats},
		pipeline.Registry{Listen: p.cfg.Registry.Listen, Operator: operator},
		pipeline.Operators{Listen: p.cfg.Operators.Listen, TLS: p.cfg.linkTLS, Key: p.key, Deliver: deliver,
			DeadLetters: deadLetters, More: topics,
			Identity: p.identity.Parts()},
	)
	if err != nil {
		return err
	}
	p.closers = append(p.closers, path.Close)
	p.services = append(p.services, lifecycle.Service{Name: "log", Run: keeper.Run})
	p.scheduleBackups()
	p.services = append(p.services, path.Services...)
	p.onCommit = append(p.onCommit, func(c chat.Commit, _ delivery.Delivery) { path.Nudge(c) })
	p.recorded, p.searchFull = path.WakeSearch, func() bool { return keeper.Full(kafka.Searches) }
	p.registry = path.RegistryAddr
	p.addresses = append(p.addresses, "kafka", p.backend.KafkaAddr(), "registry", path.RegistryAddr, "ops",
		path.OperatorsAddr, "data_dir", absolute(p.cfg.DataDir))
	return nil
}

// scheduleBackups has the server make backups by itself, if a setting says where.
func (p *program) scheduleBackups() {
	s := &backup.Schedule{Take: p.backend.Snapshot, DataDir: absolute(p.cfg.DataDir), To: p.cfg.Backup.Dir,
		Every: time.Duration(p.cfg.Backup.Hours) * time.Hour, Keep: p.cfg.Backup.Keep, Clock: time.Now, Logger: p.log}
	s.Measure(p.metrics)
	if s.To != "" {
		p.services = append(p.services, lifecycle.Service{Name: "backups", Run: s.Run})
	}
}
