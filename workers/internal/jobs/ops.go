package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/migrate"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/ops"
)

// errNoLinks says that a dead letter cannot be driven again just now.
var errNoLinks = errors.New("there are no links to servers yet")

// ops makes the service for operators, and what counts the dead letters that wait.
func (p *program) ops(ctx context.Context) ([]lifecycle.Service, error) {
	l, services, err := p.connect()
	if err != nil {
		return nil, err
	}
	key, err := p.key()
	if err != nil {
		return nil, err
	}
	tls, err := engine.MutualTLS(p.cfg.LinkCA, p.cfg.LinkCert, p.cfg.LinkKey)
	if err != nil {
		return nil, err
	}
	repair := func(ctx context.Context, d delivery.Delivery) error {
		if !l.ready() {
			return errNoLinks
		}
		return l.mesh.Repair(ctx, d)
	}
	migrator, err := migrate.New(migrate.Config{
		Store: p.eng.Store, Clock: time.Now, Logger: p.cfg.Logger,
		Cluster: &migrate.Live{
			Store: p.eng.Store, Addr: p.eng.KafkaAddr(), Kafka: p.eng.KafkaOptions(), Registry: registry.New(p.eng.Store), Groups: []string{fanout.Group},
			AddTopic: p.eng.AddTopic, Durable: p.eng.LogStable,
		},
	})
	if err != nil {
		return nil, err
	}
	s, err := ops.New(ops.Config{
		Addr: p.eng.KafkaAddr(), Kafka: p.eng.KafkaOptions(), Store: p.eng.Store, Decode: p.serde.Decode, Key: key, Clock: time.Now,
		Logger: p.cfg.Logger, Observe: p.metrics.Request, Refused: p.metrics.Refused,
		Handlers: map[string]consume.Handler{fanout.Group: fanout.Repairer(p.serde, repair).One()},
		Migrator: migrator,
	})
	if err != nil {
		return nil, err
	}
	server, err := ops.Listen(ctx, s, p.cfg.Ops, tls)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, server.Close)
	letters := s.DeadLetters().Watch()
	observe.DeadLetters(p.metrics, letters)
	replicas := s.Replicas()
	observe.Replicas(p.metrics, replicas.Under)
	p.cfg.Logger.Info("operators are served", "address", server.Addr())
	return append(services,
		lifecycle.Service{Name: "ops", Run: server.Run},
		lifecycle.Restarted("migration", p.cfg.Logger, migrator.Guard),
		lifecycle.Restarted("dead letters", p.cfg.Logger, letters.Run),
		lifecycle.Restarted("replicas", p.cfg.Logger, replicas.Run),
	), nil
}
