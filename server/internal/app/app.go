// Package app puts the server together: configuration, construction in order,
// start, and stop in reverse.
//
// It owns the command line, the HTTP server and what it serves beside the API
// (health, metrics, reflection), and the order of start and drain. Everything
// else is in the packages it composes. Concurrency: Run is called once; what runs
// in the background is a lifecycle.Service.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/edge"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/engine/clock"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/rest"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/fanout"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// clocks are those of the machine; tests set them.
var clocks = clock.System()

// demoUsers have their tokens printed at the start of a server that is alone.
var demoUsers = []string{"alice", "bob"}

// Run runs the program with an environment like os.Environ's until ctx ends or it fails,
// and returns the exit code.
func Run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, environ, stdout)
	code := exitOK
	if err == nil {
		for _, text := range cfg.warnings {
			fmt.Fprintf(stderr, "parley: warning: %s\n", text)
		}
		switch cfg.command {
		case "token":
			err = printToken(cfg, stdout)
		case "kafka":
			err = printKafka(ctx, cfg, stdout)
		case "check":
			code, err = checkData(ctx, cfg, stdout, stderr)
		case "ops":
			code, err = operate(ctx, cfg, stdout, stderr)
		default:
			err = serve(ctx, cfg, stdout, stderr)
		}
	}
	var wrong errUsage
	switch {
	case err == nil:
		return code
	case errors.Is(err, errHelp):
		return exitOK
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "parley: %v; --help lists what there is\n", err)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "parley: %v\n", err)
		return exitFailed
	}
}

// printToken needs the key's file only, so it works while a server runs. It makes no key:
// that of an empty directory would be no server's.
func printToken(cfg Config, stdout io.Writer) error {
	key, err := cfg.readKey()
	switch {
	case errors.Is(err, fs.ErrNotExist) && cfg.KeyFile == "" && cfg.hasStore():
		return fmt.Errorf("%s is missing, and there are data: put it back", filepath.Join(cfg.DataDir, auth.KeyFile))
	case errors.Is(err, fs.ErrNotExist) && cfg.KeyFile == "":
		return fmt.Errorf("%s holds no key yet: start the server there first, or say with --data-dir where it runs", cfg.DataDir)
	case err != nil:
		return err
	}
	token, err := key.Issue(cfg.user, time.Now(), tokenTTL)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, token)
	return err
}

func serve(ctx context.Context, cfg Config, stdout, stderr io.Writer) (err error) {
	log := telemetry.NewLogger(stderr, cfg.LogJSON)
	// The port first: a second server on the same port fails before it waits for
	// anything.
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return listenError("listen", cfg.Listen, err)
	}
	defer listener.Close()
	host, _, err := net.SplitHostPort(listener.Addr().String())
	cfg.Edge.loopback = err == nil && isLoopback(host)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	ec := cfg.Engine
	ec.Groups, ec.Logger, ec.Clocks = []string{fanout.Group}, log, clocks
	began := time.Now()
	ec.Opening = func(what string) { fmt.Fprintf(stdout, "Opening %s\n", what) }
	ec.Fatal = func(err error) {
		log.Error("the disk refused to sync; ending, because nothing can be promised any more", "error", err)
		fail(fmt.Errorf("sync: %w", err))
	}
	eng, err := engine.Open(ec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eng.Close()) }()
	p, err := build(ctx, cfg, eng, log)
	if err != nil {
		return err
	}
	defer p.close()
	web := p.server(log, local(listener.Addr()))
	guard := p.guard(listener)
	guard.Install(web.srv)
	scraped, closeScraped, err := p.scraped(ctx, web)
	if err != nil {
		return err
	}
	defer closeScraped()
	p.warnExposed(listener.Addr())
	services := append([]lifecycle.Service{{Name: "engine", Run: eng.Watch}}, p.workers(log)...)
	services = append(services, p.cluster.services()...)
	services = append(append(services, scraped...),
		lifecycle.Restarted("store", log, func(ctx context.Context) error { return eng.WatchStore(ctx, log) }),
		lifecycle.Service{Name: "delivery", Run: func(ctx context.Context, ready func()) error { ready(); return p.hub.Run(ctx, log) }},
		lifecycle.Service{Name: "http", Run: web.run(guard), Stop: drainTime + 2*time.Second},
	)
	err = lifecycle.Run(ctx, services, func() {
		log.Info("listening", p.whereabouts(listener.Addr(), time.Since(began))...)
		p.greet(stdout, listener.Addr())
	})
	log.Info("stopped")
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// whereabouts are the attributes of a server that is up: what means something in its mode.
func (p *program) whereabouts(addr net.Addr, took time.Duration) []any {
	at := []any{"address", addr.String()}
	if p.cfg.Engine.Distributed() {
		at = append(at, "links", p.cluster.addr, "key", p.key)
	} else {
		at = append(at, "kafka", p.eng.KafkaAddr(), "registry", p.durable.schemas.Addr(), "ops", p.durable.opsAddr(), "data_dir", absolute(p.cfg.DataDir))
	}
	return append(at, "process", p.process, "took", took.Round(time.Millisecond))
}

// listenError says in one line why the address of a flag cannot be had.
func listenError(flag, addr string, err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is in use: a server may be running already; --%s takes another address", addr, flag)
	}
	return fmt.Errorf("listen on %s: %w", addr, err)
}

// program is what the server is made of.
type program struct {
	cfg     Config
	eng     *engine.Engine
	key     *auth.Key
	gate    *auth.Gate
	chats   *chat.Service
	hub     *delivery.Hub
	durable *durable // nil: workers are processes of their own
	cluster *cluster // nil: this is the only process
	process string
	log     logger
	api     *api.API
	rest    http.Handler
	metrics *telemetry.Metrics
	counts  *telemetry.Lifecycle
}

// remoteTurns is the number of lists of chats that are worked on at once where the
// store is far away: they wait for it more than they compute.
const remoteTurns = 32

// build constructs everything, in the order of its dependencies.
func build(ctx context.Context, cfg Config, eng *engine.Engine, log logger) (_ *program, err error) {
	p := &program{cfg: cfg, eng: eng, log: log, metrics: telemetry.NewMetrics()}
	p.counts = p.metrics.Lifecycle()
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.key, err = cfg.loadKey(hasUsers(ctx, eng.Store)); err != nil {
		return nil, err
	}
	p.process = chat.NewID("srv_")
	vc := view.Config{Store: eng.Store, Generation: eng.Generation, Clock: clocks.Wall, TokenKey: p.key.Derive("sync tokens", view.KeySize)}
	if cfg.Engine.Distributed() {
		vc.Turns = remoteTurns
	}
	reader := view.New(vc)
	if !cfg.Engine.Distributed() { // there, workers are processes of their own
		if err := p.buildDurable(ctx, log); err != nil {
			return nil, err
		}
	}
	// The hub needs the service for watermarks, and the service the hub for its
	// commits; neither calls the other before both are there.
	p.chats, err = chat.New(ctx, chat.Config{
		Store: eng.Store, Clock: clocks.Wall, Generation: eng.Generation, Producer: p.process, Shared: cfg.Engine.Distributed(), Meter: meter(p.counts), Chats: cfg.MaxChats,
		Committed: func(c chat.Commit) {
			d := delivery.Of(c.Events)
			d.Payloads = c.Payloads
			p.hub.Deliver(d)
			p.cluster.committed(c, d)
			p.durable.nudge(c)
		},
		Receipt: func(row table.UserChat, head table.Head) {
			state := reader.State(head, row)
			p.hub.Receipt(row.UserID, row.ChatID, state)
			p.cluster.receipt(row, state)
		},
	})
	if err != nil {
		return nil, err
	}
	if err := p.buildReconciler(log); err != nil {
		return nil, err
	}
	p.hub, err = delivery.New(delivery.Config{
		Generation: eng.Generation, Process: p.process, Source: reader, Durable: eng.Store.Durable,
		Clock: clocks.Wall, NewID: chat.NewID, Delivered: p.chats.Delivered,
		Revoked: func(session string) bool { return p.gate.Revoked(session) }, // made below
	})
	if err != nil {
		return nil, err
	}
	if err = p.buildCluster(reader, log); err != nil {
		return nil, err
	}
	ac := api.Config{Chat: p.chats, View: reader, Hub: p.hub, Store: eng.Store, Logger: log, Observe: p.metrics.Request}
	if p.cluster != nil {
		ac.Route, ac.PeerStreams = p.cluster.route, p.cluster
	}
	p.api, err = api.New(ac)
	if err != nil {
		return nil, err
	}
	p.gate, err = auth.NewGate(auth.Config{
		Key: p.key, Clock: clocks.Wall, EnsureUser: p.chats.EnsureUser, Refuse: p.refuse, OnRevoke: p.hub.Revoke, Admitted: edge.Trust,
	})
	if err != nil {
		return nil, err
	}
	p.rest, err = rest.New(rest.Config{
		Handlers: p.api.Handlers(), Codec: api.RESTCodec, Gate: p.gate.Wrap, Services: p.api.Names(), Observe: p.metrics.Request,
		Stream: rest.Stream{Procedure: api.EventsProcedure, Codec: api.EventsCodec},
	})
	if err != nil {
		return nil, err
	}
	p.measure()
	for _, user := range p.demoUsers() {
		if err := p.chats.EnsureUser(ctx, user); err != nil {
			return nil, fmt.Errorf("write demo user: %w", err)
		}
	}
	return p, nil
}

// close closes what build opened.
func (p *program) close() {
	p.cluster.close()
	p.durable.close()
}

// refuse counts, logs and answers a request that the gate stopped. Why is one of few
// words: whoever has no token must not be able to make metrics, nor to fill the log, in
// which the same warning is written a few times and then counted.
func (p *program) refuse(w http.ResponseWriter, r *http.Request, err error) {
	reason := auth.Reason(err)
	p.metrics.Refused(reason)
	if reason != "unavailable" { // which the API logs
		p.log.Warn("a request was not authenticated", "reason", reason, "from", r.RemoteAddr)
	}
	p.api.Refuse(w, r, err)
}

// measure connects the counters that others keep to the metrics.
func (p *program) measure() {
	p.metrics.Refusals("missing", "expired", "invalid", "unavailable")
	hub := func(name, help string, counter bool, read func(delivery.Stats) float64) {
		value := func() float64 { return read(p.hub.Stats()) }
		if counter {
			p.metrics.Counter(name, help, value)
		} else {
			p.metrics.Gauge(name, help, value)
		}
	}
	hub(telemetry.StreamsOpen, "Open streams.", false, func(s delivery.Stats) float64 { return float64(s.Streams) })
	hub(telemetry.ChatsLive, "Chats with at least one open stream.", false, func(s delivery.Stats) float64 { return float64(s.Chats) })
	hub(telemetry.StreamsOpened, "Streams opened.", true, func(s delivery.Stats) float64 { return float64(s.Opened) })
	hub(telemetry.FramesQueued, "Frames queued for streams.", true, func(s delivery.Stats) float64 { return float64(s.Frames) })
	hub(telemetry.HoleReads, "Reads of events that did not come by themselves.", true, func(s delivery.Stats) float64 { return float64(s.HoleReads) })
	hub(telemetry.MemberChecks, "Reads of member lists.", true, func(s delivery.Stats) float64 { return float64(s.Checks) })
	hub(telemetry.SlowStreams, "Streams ended because they were too slow.", true, func(s delivery.Stats) float64 { return float64(s.Slow) })
	hub(telemetry.StreamMarks, "Times that something may have been lost on the way to all streams.", true, func(s delivery.Stats) float64 { return float64(s.Marks) })
	hub(telemetry.StreamResyncs, "Synchronisations of streams because of that.", true, func(s delivery.Stats) float64 { return float64(s.Resyncs) })
	hub(telemetry.ForeignChanges, "Changes of another generation of the store, left out.", true, func(s delivery.Stats) float64 { return float64(s.Foreign) })
	p.eng.Measure(p.metrics)
	p.cluster.measure(p.metrics)
}
