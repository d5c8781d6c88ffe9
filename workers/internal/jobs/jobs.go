// Package jobs puts the workers together: what each job stands on, and the order of
// start and stop.
//
// It owns composition only; the jobs are packages of their own. Concurrency: Run is
// called once; what runs in the background is a lifecycle.Service.
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

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/access"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/registry"
	registryapi "github.com/parley-chat/parley/server/registry/api"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/workers/migrate"
)

// Names of the jobs.
const (
	Relay     = "relay"
	Fanout    = "fanout"
	Reconcile = "reconcile"
	Registry  = "registry"
	Ops       = "ops"
)

// MaxSlots is how many parts the relays' work has at most.
const MaxSlots = event.Shards

// Config says what to run.
type Config struct {
	Engine                    engine.Config
	Jobs                      []string
	Listen                    string // of health and metrics
	KeyFile                   string
	LinkCA, LinkCert, LinkKey string
	Slots                     int
	Registry                  SchemaRegistry
	RegisterSchemas           bool   // what is missing of the events' schemas
	Ops                       string // address where operators are served
	Logger                    *slog.Logger
}

// SchemaRegistry says how the job registry serves.
type SchemaRegistry struct {
	Listen                  string
	Password, WritePassword string // what readers and writers must know
	Cert, Key               string // files, for HTTPS
}

// tls is what the registry shows to its clients, nil for HTTP.
func (r SchemaRegistry) tls() (*tls.Config, error) {
	if r.Cert == "" && r.Key == "" {
		return nil, nil
	}
	if r.Cert == "" || r.Key == "" {
		return nil, errors.New("registry-cert and registry-key go together")
	}
	own, err := tls.LoadX509KeyPair(r.Cert, r.Key)
	if err != nil {
		return nil, fmt.Errorf("registry-cert: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own}}, nil
}

// Validate checks what can be checked without connecting.
func (c Config) Validate() error {
	if len(c.Jobs) == 0 {
		return errors.New("run needs jobs: relay, fanout, reconcile, registry, ops")
	}
	for _, j := range c.Jobs {
		switch j {
		case Relay, Reconcile, Registry:
		case Fanout, Ops:
			if c.Engine.Redis == "" || c.KeyFile == "" {
				return fmt.Errorf("%s needs redis and key-file, to find servers and be let in", j)
			}
		default:
			return fmt.Errorf("unknown job %.40q", j)
		}
		if (j == Relay || j == Fanout || j == Ops) && c.Engine.Brokers == "" {
			return fmt.Errorf("%s needs kafka-brokers", j)
		}
	}
	if _, err := c.Registry.tls(); err != nil {
		return err
	}
	if w := c.Registry.WritePassword; w != "" && w == c.Registry.Password {
		return errors.New("readers and writers of the schema registry need passwords of their own")
	}
	_, err := engine.MutualTLS(c.LinkCA, c.LinkCert, c.LinkKey)
	return err
}

// program is what a process of workers is made of.
type program struct {
	cfg     Config
	eng     *engine.Engine
	process string
	metrics *telemetry.Metrics
	counts  *telemetry.Lifecycle // see lifecycles
	serde   *event.Serde
	topics  *versions.Watch // where there are brokers
	letter  int             // schema id of dead letters
	nudger  *link.Nudger
	links   *links         // made by the first job that needs them
	ready   []func() error // asked by /readyz
	// published takes how long transactions of relays took.
	published func(time.Duration)
	closers   []func()
}

// Run runs the jobs until ctx ends or one fails. Errors fit into one line.
func Run(ctx context.Context, cfg Config) (err error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	defer listener.Close()
	ec := cfg.Engine
	ec.Logger, ec.RedisMayWait = cfg.Logger, true
	eng, err := engine.Open(ec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eng.Close()) }()
	p := &program{cfg: cfg, eng: eng, process: chat.NewID("wrk_"), metrics: telemetry.NewMetrics()}
	defer func() {
		for _, f := range slices.Backward(p.closers) {
			f()
		}
	}()
	eng.Measure(p.metrics)
	services, err := p.build(ctx)
	if err != nil {
		return err
	}
	services = append([]lifecycle.Service{{Name: "engine", Run: eng.Watch}}, services...)
	services = append(services,
		lifecycle.Restarted("store", cfg.Logger, func(ctx context.Context) error { return eng.WatchStore(ctx, cfg.Logger) }),
		lifecycle.Service{Name: "http", Run: p.serve(listener)},
	)
	err = lifecycle.Run(ctx, services, func() {
		cfg.Logger.Info("working", "jobs", strings.Join(cfg.Jobs, " "), "address", listener.Addr().String(), "process", p.process)
	})
	cfg.Logger.Info("stopped")
	return err
}

// build makes the services of all jobs, in the order of their start.
func (p *program) build(ctx context.Context) (list []lifecycle.Service, err error) {
	if p.eng.Routing != nil {
		p.nudger = link.NewNudger(p.eng.Routing, p.cfg.Logger)
		list = append(list, lifecycle.Service{Name: "nudges", Run: func(ctx context.Context, ready func()) error {
			ready()
			return p.nudger.Run(ctx)
		}})
	}
	if p.cfg.Engine.Brokers != "" {
		if err := p.eng.CheckTopics(ctx, access.Of(p.cfg.Jobs...)...); err != nil {
			return nil, err
		}
		if err := p.schemas(ctx); err != nil {
			return nil, err
		}
		list = append(list, lifecycle.Restarted("topics", p.cfg.Logger, p.topics.Run))
	}
	for _, job := range p.cfg.Jobs {
		var more []lifecycle.Service
		switch job {
		case Relay:
			more, err = p.relay()
		case Fanout:
			more, err = p.fanout()
		case Reconcile:
			more, err = p.reconcile(ctx)
		case Registry:
			more, err = p.registry(ctx)
		case Ops:
			more, err = p.ops(ctx)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

// schemas learns the ids of what this version publishes. Unless it is told to, a process
// does not register: what is published changes by a step of the deployment, not by the
// first process of a new version.
func (p *program) schemas(ctx context.Context) error {
	r := registry.New(p.eng.Store)
	find := r.FindOwn
	if p.cfg.RegisterSchemas {
		find = r.RegisterOwn
	}
	own, err := find(ctx, Messages()...)
	if err != nil {
		return explain(err)
	}
	if p.serde, err = event.NewSerde(own.Events, r.SubjectsOf); err != nil {
		return err
	}
	p.serde.OnNewer(func(eventType string, version int32) {
		p.cfg.Logger.Warn("events of a newer version are read without what they have more", "type", eventType, "version", version)
	})
	p.letter = own.Messages[0]
	if p.topics, err = versions.NewWatch(ctx, p.eng.Store, p.cfg.Logger); err != nil {
		return err
	}
	return explain(migrate.Subjects(ctx, r, p.topics.State(), p.cfg.RegisterSchemas))
}

// explain says what to do where a schema is missing.
func explain(err error) error {
	var missing *registry.MissingError
	if errors.As(err, &missing) {
		return fmt.Errorf("the schema %w: register what this version publishes with: workers schemas register", err)
	}
	return err
}

// Messages are what the jobs write besides events.
func Messages() []registry.Message {
	return []registry.Message{{Topic: kafka.DeadLetters, Proto: &eventv1.DeadLetter{}}}
}

// registry makes the service that lets others register and read schemas.
func (p *program) registry(ctx context.Context) ([]lifecycle.Service, error) {
	c := p.cfg.Registry
	encrypted, err := c.tls()
	if err != nil {
		return nil, err
	}
	s, err := registryapi.Listen(ctx, registryapi.Config{
		Registry: registry.New(p.eng.Store), Listen: c.Listen, Password: c.Password, WritePassword: c.WritePassword, TLS: encrypted, Logger: p.cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	if encrypted == nil && c.Password != "" {
		p.cfg.Logger.Warn("passwords of the schema registry cross the network as they are: registry-cert and registry-key encrypt them")
	}
	p.closers = append(p.closers, s.Close)
	p.cfg.Logger.Info("schema registry", "address", s.Addr())
	return []lifecycle.Service{{Name: "registry", Run: s.Run}}, nil
}

// key is the key that all processes share.
func (p *program) key() (*auth.Key, error) { return auth.ReadKey(p.cfg.KeyFile) }

// stopTime is what requests under way have left when the process ends.
const stopTime = 2 * time.Second

// serve serves health and metrics until ctx ends.
func (p *program) serve(l net.Listener) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", p.metrics.Handler())
		mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
		mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
			if err := p.eng.Ready(r.Context()); err != nil {
				http.Error(w, "not ready: the engines", http.StatusServiceUnavailable)
				return
			}
			for _, f := range p.ready {
				if err := f(); err != nil { // the jobs' own words
					http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
					return
				}
			}
			_, _ = w.Write([]byte("ready\n"))
		})
		srv := &http.Server{
			Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
			MaxHeaderBytes: 8 << 10, ErrorLog: slog.NewLogLogger(p.cfg.Logger.Handler(), slog.LevelWarn),
		}
		ready()
		_, err := lifecycle.ServeHTTP(ctx, srv, l, stopTime, nil)
		return err
	}
}
