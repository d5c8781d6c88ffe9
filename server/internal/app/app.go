// Package app puts the server together: configuration, construction in order,
// start, and stop in reverse.
//
// It owns the commands, the HTTP server and what it serves beside the API (health, metrics,
// reflection), and the order of start and drain. Everything else is in the packages it composes.
// Concurrency: Run is called once; background work runs as a lifecycle.Service.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/backend/clock"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/loopback"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/store"
)

// clocksKey is where tests put clocks into the context of a server that they start. Servers of other tests, which run
// beside it in the same process, keep those of the machine.
type clocksKey struct{}

// serve runs the server until ctx ends or it fails.
func serve(ctx context.Context, cfg Config, stdout, stderr io.Writer) (err error) {
	defer func() { err = explainDamage(cfg, err) }()
	log := telemetry.NewLogger(stderr, cfg.LogFormat == "json")
	if own, ok := ctx.Value(clocksKey{}).(clock.Clocks); ok {
		cfg.clocks = own
	}
	// The port first: a second server on the same port fails before it waits for
	// anything.
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return listenError("listen", cfg.Listen, err)
	}
	defer listener.Close()
	cfg.onLoopback = loopback.Is(listener.Addr().String())
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	began := time.Now()
	backend, err := openBackend(cfg, stdout, log, fail)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	p, err := build(ctx, cfg, backend, log)
	if err != nil {
		return err
	}
	defer p.close()
	services, err := p.serviceOrder(ctx, listener)
	if err != nil {
		return err
	}
	err = lifecycle.Run(ctx, services, func() {
		log.Info("listening", p.listeningAt(listener.Addr(), time.Since(began))...)
		p.printWelcome(stdout, listener.Addr())
	})
	log.Info("stopped")
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// explainDamage names the repair where a start has met a damaged file of the store: a start may read
// any block.
func explainDamage(cfg Config, err error) error {
	if cfg.distributed() || !errors.Is(err, store.ErrCorrupt) || errors.Is(err, backend.ErrDamaged) {
		return err
	}
	return fmt.Errorf("%w: %w; %s", backend.ErrDamaged, err, backend.HowToRepair)
}

func openBackend(cfg Config, stdout io.Writer, log *slog.Logger, fail func(error)) (*backend.Backend, error) {
	c := cfg.Backend
	if c.Embedded != nil {
		mode := *c.Embedded
		mode.Clocks = cfg.clocks
		c.Embedded = &mode
	}
	c.Logger = log
	c.Opening = func(what string) { fmt.Fprintf(stdout, "Opening %s\n", what) }
	c.Fatal = func(err error) {
		log.Error("the disk refused to sync; ending, because nothing can be promised any more", "error", err)
		fail(fmt.Errorf("sync: %w", err))
	}
	return backend.Open(c)
}

// serviceOrder lists all services in the order of their start. HTTP is the last one, so that
// all services are ready for its callers.
func (p *program) serviceOrder(ctx context.Context, listener net.Listener) ([]lifecycle.Service, error) {
	web := p.server(localAddr(listener.Addr()))
	guard := p.guard(listener)
	guard.Install(web.srv.Server)
	metrics, err := p.metricsListener(ctx, web)
	if err != nil {
		return nil, err
	}
	p.logExposure(listener.Addr())
	services := append([]lifecycle.Service{{Name: "engine", Run: p.backend.Run}}, p.services...)
	services = append(services, metrics...)
	return append(services,
		lifecycle.Service{Name: "delivery", Run: p.hub.Run},
		lifecycle.Service{Name: "http", Run: web.run(guard), Stop: drainTime + 2*time.Second},
	), nil
}

// listeningAt are the attributes of a server that is up: what means something in its mode.
func (p *program) listeningAt(addr net.Addr, took time.Duration) []any {
	at := append([]any{"address", addr.String()}, p.addresses...)
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
