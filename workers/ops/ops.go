// Package ops serves operators: dead letters, replays of events, the event store, the lag
// of consumer groups, and profiles of the process.
//
// It owns the OpsService of parley.ops.v1, its listener, the admission of operators, what
// surrounds every call, and the table of its errors. It does not own what is done: dead
// letters belong to package deadletter, replays to package replay, groups and topics to
// package lag. The EventService is package events, what operators are not shown package
// redact, the command line package opsctl.
//
// # Trust
//
// Every call carries an operator's token; tokens of users are refused, and so are calls that
// want more than the token's role (LeastRole). Without TLS the listener is on loopback
// only; with TLS both sides show certificates of the same authority. User content is shown
// only to moderators who ask for it. Such calls, and those that change something, leave two
// rows in the store with the operator's name: one before they act, one when they have ended
// (package audit). The code around every call writes these rows, so that no handler
// can forget to.
//
// # Concurrency
//
// A Service is safe for concurrent use; at most maxCalls calls run at a time, since
// each may read a whole topic.
package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/migrate"
	"github.com/parley-chat/parley/workers/ops/events"
)

// Limits of calls.
const (
	maxRequest   = 1 << 20
	maxResponse  = 8 << 20
	maxCalls     = 8
	unaryTimeout = 2 * time.Minute // a whole topic may have to be read
)

// Config is what a Service works with; all of it but Kafka, Handlers, DeadLetters, Services and More is
// required.
type Config struct {
	Addr  string         // of Kafka
	Kafka []kafka.Option // for its clients
	Store store.Store
	// Decode reads a record as an event; errors that wrap event.ErrSchema are about the
	// record.
	Decode func(ctx context.Context, key, value []byte) (event.Event, error)
	// Handlers take redriven records, by consumer group.
	Handlers map[string]consume.Handler
	// DeadLetters are the dead letters of durable topics; nil: they are not served here.
	DeadLetters deadletter.TopicDeadLetters
	Migrator    *migrate.Migrator
	Key         *auth.Key
	Clock       func() time.Time
	Logger      *slog.Logger
	// Observe counts an RPC; code is "ok" or the name of connect's code.
	Observe func(procedure, code string, took time.Duration)
	// More is what is served to operators besides, by path; Operator returns the caller.
	More map[string]http.Handler
	// Services are served in the same chain: their calls are admitted, bounded, validated and
	// recorded like those of OpsService, and their errors come from its table.
	Services []func(...connect.HandlerOption) (path string, handler http.Handler)
	// Refused, if given, counts a call without an operator's token; the reason is one of
	// auth.Reason's.
	Refused func(reason string)
}

// Service is the implementation of OpsService.
type Service struct {
	cfg         Config
	deadLetters *deadletter.Manager
	audit       *audit.Log
	security    *audit.Recorder
	handler     http.Handler
	calls       chan struct{}
}

var _ opsv1connect.OpsServiceHandler = (*Service)(nil)

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Decode == nil || cfg.Key == nil || cfg.Observe == nil || cfg.Migrator == nil {
		return nil, errors.New("ops: decoder, key, observer and migrator are required")
	}
	manager, err := deadletter.New(deadletter.Config{Addr: cfg.Addr, Kafka: cfg.Kafka, Store: cfg.Store,
		Topics: cfg.DeadLetters, Clock: cfg.Clock, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, deadLetters: manager, audit: audit.New(cfg.Store, cfg.Clock),
		calls: make(chan struct{}, maxCalls)}
	s.security = audit.NewRecorder(s.audit, cfg.Logger)
	chain, err := s.chain()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	options := []connect.HandlerOption{connect.WithInterceptors(chain), connect.WithReadMaxBytes(maxRequest),
		connect.WithSendMaxBytes(maxResponse)}
	mux.Handle(opsv1connect.NewOpsServiceHandler(s, options...))
	mux.Handle(opsv1connect.NewEventServiceHandler(events.New(cfg.Store, cfg.Clock), options...))
	for _, serve := range cfg.Services {
		mux.Handle(serve(options...))
	}
	for path, more := range cfg.More {
		mux.Handle(path, more)
	}
	s.serveProfiles(mux)
	s.handler = s.admit(mux)
	return s, nil
}

// Handler serves the service to those with an operator's token.
func (s *Service) Handler() http.Handler { return s.handler }

// Security records refused callers; it runs as long as the service.
func (s *Service) Security() *audit.Recorder { return s.security }

// DeadLetters is what handles the dead letters, for metrics.
func (s *Service) DeadLetters() *deadletter.Manager { return s.deadLetters }

type operatorKey struct{}

// admit lets operators in. Headers alone decide: the body of any other request is not read.
func (s *Service) admit(next http.Handler) http.Handler {
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, err := s.cfg.Key.Operator(r.Header, s.cfg.Clock())
		if err == nil {
			ctx := context.WithValue(r.Context(), operatorKey{}, op)
			if least, _ := LeastRole(r.URL.Path); !op.Role.Includes(least) {
				_ = errorWriter.Write(w, r, s.public(ctx, r.URL.Path, s.refuseRole(ctx, r.URL.Path, least)))
				return
			}
			edge.Trust(ctx)
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		// The same warning is written a few times and then counted.
		s.cfg.Logger.Warn("ops: refused", "from", r.RemoteAddr, "reason", auth.Reason(err))
		if s.cfg.Refused != nil {
			s.cfg.Refused(auth.Reason(err))
		}
		_ = errorWriter.Write(w, r, s.public(r.Context(), r.URL.Path, err)) // fails if the client has left
	})
}

// refuseRole records that an operator called a procedure of a higher role, and returns why
// it is refused. A path that no procedure has is arbitrary input of the caller, and is not
// recorded by name.
func (s *Service) refuseRole(ctx context.Context, path string, least auth.Role) error {
	op, _ := Operator(ctx)
	what := "procedure" + path
	if _, known := LeastRole(path); !known {
		what = "procedure/unknown"
	}
	s.cfg.Logger.WarnContext(ctx, "ops: refused a role", "by", op.Name, "role", op.Role, "procedure", what)
	err := s.security.Record(ctx, audit.Event{Action: audit.RoleRequired, Actor: op.Name, Target: what,
		Outcome: "role_required", Detail: fmt.Sprintf("needs the role %s, has %s", least, op.Role)})
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "ops: a refusal is missing in the audit", "by", op.Name, "error", err)
	}
	return fmt.Errorf("%w: this call needs the role %s, and the token has %s", errRole, least, op.Role)
}

// Operator is the operator who calls, in what a Service serves.
func Operator(ctx context.Context) (op auth.Operator, ok bool) {
	op, ok = ctx.Value(operatorKey{}).(auth.Operator)
	return op, ok
}

// actor is the name of the operator who calls.
func actor(ctx context.Context) string {
	op, _ := Operator(ctx)
	return op.Name
}
