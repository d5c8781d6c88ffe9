package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/observe"
)

// links are this process's ways to servers, which several jobs may share.
type links struct {
	mesh *link.Mesh
	open chan struct{} // closed once servers can be told of anything
}

// connect makes the links, for whichever job asks first: it starts the services, too.
func (p *program) connect() (*links, []lifecycle.Service, error) {
	if p.links != nil {
		return p.links, nil, nil
	}
	key, err := p.key()
	if err != nil {
		return nil, nil, err
	}
	tls, err := engine.MutualTLS(p.cfg.LinkCA, p.cfg.LinkCert, p.cfg.LinkKey)
	if err != nil {
		return nil, nil, err
	}
	reader := view.New(view.Config{Store: p.eng.Store, Generation: p.eng.Generation, Clock: time.Now, TokenKey: key.Derive("sync tokens", view.KeySize)})
	recipients := routing.NewRecipients(p.eng.Generation, p.eng.Routing, reader.MemberIDs)
	mesh, err := link.New(link.Config{
		Process: p.process, Generation: p.eng.Generation, Table: p.eng.Routing, Recipients: recipients,
		Secret: key.Derive(link.Purpose, link.SecretSize), TLS: tls, Clock: time.Now, Logger: p.cfg.Logger,
	})
	if err != nil {
		return nil, nil, err
	}
	p.closers = append(p.closers, mesh.Close)
	lease, err := routing.NewLease(routing.LeaseConfig{
		Table: p.eng.Routing, Server: routing.Server{ID: p.process, Generation: p.eng.Generation},
		Lost: func() {}, Clock: time.Now, Logger: p.cfg.Logger,
	})
	if err != nil {
		return nil, nil, err
	}
	observe.Links(p.metrics, mesh, recipients)
	// Other jobs of the process need no Redis: they do not wait until it is there. Servers
	// must see this process listed before it sends anything to them.
	l, listed := &links{mesh, make(chan struct{})}, make(chan struct{})
	p.links = l
	p.ready = append(p.ready, func() error {
		if !l.ready() {
			return errors.New("there are no links to servers yet")
		}
		return nil
	})
	return l, []lifecycle.Service{
		{Name: "routing", Run: func(ctx context.Context, ready func()) error {
			ready()
			return lease.Hold(ctx, -1, func() { close(listed) })
		}},
		{Name: "links", Run: func(ctx context.Context, ready func()) error {
			ready()
			if !reached(ctx, listed) {
				return nil
			}
			for err := mesh.Open(ctx); err != nil; err = mesh.Open(ctx) {
				if !pause(ctx, time.Second) {
					return nil
				}
			}
			close(l.open)
			return mesh.Run(ctx)
		}},
	}, nil
}

// ready reports whether servers can be told of anything.
func (l *links) ready() bool {
	select {
	case <-l.open:
		return true
	default:
		return false
	}
}

// reached waits for a channel to be closed, and reports whether it was before ctx ended.
func reached(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
