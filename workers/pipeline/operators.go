package pipeline

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/registry"
	registryapi "github.com/parley-chat/parley/server/registry/api"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/consume/parked"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/migrate"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/ops"
	"github.com/parley-chat/parley/workers/ops/adminapi"
	"github.com/parley-chat/parley/workers/ops/backups"
	"github.com/parley-chat/parley/workers/ops/parkedkeys"
	"github.com/parley-chat/parley/workers/ops/projections"
	"github.com/parley-chat/parley/workers/projection"
)

// Registry serves the schemas of events to other programs.
type Registry struct {
	Listen                  string
	TLS                     *tls.Config // nil for HTTP
	Password, WritePassword string      // of readers and writers
	// Operator returns the operator of a request by its headers, who may also change
	// schemas. May be nil.
	Operator func(http.Header) (name string, err error)
}

func (c Registry) addTo(ctx context.Context, p *Pipeline) error {
	s, err := registryapi.Listen(ctx, registryapi.Config{
		Registry: registry.New(p.cfg.Backend.Store), Listen: c.Listen, TLS: c.TLS, Password: c.Password,
		WritePassword: c.WritePassword, Operator: c.Operator, Logger: p.cfg.Logger,
	})
	if err != nil {
		return err
	}
	p.closers = append(p.closers, s.Close)
	p.RegistryAddr = s.Addr()
	p.Services = append(p.Services, lifecycle.Service{Name: "registry", Run: s.Run})
	return nil
}

// Operators serves operators, and runs what they start: migrations and redrives.
type Operators struct {
	Listen string
	TLS    *tls.Config // nil on loopback
	Key    *auth.Key   // signs their tokens
	// Deliver passes the head of a chat to the hubs when a dead letter is redriven.
	Deliver func(context.Context, delivery.Delivery) error
	// DeadLetters are the dead letters of durable topics; nil: they are not served here.
	DeadLetters deadletter.TopicDeadLetters
	// Replicas says that the brokers have replicas, which are counted.
	Replicas bool
	// More is what is served to operators besides, by path.
	More map[string]http.Handler
	// Identity has the parts of identity that operators use in this process.
	Identity admin.Parts
}

func (c Operators) addTo(ctx context.Context, p *Pipeline) error {
	b, s := p.cfg.Backend, p.cfg.Schemas
	migrator, err := migrate.New(migrate.Config{
		Store: b.Store, Clock: time.Now, Logger: p.cfg.Logger,
		Cluster: &migrate.Live{
			Store: b.Store, Addr: b.KafkaAddr(), Kafka: b.KafkaOptions(), Registry: s.registry,
			Groups:   []string{fanout.Group, projection.Group},
			AddTopic: b.AddTopic,
		},
	})
	if err != nil {
		return err
	}
	set, err := p.projections(false, nil)
	if err != nil {
		return err
	}
	read := projections.New(projections.Config{
		Store: b.Store, Clock: time.Now, Operator: operatorName,
		Operate: &projection.Operate{Definitions: definitions(), Store: b.Store, Generation: b.Generation, Clock: time.Now},
	})
	services, err := adminapi.Handlers(adminapi.Config{Store: b.Store, Clock: time.Now, Parts: c.Identity,
		Operator: operatorName})
	if err != nil {
		return err
	}
	service, err := ops.New(ops.Config{
		Addr: b.KafkaAddr(), Kafka: b.KafkaOptions(), Store: b.Store, Decode: s.Serde.Decode, Key: c.Key, Clock: time.Now,
		Logger: p.cfg.Logger, Observe: p.cfg.Metrics.Request, Refused: p.cfg.Metrics.Refused,
		Handlers: map[string]consume.Handler{
			fanout.Group:     fanout.Repairer(s.Serde, c.Deliver, nil).One(),
			projection.Group: consume.BatchHandler(set.Handle).One(),
		},
		Services: append(services, read.Handler, parkedkeys.New(b.Store, time.Now).Handler,
			(&backups.Service{Take: b.Snapshot}).Handler),
		Migrator: migrator, DeadLetters: c.DeadLetters, More: c.More,
	})
	if err != nil {
		return err
	}
	server, err := ops.Listen(ctx, service, c.Listen, c.TLS)
	if err != nil {
		return err
	}
	p.closers = append(p.closers, server.Close)
	p.OperatorsAddr = server.Addr()
	deadLetters := service.DeadLetters().Watch()
	observe.DeadLetters(p.cfg.Metrics, deadLetters)
	parkedKeys := &parked.Watch{Store: b.Store, Clock: time.Now, Logger: p.cfg.Logger}
	observe.Parked(p.cfg.Metrics, parkedKeys)
	p.Services = append(p.Services, lifecycle.Service{Name: "ops", Run: server.Run})
	p.Services = append(p.Services, lifecycle.Service{Name: "security events", Run: service.Security().Run})
	p.run("migration", migrator.Guard().Run)
	p.run("dead letters", deadLetters.Run)
	p.run("parked keys", parkedKeys.Run)
	if c.Replicas {
		replicas := service.Replicas()
		observe.Replicas(p.cfg.Metrics, replicas.Under)
		p.run("replicas", replicas.Run)
	}
	return nil
}

// operatorName is the name of the operator who calls.
func operatorName(ctx context.Context) string {
	op, _ := ops.Operator(ctx)
	return op.Name
}
