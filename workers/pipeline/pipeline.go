// Package pipeline composes the durable path of a process: relays from the outbox to
// Kafka, fanout from Kafka to the hubs, the projections, and what maintains them: the
// reconciler, the schema registry and the service for operators.
//
// It owns which parts there are, what they share, and in which order they start. The
// embedded server and workers of their own build the same path; they differ in the values
// of [Config] and of the parts. Each part has a package of its own for its work.
//
// Concurrency: New is called once; background work runs as a lifecycle.Service.
package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/lease"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/liveness"
	"github.com/parley-chat/parley/workers/relay"
)

// Config is what the parts of a process share. All of it but Liveness is required, Schemas only
// by parts that publish or read events.
type Config struct {
	Backend *backend.Backend
	Process string // id of this process
	Schemas *Schemas
	Metrics *telemetry.Metrics
	Chats   *telemetry.ChatMetrics
	// Liveness says which other processes have died; nil: there are no others.
	Liveness *liveness.Monitor
	Logger   *slog.Logger
}

// Part is a part of the path: Relay, Search, Fanout, Projector, Reconcile, Registry or Operators.
type Part interface {
	addTo(ctx context.Context, p *Pipeline) error
}

// Pipeline is the part of the durable path that runs in this process.
type Pipeline struct {
	// Services run it, in the order of their start.
	Services []lifecycle.Service
	// RegistryAddr and OperatorsAddr are the addresses of these parts; "" without them.
	RegistryAddr, OperatorsAddr string

	cfg      Config
	relays   relay.Set
	searches relay.Set // of search events
	checks   []func() error
	closers  []func()
	// isolation is shared by all consumers: a crash ends all of them.
	isolation consume.Isolation
}

// New builds the parts, in the order in which they are to start.
func New(ctx context.Context, cfg Config, parts ...Part) (*Pipeline, error) {
	p := &Pipeline{cfg: cfg}
	if cfg.Schemas != nil {
		p.run("topics", cfg.Schemas.Topics.Run)
	}
	for _, part := range parts {
		if err := part.addTo(ctx, p); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

// Nudge wakes the relay of this process that publishes a chat. It never
// waits.
func (p *Pipeline) Nudge(c chat.Commit) { p.relays.Nudge(c) }

// Ready returns why the path makes no progress; nil while it does.
func (p *Pipeline) Ready() error {
	for _, check := range p.checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// Close closes what New opened, in reverse order.
func (p *Pipeline) Close() {
	for _, f := range slices.Backward(p.closers) {
		f()
	}
	p.closers = nil
}

// run adds a service that the process can do without for a while.
func (p *Pipeline) run(name string, run func(ctx context.Context, ready func()) error) {
	p.Services = append(p.Services, lifecycle.Restarted(name, p.cfg.Logger, run))
}

// maxStalled is how long a part may make no progress before its process is not ready.
const maxStalled = time.Minute

// checkProgress reports a part that has made no progress for too long.
func checkProgress(part string, stalled time.Duration) error {
	if stalled > maxStalled {
		return errors.New(part + " makes no progress")
	}
	return nil
}

// member has dead workers removed from a consumer group, and returns the name of this process in
// it; "" where there are no other workers.
func (p *Pipeline) member(group string) string {
	if p.cfg.Liveness == nil {
		return ""
	}
	b := p.cfg.Backend
	p.cfg.Liveness.OnGone(func(ctx context.Context, g liveness.Gone) error {
		if !g.Silent { // it has left the group, or another process is the member
			return nil
		}
		return kafka.RemoveMember(ctx, b.KafkaAddr(), group, g.Name, b.KafkaOptions()...)
	})
	return p.cfg.Liveness.Name()
}

// leases makes the manager of the leases of a kind of slots. Slots of dead workers are acquired at
// once: their relays are fenced by their transactional ids.
func (p *Pipeline) leases(c lease.Config) (*lease.Manager, error) {
	c.Store, c.Holder, c.Logger = p.cfg.Backend.Store, p.cfg.Process, p.cfg.Logger
	if p.cfg.Liveness == nil {
		return lease.New(c)
	}
	c.Dead = p.cfg.Liveness.Dead
	m, err := lease.New(c)
	if err == nil {
		p.cfg.Liveness.OnGone(func(ctx context.Context, _ liveness.Gone) error { return m.Refresh(ctx) })
	}
	return m, err
}
