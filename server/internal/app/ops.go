package app

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/config"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/ops"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

var opsUsage = fmt.Sprintf(opsctl.Usage, "server")

// opsClient is how the commands of operators find the service and who they are.
type opsClient struct {
	address, operator string
	token             config.Secret
}

// operate runs a command of an operator, which a running server answers: the data
// directory is the server's alone.
func operate(ctx context.Context, cfg Config, stdout, stderr io.Writer) (int, error) {
	t, err := engine.MutualTLS(cfg.LinkCA, cfg.LinkCert, cfg.LinkKey)
	if err != nil {
		return exitFailed, fmt.Errorf("links: %w", err)
	}
	return opsctl.Run(ctx, opsctl.Config{
		Program: "parley", Address: cfg.ops.address, Operator: cfg.ops.operator, Token: cfg.ops.token.Reveal(),
		Key: cfg.readKey, TLS: t, Stdout: stdout, Stderr: stderr,
	}, cfg.args), nil
}

// readKey reads the key of a server that has made it.
func (c Config) readKey() (*auth.Key, error) {
	if c.KeyFile != "" {
		return auth.ReadKey(c.KeyFile)
	}
	return auth.ReadKey(filepath.Join(c.DataDir, auth.KeyFile))
}

// operators is the service for them, and what it knows for the metrics.
type operators struct {
	server  *ops.Server
	letters *deadletter.Watch
}

// buildOperators makes it. The hub is used when a dead letter is driven again, not
// before.
func (p *program) buildOperators(ctx context.Context, serde *event.Serde, log logger) (o operators, err error) {
	t, err := engine.MutualTLS(p.cfg.LinkCA, p.cfg.LinkCert, p.cfg.LinkKey)
	if err != nil {
		return o, fmt.Errorf("links: %w", err)
	}
	s, err := ops.New(ops.Config{
		Addr: p.eng.KafkaAddr(), Kafka: p.eng.KafkaOptions(), Store: p.eng.Store, Decode: serde.Decode, Key: p.key, Clock: time.Now, Logger: log, Observe: p.metrics.Request, Refused: p.metrics.Refused,
		Handlers: map[string]consume.Handler{fanout.Group: fanout.Handler(serde, func(d delivery.Delivery) { p.hub.Deliver(d) }).One()},
		Migrator: p.durable.migrator,
	})
	if err != nil {
		return o, err
	}
	if o.server, err = ops.Listen(ctx, s, p.cfg.OpsListen, t); err != nil {
		return o, err
	}
	o.letters = s.DeadLetters().Watch()
	observe.DeadLetters(p.metrics, o.letters)
	return o, nil
}

// opsAddr is where operators are served; "" for nowhere.
func (d *durable) opsAddr() string {
	if d == nil {
		return ""
	}
	return d.operators.server.Addr()
}
