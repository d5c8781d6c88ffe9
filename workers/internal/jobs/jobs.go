// Package jobs puts a process of workers together: which parts of the durable path do
// its jobs, what they depend on, and the order of start and stop.
//
// It owns what only processes of their own need: links to servers, health and metrics. The
// parts belong to package pipeline. Concurrency: Run is called once; background work runs
// as a lifecycle.Service.
package jobs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/certificate"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/kafka/acl"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/workers/liveness"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/pipeline"
)

// Names of the jobs.
const (
	Relay     = "relay"
	Fanout    = "fanout"
	Projector = "projector"
	Reconcile = "reconcile"
	Registry  = "registry"
	Operators = "ops"
)

// Names lists the jobs.
func Names() []string { return []string{Relay, Fanout, Projector, Reconcile, Registry, Operators} }

// MaxSlots is how many parts the relays' work has at most.
const MaxSlots = event.Shards

// Config says what to run.
type Config struct {
	Backend         backend.Distributed
	Jobs            []string
	Listen          string // of health and metrics
	KeyFile         string
	Name            string      // of this worker, the same after a restart; "" for a new one each time
	Links           *tls.Config // of links and operators; nil for no TLS
	Slots           int
	Registry        pipeline.Registry
	RegisterSchemas bool        // those of events that are missing
	Operators       string      // address where operators are served
	Limits          limit.Table // of the servers, for operators to see
	Search          pipeline.Search
	Certificates    []certificate.Files // that the process shows, to be measured
	Logger          *slog.Logger
}

// Validate checks what can be checked without connecting.
func (c Config) Validate() error {
	if len(c.Jobs) == 0 {
		return fmt.Errorf("run needs jobs: %s", strings.Join(Names(), ", "))
	}
	for _, j := range c.Jobs {
		switch j {
		case Relay, Projector, Reconcile, Registry:
		case Fanout, Operators:
			if c.Backend.Redis.URL == "" || c.KeyFile == "" {
				return fmt.Errorf("%s needs redis and key-file, to find servers and be let in", j)
			}
		default:
			return fmt.Errorf("unknown job %.40q", j)
		}
		if (j == Relay || j == Fanout || j == Projector || j == Operators) && len(c.Backend.Kafka.Brokers) == 0 {
			return fmt.Errorf("%s needs kafka-brokers", j)
		}
	}
	if w := c.Registry.WritePassword; w != "" && w == c.Registry.Password {
		return errors.New("readers and writers of the schema registry need passwords of their own")
	}
	return nil
}

func (c Config) has(jobs ...string) bool {
	return slices.ContainsFunc(jobs, func(j string) bool { return slices.Contains(c.Jobs, j) })
}

// program is what a process of workers is made of.
type program struct {
	cfg      Config
	backend  *backend.Backend
	process  string
	metrics  *telemetry.Metrics
	pipeline *pipeline.Pipeline
	services []lifecycle.Service
	checks   []func() error // called by /readyz
	closers  []func()
}

// Run runs the jobs until ctx ends or one fails. Errors fit into one line.
func Run(ctx context.Context, cfg Config) (err error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	defer listener.Close()
	mode := cfg.Backend
	mode.RedisMayWait = true
	backend, err := backend.Open(backend.Config{Distributed: &mode, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	p := &program{cfg: cfg, backend: backend, process: chat.NewID("wrk_"), metrics: telemetry.NewMetrics()}
	defer p.close()
	backend.Measure(p.metrics)
	certificates, err := certificate.OpenAll(time.Now, cfg.Logger, cfg.Certificates...)
	if err != nil {
		return err
	}
	observe.Certificates(p.metrics, certificates...)
	p.services = []lifecycle.Service{{Name: "engine", Run: backend.Run}}
	if err := p.build(ctx); err != nil {
		return err
	}
	if cfg.has(Reconcile) { // a few processes check the same tables
		p.add("recovery", func(ctx context.Context, ready func()) error {
			ready()
			cfg.Backend.Tables.CheckRecovery(ctx, cfg.Logger)
			<-ctx.Done()
			return nil
		})
	}
	services := append(p.services,
		lifecycle.Service{Name: "http", Run: p.serve(listener)},
	)
	err = lifecycle.Run(ctx, services, func() {
		cfg.Logger.Info("working", "jobs", strings.Join(cfg.Jobs, " "), "address", listener.Addr().String(), "process",
			p.process)
	})
	cfg.Logger.Info("stopped")
	return err
}

func (p *program) close() {
	for _, f := range slices.Backward(p.closers) {
		f()
	}
}

// build makes the services of all jobs, in the order of their start.
func (p *program) build(ctx context.Context) (err error) {
	nudge := func(chat.Commit) {} // without Redis relays find commits by their sweeps
	if p.backend.Routing != nil {
		nudger := link.NewNudger(p.backend.Routing, p.cfg.Logger)
		nudge = nudger.Nudge
		p.add("nudges", nudger.Run)
	}
	alive, err := liveness.New(liveness.Config{Store: p.backend.Store, Name: p.cfg.Name, Process: p.process,
		Logger: p.cfg.Logger})
	if err != nil {
		return err
	}
	// The first to start and the last to stop: others find the work of a process that stops
	// released.
	p.add("liveness", alive.Run)
	observe.Liveness(p.metrics, alive)
	pc := pipeline.Config{Backend: p.backend, Process: p.process, Metrics: p.metrics, Logger: p.cfg.Logger,
		Liveness: alive}
	if len(p.cfg.Backend.Kafka.Brokers) > 0 {
		if err := p.backend.CheckTopics(ctx, acl.Of(p.cfg.Jobs...)...); err != nil {
			return err
		}
		// Unless a process is asked to, it does not register: published schemas change by a
		// step of the deployment, not by the first process of a new version.
		if pc.Schemas, err = pipeline.LoadSchemas(ctx, p.backend.Store, p.cfg.RegisterSchemas, p.cfg.Logger); err != nil {
			return explainMissing(err)
		}
	}
	if p.cfg.has(Relay, Reconcile) {
		pc.Chats = p.metrics.Chats()
	}
	parts, err := p.parts(ctx, pc.Chats, nudge)
	if err != nil {
		return err
	}
	if p.pipeline, err = pipeline.New(ctx, pc, parts...); err != nil {
		return err
	}
	p.closers = append(p.closers, p.pipeline.Close)
	p.checks = append(p.checks, p.pipeline.Ready)
	p.services = append(p.services, p.pipeline.Services...)
	if addr := p.pipeline.RegistryAddr; addr != "" {
		p.cfg.Logger.Info("schema registry", "address", addr)
	}
	if addr := p.pipeline.OperatorsAddr; addr != "" {
		p.cfg.Logger.Info("operators are served", "address", addr)
	}
	return nil
}

func (p *program) add(name string, run func(context.Context, func()) error) {
	p.services = append(p.services, lifecycle.Service{Name: name, Run: run})
}

// explainMissing says what to do where a schema is missing.
func explainMissing(err error) error {
	var missing *registry.MissingError
	if errors.As(err, &missing) {
		return fmt.Errorf("the schema %w: register what this version publishes with: workers schemas register", err)
	}
	return err
}

// stopTime is what requests under way have left when the process ends.
const stopTime = 2 * time.Second

// serve serves health and metrics until ctx ends.
func (p *program) serve(l net.Listener) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", p.metrics.Handler())
		mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
		mux.HandleFunc("GET /readyz", p.readyz)
		srv := &http.Server{
			Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
			IdleTimeout:    time.Minute,
			MaxHeaderBytes: 8 << 10, ErrorLog: slog.NewLogLogger(p.cfg.Logger.Handler(), slog.LevelWarn),
		}
		ready()
		_, err := lifecycle.ServeHTTP(ctx, srv, l, stopTime, nil)
		return err
	}
}

func (p *program) readyz(w http.ResponseWriter, r *http.Request) {
	if err := p.backend.Ready(r.Context()); err != nil {
		http.Error(w, "not ready: the engines", http.StatusServiceUnavailable)
		return
	}
	for _, check := range p.checks {
		if err := check(); err != nil { // the jobs' own words
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	_, _ = w.Write([]byte("ready\n"))
}
