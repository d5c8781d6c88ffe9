package topicrpc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/egress"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/memory"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topiclog"
	"github.com/parley-chat/parley/server/kafka/topicstore"
	"github.com/parley-chat/parley/server/topic"
)

// ModuleConfig holds the dependencies of a Module. All fields are required but those of an installation.
type ModuleConfig struct {
	Backend  *backend.Backend
	Clock    func() time.Time
	Logger   *slog.Logger
	Metrics  *telemetry.Metrics
	Creators []string      // users who may make topics
	Jobs     string        // schedule of the jobs
	MaxBytes int64         // of the messages of a topic; 0: topic.DefaultMaxBytes where this process keeps them
	Push     egress.Config // what webhooks may lead to
	// Revoked says whether the access of a user was revoked by now.
	Revoked func(Identity) bool
	// Refused says whether a user's account is suspended or deleted.
	Refused func(ctx context.Context, user string) (bool, error)

	// Of an installation of many servers. It has topics if the backend has brokers of Kafka.
	Process     string // this one
	Slots       int    // that topics are dealt to, the same in all servers, for good
	Replication int    // of topics of Kafka that are made
	// Remote returns how another server is called, and the address that calls begin with.
	Remote func(ctx context.Context, process string) (connect.HTTPClient, string, error)
}

// CheckCreators checks the users who may make topics.
func CheckCreators(users []string) error {
	for _, user := range users {
		if err := auth.CheckUserID(user); err != nil {
			return fmt.Errorf("topic-creators: %w", err)
		}
	}
	return nil
}

// Module is durable topics as a server has them. Without a Service, in a mode that has no
// topics, its handlers say so.
type Module struct {
	cfg          ModuleConfig
	service      *topic.Service     // of a server that is alone
	slots        *topic.SlotManager // of one of many
	installation string             // id, of one of many; set before slots run
	streams      *Streams
	client       *kafka.Client
	events       *topiclog.Log
	sums         *sums
	sessions     *topic.Sessions     // of all slots
	knownIDs     atomic.Int64        // of messages, of all slots
	groups       *topic.GroupMetrics // of all slots
	guard        *egress.Guard       // on the way to webhooks
	push         *topic.PushSender   // of all slots
	logs         topicstore.Counters // of an installation of many servers
}

// NewModule makes a Module, and takes the topics over where the mode has them.
func NewModule(ctx context.Context, cfg ModuleConfig) (_ *Module, err error) {
	p := &Module{cfg: cfg, streams: NewStreams(cfg.Revoked), sums: newSums(), sessions: topic.NewSessions(),
		groups: topic.NewGroupMetrics(), guard: egress.New(cfg.Push)}
	p.push = topic.NewPushSender(p.guard, cfg.Clock)
	b := cfg.Backend
	if b.Logs == nil && b.KafkaAddr() == "" {
		return p, nil
	}
	if p.client, err = kafka.NewProducer(b.KafkaAddr(), b.KafkaOptions()...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.client.Close()
		}
	}()
	p.events = topiclog.New(topiclog.Config{Client: p.client})
	if b.Logs == nil {
		return p, p.divide()
	}
	p.service, err = topic.New(ctx, topic.Config{
		Store: b.Store, Log: b.Logs, Logger: cfg.Logger, Clock: cfg.Clock,
		Resident: topic.ResidentBytes(memory.Total()), Jobs: cfg.Jobs, Events: p.events,
		Groups: p.groups, Push: p.push, Refused: cfg.Refused,
		MaxBytes: cmp.Or(cfg.MaxBytes, topic.DefaultMaxBytes), Audit: p.audit(audit.New(b.Store, cfg.Clock)),
	})
	if err != nil {
		return nil, err
	}
	p.sums.begin(p.service)
	p.measure()
	return p, nil
}

// audit records calls in the installation's audit.
func (p *Module) audit(
	calls *audit.Log,
) func(ctx context.Context, actor, call, request string) (func(code, result string), error) {
	return func(ctx context.Context, actor, call, request string) (func(code, result string), error) {
		entry, err := calls.Begin(ctx, actor, call, request)
		if err != nil {
			return nil, err
		}
		return func(code, result string) {
			if err := entry.End(context.WithoutCancel(ctx), code, result); err != nil {
				p.cfg.Logger.WarnContext(ctx, "the end of a call is not recorded", "call", call, "error", err)
			}
		}, nil
	}
}

// ReadsEvents reports whether the events of chats are in use as topics.
func (p *Module) ReadsEvents() bool { return p.events != nil && p.events.InUse() }

// Close ends what NewModule opened, once the services have ended.
func (p *Module) Close() {
	p.guard.Close()
	if p.client != nil {
		p.client.Close()
	}
}

// Services are what runs in the background.
func (p *Module) Services() []lifecycle.Service {
	switch {
	case p.service != nil:
		return []lifecycle.Service{{Name: "topics", Run: p.service.Run}}
	case p.slots != nil:
		return []lifecycle.Service{{Name: "topics", Run: p.run}}
	}
	return nil
}

// Streams are the open streams of consumers.
func (p *Module) Streams() *Streams { return p.streams }

// DeadLetters finds the dead letters of topics. It is nil for one of many servers, because other
// processes ask such a server for them (package topicproxy).
func (p *Module) DeadLetters() *topic.DeadLetterStore {
	if p.service == nil {
		return nil
	}
	return p.service.DeadLetters()
}

// OfUsers are the services as users reach them.
func (p *Module) OfUsers() []api.Service {
	return p.rpcServices(func(ctx context.Context) Identity {
		user, _ := auth.PrincipalFrom(ctx) // there is one: the chain asks for it
		return Identity{Token: user,
			Caller: topic.Caller{Principal: user.UserID, Creator: slices.Contains(p.cfg.Creators, user.UserID)}}
	})
}

// OfOperators are the handlers as operators reach them, on their own listener, by path. operator
// returns the operator of an admitted call.
func (p *Module) OfOperators(operator func(context.Context) (auth.Operator, bool)) (map[string]http.Handler, error) {
	return p.serve(p.operated(func(ctx context.Context) Identity {
		op, _ := operator(ctx)
		return Identity{Token: auth.Principal{ExpiresAt: op.ExpiresAt},
			Caller: topic.Caller{Principal: op.Name, Operator: true, Creator: true}}
	}, nil), p.cfg.Metrics.Request, func(ctx context.Context) bool {
		_, ok := operator(ctx)
		return ok
	})
}

// operated are the services with those for operators. route says where calls go; nil: as those
// of users do.
func (p *Module) operated(
	identify func(context.Context) Identity, route connect.Interceptor,
) []api.Service {
	if route == nil {
		route = p.route(identify)
	}
	admin := AdminConfig{
		Route: route, Audit: audit.New(p.cfg.Backend.Store, p.cfg.Clock),
		Operator: func(ctx context.Context) string { return identify(ctx).Principal },
	}
	if p.service != nil {
		admin.Topics = p.service.Admin()
	}
	services := New(Config{Topics: p.service, Streams: p.streams, Identify: identify, Route: route,
		History: p.cfg.Backend.History})
	return append(services.Services(), NewAdminServer(admin).Service())
}

// serve makes handlers of services, by path, for those that are let in.
func (p *Module) serve(
	services []api.Service, observe func(procedure, code string, took time.Duration), enter func(context.Context) bool,
) (map[string]http.Handler, error) {
	handlers, err := api.New(api.Config{Store: p.cfg.Backend.Store, Logger: p.cfg.Logger, Observe: observe, More: services,
		Enter: func(ctx context.Context) error {
			if !enter(ctx) {
				return auth.ErrMissingToken
			}
			return nil
		}})
	if err != nil {
		return nil, err
	}
	return handlers.Handlers(), nil
}

func (p *Module) rpcServices(identify func(context.Context) Identity) []api.Service {
	return New(Config{Topics: p.service, Streams: p.streams, Identify: identify,
		Route: p.route(identify), History: p.cfg.Backend.History}).Services()
}

// route finds the slot of a call of one of many servers; nil for a server that is alone.
func (p *Module) route(identify func(context.Context) Identity) connect.Interceptor {
	if p.slots == nil {
		return nil
	}
	return NewRouter(RouterConfig{Slots: p.slots, Process: p.cfg.Process, Remote: p.cfg.Remote,
		Identify: identify, Streams: p.streams})
}
