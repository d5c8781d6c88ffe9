package app

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/parley-chat/parley/server/infra/descriptors"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/telemetry"
)

// Bounds of what needs no token.
const (
	maxReflections = 32
	reflectionTime = time.Minute
	maxWatches     = 1_024 // of health: clients of gRPC have one for each connection
	watchTime      = 10 * time.Minute
	maxPages       = 64 // answers at a time
	maxScrapes     = 4
	pageTime       = 10 * time.Second

	maxScrapers = 64 // connections of the listener for metrics
)

// reachable reports whether other machines can connect without a proxy in between. Without TLS
// others on the network can then read what passes. It says nothing about the clients of the
// server: behind a proxy any client may call. For that, see developing.
func (c Config) reachable() bool { return !c.onLoopback && !c.BehindProxy() }

// developing reports whether only processes of this machine can call a standalone server. Demo
// users, reflection and metrics are on the public listener only then.
func (c Config) developing() bool { return c.onLoopback && !c.BehindProxy() && !c.distributed() }

// allowedHosts are the names by which the server is called.
func (c Config) allowedHosts() edge.Hosts {
	own, _, err := net.SplitHostPort(c.Listen)
	if c.AnyHost || err != nil || len(c.AllowedHosts) == 0 && (!c.onLoopback || c.BehindProxy()) {
		return edge.Hosts{}
	}
	return edge.LocalHosts(append([]string{own}, c.AllowedHosts...)...)
}

// guard bounds a listener's connections.
func (p *program) guard(l net.Listener) *edge.Guard {
	readers := 0
	if mode := p.cfg.Backend.Embedded; mode != nil {
		readers = mode.KafkaConnections
	}
	limits := edge.Limits{Connections: descriptors.Clients(p.cfg.MaxConnections, readers),
		PerAddress: p.cfg.MaxConnectionsPerAddress}
	if limits.Connections < p.cfg.MaxConnections {
		limit, _, _ := descriptors.Count()
		p.log.Info("fewer connections than max-connections: the process may not open more files", "connections",
			limits.Connections, "files", limit)
	}
	if p.cfg.BehindProxy() { // all are the proxies'
		limits.PerAddress = 0
	}
	g := edge.New(l, limits, p.log)
	if p.certificate != nil {
		g.Secure(p.certificate.Public())
	}
	p.metrics.Gauge(telemetry.Connections, "Open connections of clients.",
		func() float64 { return float64(g.Stats().Open) })
	p.metrics.Counter(telemetry.ConnectionsRefused, "Connections closed at once, for want of room.",
		func() float64 { return float64(g.Stats().Refused) })
	p.metrics.Counter(telemetry.ConnectionsEvicted, "Connections without a token, or idle, closed to make room.",
		func() float64 { return float64(g.Stats().Evicted) })
	p.metrics.Counter(telemetry.ConnectionsCut, "Connections cut for HTTP/2 frames without a reason.",
		func() float64 { return float64(g.Stats().Flooded) })
	return g
}

// proxies are those that stand between clients and the server.
func (c Config) proxies() edge.Proxies {
	return edge.Proxies{Count: c.Proxies, Networks: c.ProxyNetworks}
}

// bounded puts the bounds of requests in front of a handler.
func (p *program) bounded(next http.Handler) http.Handler {
	q := &edge.Requests{
		Hosts:   p.cfg.allowedHosts(),
		Proxies: p.cfg.proxies(), PerClient: p.cfg.MaxConnectionsPerAddress,
		Refuse: func(w http.ResponseWriter, r *http.Request, why edge.Refusal) {
			p.api.Reject(w, r, why.Status, why.Reason, why.Text)
		},
	}
	p.metrics.Counter(telemetry.RequestsRefused,
		"Requests refused for their host, their headers, or the number of their client's.",
		func() float64 { return float64(q.Refused()) })
	return q.Wrap(next)
}

// servesMetrics reports whether metrics are served with the API.
func (p *program) servesMetrics() bool { return p.cfg.MetricsListen == "" && p.cfg.developing() }

// logExposure logs at the start what the listener means for security, and that metrics have
// no address.
func (p *program) logExposure(addr net.Addr) {
	if p.cfg.reachable() && p.certificate == nil {
		p.log.Warn("listening beyond this machine without TLS: others on the network can read tokens and messages. "+
			"Set tls-cert and tls-key, or behind-proxy if proxies with TLS stand in front", "address", addr.String())
	}
	if !p.cfg.developing() && p.cfg.MetricsListen == "" {
		p.log.Info("metrics are not served: set metrics-listen to an address that only your monitoring reaches")
	}
}

// metricsListener serves metrics and health on a listener of their own, if there is one.
func (p *program) metricsListener(ctx context.Context, w *web) ([]lifecycle.Service, error) {
	if p.cfg.MetricsListen == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", p.cfg.MetricsListen)
	if err != nil {
		return nil, listenError("metrics-listen", p.cfg.MetricsListen, err)
	}
	p.closers = append(p.closers, func() { _ = l.Close() })
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.metrics.Handler())
	p.handleHealth(mux, w, true)
	g := edge.New(l, edge.Limits{Connections: maxScrapers}, p.log)
	srv := &http.Server{
		Handler: edge.NewPages(maxScrapers, pageTime).Wrap(mux), ReadHeaderTimeout: pageTime, ReadTimeout: pageTime,
		IdleTimeout:    3 * time.Minute,
		MaxHeaderBytes: edge.MaxHeader, ErrorLog: w.srv.ErrorLog,
	}
	g.Install(srv)
	p.log.Info("serving metrics", "address", l.Addr().String())
	return []lifecycle.Service{{Name: "metrics", Run: func(ctx context.Context, ready func()) error {
		ready()
		_, err := lifecycle.ServeHTTP(ctx, srv, g, time.Second, nil)
		return err
	}}}, nil
}
