package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/observe"
)

// openTime bounds the wait for Redis, and the wait for the answers of other servers, at the
// start. A server whose lease outlives it is forgotten sooner.
const openTime = 30 * time.Second

// cluster is what a server has in common with other processes; nil where it is alone.
type cluster struct {
	recipients *routing.Recipients
	mesh       *link.Mesh
	lease      *routing.Lease
	nudger     *link.Nudger
	listener   net.Listener
	tls        *tls.Config
	addr       string // where others find the listener
	log        logger
}

// buildCluster makes it. The hub must be there, the service not yet be in use.
func (p *program) buildCluster(reader *view.Reader, log logger) (err error) {
	if p.eng.Routing == nil {
		return nil
	}
	c := &cluster{
		recipients: routing.NewRecipients(p.eng.Generation, p.eng.Routing, reader.MemberIDs),
		nudger:     link.NewNudger(p.eng.Routing, log), log: log,
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.tls, err = engine.MutualTLS(p.cfg.LinkCA, p.cfg.LinkCert, p.cfg.LinkKey); err != nil {
		return fmt.Errorf("links: %w", err)
	}
	var lc net.ListenConfig
	if c.listener, err = lc.Listen(context.Background(), "tcp", p.cfg.LinkListen); err != nil {
		return listenError("link-listen", p.cfg.LinkListen, err)
	}
	c.mesh, err = link.New(link.Config{
		Process: p.process, Generation: p.eng.Generation, Table: p.eng.Routing, Recipients: c.recipients,
		Secret: p.key.Derive(link.Purpose, link.SecretSize), TLS: c.tls, Hub: p.hub, Clock: time.Now, Logger: log,
	})
	if err != nil {
		return err
	}
	if c.addr = p.cfg.LinkAddress; c.addr == "" {
		c.addr = c.listener.Addr().String()
	}
	c.lease, err = routing.NewLease(routing.LeaseConfig{
		Table: p.eng.Routing, Server: routing.Server{ID: p.process, Addr: c.addr, Generation: p.eng.Generation},
		Lost: p.hub.MarkDirty, Clock: time.Now, Logger: log,
	})
	p.cluster = c
	return err
}

func (c *cluster) close() {
	if c == nil {
		return
	}
	if c.mesh != nil {
		c.mesh.Close()
	}
	if c.listener != nil {
		_ = c.listener.Close()
	}
}

// services are the parts that run before HTTP does. Links are listened to before others
// learn the address, and others know of this process before it commits anything.
func (c *cluster) services() []lifecycle.Service {
	if c == nil {
		return nil
	}
	return []lifecycle.Service{
		{Name: "links", Run: func(ctx context.Context, ready func()) error {
			ready()
			return c.mesh.Serve(ctx, c.listener, c.tls)
		}},
		{Name: "routing", Run: func(ctx context.Context, ready func()) error {
			// A server that others do not find would hold streams to which nothing comes.
			if err := c.mesh.VerifySelfReachable(ctx, c.addr); err != nil {
				return fmt.Errorf("link-address %w", err)
			}
			if host, _, err := net.SplitHostPort(c.addr); err == nil && isLoopback(host) {
				c.log.Warn("the link address is one of this machine: servers and workers on others will not find it", "address", c.addr)
			}
			return c.lease.Hold(ctx, openTime, ready)
		}},
		{Name: "peers", Run: func(ctx context.Context, ready func()) error {
			open, cancel := context.WithTimeout(ctx, openTime)
			defer cancel()
			if err := c.mesh.Open(open); err != nil {
				return err
			}
			ready()
			return c.mesh.Run(ctx)
		}},
		{Name: "nudges", Run: func(ctx context.Context, ready func()) error {
			ready()
			return c.nudger.Run(ctx)
		}},
	}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// committed tells other processes of a commit.
func (c *cluster) committed(commit chat.Commit, d delivery.Delivery) {
	if c != nil {
		c.mesh.Deliver(d)
		c.nudger.Nudge(commit)
	}
}

// receipt tells the user's other servers of the user's own state in a chat.
func (c *cluster) receipt(row table.UserChat, state *chatv1.MemberState) {
	if c != nil {
		c.mesh.Receipt(row.UserID, row.ChatID, state)
	}
}

// route registers a user's stream.
func (c *cluster) route(ctx context.Context, user string) (func(), error) {
	release, err := c.lease.Register(ctx, user)
	return release, elsewhere(err)
}

// Ack implements api.PeerStreams.
func (c *cluster) Ack(ctx context.Context, user, streamID string, position int64) error {
	return elsewhere(c.mesh.Ack(ctx, user, streamID, position))
}

// Extend implements api.PeerStreams.
func (c *cluster) Extend(ctx context.Context, user, session, streamID string, until time.Time) error {
	return elsewhere(c.mesh.Extend(ctx, user, session, streamID, until))
}

func elsewhere(err error) error {
	if errors.Is(err, routing.ErrUnavailable) || errors.Is(err, link.ErrUnreachable) {
		return fmt.Errorf("%w: %w", api.ErrPeersUnavailable, err)
	}
	return err
}

// measure connects the counters of links and routing to the metrics.
func (c *cluster) measure(m *telemetry.Metrics) {
	if c == nil {
		return
	}
	observe.Links(m, c.mesh, c.recipients)
	m.Counter(telemetry.NudgesDropped, "Nudges for relays that were left out.", func() float64 { return float64(c.nudger.Dropped()) })
	m.Gauge(telemetry.RoutingRows, "Users with a row of this server.", func() float64 { return float64(c.lease.Stats().Rows) })
	m.Counter(telemetry.RoutingClaims, "Leases claimed, the first included.", func() float64 { return float64(c.lease.Stats().Claims) })
	m.Counter(telemetry.RoutingFailures, "Renewals that failed.", func() float64 { return float64(c.lease.Stats().Failures) })
}
