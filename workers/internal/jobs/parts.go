package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/identity/parts"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/limit/limitview"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/ops"
	"github.com/parley-chat/parley/workers/pipeline"
	"github.com/parley-chat/parley/workers/topicproxy"
)

const (
	// parallel is how many chats fanout works on at a time; it waits for Redis.
	parallel = 32
	// fanoutStop is enough to finish and commit the work in progress, also where brokers or
	// servers answer late.
	fanoutStop = 50 * time.Second
)

// errNoLinks says that nothing can be asked of servers at the moment.
var errNoLinks = errors.New("there are no links to servers yet")

// parts returns the parts that do this process's jobs.
func (p *program) parts(
	ctx context.Context, counts *telemetry.ChatMetrics, nudge func(chat.Commit),
) (list []pipeline.Part, err error) {
	var (
		key   *auth.Key
		peers *links
	)
	if p.cfg.has(Fanout, Operators) {
		if key, err = auth.ReadKey(p.cfg.KeyFile); err != nil {
			return nil, err
		}
		if peers, err = p.connect(key); err != nil {
			return nil, err
		}
		p.add("keys", (&auth.KeyWatch{Key: key, Logger: p.cfg.Logger}).Run)
	}
	for _, job := range p.cfg.Jobs {
		switch job {
		case Relay:
			part := pipeline.Relay{Slots: p.cfg.Slots}
			if p.backend.Routing != nil {
				part.Listen = p.listen
			}
			list = append(list, part, p.cfg.Search)
		case Fanout:
			list = append(list, pipeline.Fanout{Deliver: peers.repair, Await: peers.await, Parallel: parallel, Stop: fanoutStop})
		case Projector:
			list = append(list, pipeline.Projector{})
		case Reconcile:
			chats, err := p.chats(ctx, counts, nudge)
			if err != nil {
				return nil, err
			}
			list = append(list, pipeline.Reconcile{Chats: chats})
		case Registry:
			if p.cfg.Registry.TLS == nil && p.cfg.Registry.Password != "" {
				p.cfg.Logger.Warn("passwords of the schema registry cross the network as they are: registry-cert and registry-key encrypt them")
			}
			list = append(list, p.cfg.Registry)
		case Operators:
			identity, err := p.identity(key)
			if err != nil {
				return nil, err
			}
			list = append(list, pipeline.Operators{Listen: p.cfg.Operators, TLS: p.cfg.Links, Key: key, Deliver: peers.redrive,
				Replicas: true, Identity: identity,
				DeadLetters: topicproxy.NewDeadLetters(peers.server, func(ctx context.Context) (int, error) {
					return topic.DeclaredSlots(ctx, p.backend.Store)
				}),
				More: topicproxy.Handlers(topicproxy.Config{Servers: peers.server, Operator: ops.Operator, Logger: p.cfg.Logger})})
		}
	}
	return list, nil
}

// identity is what operators use of it. The limits are those that servers share in Redis.
func (p *program) identity(key *auth.Key) (admin.Parts, error) {
	found, err := parts.ForOperators(p.backend.Store, time.Now, key, p.cfg.Logger)
	if err != nil {
		return found, err
	}
	limits, err := limit.New(limit.Config{Table: p.cfg.Limits, Clock: time.Now, Log: p.cfg.Logger,
		Shared: limit.Redis{Redis: p.backend.Routing}})
	found.Limits = limitview.New(limits)
	return found, err
}

// listen passes on what servers commit in some shards, until ctx ends. Other shards'
// nudges do not come here: each goes to one process, however many there are.
func (p *program) listen(ctx context.Context, shards []int, nudge func(chat.Commit)) error {
	return p.backend.Routing.Subscribe(ctx, shards, nil, func(n routing.Nudge) {
		// The sweep finds commits that cannot be decoded, or are of another version.
		if c, err := link.DecodeCommit(p.backend.Generation, n.Payload); err == nil {
			nudge(c)
		}
	})
}

// chats makes the service that the reconciler completes chats with. Delivery of its
// commits has the durable path.
func (p *program) chats(
	ctx context.Context, counts *telemetry.ChatMetrics, nudge func(chat.Commit),
) (*chat.Service, error) {
	return chat.New(ctx, chat.Config{
		Store: p.backend.Store, Clock: time.Now, Generation: p.backend.Generation, Producer: p.process, Shared: true,
		Meter:     chat.Meter{CreationRetried: counts.CreationRetried},
		Committed: nudge,
	})
}

// repair passes the head of a chat to the servers that have streams of its members.
func (l *links) repair(ctx context.Context, d delivery.Delivery) error {
	err := l.mesh.Repair(ctx, d)
	if errors.Is(err, routing.ErrStale) {
		return fmt.Errorf("%w: %w", fanout.ErrHead, err)
	}
	return err
}

// redrive does what repair does, for a dead letter.
func (l *links) redrive(ctx context.Context, d delivery.Delivery) error {
	if !l.ready() {
		return errNoLinks
	}
	return l.mesh.Repair(ctx, d)
}

// server is the way to one of the servers, any of which takes calls on topics.
func (l *links) server(context.Context) (connect.HTTPClient, string, error) {
	if !l.ready() {
		return nil, "", errNoLinks
	}
	return l.mesh.Any()
}
