package app

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/parley-chat/parley/server/config"
	"github.com/parley-chat/parley/server/descriptors"
	"github.com/parley-chat/parley/server/edge"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/telemetry"
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

// edgeConfig is what operators say of the way to the clients.
type edgeConfig struct {
	hosts      []string
	anyHost    bool
	proxies    int
	clients    int // connections
	perAddress int
	metrics    string // host:port; "" for none of its own

	loopback bool // the listener's address
}

func readEdge(v config.Values) edgeConfig {
	c := edgeConfig{
		proxies: v.Int("PARLEY_BEHIND_PROXY"), clients: v.Int("PARLEY_MAX_CONNECTIONS"), perAddress: v.Int("PARLEY_MAX_CONNECTIONS_PER_ADDRESS"),
		metrics: v.Get("PARLEY_METRICS_LISTEN"),
	}
	c.hosts, c.anyHost = v.Hosts("PARLEY_ALLOWED_HOSTS")
	return c
}

// exposed says that others than this machine's can connect, and read what passes: then
// there is nothing on the listener that is for operators.
func (c edgeConfig) exposed() bool { return !c.loopback && c.proxies == 0 }

// allowed are the names by which the server is called.
func (c Config) allowed() edge.Hosts {
	own, _, err := net.SplitHostPort(c.Listen)
	if c.Edge.anyHost || err != nil || len(c.Edge.hosts) == 0 && (!c.Edge.loopback || c.Edge.proxies > 0) {
		return edge.Hosts{}
	}
	return edge.LocalHosts(append([]string{own}, c.Edge.hosts...)...)
}

// guard bounds a listener's connections.
func (p *program) guard(l net.Listener) *edge.Guard {
	written, older := p.eng.Descriptors()
	limits := edge.Limits{Connections: descriptors.Clients(p.cfg.Edge.clients, written, older), PerAddress: p.cfg.Edge.perAddress}
	if limits.Connections < p.cfg.Edge.clients {
		limit, _, _ := descriptors.Count()
		p.log.Info("fewer connections than max-connections: the process may not open more files", "connections", limits.Connections, "files", limit)
	}
	if p.cfg.Edge.proxies > 0 { // all are the proxies'
		limits.PerAddress = 0
	}
	g := edge.New(l, limits, p.log)
	p.metrics.Gauge(telemetry.Connections, "Open connections of clients.", func() float64 { return float64(g.Stats().Open) })
	p.metrics.Counter(telemetry.ConnectionsRefused, "Connections closed at once, for want of room.", func() float64 { return float64(g.Stats().Refused) })
	p.metrics.Counter(telemetry.ConnectionsEvicted, "Connections without a token, or idle, closed to make room.", func() float64 { return float64(g.Stats().Evicted) })
	p.metrics.Counter(telemetry.ConnectionsCut, "Connections cut for HTTP/2 frames without a reason.", func() float64 { return float64(g.Stats().Flooded) })
	return g
}

// bounded puts the bounds of requests in front of a handler.
func (p *program) bounded(next http.Handler) http.Handler {
	q := &edge.Requests{
		Hosts: p.cfg.allowed(), Proxies: p.cfg.Edge.proxies, PerClient: p.cfg.Edge.perAddress,
		Refuse: func(w http.ResponseWriter, r *http.Request, why edge.Refusal) {
			p.api.Reject(w, r, why.Status, why.Reason, why.Text)
		},
	}
	p.metrics.Counter(telemetry.RequestsRefused, "Requests refused for their host, their headers, or the number of their client's.", func() float64 { return float64(q.Refused()) })
	return q.Wrap(next)
}

// metricsHere says that metrics are served with the API.
func (p *program) metricsHere() bool { return p.cfg.Edge.metrics == "" && !p.cfg.Edge.exposed() }

// operatorsOnly is a handler that those who come through a proxy do not see.
func (p *program) operatorsOnly(next http.Handler) http.Handler {
	if p.cfg.Edge.proxies == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if edge.Proxied(r) {
			p.notFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// warnExposed says at the start what a listener beyond this machine means.
func (p *program) warnExposed(addr net.Addr) {
	if p.cfg.Edge.exposed() {
		p.log.Warn("listening beyond this machine without TLS: others on the way can read tokens and messages. Metrics, reflection and demo tokens are not to be had there. "+
			"Set behind-proxy if proxies with TLS stand in front, metrics-listen for metrics", "address", addr.String())
	}
}

// scraped serves metrics and health on a listener of their own.
func (p *program) scraped(ctx context.Context, w *web) (_ []lifecycle.Service, closer func(), err error) {
	if p.cfg.Edge.metrics == "" {
		return nil, func() {}, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", p.cfg.Edge.metrics)
	if err != nil {
		return nil, nil, listenError("metrics-listen", p.cfg.Edge.metrics, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.metrics.Handler())
	p.handleHealth(mux, w)
	g := edge.New(l, edge.Limits{Connections: maxScrapers}, p.log)
	srv := &http.Server{
		Handler: edge.NewPages(maxScrapers, pageTime).Wrap(mux), ReadHeaderTimeout: pageTime, ReadTimeout: pageTime, IdleTimeout: 3 * time.Minute,
		MaxHeaderBytes: edge.MaxHeader, ErrorLog: w.srv.ErrorLog,
	}
	g.Install(srv)
	p.log.Info("serving metrics", "address", l.Addr().String())
	return []lifecycle.Service{{Name: "metrics", Run: func(ctx context.Context, ready func()) error {
		ready()
		_, err := lifecycle.ServeHTTP(ctx, srv, g, time.Second, nil)
		return err
	}}}, func() { _ = l.Close() }, nil
}
