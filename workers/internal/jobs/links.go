package jobs

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/observe"
)

// links are this process's ways to servers, which several jobs may share.
type links struct {
	mesh *link.Mesh
	open chan struct{} // closed once servers can be reached
}

// connect makes the links and adds the services that keep them.
func (p *program) connect(key *auth.Key) (*links, error) {
	b := p.backend
	reader := view.New(view.Config{Store: b.Store, History: b.History, Clock: time.Now,
		TokenKey: key.Derive("sync tokens", view.KeySize)})
	recipients := routing.NewRecipients(b.Generation, b.Routing, reader.MemberIDs)
	mesh, err := link.New(link.Config{
		Process: p.process, Generation: b.Generation, Table: b.Routing, Recipients: recipients,
		Secret: key.Derive(link.Purpose, link.SecretSize), TLS: p.cfg.Links, Clock: time.Now, Logger: p.cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, mesh.Close)
	lease, err := routing.NewLease(routing.LeaseConfig{
		Table: b.Routing, Server: routing.Server{ID: p.process, Generation: b.Generation},
		Lost: func() {}, Clock: time.Now, Logger: p.cfg.Logger, Patience: -1,
	})
	if err != nil {
		return nil, err
	}
	observe.Links(p.metrics, mesh, recipients)
	l := &links{mesh, make(chan struct{})}
	p.checks = append(p.checks, func() error {
		if !l.ready() {
			return errNoLinks
		}
		return nil
	})
	p.keep(l, lease)
	return l, nil
}

// keep adds the services that list this process and open its links. Other jobs of the
// process need no Redis and do not wait for it. Servers must see this process listed
// before it sends anything to them.
func (p *program) keep(l *links, lease *routing.Lease) {
	listed := make(chan struct{})
	p.add("routing", func(ctx context.Context, ready func()) error {
		ready()
		return lease.Run(ctx, func() { close(listed) })
	})
	p.add("links", func(ctx context.Context, ready func()) error {
		ready()
		if !closed(ctx, listed) {
			return nil
		}
		for err := l.mesh.Open(ctx); err != nil; err = l.mesh.Open(ctx) {
			if wait.For(ctx, time.Second) != nil {
				return nil //nolint:nilerr // the end of ctx is no failure
			}
		}
		return l.mesh.Run(ctx, func() { close(l.open) })
	})
}

// ready reports whether servers can be reached.
func (l *links) ready() bool {
	select {
	case <-l.open:
		return true
	default:
		return false
	}
}

// await waits until servers can be reached; false if ctx ends before.
func (l *links) await(ctx context.Context) bool { return closed(ctx, l.open) }

// closed waits for a channel to be closed; false if ctx ends before.
func closed(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}
