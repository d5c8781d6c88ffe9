package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/loopback"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/observe"
)

// openTime bounds the wait for Redis, and the wait for the answers of other servers, at the
// start. A server whose lease outlives it is forgotten sooner.
const openTime = 30 * time.Second

// peers are the other processes of an installation.
type peers struct {
	*program
	recipients *routing.Recipients
	mesh       *link.Mesh
	lease      *routing.Lease
	nudger     *link.Nudger
	listener   net.Listener
	addr       string // where others find the listener
}

// connect makes the links to other processes. The hub must exist, the service must not be
// in use yet.
func (p *program) connect(ctx context.Context, reader *view.Reader) (_ *peers, err error) {
	b := p.backend
	c := &peers{
		program: p, recipients: routing.NewRecipients(b.Generation, b.Routing, reader.MemberIDs),
		nudger: link.NewNudger(b.Routing, p.log),
	}
	var lc net.ListenConfig
	if c.listener, err = lc.Listen(ctx, "tcp", p.cfg.Links.Listen); err != nil {
		return nil, listenError("link-listen", p.cfg.Links.Listen, err)
	}
	p.closers = append(p.closers, func() { _ = c.listener.Close() })
	carried, err := p.topics.Carried()
	if err != nil {
		return nil, err
	}
	c.mesh, err = link.New(link.Config{
		Process: p.process, Generation: b.Generation, Table: b.Routing, Recipients: c.recipients,
		Secret: p.key.Derive(link.Purpose, link.SecretSize), TLS: p.cfg.linkTLS, Hub: p.hub, Accept: p.chats.Send,
		Carried: carried,
		Clock:   time.Now, Logger: p.log,
	})
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, c.mesh.Close)
	p.forward, p.remote = c.mesh.Forward, c.mesh.Remote
	if c.addr = p.cfg.Links.Address; c.addr == "" {
		c.addr = c.listener.Addr().String()
	}
	c.lease, err = routing.NewLease(routing.LeaseConfig{
		Table: b.Routing, Server: routing.Server{ID: p.process, Addr: c.addr, Generation: b.Generation},
		Lost: p.hub.InvalidateAll, Clock: time.Now, Logger: p.log, Patience: openTime,
	})
	if err != nil {
		return nil, err
	}
	p.onCommit = append(p.onCommit, func(commit chat.Commit, d delivery.Delivery) {
		c.mesh.Deliver(d)
		c.nudger.Nudge(commit)
	})
	p.onReceipt = append(p.onReceipt,
		func(row table.UserChat, state *chatv1.MemberState) { c.mesh.Receipt(row.UserID, row.ChatID, state) })
	p.services = append(p.services, c.links()...)
	p.services = append(p.services, p.topics.Services()...)
	p.addresses = append(p.addresses, "links", c.addr, "key", p.key)
	c.measure()
	return c, nil
}

// links are the services that run before HTTP does. Links are listened to before others
// learn the address, and others know of this process before it commits anything.
func (c *peers) links() []lifecycle.Service {
	return []lifecycle.Service{
		{Name: "links", Run: func(ctx context.Context, ready func()) error {
			ready()
			return c.mesh.Serve(ctx, c.listener, c.cfg.linkTLS)
		}},
		{Name: "routing", Run: func(ctx context.Context, ready func()) error {
			// A server that others do not find would hold streams to which nothing comes.
			if err := c.mesh.VerifySelfReachable(ctx, c.addr); err != nil {
				return fmt.Errorf("link-address %w", err)
			}
			if loopback.Is(c.addr) {
				c.log.Warn("the link address is one of this machine: servers and workers on others will not find it", "address",
					c.addr)
			}
			return c.lease.Run(ctx, ready)
		}},
		{Name: "peers", Run: func(ctx context.Context, ready func()) error {
			open, cancel := context.WithTimeout(ctx, openTime)
			defer cancel()
			if err := c.mesh.Open(open); err != nil {
				return err
			}
			return c.mesh.Run(ctx, ready)
		}},
		{Name: "nudges", Run: c.nudger.Run},
	}
}

// route registers a user's stream.
func (c *peers) route(ctx context.Context, user string) (func(), error) {
	release, err := c.lease.Register(ctx, user)
	return release, unreachable(err)
}

// Ack implements api.PeerStreams.
func (c *peers) Ack(ctx context.Context, user, streamID string, position int64) error {
	return unreachable(c.mesh.Ack(ctx, user, streamID, position))
}

// Extend implements api.PeerStreams.
func (c *peers) Extend(ctx context.Context, user, session, streamID string, until time.Time) error {
	return unreachable(c.mesh.Extend(ctx, user, session, streamID, until))
}

func unreachable(err error) error {
	if errors.Is(err, routing.ErrUnavailable) || errors.Is(err, link.ErrUnreachable) {
		return fmt.Errorf("%w: %w", api.ErrPeersUnavailable, err)
	}
	return err
}

// measure connects the counters of links and routing to the metrics.
func (c *peers) measure() {
	m := c.metrics
	observe.Links(m, c.mesh, c.recipients)
	m.Counter(telemetry.NudgesDropped, "Nudges for relays that were left out.",
		func() float64 { return float64(c.nudger.Dropped()) })
	m.Gauge(telemetry.RoutingRows, "Users with a row of this server.",
		func() float64 { return float64(c.lease.Stats().Rows) })
	m.Counter(telemetry.RoutingClaims, "Leases claimed, the first included.",
		func() float64 { return float64(c.lease.Stats().Claims) })
	m.Counter(telemetry.RoutingFailures, "Renewals that failed.",
		func() float64 { return float64(c.lease.Stats().Failures) })
}
