// Package ops serves operators: dead letters, replays of events, and the lag of consumer
// groups.
//
// It owns the service behind parley.ops.v1, its listener, the admission of operators, the
// redaction of records, and the table of its errors. It does not own what is done: dead
// letters belong to package deadletter, replays to package replay, groups and topics to
// package lag. The command line is package opsctl.
//
// # Trust
//
// Every call carries an operator's token; tokens of users are refused. Without TLS the
// listener is on loopback only; with TLS both sides show certificates of the same
// authority. What users wrote is shown only to operators who ask for it. Such calls, and
// those that change something, leave two rows in the store with the operator's name: one
// before they act, one when they have ended (package audit). The interceptor alone records
// them, so that no handler can forget to.
//
// # Concurrency
//
// A Service may be used by many goroutines; at most maxCalls calls run at a time, since
// each may read a whole topic.
package ops

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/edge"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/audit"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/migrate"
)

// Limits of calls.
const (
	maxRequest   = 1 << 20
	maxResponse  = 8 << 20
	maxCalls     = 8
	unaryTimeout = 2 * time.Minute // a whole topic may have to be read
)

// Config is what a Service works with; all of it but Kafka and Handlers is required.
type Config struct {
	Addr  string         // of Kafka
	Kafka []kafka.Option // for its clients
	Store store.Store
	// Decode reads a record as an event; errors that wrap event.ErrSchema are about the
	// record.
	Decode func(ctx context.Context, key, value []byte) (event.Event, error)
	// Handlers take redriven records, by consumer group.
	Handlers map[string]consume.Handler
	Migrator *migrate.Migrator
	Key      *auth.Key
	Clock    func() time.Time
	Logger   *slog.Logger
	// Observe counts an RPC; code is "ok" or the name of connect's code.
	Observe func(procedure, code string, took time.Duration)
	// Refused, if given, counts a call without an operator's token; the reason is one of
	// auth.Reason's.
	Refused func(reason string)
}

// Service is the implementation of OpsService.
type Service struct {
	cfg     Config
	letters *deadletter.Manager
	audit   *audit.Log
	handler http.Handler
	calls   chan struct{}
}

var _ opsv1connect.OpsServiceHandler = (*Service)(nil)

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Decode == nil || cfg.Key == nil || cfg.Observe == nil || cfg.Migrator == nil {
		return nil, errors.New("ops: decoder, key, observer and migrator are required")
	}
	letters, err := deadletter.New(deadletter.Config{Addr: cfg.Addr, Kafka: cfg.Kafka, Store: cfg.Store, Clock: cfg.Clock, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, letters: letters, audit: audit.New(cfg.Store, cfg.Clock), calls: make(chan struct{}, maxCalls)}
	i, err := newInterceptor(s)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(opsv1connect.NewOpsServiceHandler(s, connect.WithInterceptors(i), connect.WithReadMaxBytes(maxRequest), connect.WithSendMaxBytes(maxResponse)))
	s.handler = s.admit(mux)
	return s, nil
}

// Handler serves the service to those with an operator's token.
func (s *Service) Handler() http.Handler { return s.handler }

// DeadLetters is what handles the dead letters, for metrics.
func (s *Service) DeadLetters() *deadletter.Manager { return s.letters }

type operatorKey struct{}

// admit lets operators in. Headers alone decide: the body of any other request is not read.
func (s *Service) admit(next http.Handler) http.Handler {
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, err := s.cfg.Key.Operator(r.Header, s.cfg.Clock())
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			// The same warning is written a few times and then counted.
			s.cfg.Logger.Warn("ops: refused", "from", r.RemoteAddr, "reason", auth.Reason(err))
			if s.cfg.Refused != nil {
				s.cfg.Refused(auth.Reason(err))
			}
			_ = errorWriter.Write(w, r, s.public(r.Context(), r.URL.Path, err)) // fails if the client has left
			return
		}
		edge.Trust(r.Context())
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, op.Name)))
	})
}

// actor is the operator who calls.
func actor(ctx context.Context) string {
	name, _ := ctx.Value(operatorKey{}).(string)
	return name
}
